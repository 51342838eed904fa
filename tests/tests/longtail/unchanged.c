/*
 * What changes nothing: which times move. And what an open file tells of itself: whether its
 * opening made it, its generation, its handle.
 */
#include "say.h"
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/xattr.h>

/* A clock of files ticks at least every 10 ms: the time is waited for, by another file's. */
static void tick(void)
{
	struct stat first, now;
	MUST(utimensat(AT_FDCWD, "clock", NULL, 0) == 0 && stat("clock", &first) == 0);
	do {
		MUST(utimensat(AT_FDCWD, "clock", NULL, 0) == 0 && stat("clock", &now) == 0);
	} while (now.st_ctim.tv_sec == first.st_ctim.tv_sec &&
		 now.st_ctim.tv_nsec == first.st_ctim.tv_nsec);
}

static int moved(struct timespec then, struct timespec now)
{
	return then.tv_sec != now.tv_sec || then.tv_nsec != now.tv_nsec;
}

#define MOVES(call)                                                                                \
	do {                                                                                       \
		struct stat then, now;                                                             \
		tick();                                                                            \
		MUST(stat("file", &then) == 0);                                                    \
		SAY(call);                                                                         \
		MUST(stat("file", &now) == 0);                                                     \
		printf("  changed %d, modified %d\n", moved(then.st_ctim, now.st_ctim),            \
		       moved(then.st_mtim, now.st_mtim));                                          \
	} while (0)

static void times(int fd)
{
	struct timespec omit[2] = { { 0, UTIME_OMIT }, { 0, UTIME_OMIT } };
	MUST(setxattr("file", "user.a", "1", 1, 0) == 0);
	MOVES(chown("file", -1, -1));
	MOVES(fchown(fd, -1, -1));
	MOVES(chown("file", geteuid(), getegid()));
	MOVES(chmod("file", 0644));
	MOVES(fchmod(fd, 0644));
	MOVES(utimensat(AT_FDCWD, "file", omit, 0));
	MOVES(futimens(fd, omit));
	MOVES(truncate("file", 5));
	MOVES(ftruncate(fd, 5));
	MOVES(setxattr("file", "user.a", "1", 1, 0));
	MOVES(fsetxattr(fd, "user.a", "1", 1, XATTR_REPLACE));
	MOVES(setxattr("file", "user.a", "1", 1, XATTR_CREATE));
	MOVES(setxattr("file", "user.a", "2", 1, 0));
	MOVES(setxattr("file", "user.a", "22", 2, 0));
	MOVES(removexattr("file", "user.none"));
	MOVES(pwrite(fd, "", 0, 0));
}

static void made(const char *name, int flags)
{
	int fd = open(name, flags, 0600), copy;
	MUST(fd >= 0 && (copy = dup(fd)) >= 0);
	printf("%s %x: ", name, flags & (O_CREAT | O_EXCL | O_TRUNC));
	int told = fcntl(fd, 1028, 0), again = fcntl(copy, 1028, 0);
	/* Linux before 6.12 does not know it. */
	printf("made %d, %d\n", told, again);
	close(copy);
	close(fd);
}

static void generation(int fd, int dir)
{
	static const unsigned long requests[] = { FS_IOC_GETVERSION, 0x80086603 };
	long seen[2] = { -1, -1 }, other = -1;
	for (int way = 0; way < 2; way++)
		printf("generation: %d\n", ioctl(fd, requests[way], &seen[way]));
	printf("an int: %d, the same: %d\n", (unsigned long)seen[0] >> 32 == 0xffffffff,
	       seen[0] == seen[1]);
	printf("of a directory: %d\n", ioctl(dir, FS_IOC_GETVERSION, &other));
	SAY(ioctl(fd, FS_IOC_SETVERSION, &other));
}

static void handle(int fd)
{
	struct {
		struct file_handle head;
		unsigned char bytes[MAX_HANDLE_SZ];
	} of[3];
	int mount[3];
	memset(of, 0, sizeof of);
	for (int way = 0; way < 3; way++)
		of[way].head.handle_bytes = MAX_HANDLE_SZ;
	SAY(name_to_handle_at(AT_FDCWD, "file", &of[0].head, &mount[0], 0));
	SAY(name_to_handle_at(fd, "", &of[1].head, &mount[1], AT_EMPTY_PATH));
	SAY(syscall(SYS_name_to_handle_at, fd, "", &of[2].head, &mount[2], AT_EMPTY_PATH));
	printf("one handle: %d %d\n", !memcmp(&of[0], &of[1], sizeof of[0]),
	       !memcmp(&of[0], &of[2], sizeof of[0]));
	printf("one mount: %d\n", mount[0] == mount[1] && mount[0] == mount[2]);
	/* It goes on as it was. */
	char text[8] = "";
	SAY(pread(fd, text, 7, 0));
	puts(text);
}

int main(void)
{
	int fd, dir = open(".", O_RDONLY | O_DIRECTORY);
	/* By the library, where there is one: it connects after some calls. */
	for (int calls = 0; calls < 16; calls++)
		MUST(close(make("warm", "up")) == 0);
	MUST(close(make("clock", "")) == 0 && (fd = make("file", "bytes")) >= 0);
	made("file", O_RDWR);
	made("file", O_RDONLY | O_CREAT);
	made("file", O_RDONLY);
	made("new", O_RDWR | O_CREAT | O_EXCL);
	made("new", O_RDWR | O_CREAT);
	made("newer", O_RDWR | O_CREAT);
	made("newer", O_RDWR | O_CREAT);
	made("newest", O_WRONLY | O_CREAT | O_TRUNC);
	times(fd);
	generation(fd, dir);
	MUST(close(fd) == 0 && (fd = open("file", O_RDWR)) >= 0);
	generation(fd, dir);
	handle(fd);
	return 0;
}
