/* posix_spawn with file actions and attributes. */
#include "say.h"
#include <spawn.h>

static void spawn(const char *what, posix_spawn_file_actions_t *actions, posix_spawnattr_t *attr,
		  const char *command)
{
	pid_t pid;
	char *args[] = { "sh", "-c", (char *)command, NULL };
	int rc = posix_spawn(&pid, "/bin/sh", actions, attr, args, environ);
	/* The child prints at the same time: it goes first. */
	if (rc == 0)
		reap(pid);
	printf("%s: %s\n", what, strerror(rc));
	fflush(stdout);
	posix_spawn_file_actions_destroy(actions);
	posix_spawn_file_actions_init(actions);
}

int main(void)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	posix_spawn_file_actions_init(&actions);
	posix_spawnattr_init(&attr);
	MUST(mkdir("sub", 0755) == 0);
	int fd = make("f", "0123456789"), cloexec = open("f", O_RDWR | O_CLOEXEC);
	char command[128];
	SAY(lseek(fd, 3, SEEK_SET));

	posix_spawn_file_actions_addopen(&actions, 1, "out", O_WRONLY | O_CREAT | O_TRUNC, 0640);
	posix_spawn_file_actions_addopen(&actions, 0, "f", O_RDONLY, 0);
	spawn("open", &actions, NULL, "cat; echo '' end");
	show("out");
	struct stat st;
	SAY((stat("out", &st), st.st_mode & 0777));

	posix_spawn_file_actions_adddup2(&actions, fd, 0);
	posix_spawn_file_actions_addopen(&actions, 1, "out", O_WRONLY | O_APPEND, 0);
	posix_spawn_file_actions_adddup2(&actions, 1, 2);
	spawn("dup2", &actions, NULL, "head -c 2; echo err >&2");
	show("out");

	SAY(lseek(fd, 3, SEEK_SET));
	posix_spawn_file_actions_adddup2(&actions, cloexec, cloexec);
	posix_spawn_file_actions_addclose(&actions, fd);
	snprintf(command, sizeof command, "head -c 4 <&%d; echo; (echo x >&%d) 2>/dev/null || echo closed",
		 cloexec, fd);
	spawn("same number", &actions, NULL, command);
	SAY(lseek(cloexec, 0, SEEK_CUR));
	SAY(lseek(fd, 0, SEEK_CUR));

	posix_spawn_file_actions_addchdir_np(&actions, "sub");
	posix_spawn_file_actions_addopen(&actions, 1, "inside", O_WRONLY | O_CREAT, 0644);
	spawn("chdir", &actions, NULL, "echo here; cat ../f");
	show("sub/inside");
	int dir = open("sub", O_RDONLY | O_CLOEXEC);
	posix_spawn_file_actions_addfchdir_np(&actions, dir);
	spawn("fchdir", &actions, NULL, "ls");
	posix_spawn_file_actions_addclosefrom_np(&actions, 3);
	snprintf(command, sizeof command, "(cat <&%d) 2>/dev/null || echo closed; cat f", fd);
	spawn("closefrom", &actions, NULL, command);
	posix_spawn_file_actions_addopen(&actions, 1, "none/none", O_WRONLY | O_CREAT, 0644);
	spawn("no directory", &actions, NULL, "echo never");
	posix_spawn_file_actions_adddup2(&actions, 999, 1);
	spawn("bad number", &actions, NULL, "echo never");

	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	posix_spawnattr_setsigmask(&attr, &set);
	posix_spawnattr_setpgroup(&attr, 0);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
	spawn("attributes", &actions, &attr, "kill -TERM $$; echo alive > alive");
	show("alive");
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_RESETIDS | POSIX_SPAWN_SETSID);
	spawn("session", &actions, &attr, "cat f | tr 0-9 a-j; echo");
	/* With no environment at all. */
	pid_t pid;
	char *args[] = { "/bin/sh", "-c", "echo bare > bare; cat bare f", NULL }, *none[] = { NULL };
	MUST(posix_spawnp(&pid, "/bin/sh", NULL, NULL, args, none) == 0);
	reap(pid);
	SAY(posix_spawn(&pid, "./f", NULL, NULL, args, environ));
	SAY(read(fd, command, 7));
	return 0;
}
