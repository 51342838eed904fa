/* Files that were just made, open for appending: where the bytes land and where the offset is, whatever
 * else moves either. */
#include "say.h"

enum { FILES = 40 };

static int make_appending(const char *name, int flags)
{
	int fd = open(name, O_CREAT | O_EXCL | O_APPEND | flags, 0640);
	MUST(fd >= 0);
	return fd;
}

static void add(int fd, const char *text)
{
	MUST(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
}

/* What anybody finds by the name. */
static void tell(const char *name)
{
	char text[256];
	int fd = open(name, O_RDONLY);
	ssize_t count = read(fd, text, sizeof text - 1);
	MUST(fd >= 0 && count >= 0 && close(fd) == 0);
	text[count] = 0;
	printf("%s: %zd [%s]\n", name, count, text);
}

static void one(const char *name, int how)
{
	char text[8] = { 0 };
	struct stat st;
	int fd = make_appending(name, O_RDWR), other;
	add(fd, "one ");
	add(fd, "two ");
	switch (how) {
	case 0:
		SAY(lseek(fd, 0, SEEK_CUR));
		break;
	case 1:
		SAY(lseek(fd, 2, SEEK_SET));
		SAY(read(fd, text, 3));
		printf("[%s]\n", text);
		break;
	case 2:
		SAY(pwrite(fd, "at 1 ", 5, 1));
		SAY(lseek(fd, 0, SEEK_CUR));
		break;
	case 3:
		SAY(ftruncate(fd, 2));
		break;
	case 4:
		SAY(truncate(name, 3));
		break;
	case 5:
		SAY(fallocate(fd, 0, 0, 12));
		break;
	case 6:
		MUST((other = open(name, O_WRONLY | O_APPEND)) >= 0);
		add(other, "beside ");
		MUST(close(other) == 0);
		break;
	case 7:
		MUST((other = dup(fd)) >= 0);
		add(other, "dup ");
		MUST(close(other) == 0);
		break;
	case 8:
		MUST(fcntl(fd, F_SETFL, 0) == 0 && lseek(fd, 1, SEEK_SET) == 1);
		add(fd, "X");
		MUST(fcntl(fd, F_SETFL, O_APPEND) == 0);
		break;
	case 9:
		MUST(rename(name, "moved") == 0);
		add(fd, "moved ");
		tell("moved");
		MUST(rename("moved", name) == 0);
		break;
	case 10:
		SAY(fsync(fd));
		break;
	case 11:
		SAY(fstat(fd, &st));
		printf("size %ld\n", (long)st.st_size);
		break;
	case 12:
		if ((other = fork()) == 0) {
			add(fd, "child ");
			_exit(0);
		}
		reap(other);
		break;
	case 13:
		tell(name);
		break;
	case 14:
		MUST((other = open(name, O_WRONLY | O_TRUNC)) >= 0 && close(other) == 0);
		break;
	}
	add(fd, "three ");
	SAY(lseek(fd, 0, SEEK_CUR));
	add(fd, "four");
	SAY(lseek(fd, 0, SEEK_CUR));
	SAY(lseek(fd, 0, SEEK_END));
	tell(name);
	MUST(close(fd) == 0);
	tell(name);
}

/* Long and short pieces, more than any buffer holds. */
static void many(void)
{
	static char piece[40000], back[40000];
	long end = 0, at = 0;
	int fd = make_appending("many", O_RDWR);
	for (int n = 1; n < 300; n++) {
		long len = n * 7919L % sizeof piece + 1;
		memset(piece, n, len);
		MUST(write(fd, piece, len) == len);
		end += len;
		if (n % 50 == 0)
			MUST(lseek(fd, 0, SEEK_CUR) == end);
	}
	SAY(lseek(fd, 0, SEEK_CUR));
	MUST(fsync(fd) == 0 && close(fd) == 0);
	fd = open("many", O_RDONLY);
	for (int n = 1; n < 300; n++) {
		long len = n * 7919L % sizeof piece + 1;
		memset(piece, n, len);
		MUST(pread(fd, back, len, at) == len && memcmp(piece, back, len) == 0);
		at += len;
	}
	MUST(read(fd, back, 1) == 1 && pread(fd, back, 1, at) == 0);
	printf("%ld bytes as they were written\n", at);
}

/* What a killed program had written is there. */
static void killed(void)
{
	int ends[2];
	char byte;
	MUST(pipe(ends) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		for (int n = 0; n < FILES; n++) {
			char name[16];
			snprintf(name, sizeof name, "killed%d", n);
			int fd = make_appending(name, O_WRONLY);
			add(fd, "before ");
			add(fd, "the end");
		}
		MUST(write(ends[1], "", 1) == 1);
		pause();
	}
	MUST(read(ends[0], &byte, 1) == 1);
	MUST(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
	tell("killed0");
	tell("killed39");
}

int main(void)
{
	char name[16];
	for (int n = 0; n < FILES; n++) {
		snprintf(name, sizeof name, "first%d", n);
		int fd = make_appending(name, O_WRONLY);
		add(fd, name);
		MUST(close(fd) == 0);
	}
	tell("first0");
	tell("first39");
	for (int how = 0; how < 15; how++) {
		printf("way %d\n", how);
		snprintf(name, sizeof name, "way%d", how);
		one(name, how);
	}
	many();
	killed();
	return 0;
}
