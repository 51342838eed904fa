/* What an open file keeps when its descriptors get another node: every copy, position, flags, locks,
 * and what each close gives up. And forks beside threads that copy and close. */
#include "say.h"
#include <pthread.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/uio.h>

static int over;

static void child_exits(void)
{
	fflush(stdout);
	pid_t pid = fork();
	MUST(pid >= 0);
	if (pid == 0)
		_exit(0);
	reap(pid);
}

static void say_descriptor(const char *what, int fd)
{
	int flags = fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK | O_SYNC | O_DSYNC);
	printf("%s: flags %x, at %ld, closed by exec %d\n", what, flags,
	       (long)lseek(fd, 0, SEEK_CUR), fcntl(fd, F_GETFD));
}

static void copies(int flags)
{
	char text[16] = "";
	int fd = open("copies", O_CREAT | O_TRUNC | O_RDWR | flags, 0644);
	MUST(fd >= 0 && write(fd, "0123456789", 10) == 10);
	int one = dup(fd), two = fcntl(fd, F_DUPFD_CLOEXEC, 40);
	lseek(one, 4, SEEK_SET);
	child_exits();
	say_descriptor("first", fd), say_descriptor("second", one), say_descriptor("third", two);
	SAY(fcntl(two, F_SETFL, fcntl(two, F_GETFL) ^ O_APPEND));
	say_descriptor("first", fd);
	SAY(close(fd));
	SAY(write(one, "x", 1));
	SAY(pread(two, text, sizeof text - 1, 0));
	printf("%s\n", text);
	SAY(close(one));
	SAY(lseek(two, 0, SEEK_CUR));
	SAY(close(two));
	SAY(fcntl(two, F_GETFD));
}

/* Whether others are kept out, by flock, OFD and POSIX locks. */
static void say_locks(const char *when)
{
	fflush(stdout);
	pid_t pid = fork();
	MUST(pid >= 0);
	if (pid == 0) {
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5 };
		int fd = open("locks", O_RDWR), kept = flock(fd, LOCK_EX | LOCK_NB);
		MUST(fcntl(fd, F_OFD_GETLK, &lock) == 0);
		printf("%s: flock %s, range %s\n", when, kept ? "kept" : "free",
		       lock.l_type == F_UNLCK ? "free" : "kept");
		fflush(stdout);
		_exit(0);
	}
	reap(pid);
}

static void locks(int command)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5 };
	int fd = make("locks", "0123456789");
	MUST(flock(fd, LOCK_EX) == 0 && fcntl(fd, command, &lock) == 0);
	say_locks("locked");
	child_exits();
	say_locks("after a child");
	MUST(mmap(NULL, 10, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
	say_locks("mapped");
	int copy = dup(fd);
	close(fd);
	say_locks("a copy closed");
	MUST(flock(copy, LOCK_UN) == 0);
	say_locks("unlocked");
	close(copy);
}

/* Without permission, and without a name. */
static void still_open(void)
{
	char text[8] = "";
	int fd = open("gone", O_RDWR | O_CREAT | O_EXCL, 0400);
	MUST(fd >= 0 && write(fd, "here", 4) == 4 && fchmod(fd, 0) == 0 && unlink("gone") == 0);
	child_exits();
	SAY(pread(fd, text, 4, 0));
	char *map = mmap(NULL, 4, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(map != MAP_FAILED);
	map[0] = 'H';
	SAY(pread(fd, text, 4, 0));
	printf("%s\n", text);
	close(fd);
}

/* A thread copies and closes while another forks: each number means its file. */
static void *copier(void *unused)
{
	int *wrong = unused;
	while (!over) {
		char text[2] = "";
		int fd = open("turns", O_RDWR), copy = dup(fd);
		if (fd < 0 || copy < 0 || lseek(fd, 3, SEEK_SET) != 3)
			++*wrong;
		sched_yield();
		*wrong += lseek(copy, 0, SEEK_CUR) != 3 || read(copy, text, 1) != 1 || *text != '3';
		*wrong += close(fd) != 0 || lseek(copy, 0, SEEK_CUR) != 4;
		*wrong += close(copy) != 0 || lseek(copy, 0, SEEK_CUR) != -1;
	}
	return NULL;
}

int main(void)
{
	for (int n = 0; n < 12; n++)
		close(make("warm", "x"));
	copies(0), copies(O_APPEND), copies(O_NONBLOCK), copies(O_DSYNC), copies(O_CLOEXEC);
	locks(F_SETLK), locks(F_OFD_SETLK);
	still_open();
	close(make("turns", "0123456789"));
	pthread_t thread;
	int wrong = 0;
	MUST(pthread_create(&thread, NULL, copier, &wrong) == 0);
	for (int n = 0; n < 60; n++)
		child_exits();
	over = 1;
	pthread_join(thread, NULL);
	printf("%d wrong\n", wrong);
	struct iovec part = { "end", 3 };
	int fd = make("placed", "0123456789");
	SAY(pwritev2(fd, &part, 1, 2, 0x10)); /* RWF_APPEND */
	SAY(lseek(fd, 0, SEEK_CUR));
	SAY(lseek(fd, 1, SEEK_SET));
	SAY(pwritev2(fd, &part, 1, -1, 0x12)); /* and RWF_DSYNC */
	SAY(lseek(fd, 0, SEEK_CUR));
	SAY(syscall(SYS_pwritev2, fd, &part, 1, 0L, 0L, 0x10));
	show("placed");
	return 0;
}
