/* Arguments at the edge of what the kernel takes. */
#include "say.h"
#include <sys/uio.h>

int main(void)
{
	char bytes[8] = "";
	struct statx x;
	struct iovec parts[2] = { { bytes, 4 }, { bytes, 4 } };
	for (int n = 0; n < 6; n++)
		MUST(close(make("warm", "warm")) == 0);
	int fd = make("file", "0123456789");
	for (int twice = 0; twice < 2; twice++) {
		SAY(pread(fd, bytes, 1, LONG_MAX));
		SAY(pread(fd, bytes, 1, LONG_MAX - 1));
		SAY(pread(fd, bytes, 0, LONG_MAX));
		SAY(pread(fd, bytes, 8, LONG_MAX - 7));
		SAY(preadv(fd, parts, 2, LONG_MAX - 7));
		SAY(preadv(fd, parts, 2, LONG_MAX - 8));
		SAY(pwrite(fd, "x", 1, LONG_MAX));
		SAY(pwritev(fd, parts, 2, LONG_MAX - 7));
		SAY(lseek(fd, LONG_MAX, SEEK_SET) == LONG_MAX);
		SAY(read(fd, bytes, 1));
		SAY(readv(fd, parts, 2));
		SAY(write(fd, "x", 1));
		SAY(lseek(fd, 0, SEEK_CUR) == LONG_MAX);
		SAY(lseek(fd, 0, SEEK_SET));
		CHILD {
			SAY(pread(fd, bytes, 1, LONG_MAX));
			SAY(lseek(fd, LONG_MAX, SEEK_SET) == LONG_MAX);
			SAY(write(fd, "x", 1));
			SAY(read(fd, bytes, 1));
			SAY(lseek(fd, 0, SEEK_SET));
		}
	}
	SAY(statx(AT_FDCWD, "file", AT_STATX_FORCE_SYNC | AT_STATX_DONT_SYNC, STATX_ALL, &x));
	SAY(statx(AT_FDCWD, "file", AT_STATX_FORCE_SYNC, STATX_ALL, &x));
	SAY(statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC | AT_STATX_DONT_SYNC, STATX_ALL, &x));

	struct timespec omit[2] = { { 0, UTIME_OMIT }, { 0, UTIME_OMIT } };
	SAY(utimensat(AT_FDCWD, "nothing", omit, 0));
	SAY(utimensat(AT_FDCWD, "nothing/below", omit, AT_SYMLINK_NOFOLLOW));
	SAY(utimensat(AT_FDCWD, "file", omit, 0));
	SAY(futimens(fd, omit));
	SAY(futimens(999, omit));
	omit[0].tv_nsec = UTIME_NOW;
	SAY(utimensat(AT_FDCWD, "nothing", omit, 0));
	SAY(utimensat(AT_FDCWD, "file", omit, 0));
	return 0;
}
