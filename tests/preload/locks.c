/* POSIX, open-file-description and flock locks between processes; waiting, signals, closing. */
#include "check.h"
#include <sys/file.h>
#include <sys/time.h>

static int lock(int fd, int command, int type, off_t start, off_t len)
{
	struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len };
	return fcntl(fd, command, &lock);
}

/* Runs `part` in a child that must pass. */
static void in_child(void (*part)(int), int fd)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		part(fd);
		_exit(0);
	}
	reap(pid);
}

static void find_conflict(int unused)
{
	(void)unused;
	int fd = open(in_dir("posix"), O_RDWR);
	CHECK(fd >= 0);
	CHECK(lock(fd, F_SETLK, F_WRLCK, 0, 5) == -1 && (errno == EAGAIN || errno == EACCES));
	CHECK(lock(fd, F_SETLK, F_WRLCK, 20, 5) == 0);
	struct flock found = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 3, .l_len = 0 };
	CHECK(fcntl(fd, F_GETLK, &found) == 0);
	CHECK(found.l_type == F_WRLCK && found.l_start == 0 && found.l_len == 10);
	CHECK(found.l_pid == getppid());
	CHECK(lockf(fd, F_TEST, 5) == -1 && (errno == EAGAIN || errno == EACCES));
	CHECK(lseek(fd, 50, SEEK_SET) == 50 && lockf(fd, F_TLOCK, 5) == 0);
}

static void find_none(int fd)
{
	struct flock found = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	CHECK(fcntl(fd, F_GETLK, &found) == 0 && found.l_type == F_UNLCK);
	CHECK(lock(fd, F_SETLK, F_WRLCK, 0, 0) == 0);
}

static void posix(void)
{
	int fd = make("posix", "0123456789");
	CHECK(lock(fd, F_SETLK, F_WRLCK, 0, 10) == 0);
	in_child(find_conflict, fd);
	/* Its locks went with it. */
	CHECK(lock(fd, F_SETLK, F_WRLCK, 0, 0) == 0);
	CHECK(lock(fd, F_SETLK, F_UNLCK, 0, 0) == 0);
	in_child(find_none, fd);

	/* Any close of the file gives up all locks of the process on it. */
	CHECK(lock(fd, F_SETLK, F_WRLCK, 0, 10) == 0);
	int other = open(in_dir("posix"), O_RDONLY);
	CHECK(other >= 0 && close(other) == 0);
	in_child(find_none, fd);
	CHECK(lock(fd, F_SETLK, F_WRLCK, 0, 10) == 0);
	CHECK(close(dup(fd)) == 0);
	in_child(find_none, fd);

	/* So does a dup2 onto one of its descriptors. */
	CHECK(lock(fd, F_SETLK, F_WRLCK, 0, 10) == 0);
	CHECK((other = open(in_dir("posix"), O_RDONLY)) >= 0 && dup2(0, other) == other);
	in_child(find_none, fd);
	CHECK(close(other) == 0);

	CHECK((other = open(in_dir("posix"), O_RDONLY)) >= 0);
	FAILS(lock(other, F_SETLK, F_WRLCK, 0, 1), EBADF);
	CHECK(lock(other, F_SETLK, F_RDLCK, 0, 1) == 0);
	FAILS(lock(other, F_SETLK, F_RDLCK, -1, 1), EINVAL);
	CHECK(close(other) == 0 && close(fd) == 0);
}

static void wait_for_it(int fd)
{
	CHECK(lock(fd, F_SETLKW, F_WRLCK, 0, 0) == 0);
	char byte = 0;
	CHECK(pread(fd, &byte, 1, 0) == 1 && byte == '!');
}

static void waiting(void)
{
	int fd = make("wait", "?");
	CHECK(lock(fd, F_SETLK, F_WRLCK, 0, 0) == 0);
	pid_t pids[3];
	for (int n = 0; n < 3; n++) {
		CHECK((pids[n] = fork()) >= 0);
		if (pids[n] == 0) {
			wait_for_it(fd);
			_exit(0);
		}
	}
	usleep(50000);
	CHECK(pwrite(fd, "!", 1, 0) == 1);
	CHECK(lock(fd, F_SETLK, F_UNLCK, 0, 0) == 0);
	for (int n = 0; n < 3; n++)
		reap(pids[n]);
	CHECK(close(fd) == 0);
}

static volatile sig_atomic_t rings;

static void ring(int signal)
{
	(void)signal;
	rings++;
}

static void hold(int fd, int milliseconds, int ready)
{
	CHECK(lock(fd, F_SETLK, F_WRLCK, 0, 0) == 0);
	CHECK(write(ready, "r", 1) == 1);
	usleep(milliseconds * 1000);
}

static pid_t holder(const char *name, int milliseconds)
{
	int ready[2];
	char byte;
	CHECK(pipe(ready) == 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		int fd = open(in_dir(name), O_RDWR);
		CHECK(fd >= 0);
		hold(fd, milliseconds, ready[1]);
		_exit(0);
	}
	CHECK(read(ready[0], &byte, 1) == 1);
	CHECK(close(ready[0]) == 0 && close(ready[1]) == 0);
	return pid;
}

static void interrupted(void)
{
	int fd = make("signal", "x");
	struct itimerval soon = { .it_value = { 0, 50000 } };
	struct sigaction action = { .sa_handler = ring };

	pid_t pid = holder("signal", 400);
	CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &soon, NULL) == 0);
	FAILS(lock(fd, F_SETLKW, F_WRLCK, 0, 0), EINTR);
	CHECK(rings == 1);
	/* The request was taken back: nobody holds the lock once the holder is gone. */
	reap(pid);
	in_child(find_none, fd);

	/* With SA_RESTART it goes on waiting. */
	action.sa_flags = SA_RESTART;
	pid = holder("signal", 300);
	CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &soon, NULL) == 0);
	CHECK(lock(fd, F_SETLKW, F_WRLCK, 0, 0) == 0);
	CHECK(rings == 2);
	reap(pid);
	signal(SIGALRM, SIG_DFL);
	CHECK(close(fd) == 0);
}

#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37
#endif

static void descriptions(void)
{
	int one = make("ofd", "0123456789"), two = open(in_dir("ofd"), O_RDWR);
	CHECK(two >= 0);
	CHECK(lock(one, F_OFD_SETLK, F_WRLCK, 0, 5) == 0);
	FAILS(lock(two, F_OFD_SETLK, F_WRLCK, 0, 5), EAGAIN);
	FAILS(lock(two, F_SETLK, F_WRLCK, 0, 5), EAGAIN);
	/* A copy is the same open file; closing one copy keeps the lock. */
	int copy = dup(one);
	CHECK(lock(copy, F_OFD_SETLK, F_WRLCK, 0, 6) == 0 && close(copy) == 0);
	FAILS(lock(two, F_OFD_SETLK, F_WRLCK, 0, 5), EAGAIN);
	CHECK(close(one) == 0);
	CHECK(lock(two, F_OFD_SETLK, F_WRLCK, 0, 5) == 0);
	struct flock bad = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_pid = 1 };
	FAILS(fcntl(two, F_OFD_SETLK, &bad), EINVAL);
	CHECK(close(two) == 0);
}

static void child_of_flock(int fd)
{
	/* Inherited: the same lock. A new open: another one. */
	CHECK(flock(fd, LOCK_EX | LOCK_NB) == 0);
	int other = open(in_dir("flock"), O_RDWR);
	CHECK(other >= 0);
	FAILS(flock(other, LOCK_SH | LOCK_NB), EWOULDBLOCK);
}

static void flocks(void)
{
	int fd = make("flock", "x");
	CHECK(flock(fd, LOCK_EX) == 0);
	in_child(child_of_flock, fd);
	int other = open(in_dir("flock"), O_RDONLY);
	CHECK(other >= 0);
	FAILS(flock(other, LOCK_EX | LOCK_NB), EWOULDBLOCK);
	CHECK(flock(fd, LOCK_SH) == 0 && flock(other, LOCK_SH | LOCK_NB) == 0);
	CHECK(flock(fd, LOCK_UN) == 0 && flock(other, LOCK_EX | LOCK_NB) == 0);
	FAILS(flock(fd, 0), EINVAL);
	CHECK(close(other) == 0);
	CHECK(flock(fd, LOCK_EX | LOCK_NB) == 0 && close(fd) == 0);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	posix();
	waiting();
	interrupted();
	descriptions();
	flocks();
	return 0;
}
