/* Copies of descriptors that libc makes within itself, and numbers that are closed and given out
 * past libc's wrappers. */
#include "say.h"
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <dirent.h>
#include <wordexp.h>

static void raw_close(int fd)
{
	long rc;
	__asm__ volatile("syscall" : "=a"(rc) : "a"(SYS_close), "D"((long)fd)
			 : "rcx", "r11", "memory");
	MUST(rc == 0);
}

/* A number that meant a file of the lane, the lowest that is free. */
static int stale(void)
{
	int fd = make("victim", "important");
	raw_close(fd);
	return fd;
}

/* What is written to the number does not go into the file. */
static void look(const char *what, int fd, int number)
{
	char text[16] = "";
	int old = fd == number, victim;
	MUST(write(fd, "x", 1) != -2);
	MUST(pwrite(fd, "yy", 2, 0) != -2);
	printf("%s: same number %d, ", what, old);
	struct stat st;
	MUST(fstat(fd, &st) == 0);
	printf("a file %d, ", S_ISREG(st.st_mode));
	close(fd);
	victim = open("victim", O_RDONLY);
	MUST(read(victim, text, 15) >= 0);
	close(victim);
	printf("victim: %s\n", text);
}

static void numbers(void)
{
	int fd, two[2], other;
	sigset_t none;
	sigemptyset(&none);
	signal(SIGPIPE, SIG_IGN);
#define ONE(call)                                                                                  \
	do {                                                                                       \
		fd = stale();                                                                      \
		MUST((other = (call)) >= 0);                                                       \
		look(#call, other, fd);                                                            \
	} while (0)
#define TWO(call)                                                                                  \
	do {                                                                                       \
		fd = stale();                                                                      \
		MUST((call) == 0);                                                                 \
		look(#call, two[0], fd);                                                           \
		close(two[1]);                                                                     \
	} while (0)
	ONE(socket(AF_INET, SOCK_DGRAM, 0));
	ONE(eventfd(0, EFD_NONBLOCK));
	ONE(epoll_create(1));
	ONE(epoll_create1(0));
	ONE(memfd_create("m", 0));
	ONE(timerfd_create(CLOCK_MONOTONIC, 0));
	ONE(signalfd(-1, &none, 0));
	ONE(inotify_init());
	ONE(inotify_init1(IN_CLOEXEC));
	ONE(syscall(SYS_pidfd_open, getpid(), 0));
	ONE(syscall(SYS_eventfd2, 0, EFD_NONBLOCK));
	ONE(syscall(SYS_socket, AF_UNIX, SOCK_STREAM, 0));
	TWO(socketpair(AF_UNIX, SOCK_STREAM, 0, two));
	TWO(pipe(two));
	TWO(pipe2(two, O_CLOEXEC));
	TWO(syscall(SYS_pipe2, two, 0));

	fd = stale();
	FILE *stream = fopen("/dev/null", "w");
	other = fileno(stream);
	SAY(write(other, "x", 1));
	printf("fopen: same number %d\n", other == fd);
	fclose(stream);
	show("victim");
	fd = stale();
	DIR *dir = opendir("/proc");
	SAY(dirfd(dir) == fd);
	SAY(write(dirfd(dir), "x", 1));
	closedir(dir);
	show("victim");

	/* A connection taken. */
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t len = sizeof address;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	int server = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(server, (struct sockaddr *)&address, sizeof address) == 0 &&
	    listen(server, 1) == 0 && getsockname(server, (struct sockaddr *)&address, &len) == 0 &&
	    connect(client, (struct sockaddr *)&address, len) == 0) {
		fd = stale();
		other = accept(server, NULL, NULL);
		SAY(other == fd);
		SAY(write(other, "hello", 5));
		char text[8] = "";
		SAY(read(client, text, 7));
		SAY(lseek(other, 0, SEEK_CUR));
		close(other);
		show("victim");
	}
	close(server);
	close(client);
}

/* wordexp runs a shell that keeps the descriptor after we have closed it. */
static void expanded(void)
{
	wordexp_t words;
	char command[128], name[16], text[32] = "";
	int others[8];
	int fd = make("words", "content of words");
	SAY(lseek(fd, 0, SEEK_SET));
	snprintf(command, sizeof command,
		 "$( (sleep 0.3; cat <&%d >words.out; : >words.done) >/dev/null 2>&1 & )", fd);
	SAY(wordexp(command, &words, 0));
	SAY(close(fd));
	for (int n = 0; n < 8; n++) {
		snprintf(name, sizeof name, "other%d", n);
		others[n] = make(name, "another's file");
		MUST(lseek(others[n], 0, SEEK_SET) == 0);
	}
	for (int n = 0; n < 200 && access("words.done", F_OK) != 0; n++)
		usleep(50000);
	show("words.out");
	for (int n = 0; n < 8; n++) {
		MUST(pread(others[n], text, 31, 0) == 14);
		MUST(lseek(others[n], 0, SEEK_CUR) == 0);
		close(others[n]);
	}
	wordfree(&words);
}

int main(void)
{
	/* Enough files for those that follow to be opened as files usually are. */
	for (int n = 0; n < 12; n++)
		MUST(close(make("warm", "warm")) == 0);
	expanded();
	numbers();
	return 0;
}
