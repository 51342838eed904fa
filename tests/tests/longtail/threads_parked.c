/*
 * More threads than the library has mailboxes for, and files that were read again and again: what
 * an open of a late one puts out of the way leaves nothing behind.
 */
#include "threads.h"
#include <sys/statvfs.h>

enum { FILES = 8, BYTES = 1 << 20 };

static pthread_barrier_t here, over;

/* Asks what only the service knows, in a mode in which the files are not opened. */
static void *stay(void *unused)
{
	int fd = open("other", O_RDWR);
	MUST(fd >= 0 && close(fd) == 0);
	pthread_barrier_wait(&here);
	pthread_barrier_wait(&over);
	return unused;
}

static void *opens(void *unused)
{
	int fd = open("other", O_RDONLY);
	MUST(fd >= 0 && close(fd) == 0);
	return unused;
}

static const char *name(int n)
{
	static char name[16];
	snprintf(name, sizeof name, "part%d", n);
	return name;
}

/* Opens all files, then closes them. */
static void look(void)
{
	int fds[FILES];
	for (int n = 0; n < FILES; n++)
		MUST((fds[n] = open(name(n), O_RDONLY)) >= 0);
	for (int n = 0; n < FILES; n++)
		MUST(close(fds[n]) == 0);
}

static long missing(const struct statvfs *before, int inodes)
{
	struct statvfs fs;
	MUST(statvfs(".", &fs) == 0);
	return inodes ? (long)(before->f_ffree - fs.f_ffree)
		      : (long)(before->f_bfree - fs.f_bfree) * (long)fs.f_frsize;
}

int main(void)
{
	static char bytes[BYTES];
	pthread_t threads[THREADS];
	struct statvfs before;
	int held[FILES];
	memset(bytes, 7, sizeof bytes);
	close(make("other", "x"));
	MUST(statvfs(".", &before) == 0);
	for (int n = 0; n < FILES; n++) {
		int fd = make(name(n), "");
		MUST(write(fd, bytes, BYTES) == BYTES && fsync(fd) == 0 && close(fd) == 0);
	}
	pthread_barrier_init(&here, NULL, THREADS + 1);
	pthread_barrier_init(&over, NULL, THREADS + 1);
	for (int n = 0; n < THREADS; n++)
		threads[n] = start(stay);
	pthread_barrier_wait(&here);
	for (int n = 0; n < 3; n++)
		look();
	/* Each late open finds no place free but those of the files. */
	for (int n = 0; n < FILES; n++) {
		late(opens);
		MUST((held[n] = open("other", O_RDONLY)) >= 0);
	}
	for (int n = 0; n < FILES; n++)
		MUST(unlink(name(n)) == 0);
	for (int n = 0; n < 50 && (missing(&before, 0) > BYTES / 2 || missing(&before, 1) > 0); n++)
		usleep(100000);
	printf("room: %s\n", missing(&before, 0) > BYTES / 2 ? "never came back" : "came back");
	printf("inodes: %s\n", missing(&before, 1) > 0 ? "never came back" : "came back");
	for (int n = 0; n < FILES; n++)
		MUST(close(held[n]) == 0);
	pthread_barrier_wait(&over);
	for (int n = 0; n < THREADS; n++)
		pthread_join(threads[n], NULL);
	return 0;
}
