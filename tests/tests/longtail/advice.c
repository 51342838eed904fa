/* What a program says of how it is going to read: nothing that it then reads differs. */
#include "say.h"

int main(void)
{
	char text[32] = "";
	int fd = make("file", "0123456789"), other = open("file", O_RDWR);
	int reads = open("file", O_RDONLY), writes = open("file", O_WRONLY);
	SAY(posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM));
	SAY(posix_fadvise(reads, 2, 100, POSIX_FADV_WILLNEED));
	SAY(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
	SAY(posix_fadvise(fd, 0, -1, POSIX_FADV_NORMAL));
	SAY(posix_fadvise(fd, 0, 0, 77));
	SAY(posix_fadvise(999, 0, 0, POSIX_FADV_NORMAL));
	SAY(readahead(reads, 0, 4096));
	SAY(readahead(fd, 1 << 20, 4096));
	SAY(readahead(writes, 0, 4096));
	SAY(readahead(999, 0, 4096));
	SAY(syscall(SYS_fadvise64, fd, 0L, 0L, POSIX_FADV_SEQUENTIAL));
	SAY(syscall(SYS_fadvise64, fd, 0L, 0L, 77));
	SAY(syscall(SYS_readahead, writes, 0L, 10L));
	for (int n = 0; n < 5; n++) {
		MUST(pwrite(other, &n, sizeof n, 4) == sizeof n);
		MUST(pread(reads, text, 10, 0) == 10 && memcmp(text + 4, &n, sizeof n) == 0);
		MUST(readahead(reads, 0, 4096) == 0);
	}
	SAY(ftruncate(other, 3));
	SAY(pread(reads, text, 10, 0));
	int ends[2];
	MUST(pipe(ends) == 0);
	SAY(posix_fadvise(ends[0], 0, 0, POSIX_FADV_NORMAL));
	SAY(readahead(ends[0], 0, 10));
	return 0;
}
