/* A lock that is taken right after a close of the same file stays, a process's first and others. */
#include "say.h"

static int locked(int fd)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 4 };
	MUST(fcntl(fd, F_SETLK, &lock) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		lock.l_type = F_WRLCK;
		MUST(fcntl(fd, F_GETLK, &lock) == 0);
		_exit(lock.l_type == F_WRLCK ? 0 : 1);
	}
	int status;
	MUST(waitpid(pid, &status, 0) == pid);
	return status == 0;
}

/* How many of two locks were lost. */
static int lost(void)
{
	int fd = open("f", O_RDWR), lost = 0;
	/* As many opens as it takes for the library to hold the file itself. */
	for (int i = 0; i < 200; i++) {
		close(fd);
		fd = open("f", O_RDWR);
		if (i >= 198)
			lost += !locked(fd);
	}
	return lost;
}

int main(void)
{
	make("f", "0123456789");
	int sum = 0;
	for (int i = 0; i < 60; i++) {
		pid_t pid = fork();
		if (pid == 0)
			_exit(lost());
		int status;
		MUST(waitpid(pid, &status, 0) == pid);
		sum += WEXITSTATUS(status);
	}
	printf("%d locks were lost\n", sum);
	return 0;
}
