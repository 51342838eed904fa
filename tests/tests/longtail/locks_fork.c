/* fcntl, OFD and flock locks across fork, exec and close. */
#include "say.h"
#include <sys/file.h>

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

int main(int argc, char **argv)
{
	int fd = argc > 1 ? atoi(argv[1]) : make("f", "0123456789");
	if (argc > 1) {
		/* After exec: the same process, the same locks. */
		SAY(lock(fd, F_SETLK, F_WRLCK, 0, 10));
		SAY(flock(fd, LOCK_EX | LOCK_NB));
		CHILD {
			SAY(lock(fd, F_GETLK, F_WRLCK, 0, 0));
		}
		return 0;
	}
	SAY(lock(fd, F_SETLK, F_WRLCK, 2, 4));
	CHILD {
		/* Not inherited; and the child's closing changes nothing for the parent. */
		SAY(lock(fd, F_SETLK, F_WRLCK, 0, 10));
		SAY(lock(fd, F_GETLK, F_RDLCK, 0, 10));
		SAY(lock(fd, F_SETLK, F_WRLCK, 8, 2));
		SAY(close(fd));
		fd = open("f", O_RDWR);
		SAY(lock(fd, F_SETLK, F_RDLCK, 3, 1));
	}
	CHILD {
		SAY(lock(fd, F_SETLK, F_WRLCK, 8, 2));
		SAY(lock(fd, F_SETLK, F_WRLCK, 5, 1));
		/* A grandchild sees the child's. */
		CHILD {
			SAY(lock(fd, F_GETLK, F_WRLCK, 7, 0));
		}
	}
	SAY(lock(fd, F_SETLK, F_WRLCK, 0, 0));
	SAY(lock(fd, F_SETLK, F_UNLCK, 3, 2));
	CHILD {
		SAY(lock(fd, F_SETLK, F_WRLCK, 3, 2));
		SAY(lock(fd, F_GETLK, F_WRLCK, 0, 0));
		SAY(lock(fd, F_GETLK, F_WRLCK, 4, 0));
		SAY(lockf(fd, F_TEST, 1));
	}
	/* Closing any descriptor of the file gives all up. */
	SAY(close(open("f", O_RDONLY)));
	CHILD {
		SAY(lock(fd, F_SETLK, F_WRLCK, 0, 0));
	}
	/* Those of open files are inherited. */
	SAY(lock(fd, F_OFD_SETLK, F_WRLCK, 0, 5));
	CHILD {
		int other = open("f", O_RDWR);
		SAY(lock(fd, F_OFD_SETLK, F_WRLCK, 0, 6));
		SAY(lock(other, F_OFD_SETLK, F_WRLCK, 0, 1));
		SAY(lock(other, F_OFD_GETLK, F_WRLCK, 0, 0));
		SAY(lock(other, F_SETLK, F_WRLCK, 0, 1));
		SAY(lock(fd, F_OFD_SETLK, F_UNLCK, 0, 0));
	}
	int other = open("f", O_RDWR);
	SAY(lock(other, F_OFD_SETLK, F_WRLCK, 0, 1));
	SAY(close(other));
	SAY(flock(fd, LOCK_EX));
	CHILD {
		other = open("f", O_RDWR);
		SAY(flock(other, LOCK_SH | LOCK_NB));
		SAY(flock(fd, LOCK_UN));
		SAY(flock(other, LOCK_SH | LOCK_NB));
		SAY(close(other));
	}
	SAY(flock(fd, LOCK_EX | LOCK_NB));
	SAY(lock(fd, F_SETLK, F_WRLCK, 0, 10));
	/* A waiting child gets it when its parent's lock goes. */
	int ends[2];
	MUST(pipe(ends) == 0);
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
	SAY(lock(fd, F_SETLK, F_WRLCK, 0, 10));
	char number[16];
	snprintf(number, sizeof number, "%d", fd);
	execl(argv[0], argv[0], number, NULL);
	return 9;
}
