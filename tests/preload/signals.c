/* Handlers that do file I/O while the interrupted code does. */
#include "check.h"
#include <sys/time.h>

static int log_fd, shared_fd;
static volatile sig_atomic_t rings;

static void ring(int signal)
{
	(void)signal;
	char byte = 'h';
	int saved = errno;
	if (write(log_fd, &byte, 1) != 1 || pread(shared_fd, &byte, 1, 0) != 1)
		_exit(3);
	/* The very file that the interrupted call may be using. */
	if (lseek(shared_fd, 0, SEEK_CUR) < 0)
		_exit(4);
	struct stat st;
	if (stat(in_dir("log"), &st) != 0)
		_exit(5);
	errno = saved;
	rings++;
}

int main(int argc, char **argv)
{
	start(argc, argv);
	char bytes[512];
	log_fd = make("log", "");
	shared_fd = make("shared", "");
	in_dir("warm");
	struct sigaction action = { .sa_handler = ring, .sa_flags = SA_RESTART };
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	CHECK(write(shared_fd, "x", 1) == 1);
	struct itimerval often = { { 0, 700 }, { 0, 700 } };
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	memset(bytes, 's', sizeof bytes);
	off_t size = 1;
	for (int n = 0; n < 20000 && (n < 3000 || rings < 100); n++) {
		CHECK(write(shared_fd, bytes, sizeof bytes) == sizeof bytes);
		size += sizeof bytes;
		CHECK(lseek(shared_fd, 0, SEEK_CUR) == size);
		if (n % 50 == 0)
			CHECK(close(open(in_dir("log"), O_RDONLY)) == 0);
	}
	often.it_value.tv_usec = often.it_interval.tv_usec = 0;
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	struct stat st;
	CHECK(fstat(shared_fd, &st) == 0 && st.st_size == size);
	CHECK(fstat(log_fd, &st) == 0 && st.st_size == rings && rings > 0);
	return 0;
}
