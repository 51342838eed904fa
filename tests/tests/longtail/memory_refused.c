/* No memory can be had any more (RLIMIT_AS, RLIMIT_DATA), before the first use of the files and after some: each call gives
 * its result or an error, and the program goes on. */
#include "say.h"
#include <dirent.h>
#include <sys/resource.h>

enum { MANY = 60 };

static void use(int times)
{
	for (int i = 0; i < times; i++) {
		int fd = open("warm", O_RDWR | O_CREAT, 0644);
		MUST(fd >= 0 && write(fd, "hi", 2) == 2 && close(fd) == 0);
	}
}

/* Directory streams take memory: ENOMEM is as good as a listing. */
static const char *listed(const char *path)
{
	DIR *dir = opendir(path);
	if (!dir)
		return errno == ENOMEM ? "as may be" : "wrong";
	while (readdir(dir))
		;
	return closedir(dir) == 0 ? "as may be" : "wrong";
}

static void without_memory(int which)
{
	char name[32];
	struct stat st;
	struct rlimit limit;
	MUST(getrlimit(which, &limit) == 0);
	limit.rlim_cur = 0;
	MUST(setrlimit(which, &limit) == 0);
	int fd = SAY(open("file", O_RDWR | O_CREAT | O_TRUNC, 0644)) < 0 ? -1 : open("file", O_RDWR);
	SAY(write(fd, "hello", 5));
	SAY(fsync(fd));
	SAY(mkdir("dir", 0755));
	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof name, "dir/%d", i);
		int more = open(name, O_WRONLY | O_CREAT, 0600);
		MUST(more >= 0 && write(more, name, 5) == 5 && close(more) == 0);
	}
	SAY(rename("file", "dir/file"));
	SAY(stat("dir/file", &st));
	SAY(st.st_size);
	puts(listed("dir"));
	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof name, "dir/%d", i);
		MUST(unlink(name) == 0);
	}
	SAY(unlink("dir/file"));
	SAY(rmdir("dir"));
	SAY(pread(fd, name, 5, 0));
}

int main(void)
{
	int limits[] = { RLIMIT_AS, RLIMIT_DATA };
	int before[] = { 0, 3, 20 };
	for (int i = 0; i < 6; i++) {
		fflush(stdout);
		pid_t pid = fork();
		if (pid == 0) {
			use(before[i / 2]);
			without_memory(limits[i % 2]);
			fflush(stdout);
			_exit(0);
		}
		int status;
		MUST(pid > 0 && waitpid(pid, &status, 0) == pid);
		printf("status %x\n", status);
	}
	return 0;
}
