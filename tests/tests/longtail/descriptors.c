/* close_range, dup3 and O_CLOEXEC over exec: which numbers are left, and what they mean. */
#include "say.h"
#include <linux/close_range.h>
#include <pthread.h>

/* The second life: what is open of the first twenty numbers, and where it stands. */
static int reborn(void)
{
	for (int fd = 3; fd < 20; fd++) {
		char text[4] = "";
		if (fcntl(fd, F_GETFD) < 0)
			continue;
		long at = lseek(fd, 0, SEEK_CUR);
		long count = pread(fd, text, 3, 0);
		printf("%d: at %ld, holds %.3s\n", fd, at, count > 0 ? text : "-");
	}
	return 0;
}

/* Closes everything in a table of its own. */
static void *leaver(void *argument)
{
	int fd = *(int *)argument;
	char text[4] = "";
	SAY(pread(fd, text, 1, 0));
	SAY(close_range(3, ~0U, CLOSE_RANGE_UNSHARE));
	SAY(pread(fd, text, 1, 0));
	SAY(make("left", "left"));
	SAY(pread(3, text, 4, 0));
	return NULL;
}

static void again(char **argv)
{
	execl(argv[0], argv[0], "again", NULL);
	_exit(9);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return reborn();
	char text[8] = "";
	int a = make("a", "aaaaaa"), b = make("b", "bbbbbb"), c = make("c", "cccccc");
	int d = open("a", O_RDONLY | O_CLOEXEC);
	SAY(dup3(a, 10, O_CLOEXEC));
	SAY(dup3(b, 11, 0));
	SAY(dup3(c, c, O_CLOEXEC));
	SAY(dup3(c, 12, O_APPEND));
	SAY(dup3(999, 12, 0));
	SAY(dup3(c, -1, 0));
	SAY(dup2(d, 13));
	SAY(fcntl(13, F_GETFD));
	SAY(fcntl(10, F_GETFD));
	SAY(lseek(13, 4, SEEK_SET));
	SAY(lseek(d, 0, SEEK_CUR));
	SAY(lseek(a, 1, SEEK_SET));
	CHILD {
		again(argv);
	}
	/* Flags changed after the open. */
	SAY(fcntl(b, F_SETFD, FD_CLOEXEC));
	SAY(fcntl(10, F_SETFD, 0));
	CHILD {
		again(argv);
	}
	CHILD {
		SAY(close_range(10, 100, CLOSE_RANGE_CLOEXEC));
		SAY(read(10, text, 2));
		again(argv);
	}
	CHILD {
		SAY(close_range(a, c, 0));
		SAY(read(b, text, 1));
		SAY(pread(13, text, 1, 0));
		SAY(make("new", "new") == a);
		again(argv);
	}
	CHILD {
		SAY(close_range(a, 12, CLOSE_RANGE_UNSHARE));
		SAY(read(b, text, 1));
		SAY(pread(13, text, 1, 0));
		again(argv);
	}
	CHILD {
		SAY(pread(a, text, 1, 0));
		int fd = open("b", O_RDWR);
		SAY(pread(fd, text, 1, 0));
		SAY(close_range(a, ~0U, CLOSE_RANGE_UNSHARE));
		SAY(pread(a, text, 1, 0));
		SAY(pwrite(fd, "x", 1, 0));
		SAY(fcntl(fd, F_GETFL));
		SAY(make("new", "new") == a);
		SAY(dup2(a, 705));
		SAY(pread(705, text, 1, 0));
		SAY(close(705));
		SAY(pwrite(a, "N", 1, 0));
		again(argv);
	}
	CHILD {
		pthread_t thread;
		MUST(pthread_create(&thread, NULL, leaver, &b) == 0);
		MUST(pthread_join(thread, NULL) == 0);
		SAY(pread(b, text, 1, 0));
		SAY(close(b));
		SAY(pread(b, text, 1, 0));
	}
	CHILD {
		SAY(syscall(SYS_close_range, 3, ~0U, 0));
		int fd = make("after", "after");
		SAY(fd);
		SAY(pread(fd, text, 5, 0));
		again(argv);
	}
	CHILD {
		closefrom(11);
		SAY(make("from", "fro") < 20);
		again(argv);
	}
	SAY(close_range(20, 10, 0));
	SAY(close_range(3, 4, 1 << 10));
	SAY(lseek(a, 0, SEEK_CUR));
	SAY(pread(b, text, 3, 1));
	/* Over an open file of the lane, and over the standard streams. */
	SAY(dup2(a, b));
	SAY(pread(b, text, 1, 0));
	SAY(text[0]);
	SAY(pread(11, text, 1, 0));
	SAY(text[0]);
	show("b");
	CHILD {
		SAY(dup2(c, 0));
		SAY(lseek(0, 3, SEEK_SET));
		MUST(system("cat; cat <&11") == 0);
	}
	SAY(lseek(c, 0, SEEK_CUR));
	return 0;
}
