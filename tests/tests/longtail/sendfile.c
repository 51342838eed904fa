/* sendfile between files, pipes and sockets. */
#include "say.h"
#include <sys/sendfile.h>
#include <sys/socket.h>

static void drain(int fd, size_t want)
{
	char text[64] = "";
	SAY(read(fd, text, want));
	printf("%s\n", text);
}

int main(void)
{
	int ends[2], two[2], in = make("in", "0123456789abcdef"), out = make("out", "");
	off_t at = 4;
	MUST(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, two) == 0);
	SAY(sendfile(ends[1], in, &at, 6));
	SAY(at);
	drain(ends[0], 20);
	SAY(lseek(in, 0, SEEK_CUR));
	SAY(sendfile(ends[1], in, NULL, 6));
	SAY(lseek(in, 2, SEEK_SET));
	SAY(sendfile(two[1], in, NULL, 100));
	drain(two[0], 20);
	SAY(lseek(in, 0, SEEK_CUR));
	at = 10;
	SAY(sendfile(out, in, &at, 3));
	SAY(lseek(in, 0, SEEK_SET));
	SAY(sendfile(out, in, NULL, 5));
	SAY(lseek(out, 0, SEEK_CUR));
	SAY(write(out, "!", 1));
	show("out");
	at = 1000;
	SAY(sendfile(out, in, &at, 5));
	at = -1;
	SAY(sendfile(out, in, &at, 5));
	SAY(sendfile(out, in, NULL, 0));
	SAY(sendfile(999, in, NULL, 5));
	SAY(sendfile(out, 999, NULL, 5));
	int reads = open("out", O_RDONLY), writes = open("in", O_WRONLY);
	int appends = open("out", O_WRONLY | O_APPEND);
	SAY(sendfile(reads, in, NULL, 5));
	SAY(sendfile(out, writes, NULL, 5));
	SAY(sendfile(appends, in, NULL, 5));
	SAY(sendfile(out, ends[0], NULL, 5));

	/* What was written a moment ago, by whichever descriptor, and megabytes of it. */
	static char bytes[1 << 20];
	memset(bytes, 'z', sizeof bytes);
	SAY(write(writes, bytes, sizeof bytes));
	at = 0;
	SAY(ftruncate(out, 0));
	SAY(lseek(out, 0, SEEK_SET));
	long sum = 0;
	while (at < (off_t)sizeof bytes)
		sum += sendfile(out, in, &at, sizeof bytes - at);
	SAY(sum);
	struct stat st;
	SAY((fstat(out, &st), st.st_size));
	SAY(pread(out, bytes, 1, sizeof bytes - 1));
	SAY(bytes[0]);
	/* In a child that never used the library before. */
	CHILD {
		at = 5;
		SAY(sendfile(two[1], in, &at, 4));
	}
	drain(two[0], 4);
	/* A file opened for reading only, cut while its position is past the end. */
	int third = open("in", O_RDONLY);
	SAY(lseek(third, 100, SEEK_SET));
	SAY(ftruncate(in, 50));
	SAY(sendfile(two[1], third, NULL, 10));
	SAY(lseek(third, 45, SEEK_SET));
	SAY(sendfile(two[1], third, NULL, 10));
	drain(two[0], 10);
	return 0;
}
