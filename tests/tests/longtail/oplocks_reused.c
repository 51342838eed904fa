/* A file with a lease of fcntl among files that are made after it: each keeps what is written to it. */
#include "say.h"

enum { BEFORE = 300, AFTER = 400 };

static void make_one(const char *pattern, int number, int keep)
{
	char path[64];
	snprintf(path, sizeof path, pattern, number);
	int fd = make(path, "hello");
	MUST(close(fd) == 0);
	MUST(keep || unlink(path) == 0);
}

static int without_bytes(void)
{
	int count = 0;
	for (int i = 0; i < AFTER; i++) {
		char path[64];
		struct stat status;
		snprintf(path, sizeof path, "e/b%d", i);
		count += stat(path, &status) != 0 || status.st_size != 5;
	}
	return count;
}

int main(void)
{
	signal(SIGIO, SIG_IGN);
	SAY(mkdir("d", 0755));
	for (int i = 0; i < BEFORE; i++)
		make_one("d/a%d", i, 0);
	int held = make("d/held", "hello");
	SAY(fcntl(held, F_SETLEASE, F_WRLCK));
	SAY(mkdir("e", 0755));
	for (int i = 0; i < AFTER; i++)
		make_one("e/b%d", i, 1);
	SAY(without_bytes());
	SAY(pwrite(held, "more", 4, 5));
	SAY(fsync(held));
	SAY(fcntl(held, F_SETLEASE, F_UNLCK));
	SAY(close(held));
	show("d/held");
	for (int i = 0; i < BEFORE; i++)
		make_one("d/c%d", i, 0);
	int directory = open("e", O_RDONLY);
	SAY(fsync(directory));
	SAY(fsync(directory));
	return 0;
}
