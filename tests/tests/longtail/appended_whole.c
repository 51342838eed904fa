/* Records of a mebibyte, appended by one write each beside those of another process: each stays in
 * one piece. */
#include "say.h"
#include <sys/uio.h>

enum { RECORD = 1 << 20, COUNT = 20 };

/* Not at the begin of a page. */
static char space[RECORD + 64], *record = space + 33;

static void append(int fd, int parts)
{
	struct iovec two[2] = { { record, RECORD / 3 }, { record + RECORD / 3, RECORD - RECORD / 3 } };
	for (int i = 0; i < COUNT; i++) {
		ssize_t count = parts == 1 ? write(fd, record, RECORD) : writev(fd, two, 2);
		MUST(count == RECORD);
	}
}

static void beside(const char *path)
{
	pid_t writers[2];
	for (int n = 0; n < 2; n++) {
		writers[n] = fork();
		if (writers[n] == 0) {
			int fd = open(path, O_WRONLY | O_APPEND);
			MUST(fd >= 0);
			memset(record, 'a' + n, RECORD);
			append(fd, 1 + n);
			_exit(0);
		}
	}
	for (int n = 0; n < 2; n++)
		MUST(waitpid(writers[n], NULL, 0) == writers[n]);
	int fd = open(path, O_RDONLY), count = 0, torn = 0;
	while (read(fd, record, RECORD) == RECORD) {
		count++;
		torn += memcmp(record, record + 1, RECORD - 1) != 0;
	}
	printf("%d records, %d torn\n", count, torn);
	MUST(close(fd) == 0);
}

int main(void)
{
	MUST(close(make("f", "")) == 0);
	for (int i = 0; i < 3; i++) {
		beside("f");
		MUST(truncate("f", 0) == 0);
	}
	/* Where a process's own position is after one. */
	int fd = open("f", O_RDWR | O_APPEND);
	memset(record, 'z', RECORD);
	SAY(write(fd, "begin", 5));
	SAY(write(fd, record, RECORD));
	SAY(lseek(fd, 0, SEEK_CUR));
	SAY(pwrite(fd, record, RECORD, 3));
	SAY(lseek(fd, 0, SEEK_CUR));
	SAY(write(fd, "end", 3));
	SAY(lseek(fd, 0, SEEK_CUR));
	SAY(lseek(fd, 0, SEEK_END));
	char text[8] = "";
	SAY(pread(fd, text, 7, 2 * RECORD + 1));
	printf("%s\n", text);
	SAY(unlink("f"));
	SAY(write(fd, record, RECORD));
	SAY(lseek(fd, 0, SEEK_END));
	return 0;
}
