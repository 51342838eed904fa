/*
 * A descriptor that another process takes, which says nothing to who has it: what is read, written
 * and appended by it is of that file, as long as it is open, whatever the other one does with its
 * own number meanwhile. Its position is its own in a lane, and is not looked at.
 */
#include "say.h"

static int ready[2], go[2];

/* Ways to take a descriptor. */
static int take(pid_t pid, int fd, int how, int flags)
{
	char path[64];
	if (how == 0) {
		int pidfd = syscall(SYS_pidfd_open, pid, 0);
		MUST(pidfd >= 0);
		int taken = syscall(SYS_pidfd_getfd, pidfd, fd, 0);
		close(pidfd);
		return taken;
	}
	snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
	return syscall(SYS_openat, AT_FDCWD, path, flags);
}

static void turn(void)
{
	char byte;
	MUST(write(ready[1], "r", 1) == 1 && read(go[0], &byte, 1) == 1);
}

/* Who has it. Its files after that must not be what was taken. */
static void owner(int flags)
{
	char name[16], text[32] = "";
	for (int n = 0; n < 9; n++)
		MUST(close(make("warm", "warm")) == 0);
	MUST(close(make("held", "0123456789")) == 0);
	int fd = open("held", O_RDWR | flags);
	MUST(fd >= 0 && write(ready[1], &fd, sizeof fd) == sizeof fd);
	turn();
	MUST(pread(fd, text, 31, 0) > 0);
	printf("owner: %s\n", text);
	SAY(write(fd, "OWNER", 5));
	turn();
	SAY(close(fd));
	for (int n = 0; n < 600; n++) {
		snprintf(name, sizeof name, "other%d", n % 8);
		int other = open(name, O_RDWR | O_CREAT, 0644);
		MUST(other >= 0 && pwrite(other, "other", 5, 0) == 5);
		if (n >= 8)
			MUST(close(other) == 0);
	}
	turn();
	for (int n = 0; n < 8; n++) {
		snprintf(name, sizeof name, "other%d", n);
		show(name);
	}
	_exit(0);
}

static void taker(pid_t pid, int fd, int how, int flags)
{
	struct stat state;
	char text[64] = "", byte;
	MUST(read(ready[0], &byte, 1) == 1);
	int taken = take(pid, fd, how, O_RDWR | flags);
	MUST(taken >= 0);
	SAY(pread(taken, text, 4, 3));
	printf("%.4s\n", text);
	SAY(flags ? write(taken, "+", 1) : pwrite(taken, "T", 1, 0));
	MUST(write(go[1], "g", 1) == 1 && read(ready[0], &byte, 1) == 1);
	SAY(fstat(taken, &state));
	SAY(state.st_size);
	SAY(lseek(taken, 0, SEEK_END));
	MUST(write(go[1], "g", 1) == 1 && read(ready[0], &byte, 1) == 1);
	memset(text, 0, sizeof text);
	SAY(pread(taken, text, 63, 0));
	printf("taker: %s\n", text);
	SAY(flags ? write(taken, "late", 4) : pwrite(taken, "LATE", 4, 2));
	SAY(ftruncate(taken, 12));
	SAY(fstat(taken, &state));
	SAY(state.st_size);
	SAY(lseek(taken, -2, SEEK_END));
	memset(text, 0, sizeof text);
	SAY(read(taken, text, 63));
	printf("%s\n", text);
	MUST(write(go[1], "g", 1) == 1);
	reap(pid);
	show("held");
	close(taken);
	MUST(unlink("held") == 0);
}

int main(void)
{
	MUST(pipe(ready) == 0 && pipe(go) == 0);
	for (int how = 0; how < 4; how++) {
		int fd, flags = how & 2 ? O_APPEND : 0;
		pid_t pid = begin();
		if (pid == 0)
			owner(flags);
		MUST(read(ready[0], &fd, sizeof fd) == sizeof fd);
		taker(pid, fd, how & 1, flags);
	}
	return 0;
}
