/* Descriptors over sockets, in every direction, and taken out of a process by pidfd_getfd. */
#include "say.h"
#include <sys/pidfd.h>
#include <sys/socket.h>

static void send_all(int socket, const int *fds, int count)
{
	char byte = 'f', control[CMSG_SPACE(8 * sizeof(int))] = { 0 };
	struct iovec part = { &byte, 1 };
	struct mmsghdr one = { .msg_hdr = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
					    .msg_controllen = CMSG_SPACE(count * sizeof(int)) } };
	struct cmsghdr *header = CMSG_FIRSTHDR(&one.msg_hdr);
	*header = (struct cmsghdr){ CMSG_LEN(count * sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
	memcpy(CMSG_DATA(header), fds, count * sizeof(int));
	MUST(count == 1 ? sendmsg(socket, &one.msg_hdr, 0) == 1 : sendmmsg(socket, &one, 1, 0) == 1);
}

static void receive(int socket, int *fds, int count, int flags)
{
	char byte, control[CMSG_SPACE(8 * sizeof(int))];
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof control };
	MUST(recvmsg(socket, &message, flags) == 1);
	MUST(CMSG_FIRSTHDR(&message)->cmsg_len == CMSG_LEN(count * sizeof(int)));
	memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&message)), count * sizeof(int));
}

static void numbers(int socket)
{
	/* Numbers that meant other files before. */
	int fds[3], mine[3];
	for (int n = 0; n < 3; n++)
		mine[n] = make("mine", "mine");
	for (int n = 0; n < 3; n++)
		close(mine[n]);
	receive(socket, fds, 3, MSG_CMSG_CLOEXEC);
	for (int n = 0; n < 3; n++) {
		char text[8] = "";
		SAY(fds[n] == mine[n]);
		SAY(fcntl(fds[n], F_GETFD));
		SAY(pread(fds[n], text, 7, 0));
		SAY(pwrite(fds[n], "X", 1, 6));
		printf("%s\n", text);
	}
}

/* What was taken out of a process means the same file when that process has closed it and opens
 * others. */
static void reused(int by_number)
{
	int ready[2], go[2], fd, others[8], mine[8];
	char byte, name[16], text[32] = "";
	MUST(pipe(ready) == 0 && pipe(go) == 0);
	pid_t pid = begin();
	if (pid == 0) {
		for (int n = 0; n < 12; n++)
			MUST(close(make("warm", "warm")) == 0);
		fd = make("held", "what was held");
		MUST(write(ready[1], &fd, sizeof fd) == sizeof fd && read(go[0], &byte, 1) == 1);
		MUST(close(fd) == 0);
		for (int n = 0; n < 8; n++) {
			snprintf(name, sizeof name, "other%d", n);
			others[n] = make(name, "another's file");
		}
		MUST(write(ready[1], "r", 1) == 1 && read(go[0], &byte, 1) == 1);
		for (int n = 0; n < 8; n++) {
			MUST(pread(others[n], text, 31, 0) == 14 && strcmp(text, "another's file") == 0);
			MUST(close(others[n]) == 0);
			MUST(close(make("later", "later")) == 0);
		}
		show("other0");
		show("other7");
		show("later");
		_exit(0);
	}
	MUST(read(ready[0], &fd, sizeof fd) == sizeof fd);
	for (int n = 0; n < 8; n++) {
		snprintf(name, sizeof name, "mine%d", n);
		mine[n] = make(name, "mine");
	}
	int pidfd = by_number ? syscall(SYS_pidfd_open, pid, 0) : pidfd_open(pid, 0);
	int taken = by_number ? syscall(SYS_pidfd_getfd, pidfd, fd, 0) : pidfd_getfd(pidfd, fd, 0);
	MUST(taken >= 0);
	MUST(write(go[1], "g", 1) == 1 && read(ready[0], &byte, 1) == 1);
	SAY(pread(taken, text, 31, 0));
	printf("%s\n", text);
	SAY(pwrite(taken, "TAKER", 5, 0));
	MUST(write(go[1], "g", 1) == 1);
	reap(pid);
	show("held");
	close(taken);
	close(pidfd);
	for (int n = 0; n < 8; n++)
		close(mine[n]);
}

int main(void)
{
	int two[2], fds[3], got[3];
	char text[16] = "", byte;
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, two) == 0);
	CHILD {
		fds[0] = make("one", "first");
		fds[1] = make("two", "second");
		fds[2] = open("two", O_RDONLY);
		send_all(two[1], fds, 3);
		fds[0] = make("gone", "unlinked soon");
		SAY(lseek(fds[0], 3, SEEK_SET));
		SAY(unlink("gone"));
		send_all(two[1], fds, 1);
	}
	numbers(two[0]);
	receive(two[0], got, 1, 0);
	SAY(read(got[0], text, 15));
	printf("%s\n", text);
	SAY(lseek(got[0], 0, SEEK_CUR));
	show("one");
	show("two");

	/* Sent to oneself, closed in transit, and used from both ends. */
	int fd = make("self", "0123456789");
	SAY(lseek(fd, 2, SEEK_SET));
	send_all(two[0], &fd, 1);
	SAY(close(fd));
	for (int n = 0; n < 10; n++)
		MUST(close(make("noise", "wrong")) == 0);
	receive(two[1], got, 1, 0);
	SAY(read(got[0], text, 3));
	printf("%.3s\n", text);
	send_all(two[0], got, 1);
	receive(two[1], got + 1, 1, 0);
	SAY(lseek(got[1], 0, SEEK_CUR));
	SAY(lseek(got[0], 7, SEEK_SET));
	SAY(lseek(got[1], 0, SEEK_CUR));
	SAY(close(got[0]));
	SAY(read(got[1], text, 3));
	printf("%.3s\n", text);

	/* pidfd_getfd: nobody in this process sees that it happens. */
	int ready[2], go[2];
	MUST(pipe(ready) == 0 && pipe(go) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		fd = make("taken", "0123456789");
		lseek(fd, 4, SEEK_SET);
		MUST(write(ready[1], &fd, sizeof fd) == sizeof fd && read(go[0], &byte, 1) == 1);
		MUST(write(fd, "child", 5) == 5);
		_exit(0);
	}
	MUST(read(ready[0], &fd, sizeof fd) == sizeof fd);
	int pidfd = syscall(SYS_pidfd_open, pid, 0);
	int taken = syscall(SYS_pidfd_getfd, pidfd, fd, 0);
	SAY(pread(taken, text, 4, 0));
	SAY(fcntl(taken, F_GETFL) & O_ACCMODE);
	MUST(write(go[1], "g", 1) == 1);
	reap(pid);
	SAY(pread(taken, text, 15, 0));
	printf("%s\n", text);
	for (int round = 0; round < 3; round++)
		reused(round);
	return 0;
}
