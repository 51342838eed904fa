/* Buffers where no memory can be: what comes before one counts. */
#include "say.h"
#include <sys/uio.h>

static char first[8], last[8], many[300000];

static void reads(int fd, void *bad)
{
	struct iovec parts[3] = { { first, 4 }, { bad, 4 }, { last, 4 } };
	struct iovec none[3] = { { first, 4 }, { bad, 0 }, { last, 4 } };
	struct iovec longer[3] = { { many, sizeof many }, { bad, 4 }, { last, 4 } };
	SAY(lseek(fd, 0, SEEK_SET));
	SAY(readv(fd, parts, 3));
	printf("%.4s\n", first);
	SAY(lseek(fd, 0, SEEK_CUR));
	SAY(preadv(fd, parts, 3, 2));
	SAY(preadv(fd, parts, 3, 7));
	SAY(preadv(fd, parts + 1, 2, 7));
	SAY(preadv2(fd, parts, 3, 2, 0));
	printf("%.4s\n", first);
	SAY(preadv(fd, none, 3, 0));
	SAY(preadv(fd, longer, 3, 2));
	SAY(read(fd, bad, 4));
	SAY(pread(fd, bad, 4, 3));
	SAY(pread(fd, bad, 0, 3));
}

static void writes(int fd, void *bad)
{
	char text[] = "abcdefgh";
	struct iovec parts[3] = { { text, 4 }, { bad, 4 }, { text + 4, 4 } };
	struct iovec begins[3] = { { text, 0 }, { bad, 4 }, { text + 4, 4 } };
	struct iovec none[3] = { { text, 4 }, { bad, 0 }, { text + 4, 4 } };
	SAY(lseek(fd, 0, SEEK_SET));
	SAY(writev(fd, parts, 3));
	SAY(lseek(fd, 0, SEEK_CUR));
	SAY(pwritev(fd, parts, 3, 2));
	SAY(pwritev2(fd, parts, 3, 3, 0));
	SAY(pwritev2(fd, parts, 3, 0, RWF_APPEND));
	show("file");
	SAY(pwritev(fd, begins, 3, 2));
	SAY(pwritev(fd, none, 3, 2));
	SAY(write(fd, bad, 4));
	SAY(write(fd, bad, 0));
	SAY(pwrite(fd, bad, 4, 3));
	SAY(pwrite(fd, bad, 0, 3));
	show("file");
	int end = open("file", O_WRONLY | O_APPEND);
	MUST(end >= 0);
	SAY(writev(end, parts, 3));
	SAY(lseek(end, 0, SEEK_CUR));
	close(end);
	show("file");
}

int main(int argc, char **argv)
{
	void *bad[] = { NULL, (void *)8, (void *)-4096L, (void *)-1L };
	(void)argv;
	for (int n = 0; n < 9; n++)
		MUST(close(make("warm", "warm")) == 0);
	for (int n = 0; n < 8; n++) {
		int fd = make("file", "0123456789");
		reads(fd, bad[n % 4]);
		writes(fd, bad[n % 4]);
		struct iovec parts[2] = { { first, 4 }, { bad[n % 4], 4 } };
		/* The kernel's FUSE looks at every place, however short the file. */
		if (argc > 1)
			SAY(preadv(fd, parts, 2, 1000));
		close(fd);
	}
	return 0;
}
