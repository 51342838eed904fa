/* What a stream has buffered is written before the locks go that its close gives up: by fclose and by
 * freopen. One that cannot be written says so all the same, and one that was read leaves its offset, which a
 * copy of its descriptor shares, where libc does. */
#include "say.h"

enum { TURNS = 60, BYTES = 3000 };

static int asks[2], tells[2];

/* Waits for the lock each turn, and counts what was not there by then. */
static int find(void)
{
	int missed = 0;
	char byte, text[BYTES + 1];
	for (int i = 0; i < TURNS; i++) {
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
		MUST(read(asks[0], &byte, 1) == 1);
		int fd = open("f", O_RDWR);
		MUST(fd >= 0 && write(tells[1], "r", 1) == 1);
		MUST(fcntl(fd, F_SETLKW, &lock) == 0);
		missed += pread(fd, text, sizeof text, 0) != BYTES;
		MUST(close(fd) == 0 && write(tells[1], "d", 1) == 1);
	}
	return missed;
}

int main(void)
{
	char byte, text[BYTES + 1];
	MUST(pipe(asks) == 0 && pipe(tells) == 0);
	memset(text, 'z', BYTES);
	text[BYTES] = 0;
	pid_t pid = begin();
	if (pid == 0)
		_exit(find());
	for (int i = 0; i < TURNS; i++) {
		FILE *stream = fopen("f", "w");
		MUST(stream && lockf(fileno(stream), F_LOCK, 0) == 0 && fputs(text, stream) >= 0);
		MUST(write(asks[1], "g", 1) == 1 && read(tells[0], &byte, 1) == 1);
		usleep(2000);
		if (i % 2)
			stream = freopen("other", "w", stream);
		MUST(stream && fclose(stream) == 0);
		MUST(read(tells[0], &byte, 1) == 1);
	}
	reap(pid);
	FILE *full = fopen("/dev/full", "w"), *reads = fopen("f", "r");
	MUST(full && reads && fputs("x", full) >= 0 && fgetc(reads) == 'z');
	int copy = dup(fileno(reads));
	SAY(fclose(full));
	SAY(fclose(reads));
	SAY(lseek(copy, 0, SEEK_CUR));
	return 0;
}
