/* splice, tee and vmsplice between lane files and pipes. */
#include "say.h"
#include <sys/uio.h>

static void drain(int fd)
{
	char text[64] = "";
	SAY(read(fd, text, sizeof text - 1));
	printf("%s\n", text);
}

int main(void)
{
	int one[2], two[2], in = make("in", "0123456789abcdef"), out = make("out", "----------");
	loff_t at = 3, to = 20;
	MUST(pipe(one) == 0 && pipe(two) == 0);
	SAY(splice(in, &at, one[1], NULL, 5, 0));
	SAY(at);
	drain(one[0]);
	SAY(lseek(in, 10, SEEK_SET));
	SAY(splice(in, NULL, one[1], NULL, 100, SPLICE_F_MOVE));
	SAY(lseek(in, 0, SEEK_CUR));
	SAY(tee(one[0], two[1], 100, 0));
	SAY(lseek(out, 2, SEEK_SET));
	SAY(splice(one[0], NULL, out, NULL, 4, SPLICE_F_MORE));
	SAY(lseek(out, 0, SEEK_CUR));
	SAY(splice(one[0], NULL, out, &to, 100, 0));
	SAY(to);
	SAY(write(out, "W", 1));
	drain(two[0]);
	struct stat st;
	SAY((fstat(out, &st), st.st_size));
	char text[32] = "";
	SAY(pread(out, text, 31, 0));
	printf("%s|%s\n", text, text + 20);
	SAY(splice(in, NULL, out, NULL, 5, 0));
	to = 0;
	SAY(splice(in, NULL, one[1], &to, 5, 0));
	SAY(splice(in, NULL, one[1], NULL, 5, 0));
	int appends = open("out", O_WRONLY | O_APPEND), writes = open("in", O_WRONLY);
	SAY(splice(writes, NULL, one[1], NULL, 5, 0));
	MUST(write(one[1], "late", 4) == 4);
	SAY(splice(one[0], NULL, appends, NULL, 4, 0));
	SAY(splice(one[0], NULL, writes, NULL, 4, 0));
	show("in");
	struct iovec part = { "from memory", 11 };
	SAY(vmsplice(one[1], &part, 1, 0));
	to = 3;
	SAY(splice(one[0], NULL, writes, &to, 11, 0));
	show("in");
	/* Bytes that were spliced out and then overwritten in the file stay as the pipe got them, or
	 * change with it: either way all of them arrive. */
	static char bytes[1 << 16];
	memset(bytes, 'k', sizeof bytes);
	SAY(pwrite(in, bytes, sizeof bytes, 0));
	long moved = 0, got = 0;
	at = to = 0;
	while (at < (loff_t)sizeof bytes) {
		long n = splice(in, &at, one[1], NULL, 10000, 0);
		MUST(n > 0);
		moved += n;
		while (n > 0) {
			long m = splice(one[0], NULL, out, &to, n, 0);
			MUST(m > 0);
			got += m, n -= m;
		}
	}
	printf("%ld %ld\n", moved, got);
	SAY(pread(out, text, 1, 65535));
	SAY(text[0]);
	return 0;
}
