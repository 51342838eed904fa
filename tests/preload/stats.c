/* What stat says through libc is what the kernel says to a raw system call on the same file. */
#include "check.h"
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <utime.h>

static long raw(long number, long a, long b, long c, long d, long e)
{
#if defined(__x86_64__)
	long rc;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	__asm__ volatile("syscall"
			 : "=a"(rc)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
			 : "rcx", "r11", "memory");
	return rc;
#else
	return syscall(number, a, b, c, d, e);
#endif
}

static void same(const struct stat *one, const struct stat *two, const char *what)
{
#define SAME(field)                                                                                \
	if (one->field != two->field) {                                                            \
		fprintf(stderr, "%s: " #field " is %lld, the kernel says %lld\n", what,            \
			(long long)one->field, (long long)two->field);                             \
		_exit(1);                                                                          \
	}
	SAME(st_dev) SAME(st_ino) SAME(st_mode) SAME(st_nlink) SAME(st_uid) SAME(st_gid)
	SAME(st_rdev) SAME(st_size) SAME(st_blksize) SAME(st_blocks)
	SAME(st_atim.tv_sec) SAME(st_atim.tv_nsec) SAME(st_mtim.tv_sec) SAME(st_mtim.tv_nsec)
	SAME(st_ctim.tv_sec) SAME(st_ctim.tv_nsec)
}

static void compare(const char *path)
{
	struct stat here, kernel;
	CHECK(stat(path, &here) == 0);
	CHECK(raw(SYS_newfstatat, AT_FDCWD, (long)path, (long)&kernel, 0, 0) == 0);
	same(&here, &kernel, path);
	CHECK(lstat(path, &here) == 0);
	CHECK(raw(SYS_newfstatat, AT_FDCWD, (long)path, (long)&kernel, AT_SYMLINK_NOFOLLOW, 0) ==
	      0);
	same(&here, &kernel, path);
	struct statx x, kx;
	memset(&kx, 0, sizeof kx);
	unsigned mask = STATX_BASIC_STATS | STATX_BTIME;
	CHECK(statx(AT_FDCWD, path, 0, mask, &x) == 0);
	CHECK(raw(SYS_statx, AT_FDCWD, (long)path, 0, mask, (long)&kx) == 0);
	CHECK((x.stx_mask & STATX_BASIC_STATS) == STATX_BASIC_STATS);
	CHECK(x.stx_mode == kx.stx_mode && x.stx_ino == kx.stx_ino && x.stx_size == kx.stx_size);
	CHECK(x.stx_dev_major == kx.stx_dev_major && x.stx_dev_minor == kx.stx_dev_minor);
	CHECK(x.stx_nlink == kx.stx_nlink && x.stx_blocks == kx.stx_blocks);
	CHECK(x.stx_uid == kx.stx_uid && x.stx_gid == kx.stx_gid);
	CHECK(memcmp(&x.stx_mtime, &kx.stx_mtime, sizeof x.stx_mtime) == 0);
	/* The kernel's FUSE drops the attributes that file systems have. */
	CHECK(((x.stx_attributes ^ kx.stx_attributes) & kx.stx_attributes_mask) == 0);
	CHECK((kx.stx_attributes_mask & ~x.stx_attributes_mask) == 0);
	struct statx m;
	CHECK(statx(AT_FDCWD, path, 0, mask | STATX_MNT_ID, &m) == 0);
	CHECK((m.stx_mask & STATX_MNT_ID) && m.stx_mnt_id == kx.stx_mnt_id && m.stx_ino == x.stx_ino);
	CHECK(m.stx_attributes == x.stx_attributes && m.stx_attributes_mask == x.stx_attributes_mask);
	if (x.stx_mask & kx.stx_mask & STATX_BTIME)
		CHECK(memcmp(&x.stx_btime, &kx.stx_btime, sizeof x.stx_btime) == 0);
}

static void times(int fd)
{
	struct stat stat;
	struct timespec given[2] = { { 1000000000, 123456789 }, { -5, 999999999 } };
	CHECK(futimens(fd, given) == 0 && fstat(fd, &stat) == 0);
	CHECK(stat.st_atim.tv_sec == 1000000000 && stat.st_atim.tv_nsec == 123456789);
	CHECK(stat.st_mtim.tv_sec == -5 && stat.st_mtim.tv_nsec == 999999999);
	given[0].tv_nsec = UTIME_OMIT;
	given[1].tv_nsec = UTIME_NOW;
	CHECK(utimensat(AT_FDCWD, in_dir("file"), given, 0) == 0 && fstat(fd, &stat) == 0);
	CHECK(stat.st_atim.tv_sec == 1000000000 && stat.st_mtim.tv_sec > 1000000000);
	given[0].tv_nsec = 1000000000;
	FAILS(utimensat(AT_FDCWD, in_dir("file"), given, 0), EINVAL);
	struct timeval us[2] = { { 7, 999999 }, { 8, 1 } };
	CHECK(utimes(in_dir("file"), us) == 0 && fstat(fd, &stat) == 0);
	CHECK(stat.st_atim.tv_sec == 7 && stat.st_atim.tv_nsec == 999999000);
	CHECK(stat.st_mtim.tv_sec == 8 && stat.st_mtim.tv_nsec == 1000);
	struct utimbuf seconds = { 11, 12 };
	CHECK(utime(in_dir("file"), &seconds) == 0 && fstat(fd, &stat) == 0);
	CHECK(stat.st_atim.tv_sec == 11 && stat.st_mtim.tv_sec == 12 && stat.st_mtim.tv_nsec == 0);
	CHECK(lutimes(in_dir("link"), us) == 0 && lstat(in_dir("link"), &stat) == 0);
	CHECK(stat.st_mtim.tv_sec == 8);
	CHECK(futimes(fd, NULL) == 0 && utime(in_dir("file"), NULL) == 0);
	CHECK(syscall(SYS_utimensat, fd, NULL, NULL, 0) == 0);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	struct stat here, kernel;
	int fd = make("file", "some bytes");
	CHECK(mkdir(in_dir("dir"), 0750) == 0);
	CHECK(symlink("file", in_dir("link")) == 0);
	CHECK(mkfifo(in_dir("fifo"), 0600) == 0);
	CHECK(link(in_dir("file"), in_dir("hard")) == 0);
	const char *names[] = { "file", "dir", "link", "fifo", "hard", ".", "dir/..", "dir/" };
	for (unsigned n = 0; n < sizeof names / sizeof *names; n++)
		compare(in_dir(names[n]));
	CHECK(fstat(fd, &here) == 0);
	CHECK(raw(SYS_fstat, fd, (long)&kernel, 0, 0, 0) == 0);
	same(&here, &kernel, "fd");
	/* Also after changes on either road. */
	CHECK(raw(SYS_pwrite64, fd, (long)"kernel", 6, 100, 0) == 6);
	CHECK(fstat(fd, &here) == 0 && here.st_size == 106);
	CHECK(chmod(in_dir("file"), 04711) == 0);
	compare(in_dir("file"));
	CHECK(fchmod(fd, 0640) == 0 && fchown(fd, -1, -1) == 0);
	compare(in_dir("hard"));
	times(fd);
	compare(in_dir("file"));
	CHECK(lchown(in_dir("link"), getuid(), getgid()) == 0);
	compare(in_dir("link"));
	FAILS(stat(in_dir("absent"), &here), ENOENT);
	FAILS(stat(in_dir("file/x"), &here), ENOTDIR);
	FAILS(fstat(9999, &here), EBADF);
	return 0;
}
