/* Names: making, moving, linking and removing them, and extended attributes. */
#include "check.h"
#include <sys/xattr.h>

static void attributes(void)
{
	char value[64] = "";
	int fd = make("attrs", "x");
	if (setxattr(in_dir("attrs"), "user.one", "first", 5, 0) != 0) {
		CHECK(errno == EOPNOTSUPP);
		CHECK(close(fd) == 0);
		return;
	}
	CHECK(getxattr(in_dir("attrs"), "user.one", value, sizeof value) == 5);
	CHECK(memcmp(value, "first", 5) == 0);
	CHECK(getxattr(in_dir("attrs"), "user.one", NULL, 0) == 5);
	FAILS(getxattr(in_dir("attrs"), "user.one", value, 3), ERANGE);
	FAILS(getxattr(in_dir("attrs"), "user.two", value, 3), ENODATA);
	/* The value to where the name stands, or the path. */
	strcpy(value, "user.one");
	CHECK(getxattr(in_dir("attrs"), value, value, sizeof value) == 5);
	CHECK(memcmp(value, "firstone", 8) == 0);
	char path[PATH_MAX];
	strcpy(path, in_dir("attrs"));
	CHECK(lgetxattr(path, "user.one", path, sizeof path) == 5 && memcmp(path, "first", 5) == 0);
	strcpy(path, in_dir("attrs"));
	CHECK(listxattr(path, path + 1, sizeof path - 1) >= 9 && memmem(path, 64, "user.one", 9));
	FAILS(fsetxattr(fd, "user.one", "x", 1, XATTR_CREATE), EEXIST);
	FAILS(fsetxattr(fd, "user.two", "x", 1, XATTR_REPLACE), ENODATA);
	CHECK(fsetxattr(fd, "user.two", "", 0, 0) == 0);
	CHECK(fgetxattr(fd, "user.two", value, sizeof value) == 0);
	ssize_t size = listxattr(in_dir("attrs"), NULL, 0);
	CHECK(size >= 18 && flistxattr(fd, value, sizeof value) == size);
	CHECK(removexattr(in_dir("attrs"), "user.one") == 0);
	CHECK(fremovexattr(fd, "user.two") == 0);
	FAILS(lgetxattr(in_dir("attrs"), "user.one", value, 9), ENODATA);
	CHECK(close(fd) == 0);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	char text[PATH_MAX];
	struct stat st;
	CHECK(mkdir(in_dir("d"), 0755) == 0);
	FAILS(mkdir(in_dir("d"), 0755), EEXIST);
	FAILS(mkdir(in_dir("x/y"), 0755), ENOENT);
	CHECK(close(make("d/f", "f")) == 0);
	FAILS(rmdir(in_dir("d")), ENOTEMPTY);
	FAILS(rmdir(in_dir("d/f")), ENOTDIR);
	FAILS(unlink(in_dir("d")), EISDIR);
	FAILS(unlink(in_dir("none")), ENOENT);
	CHECK(link(in_dir("d/f"), in_dir("hard")) == 0 && stat(in_dir("hard"), &st) == 0);
	CHECK(st.st_nlink == 2);
	FAILS(link(in_dir("d"), in_dir("dirlink")), EPERM);
	FAILS(link(in_dir("none"), in_dir("other")), ENOENT);
	CHECK(symlink("d/f", in_dir("soft")) == 0);
	FAILS(symlink("d/f", in_dir("soft")), EEXIST);
	FAILS(symlink("", in_dir("empty")), ENOENT);
	CHECK(readlink(in_dir("soft"), text, sizeof text) == 3 && memcmp(text, "d/f", 3) == 0);
	CHECK(readlink(in_dir("soft"), text, 2) == 2);
	FAILS(readlink(in_dir("hard"), text, 10), EINVAL);
	/* To where the path stands. */
	strcpy(text, in_dir("soft"));
	CHECK(readlink(text, text, sizeof text) == 3 && memcmp(text, "d/f", 3) == 0);
	strcpy(text, in_dir("soft"));
	CHECK(readlinkat(AT_FDCWD, text, text + 1, 2) == 2 && memcmp(text, "/d/", 3) == 0);
	CHECK(realpath(in_dir("soft"), text) && strcmp(text, in_dir("d/f")) == 0);
	/* Linking a symbolic link links the link. */
	CHECK(link(in_dir("soft"), in_dir("soft2")) == 0);
	CHECK(lstat(in_dir("soft2"), &st) == 0 && S_ISLNK(st.st_mode));
	CHECK(linkat(AT_FDCWD, in_dir("soft"), AT_FDCWD, in_dir("hard2"), AT_SYMLINK_FOLLOW) == 0);
	CHECK(lstat(in_dir("hard2"), &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 3);

	CHECK(rename(in_dir("hard"), in_dir("hard2")) == 0 && access(in_dir("hard"), F_OK) == 0);
	CHECK(mkdir(in_dir("e"), 0755) == 0 && rename(in_dir("d"), in_dir("e/d")) == 0);
	FAILS(rename(in_dir("e"), in_dir("e/d/e")), EINVAL);
	FAILS(rename(in_dir("e"), in_dir("hard")), ENOTDIR);
	FAILS(rename(in_dir("hard"), in_dir("e")), EISDIR);
	FAILS(renameat2(AT_FDCWD, in_dir("hard"), AT_FDCWD, in_dir("soft"), RENAME_NOREPLACE),
	      EEXIST);
	CHECK(renameat2(AT_FDCWD, in_dir("hard"), AT_FDCWD, in_dir("soft"), RENAME_EXCHANGE) == 0);
	CHECK(lstat(in_dir("hard"), &st) == 0 && S_ISLNK(st.st_mode));
	CHECK(unlink(in_dir("e/d/f")) == 0 && rmdir(in_dir("e/d")) == 0 && rmdir(in_dir("e")) == 0);
	attributes();
	return 0;
}
