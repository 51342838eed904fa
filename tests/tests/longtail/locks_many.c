/* fcntl locks of a process that takes many, and what others see of them. */
#include "say.h"
#include <pthread.h>

static int lock(int fd, int command, int type, off_t start, off_t len)
{
	struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len };
	int rc = fcntl(fd, command, &lock);
	if (rc == 0 && (command == F_GETLK || command == F_OFD_GETLK)) {
		const char *who = lock.l_pid == getppid() ? "the parent" : "another";
		printf("held: type %d %ld+%ld by %s\n", lock.l_type, (long)lock.l_start, (long)lock.l_len,
		       lock.l_type == F_UNLCK ? "nobody" : lock.l_pid == -1 ? "an open file" : who);
	}
	return rc;
}

/* As a database takes and gives up its locks. */
static void many(int fd)
{
	for (int turn = 0; turn < 40; turn++) {
		MUST(lock(fd, F_SETLK, F_RDLCK, 1000, 1) == 0);
		MUST(lock(fd, F_SETLK, F_RDLCK, 1002, 510) == 0);
		MUST(lock(fd, F_SETLK, F_UNLCK, 1000, 1) == 0);
		MUST(lock(fd, F_SETLK, F_WRLCK, 1001, 1) == 0);
		MUST(lock(fd, F_SETLK, F_WRLCK, 1000, 1) == 0);
		MUST(lock(fd, F_SETLK, F_WRLCK, 1002, 510) == 0);
		MUST(lock(fd, F_SETLK, F_UNLCK, 0, 0) == 0);
	}
}

static void *others(void *fd)
{
	for (int turn = 0; turn < 2000; turn++)
		MUST(lock(*(int *)fd, F_SETLKW, turn & 1 ? F_UNLCK : F_WRLCK, 5000, 10) == 0);
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		int fd = atoi(argv[1]);
		CHILD {
			SAY(lock(fd, F_GETLK, F_WRLCK, 0, 0));
		}
		many(fd);
		CHILD {
			SAY(lock(fd, F_SETLK, F_WRLCK, 0, 0));
		}
		return 0;
	}
	int fd = make("f", "0123456789");
	many(fd);
	CHILD {
		SAY(lock(fd, F_GETLK, F_WRLCK, 0, 0));
		SAY(lock(fd, F_SETLK, F_WRLCK, 0, 0));
	}
	many(fd);
	SAY(lock(fd, F_SETLK, F_RDLCK, 1002, 510));
	SAY(lock(fd, F_SETLK, F_WRLCK, 1001, 1));
	SAY(lock(fd, F_GETLK, F_WRLCK, 0, 0));
	CHILD {
		SAY(lock(fd, F_GETLK, F_WRLCK, 0, 0));
		SAY(lock(fd, F_GETLK, F_RDLCK, 1002, 0));
		SAY(lock(fd, F_SETLK, F_RDLCK, 1100, 1));
		SAY(lock(fd, F_SETLK, F_WRLCK, 1100, 1));
		SAY(lock(fd, F_SETLK, F_WRLCK, 1512, 0));
	}
	/* The child's are gone with it. */
	SAY(lock(fd, F_SETLK, F_WRLCK, 1512, 10));
	many(fd);
	/* More ranges than a few. */
	for (int n = 0; n < 12; n++)
		MUST(lock(fd, F_SETLK, n & 1 ? F_WRLCK : F_RDLCK, 10 * n, 5) == 0);
	CHILD {
		for (int n = 0; n < 12; n++)
			SAY(lock(fd, F_SETLK, F_RDLCK, 10 * n + 4, 1));
		SAY(lock(fd, F_GETLK, F_WRLCK, 11, 0));
	}
	MUST(lock(fd, F_SETLK, F_UNLCK, 0, 0) == 0);
	many(fd);
	/* Those of open files see them, also the process's own. */
	SAY(lock(fd, F_SETLK, F_WRLCK, 20, 10));
	int other = open("f", O_RDWR);
	SAY(lock(other, F_OFD_SETLK, F_WRLCK, 25, 1));
	SAY(lock(other, F_OFD_SETLK, F_WRLCK, 30, 1));
	SAY(lock(fd, F_SETLK, F_WRLCK, 20, 20));
	/* Closing any descriptor gives them up. */
	SAY(close(other));
	many(fd);
	SAY(lock(fd, F_SETLK, F_WRLCK, 20, 10));
	SAY(close(open("f", O_RDONLY)));
	CHILD {
		SAY(lock(fd, F_SETLK, F_WRLCK, 20, 10));
	}
	/* What a descriptor is not open for. */
	int reader = open("f", O_RDONLY), writer = open("f", O_WRONLY);
	many(fd);
	SAY(lock(reader, F_SETLK, F_WRLCK, 0, 1));
	SAY(lock(writer, F_SETLK, F_RDLCK, 0, 1));
	for (int turn = 0; turn < 10; turn++)
		MUST(lock(reader, F_SETLK, turn & 1 ? F_UNLCK : F_RDLCK, 0, 1) == 0);
	SAY(lock(writer, F_SETLK, F_WRLCK, 0, 1));
	/* A waiting child gets it when it is given up. */
	many(fd);
	SAY(lock(fd, F_SETLK, F_WRLCK, 0, 10));
	int ends[2];
	MUST(pipe(ends) == 0);
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		MUST(write(ends[1], "r", 1) == 1);
		MUST(lock(fd, F_SETLKW, F_WRLCK, 0, 1) == 0);
		_exit(3);
	}
	char byte;
	MUST(read(ends[0], &byte, 1) == 1);
	usleep(30000);
	SAY(lock(fd, F_SETLK, F_UNLCK, 0, 1));
	reap(pid);
	/* Threads are of one process; a child takes turns with them. */
	pthread_t threads[2];
	for (int n = 0; n < 2; n++)
		MUST(pthread_create(&threads[n], NULL, others, &fd) == 0);
	CHILD {
		for (int turn = 0; turn < 200; turn++)
			MUST(lock(fd, F_SETLKW, turn & 1 ? F_UNLCK : F_WRLCK, 5005, 1) == 0);
	}
	for (int n = 0; n < 2; n++)
		MUST(pthread_join(threads[n], NULL) == 0);
	CHILD {
		SAY(lock(fd, F_SETLK, F_WRLCK, 5000, 10));
	}
	/* A killed process has none. */
	pid = fork();
	if (pid == 0) {
		many(fd);
		MUST(lock(fd, F_SETLK, F_WRLCK, 40, 10) == 0);
		raise(SIGKILL);
	}
	reap(pid);
	SAY(lock(fd, F_SETLK, F_WRLCK, 40, 10));
	many(fd);
	SAY(lock(fd, F_SETLK, F_WRLCK, 60, 10));
	SAY(lock(fd, F_SETLK, F_RDLCK, 65, 10));
	char number[16];
	snprintf(number, sizeof number, "%d", fd);
	execl(argv[0], argv[0], number, NULL);
	return 9;
}
