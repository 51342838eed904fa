/* O_APPEND set and cleared after the open, by whoever has the descriptor. */
#include "say.h"

static long raw(long number, long a, long b, long c)
{
	long rc;
	__asm__ volatile("syscall" : "=a"(rc) : "a"(number), "D"(a), "S"(b), "d"(c)
			 : "rcx", "r11", "memory");
	return rc;
}

static void appends(int fd)
{
	SAY((fcntl(fd, F_GETFL) & O_APPEND) != 0);
	SAY(lseek(fd, 0, SEEK_SET));
	SAY(write(fd, "ZZ", 2));
	SAY(lseek(fd, 0, SEEK_CUR));
	SAY(pwrite(fd, "yy", 2, 1));
	SAY(lseek(fd, 0, SEEK_CUR));
}

static void round_of(const char *name)
{
	char path[32];
	snprintf(path, sizeof path, "%s-own", name);
	int fd = make(path, "0123456789");
	SAY(fcntl(fd, F_SETFL, O_APPEND));
	appends(fd);
	SAY(fcntl(fd, F_SETFL, 0));
	appends(fd);
	SAY(close(fd));
	show(path);

	/* A child does it, and does nothing else. */
	snprintf(path, sizeof path, "%s-child", name);
	fd = make(path, "0123456789");
	CHILD {
		MUST(fcntl(fd, F_SETFL, O_APPEND) == 0);
	}
	appends(fd);
	show(path);
	CHILD {
		MUST(fcntl(fd, F_SETFL, 0) == 0);
	}
	appends(fd);
	show(path);

	/* The parent, and the child writes: first by its own calls. */
	MUST(fcntl(fd, F_SETFL, O_APPEND) == 0);
	CHILD {
		SAY(lseek(fd, 0, SEEK_SET));
		SAY(write(fd, "ZZ", 2));
		SAY(pwrite(fd, "yy", 2, 1));
	}
	MUST(fcntl(fd, F_SETFL, 0) == 0);
	CHILD {
		appends(fd);
	}
	show(path);
	CHILD {
		MUST(raw(SYS_fcntl, fd, F_SETFL, O_APPEND) == 0);
		MUST(raw(SYS_write, fd, (long)"raw", 3) == 3);
	}
	show(path);
	appends(fd);
	CHILD {
		MUST(raw(SYS_fcntl, fd, F_SETFL, 0) == 0);
		MUST(raw(SYS_lseek, fd, 0, SEEK_SET) == 0);
		MUST(raw(SYS_write, fd, (long)"RAW", 3) == 3);
	}
	appends(fd);
	SAY(close(fd));
	show(path);

	/* Opened to append, cleared by an executed program's child. */
	snprintf(path, sizeof path, "%s-log", name);
	fd = open(path, O_RDWR | O_CREAT | O_APPEND, 0644);
	SAY(write(fd, "0123456789", 10));
	CHILD {
		MUST(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	}
	SAY(fcntl(fd, F_GETFL) & (O_APPEND | O_NONBLOCK));
	appends(fd);
	CHILD {
		MUST(raw(SYS_fcntl, fd, F_SETFL, O_APPEND) == 0);
	}
	appends(fd);
	SAY(close(fd));
	show(path);
}

/* A process's first file, which it goes on using, and who sets the flag. */
static void first(const char *name, int who)
{
	CHILD {
		FILE *stream = NULL;
		int fd = make(name, "0123456789"), copy = who == 1 ? dup(fd) : fd;
		for (int n = 0; n < 24; n++)
			MUST(pwrite(fd, "ab", 2, n % 4) == 2);
		if (who == 2)
			CHILD {
				MUST(fcntl(fd, F_SETFL, O_APPEND) == 0);
			}
		else if (who == 3)
			MUST((stream = fdopen(fd, "a")) != NULL);
		else
			MUST(fcntl(copy, F_SETFL, O_APPEND) == 0);
		appends(fd);
		show(name);
		if (stream)
			SAY(fclose(stream));
	}
}

int main(void)
{
	first("first-own", 0);
	first("first-copy", 1);
	first("first-child", 2);
	first("first-stream", 3);
	/* A process's first files, and later ones. */
	for (int n = 0; n < 8; n++) {
		char name[16];
		snprintf(name, sizeof name, "f%d", n);
		int fd = make(name, "0123456789");
		MUST(fcntl(fd, F_SETFL, O_APPEND) == 0);
		MUST(pwrite(fd, "ZZ", 2, 0) == 2);
		MUST(close(fd) == 0);
		show(name);
	}
	round_of("one");
	round_of("two");
	return 0;
}
