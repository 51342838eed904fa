/* Signals inside calls: SA_RESTART and without, on locks, fifos and large transfers; and handlers
 * that never return to the call. With an argument: to one that waits for a lock, too. */
#include "say.h"
#include <setjmp.h>
#include <sys/file.h>
#include <sys/time.h>

static volatile sig_atomic_t rings;
static sigjmp_buf back;
static char big[8 << 20];

static void ring(int signal)
{
	(void)signal;
	rings++;
}

static void jump(int signal)
{
	siglongjmp(back, signal);
}

static void catch(void (*handler)(int), int flags, long us, long again)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
	struct itimerval when = { { 0, again }, { 0, us } };
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &when, NULL);
}

static pid_t holder(const char *path, int ms)
{
	int ends[2];
	char byte;
	MUST(pipe(ends) == 0);
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		struct flock lock = { .l_type = F_WRLCK };
		int fd = open(path, O_RDWR);
		MUST(fcntl(fd, F_SETLK, &lock) == 0 && flock(fd, LOCK_EX) == 0);
		MUST(write(ends[1], "h", 1) == 1);
		usleep(ms * 1000);
		_exit(0);
	}
	MUST(read(ends[0], &byte, 1) == 1);
	close(ends[0]);
	close(ends[1]);
	return pid;
}

static void locks(int flags)
{
	struct flock lock = { .l_type = F_WRLCK };
	int fd = open("f", O_RDWR);
	pid_t pid = holder("f", 300);
	rings = 0;
	catch(ring, flags, 60000, 0);
	SAY(fcntl(fd, F_SETLKW, &lock));
	SAY(rings);
	reap(pid);
	lock.l_type = F_UNLCK;
	SAY(fcntl(fd, F_SETLK, &lock));
	pid = holder("f", 300);
	rings = 0;
	catch(ring, flags, 60000, 0);
	SAY(flock(fd, LOCK_EX));
	SAY(rings);
	reap(pid);
	SAY(close(fd));
}

static void fifos(void)
{
	char text[8];
	MUST(mkfifo("fifo", 0644) == 0);
	int fd = open("fifo", O_RDWR);
	catch(ring, 0, 30000, 0);
	SAY(read(fd, text, 1));
	pid_t pid = fork();
	if (pid == 0) {
		usleep(150000);
		MUST(write(fd, "late", 4) == 4);
		_exit(0);
	}
	rings = 0;
	catch(ring, SA_RESTART, 30000, 0);
	SAY(read(fd, text, 8));
	SAY(rings);
	reap(pid);
	SAY(close(fd));
	catch(ring, 0, 30000, 0);
	SAY(open("fifo", O_WRONLY));
}

static void transfers(void)
{
	int fd = make("big", "");
	memset(big, 'q', sizeof big);
	rings = 0;
	catch(ring, 0, 300, 300);
	long sum = 0;
	for (int n = 0; n < 8; n++)
		sum += pwrite(fd, big, sizeof big, 0) + pread(fd, big, sizeof big, 0);
	catch(ring, 0, 0, 0);
	printf("%ld bytes, %s signals\n", sum, rings ? "some" : "no");
	SAY(close(fd));
}

static void out_of_a_wait(void)
{
	int fd = open("f", O_RDWR);
	struct flock lock = { .l_type = F_WRLCK };
	pid_t pid = holder("f", 200);
	if (sigsetjmp(back, 1) == 0) {
		catch(jump, 0, 30000, 0);
		fcntl(fd, F_SETLKW, &lock);
		printf("not reached\n");
	}
	reap(pid);
	CHILD {
		SAY(fcntl(fd, F_SETLK, &lock));
	}
}

/* Out of the middle of a call, again and again; then everything works as before. */
static void jumps(void)
{
	volatile int count = 0, fd = open("f", O_RDWR);
	struct stat st;
	while (count < 100) {
		if (sigsetjmp(back, 1) == 0) {
			catch(jump, 0, 200 + 17 * count, 0);
			for (;;) {
				MUST(pwrite(fd, big, 60000, 0) == 60000 && pread(fd, big, 50, 0) == 50);
				MUST(stat("f", &st) == 0);
			}
		}
		count = count + 1;
	}
	catch(jump, 0, 0, 0);
	SAY(pwrite(fd, "0123", 4, 0));
	SAY(pread(fd, big, 4, 0));
	SAY(make("new", "text") > 2);
	SAY((stat("f", &st), st.st_size));
}

int main(int argc, char **argv)
{
	(void)argv;
	MUST(close(make("f", "0123456789")) == 0);
	locks(SA_RESTART);
	locks(0);
	fifos();
	transfers();
	if (argc > 1)
		out_of_a_wait();
	jumps();
	return 0;
}
