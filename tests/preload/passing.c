/* A descriptor sent to another process over a socket: same file, same offset, and it stays good. */
#include "check.h"
#include <sys/socket.h>

static void send_fd(int socket, int fd)
{
	char byte = 'f', control[CMSG_SPACE(sizeof fd)] = { 0 };
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof control };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(header), &fd, sizeof fd);
	CHECK(sendmsg(socket, &message, 0) == 1);
}

static int receive_fd(int socket)
{
	int fd = -1;
	char byte, control[CMSG_SPACE(sizeof fd)];
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof control };
	CHECK(recvmsg(socket, &message, 0) == 1);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	return fd;
}

int main(int argc, char **argv)
{
	start(argc, argv);
	int ends[2];
	char text[16] = "", byte;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		int fd = receive_fd(ends[1]);
		CHECK(fd >= 0);
		CHECK(read(fd, text, 3) == 3 && memcmp(text, "345", 3) == 0);
		CHECK(write(ends[1], "1", 1) == 1 && read(ends[1], &byte, 1) == 1);
		/* The sender has closed it and opened other files since. */
		CHECK(read(fd, text, 3) == 3 && memcmp(text, "678", 3) == 0);
		_exit(0);
	}
	CHECK(close(ends[1]) == 0);
	int fd = make("passed", "0123456789");
	CHECK(lseek(fd, 3, SEEK_SET) == 3);
	send_fd(ends[0], fd);
	CHECK(read(ends[0], &byte, 1) == 1);
	CHECK(lseek(fd, 0, SEEK_CUR) == 6 && close(fd) == 0);
	for (int n = 0; n < 20; n++)
		CHECK(close(make("noise", "wrong file!!")) == 0);
	CHECK(write(ends[0], "2", 1) == 1);
	reap(pid);
	return 0;
}
