/*
 * What every program here shares. Each is run with a directory as its argument: first on tmpfs, where
 * it must pass, then on a lane, with the preload library and without. Exit 0: passed; 77: this host
 * cannot say; anything else: failed, with a line on standard error.
 */
#ifndef CHECK_H
#define CHECK_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define SKIP 77

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			int seen = errno;                                                          \
			fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__,          \
				#condition, seen, strerror(seen));                                 \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

/* The call fails with this error. */
#define FAILS(call, error)                                                                         \
	do {                                                                                       \
		errno = 0;                                                                         \
		CHECK((call) == -1);                                                               \
		CHECK(errno == (error));                                                           \
	} while (0)

static char dir_path[PATH_MAX];

static inline void start(int argc, char **argv)
{
	CHECK(argc >= 2);
	CHECK(realpath(argv[1], dir_path) != NULL);
}

/* A path in the directory, good until sixteen more were asked for. */
static inline const char *in_dir(const char *name)
{
	static __thread char paths[16][PATH_MAX];
	static __thread unsigned next;
	char *path = paths[next++ % 16];
	snprintf(path, PATH_MAX, "%s/%s", dir_path, name);
	return path;
}

/* Whether a descriptor is one of the fast lane's. */
static inline int is_fast(int fd)
{
	char link[64], target[PATH_MAX] = "";
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	return readlink(link, target, sizeof target - 1) > 0 && strstr(target, ".polylane-slots");
}

/* Fails where the fast lane is expected and not in use. */
static inline void expect_fast(int fd)
{
	if (getenv("EXPECT_FAST"))
		CHECK(is_fast(fd));
}

static inline int make(const char *name, const char *text)
{
	int fd = open(in_dir(name), O_RDWR | O_CREAT | O_TRUNC, 0644);
	CHECK(fd >= 0);
	CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	return fd;
}

/* The whole file is this text. */
static inline void expect_text(const char *name, const char *text)
{
	static char buffer[1 << 16];
	int fd = open(in_dir(name), O_RDONLY);
	CHECK(fd >= 0);
	ssize_t count = read(fd, buffer, sizeof buffer - 1);
	CHECK(count >= 0);
	buffer[count] = 0;
	if (strcmp(buffer, text) != 0) {
		fprintf(stderr, "%s holds \"%s\", not \"%s\"\n", name, buffer, text);
		_exit(1);
	}
	CHECK(close(fd) == 0);
}

/* Runs a child to its end; it must exit with 0. */
static inline void reap(pid_t pid)
{
	int status = -1;
	while (waitpid(pid, &status, 0) == -1)
		CHECK(errno == EINTR);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#endif
