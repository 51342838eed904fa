/*
 * A thread waits for a lock while others change who the process is and take the numbers where the
 * library keeps descriptors of its own: it gets the lock, and the numbers are the program's alone.
 */
#include "say.h"
#include <pthread.h>
#include <sys/file.h>
#include <sys/resource.h>

enum { NUMBER = 700, NUMBERS = 24 };

static int by_flock, locked, go[2];
static pid_t child;

static int lock(int fd)
{
	struct flock all = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	return by_flock ? flock(fd, LOCK_EX) : fcntl(fd, F_SETLKW, &all);
}

static void *waits(void *unused)
{
	int fd = open("locked", O_RDWR);
	locked = lock(fd);
	return unused;
}

/* Until the library has connected. */
static void use(void)
{
	struct stat st;
	for (int n = 0; n < 20; n++) {
		int fd = open("locked", O_RDWR);
		MUST(fd >= 0 && fstat(fd, &st) == 0);
		close(fd);
	}
}

/* A child has the lock when this returns; it gives it up when it is told to. */
static void hold(void)
{
	char byte;
	int held[2];
	MUST(pipe(go) == 0 && pipe(held) == 0);
	fflush(stdout);
	child = fork();
	MUST(child >= 0);
	if (child == 0) {
		MUST(lock(open("locked", O_RDWR)) == 0);
		MUST(write(held[1], "x", 1) == 1 && read(go[0], &byte, 1) == 1);
		_exit(0);
	}
	close(held[1]);
	MUST(read(held[0], &byte, 1) == 1);
}

static void become(void)
{
	for (int n = 0; n < 3; n++) {
		MUST(seteuid(geteuid()) == 0);
		use();
	}
}

/* The first number stays free: what the library opens next is there. */
static void take_numbers(void)
{
	int ends[2];
	char bytes[64];
	MUST(pipe2(ends, O_NONBLOCK) == 0);
	for (int n = 1; n < NUMBERS; n++)
		MUST(dup2(ends[1], NUMBER + n) == NUMBER + n);
	use();
	usleep(400000);
	SAY(read(ends[0], bytes, sizeof bytes));
	for (int n = 1; n < NUMBERS; n++)
		MUST(write(NUMBER + n, "x", 1) == 1 && close(NUMBER + n) == 0);
	SAY(read(ends[0], bytes, sizeof bytes));
}

static void round_of(void (*change)(void))
{
	pthread_t waiter;
	hold();
	MUST(pthread_create(&waiter, NULL, waits, NULL) == 0);
	usleep(200000);
	change();
	usleep(200000);
	MUST(write(go[1], "x", 1) == 1);
	reap(child);
	pthread_join(waiter, NULL);
	printf("the waiter's lock: %d\n", locked);
}

int main(void)
{
	struct rlimit limit;
	getrlimit(RLIMIT_NOFILE, &limit);
	MUST(limit.rlim_max >= 1024);
	limit.rlim_cur = 1024;
	setrlimit(RLIMIT_NOFILE, &limit);
	close(make("locked", "text"));
	for (by_flock = 0; by_flock < 2; by_flock++) {
		CHILD {
			alarm(30);
			use();
			round_of(become);
		}
		CHILD {
			alarm(30);
			use();
			round_of(take_numbers);
		}
	}
	return 0;
}
