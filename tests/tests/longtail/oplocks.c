/* Leases of fcntl: who gets one, who is told when somebody else comes, and what becomes of the file. */
#include "say.h"
#include <sys/file.h>
#include <time.h>

enum { SIGNAL = 40, OTHER = 65533 };

static int open_quick(const char *path, int flags)
{
	int fd = open(path, flags | O_NONBLOCK, 0644), why = errno;
	if (fd >= 0)
		close(fd);
	errno = why;
	return fd < 0 ? -1 : 0;
}

/* The descriptor that a signal came for; -1: none came in time. */
static int told(void)
{
	sigset_t set;
	siginfo_t info = { 0 };
	struct timespec limit = { 5, 0 };
	sigemptyset(&set);
	sigaddset(&set, SIGNAL);
	return sigtimedwait(&set, &info, &limit) == SIGNAL ? info.si_fd : -1;
}

static int lease(int fd, int kind)
{
	MUST(fd < 0 || fcntl(fd, F_SETSIG, SIGNAL) == 0);
	return fcntl(fd, F_SETLEASE, kind);
}

static void alone(void)
{
	int reads = open("file", O_RDONLY), both = -1;
	SAY(fcntl(reads, F_GETLEASE) == F_UNLCK);
	SAY(lease(reads, F_RDLCK));
	SAY(fcntl(reads, F_GETLEASE) == F_RDLCK);
	SAY(open_quick("file", O_RDONLY));
	SAY(open_quick("file", O_WRONLY));
	SAY(told() == reads);
	SAY(lease(reads, F_UNLCK));
	SAY(fcntl(reads, F_GETLEASE) == F_UNLCK);
	SAY(open_quick("file", O_WRONLY));
	both = open("file", O_RDWR);
	SAY(lease(both, F_RDLCK));
	SAY(lease(both, F_WRLCK));
	SAY(lease(reads, F_RDLCK));
	SAY(lease(reads, F_WRLCK));
	SAY(close(reads));
	SAY(lease(both, F_WRLCK));
	SAY(open_quick("file", O_RDONLY));
	SAY(told() == both);
	SAY(lease(both, F_RDLCK));
	SAY(lease(both, F_UNLCK));
	SAY(open_quick("file", O_RDONLY));
	SAY(close(both));
	SAY(lease(open(".", O_RDONLY), F_WRLCK));
	SAY(lease(-1, F_RDLCK));
	SAY(fcntl(reads = open("file", O_RDONLY), F_SETLEASE, 77));
	SAY(close(reads));
}

/* The file is what it was: position, flags, copies of the descriptor. */
static void kept(void)
{
	char text[16] = "";
	int fd = open("kept", O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644), copy = dup(fd);
	MUST(write(fd, "0123456789", 10) == 10 && lseek(fd, 3, SEEK_SET) == 3);
	SAY(lease(copy, F_WRLCK));
	SAY(read(fd, text, 4));
	printf("%s\n", text);
	SAY(lseek(copy, 0, SEEK_CUR));
	SAY(write(copy, "more", 4));
	SAY(pread(fd, text, 8, 8));
	printf("%s\n", text);
	SAY(fcntl(fd, F_GETFL) & (O_APPEND | O_ACCMODE));
	SAY(fcntl(fd, F_GETFD) == FD_CLOEXEC && fcntl(copy, F_GETFD) == 0);
	SAY(fcntl(fd, F_GETLEASE) == F_WRLCK);
	SAY(close(copy));
	SAY(fcntl(fd, F_GETLEASE) == F_WRLCK);
	SAY(ftruncate(fd, 5));
	SAY(rename("kept", "renamed"));
	SAY(open_quick("renamed", O_RDONLY));
	SAY(told() >= 0);
	SAY(lseek(fd, 0, SEEK_END));
	SAY(close(fd));
	SAY(open_quick("renamed", O_RDONLY));
	show("renamed");
	struct flock lock = { .l_type = F_WRLCK };
	fd = open("renamed", O_RDWR);
	MUST(fcntl(fd, F_SETLK, &lock) == 0);
	SAY(lease(fd, F_WRLCK));
	CHILD {
		struct flock other = { .l_type = F_WRLCK };
		int again = open("file", O_RDWR);
		(void)again;
		other.l_pid = 0;
		SAY(fcntl(fd, F_GETLK, &other));
		SAY(other.l_type == F_WRLCK && other.l_pid == getppid());
	}
	SAY(close(fd));
}

/* A child holds a lease and answers who breaks it, as another comes that waits. */
static void between_processes(int kind, const char *what)
{
	int ready[2], go[2];
	char byte;
	MUST(pipe(ready) == 0 && pipe(go) == 0);
	printf("-- %s\n", what);
	pid_t pid = begin();
	if (pid == 0) {
		int fd = open("shared", kind == F_RDLCK ? O_RDONLY : O_RDWR);
		SAY(lease(fd, kind));
		MUST(write(ready[1], "r", 1) == 1);
		int from = told();
		SAY(from == fd);
		struct timespec pause = { 0, 50000000 };
		nanosleep(&pause, NULL);
		if (kind == F_WRLCK)
			MUST(write(fd, "its last words", 14) == 14);
		SAY(fcntl(fd, F_SETLEASE, F_UNLCK));
		MUST(read(go[0], &byte, 1) == 1);
		_exit(0);
	}
	MUST(read(ready[0], &byte, 1) == 1);
	int fd = -1;
	if (strcmp(what, "truncate") == 0)
		MUST(truncate("shared", 2) == 0);
	else
		MUST((fd = open("shared", kind == F_RDLCK ? O_RDWR : O_RDONLY)) >= 0);
	if (fd >= 0)
		close(fd);
	MUST(write(go[1], "g", 1) == 1);
	reap(pid);
	show("shared");
	close(ready[0]), close(ready[1]), close(go[0]), close(go[1]);
}

/* Files that others opened and closed a moment ago, or again and again, are open no longer. */
static void after_others(void)
{
	for (int turn = 0; turn < 5; turn++) {
		CHILD {
			for (int n = 0; n < 20; n++)
				SAY(open_quick("file", O_RDONLY));
			int fd = open("file", O_RDWR);
			MUST(write(fd, "text", 4) == 4);
		}
		for (int n = 0; n < 20; n++)
			close(open("file", O_RDONLY));
		int fd = open("file", O_RDWR);
		SAY(lease(fd, F_WRLCK));
		CHILD {
			SAY(open_quick("file", O_RDONLY));
			SAY(open_quick("file", O_RDONLY | O_CREAT));
			SAY(open_quick("file", O_RDWR | O_TRUNC));
			SAY(access("file", R_OK));
		}
		SAY(told() == fd);
		SAY(lseek(fd, 0, SEEK_END));
		SAY(close(fd));
	}
}

/* While another has it open there is no lease, and none once it has a lease itself. */
static void beside_another(void)
{
	int ready[2], go[2];
	char byte;
	MUST(pipe(ready) == 0 && pipe(go) == 0);
	pid_t pid = begin();
	if (pid == 0) {
		int fd = open("file", O_RDONLY);
		MUST(read(fd, &byte, 1) == 1);
		MUST(write(ready[1], "r", 1) == 1 && read(go[0], &byte, 1) == 1);
		close(fd);
		fd = open("file", O_RDWR);
		MUST(write(ready[1], "r", 1) == 1 && read(go[0], &byte, 1) == 1);
		_exit(0);
	}
	MUST(read(ready[0], &byte, 1) == 1);
	int fd = open("file", O_RDONLY), both = open("file", O_RDWR);
	SAY(lease(both, F_WRLCK));
	SAY(close(both));
	SAY(lease(fd, F_WRLCK));
	SAY(lease(fd, F_RDLCK));
	SAY(lease(fd, F_UNLCK));
	MUST(write(go[1], "g", 1) == 1 && read(ready[0], &byte, 1) == 1);
	SAY(lease(fd, F_RDLCK));
	MUST(write(go[1], "g", 1) == 1);
	reap(pid);
	SAY(lease(fd, F_RDLCK));
	SAY(close(fd));
}

static void of_others(void)
{
	if (geteuid() != 0)
		return;
	MUST(chmod(".", 0755) == 0 && chmod("file", 0666) == 0);
	CHILD {
		MUST(setgid(OTHER) == 0 && setuid(OTHER) == 0);
		SAY(lease(open("file", O_RDONLY), F_RDLCK));
	}
}

int main(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGNAL);
	MUST(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	MUST(close(make("file", "text")) == 0 && close(make("shared", "shared text")) == 0);
	alone();
	kept();
	between_processes(F_RDLCK, "open to write");
	between_processes(F_WRLCK, "open to read");
	between_processes(F_RDLCK, "truncate");
	after_others();
	beside_another();
	of_others();
	return 0;
}
