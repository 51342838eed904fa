/*
 * A process that changes who it is more often than the library has sessions for it: what it locked
 * before and locks afterwards is its own all the same.
 */
#include "say.h"
#include <sys/file.h>

enum { ROUNDS = 70 };

static int set(int fd, int command, int type)
{
	struct flock range = { .l_type = type, .l_whence = SEEK_END, .l_start = -10, .l_len = 5 };
	return fcntl(fd, command, &range);
}

/* By another process, which has done nothing yet; and by one that has done all this. */
static void probe(const char *how)
{
	CHILD execl("/proc/self/exe", "program", how, (char *)NULL);
	CHILD {
		int fd = open("locked", O_RDWR);
		if (*how == 'f')
			SAY(flock(fd, LOCK_EX | LOCK_NB));
		else
			SAY(set(fd, F_SETLK, F_WRLCK));
	}
}

static void look(const char *how)
{
	struct flock range = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	int fd = open("locked", O_RDWR);
	struct stat st;
	for (int n = 0; n < 20; n++)
		MUST(fstat(fd, &st) == 0);
	if (*how == 'f') {
		SAY(flock(fd, LOCK_EX | LOCK_NB));
		return;
	}
	SAY(set(fd, F_SETLK, F_WRLCK));
	SAY(fcntl(fd, F_GETLK, &range));
	if (range.l_type != F_UNLCK)
		printf("a lock of %d bytes at %d, %s\n", (int)range.l_len, (int)range.l_start,
		       range.l_pid == getppid() ? "of my parent" : "of another");
}

/* Waits for the lock that a child has for a while. */
static void wait_for_it(int fd, int by_flock)
{
	char byte;
	int held[2];
	MUST(pipe(held) == 0);
	fflush(stdout);
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		int own = open("locked", O_RDWR);
		MUST((by_flock ? flock(own, LOCK_EX) : set(own, F_SETLK, F_WRLCK)) == 0);
		MUST(write(held[1], "x", 1) == 1);
		usleep(300000);
		_exit(0);
	}
	close(held[1]);
	MUST(read(held[0], &byte, 1) == 1);
	if (by_flock)
		SAY(flock(fd, LOCK_EX));
	else
		SAY(set(fd, F_SETLKW, F_WRLCK));
	reap(child);
}

int main(int count, char **arguments)
{
	struct stat st;
	if (count > 1 && *arguments[1] != 'm') {
		look(arguments[1]);
		return 0;
	}
	int fd = make("locked", "0123456789"), flocked = open("locked", O_RDWR);
	for (int n = 0; n < 30; n++)
		MUST(fstat(fd, &st) == 0);
	SAY(set(fd, F_SETLK, F_WRLCK));
	if (count > 1)
		for (int n = 0; n < 100; n++)
			MUST(set(fd, F_SETLK, F_UNLCK) == 0 && set(fd, F_SETLK, F_WRLCK) == 0);
	SAY(flock(flocked, LOCK_EX));
	for (int n = 0; n < ROUNDS; n++) {
		MUST(seteuid(geteuid()) == 0);
		for (int use = 0; use < 20; use++)
			MUST(stat("locked", &st) == 0 && fstat(fd, &st) == 0);
	}
	probe("posix");
	probe("flock");
	SAY(set(fd, F_SETLK, F_UNLCK));
	probe("posix");
	SAY(flock(flocked, LOCK_UN));
	probe("flock");
	SAY(set(fd, F_SETLK, F_WRLCK));
	probe("posix");
	SAY(close(open("locked", O_RDONLY)));
	probe("posix");
	wait_for_it(fd, 0);
	wait_for_it(flocked, 1);
	probe("posix");
	SAY(close(flocked));
	SAY(close(fd));
	probe("posix");
	probe("flock");
	return 0;
}
