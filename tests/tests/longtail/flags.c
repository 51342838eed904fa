/* Inode flags: what chattr +i, +a and +A forbid and let, by every kind of call, and who sets them. */
#include "say.h"
#include <linux/capability.h>
#include <linux/fs.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/xattr.h>
#include <time.h>

enum { ANN = 2001 };

/* The flags that every file system keeps that has any. */
static const int common = FS_IMMUTABLE_FL | FS_APPEND_FL | FS_NODUMP_FL | FS_NOATIME_FL;

static void tell(const char *path)
{
	int flags = 0, fd = open(path, O_RDONLY);
	struct fsxattr more = { 0 };
	int got = ioctl(fd, FS_IOC_GETFLAGS, &flags), more_got = ioctl(fd, FS_IOC_FSGETXATTR, &more);
	printf("%s: %d %#x, %d %#x\n", path, got, flags & common, more_got, more.fsx_xflags & 0xd8);
	close(fd);
}

static int flag(const char *path, int flag, int on)
{
	int flags = 0, fd = open(path, O_RDONLY);
	MUST(fd >= 0);
	int got = ioctl(fd, FS_IOC_GETFLAGS, &flags);
	if (got == 0) {
		flags = on ? flags | flag : flags & ~flag;
		got = ioctl(fd, FS_IOC_SETFLAGS, &flags);
	}
	int why = errno;
	close(fd);
	errno = why;
	return got;
}

static int more_flags(const char *path, unsigned xflags)
{
	struct fsxattr more = { 0 };
	int fd = open(path, O_RDONLY);
	MUST(fd >= 0 && ioctl(fd, FS_IOC_FSGETXATTR, &more) == 0);
	more.fsx_xflags = xflags;
	int got = ioctl(fd, FS_IOC_FSSETXATTR, &more), why = errno;
	close(fd);
	errno = why;
	return got;
}

/* Opens and closes. */
static int opens(const char *path, int flags)
{
	int fd = open(path, flags, 0644), why = errno;
	if (fd >= 0)
		close(fd);
	errno = why;
	return fd < 0 ? -1 : 0;
}

/* Everything that changes a file by its name. */
static void change(const char *path, const char *beside)
{
	struct timespec now[] = { { 0, UTIME_NOW }, { 0, UTIME_NOW } };
	struct timespec one[] = { { 0, UTIME_NOW }, { 0, UTIME_OMIT } };
	struct timespec then[] = { { 1000, 0 }, { 2000, 0 } };
	printf("-- %s\n", path);
	SAY(opens(path, O_RDONLY));
	SAY(opens(path, O_WRONLY));
	SAY(opens(path, O_RDWR));
	SAY(opens(path, O_WRONLY | O_APPEND));
	SAY(opens(path, O_WRONLY | O_APPEND | O_TRUNC));
	SAY(opens(path, O_RDONLY | O_TRUNC));
	SAY(opens(path, O_RDWR | O_CREAT));
	SAY(opens(path, O_RDWR | O_CREAT | O_EXCL));
	SAY(truncate(path, 3));
	SAY(chmod(path, 0600));
	SAY(chown(path, ANN, ANN));
	SAY(utimensat(AT_FDCWD, path, NULL, 0));
	SAY(utimensat(AT_FDCWD, path, now, 0));
	SAY(utimensat(AT_FDCWD, path, one, 0));
	SAY(utimensat(AT_FDCWD, path, then, 0));
	SAY(setxattr(path, "trusted.lane", "1", 1, 0));
	SAY(removexattr(path, "trusted.there"));
	SAY(link(path, "another"));
	SAY(unlink("another"));
	SAY(rename(path, "elsewhere"));
	SAY(rename("elsewhere", path));
	SAY(rename(beside, path));
	SAY(renameat2(AT_FDCWD, beside, AT_FDCWD, path, RENAME_EXCHANGE));
	SAY(unlink(path));
	show(path);
}

/* What an open file does that was opened before. */
static void go_on(const char *name, int fd)
{
	printf("-- open %s\n", name);
	SAY(ftruncate(fd, 2));
	SAY(fchmod(fd, 0640));
	SAY(fallocate(fd, 0, 0, 100));
	SAY(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 10000));
	SAY(fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, 1));
	SAY(fsetxattr(fd, "trusted.lane", "1", 1, 0));
	SAY(futimens(fd, NULL));
}

static void entries(const char *dir)
{
	char name[100], other[100];
	snprintf(name, sizeof name, "%s/name", dir);
	snprintf(other, sizeof other, "%s/other", dir);
	printf("-- entries of %s\n", dir);
	SAY(opens(name, O_RDWR));
	SAY(opens(other, O_RDWR | O_CREAT));
	SAY(mkdir(other, 0755));
	SAY(symlink("x", other));
	SAY(mkfifo(other, 0644));
	SAY(link("beside", other));
	SAY(opens(dir, O_TMPFILE | O_RDWR));
	SAY(rename(name, "out"));
	SAY(rename("beside", other));
	SAY(rename("beside", name));
	SAY(unlink(name));
	SAY(unlink(other));
	SAY(chmod(dir, 0700));
	SAY(rename(dir, "moved"));
	SAY(rmdir(dir));
	SAY(utimensat(AT_FDCWD, dir, NULL, 0));
}

static void files(void)
{
	int open_before = make("frozen", "text of it"), grows = open("grows", O_RDWR | O_CREAT, 0644);
	close(make("beside", "beside it"));
	MUST(setxattr("frozen", "trusted.there", "", 0, 0) == 0);
	MUST(setxattr("grows", "trusted.there", "", 0, 0) == 0);
	SAY(flag("frozen", FS_IMMUTABLE_FL, 1));
	SAY(flag("grows", FS_APPEND_FL, 1));
	tell("frozen");
	tell("grows");
	change("frozen", "beside");
	change("grows", "beside");
	go_on("frozen", open_before);
	SAY(write(open_before, "?", 1));
	SAY(pwrite(open_before, "?", 1, 0));
	int appends = open("grows", O_RDWR | O_APPEND);
	MUST(appends >= 0);
	SAY(write(appends, "one ", 4));
	SAY(pwrite(appends, "two ", 4, 0));
	go_on("grows", appends);
	/* Whether or not that is refused, it does nothing. */
	fcntl(appends, F_SETFL, 0);
	SAY(pwrite(appends, "three", 5, 0));
	SAY(lseek(appends, 0, SEEK_END));
	show("grows");
	SAY(copy_file_range(appends, &(loff_t){ 0 }, open_before, &(loff_t){ 0 }, 2, 0));
	SAY(flag("frozen", FS_NODUMP_FL, 1));
	SAY(flag("grows", FS_NODUMP_FL, 1));
	tell("grows");
	SAY(flag("frozen", FS_IMMUTABLE_FL, 0));
	SAY(flag("grows", FS_APPEND_FL, 0));
	SAY(write(open_before, "!", 1));
	SAY(pwrite(open("grows", O_WRONLY), "ONE", 3, 0));
	show("frozen");
	show("grows");
	SAY(unlink("frozen"));
	SAY(unlink("grows"));
	SAY(flag("beside", FS_IMMUTABLE_FL, 1));
	SAY(more_flags("beside", 0));
	close(appends);
	close(open_before);
	close(grows);
}

static void directories(void)
{
	close(make("beside", "beside it"));
	for (int which = 0; which < 2; which++) {
		const char *dir = which ? "adds" : "fixed";
		MUST(mkdir(dir, 0755) == 0);
		MUST(chdir(dir) == 0);
		close(make("name", "name"));
		MUST(chdir("..") == 0);
		SAY(flag(dir, which ? FS_APPEND_FL : FS_IMMUTABLE_FL, 1));
		tell(dir);
		entries(dir);
		SAY(flag(dir, FS_APPEND_FL | FS_IMMUTABLE_FL, 0));
		entries(dir);
	}
}

/* Many files that one process makes and removes, one of which may not go. */
static void among_many(void)
{
	char name[32];
	MUST(mkdir("many", 0755) == 0);
	for (int number = 0; number < 200; number++) {
		snprintf(name, sizeof name, "many/%d", number);
		close(make(name, "x"));
		if (number == 150)
			SAY(flag(name, FS_IMMUTABLE_FL, 1));
		if (number == 151)
			SAY(flag(name, FS_APPEND_FL, 1));
	}
	for (int number = 0; number < 200; number++) {
		snprintf(name, sizeof name, "many/%d", number);
		if (unlink(name) != 0)
			printf("%s stays: %s\n", name, strerror(errno));
	}
	SAY(rmdir("many"));
	SAY(flag("many/150", FS_IMMUTABLE_FL, 0));
	SAY(flag("many/151", FS_APPEND_FL, 0));
	SAY(unlink("many/150"));
	SAY(unlink("many/151"));
	SAY(rmdir("many"));
}

static void without(unsigned capability)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];
	MUST(syscall(SYS_capget, &header, data) == 0);
	data[0].effective &= ~(1u << capability);
	MUST(syscall(SYS_capset, &header, data) == 0);
}

/* Root whose capabilities are not those over the host's files. */
static void lesser_roots(void)
{
	close(make("mine", "mine"));
	close(make("its", "its"));
	MUST(chown("its", ANN, ANN) == 0);
	for (int which = 0; which < 4; which++)
		CHILD {
			if (which < 2)
				without(which == 0 ? CAP_LINUX_IMMUTABLE : CAP_FOWNER);
			else if (which == 2)
				SAY(unshare(CLONE_NEWUSER));
			else
				/* No /proc there. */
				MUST(chroot(".") == 0);
			SAY(flag("mine", FS_NODUMP_FL, which % 2));
			SAY(flag("mine", FS_APPEND_FL, 1));
			SAY(more_flags("mine", 0x10));
			SAY(flag("mine", FS_APPEND_FL, 0));
			SAY(flag("its", FS_APPEND_FL, 1));
			tell("mine");
			if (which == 2)
				continue;
			SAY(flag("its", FS_NODUMP_FL, 1));
			SAY(more_flags("its", 0x40));
			tell("its");
		}
	SAY(unlink("mine"));
	SAY(unlink("its"));
}

static void who(void)
{
	close(make("hers", "hers"));
	close(make("his", "his"));
	MUST(chmod(".", 0777) == 0 && chown("hers", ANN, ANN) == 0);
	CHILD {
		MUST(setgid(ANN) == 0 && setuid(ANN) == 0);
		SAY(flag("hers", FS_NODUMP_FL, 1));
		SAY(flag("hers", FS_IMMUTABLE_FL, 1));
		SAY(flag("hers", FS_APPEND_FL, 1));
		SAY(flag("his", FS_NODUMP_FL, 1));
		SAY(more_flags("hers", 0x80 | 0x40));
		SAY(more_flags("hers", 0x10));
		tell("hers");
		tell("his");
	}
	SAY(more_flags("hers", 0x08));
	tell("hers");
	SAY(unlink("hers"));
	SAY(more_flags("hers", 0x10));
	tell("hers");
	SAY(more_flags("hers", 0));
	SAY(unlink("hers"));
	close(make("ours", ""));
	CHILD {
		without(CAP_LINUX_IMMUTABLE);
		SAY(flag("ours", FS_IMMUTABLE_FL, 1));
		SAY(flag("ours", FS_APPEND_FL, 1));
		SAY(flag("ours", FS_NODUMP_FL, 1));
		SAY(more_flags("ours", 0x08 | 0x80));
		SAY(more_flags("ours", 0x40 | 0x80));
		tell("ours");
	}
	MUST(mkfifo("pipe", 0644) == 0);
	int pipe = open("pipe", O_RDWR), flags;
	(void)pipe;
	MUST(mkdir("heirs", 0755) == 0);
	SAY(flag("heirs", FS_NODUMP_FL | FS_NOATIME_FL, 1));
	close(make("heirs/file", ""));
	MUST(mkdir("heirs/dir", 0755) == 0);
	tell("heirs/file");
	tell("heirs/dir");
	flags = ~0;
	SAY(ioctl(open("his", O_RDONLY), FS_IOC_SETFLAGS, &flags));
	tell("his");
}

/* Whether reading moves the access time, which is long ago. */
static void access_times(void)
{
	struct timespec old[] = { { 1000, 0 }, { 2000, 0 } };
	struct stat st;
	char byte;
	close(make("read", "text"));
	for (int on = 1; on >= 0; on--) {
		SAY(flag("read", FS_NOATIME_FL, on));
		MUST(utimensat(AT_FDCWD, "read", old, 0) == 0);
		int fd = open("read", O_RDONLY);
		MUST(read(fd, &byte, 1) == 1 && fstat(fd, &st) == 0);
		printf("the access time %s\n", st.st_atime == 1000 ? "stays" : "moves");
		close(fd);
	}
}

/* What the kernel decides by itself on a FUSE mount. */
static void asked(void)
{
	void *all = MAP_FAILED;
	int frozen = make("frozen", "text"), grows = open("grows", O_RDWR | O_CREAT | O_APPEND, 0644);
	MUST(write(grows, "text", 4) == 4);
	SAY(flag("frozen", FS_IMMUTABLE_FL, 1));
	SAY(flag("grows", FS_APPEND_FL, 1));
	SAY(access("frozen", R_OK));
	SAY(access("frozen", W_OK));
	SAY(access("grows", W_OK));
	SAY(fcntl(grows, F_SETFL, 0));
	SAY(fcntl(grows, F_SETFL, O_APPEND | O_NONBLOCK));
	SAY(fcntl(grows, F_GETFL) & O_APPEND ? 1 : 0);
	for (int which = 0; which < 4; which++) {
		int fd = which < 2 ? grows : open("grows", O_RDONLY);
		all = mmap(NULL, 4096, PROT_READ, which % 2 ? MAP_PRIVATE : MAP_SHARED, fd, 0);
		printf("mapped: %s\n", all == MAP_FAILED ? strerror(errno) : (char *)all);
	}
	all = mmap(NULL, 4096, PROT_READ, MAP_SHARED, frozen, 0);
	printf("mapped: %s\n", all == MAP_FAILED ? strerror(errno) : (char *)all);
	SAY(flag("frozen", FS_IMMUTABLE_FL, 0));
	SAY(flag("grows", FS_APPEND_FL, 0));
	SAY(access("frozen", W_OK));
	SAY(fcntl(grows, F_SETFL, 0));
}

/* The attributes of statx, of which the kernel tells nothing on a FUSE mount: those that every file
 * system keeps that has any, or all. */
static void attributes_of(int dir, const char *path, int flags, unsigned long which)
{
	static const unsigned masks[] = { STATX_BASIC_STATS | STATX_BTIME, STATX_BASIC_STATS | STATX_MNT_ID,
					  STATX_BTIME };
	struct statx x;
	struct timespec now;
	printf("%s:", path);
	for (int n = 0; n < 3; n++) {
		int got = n < 2 ? statx(dir, path, flags, masks[n], &x)
				: (int)syscall(SYS_statx, dir, path, flags, masks[n], &x);
		MUST(got == 0 && clock_gettime(CLOCK_REALTIME, &now) == 0);
		printf(" %#llx of %#llx", x.stx_attributes & which, x.stx_attributes_mask & which);
		if (masks[n] & STATX_BTIME)
			printf(" %s", !(x.stx_mask & STATX_BTIME)		? "no begin"
				      : x.stx_btime.tv_sec + 60 > now.tv_sec	? "new"
										: "old");
		MUST(!(masks[n] & STATX_MNT_ID) || x.stx_mask & STATX_MNT_ID);
	}
	printf("\n");
}

static void attributes(unsigned long which)
{
	static const char *const names[] = { "plain", "frozen", "grows", "skipped", "dir", "link", "pipe", ".." };
	static const int flags[] = { 0, FS_IMMUTABLE_FL, FS_APPEND_FL, FS_NODUMP_FL, FS_APPEND_FL | FS_NODUMP_FL };
	MUST(mkdir("dir", 0755) == 0 && symlink("frozen", "link") == 0 && mkfifo("pipe", 0644) == 0);
	for (int n = 0; n < 5; n++) {
		int fd = n < 4 ? make(names[n], "text") : open(names[n], O_RDONLY);
		attributes_of(fd, "", AT_EMPTY_PATH, which);
		MUST(flags[n] == 0 || flag(names[n], flags[n], 1) == 0);
		attributes_of(fd, "", AT_EMPTY_PATH, which);
		close(fd);
	}
	SAY(flag("..", FS_NODUMP_FL, 1));
	for (int turn = 0; turn < 3; turn++) {
		for (int n = 0; n < 8; n++)
			attributes_of(AT_FDCWD, names[n], AT_SYMLINK_NOFOLLOW, which);
		SAY(flag("plain", FS_APPEND_FL, turn == 0));
	}
	attributes_of(AT_FDCWD, "link", 0, which);
	SAY(flag("..", FS_NODUMP_FL, 0));
	for (int n = 1; n < 5; n++)
		SAY(flag(names[n], flags[n], 0));
}

int main(int count, char **arguments)
{
	int flags, fd;
	if (geteuid() != 0)
		return SKIP;
	fd = make("probe", "");
	if (ioctl(fd, FS_IOC_GETFLAGS, &flags) != 0)
		return SKIP;
	close(fd);
	if (count > 1) {
		const char *what = arguments[1];
		if (strcmp(what, "more") == 0)
			asked();
		else
			attributes(strcmp(what, "all") == 0 ? ~0ul
							    : STATX_ATTR_IMMUTABLE | STATX_ATTR_APPEND |
								      STATX_ATTR_NODUMP);
		return 0;
	}
	files();
	directories();
	among_many();
	who();
	lesser_roots();
	access_times();
	return 0;
}
