/* Directory streams: what is seen while names come and go, positions, descriptors, other processes. */
#include "say.h"
#include <dirent.h>
#include <pthread.h>

#ifndef __GLIBC__
#define getdents64 getdents
#endif

enum { FILES = 2500, STREAMS = 100 };

static int seen[FILES];

/* The number of a file, or -1: "." and "..". */
static int number(const struct dirent *entry)
{
	int number;
	return sscanf(entry->d_name, "a-file-%d", &number) == 1 ? number : -1;
}

static void fill(const char *dir, int from, int until)
{
	char path[PATH_MAX];
	MUST(mkdir(dir, 0755) == 0 || errno == EEXIST);
	for (int n = from; n < until; n++) {
		snprintf(path, sizeof path, "%s/a-file-%d", dir, n);
		MUST(close(make(path, "")) == 0);
	}
}

/* Reads at most so many entries; returns how many there were. */
static int take(DIR *dir, int most)
{
	int count = 0;
	for (struct dirent *entry; count < most && (entry = readdir(dir)); count++)
		if (number(entry) >= 0)
			seen[number(entry)]++;
	return count;
}

/* Says which of a range were seen how often, and forgets it. */
static void told(const char *what, int from, int until)
{
	int none = 0, once = 0, more = 0;
	for (int n = from; n < until; n++) {
		none += seen[n] == 0;
		once += seen[n] == 1;
		more += seen[n] > 1;
	}
	printf("%s: %d not, %d once, %d more often\n", what, none, once, more);
	fflush(stdout);
	memset(seen, 0, sizeof seen);
}

static void whole(void)
{
	DIR *dir = opendir("many");
	SAY(take(dir, FILES * 2));
	told("all", 0, FILES);
	SAY(readdir(dir) == NULL && errno == 0);
	rewinddir(dir);
	SAY(take(dir, FILES * 2));
	told("again", 0, FILES);
	SAY(closedir(dir));
}

static void changing(void)
{
	char path[PATH_MAX];
	DIR *dir = opendir("many");
	MUST(take(dir, 1000) == 1000);
	for (int n = 0; n < 500; n++) {
		snprintf(path, sizeof path, "many/a-file-%d", n);
		MUST(unlink(path) == 0);
		snprintf(path, sizeof path, "many/another-%d", n);
		MUST(close(make(path, "")) == 0);
	}
	take(dir, FILES * 2);
	told("kept", 500, FILES);
	rewinddir(dir);
	SAY(take(dir, FILES * 2));
	told("removed", 0, 500);
	SAY(closedir(dir));
	for (int n = 0; n < 500; n++) {
		snprintf(path, sizeof path, "many/another-%d", n);
		MUST(unlink(path) == 0);
	}
	fill("many", 0, 500);
}

static void positions(void)
{
	static struct { long at; char name[32]; } all[FILES + 3];
	static char buffer[1 << 15];
	DIR *dir = opendir("many");
	int count = 0, wrong = 0;
	for (struct dirent *entry; all[count].at = telldir(dir), (entry = readdir(dir)); count++)
		snprintf(all[count].name, sizeof all[count].name, "%.31s", entry->d_name);
	for (int turn = 0; turn < 300; turn++) {
		int n = turn * 7919 % count;
		seekdir(dir, all[n].at);
		struct dirent *entry = readdir(dir);
		wrong += !entry || strcmp(entry->d_name, all[n].name) != 0;
	}
	seekdir(dir, all[count].at);
	SAY(readdir(dir) == NULL);
	printf("%d entries, %d wrong by position\n", count, wrong);
	/* By the kernel, and on from there. */
	int fd = open("many", O_RDONLY | O_DIRECTORY), n = 0;
	long got = syscall(SYS_getdents64, fd, buffer, sizeof buffer);
	MUST(got > 0);
	for (long at = wrong = 0; at < got; n++) {
		struct dirent *entry = (struct dirent *)(buffer + at);
		wrong += strcmp(entry->d_name, all[n].name) != 0 || entry->d_off != all[n + 1].at;
		at += entry->d_reclen;
		if (at == got)
			seekdir(dir, entry->d_off);
	}
	MUST(n < count);
	SAY(take(dir, FILES * 2) == count - n);
	SAY(lseek(fd, all[10].at, SEEK_SET) == all[10].at);
	MUST(syscall(SYS_getdents64, fd, buffer, sizeof buffer) > 0);
	SAY(strcmp(((struct dirent *)buffer)->d_name, all[10].name));
	printf("%d wrong by the kernel\n", wrong);
	memset(seen, 0, sizeof seen);
	SAY(close(fd) | closedir(dir));
}

static void descriptors(void)
{
	struct stat st, same;
	DIR *dir = opendir("many");
	MUST(take(dir, 1234) == 1234);
	int fd = dirfd(dir);
	SAY(fd >= 0 && fstat(fd, &st) == 0 && S_ISDIR(st.st_mode));
	SAY(stat("many", &same) == 0 && same.st_ino == st.st_ino && same.st_dev == st.st_dev);
	SAY(faccessat(fd, "a-file-7", R_OK, 0));
	SAY(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	take(dir, FILES * 2);
	told("after dirfd", 0, FILES);
	SAY(closedir(dir));
	SAY(fcntl(fd, F_GETFD));

	fd = open("many", O_RDONLY | O_DIRECTORY);
	dir = fdopendir(dup(fd));
	SAY(take(dir, FILES * 2));
	told("of a copy", 0, FILES);
	SAY(closedir(dir));
	dir = fdopendir(fd);
	SAY(dirfd(dir) == fd);
	SAY(readdir(dir) == NULL);
	rewinddir(dir);
	SAY(take(dir, 700));
	SAY(openat(fd, "a-file-1", O_RDONLY) >= 0);
	SAY(take(dir, FILES * 2));
	told("of a descriptor", 0, FILES);
	SAY(closedir(dir));
	SAY(close(fd));
	SAY(fdopendir(fd) == NULL);
	SAY(fdopendir(open("many/a-file-1", O_RDONLY)) == NULL);
	SAY(fdopendir(open("many", O_PATH)) == NULL);
}

static void moved(void)
{
	char cwd[PATH_MAX];
	MUST(getcwd(cwd, sizeof cwd) && mkdir("above", 0755) == 0);
	fill("above/inner", 0, 20);
	DIR *first = opendir("above/inner"), *second = opendir("above/inner");
	MUST(take(first, 5) == 5);
	MUST(rename("above/inner", "above/other") == 0 && rename("above", "under") == 0);
	MUST(mkdir("above", 0755) == 0 && mkdir("above/inner", 0755) == 0);
	SAY(faccessat(dirfd(first), "a-file-19", F_OK, 0));
	SAY(take(first, 100));
	told("of a directory that moved", 0, 20);
	/* Somewhere else, by a relative path. */
	MUST(chdir("under") == 0);
	DIR *third = opendir("other");
	MUST(chdir(cwd) == 0);
	SAY(fchdir(dirfd(third)));
	SAY(access("a-file-3", F_OK));
	MUST(chdir(cwd) == 0);
	SAY(take(third, 100));
	told("of a relative path", 0, 20);
	SAY(take(second, 100));
	told("without a descriptor", 0, 20);
	SAY(closedir(first) | closedir(second) | closedir(third));
	MUST(rmdir("above/inner") == 0 && rmdir("above") == 0);

	MUST(mkdir("short", 0755) == 0);
	first = opendir("short");
	MUST(rmdir("short") == 0);
	take(first, 2);
	rewinddir(first);
	SAY(readdir(first) == NULL && errno == 0);
	SAY(closedir(first));
}

static void processes(void)
{
	DIR *dir = opendir("many"), *other = opendir("many");
	MUST(take(dir, 600) == 600 && readdir(other));
	rewinddir(other);
	CHILD {
		SAY(take(dir, FILES * 2));
		told("by a child", 0, FILES);
		SAY(take(other, FILES * 2));
		told("by a child, from the begin", 0, FILES);
		SAY(faccessat(dirfd(dir), "a-file-7", R_OK, 0));
		SAY(closedir(dir) | closedir(other));
		_exit(0);
	}
	SAY(closedir(dir));
	memset(seen, 0, sizeof seen);
	dir = opendir("many");
	MUST(take(dir, 2000) == 2000);
	SAY(system("test -f many/a-file-9"));
	take(dir, FILES * 2);
	told("beside another program", 0, FILES);
	SAY(closedir(dir) | closedir(other));
}

static void identities(void)
{
	MUST(mkdir("private", 0700) == 0 && mkdir("hidden", 0711) == 0);
	fill("private/below", 0, 30);
	MUST(chmod(".", 0755) == 0);
	CHILD {
		DIR *dir = opendir("private/below");
		MUST(take(dir, 10) == 10);
		SAY(seteuid(1234));
		SAY(take(dir, 100));
		told("as somebody else", 0, 30);
		SAY(closedir(dir));
		SAY(opendir("private/below") == NULL && errno == EACCES);
		SAY(opendir("hidden") == NULL && errno == EACCES);
		_exit(0);
	}
}

static void *reader(void *dir)
{
	long count = 0;
	while (readdir(dir))
		count++;
	return (void *)count;
}

static void many_at_once(void)
{
	static DIR *dirs[STREAMS];
	fill("few", 0, 3);
	int sum = 0;
	for (int n = 0; n < STREAMS; n++)
		MUST((dirs[n] = opendir("few")));
	for (int n = 0; n < STREAMS; n++)
		sum += take(dirs[n], 10);
	for (int n = 0; n < STREAMS; n++)
		MUST(closedir(dirs[n]) == 0);
	SAY(sum);
	told("by each", 0, 3);

	DIR *dir = opendir("many");
	pthread_t threads[4];
	void *count;
	sum = 0;
	for (int n = 0; n < 4; n++)
		MUST(pthread_create(&threads[n], NULL, reader, dir) == 0);
	for (int n = 0; n < 4; n++) {
		MUST(pthread_join(threads[n], &count) == 0);
		sum += (long)count;
	}
	SAY(sum);
	SAY(closedir(dir));
}

static int is_even(const struct dirent *entry)
{
	return number(entry) >= 0 && number(entry) % 2 == 0;
}

static void scans(void)
{
	struct dirent **names, entry, *next;
	int count = SAY(scandir("many", &names, is_even, alphasort)), wrong = 0;
	for (int n = 0; n < count; n++)
		wrong += !is_even(names[n]) || (n && strcmp(names[n - 1]->d_name, names[n]->d_name) >= 0);
	while (count-- > 0)
		free(names[count]);
	free(names);
	SAY(wrong);
	SAY(scandir("few", &names, NULL, NULL));
	SAY(scandir("few/none", &names, NULL, NULL));
	SAY(scandir("few/a-file-1", &names, NULL, NULL));
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
	DIR *dir = opendir("few");
	for (count = 0; readdir_r(dir, &entry, &next) == 0 && next;)
		count += next == &entry && number(next) >= 0 && next->d_type == DT_REG;
	SAY(count);
	SAY(closedir(dir));
}

/* Where the last record that was read says that the next ones are. */
static long last;

/* Records by descriptor, by libc's function and by number. */
static int records(int fd, size_t size)
{
	static char buffer[1 << 16];
	static int turn;
	long got = turn++ % 2 ? syscall(SYS_getdents64, fd, buffer, size)
			      : (long)getdents64(fd, (void *)buffer, size);
	for (long at = 0; at < got;) {
		struct dirent *entry = (struct dirent *)(buffer + at);
		if (number(entry) >= 0)
			seen[number(entry)]++;
		at += entry->d_reclen;
		last = entry->d_off;
	}
	return got < 0 ? -1 : got > 0;
}

static void by_descriptor(void)
{
	int fd = open("many", O_RDONLY | O_DIRECTORY), size = 64;
	while (records(fd, size) == 1) {
		MUST(lseek(fd, 0, SEEK_CUR) == last);
		size = size * 7 % (1 << 16) + 64;
	}
	told("by descriptor", 0, FILES);
	SAY(records(fd, 1000));
	SAY(lseek(fd, 0, SEEK_SET));
	SAY(records(fd, 10) == -1 && errno == EINVAL);
	SAY(records(fd, 10) == -1 && errno == EINVAL);
	SAY(getdents64(fd, (void *)8, 1000));
	MUST(records(fd, 5000) == 1);
	DIR *dir = fdopendir(dup(fd));
	MUST(records(fd, 5000) == 1);
	take(dir, FILES * 2);
	SAY(records(fd, 5000));
	SAY(closedir(dir));
	told("with a stream", 0, FILES);
	SAY(lseek(fd, 0, SEEK_SET));
	MUST(records(fd, 5000) == 1);
	CHILD {
		memset(seen, 0, sizeof seen);
		MUST(records(fd, 5000) == 1);
		fd = open("few", O_RDONLY | O_DIRECTORY);
		SAY(records(fd, 5000));
		_exit(0);
	}
	SAY(lseek(fd, 0, SEEK_SET));
	memset(seen, 0, sizeof seen);
	SAY(records(fd, 5000));
	SAY(close(fd));
	SAY(records(fd, 5000) == -1 && errno == EBADF);
	SAY(records(fd = open("few/a-file-1", O_RDONLY), 5000));
	SAY(close(fd));
	SAY(records(fd = open("few", O_PATH), 5000));
	SAY(close(fd));
	MUST(mkdir("short", 0755) == 0);
	fd = open("short", O_RDONLY);
	SAY(records(fd, 5000));
	MUST(rmdir("short") == 0 && lseek(fd, 0, SEEK_SET) == 0);
	SAY(records(fd, 5000));
	SAY(close(fd));
	memset(seen, 0, sizeof seen);
}

/* Two processes take entries by one position: none is given out twice. */
static void by_two(void)
{
	int *sum = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int fd = open("many", O_RDONLY | O_DIRECTORY), count = 0;
	MUST(records(fd, 3000) == 1);
	pid_t pid = begin();
	if (pid == 0)
		memset(seen, 0, sizeof seen);
	while (records(fd, 300) == 1)
		;
	for (int n = 0; n < FILES; n++)
		count += seen[n];
	if (pid == 0) {
		*sum = count;
		_exit(0);
	}
	reap(pid);
	SAY(count + *sum);
	SAY(close(fd));
	memset(seen, 0, sizeof seen);
}

#ifdef __GLIBC__
/* Has the stream be the kernel's before it is at its end. */
static int runs_another(const struct dirent *entry)
{
	static int count;
	if (count++ == 2)
		MUST(system("true") == 0);
	return number(entry) >= 0;
}

static void scans_at(void)
{
	struct dirent **names;
	char path[PATH_MAX];
	MUST(mkdir("above", 0755) == 0);
	fill("above/inner", 0, 40);
	int dir = open("above", O_RDONLY | O_DIRECTORY), file = open("few/a-file-1", O_RDONLY);
	MUST(getcwd(path, PATH_MAX - 10) && strcat(path, "/few"));
	SAY(scandirat(dir, "inner", &names, runs_another, alphasort));
	SAY(strcmp(names[39]->d_name, "a-file-9"));
	SAY(scandirat(dir, "..", &names, is_even, NULL));
	SAY(scandirat(AT_FDCWD, "few", &names, NULL, NULL));
	SAY(scandirat(-1, path, &names, NULL, NULL));
	SAY(scandirat(-1, "few", &names, NULL, NULL));
	SAY(scandirat(dir, "few", &names, NULL, NULL));
	SAY(scandirat(dir, "", &names, NULL, NULL));
	SAY(scandirat(file, ".", &names, NULL, NULL));
	SAY(scandirat(dir, "inner/a-file-2", &names, NULL, NULL));
	SAY(close(dir) | close(file));
}
#else
static void scans_at(void)
{
}
#endif

static void errors(void)
{
	static char longest[PATH_MAX + 10];
	memset(longest, 'x', sizeof longest - 1);
	static const char *const paths[] = { "", "none", "few/a-file-1", "few/a-file-1/", "few/", "./few/..",
					     "to-few", "to-nothing", "loop", "few/.", "/" };
	MUST(symlink("few", "to-few") == 0 && symlink("none", "to-nothing") == 0);
	MUST(symlink("loop", "loop") == 0);
	for (size_t n = 0; n < sizeof paths / sizeof *paths; n++) {
		DIR *dir = opendir(paths[n]);
		printf("opendir %s: %s\n", paths[n], dir ? "is there" : strerror(errno));
		if (dir)
			MUST(readdir(dir) && closedir(dir) == 0);
	}
	SAY(opendir(longest) == NULL && errno == ENAMETOOLONG);
	longest[300] = 0;
	SAY(opendir(longest) == NULL && errno == ENAMETOOLONG);
}

/* As rm -r does, by paths and by descriptors. */
static void removed(void)
{
	char dirs[6][32], path[PATH_MAX];
	for (int n = 0; n < 6; n++) {
		snprintf(dirs[n], sizeof dirs[n], "gone/d%d", n);
		MUST(mkdir("gone", 0755) == 0 || errno == EEXIST);
		fill(dirs[n], 0, 300);
	}
	for (int n = 0; n < 6; n++) {
		DIR *dir = n % 2 ? opendir(dirs[n]) : fdopendir(open(dirs[n], O_RDONLY | O_DIRECTORY));
		int count = 0, failed = 0;
		for (struct dirent *entry; (entry = readdir(dir));) {
			if (number(entry) < 0)
				continue;
			snprintf(path, sizeof path, "%s/%s", dirs[n], entry->d_name);
			failed += (n < 4 ? unlink(path) : unlinkat(dirfd(dir), entry->d_name, 0)) != 0;
			count++;
		}
		rewinddir(dir);
		int left = take(dir, 1000) - 2;
		printf("%d removed, %d failed, %d left\n", count, failed, left);
		SAY(closedir(dir));
		SAY(rmdir(dirs[n]));
	}
	SAY(rmdir("gone"));
}

int main(void)
{
	fill("many", 0, FILES);
	whole();
	changing();
	positions();
	descriptors();
	moved();
	processes();
	identities();
	many_at_once();
	scans();
	scans_at();
	by_descriptor();
	by_two();
	errors();
	removed();
	return 0;
}
