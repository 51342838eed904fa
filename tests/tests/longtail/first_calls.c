/* The first calls of a process on files, or after a change of who it is, are made by a signal handler,
 * in the middle of malloc. */
#include "say.h"
#include <pthread.h>
#include <sys/time.h>

enum { CHILDREN = 40, PIECES = 64, PATIENCE_MS = 8000 };

static volatile sig_atomic_t done;

static void use_files(void)
{
	for (int i = 0; i < 14; i++) {
		char byte;
		int fd = open("f", O_RDWR);
		if (fd < 0 || read(fd, &byte, 1) != 1 || close(fd) != 0)
			_exit(1);
	}
}

static void handler(int signal)
{
	(void)signal;
	use_files();
	done = 1;
}

static void *sleeper(void *unused)
{
	for (;;)
		pause();
	return unused;
}

static int child(int changes)
{
	struct sigaction action = { .sa_handler = handler };
	struct itimerval once = { { 0, 0 }, { 0, 1000 + getpid() % 97 * 31 } };
	pthread_t thread;
	if (changes) {
		use_files();
		MUST(seteuid(geteuid()) == 0);
	}
	/* Beside another thread malloc takes its lock. */
	MUST(pthread_create(&thread, NULL, sleeper, NULL) == 0);
	MUST(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &once, NULL) == 0);
	while (!done) {
		void *pieces[PIECES];
		for (int i = 0; i < PIECES; i++)
			pieces[i] = malloc(2000 + i * 517);
		for (int i = 0; i < PIECES; i++)
			free(pieces[i]);
	}
	_exit(0);
}

/* Whether a child ended well, before it was given up. */
static int ended(pid_t pid)
{
	int status;
	for (int i = 0; i < PATIENCE_MS; i++) {
		if (waitpid(pid, &status, WNOHANG) == pid)
			return status == 0;
		usleep(1000);
	}
	MUST(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return child(strcmp(argv[1], "changes") == 0);
	MUST(close(make("f", "text")) == 0);
	int well = 0;
	for (int i = 0; i < CHILDREN && well == i; i++) {
		pid_t pid = fork();
		if (pid == 0) {
			execl(argv[0], argv[0], i % 2 ? "changes" : "begins", NULL);
			_exit(9);
		}
		well += ended(pid);
	}
	printf("%d of %d ended well\n", well, CHILDREN);
	return 0;
}
