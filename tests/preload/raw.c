/* System calls that no hook sees, on descriptors of the fast lane, and the function syscall(). */
#include "check.h"

#if defined(__x86_64__)
static long raw(long number, long a, long b, long c, long d)
{
	long rc;
	register long r10 __asm__("r10") = d;
	__asm__ volatile("syscall"
			 : "=a"(rc)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return rc;
}

static void unseen(void)
{
	char text[16] = "";
	struct stat st;
	int fd = make("raw", "0123456789");
	CHECK(raw(SYS_pread64, fd, (long)text, 4, 2) == 4 && memcmp(text, "2345", 4) == 0);
	CHECK(raw(SYS_pwrite64, fd, (long)"AB", 2, 0) == 2);
	CHECK(pread(fd, text, 4, 0) == 4 && memcmp(text, "AB23", 4) == 0);
	CHECK(raw(SYS_ftruncate, fd, 6, 0, 0) == 0);
	CHECK(fstat(fd, &st) == 0 && st.st_size == 6);
	CHECK(raw(SYS_fsync, fd, 0, 0, 0) == 0);
	CHECK(raw(SYS_fchmod, fd, 0600, 0, 0) == 0);
	CHECK(fstat(fd, &st) == 0 && (st.st_mode & 0777) == 0600);
	/* Opened and closed past us: the number means what the kernel says. */
	CHECK(close(fd) == 0);
	CHECK(close(make("other", "other")) == 0);
	long kernel = raw(SYS_openat, AT_FDCWD, (long)in_dir("other"), O_RDONLY, 0);
	CHECK(kernel == fd);
	CHECK(read(kernel, text, 5) == 5 && memcmp(text, "other", 5) == 0);
	CHECK(close(kernel) == 0);
}
#else
static void unseen(void) {}
#endif

static void by_function(void)
{
	char text[16] = "";
	int fd = make("function", "0123456789");
	CHECK(lseek(fd, 3, SEEK_SET) == 3);
	CHECK(syscall(SYS_read, fd, text, 2) == 2 && memcmp(text, "34", 2) == 0);
	CHECK(syscall(SYS_lseek, fd, 0, SEEK_CUR) == 5);
	CHECK(syscall(SYS_write, fd, "X", 1) == 1 && lseek(fd, 0, SEEK_CUR) == 6);
	int copy = syscall(SYS_dup, fd);
	CHECK(copy >= 0 && syscall(SYS_close, fd) == 0);
	CHECK(read(copy, text, 1) == 1 && text[0] == '6');
	int other = syscall(SYS_openat, AT_FDCWD, in_dir("function"), O_RDONLY, 0);
	CHECK(other == fd && read(other, text, 1) == 1 && text[0] == '0');
	FAILS(syscall(SYS_close, 9999), EBADF);
	struct statx x;
	CHECK(syscall(SYS_statx, AT_FDCWD, in_dir("function"), 0, STATX_SIZE, &x) == 0);
	CHECK(x.stx_size == 10);
	CHECK(syscall(SYS_getpid) == getpid());
	CHECK(close(other) == 0 && close(copy) == 0);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	unseen();
	by_function();
	return 0;
}
