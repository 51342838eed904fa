/* What moves access times: reads, and nothing that is done besides. */
#include "say.h"

static char bytes[200000];

static struct timespec accessed(const char *name)
{
	struct stat state;
	MUST(stat(name, &state) == 0);
	return state.st_atim;
}

#define MOVES(name, act)                                                                           \
	do {                                                                                       \
		struct timespec before = accessed(name);                                           \
		usleep(20000);                                                                     \
		act;                                                                               \
		struct timespec after = accessed(name);                                            \
		printf("%s: %s\n", #act,                                                           \
		       memcmp(&before, &after, sizeof before) ? "moved" : "kept");                 \
		fflush(stdout);                                                                    \
	} while (0)

/* A file that was closed, with what else is done to new files. */
static void made(const char *name, int how)
{
	int fd = open(name, (how & 1 ? O_WRONLY : O_RDWR) | O_CREAT | O_TRUNC, 0666);
	MUST(fd >= 0 && write(fd, "text", 4) == 4 && close(fd) == 0);
	if (how & 2)
		MUST(chmod(name, 0600) == 0);
}

static void once(const char *name, int how)
{
	made(name, how);
	int fd = open(name, how & 4 ? O_RDWR | O_APPEND : O_RDWR);
	MUST(fd >= 0);
	MOVES(name, MUST(write(fd, "longer text", 11) == 11));
	MOVES(name, MUST(pwrite(fd, "more", 4, 4000) == 4));
	MOVES(name, MUST(write(fd, bytes, 10000) == 10000));
	MOVES(name, for (int n = 0; n < 100; n++) MUST(write(fd, bytes, 1000) == 1000));
	MOVES(name, for (int n = 0; n < 100; n++) MUST(pwrite(fd, bytes, 100, n) == 100));
	MOVES(name, MUST(ftruncate(fd, 5000) == 0));
	MOVES(name, MUST(ftruncate(fd, 50000) == 0));
	MOVES(name, MUST(lseek(fd, 0, SEEK_END) == 50000));
	MOVES(name, MUST(fsync(fd) == 0));
	MOVES(name, MUST(close(open(name, O_RDONLY)) == 0));
	MOVES(name, MUST(close(dup(fd)) == 0));
	CHILD MUST(write(fd, "child", 5) == 5);
	MOVES(name, MUST(write(fd, "x", 1) == 1));
	MOVES(name, MUST(pread(fd, bytes, 10, 0) == 10));
	MOVES(name, MUST(pread(fd, bytes, 10, 0) == 10));
	MOVES(name, MUST(pwrite(fd, "y", 1, 0) == 1));
	MOVES(name, MUST(pread(fd, bytes, 10, 1 << 20) == 0));
	MOVES(name, MUST(pread(fd, bytes, 10, 0) == 10));
	close(fd);
}

/* Reads that find nothing are reads, of an empty file and past the end. */
static void nothing_to_read(off_t size, int flags)
{
	int fd = open("short", O_RDWR | O_CREAT | O_TRUNC, 0666);
	MUST(fd >= 0 && ftruncate(fd, size) == 0 && close(fd) == 0);
	usleep(20000);
	MUST((fd = open("short", flags)) >= 0);
	MOVES("short", MUST(pread(fd, bytes, 10, size) == 0));
	MOVES("short", MUST(pread(fd, bytes, 10, size + 9000) == 0));
	close(fd);
	MUST((fd = open("short", flags)) >= 0);
	MOVES("short", MUST(read(fd, bytes, 10) == (size < 10 ? size : 10)));
	MUST(chmod("short", 0600) == 0 && chmod("short", 0644) == 0);
	close(fd);
	MUST((fd = open("short", flags)) >= 0);
	MOVES("short", MUST(pread(fd, bytes, 10, size + 1) == 0));
	close(fd);
	MUST(unlink("short") == 0);
}

int main(void)
{
	for (int n = 0; n < 3; n++) {
		nothing_to_read((off_t[]){ 0, 5, 5000 }[n], O_RDONLY);
		nothing_to_read((off_t[]){ 0, 5, 5000 }[n], O_RDWR);
	}
	for (int n = 0; n < 9; n++) {
		char name[16];
		snprintf(name, sizeof name, "file%d", n);
		once(name, n % 8);
	}
	return 0;
}
