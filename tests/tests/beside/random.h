/* The operations of random.c: what each seed and index ask for, and what is printed of them. */
#ifndef RANDOM_H
#define RANDOM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/falloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Has to be true for the program to make sense. */
#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno)); \
			fflush(stdout);                                                            \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

extern unsigned long seed;

/* The kind of an operation, and who does it. */
const char *kind_of(unsigned long index);
unsigned actor_of(unsigned long index);

/* Whether what FUSE does not tell a lane is left out. */
int as_fuse(void);

/* Does one operation; its line is printed. */
void operate(unsigned long index);

/* Prints what is in a directory. */
void tree(const char *directory);

/* Prints what a file is now: by its descriptor, or by its path if that is none. */
void state(int fd, const char *path);

/* Of some bytes. */
unsigned long sum(const void *bytes, size_t length);

#endif
