/* A child that is forked while another thread opens files may have one of them, which stays that file
 * whatever the parent opens later. */
#include "say.h"
#include <pthread.h>

enum { FILES = 8, CHILDREN = 60, NUMBER_MAX = 40 };

/* What goes on in all processes. */
static struct {
	volatile int opened, end;
} *shared;

/* Past libc: nobody else is to hear of it. */
static long raw(long number, long a, long b, long c, long d)
{
	long rc;
	register long fourth __asm__("r10") = d;
	__asm__ volatile("syscall" : "=a"(rc) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
			 : "rcx", "r11", "memory");
	return rc;
}

static void name(int number, char path[16])
{
	snprintf(path, 16, "f%d", number);
}

static void *opener(void *unused)
{
	char path[16];
	for (int i = 0; !shared->end; i++) {
		name(i % FILES, path);
		int fd = open(path, O_RDWR | O_CREAT, 0644);
		MUST(fd >= 0 && close(fd) == 0);
		shared->opened++;
	}
	return unused;
}

/* Whether each number goes on to mean what it means. */
static int is_right(int first)
{
	int held[NUMBER_MAX], since = shared->opened;
	for (int fd = first; fd < NUMBER_MAX; fd++)
		if (raw(SYS_pread64, fd, (long)&held[fd], sizeof *held, 0) != sizeof *held)
			held[fd] = -1;
	while (shared->opened - since < 2 * FILES && !shared->end)
		usleep(100);
	for (int fd = first; fd < NUMBER_MAX; fd++) {
		int number = -1;
		if (held[fd] >= 0)
			MUST(pread(fd, &number, sizeof number, 0) == sizeof number);
		if (number != held[fd])
			return 0;
	}
	return 1;
}

int main(void)
{
	char path[16];
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(shared != MAP_FAILED);
	for (int i = 0; i < FILES; i++) {
		name(i, path);
		int fd = open(path, O_RDWR | O_CREAT, 0644);
		MUST(write(fd, &i, sizeof i) == sizeof i && close(fd) == 0);
	}
	int first = dup(0), wrong = 0;
	MUST(first >= 0 && close(first) == 0);
	pthread_t thread;
	MUST(pthread_create(&thread, NULL, opener, NULL) == 0);
	for (int i = 0; i < CHILDREN; i++) {
		pid_t pid = fork();
		MUST(pid >= 0);
		if (pid == 0)
			_exit(!is_right(first));
		int status;
		MUST(waitpid(pid, &status, 0) == pid);
		wrong += status != 0;
	}
	shared->end = 1;
	pthread_join(thread, NULL);
	printf("%d children had another file\n", wrong);
	return 0;
}
