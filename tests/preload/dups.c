/* dup in all forms: shared offset, numbers, flags, and what a close of one copy leaves. */
#include "check.h"

int main(int argc, char **argv)
{
	start(argc, argv);
	char text[16] = "";
	int fd = make("dup", "0123456789");
	int two = dup(fd);
	CHECK(two > fd);
	CHECK(lseek(two, 3, SEEK_SET) == 3 && lseek(fd, 0, SEEK_CUR) == 3);
	CHECK(read(fd, text, 2) == 2 && lseek(two, 0, SEEK_CUR) == 5);
	CHECK(close(fd) == 0);
	CHECK(read(two, text, 2) == 2 && memcmp(text, "56", 2) == 0);

	int high = fcntl(two, F_DUPFD, 100);
	CHECK(high == 100);
	CHECK((fcntl(high, F_GETFD) & FD_CLOEXEC) == 0);
	int cloexec = fcntl(two, F_DUPFD_CLOEXEC, 100);
	CHECK(cloexec == 101 && (fcntl(cloexec, F_GETFD) & FD_CLOEXEC));
	CHECK(close(two) == 0);
	CHECK(read(cloexec, text, 1) == 1 && text[0] == '7');
	CHECK(lseek(high, 0, SEEK_CUR) == 8);

	/* Onto another file of the lane, which thereby is closed. */
	int other = make("other", "abc");
	CHECK(dup2(high, other) == other);
	CHECK(read(other, text, 1) == 1 && text[0] == '8');
	CHECK(dup2(other, other) == other);
	CHECK(dup3(high, 150, O_CLOEXEC) == 150);
	FAILS(dup3(high, high, 0), EINVAL);
	FAILS(dup2(99, 98), EBADF);
	FAILS(dup(99), EBADF);
	CHECK(lseek(150, 0, SEEK_SET) == 0 && lseek(high, 0, SEEK_CUR) == 0);
	expect_text("other", "abc");

	/* Onto something that is no file, and back. */
	int ends[2];
	CHECK(pipe(ends) == 0);
	CHECK(dup2(high, ends[0]) == ends[0]);
	CHECK(read(ends[0], text, 2) == 2 && memcmp(text, "01", 2) == 0);
	CHECK(pipe(ends) == 0);
	CHECK(dup2(ends[1], 150) == 150);
	CHECK(write(150, "p", 1) == 1 && read(ends[0], text, 1) == 1 && text[0] == 'p');
	CHECK(lseek(high, 0, SEEK_CUR) == 2);

	/* Onto the standard streams, which libc uses past everybody. */
	int out = make("stdout", ""), saved = dup(1);
	CHECK(saved >= 0 && dup2(out, 1) == 1);
	printf("hello %d\n", 1);
	CHECK(fflush(stdout) == 0);
	CHECK(write(1, "raw\n", 4) == 4);
	printf("again\n");
	CHECK(fflush(stdout) == 0);
	CHECK(write(out, "out\n", 4) == 4);
	CHECK(dup2(saved, 1) == 1 && close(saved) == 0 && close(out) == 0);
	expect_text("stdout", "hello 1\nraw\nagain\nout\n");

	/* The lowest number is given out. */
	CHECK(close(0) == 0);
	CHECK(open(in_dir("other"), O_RDONLY) == 0);
	CHECK(getchar() == 'a' && getchar() == 'b');
	return 0;
}
