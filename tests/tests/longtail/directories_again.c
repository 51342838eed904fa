/* Directories that are opened again and again, as who syncs what was done there opens them: each
 * open has a position and flags of its own, and is judged by what the path means at that moment. */
#include "say.h"
#include <dirent.h>
#include <sys/file.h>
#include <sys/socket.h>

static int again(const char *path, int flags)
{
	int fd = open(path, O_RDONLY | flags);
	if (fd < 0)
		return fd;
	MUST(lseek(fd, 0, SEEK_CUR) == 0);
	return fd;
}

/* Names that are left to be listed by a descriptor. */
static int left(int fd)
{
	char buffer[4096];
	int names = 0;
	for (long n; (n = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0;)
		for (long at = 0; at < n; at += *(unsigned short *)(buffer + at + 16))
			names++;
	return names;
}

/* Opens, syncs and closes a few times; the number is always the lowest free one. */
static void many(const char *path, int flags)
{
	int lowest = dup(0);
	MUST(lowest >= 0 && close(lowest) == 0);
	for (int n = 0; n < 6; n++) {
		int fd = again(path, flags);
		MUST(fd == lowest);
		MUST(fsync(fd) == 0);
		MUST((fcntl(fd, F_GETFD) & FD_CLOEXEC) == (flags & O_CLOEXEC ? FD_CLOEXEC : 0));
		MUST((fcntl(fd, F_GETFL) & O_DIRECTORY) == (flags & O_DIRECTORY));
		MUST(close(fd) == 0);
		MUST(fcntl(fd, F_GETFD) == -1 && errno == EBADF);
	}
}

static void positions(void)
{
	int one = again("dir", O_DIRECTORY), two = again("dir", O_DIRECTORY);
	printf("%d", left(one));
	printf(" %d", left(two));
	printf(" %d", left(one));
	MUST(close(one) == 0);
	one = again("dir", O_DIRECTORY);
	printf(" %d %d\n", left(two), left(one));
	int copy = dup(one);
	MUST(lseek(copy, 0, SEEK_SET) == 0);
	printf("copy: %d %d\n", left(one), left(copy));
	MUST(close(one) == 0 && close(copy) == 0 && close(two) == 0);
	DIR *stream = fdopendir(again("dir", O_DIRECTORY));
	int names = 0;
	while (readdir(stream))
		names++;
	printf("stream: %d\n", names);
	MUST(closedir(stream) == 0);
}

/* What has changed between two opens counts. */
static void changes(void)
{
	struct stat before, after;
	int fd = again("dir", O_DIRECTORY);
	MUST(fstat(fd, &before) == 0 && close(fd) == 0);
	MUST(rename("dir", "other") == 0);
	SAY(again("dir", O_DIRECTORY));
	fd = again("other", O_DIRECTORY);
	MUST(fstat(fd, &after) == 0);
	printf("renamed: %d\n", before.st_ino == after.st_ino);
	MUST(close(fd) == 0);
	MUST(mkdir("dir", 0755) == 0);
	fd = again("dir", O_DIRECTORY);
	MUST(fstat(fd, &after) == 0);
	printf("another: %d, %d names\n", before.st_ino != after.st_ino, left(fd));
	MUST(close(fd) == 0);
	many("dir", 0);
	MUST(rmdir("dir") == 0);
	SAY(again("dir", 0));
	MUST(close(make("dir", "file")) == 0);
	SAY(again("dir", O_DIRECTORY));
	fd = open("dir", O_RDONLY);
	char text[8] = "";
	SAY(read(fd, text, 7));
	MUST(close(fd) == 0 && unlink("dir") == 0 && rename("other", "dir") == 0);
	many("dir", 0);
	if (geteuid() == 0) {
		MUST(chmod("dir", 0700) == 0 && seteuid(65534) == 0);
		SAY(again("dir", O_DIRECTORY));
		SAY(again("dir", 0));
		MUST(seteuid(0) == 0 && chmod("dir", 0755) == 0 && seteuid(65534) == 0);
		many("dir", O_DIRECTORY);
		MUST(seteuid(0) == 0);
	} else {
		MUST(chmod("dir", 0) == 0);
		SAY(again("dir", O_DIRECTORY));
		SAY(again("dir", 0));
		MUST(chmod("dir", 0755) == 0);
	}
	many("dir", O_DIRECTORY);
}

/* What another process has of an open directory is no matter of later opens. */
static void shared(void)
{
	int fd = again("dir", O_DIRECTORY), go[2], sockets[2];
	char byte = 0;
	MUST(pipe(go) == 0);
	pid_t child = begin();
	if (child == 0) {
		close(go[1]);
		MUST(read(go[0], &byte, 1) == 0);
		printf("child: %d\n", left(fd));
		fflush(stdout);
		_exit(0);
	}
	MUST(close(fd) == 0);
	fd = again("dir", O_DIRECTORY);
	printf("parent: %d\n", left(fd));
	fflush(stdout);
	MUST(close(fd) == 0 && close(go[0]) == 0 && close(go[1]) == 0);
	MUST(waitpid(child, NULL, 0) == child);

	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	char room[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1,
				  .msg_control = room, .msg_controllen = sizeof room };
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof(int));
	fd = again("dir", O_DIRECTORY);
	memcpy(CMSG_DATA(head), &fd, sizeof fd);
	MUST(sendmsg(sockets[0], &message, 0) == 1 && close(fd) == 0);
	fd = again("dir", O_DIRECTORY);
	MUST(left(fd) > 0);
	MUST(recvmsg(sockets[1], &message, 0) == 1);
	int received;
	memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof received);
	printf("received: %d, own: %d\n", left(received), left(fd));
	MUST(close(fd) == 0 && close(received) == 0 && close(sockets[0]) == 0 && close(sockets[1]) == 0);

	/* A lock of the open directory goes with it. */
	fd = again("dir", O_DIRECTORY);
	MUST(flock(fd, LOCK_EX) == 0 && close(fd) == 0);
	CHILD {
		int own = open("dir", O_RDONLY | O_DIRECTORY);
		SAY(flock(own, LOCK_EX | LOCK_NB));
	}
	fd = again("dir", O_DIRECTORY);
	MUST(fcntl(fd, F_SETFL, O_NONBLOCK) == 0 && close(fd) == 0);
	fd = again("dir", O_DIRECTORY);
	printf("flags: %d\n", fcntl(fd, F_GETFL) & O_NONBLOCK);
	MUST(close(fd) == 0);
}

int main(void)
{
	MUST(mkdir("dir", 0755) == 0);
	for (int n = 0; n < 5; n++) {
		char name[16];
		snprintf(name, sizeof name, "dir/%d", n);
		MUST(close(make(name, "some")) == 0);
	}
	many("dir", O_DIRECTORY);
	many("dir", 0);
	many("dir", O_DIRECTORY | O_CLOEXEC);
	many(".", O_CLOEXEC);
	positions();
	changes();
	shared();
	/* To work in, and to start paths from. */
	int fd = again("dir", O_DIRECTORY);
	SAY(faccessat(fd, "3", F_OK, 0));
	SAY(openat(fd, "none", O_RDONLY));
	int place = dup(fd);
	MUST(dup2(fd, place) == place && close(fd) == 0);
	MUST(fchdir(place) == 0 && close(place) == 0);
	SAY(access("3", F_OK));
	many("../dir", O_DIRECTORY);
	many(".", O_DIRECTORY);
	MUST(chdir("..") == 0);
	/* More at a time than are kept. */
	int all[9];
	for (int n = 0; n < 9; n++)
		MUST((all[n] = again(n % 2 ? "." : "dir", O_DIRECTORY)) >= 0);
	for (int n = 0; n < 9; n++)
		MUST(fsync(all[n]) == 0 && close(all[n]) == 0);
	many("dir", O_DIRECTORY);
	return 0;
}
