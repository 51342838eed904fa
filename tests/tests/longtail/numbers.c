/* `ulimit -n` at its edges. */
#include "say.h"
#include <sys/resource.h>

static int limit(rlim_t count)
{
	struct rlimit both = { count, 4096 };
	return setrlimit(RLIMIT_NOFILE, &both);
}

int main(void)
{
	char text[8] = "";
	int fds[64], count;
	int fd = make("f", "0123456789");
	SAY(limit(256));
	SAY(dup2(fd, 255));
	SAY(dup2(fd, 256));
	SAY(fcntl(fd, F_DUPFD, 255));
	SAY(fcntl(fd, F_DUPFD, 256));
	SAY(pread(255, text, 3, 0));
	SAY(close(255));
	/* Lowered below what is open: that stays good, new ones come below it. */
	SAY(dup2(fd, 100));
	SAY(limit(64));
	SAY(pread(100, text, 3, 4));
	SAY(write(100, "!", 1));
	SAY(dup2(fd, 64));
	SAY(dup2(100, 63));
	SAY(close(63));
	for (count = 0; count < 64; count++)
		if ((fds[count] = open("f", O_RDONLY)) < 0)
			break;
	SAY(count >= 32);
	printf("%s\n", strerror(errno));
	SAY(open("g", O_WRONLY | O_CREAT, 0644));
	SAY(access("g", F_OK));
	int last = fds[count - 1];
	SAY(last < 64);
	SAY(close(last));
	SAY(open("f", O_RDONLY) == last);
	SAY(pread(last, text, 3, 0));
	struct stat st;
	SAY((stat("f", &st), st.st_size));
	SAY(mkdir("dir", 0755));
	SAY(rename("dir", "moved"));
	SAY(fopen("f", "r") == NULL);
	printf("%s\n", strerror(errno));
	CHILD {
		SAY(close(last));
		show("f");
	}
	SAY(limit(4096));
	SAY(open("f", O_RDONLY) >= 0);
	for (int n = 0; n < count; n++)
		MUST(close(fds[n]) == 0);
	SAY(open("f", O_RDONLY) == fds[0]);
	SAY(dup2(fd, 4095));
	SAY(pread(4095, text, 3, 0));
	/* None at all are left. */
	CHILD {
		SAY(limit(3));
		SAY(open("f", O_RDONLY));
		SAY(pread(fd, text, 2, 0));
		SAY(access("f", R_OK));
		SAY(unlink("none"));
	}
	return 0;
}
