/*
 * What every program here shares. Each runs in an empty directory of a tmpfs and of lanes, and
 * prints what its calls return and do; everywhere the same lines must come out. Exit 77: not on
 * this host.
 */
#ifndef SAY_H
#define SAY_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define SKIP 77

/* Prints a call, what it returned, and the error of one that failed. */
#define SAY(call)                                                                                  \
	({                                                                                         \
		errno = 0;                                                                         \
		long said = (long)(call);                                                          \
		int why = errno;                                                                   \
		printf("%s = %ld%s%s\n", #call, said, said == -1 ? " " : "",                       \
		       said == -1 ? strerror(why) : "");                                           \
		fflush(stdout);                                                                    \
		said;                                                                              \
	})

/* Has to be true for the program to make sense. */
#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			int why = errno;                                                           \
			printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(why));  \
			fflush(stdout);                                                            \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

/* A file with this text, open for both. */
static inline int make(const char *path, const char *text)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
	MUST(fd >= 0);
	MUST(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	return fd;
}

/* Prints what a file holds. */
static inline void show(const char *path)
{
	static char text[1 << 16];
	int fd = open(path, O_RDONLY);
	ssize_t count = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
	MUST(count >= 0);
	text[count] = 0;
	printf("%s: %s%s\n", path, fd < 0 ? strerror(errno) : text, count ? "" : "(nothing)");
	fflush(stdout);
	if (fd >= 0)
		close(fd);
}

/* Waits for a child and prints how it ended. */
static inline void reap(pid_t pid)
{
	int status = 0;
	while (waitpid(pid, &status, 0) == -1)
		MUST(errno == EINTR);
	printf("child: %s %d\n", WIFSIGNALED(status) ? "signal" : "exit",
	       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	fflush(stdout);
}

static inline pid_t begin(void)
{
	fflush(stdout);
	pid_t pid = fork();
	MUST(pid >= 0);
	return pid;
}

static inline pid_t end(pid_t pid)
{
	fflush(stdout);
	if (pid == 0)
		_exit(0);
	reap(pid);
	return -1;
}

/* Runs a block in a child and waits for it: CHILD { ... }. */
#define CHILD for (pid_t child_ = begin(); child_ >= 0; child_ = end(child_)) if (child_ == 0)

#endif
