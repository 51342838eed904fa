/* Projects and the flag that passes them on, on a file system that keeps none: what can be asked for. */
#include "say.h"
#include <linux/fs.h>
#include <sys/ioctl.h>

static void tell(const char *path)
{
	struct fsxattr is = { 0 };
	int flags = 0, fd = open(path, O_RDONLY | O_NONBLOCK);
	int got = ioctl(fd, FS_IOC_FSGETXATTR, &is), flags_got = ioctl(fd, FS_IOC_GETFLAGS, &flags);
	printf("%s: %d %#x project %u, %d %#x\n", path, got, is.fsx_xflags & 0x2d8, is.fsx_projid, flags_got,
	       flags & 0x200000f0);
	close(fd);
}

/* Asks for a project and flags. */
static int set(const char *path, unsigned project, unsigned xflags)
{
	struct fsxattr is = { 0 };
	int fd = open(path, O_RDONLY | O_NONBLOCK);
	MUST(fd >= 0);
	ioctl(fd, FS_IOC_FSGETXATTR, &is);
	is.fsx_projid = project;
	is.fsx_xflags = xflags;
	int got = ioctl(fd, FS_IOC_FSSETXATTR, &is), why = errno;
	close(fd);
	errno = why;
	return got;
}

static int set_flags(const char *path, int flags)
{
	int fd = open(path, O_RDONLY), now = 0;
	MUST(fd >= 0 && ioctl(fd, FS_IOC_GETFLAGS, &now) == 0);
	flags |= now & ~0x200000f0;
	int got = ioctl(fd, FS_IOC_SETFLAGS, &flags), why = errno;
	close(fd);
	errno = why;
	return got;
}

int main(void)
{
	if (geteuid() != 0)
		return SKIP;
	MUST(mkdir("dir", 0755) == 0 && mknod("file", S_IFREG | 0644, 0) == 0 && mkfifo("pipe", 0644) == 0);
	SAY(set("file", 0, 0));
	SAY(set("file", 5, 0));
	SAY(set("dir", 5, 0));
	SAY(set("file", 0, FS_XFLAG_PROJINHERIT));
	SAY(set_flags("file", FS_PROJINHERIT_FL));
	SAY(set("pipe", 0, 0));
	SAY(set("dir", 0, FS_XFLAG_PROJINHERIT | FS_XFLAG_NODUMP));
	tell("dir");
	tell("file");
	tell("pipe");
	MUST(mkdir("dir/below", 0755) == 0 && mknod("dir/inside", S_IFREG | 0644, 0) == 0);
	tell("dir/below");
	tell("dir/inside");
	SAY(link("file", "dir/linked"));
	SAY(rename("file", "dir/moved"));
	SAY(rename("dir/moved", "dir/moved again"));
	SAY(set("dir", 0, FS_XFLAG_IMMUTABLE | FS_XFLAG_PROJINHERIT));
	SAY(set("dir", 5, FS_XFLAG_IMMUTABLE | FS_XFLAG_PROJINHERIT));
	SAY(set("dir", 0, FS_XFLAG_IMMUTABLE));
	SAY(set("dir", 0, 0));
	tell("dir");
	SAY(set_flags("dir", FS_PROJINHERIT_FL));
	tell("dir");
	/* Nobody in another user namespace. */
	pid_t pid = fork();
	if (pid == 0) {
		if (syscall(SYS_unshare, 0x10000000) != 0)
			_exit(0);
		SAY(set("dir", 0, FS_XFLAG_PROJINHERIT));
		SAY(set("dir", 0, 0));
		SAY(set("dir", 7, FS_XFLAG_PROJINHERIT));
		SAY(set_flags("dir", 0));
		fflush(stdout);
		_exit(0);
	}
	MUST(waitpid(pid, NULL, 0) == pid);
	tell("dir");
	return 0;
}
