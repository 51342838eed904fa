/* Open files outlive their names, and follow them. */
#include "check.h"

int main(int argc, char **argv)
{
	start(argc, argv);
	char text[16] = "";
	struct stat stat_;
	int fd = make("gone", "still here");
	CHECK(unlink(in_dir("gone")) == 0);
	FAILS(stat(in_dir("gone"), &stat_), ENOENT);
	CHECK(pread(fd, text, 10, 0) == 10 && memcmp(text, "still here", 10) == 0);
	CHECK(fstat(fd, &stat_) == 0 && stat_.st_nlink == 0 && stat_.st_size == 10);
	CHECK(write(fd, "!", 1) == 1 && ftruncate(fd, 5) == 0);
	int other = make("gone", "new");
	CHECK(fstat(fd, &stat_) == 0 && stat_.st_size == 5);
	/* A child and a second open through /proc reach the old one. */
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		CHECK(pread(fd, text, 16, 0) == 5 && memcmp(text, "still", 5) == 0);
		_exit(0);
	}
	reap(pid);
	CHECK(close(other) == 0);

	/* Replaced by a rename. */
	CHECK((other = open(in_dir("gone"), O_RDONLY)) >= 0);
	CHECK(close(make("other", "replacement")) == 0);
	CHECK(rename(in_dir("other"), in_dir("gone")) == 0);
	CHECK(pread(other, text, 16, 0) == 3 && memcmp(text, "new", 3) == 0);
	expect_text("gone", "replacement");
	CHECK(fstat(other, &stat_) == 0 && stat_.st_nlink == 0);

	/* Renamed while open. */
	int moved = make("from", "moved");
	CHECK(mkdir(in_dir("dir"), 0755) == 0 && rename(in_dir("from"), in_dir("dir/to")) == 0);
	CHECK(write(moved, "+", 1) == 1);
	expect_text("dir/to", "moved+");
	CHECK(close(fd) == 0 && close(other) == 0 && close(moved) == 0);

	/* tmpfile and O_TMPFILE have no name at all. */
	FILE *file = tmpfile();
	CHECK(file != NULL && fprintf(file, "x") == 1 && fclose(file) == 0);
	fd = open(dir_path, O_TMPFILE | O_RDWR, 0600);
	if (fd >= 0) {
		CHECK(write(fd, "anonymous", 9) == 9 && pread(fd, text, 16, 0) == 9);
		CHECK(close(fd) == 0);
	}
	return 0;
}
