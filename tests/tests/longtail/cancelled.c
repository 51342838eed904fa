/* Threads cancelled in the midst of calls on lane files: nothing stays locked, nothing is lost.
 * With an argument: also one that waits for a lock, and ones that do nothing but read and write. */
#include "say.h"
#include <pthread.h>
#include <sys/file.h>

static int fd, ends[2], harsh;
static char big[1 << 20];

static void clean(void *held)
{
	*(int *)held = 0;
}

static void *waiter(void *held)
{
	struct flock lock = { .l_type = F_WRLCK };
	*(int *)held = 1;
	pthread_cleanup_push(clean, held);
	fcntl(fd, F_SETLKW, &lock);
	pthread_cleanup_pop(0);
	return NULL;
}

static void *writer(void *number)
{
	char name[16];
	snprintf(name, sizeof name, "w%ld", (long)number);
	int own = open(name, O_RDWR | O_CREAT, 0644);
	for (;;) {
		MUST(pwrite(own, big, 4096 << (long)number, 0) == 4096 << (long)number);
		MUST(pread(own, name, 1, 0) == 1);
		if (!harsh)
			pthread_testcancel();
	}
	return NULL;
}

static void *opener(void *unused)
{
	for (;;) {
		int own = open("o", O_RDWR | O_CREAT, 0644);
		if (own >= 0)
			close(own);
		rename("o", "p");
		unlink("p");
		if (!harsh)
			pthread_testcancel();
	}
	return unused;
}

static long join(pthread_t thread)
{
	void *result;
	MUST(pthread_join(thread, &result) == 0);
	return result == PTHREAD_CANCELED;
}

static void waiting(void)
{
	pthread_t thread;
	int held = 0;
	char byte;
	pid_t pid = fork();
	if (pid == 0) {
		struct flock lock = { .l_type = F_WRLCK };
		MUST(fcntl(fd, F_SETLKW, &lock) == 0 && write(ends[1], "l", 1) == 1);
		pause();
	}
	MUST(read(ends[0], &byte, 1) == 1);
	MUST(pthread_create(&thread, NULL, waiter, &held) == 0);
	while (!*(volatile int *)&held)
		usleep(1000);
	usleep(50000);
	SAY(pthread_cancel(thread));
	SAY(join(thread));
	SAY(held);
	kill(pid, SIGKILL);
	reap(pid);
	/* The request is gone with its thread. */
	CHILD {
		struct flock lock = { .l_type = F_WRLCK };
		SAY(fcntl(fd, F_SETLK, &lock));
	}
}

static void done(void *copy)
{
	SAY(pread((int)(long)copy, big, 4, 0));
	SAY(close((int)(long)copy));
}

static void *reader(void *unused)
{
	char byte;
	MUST(pwrite(fd, "read", 4, 0) == 4);
	pthread_cleanup_push(done, (void *)(long)dup(fd));
	MUST(read(ends[0], &byte, 1) == 1);
	pthread_cleanup_pop(1);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread, threads[4];
	(void)argv;
	alarm(50);
	harsh = argc > 1;
	fd = make("f", "0123456789");
	MUST(pipe(ends) == 0);
	if (harsh)
		waiting();
	MUST(pthread_create(&thread, NULL, reader, NULL) == 0);
	usleep(20000);
	MUST(pthread_cancel(thread) == 0);
	SAY(join(thread));
	for (int round = 0; round < 10; round++) {
		for (long n = 0; n < 4; n++)
			MUST(pthread_create(&threads[n], NULL, n == 3 ? opener : writer, (void *)n) == 0);
		usleep(5000 + 1000 * round);
		for (int n = 0; n < 4; n++)
			MUST(pthread_cancel(threads[n]) == 0);
		for (int n = 0; n < 4; n++)
			MUST(join(threads[n]));
	}
	struct stat st;
	SAY(pread(fd, big, 10, 0));
	SAY((stat("w2", &st), st.st_size));
	for (int n = 0; n < 100; n++) {
		int own = open("after", O_RDWR | O_CREAT, 0644);
		MUST(own >= 0 && pwrite(own, "fine", 4, n) == 4 && close(own) == 0);
	}
	SAY((stat("after", &st), st.st_size));
	return 0;
}
