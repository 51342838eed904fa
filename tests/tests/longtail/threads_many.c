/*
 * More threads than the library has mailboxes for: what a late one closes, locks, gives up and
 * leaves to a child counts as what any other does.
 */
#include "threads.h"
#include <sys/file.h>
#include <sys/statvfs.h>

enum { BIG = 32 << 20 };

static pthread_barrier_t here, over;
static int file, go[2];
static pid_t child;

/* Asks what only the service knows. */
static void *stay(void *unused)
{
	struct statvfs fs;
	int fd = open("touched", O_RDWR);
	MUST(fd >= 0);
	for (int n = 0; n < 20; n++) {
		struct flock range = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
		MUST(fcntl(fd, F_GETLK, &range) == 0 && statvfs("touched", &fs) == 0);
	}
	close(fd);
	pthread_barrier_wait(&here);
	pthread_barrier_wait(&over);
	return unused;
}

static int set(int fd, int command, int type)
{
	struct flock range = { .l_type = type, .l_whence = SEEK_END, .l_start = -10, .l_len = 5 };
	return fcntl(fd, command, &range);
}

static void *forks(void *unused)
{
	char byte;
	fflush(stdout);
	child = fork();
	MUST(child >= 0);
	if (child == 0) {
		MUST(read(go[0], &byte, 1) == 1);
		SAY(write(file, "child\n", 6));
		_exit(0);
	}
	return unused;
}

static void a_child_of_a_late_thread(void)
{
	MUST(pipe(go) == 0);
	file = make("shared", "parent\n");
	late(forks);
	close(file);
	file = make("other", "mine\n");
	MUST(write(go[1], "x", 1) == 1);
	reap(child);
	close(file);
	show("shared");
	show("other");
}

static void *closes(void *unused)
{
	SAY(close(file));
	return unused;
}

static long room(void)
{
	struct statvfs fs;
	MUST(statvfs(".", &fs) == 0);
	return (long)(fs.f_bfree * fs.f_frsize);
}

static void room_of_what_a_late_thread_closes(void)
{
	static char part[1 << 20];
	file = open("big", O_RDWR | O_CREAT, 0644);
	MUST(file >= 0);
	memset(part, 7, sizeof part);
	for (size_t n = 0; n < BIG / sizeof part; n++)
		MUST(write(file, part, sizeof part) == sizeof part);
	MUST(fsync(file) == 0 && unlink("big") == 0);
	long with = room(), back = 0;
	late(closes);
	for (int n = 0; n < 50 && back < BIG / 2; n++) {
		usleep(100000);
		back = room() - with;
	}
	printf("%s\n", back < BIG / 2 ? "its room never came back" : "its room came back");
}

static void a_lock_of_a_file_that_a_late_thread_closes(void)
{
	file = make("flocked", "text");
	MUST(flock(file, LOCK_EX) == 0);
	late(closes);
	CHILD SAY(flock(open("flocked", O_RDWR), LOCK_EX | LOCK_NB));
}

static void probe(void)
{
	CHILD SAY(set(open("locked", O_RDWR), F_SETLK, F_WRLCK));
}

static void *locks(void *unused)
{
	SAY(set(file, F_SETLK, F_WRLCK));
	return unused;
}

static void *unlocks(void *unused)
{
	SAY(set(file, F_SETLK, F_UNLCK));
	return unused;
}

static void *closes_another(void *unused)
{
	SAY(close(open("locked", O_RDONLY)));
	return unused;
}

static void locks_of_late_threads(void)
{
	file = make("locked", "0123456789");
	SAY(set(file, F_SETLK, F_WRLCK));
	late(locks);
	probe();
	late(unlocks);
	probe();
	late(locks);
	probe();
	late(closes_another);
	probe();
	close(file);
}

static void *waits(void *how)
{
	int fd = open("locked", O_RDWR);
	int done = how == NULL ? set(fd, F_SETLKW, F_WRLCK) : flock(fd, LOCK_EX);
	printf("waited: %d %s\n", done, done ? strerror(errno) : "");
	fflush(stdout);
	close(fd);
	return NULL;
}

static void *waits_for_flock(void *unused)
{
	(void)unused;
	return waits("");
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
		int fd = open("locked", O_RDWR);
		MUST(set(fd, F_SETLK, F_WRLCK) == 0 && flock(fd, LOCK_EX) == 0);
		MUST(write(held[1], "x", 1) == 1 && read(go[0], &byte, 1) == 1);
		_exit(0);
	}
	close(held[1]);
	MUST(read(held[0], &byte, 1) == 1);
}

static void came(int signal)
{
	(void)signal;
}

static void waits_of_late_threads(void)
{
	void *(*ways[])(void *) = { waits, waits_for_flock };
	struct sigaction action = { .sa_handler = came };
	sigaction(SIGUSR1, &action, NULL);
	for (int way = 0; way < 2; way++) {
		hold();
		pthread_t waiter = start(ways[way]);
		usleep(200000);
		pthread_kill(waiter, SIGUSR1);
		pthread_join(waiter, NULL);
		waiter = start(ways[way]);
		usleep(200000);
		MUST(write(go[1], "x", 1) == 1);
		pthread_join(waiter, NULL);
		reap(child);
	}
}

int main(void)
{
	pthread_t threads[THREADS];
	struct stat st;
	close(make("touched", "x"));
	for (int n = 0; n < 30; n++)
		MUST(stat("touched", &st) == 0);
	pthread_barrier_init(&here, NULL, THREADS + 1);
	pthread_barrier_init(&over, NULL, THREADS + 1);
	for (int n = 0; n < THREADS; n++)
		threads[n] = start(stay);
	pthread_barrier_wait(&here);
	a_child_of_a_late_thread();
	room_of_what_a_late_thread_closes();
	a_lock_of_a_file_that_a_late_thread_closes();
	locks_of_late_threads();
	waits_of_late_threads();
	pthread_barrier_wait(&over);
	for (int n = 0; n < THREADS; n++)
		pthread_join(threads[n], NULL);
	return 0;
}
