/* vfork, clone without CLONE_FILES, with a memory of its own or shared, and threads that leave the
 * common descriptor table. */
#include "say.h"
#include <pthread.h>
#include <sched.h>

static int fd, other;
static char stack[1 << 16] __attribute__((aligned(64)));

static int child(void *name)
{
	char text[8] = "";
	int ok = pread(fd, text, 4, 0) == 4 && memcmp(text, "0123", 4) == 0;
	int mine = open("new", O_RDWR | O_CREAT | O_TRUNC, 0644);
	ok += mine >= 0 && write(mine, name, strlen(name)) > 0;
	ok += close(fd) == 0 && read(fd, text, 1) == -1 && errno == EBADF;
	ok += lseek(other, 2, SEEK_CUR) >= 0;
	ok += close(mine) == 0;
	return 10 + ok;
}

static void by_clone(const char *name, int flags)
{
	pid_t pid = clone(child, stack + sizeof stack, flags | SIGCHLD, (void *)name);
	MUST(pid >= 0);
	int status;
	MUST(waitpid(pid, &status, 0) == pid);
	printf("%s: %d\n", name, WEXITSTATUS(status));
	char text[8] = "";
	SAY(pread(fd, text, 4, 0));
	SAY(lseek(other, 0, SEEK_CUR));
	show("new");
}

static void *leaver(void *unused)
{
	(void)unused;
	char text[8] = "";
	SAY(unshare(CLONE_FILES));
	SAY(close(fd));
	SAY(pread(fd, text, 1, 0));
	int mine = open("new", O_RDONLY);
	SAY(mine == fd);
	SAY(pread(mine, text, 7, 0));
	printf("%s\n", text);
	return NULL;
}

int main(void)
{
	fd = make("f", "0123456789"), other = make("g", "abcdefghij");
	SAY(lseek(other, 0, SEEK_SET));
	by_clone("own memory", 0);
	by_clone("as vfork does", CLONE_VM | CLONE_VFORK);
	by_clone("same directory", CLONE_FS);

	pid_t pid = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, 0L);
	MUST(pid >= 0);
	if (pid == 0)
		_exit(child("by syscall"));
	reap(pid);
	show("new");
	pid = vfork();
	if (pid == 0) {
		close(fd);
		dup2(other, 0);
		execlp("head", "head", "-c", "3", (char *)NULL);
		_exit(9);
	}
	reap(pid);
	char text[8] = "";
	SAY(pread(fd, text, 4, 0));
	SAY(lseek(other, 0, SEEK_CUR));
	/* One that fails to execute anything. */
	pid = vfork();
	if (pid == 0) {
		execl("none", "none", (char *)NULL);
		_exit(errno);
	}
	reap(pid);

	pthread_t thread;
	MUST(pthread_create(&thread, NULL, leaver, NULL) == 0);
	pthread_join(thread, NULL);
	SAY(pread(fd, text, 4, 0));
	printf("%s\n", text);
	return 0;
}
