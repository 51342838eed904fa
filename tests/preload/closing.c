/* Programs that close everything, and go on. */
#include "check.h"

static void go_on(const char *name)
{
	int fd = make(name, "fine");
	CHECK(fd >= 3);
	CHECK(close(fd) == 0);
	expect_text(name, "fine");
}

int main(int argc, char **argv)
{
	start(argc, argv);
	int fds[20];
	char text[8];
	for (int n = 0; n < 20; n++)
		fds[n] = make("many", "0123456789");
	CHECK(close_range(fds[5], fds[9], 0) == 0);
	FAILS(read(fds[5], text, 1), EBADF);
	CHECK(pread(fds[4], text, 1, 0) == 1 && pread(fds[10], text, 1, 0) == 1);
	FAILS(close_range(9, 8, 0), EINVAL);
	CHECK(close_range(fds[10], fds[12], CLOSE_RANGE_CLOEXEC) == 0);
	CHECK(fcntl(fds[10], F_GETFD) & FD_CLOEXEC);
	go_on("one");

	CHECK(close_range(3, ~0U, 0) == 0);
	for (int n = 0; n < 20; n++)
		FAILS(lseek(fds[n], 0, SEEK_CUR), EBADF);
	go_on("two");

	CHECK(close(make("x", "x")) == 0);
	closefrom(3);
	go_on("three");

	long max = sysconf(_SC_OPEN_MAX);
	for (int fd = 3; fd < max && fd < 70000; fd++)
		close(fd);
	go_on("four");

	/* Onto every number that is in use, whoever uses it. */
	int held = make("held", "held text"), other = make("other", "0123456789");
	CHECK(lseek(held, 5, SEEK_SET) == 5);
	for (int fd = 100; fd < max && fd < 70000; fd++) {
		if (fcntl(fd, F_GETFD) == -1)
			continue;
		CHECK(dup2(other, fd) == fd);
		CHECK(pread(fd, text, 1, 7) == 1 && text[0] == '7');
	}
	CHECK(read(held, text, 4) == 4 && memcmp(text, "text", 4) == 0);
	CHECK(write(held, "!", 1) == 1 && close(held) == 0);
	expect_text("held", "held text!");
	CHECK(pread(other, text, 1, 7) == 1 && text[0] == '7');
	closefrom(3);
	go_on("four and a half");

	/* Past every hook. */
	syscall(SYS_close_range, 3, ~0U, 0);
	go_on("five");
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		closefrom(3);
		go_on("six");
		_exit(0);
	}
	reap(pid);
	go_on("seven");
	return 0;
}
