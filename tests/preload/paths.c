/*
 * What one process knows of paths is what another made of them a moment before: stat, access and open
 * of the same few paths, over and over, by one process while the other changes them in turns.
 */
#include "check.h"
#include <sched.h>

static volatile int *turn;

/* Waits for the other process's turn to be over. */
static void await(int mine)
{
	while (__atomic_load_n(turn, __ATOMIC_ACQUIRE) != mine)
		sched_yield();
}

static void pass(int next)
{
	__atomic_store_n(turn, next, __ATOMIC_RELEASE);
}

enum { CHANGES = 12, ROUNDS = 12 };

/* One change each; the last ones undo the first. */
static void change(int n)
{
	int fd;
	switch (n) {
	case 0: CHECK(close(make("d/new", "12345")) == 0); break;
	case 1: CHECK(chmod(in_dir("d/f"), 0600) == 0); break;
	case 2: CHECK(truncate(in_dir("d/f"), 77) == 0); break;
	case 3: CHECK(rename(in_dir("d/f"), in_dir("d/g")) == 0); break;
	case 4: CHECK(rename(in_dir("d"), in_dir("e")) == 0); break;
	case 5: CHECK(symlink("e", in_dir("d")) == 0); break;
	case 6: CHECK(unlink(in_dir("d")) == 0 && mkdir(in_dir("d"), 0755) == 0); break;
	case 7: CHECK(rmdir(in_dir("d")) == 0 && rename(in_dir("e"), in_dir("d")) == 0); break;
	case 8: CHECK(link(in_dir("d/g"), in_dir("d/f")) == 0); break;
	case 9: CHECK(unlink(in_dir("d/g")) == 0 && chmod(in_dir("d/f"), 0644) == 0); break;
	case 10:
		fd = open(in_dir("d/f"), O_WRONLY | O_TRUNC);
		CHECK(fd >= 0 && write(fd, "ab", 2) == 2 && close(fd) == 0);
		break;
	case 11: CHECK(unlink(in_dir("d/new")) == 0); break;
	}
}

/* State of a path; the mode is -1 where there is nothing. */
struct seen {
	int mode, links;
	long size;
};

static struct seen look(const char *name)
{
	struct stat st;
	struct seen seen = { -1, 0, 0 };
	int found = stat(in_dir(name), &st) == 0;
	CHECK(found || errno == ENOENT);
	CHECK((access(in_dir(name), F_OK) == 0) == found);
	int fd = open(in_dir(name), O_RDONLY);
	CHECK((fd >= 0) == found && (found || errno == ENOENT));
	if (found)
		CHECK(close(fd) == 0);
	if (found)
		seen = (struct seen){ st.st_mode & 0777, (int)st.st_nlink, (long)st.st_size };
	return seen;
}

/* After `done` changes of a round. */
static void judge(int done)
{
	struct seen f = look("d/f"), g = look("d/g"), new = look("d/new"), e = look("e/g");
	int moved = done == 5 || done == 7, linked = done == 6;
	int named = done >= 4 && done < 9, has = !moved;
	CHECK((new.mode >= 0) == (done > 0 && done < CHANGES && has));
	CHECK((f.mode >= 0) == (!named && has));
	CHECK((g.mode >= 0) == (done >= 4 && done < 10 && has));
	CHECK((e.mode >= 0) == (moved || linked));
	if (f.mode >= 0) {
		CHECK(f.mode == (done >= 2 && done < 10 ? 0600 : 0644));
		CHECK(f.size == (done >= 3 && done < 11 ? 77 : 2));
		CHECK(f.links == (done == 9 ? 2 : 1));
	}
}

static void changer(void)
{
	for (int n = 0; n < CHANGES * ROUNDS; n++) {
		await(1);
		change(n % CHANGES);
		pass(0);
	}
}

int main(int argc, char **argv)
{
	start(argc, argv);
	turn = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(turn != MAP_FAILED);
	CHECK(mkdir(in_dir("d"), 0755) == 0);
	CHECK(close(make("d/f", "ab")) == 0 && chmod(in_dir("d/f"), 0644) == 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		changer();
		_exit(0);
	}
	for (int n = 0; n < CHANGES * ROUNDS; n++) {
		for (int again = 0; again < 4; again++)
			judge(n % CHANGES ? n % CHANGES : 0);
		pass(1);
		await(0);
		judge(n % CHANGES + 1);
	}
	reap(pid);
	/* What this process changes itself, too. */
	for (int n = 0; n < CHANGES * ROUNDS; n++) {
		change(n % CHANGES);
		for (int again = 0; again < 4; again++)
			judge(n % CHANGES + 1);
	}
	return 0;
}
