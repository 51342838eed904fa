/* Where a process is whose directory was renamed or removed. */
#include "say.h"

static char start[PATH_MAX];

static void where(void)
{
	char path[PATH_MAX] = "";
	if (getcwd(path, sizeof path) == NULL)
		printf("getcwd: %s\n", strerror(errno));
	else
		printf("getcwd: %s\n", strncmp(path, start, strlen(start)) ? path : path + strlen(start));
	char *name = get_current_dir_name();
	printf("get_current_dir_name: %s\n", name ? strrchr(name, '/') : strerror(errno));
	free(name);
	if (realpath(".", path) == NULL)
		printf("realpath: %s\n", strerror(errno));
	else
		printf("realpath: %s\n", strrchr(path, '/'));
	printf("by number: %ld\n", (long)(syscall(SYS_getcwd, path, sizeof path) > 0));
	fflush(stdout);
}

static void links(void)
{
	char path[PATH_MAX] = "";
	ssize_t count = readlink("/proc/self/cwd", path, sizeof path - 1);
	MUST(count > 0);
	path[count] = 0;
	printf("/proc/self/cwd: %s\n", strrchr(path, '/'));
	fflush(stdout);
}

int main(void)
{
	struct stat one, two;
	MUST(getcwd(start, sizeof start) != NULL);
	unsetenv("PWD");
	for (int round = 0; round < 3; round++) {
		for (int n = 0; n < 6; n++)
			MUST(close(make("warm", "warm")) == 0);
		SAY(mkdir("dir", 0755));
		SAY(chdir("dir"));
		where();
		SAY(rename("../dir", "../moved"));
		where();
		links();
		SAY(mkdir("below", 0755));
		SAY(chdir("below"));
		SAY(rename("../../moved", "../../again"));
		where();
		links();
		SAY(stat(".", &one) + stat("../../again/below", &two));
		SAY(one.st_ino == two.st_ino);
		/* Somebody else does it, and another one is there. */
		CHILD {
			MUST(chdir(start) == 0);
			MUST(rename("again", "third") == 0);
			where();
		}
		usleep(100000);
		where();
		SAY(mkdir("../../aside", 0755));
		SAY(renameat2(AT_FDCWD, "../../third", AT_FDCWD, "../../aside", RENAME_EXCHANGE));
		where();
		links();
		SAY(close(open("file", O_CREAT | O_WRONLY, 0644)));
		SAY(unlink("file"));
		SAY(rmdir("../below"));
		where();
		SAY(open("file", O_CREAT | O_WRONLY, 0644));
		SAY(chdir(start));
		where();
		int dir = open("aside", O_RDONLY | O_DIRECTORY);
		SAY(rmdir("aside"));
		where();
		SAY(fchdir(dir));
		where();
		SAY(close(dir));
		SAY(chdir(start));
		SAY(rmdir("third"));
		where();
		/* One takes the other's place. */
		SAY(mkdir("from", 0755) + mkdir("to", 0755));
		SAY(chdir("to"));
		where();
		SAY(rename("../from", "../to"));
		where();
		SAY(chdir(start));
		SAY(rmdir("to"));
	}
	return 0;
}
