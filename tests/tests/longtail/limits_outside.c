/* RLIMIT_FSIZE of a process, set by another one while it writes. */
#include "say.h"
#include <sys/resource.h>

enum { PIECE = 1000, SLACK = 80 << 10, FULL = 1 << 20 };

static int ready[2], go[2];
static char bytes[100000];

/* The parent's turn: it answers once it has set the limit. */
static void turn(void)
{
	char byte;
	MUST(write(ready[1], "r", 1) == 1 && read(go[0], &byte, 1) == 1);
}

static void set(pid_t pid, rlim_t size)
{
	char byte;
	struct rlimit limit = { size, RLIM_INFINITY };
	MUST(read(ready[0], &byte, 1) == 1);
	MUST(prlimit(pid, RLIMIT_FSIZE, &limit, NULL) == 0);
	MUST(write(go[1], "g", 1) == 1);
}

/* Writes until it is refused; how, and where the file ends: the limit, or so much behind it. */
static void fill(const char *name, int flags, int piece, off_t limit)
{
	int fd = open(name, O_RDWR | O_CREAT | flags, 0644);
	MUST(fd >= 0 && write(fd, "begin", 5) == 5);
	turn();
	ssize_t count;
	off_t all = 5;
	while ((count = write(fd, bytes, piece)) > 0 && all < FULL)
		all += count;
	printf("%s: %s\n", name, count == -1 ? strerror(errno) : "not refused");
	off_t size = lseek(fd, 0, SEEK_END);
	printf("%s: %s\n", name, size >= limit && size <= limit + SLACK ? "ended" : "too long");
	SAY(pwrite(fd, "x", 1, size));
	SAY(pwrite(fd, "x", 1, 3));
	SAY(ftruncate(fd, FULL));
	SAY(fallocate(fd, 0, 0, FULL));
	turn();
	SAY(pwrite(fd, "x", 1, FULL - 1));
	SAY(ftruncate(fd, FULL + 1));
	SAY(ftruncate(fd, FULL + 2));
	SAY(fallocate(fd, 0, 0, FULL + 2));
	SAY(lseek(fd, 0, SEEK_END));
	close(fd);
}

int main(void)
{
	MUST(pipe(ready) == 0 && pipe(go) == 0);
	pid_t pid = begin();
	if (pid == 0) {
		for (int n = 0; n < 9; n++)
			MUST(close(make("warm", "warm")) == 0);
		signal(SIGXFSZ, SIG_IGN);
		fill("small", 0, PIECE, 150000);
		turn();
		fill("appended", O_APPEND, PIECE, 150000);
		turn();
		fill("large", 0, sizeof bytes, 150000);
		turn();
		signal(SIGXFSZ, SIG_DFL);
		fill("killed", 0, PIECE, 150000);
		_exit(0);
	}
	for (int n = 0; n < 3; n++) {
		set(pid, 150000);
		set(pid, FULL + 1);
		set(pid, RLIM_INFINITY);
	}
	set(pid, 150000);
	reap(pid);
	return 0;
}
