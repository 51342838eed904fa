/*
 * A channel is one process's. However a child is made, it has none of its parent's, and what it becomes
 * afterwards says what it may: by the library as without. Its parent goes on as who it is.
 */
#include "check.h"
#include <sched.h>

enum { NOBODY = 65534, WAYS = 8, STACK = 256 << 10 };

/* Mappings of a channel in a process; -1: it is gone. */
static int channels(pid_t pid)
{
	char path[64], line[PATH_MAX + 200];
	snprintf(path, sizeof path, "/proc/%d/maps", pid);
	FILE *maps = fopen(path, "r");
	if (maps == NULL)
		return -1;
	int count = 0;
	while (fgets(line, sizeof line, maps) != NULL)
		count += strstr(line, "memfd:polylane-") != NULL;
	fclose(maps);
	return count;
}

/* Uses the lane often enough that a channel is there. */
static void use(void)
{
	struct stat st;
	for (int turn = 0; turn < 40; turn++) {
		CHECK(stat(in_dir("secret"), &st) == 0);
		int fd = open(in_dir("secret"), O_RDWR);
		char byte;
		CHECK(fd >= 0 && read(fd, &byte, 1) == 1 && pwrite(fd, "s", 1, 0) == 1);
		CHECK(close(fd) == 0);
	}
}

static int told[2], go[2];

/* What a worker does that gives its rights up for good. */
static int worker(void *lives)
{
	char byte = 0;
	/* By number: libc's setuid would ask the parent's threads where memory is shared. */
	CHECK(syscall(SYS_setgroups, 0, NULL) == 0 && syscall(SYS_setresgid, NOBODY, NOBODY, NOBODY) == 0);
	CHECK(syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY) == 0);
	if (lives != NULL) {
		CHECK(write(told[1], "x", 1) == 1);
		CHECK(read(go[0], &byte, 1) == 1);
	}
	for (int turn = 0; turn < 20; turn++) {
		FAILS(open(in_dir("secret"), O_RDONLY), EACCES);
		FAILS(open(in_dir("secret"), O_WRONLY), EACCES);
		FAILS(unlink(in_dir("kept/name")), EACCES);
	}
	struct stat st;
	int mine = open(in_dir("mine"), O_CREAT | O_EXCL | O_RDWR, 0600);
	CHECK(mine >= 0 && write(mine, "mine", 4) == 4 && fstat(mine, &st) == 0);
	CHECK(st.st_uid == NOBODY && st.st_gid == NOBODY && st.st_size == 4);
	CHECK(close(mine) == 0 && unlink(in_dir("mine")) == 0);
	return 0;
}

/* clone3 without a stack of the child's own. */
static pid_t clone_three(uint64_t flags)
{
	uint64_t words[8] = { flags, 0, 0, 0, SIGCHLD };
	return (pid_t)syscall(SYS_clone3, words, sizeof words);
}

static char stack[STACK] __attribute__((aligned(16)));

/* Makes the child; 0 in it, or -1 where the kernel has no such call. `waits`: its maker waits. */
static pid_t made(int way, int *waits)
{
	const int shares = CLONE_VM | CLONE_VFORK;
	*waits = way == 4;
	switch (way) {
	case 0:
		return fork();
	case 1:
		return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	case 2:
		return clone_three(0);
#ifdef SYS_fork
	case 3:
		return (pid_t)syscall(SYS_fork);
#endif
	case 4:
		return clone(worker, stack + STACK, shares | SIGCHLD, NULL);
	case 5:
		return clone_three(CLONE_FS);
	case 6:
		/* With memory of its own and in its parent's. */
		return clone(worker, stack + STACK, SIGCHLD, "lives");
	case 7:
		return clone(worker, stack + STACK, CLONE_VM | SIGCHLD, "lives");
	}
	return -1;
}

int main(int argc, char **argv)
{
	start(argc, argv);
	if (getuid() != 0)
		return SKIP;
	CHECK(chmod(dir_path, 0777) == 0);
	int fd = make("secret", "for root only");
	CHECK(fchmod(fd, 0600) == 0 && close(fd) == 0);
	CHECK(mkdir(in_dir("kept"), 0755) == 0 && close(make("kept/name", "")) == 0);
	for (int way = 0; way < WAYS; way++) {
		use();
		int waits = 0, status = 0;
		char byte;
		CHECK(pipe(told) == 0 && pipe(go) == 0);
		pid_t child = made(way, &waits);
		if (child == 0)
			_exit(worker(waits ? NULL : "lives"));
		if (child > 0 && !waits) {
			CHECK(read(told[0], &byte, 1) == 1);
			/* In memory that both have, there may be one of a session that is over. */
			CHECK(way == 7 || channels(child) == 0);
			CHECK(write(go[1], "x", 1) == 1);
		}
		if (child > 0)
			CHECK(waitpid(child, &status, 0) == child && status == 0);
		for (int end = 0; end < 2; end++)
			CHECK(close(told[end]) == 0 && close(go[end]) == 0);
		/* Its parent is root still. */
		use();
		struct stat st;
		CHECK(close(make("roots", "")) == 0 && stat(in_dir("roots"), &st) == 0);
		CHECK(st.st_uid == 0 && unlink(in_dir("roots")) == 0);
	}
	return 0;
}
