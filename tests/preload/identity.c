/* After setuid the service sees the new user; what is open stays open. */
#include "check.h"
#include <grp.h>

enum { NOBODY = 65534 };

int main(int argc, char **argv)
{
	start(argc, argv);
	if (getuid() != 0)
		return SKIP;
	char text[16] = "";
	CHECK(chmod(dir_path, 0777) == 0);
	int fd = make("secret", "for root only");
	CHECK(fchmod(fd, 0600) == 0 && lseek(fd, 4, SEEK_SET) == 4);
	if (setgroups(0, NULL) != 0 || setgid(NOBODY) != 0)
		return SKIP;
	struct stat st;
	CHECK(stat(in_dir("secret"), &st) == 0);
	CHECK(setuid(NOBODY) == 0);
	FAILS(open(in_dir("secret"), O_RDONLY), EACCES);
	FAILS(access(in_dir("secret"), R_OK), EACCES);
	FAILS(unlink("/"), EISDIR);
	CHECK(read(fd, text, 4) == 4 && memcmp(text, "root", 4) == 0);
	CHECK(lseek(fd, 0, SEEK_CUR) == 8);
	FAILS(fchown(fd, NOBODY, NOBODY), EPERM);
	int mine = make("mine", "nobody's");
	CHECK(fstat(mine, &st) == 0 && st.st_uid == NOBODY && st.st_gid == NOBODY);
	expect_fast(mine);
	CHECK(close(mine) == 0 && close(fd) == 0);
	return 0;
}
