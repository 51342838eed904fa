/*
 * A process that shares its umask and its working directory with another one (CLONE_FS): what
 * either changes holds for both, and a thread that stops sharing them (unshare) changes its own.
 */
#include "say.h"
#include <pthread.h>
#include <sched.h>

enum { WARM = 20, STACK = 1 << 16 };

static char stack[STACK] __attribute__((aligned(16)));

static void told(const char *what)
{
	struct stat st;
	int fd = open("made", O_RDWR | O_CREAT | O_EXCL, 0666);
	MUST(fd >= 0 && fstat(fd, &st) == 0 && close(fd) == 0 && unlink("made") == 0);
	printf("%s: mode %o\n", what, st.st_mode & 0777);
	show("name");
}

static int down(void *unused)
{
	(void)unused;
	umask(077);
	return chdir("below") == 0 ? 0 : 1;
}

static int down_by_number(void *unused)
{
	(void)unused;
	syscall(SYS_umask, 07);
	return syscall(SYS_chdir, "below") == 0 ? 0 : 1;
}

static void *own_place(void *unused)
{
	(void)unused;
	SAY(unshare(CLONE_FS));
	MUST(chdir("below") == 0);
	umask(0);
	told("the thread");
	return NULL;
}

/* The child sees what its parent does later. */
static void both_ways(void)
{
	int before[2], after[2];
	char byte;
	MUST(pipe(before) == 0 && pipe(after) == 0);
	fflush(stdout);
	pid_t pid = syscall(SYS_clone, CLONE_FS | SIGCHLD, 0, 0, 0, 0);
	MUST(pid >= 0);
	if (pid == 0) {
		told("the child, before");
		MUST(write(before[1], "x", 1) == 1 && read(after[0], &byte, 1) == 1);
		told("the child, after");
		fflush(stdout);
		_exit(0);
	}
	MUST(read(before[0], &byte, 1) == 1);
	MUST(chdir("below") == 0);
	umask(027);
	MUST(write(after[1], "x", 1) == 1);
	reap(pid);
	told("the parent");
	MUST(chdir("..") == 0);
}

/* The child executes a program, which shares them still. */
static void over_exec(const char *program)
{
	int before[2], after[2];
	char numbers[2][16], byte;
	MUST(pipe(before) == 0 && pipe(after) == 0);
	fflush(stdout);
	pid_t pid = syscall(SYS_clone, CLONE_FS | SIGCHLD, 0, 0, 0, 0);
	MUST(pid >= 0);
	if (pid == 0) {
		snprintf(numbers[0], sizeof numbers[0], "%d", before[1]);
		snprintf(numbers[1], sizeof numbers[1], "%d", after[0]);
		execl(program, program, numbers[0], numbers[1], NULL);
		_exit(1);
	}
	MUST(read(before[0], &byte, 1) == 1);
	MUST(chdir("below") == 0);
	umask(037);
	MUST(write(after[1], "x", 1) == 1);
	reap(pid);
	told("the parent");
	MUST(chdir("..") == 0);
}

static int executed(int before, int after)
{
	char byte;
	for (int i = 0; i < WARM; i++)
		MUST(close(make("warm", "x")) == 0);
	told("the program, before");
	MUST(write(before, "x", 1) == 1 && read(after, &byte, 1) == 1);
	told("the program, after");
	SAY(getenv("POLYLANE_SHARED_PLACE") == NULL);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 2)
		return executed(atoi(argv[1]), atoi(argv[2]));
	int (*ways[])(void *) = { down, down_by_number };
	umask(022);
	MUST(mkdir("below", 0777) == 0);
	MUST(close(make("name", "above")) == 0 && close(make("below/name", "below")) == 0);
	for (int warm = 0; warm <= WARM; warm += WARM) {
		for (int way = 0; way < 2; way++) {
			CHILD {
				for (int i = 0; i < warm; i++)
					MUST(close(make("warm", "x")) == 0);
				told("alone");
				fflush(stdout);
				pid_t pid = clone(ways[way], stack + STACK, CLONE_FS | SIGCHLD, NULL);
				MUST(pid > 0);
				reap(pid);
				told("beside the child");
			}
		}
		CHILD
			both_ways();
		CHILD
			over_exec(argv[0]);
		CHILD {
			pthread_t thread;
			told("alone");
			MUST(pthread_create(&thread, NULL, own_place, NULL) == 0);
			MUST(pthread_join(thread, NULL) == 0);
			told("beside the thread");
		}
	}
	return 0;
}
