/* posix_spawn, system, popen, vfork, exec with another environment, and what is inherited. */
#include "check.h"
#include <spawn.h>

extern char **environ;

static char here[PATH_MAX];

static const char *beside(const char *name)
{
	static char path[2 * PATH_MAX];
	snprintf(path, sizeof path, "%s/%s", here, name);
	return path;
}

static void spawned(void)
{
	pid_t pid;
	int fd = make("spawn", "start ");
	posix_spawn_file_actions_t actions;
	CHECK(posix_spawn_file_actions_init(&actions) == 0);
	CHECK(posix_spawn_file_actions_adddup2(&actions, fd, 1) == 0);
	char *args[] = { "static-write", "spawned", NULL };
	CHECK(posix_spawn(&pid, beside("static-write"), &actions, NULL, args, environ) == 0);
	reap(pid);
	CHECK(lseek(fd, 0, SEEK_CUR) == 13 && write(fd, " parent", 7) == 7);
	/* A preloaded program, by name, with next to no environment. */
	char *echo[] = { "echo", "!", NULL }, *bare[] = { "PATH=/usr/bin:/bin", NULL };
	CHECK(posix_spawnp(&pid, "echo", &actions, NULL, echo, bare) == 0);
	reap(pid);
	CHECK(posix_spawn(&pid, "/nowhere", &actions, NULL, echo, bare) != 0);
	CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
	CHECK(write(fd, "end", 3) == 3 && close(fd) == 0);
	expect_text("spawn", "start spawned parent!\nend");
}

static void shells(void)
{
	char command[3 * PATH_MAX], line[64] = "";
	snprintf(command, sizeof command, "echo one > %s && cat %s", in_dir("sh"), in_dir("sh"));
	FILE *pipe = popen(command, "r");
	CHECK(pipe != NULL && fgets(line, sizeof line, pipe) && strcmp(line, "one\n") == 0);
	CHECK(pclose(pipe) == 0);
	snprintf(command, sizeof command, "echo two >> %s; exit 3", in_dir("sh"));
	CHECK(WEXITSTATUS(system(command)) == 3);
	expect_text("sh", "one\ntwo\n");
}

static void vforked(void)
{
	int fd = make("vfork", ""), status;
	pid_t pid = vfork();
	CHECK(pid >= 0);
	if (pid == 0) {
		dup2(fd, 1);
		execl(beside("static-write"), "static-write", "by vfork", (char *)NULL);
		_exit(127);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(lseek(fd, 0, SEEK_CUR) == 8);
	expect_text("vfork", "by vfork");

	/* The parent waits until the child is gone. */
	pid = vfork();
	CHECK(pid >= 0);
	if (pid == 0) {
		usleep(20000);
		_exit(pwrite(fd, "B", 1, 0) == 1 ? 0 : 1);
	}
	char byte = 0;
	CHECK(pread(fd, &byte, 1, 0) == 1 && byte == 'B');
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(close(fd) == 0);
}

/* The second life of this program: told in arguments what it must find. */
static int reborn(int argc, char **argv)
{
	CHECK(argc == 5);
	char text[16] = "";
	int kept = atoi(argv[3]), closed = atoi(argv[4]);
	CHECK(read(kept, text, 3) == 3 && memcmp(text, "456", 3) == 0);
	CHECK(lseek(kept, 0, SEEK_CUR) == 7);
	CHECK(write(kept, "X", 1) == 1);
	FAILS(fcntl(closed, F_GETFD), EBADF);
	if (getenv("WANT_PRELOAD")) {
		CHECK(getenv("LD_PRELOAD") && getenv("POLYLANE_MOUNT"));
		int fd = make("reborn", "x");
		CHECK(is_fast(fd) && close(fd) == 0);
	}
	return 0;
}

static void inherited(char *self)
{
	char kept[16], closed[16];
	int fd = make("inherit", "0123456789");
	int other = open(in_dir("inherit"), O_RDONLY | O_CLOEXEC);
	CHECK(other >= 0 && lseek(fd, 4, SEEK_SET) == 4);
	snprintf(kept, sizeof kept, "%d", fd);
	snprintf(closed, sizeof closed, "%d", other);
	char *args[] = { self, dir_path, "reborn", kept, closed, NULL };
	char *bare[] = { NULL, "POLYLANE_PATIENCE=0", NULL };
	if (getenv("EXPECT_FAST"))
		bare[0] = "WANT_PRELOAD=1";
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		/* An exec that fails leaves everything as it was. */
		FAILS(execve("/nowhere", args, bare), ENOENT);
		CHECK(lseek(other, 0, SEEK_CUR) == 0 && lseek(fd, 0, SEEK_CUR) == 4);
		execve(self, args, bare);
		_exit(127);
	}
	reap(pid);
	CHECK(lseek(fd, 0, SEEK_CUR) == 8);
	CHECK(close(fd) == 0 && close(other) == 0);
	expect_text("inherit", "0123456X89");
}

int main(int argc, char **argv)
{
	start(argc, argv);
	if (argc > 2)
		return reborn(argc, argv);
	CHECK(realpath(argv[0], here) != NULL);
	char self[PATH_MAX];
	strcpy(self, here);
	*strrchr(here, '/') = 0;
	spawned();
	shells();
	vforked();
	inherited(self);
	return 0;
}
