/* open, read, write, positions, sizes and the errors of wrong modes. */
#include "check.h"

static void modes(void)
{
	char byte = 0;
	int fd = make("modes", "0123456789");
	expect_fast(fd);
	CHECK(fcntl(fd, F_GETFL) == (O_RDWR | 0100000));
	CHECK(close(fd) == 0);
	CHECK((fd = open(in_dir("modes"), O_RDONLY)) >= 0);
	FAILS(write(fd, "x", 1), EBADF);
	FAILS(ftruncate(fd, 3), EINVAL);
	CHECK((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY);
	CHECK(close(fd) == 0);
	FAILS(read(fd, &byte, 1), EBADF);
	FAILS(close(fd), EBADF);
	CHECK((fd = open(in_dir("modes"), O_WRONLY)) >= 0);
	FAILS(read(fd, &byte, 1), EBADF);
	CHECK(close(fd) == 0);
	FAILS(open(in_dir("modes"), O_RDWR | O_CREAT | O_EXCL, 0600), EEXIST);
	FAILS(open(in_dir("absent"), O_RDWR), ENOENT);
	FAILS(open(in_dir("modes/below"), O_RDWR), ENOTDIR);
	FAILS(open(in_dir("."), O_RDWR), EISDIR);
	FAILS(open("", O_RDONLY), ENOENT);
	CHECK((fd = open(in_dir("."), O_RDONLY)) >= 0);
	FAILS(read(fd, &byte, 1), EISDIR);
	CHECK(close(fd) == 0);
}

static void positions(void)
{
	char text[16] = "";
	int fd = make("positions", "0123456789");
	CHECK(lseek(fd, 0, SEEK_CUR) == 10);
	CHECK(lseek(fd, 4, SEEK_SET) == 4);
	CHECK(read(fd, text, 3) == 3 && memcmp(text, "456", 3) == 0);
	CHECK(lseek(fd, -1, SEEK_CUR) == 6);
	CHECK(lseek(fd, -2, SEEK_END) == 8);
	CHECK(read(fd, text, 16) == 2 && memcmp(text, "89", 2) == 0);
	CHECK(read(fd, text, 16) == 0);
	FAILS(lseek(fd, -1, SEEK_SET), EINVAL);
	FAILS(lseek(fd, -11, SEEK_CUR), EINVAL);
	FAILS(lseek(fd, 0, 99), EINVAL);
	CHECK(pread(fd, text, 2, 1) == 2 && memcmp(text, "12", 2) == 0);
	CHECK(pwrite(fd, "AB", 2, 3) == 2);
	CHECK(lseek(fd, 0, SEEK_CUR) == 10);
	FAILS(pread(fd, text, 2, -1), EINVAL);
	CHECK(lseek(fd, 20, SEEK_SET) == 20);
	CHECK(write(fd, "Z", 1) == 1);
	struct stat stat;
	CHECK(fstat(fd, &stat) == 0 && stat.st_size == 21);
	CHECK(pread(fd, text, 12, 10) == 11 && text[0] == 0 && text[10] == 'Z');
	CHECK(ftruncate(fd, 5) == 0);
	CHECK(lseek(fd, 0, SEEK_CUR) == 21);
	CHECK(lseek(fd, 0, SEEK_END) == 5);
	CHECK(read(fd, text, 0) == 0);
	CHECK(close(fd) == 0);
	expect_text("positions", "012AB");
	CHECK(truncate(in_dir("positions"), 3) == 0);
	expect_text("positions", "012");
}

static void appending(void)
{
	int fd = make("append", "one"), other;
	CHECK((other = open(in_dir("append"), O_WRONLY | O_APPEND)) >= 0);
	CHECK(fcntl(other, F_GETFL) & O_APPEND);
	CHECK(write(other, "two", 3) == 3);
	CHECK(lseek(other, 0, SEEK_CUR) == 6);
	CHECK(write(fd, "XYZ", 3) == 3);
	CHECK(write(other, "end", 3) == 3);
	CHECK(fcntl(other, F_SETFL, 0) == 0);
	CHECK((fcntl(other, F_GETFL) & O_APPEND) == 0);
	CHECK(lseek(other, 0, SEEK_SET) == 0);
	CHECK(write(other, "O", 1) == 1);
	CHECK(fcntl(other, F_SETFL, O_APPEND) == 0);
	CHECK(write(other, "!", 1) == 1);
	CHECK(close(other) == 0 && close(fd) == 0);
	expect_text("append", "OneXYZend!");
}

static void holes(void)
{
	struct stat stat;
	int fd = make("holes", "");
	CHECK(pwrite(fd, "x", 1, 1 << 20) == 1);
	CHECK(fstat(fd, &stat) == 0 && stat.st_size == (1 << 20) + 1);
	CHECK(lseek(fd, 0, SEEK_DATA) == 1 << 20);
	CHECK(lseek(fd, 0, SEEK_HOLE) == 0);
	CHECK(lseek(fd, 1 << 20, SEEK_HOLE) == (1 << 20) + 1);
	FAILS(lseek(fd, 2 << 20, SEEK_DATA), ENXIO);
	CHECK(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 2 << 20) == 0);
	CHECK(fstat(fd, &stat) == 0 && stat.st_size == (1 << 20) + 1);
	CHECK(posix_fallocate(fd, 0, 3 << 20) == 0);
	CHECK(fstat(fd, &stat) == 0 && stat.st_size == 3 << 20);
	CHECK(posix_fallocate(fd, -1, 1) == EINVAL);
	CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1 << 20, 4096) == 0);
	char byte = 1;
	CHECK(pread(fd, &byte, 1, 1 << 20) == 1 && byte == 0);
	CHECK(fsync(fd) == 0 && fdatasync(fd) == 0 && syncfs(fd) == 0);
	CHECK(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
	CHECK(close(fd) == 0);
}

static void reuse(void)
{
	/* A closed slot serves another file, at its start. */
	for (int n = 0; n < 300; n++) {
		char name[32], text[32], seen[32] = "";
		snprintf(name, sizeof name, "reuse-%d", n % 7);
		snprintf(text, sizeof text, "text %d", n);
		int fd = make(name, text);
		CHECK(lseek(fd, 0, SEEK_SET) == 0);
		CHECK(read(fd, seen, sizeof seen) == (ssize_t)strlen(text));
		CHECK(strcmp(seen, text) == 0);
		CHECK(close(fd) == 0);
	}
}

static void many(void)
{
	int fds[200];
	for (int n = 0; n < 200; n++) {
		char name[32];
		snprintf(name, sizeof name, "many-%d", n);
		fds[n] = make(name, name);
	}
	for (int n = 0; n < 200; n++) {
		char name[32], text[32] = "";
		snprintf(name, sizeof name, "many-%d", n);
		CHECK(pread(fds[n], text, sizeof text, 0) == (ssize_t)strlen(name));
		CHECK(strcmp(text, name) == 0);
		CHECK(close(fds[n]) == 0);
	}
}

int main(int argc, char **argv)
{
	start(argc, argv);
	modes();
	positions();
	appending();
	holes();
	reuse();
	many();
	return 0;
}
