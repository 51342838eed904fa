/* Arguments at the edge of what the kernel takes. */
#include "say.h"
#include <sys/uio.h>
#include <sys/xattr.h>

#ifndef RWF_NOAPPEND
#define RWF_NOAPPEND 0x20
#endif

/* Results that no offset holds, sizes that no buffer has, words that exclude each other. */
static void beyond_what_there_is(int fd)
{
	char entries[4096];
	struct iovec part = { "ZZ", 2 };
	SAY(lseek(fd, LONG_MAX, SEEK_END));
	SAY(lseek(fd, LONG_MAX - 10, SEEK_END) == LONG_MAX);
	SAY(lseek(fd, LONG_MAX, SEEK_CUR));
	SAY(lseek(fd, LONG_MIN, SEEK_CUR));
	SAY(lseek(fd, 0, SEEK_SET));

	MUST(mkdir("entries", 0755) == 0);
	int dir = open("entries", O_RDONLY | O_DIRECTORY);
	MUST(dir >= 0);
	SAY(syscall(SYS_getdents64, dir, entries, 1UL << 31));
	SAY(lseek(dir, 0, SEEK_SET));
	SAY(syscall(SYS_getdents64, dir, entries, (unsigned long)UINT_MAX));
	SAY(lseek(dir, 0, SEEK_SET));
	SAY(syscall(SYS_getdents64, dir, entries, 1UL << 32));
	SAY(syscall(SYS_getdents64, dir, entries, 23UL));
	close(dir);
	MUST(rmdir("entries") == 0);

	/* Both rights are asked for, and neither is had. */
	int neither = open("file", 3);
	MUST(neither >= 0);
	SAY(ftruncate(neither, 1));
	SAY(fallocate(neither, 0, 0, 1));
	SAY(write(neither, "x", 1));
	SAY(read(neither, entries, 1));
	close(neither);
	show("file");

	SAY(setxattr("file", "security.capability", "v", 1, 0));
	SAY(setxattr("file", "security.capability", entries, 0, 0));
	SAY(fsetxattr(fd, "security.capability", "v", 1, 0));
	SAY(setxattr("file", "user.none", "v", 1, XATTR_CREATE | XATTR_REPLACE));
	SAY(fsetxattr(fd, "user.none", "v", 1, XATTR_CREATE | XATTR_REPLACE));
	SAY(setxattr("file", "user.one", "v", 1, 0));
	SAY(setxattr("file", "user.one", "v", 1, XATTR_CREATE | XATTR_REPLACE));
	SAY(setxattr("file", "user.one", "v", 1, 4));
	SAY(removexattr("file", "user.one"));

	int appends = open("appended", O_RDWR | O_CREAT | O_APPEND, 0644);
	MUST(appends >= 0 && write(appends, "0123456789", 10) == 10);
	SAY(pwritev2(appends, &part, 1, 2, RWF_NOAPPEND));
	show("appended");
	SAY(pwritev2(appends, &part, 1, 2, 0));
	SAY(pwritev2(fd, &part, 1, 4, RWF_NOAPPEND));
	show("appended");
	show("file");
	close(appends);
}

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
	beyond_what_there_is(fd);
	return 0;
}
