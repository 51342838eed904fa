/*
 * A random sequence of operations on files, by several processes of several users, in the directory
 * it is started in: one line for each operation with its result and what the file is then, in the
 * end every name with its attributes and contents. The same arguments ask for the same operations
 * wherever this runs.
 *
 * random SEED WORD...: a word is one operation by its index (7), operations from one index to before
 * another (0-300), or a kind of which there are to be none (-rename, before the operations).
 */
#include "random.h"

/* Who acts. Some are two processes of one user. */
static const struct actor { uid_t uid; gid_t gid; gid_t also; } ACTORS[] = {
	{ 0, 0, 0 }, { 0, 0, 0 }, { 1000, 1000, 0 }, { 1001, 1001, 1000 }, { 1000, 1000, 1001 },
};
int as_fuse(void)
{
	return getenv("BESIDE_AS_FUSE") != NULL;
}

enum { ACTOR_COUNT = sizeof ACTORS / sizeof *ACTORS, TREE = -1 };

/* A pair of pipes: what an actor is to do next, and that it did it. */
struct line { int ask, answer; pid_t pid; };

/* Whether one of the words up to `end` forbids operations of this kind. */
static int is_without(char **word, char **end, unsigned long index)
{
	for (; word < end; word++)
		if (**word == '-' && !strcmp(*word + 1, kind_of(index)))
			return 1;
	return 0;
}

/* Executes this program again as one of the actors, so that it begins as who it is. */
static struct line begin(const char *self, const char *seed, int who)
{
	int ask[2], answer[2];
	char words[3][16];
	MUST(pipe(ask) == 0 && pipe(answer) == 0);
	pid_t pid = fork();
	MUST(pid >= 0);
	if (pid == 0) {
		const struct actor *actor = &ACTORS[who];
		close(ask[1]);
		close(answer[0]);
		/* FUSE tells a lane one group of who writes: see docs/semantics.md on set-id bits. */
		MUST(setgroups(actor->also && !as_fuse() ? 1 : 0, &actor->also) == 0);
		MUST(setresgid(actor->gid, actor->gid, actor->gid) == 0);
		MUST(setresuid(actor->uid, actor->uid, actor->uid) == 0);
		sprintf(words[0], "%d", who);
		sprintf(words[1], "%d", ask[0]);
		sprintf(words[2], "%d", answer[1]);
		execl(self, self, "actor", seed, words[0], words[1], words[2], NULL);
		MUST(!"executed");
	}
	close(ask[0]);
	close(answer[1]);
	MUST(fcntl(ask[1], F_SETFD, FD_CLOEXEC) == 0 && fcntl(answer[0], F_SETFD, FD_CLOEXEC) == 0);
	return (struct line){ ask[1], answer[0], pid };
}

static void tell(struct line line, long what)
{
	char done;
	MUST(write(line.ask, &what, sizeof what) == sizeof what);
	MUST(read(line.answer, &done, 1) == 1);
}

/* An actor's life: operations as they are asked for. */
static int act(char **words)
{
	int who = atoi(words[1]), ask = atoi(words[2]), answer = atoi(words[3]);
	long what;
	seed = strtoul(words[0], NULL, 10);
	while (read(ask, &what, sizeof what) == sizeof what) {
		if (what == TREE)
			tree(".");
		else {
			printf("%ld %d ", what, who);
			operate(what);
		}
		fflush(stdout);
		MUST(write(answer, "", 1) == 1);
	}
	return 0;
}

int main(int count, char **words)
{
	struct line lines[ACTOR_COUNT];
	umask(0);
	if (count == 6 && !strcmp(words[1], "actor"))
		return act(words + 2);
	MUST(count >= 3);
	seed = strtoul(words[1], NULL, 10);
	MUST(chmod(".", 0777) == 0 && mkdir("d", 0777) == 0 && mkdir("e", 0777) == 0);
	for (int who = 0; who < ACTOR_COUNT; who++)
		lines[who] = begin(words[0], words[1], who);
	for (char **word = words + 2; *word; word++) {
		char *rest;
		unsigned long index = strtoul(*word, &rest, 10);
		unsigned long end = *rest == '-' ? strtoul(rest + 1, NULL, 10) : index + 1;
		for (; **word != '-' && index < end; index++)
			if (!is_without(words + 2, word, index))
				tell(lines[actor_of(index) % ACTOR_COUNT], (long)index);
	}
	tell(lines[0], TREE);
	for (int who = 0; who < ACTOR_COUNT; who++) {
		close(lines[who].ask);
		MUST(waitpid(lines[who].pid, NULL, 0) == lines[who].pid);
	}
	return 0;
}
