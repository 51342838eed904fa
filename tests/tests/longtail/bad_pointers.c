/*
 * Pointers where no memory can be, in every argument that is one, beside arguments that are right:
 * the kernel's answer, and the program goes on. Buffers of reads and writes: bad_places.c.
 */
#include "say.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <linux/openat2.h>
#include <utime.h>

/* Of linux/fs.h, which does not go with sys/mount.h. */
#define FIBMAP _IO(0x00, 1)
#define FIGETBSZ _IO(0x00, 2)

/* What the compiler may not know. */
static void *volatile nowhere;
static struct stat info;
static struct statx more;
static char bytes[4096];

/* Paths that are none, alone and before a right argument. */
static void paths(int dir, char *bad)
{
	struct timespec times[2] = { { 1, 0 }, { 1, 0 } };
	struct timeval old_times[2] = { { 1, 0 }, { 1, 0 } };
	struct utimbuf oldest = { 1, 1 };
	struct open_how how = { .flags = O_RDONLY };
	SAY(open(bad, O_RDONLY));
	SAY(open(bad, O_RDWR | O_CREAT | O_EXCL, 0600));
	SAY(creat(bad, 0600));
	SAY(openat(dir, bad, O_RDONLY));
	SAY(openat(dir, bad, O_PATH));
	SAY(syscall(SYS_openat2, dir, bad, &how, sizeof how));
	SAY(access(bad, R_OK));
	SAY(faccessat(dir, bad, R_OK, 0));
	SAY(faccessat(dir, bad, R_OK, AT_EACCESS));
	SAY(stat(bad, &info));
	SAY(lstat(bad, &info));
	SAY(fstatat(dir, bad, &info, 0));
	SAY(fstatat(dir, bad, &info, AT_SYMLINK_NOFOLLOW));
	SAY(statx(dir, bad, 0, STATX_BASIC_STATS, &more));
	SAY(chmod(bad, 0600));
	SAY(fchmodat(dir, bad, 0600, 0));
	SAY(chown(bad, -1, -1));
	SAY(lchown(bad, -1, -1));
	SAY(fchownat(dir, bad, -1, -1, 0));
	SAY(truncate(bad, 3));
	SAY(utime(bad, &oldest));
	SAY(utimes(bad, old_times));
	SAY(lutimes(bad, old_times));
	SAY(futimesat(dir, bad, bad == NULL ? NULL : old_times));
	SAY(utimensat(dir, bad, times, AT_SYMLINK_NOFOLLOW));
	SAY(mkdir(bad, 0700));
	SAY(mkdirat(dir, bad, 0700));
	SAY(rmdir(bad));
	SAY(unlink(bad));
	SAY(unlinkat(dir, bad, 0));
	SAY(unlinkat(dir, bad, AT_REMOVEDIR));
	SAY(mknod(bad, S_IFIFO | 0600, 0));
	SAY(mknodat(dir, bad, S_IFREG | 0600, 0));
	SAY(mkfifo(bad, 0600));
	SAY(link(bad, "new"));
	SAY(link("file", bad));
	SAY(linkat(dir, bad, dir, "new", 0));
	SAY(linkat(dir, "file", dir, bad, 0));
	SAY(symlink(bad, "new"));
	SAY(symlink("target", bad));
	SAY(symlinkat(bad, dir, "new"));
	SAY(symlinkat("target", dir, bad));
	SAY(rename(bad, "new"));
	SAY(rename("file", bad));
	SAY(renameat(dir, bad, dir, "new"));
	SAY(renameat(dir, "file", dir, bad));
	SAY(renameat2(dir, bad, dir, "new", RENAME_NOREPLACE));
	SAY(renameat2(dir, "file", dir, bad, RENAME_EXCHANGE));
	SAY(readlink(bad, bytes, sizeof bytes));
	SAY(readlinkat(dir, bad, bytes, sizeof bytes));
	SAY(chdir(bad));
	SAY(chroot(bad));
	SAY(statfs(bad, (struct statfs *)bytes));
	SAY(setxattr(bad, "user.a", "1", 1, 0));
	SAY(lsetxattr(bad, "user.a", "1", 1, 0));
	SAY(getxattr(bad, "user.a", bytes, sizeof bytes));
	SAY(lgetxattr(bad, "user.a", bytes, sizeof bytes));
	SAY(listxattr(bad, bytes, sizeof bytes));
	SAY(llistxattr(bad, bytes, sizeof bytes));
	SAY(removexattr(bad, "user.a"));
	SAY(lremovexattr(bad, "user.a"));
	SAY(euidaccess(bad, R_OK));
	SAY(remove(bad));
	SAY(mkfifoat(dir, bad, 0600));
	SAY(fopen(bad, "r") != NULL);
	SAY(umount(bad));
	SAY(mount("none", bad, "tmpfs", 0, NULL));
	SAY(memfd_create(bad, 0));
}

/* Results that have no place, and arguments behind a right path. */
static void results(int dir, int fd, void *bad)
{
	int handle_mount;
	struct file_handle *handle = (struct file_handle *)bytes;
	handle->handle_bytes = 64;
	SAY(stat("file", bad));
	SAY(lstat("file", bad));
	SAY(fstat(fd, bad));
	SAY(fstatat(dir, "file", bad, 0));
	SAY(statx(dir, "file", 0, STATX_BASIC_STATS, bad));
	SAY(statfs("file", bad));
	SAY(fstatfs(fd, bad));
	SAY(readlink("link", bad, 10));
	SAY(readlinkat(dir, "link", bad, 10));
	SAY(syscall(SYS_getcwd, bad, 4096));
	SAY(syscall(SYS_getdents64, dir, bad, 4096));
	SAY(lseek(dir, 0, SEEK_SET));
	SAY(setxattr("file", bad, "1", 1, 0));
	SAY(setxattr("file", "user.a", bad, 1, 0));
	SAY(fsetxattr(fd, bad, "1", 1, 0));
	SAY(fsetxattr(fd, "user.a", bad, 1, 0));
	SAY(setxattr("file", "user.b", "12", 2, 0));
	SAY(getxattr("file", bad, bytes, sizeof bytes));
	SAY(getxattr("file", "user.b", bad, 10));
	SAY(getxattr("file", "user.b", bad, 0));
	SAY(fgetxattr(fd, bad, bytes, sizeof bytes));
	SAY(fgetxattr(fd, "user.b", bad, 10));
	SAY(removexattr("file", bad));
	SAY(fremovexattr(fd, bad));
	SAY(listxattr("file", bad, 100));
	SAY(flistxattr(fd, bad, 100));
	SAY(removexattr("file", "user.b"));
	SAY(name_to_handle_at(dir, bad, handle, &handle_mount, 0));
	SAY(name_to_handle_at(dir, "file", bad, &handle_mount, 0));
	SAY(fcntl(fd, F_GETLK, bad));
	SAY(fcntl(fd, F_SETLK, bad));
	SAY(fcntl(fd, F_OFD_GETLK, bad));
	SAY(fcntl(fd, F_OFD_SETLK, bad));
	SAY(ioctl(fd, FIONREAD, bad));
	SAY(ioctl(fd, FIGETBSZ, bad));
	SAY(ioctl(fd, FIBMAP, bad));
}

/* Two descriptors, places in files, times, watches, lists. */
static void others(int dir, int fd, void *bad)
{
	int to = open("to", O_RDWR | O_CREAT, 0600), watches = inotify_init1(0);
	int events = epoll_create1(0), pipes[2], pair[2];
	struct iovec part = { bytes, 1 };
	loff_t at = 0;
	char *words[] = { "word", NULL };
	MUST(to >= 0 && watches >= 0 && events >= 0 && pipe(pipes) == 0);
	if (bad != NULL) {
		/* Null is a right value of these. */
		SAY(utimensat(dir, "file", bad, 0));
		SAY(futimens(fd, bad));
		SAY(sendfile(to, fd, bad, 1));
		SAY(copy_file_range(fd, bad, to, &at, 1, 0));
		SAY(copy_file_range(fd, &at, to, bad, 1, 0));
		SAY(splice(fd, bad, pipes[1], NULL, 1, 0));
		SAY(execve("./none", words, bad));
		SAY(execve("./file", bad, words));
		char *variables[] = { "A=b", bad, NULL };
		SAY(execve("./none", words, variables));
		SAY(execve("/bin/true", words, variables));
		struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
		message.msg_control = bad;
		message.msg_controllen = CMSG_SPACE(sizeof(int));
		MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
		SAY(sendmsg(pair[0], &message, 0));
		message.msg_controllen = 0;
		message.msg_iov = bad;
		SAY(sendmsg(pair[0], &message, 0));
		SAY(sendmmsg(pair[0], bad, 1, 0));
		SAY(close(pair[0]));
		SAY(close(pair[1]));
		SAY(syscall(SYS_clone3, bad, 88));
	}
	SAY(syscall(SYS_openat2, dir, "file", bad, sizeof(struct open_how)));
	SAY(execve(bad, words, words));
	SAY(execveat(dir, bad, words, words, 0));
	SAY(inotify_add_watch(watches, bad, IN_MODIFY));
	SAY(epoll_ctl(events, EPOLL_CTL_ADD, pipes[0], bad));
	SAY(epoll_ctl(events, EPOLL_CTL_ADD, fd, bad));
	SAY(poll(bad, 1, 0));
	SAY(readv(fd, bad, 1));
	SAY(preadv(fd, bad, 1, 0));
	SAY(writev(to, bad, 1));
	SAY(pwritev(to, bad, 1, 0));
	SAY(vmsplice(pipes[1], bad, 1, 0));
	SAY(vmsplice(pipes[1], &part, 1, 0));
	SAY(pipe(bad));
	SAY(pipe2(bad, O_CLOEXEC));
	SAY(socketpair(AF_UNIX, SOCK_STREAM, 0, bad));
	SAY(sendmsg(pipes[0], bad, 0));
	SAY(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	SAY(sendmsg(pair[0], bad, 0));
	SAY(recvmsg(pair[0], bad, MSG_DONTWAIT));
	SAY(close(pair[0]));
	SAY(close(pair[1]));
	SAY(open_by_handle_at(dir, bad, O_RDONLY));
	SAY(close(to));
	SAY(close(watches));
	SAY(close(events));
	SAY(close(pipes[0]));
	SAY(close(pipes[1]));
}

int main(void)
{
	void *const bad[] = { NULL, (void *)8, (void *)-4096L, (void *)-1L };
	int dir, fd = make("file", "0123456789");
	MUST(symlink("target", "link") == 0);
	dir = open(".", O_RDONLY | O_DIRECTORY);
	MUST(dir >= 0);
	for (int n = 0; n < 4; n++) {
		nowhere = bad[n];
		printf("at %d\n", n);
		paths(dir, nowhere);
		results(dir, fd, nowhere);
		others(dir, fd, nowhere);
		show("file");
	}
	close(fd);
	close(dir);
	return 0;
}
