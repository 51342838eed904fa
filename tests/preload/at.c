/* Relative paths: directory descriptors, the working directory, `.` and `..`, links out and in. */
#include "check.h"
#include <dirent.h>

static void cwd(void)
{
	char path[PATH_MAX];
	CHECK(chdir(dir_path) == 0);
	CHECK(mkdir("sub", 0755) == 0);
	CHECK(close(make("sub/file", "in sub")) == 0);
	int fd = open("sub/file", O_RDONLY);
	CHECK(fd >= 0);
	expect_fast(fd);
	CHECK(close(fd) == 0);
	CHECK(chdir("sub") == 0);
	CHECK(access("file", R_OK) == 0 && access("../sub/file", F_OK) == 0);
	CHECK(getcwd(path, sizeof path) && strcmp(path, in_dir("sub")) == 0);
	FAILS(access("sub", F_OK), ENOENT);
	CHECK((fd = open("new", O_CREAT | O_WRONLY, 0644)) >= 0 && close(fd) == 0);
	CHECK(access(in_dir("sub/new"), F_OK) == 0);
	CHECK(chdir("/") == 0);
	FAILS(access("file", F_OK), ENOENT);
	CHECK(access("tmp", F_OK) == 0);
	int dir = open(in_dir("sub"), O_RDONLY | O_DIRECTORY);
	CHECK(dir >= 0 && fchdir(dir) == 0);
	CHECK(unlink("new") == 0);
	FAILS(chdir("nowhere"), ENOENT);
	CHECK(access("file", F_OK) == 0);
	CHECK(close(dir) == 0);

	/* A child starts where its parent is. */
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		CHECK(access("file", F_OK) == 0);
		CHECK(chdir("..") == 0 && access("sub/file", F_OK) == 0);
		_exit(0);
	}
	reap(pid);
	CHECK(access("file", F_OK) == 0);
	CHECK(chdir(dir_path) == 0);
}

static void descriptors(void)
{
	char text[16] = "";
	struct stat stat;
	int dir = open(in_dir("sub"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(dir >= 0);
	int fd = openat(dir, "file", O_RDONLY);
	CHECK(fd >= 0 && read(fd, text, 16) == 6 && strcmp(text, "in sub") == 0);
	expect_fast(fd);
	CHECK(close(fd) == 0);
	CHECK(mkdirat(dir, "deep", 0700) == 0);
	CHECK(fstatat(dir, "deep", &stat, 0) == 0 && S_ISDIR(stat.st_mode));
	CHECK(renameat(dir, "file", dir, "deep/moved") == 0);
	CHECK(faccessat(dir, "deep/moved", R_OK, 0) == 0);
	CHECK(symlinkat("deep/moved", dir, "link") == 0);
	CHECK(readlinkat(dir, "link", text, sizeof text) == 10);
	CHECK(linkat(dir, "deep/moved", dir, "file", 0) == 0);
	CHECK(fstatat(dir, "link", &stat, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(stat.st_mode));
	CHECK(fstatat(dir, "link", &stat, 0) == 0 && stat.st_nlink == 2);
	CHECK(fstatat(dir, "", &stat, AT_EMPTY_PATH) == 0 && S_ISDIR(stat.st_mode));
	FAILS(fstatat(dir, "", &stat, 0), ENOENT);
	CHECK(fchmodat(dir, "link", 0600, 0) == 0);
	CHECK(fchownat(dir, "link", -1, -1, AT_SYMLINK_NOFOLLOW) == 0);
	CHECK(unlinkat(dir, "link", 0) == 0 && unlinkat(dir, "deep/moved", 0) == 0);
	FAILS(unlinkat(dir, "deep", 0), EISDIR);
	CHECK(unlinkat(dir, "deep", AT_REMOVEDIR) == 0);
	FAILS(openat(9999, "file", O_RDONLY), EBADF);

	/* An O_PATH descriptor, and one that is no directory. */
	int path = open(in_dir("sub"), O_PATH);
	CHECK(path >= 0 && (fd = openat(path, "file", O_RDONLY)) >= 0);
	FAILS(openat(fd, "x", O_RDONLY), ENOTDIR);
	CHECK(close(fd) == 0 && close(path) == 0);

	/* The directory moves; its descriptor does not care. */
	CHECK(rename(in_dir("sub"), in_dir("elsewhere")) == 0);
	CHECK(faccessat(dir, "file", F_OK, 0) == 0);
	CHECK(rename(in_dir("elsewhere"), in_dir("sub")) == 0);
	CHECK(close(dir) == 0);
}

static void streams(void)
{
	int seen = 0;
	DIR *dir = opendir(in_dir("sub"));
	CHECK(dir != NULL);
	for (struct dirent *entry; (entry = readdir(dir));)
		seen += strcmp(entry->d_name, "file") == 0;
	CHECK(seen == 1);
	struct stat stat;
	CHECK(fstatat(dirfd(dir), "file", &stat, 0) == 0 && S_ISREG(stat.st_mode));
	CHECK(closedir(dir) == 0);
	int fd = make("after", "x");
	CHECK(fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode) && close(fd) == 0);
	CHECK((fd = open(in_dir("sub"), O_RDONLY)) >= 0 && (dir = fdopendir(fd)) != NULL);
	CHECK(readdir(dir) != NULL && closedir(dir) == 0);
}

static void detours(void)
{
	char path[2 * PATH_MAX], text[16] = "";
	/* Out of the directory and back in, by `..`. */
	snprintf(path, sizeof path, "%s/../../../../../..%s/sub/../sub/./file", dir_path, dir_path);
	CHECK(access(path, F_OK) == 0);
	snprintf(path, sizeof path, "/..%s//sub///file", dir_path);
	CHECK(access(path, F_OK) == 0);
	/* A link out, and a link back in. */
	CHECK(symlink("/etc/passwd", in_dir("out")) == 0);
	int fd = open(in_dir("out"), O_RDONLY);
	CHECK(fd >= 0 && read(fd, text, 4) == 4 && memcmp(text, "root", 4) == 0);
	CHECK(close(fd) == 0);
	CHECK(symlink(in_dir("sub/file"), in_dir("in")) == 0);
	CHECK((fd = open(in_dir("in"), O_RDONLY)) >= 0 && close(fd) == 0);
	CHECK(symlink("loop", in_dir("loop")) == 0);
	FAILS(open(in_dir("loop"), O_RDONLY), ELOOP);
	FAILS(open(in_dir("in"), O_RDONLY | O_NOFOLLOW), ELOOP);
	FAILS(access(in_dir("sub/file/"), F_OK), ENOTDIR);
	CHECK(access(in_dir("sub/"), F_OK) == 0);
	memset(path, 'x', 300);
	path[300] = 0;
	FAILS(access(in_dir(path), F_OK), ENAMETOOLONG);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	cwd();
	descriptors();
	streams();
	detours();
	return 0;
}
