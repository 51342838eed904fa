/* RLIMIT_FSIZE: a write up to it, a signal and EFBIG past it. */
#include "check.h"

static volatile sig_atomic_t signals;

static void count(int signal)
{
	(void)signal;
	signals++;
}

int main(int argc, char **argv)
{
	start(argc, argv);
	char bytes[4096] = "";
	signal(SIGXFSZ, count);
	struct rlimit limit = { 5000, RLIM_INFINITY };
	CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	int fd = make("limited", "");
	CHECK(write(fd, bytes, 4096) == 4096);
	CHECK(write(fd, bytes, 4096) == 5000 - 4096);
	CHECK(signals == 0);
	FAILS(write(fd, bytes, 1), EFBIG);
	CHECK(signals == 1);
	FAILS(pwrite(fd, bytes, 10, 6000), EFBIG);
	CHECK(pwrite(fd, bytes, 10, 4995) == 5);
	FAILS(ftruncate(fd, 5001), EFBIG);
	FAILS(truncate(in_dir("limited"), 6000), EFBIG);
	CHECK(ftruncate(fd, 5000) == 0);
	CHECK(signals == 4);
	int log = open(in_dir("limited"), O_WRONLY | O_APPEND);
	CHECK(log >= 0);
	FAILS(write(log, bytes, 1), EFBIG);
	limit.rlim_cur = RLIM_INFINITY;
	CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	CHECK(write(log, bytes, 1) == 1 && write(fd, bytes, 1) == 1);
	CHECK(close(fd) == 0 && close(log) == 0);
	return 0;
}
