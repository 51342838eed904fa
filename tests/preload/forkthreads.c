/* Forks while other threads are in the middle of calls. */
#include "check.h"
#include <pthread.h>

static volatile int stop;

static void *busy(void *number)
{
	char name[32], bytes[4096];
	memset(bytes, 'a' + (int)(long)number, sizeof bytes);
	snprintf(name, sizeof name, "busy-%ld", (long)number);
	int fd = open(in_dir(name), O_RDWR | O_CREAT, 0644);
	CHECK(fd >= 0);
	for (unsigned n = 0; !stop; n++) {
		CHECK(write(fd, bytes, sizeof bytes) == sizeof bytes);
		CHECK(pread(fd, bytes, sizeof bytes, 0) == sizeof bytes);
		CHECK(bytes[0] == 'a' + (int)(long)number);
		if (n % 16 == 15)
			CHECK(lseek(fd, 0, SEEK_SET) == 0);
		if (n % 8 == 0) {
			snprintf(name, sizeof name, "short-%ld", (long)number);
			CHECK(close(make(name, name)) == 0);
		}
	}
	CHECK(close(fd) == 0);
	return NULL;
}

int main(int argc, char **argv)
{
	start(argc, argv);
	pthread_t threads[3];
	for (long n = 0; n < 3; n++)
		CHECK(pthread_create(&threads[n], NULL, busy, (void *)n) == 0);
	int fd = make("parent", "start");
	for (int n = 0; n < 60; n++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			char name[32];
			snprintf(name, sizeof name, "child-%d", n);
			int mine = make(name, name);
			CHECK(lseek(fd, 0, SEEK_CUR) == 5 + n);
			CHECK(write(fd, "c", 1) == 1);
			CHECK(close(mine) == 0 && unlink(in_dir(name)) == 0);
			_exit(0);
		}
		reap(pid);
	}
	stop = 1;
	for (int n = 0; n < 3; n++)
		CHECK(pthread_join(threads[n], NULL) == 0);
	struct stat stat;
	CHECK(fstat(fd, &stat) == 0 && stat.st_size == 65);
	CHECK(close(fd) == 0);
	return 0;
}
