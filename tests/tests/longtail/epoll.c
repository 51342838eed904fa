/* Regular files and directories cannot be waited for with epoll. */
#include "say.h"
#include <sys/epoll.h>

int main(void)
{
	struct epoll_event event = { .events = EPOLLIN };
	int epoll = epoll_create1(0), two[2];
	MUST(pipe(two) == 0);
	for (int n = 0; n < 6; n++) {
		int fd = make("file", "bytes");
		SAY(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
		SAY(epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL));
		close(fd);
	}
	int fd = open("file", O_RDONLY), dir = open(".", O_RDONLY | O_DIRECTORY);
	int path = open("file", O_PATH);
	SAY(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
	SAY(epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event));
	SAY(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, NULL));
	SAY(epoll_ctl(epoll, EPOLL_CTL_ADD, dir, &event));
	SAY(epoll_ctl(epoll, EPOLL_CTL_ADD, path, &event));
	SAY(epoll_ctl(dup(fd), EPOLL_CTL_ADD, fd, &event));
	SAY(epoll_ctl(999, EPOLL_CTL_ADD, fd, &event));
	SAY(epoll_ctl(epoll, EPOLL_CTL_ADD, 999, &event));
	SAY(syscall(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, fd, &event));
	SAY(epoll_ctl(epoll, EPOLL_CTL_ADD, two[0], &event));
	SAY(epoll_ctl(epoll, EPOLL_CTL_ADD, two[0], &event));
	SAY(epoll_wait(epoll, &event, 1, 0));
	SAY(write(two[1], "x", 1));
	SAY(epoll_wait(epoll, &event, 1, 0));
	close(two[0]);
	close(two[1]);
	/* The number of a pipe that was waited for is a file's now. */
	SAY(open("file", O_RDONLY) == two[0]);
	SAY(epoll_ctl(epoll, EPOLL_CTL_ADD, two[0], &event));
	SAY(epoll_wait(epoll, &event, 1, 0));
	return 0;
}
