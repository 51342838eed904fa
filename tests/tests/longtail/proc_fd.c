/* /proc/self/fd and /dev/fd: what opening their links gives, linkat; with an argument, where the
 * links point. */
#include "say.h"
#include <dirent.h>

static char cwd[PATH_MAX];
static int links;

/* The link's target, with this directory's path taken off. */
static void where(const char *format, int fd)
{
	char link[64], target[PATH_MAX] = "", *text = target;
	if (!links)
		return;
	snprintf(link, sizeof link, format, fd);
	ssize_t count = readlink(link, target, sizeof target - 1);
	if (count > 0 && strncmp(target, cwd, strlen(cwd)) == 0)
		text += strlen(cwd);
	printf("readlink %s = %zd %s\n", format, count < 0 ? count : (ssize_t)strlen(text),
	       count < 0 ? strerror(errno) : text);
}

static int again(const char *format, int fd, int flags)
{
	char link[64];
	snprintf(link, sizeof link, format, fd);
	return open(link, flags);
}

int main(int argc, char **argv)
{
	(void)argv;
	links = argc > 1;
	char text[16] = "", link[64], path[PATH_MAX];
	MUST(getcwd(cwd, sizeof cwd));
	MUST(mkdir("dir", 0755) == 0);
	int fd = make("dir/file", "0123456789");
	where("/proc/self/fd/%d", fd);
	where("/dev/fd/%d", fd);
	where("/proc/thread-self/fd/%d", fd);
	snprintf(link, sizeof link, "/proc/%d/fd/%d", getpid(), fd);
	SAY(readlink(link, path, 3));
	if (links) {
		SAY(readlink(link, path, sizeof path) == (ssize_t)strlen(cwd) + 9);
		SAY(realpath(link, path) != NULL && strcmp(path + strlen(cwd), "/dir/file") == 0);
	}
	where("/proc/self/fd/%d", 999);

	/* A second open has its own position. */
	SAY(lseek(fd, 5, SEEK_SET));
	int other = again("/proc/self/fd/%d", fd, O_RDONLY);
	SAY(read(other, text, 3));
	SAY(lseek(fd, 0, SEEK_CUR));
	SAY(lseek(other, 0, SEEK_CUR));
	SAY(write(other, "x", 1));
	SAY(close(other));
	int reads = open("dir/file", O_RDONLY);
	other = again("/dev/fd/%d", reads, O_WRONLY);
	SAY(write(other, "W", 1));
	SAY(close(other));
	other = again("/proc/self/fd/%d", fd, O_RDWR | O_TRUNC);
	SAY(write(other, "cut", 3));
	show("dir/file");
	struct stat st, kernel;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	SAY(stat(link, &st));
	SAY(fstat(fd, &kernel));
	SAY(st.st_size);
	SAY(st.st_ino == kernel.st_ino && st.st_dev == kernel.st_dev);
	SAY((lstat(link, &st), S_ISLNK(st.st_mode)));
	SAY(truncate(link, 2));
	SAY(chmod(link, 0600));
	SAY((fstat(fd, &st), st.st_mode & 0777));
	SAY(st.st_size);

	SAY(rename("dir/file", "dir/moved"));
	where("/proc/self/fd/%d", fd);
	SAY(unlink("dir/moved"));
	where("/proc/self/fd/%d", fd);
	other = again("/proc/self/fd/%d", fd, O_RDONLY);
	SAY(read(other, text, 9));

	/* A file without a name gets one. */
	int nameless = open(".", O_TMPFILE | O_RDWR, 0644);
	SAY(write(nameless, "named late", 10));
	snprintf(link, sizeof link, "/proc/self/fd/%d", nameless);
	SAY(linkat(AT_FDCWD, link, AT_FDCWD, "named", AT_SYMLINK_FOLLOW));
	show("named");
	int dir = open("dir", O_RDONLY | O_DIRECTORY);
	where("/proc/self/fd/%d", dir);
	snprintf(link, sizeof link, "/proc/self/fd/%d/inside", dir);
	SAY(close(make(link, "by way of a directory")));
	show("dir/inside");
	int paths = open("dir/inside", O_PATH);
	where("/proc/self/fd/%d", paths);
	SAY(read(paths, text, 1));
	other = again("/proc/self/fd/%d", paths, O_RDONLY);
	SAY(read(other, text, 3));
	SAY(symlink("/proc/self/fd/1", "out") + access("out", W_OK));
	CHILD {
		where("/proc/self/fd/%d", dir);
		SAY(close(1));
		MUST(open("named", O_WRONLY | O_TRUNC) == 1);
		MUST(system("echo to a link > /dev/stdout; echo and fd >> /dev/fd/1") == 0);
	}
	show("named");
	return 0;
}
