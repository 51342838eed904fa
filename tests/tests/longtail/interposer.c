/* A library that programs preload: its functions stand before the C library's and call the kernel by syscall(2), as
 * tcmalloc's mmap does. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset)
{
	return (void *)syscall(SYS_mmap, at, len, prot, flags, fd, offset);
}
ssize_t read(int fd, void *into, size_t len) { return syscall(SYS_read, fd, into, len); }
ssize_t write(int fd, const void *from, size_t len) { return syscall(SYS_write, fd, from, len); }
off_t lseek(int fd, off_t to, int whence) { return syscall(SYS_lseek, fd, to, whence); }
int close(int fd) { return syscall(SYS_close, fd); }
int dup(int fd) { return syscall(SYS_dup, fd); }
int fcntl(int fd, int command, ...)
{
	va_list list;
	va_start(list, command);
	long arg = va_arg(list, long);
	va_end(list);
	return syscall(SYS_fcntl, fd, command, arg);
}
