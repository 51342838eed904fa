/* One file, used by two processes: one opened it by its path and writes, the other got the
 * descriptor and has the kernel act on it by itself. By fork, exec or a message; with the library
 * and without; mappings, splice, sendfile, copy_file_range, RWF_APPEND, positions, cuts. */
#include "say.h"
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define ALL_AT_ONCE (1 << 20)
#define APPEND_NOW 0x10 /* RWF_APPEND */

static int to_other[2], to_first[2];

static void give(int socket, int fd)
{
	char byte = 'f', room[CMSG_SPACE(sizeof fd)] = { 0 };
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = room,
				  .msg_controllen = sizeof room };
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(head), &fd, sizeof fd);
	MUST(sendmsg(socket, &message, 0) == 1);
}

static int take(int socket)
{
	int fd;
	char byte, room[CMSG_SPACE(sizeof fd)];
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = room,
				  .msg_controllen = sizeof room };
	MUST(recvmsg(socket, &message, 0) == 1);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	return fd;
}

/* The one who got the descriptor: does what a letter says, and answers with a number. */
static void other(int fd, int in, int out)
{
	char act, byte = '?', *map = MAP_FAILED;
	int ends[2], memory = memfd_create("m", 0), copy = open("copy", O_RDWR | O_CREAT | O_TRUNC, 0644);
	struct iovec one = { "R", 1 };
	off_t at = 0;
	MUST(pipe(ends) == 0 && memory >= 0 && copy >= 0);
	while (read(in, &act, 1) == 1) {
		long answer = -2;
		struct stat state;
		off_t start = 0;
		switch (act) {
		case 'm': /* counts in the first byte */
			if (map == MAP_FAILED)
				map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
			answer = map == MAP_FAILED ? -errno : ++*map;
			break;
		case 'v': /* sees the second */
			answer = map == MAP_FAILED ? -1 : map[1];
			break;
		case 's': /* the second byte through a pipe */
			start = 1;
			answer = splice(fd, &start, ends[1], NULL, 1, 0);
			if (answer == 1 && read(ends[0], &byte, 1) == 1)
				answer = byte;
			break;
		case 'f': /* what is new, until there is no more */
			for (answer = 0, start = 1; start > 0; answer += start)
				start = sendfile(memory, fd, &at, ALL_AT_ONCE);
			break;
		case 'c':
			for (answer = 0, start = 1; start > 0; answer += start)
				start = copy_file_range(fd, &at, copy, NULL, ALL_AT_ONCE, 0);
			break;
		case 'a':
			answer = pwritev2(fd, &one, 1, 0, APPEND_NOW);
			break;
		case 'p': /* an append, and where the position is then */
			answer = write(fd, "p", 1) == 1 ? lseek(fd, 0, SEEK_CUR) : -1;
			break;
		case 'l':
			answer = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
			break;
		case 'z':
			answer = fstat(fd, &state) == 0 ? state.st_size : -1;
			break;
		}
		MUST(write(out, &answer, sizeof answer) == sizeof answer);
	}
	_exit(0);
}

static long ask(char act)
{
	long answer;
	MUST(write(to_other[1], &act, 1) == 1);
	MUST(read(to_first[0], &answer, sizeof answer) == sizeof answer);
	return answer;
}

/* Starts the other one, by `how`: f, e (standard input of a program) or m (a message). */
static pid_t start(int fd, char how, int library)
{
	char in[12], out[12], by[12];
	int socket[2];
	MUST(pipe(to_other) == 0 && pipe(to_first) == 0);
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, socket) == 0);
	fflush(stdout);
	if (how == 'm')
		fcntl(fd, F_SETFD, FD_CLOEXEC);
	pid_t pid = fork();
	MUST(pid >= 0);
	if (pid == 0) {
		close(to_other[1]), close(to_first[0]);
		if (how == 'f')
			other(fd, to_other[0], to_first[1]);
		snprintf(in, sizeof in, "%d", to_other[0]), snprintf(out, sizeof out, "%d", to_first[1]);
		snprintf(by, sizeof by, "%d", how == 'm' ? socket[1] : -1);
		if (how == 'e')
			dup2(fd, 0);
		if (!library)
			setenv("LD_PRELOAD", "", 1);
		execl("/proc/self/exe", "other", in, out, by, (char *)NULL);
		_exit(9);
	}
	close(to_other[0]), close(to_first[1]);
	if (how == 'm')
		give(socket[0], fd);
	close(socket[0]), close(socket[1]);
	return pid;
}

static void both(char how, int library)
{
	char text[64] = "";
	int fd = open("both", O_RDWR | O_CREAT | O_TRUNC, 0644), again = dup(fd);
	MUST(fd >= 0 && write(fd, "0a", 2) == 2 && ftruncate(fd, 4096) == 0);
	MUST(flock(fd, LOCK_EX) == 0 && lseek(fd, 7, SEEK_SET) == 7);
	/* By its path, before and after. */
	int path = open("both", O_RDWR);
	volatile char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, path, 0);
	MUST(map != MAP_FAILED);
	pid_t pid = start(fd, how, library);
	printf("%c %d:", how, library);
	for (int n = 0; n < 3; n++) {
		++*map;
		printf(" %ld", ask('m'));
	}
	map[1] = 'b';
	printf(" %c%c", (char)ask('v'), (char)ask('s'));
	MUST(pwrite(again, "c", 1, 1) == 1);
	printf(" %c%c", (char)ask('v'), (char)ask('s'));
	MUST(lseek(again, 0, SEEK_CUR) == 7 && ask('l') == 0);
	printf(" flock by path %d", flock(path, LOCK_EX | LOCK_NB) == 0 ? 0 : errno);
	/* Cut, and longer again. */
	MUST(ftruncate(path, 1) == 0);
	printf(" size %ld splice %ld", ask('z'), ask('s'));
	MUST(pwrite(path, "new", 3, 4095) == 3);
	printf(" size %ld sent %ld", ask('z'), ask('f'));
	MUST(pwrite(fd, "newer", 5, 9000) == 5);
	printf(" sent %ld", ask('f'));
	MUST(truncate("both", 3) == 0 && pwrite(path, "xyz", 3, 3) == 3);
	printf(" sent %ld\n", ask('f'));
	close(to_other[1]), close(to_first[0]), close(fd), close(again), close(path);
	munmap((char *)map, 4096);
	reap(pid);
	fd = open("both", O_RDONLY);
	printf("%zd bytes: %s\n", read(fd, text, sizeof text - 1), text);
	close(fd);
}

/* The one appends by write, the other has the kernel do it, or copies what is new. */
static void appends(char how, int library, char act)
{
	char text[64] = "";
	int fd = open("log", O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0644);
	MUST(fd >= 0 && write(fd, "0", 1) == 1);
	int path = open("log", O_WRONLY | O_APPEND);
	pid_t pid = start(fd, how, library);
	printf("%c %d %c:", how, library, act);
	for (int n = 0; n < 3; n++) {
		MUST(write(path, "PP", 2) == 2 && write(fd, "f", 1) == 1);
		printf(" %ld", ask(act));
	}
	printf(" position %ld\n", (long)lseek(fd, 0, SEEK_CUR));
	close(to_other[1]), close(to_first[0]), close(path);
	reap(pid);
	MUST(pread(fd, text, sizeof text - 1, 0) > 0);
	printf("%s\n", text);
	close(fd);
}

int main(int argc, char **argv)
{
	if (argc == 4)
		other(atoi(argv[3]) < 0 ? 0 : take(atoi(argv[3])), atoi(argv[1]), atoi(argv[2]));
	for (int n = 0; n < 12; n++) /* enough calls for the library to take the lane */
		close(make("warm", "x"));
	for (const char *how = "fem"; *how; how++)
		for (int library = *how == 'f'; library < 2; library++) {
			both(*how, library);
			for (const char *act = "apfc"; *act; act++)
				appends(*how, library, *act);
		}
	return 0;
}
