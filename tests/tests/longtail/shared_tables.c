/*
 * Processes that have their descriptors in common and not their memory: clone with CLONE_FILES and
 * without CLONE_VM.
 */
#include "say.h"
#include <sched.h>
#include <sys/file.h>

static char stack[1 << 18] __attribute__((aligned(16)));
static int file, other, to_child[2], to_parent[2];

/* Whether somebody else has a lock on the file. */
static const char *lock_of_others(int command)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	int fd = open("file", O_RDWR);
	MUST(fd >= 0 && fcntl(fd, command, &lock) == 0);
	close(fd);
	return lock.l_type == F_UNLCK ? "free" : "locked";
}

/* With `patience`: where the last close is told by and by. */
static const char *settled(int command, int patience)
{
	while (patience-- > 0 && *lock_of_others(command) == 'l')
		usleep(5000);
	return lock_of_others(command);
}

static void say_locks(const char *when, int patience)
{
	fflush(stdout);
	pid_t pid = fork();
	MUST(pid >= 0);
	if (pid == 0) {
		printf("%s: %s, by others %s\n", when, settled(F_OFD_GETLK, patience),
		       lock_of_others(F_GETLK));
		fflush(stdout);
		_exit(0);
	}
	MUST(waitpid(pid, NULL, 0) == pid);
}

static int closes_and_waits(void *nothing)
{
	char byte;
	(void)nothing;
	SAY(close(file));
	fflush(stdout);
	MUST(write(to_parent[1], "x", 1) == 1 && read(to_child[0], &byte, 1) == 1);
	_exit(0);
}

/* Who sleeps meanwhile has no locks any more either. */
static void while_the_parent_sleeps(int command, int flags)
{
	char byte;
	MUST(pipe(to_child) == 0 && pipe(to_parent) == 0);
	fflush(stdout);
	pid_t pid = fork();
	MUST(pid >= 0);
	if (pid == 0) {
		MUST(read(to_parent[0], &byte, 1) == 1);
		printf("meanwhile: %s\n", settled(command == F_SETLK ? F_GETLK : F_OFD_GETLK, flags ? 200 : 0));
		fflush(stdout);
		MUST(write(to_child[1], "x", 1) == 1);
		_exit(0);
	}
	file = make("file", "text");
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	SAY(fcntl(file, command, &lock));
	pid_t closing = clone(closes_and_waits, stack + sizeof stack, flags | SIGCHLD, NULL);
	MUST(closing > 0 && waitpid(closing, NULL, 0) == closing && waitpid(pid, NULL, 0) == pid);
	SAY(close(file));
	for (int n = 0; n < 2; n++)
		close(to_child[n]), close(to_parent[n]);
}

static int run(int (*child)(void *), int flags)
{
	int status;
	fflush(stdout);
	pid_t pid = clone(child, stack + sizeof stack, flags | SIGCHLD, NULL);
	MUST(pid > 0 && waitpid(pid, &status, 0) == pid);
	return WEXITSTATUS(status);
}

static int closes(void *nothing)
{
	(void)nothing;
	SAY(write(file, "by the child ", 13));
	SAY(close(file));
	SAY(write(file, "x", 1));
	fflush(stdout);
	_exit(7);
}

static int opens(void *nothing)
{
	(void)nothing;
	int one = open("other", O_RDWR | O_CREAT, 0644);
	SAY(write(one, "other", 5));
	SAY(dup2(one, file));
	SAY(lseek(one, 1, SEEK_SET));
	fflush(stdout);
	_exit(one);
}

static int turns(void *nothing)
{
	char byte;
	(void)nothing;
	SAY(pwrite(file, "T", 1, 0));
	MUST(write(to_parent[1], "x", 1) == 1 && read(to_child[0], &byte, 1) == 1);
	/* The parent has closed the one and opened another by its number. */
	SAY(write(other, "x", 1));
	SAY(pwrite(file, "U", 1, 1));
	SAY(lseek(file, 0, SEEK_END));
	SAY(fcntl(file, F_GETFL) & O_APPEND ? 1 : 0);
	fflush(stdout);
	_exit(0);
}

static int lock(int command)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	return fcntl(file, command, &lock);
}

int main(void)
{
	char text[64] = "";
	int status, number;
	for (int flags = 0; flags <= CLONE_FILES; flags += CLONE_FILES) {
		for (int way = 0; way < 3; way++) {
			file = make("file", "begun ");
			SAY(way == 0 ? lock(F_OFD_SETLK) : way == 1 ? lock(F_SETLK) : 0);
			say_locks("before", 0);
			SAY(run(closes, flags));
			say_locks("after", flags ? 200 : 0);
			SAY(write(file, "by the parent", 13));
			close(file);
			show("file");
		}
	}
	for (int flags = 0; flags <= CLONE_FILES; flags += CLONE_FILES) {
		while_the_parent_sleeps(F_OFD_SETLK, flags);
		/* Now and then these stay until the parent looks (difference 32). */
		if (!flags)
			while_the_parent_sleeps(F_SETLK, flags);
	}
	file = make("file", "bytes");
	number = run(opens, CLONE_FILES);
	SAY(read(number, text, sizeof text));
	SAY(lseek(file, 0, SEEK_CUR));
	SAY(pwrite(file, "O", 1, 0));
	SAY(close(number));
	SAY(close(file));
	show("file");
	show("other");

	MUST(pipe(to_child) == 0 && pipe(to_parent) == 0);
	file = make("file", "bytes");
	other = make("third", "third");
	fflush(stdout);
	pid_t pid = clone(turns, stack + sizeof stack, CLONE_FILES | SIGCHLD, NULL);
	MUST(pid > 0 && read(to_parent[0], text, 1) == 1);
	SAY(pread(file, text, 5, 0));
	SAY(close(other));
	SAY(close(file));
	number = open("fourth", O_RDWR | O_CREAT | O_APPEND, 0644);
	printf("%s\n", number == file || number == other ? "the same number" : "another");
	SAY(dup2(number, file));
	SAY(write(file, "fourth", 6));
	MUST(write(to_child[1], "x", 1) == 1 && waitpid(pid, &status, 0) == pid);
	show("file");
	show("third");
	show("fourth");
	return 0;
}
