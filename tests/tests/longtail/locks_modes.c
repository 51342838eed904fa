/*
 * One process has a file open several times, to read and to write, and takes locks by each: those
 * that it took by one stay whatever it does by another.
 */
#include "say.h"

enum { LEN = 10, FIRST = 100, MANY = 12 };

static struct flock range(int type, int number)
{
	return (struct flock){ .l_type = type, .l_start = FIRST * (number + 1), .l_len = LEN };
}

/* What another process finds where this one took locks. */
static void look(int fd, int count)
{
	CHILD {
		for (int i = 0; i < count; i++) {
			struct flock found = range(F_WRLCK, i);
			MUST(fcntl(fd, F_GETLK, &found) == 0);
			printf("%d: type %d at %ld, %ld bytes, %s\n", i, found.l_type,
			       (long)found.l_start, (long)found.l_len,
			       found.l_pid == getppid() ? "the parent's" : "another's");
		}
	}
}

int main(void)
{
	int modes[] = { O_RDWR, O_RDONLY, O_WRONLY };
	for (int order = 0; order < 3; order++) {
		int fds[MANY];
		fds[0] = make("file", "0123456789");
		for (int i = 0; i < MANY; i++) {
			int mode = modes[(i + order) % 3];
			if (i > 0)
				fds[i] = open("file", mode);
			int type = i > 0 && mode == O_RDONLY ? F_RDLCK : F_WRLCK;
			struct flock lock = range(type, i);
			SAY(fcntl(fds[i], F_SETLK, &lock));
			look(fds[0], i + 1);
		}
		struct flock first = range(F_UNLCK, 0);
		SAY(fcntl(fds[MANY - 1], F_SETLK, &first));
		look(fds[0], MANY);
		SAY(close(fds[1]));
		look(fds[0], MANY);
		for (int i = 0; i < MANY; i++)
			if (i != 1)
				MUST(close(fds[i]) == 0);
		SAY(unlink("file"));
	}
	return 0;
}
