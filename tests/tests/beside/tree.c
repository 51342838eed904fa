/* What files are: printed for random.c. */
#include "random.h"

enum { LONG_AGO = 1500000000 };

unsigned long sum(const void *bytes, size_t length)
{
	unsigned long value = 0xcbf29ce484222325;
	for (size_t at = 0; at < length; at++)
		value = (value ^ ((const unsigned char *)bytes)[at]) * 0x100000001b3;
	return value;
}

/* A time that was set, or that it is one of today's. */
static void when(const char *name, struct timespec time)
{
	if (time.tv_sec < LONG_AGO)
		printf("%s %ld.%09ld ", name, (long)time.tv_sec, time.tv_nsec);
}

static void show(const struct stat *stat)
{
	printf("[%o %d:%d ", stat->st_mode, (int)stat->st_uid, (int)stat->st_gid);
	printf("links %ld ", (long)stat->st_nlink);
	if (!S_ISDIR(stat->st_mode))
		printf("size %ld ", (long)stat->st_size);
	if (S_ISCHR(stat->st_mode) || S_ISBLK(stat->st_mode))
		printf("rdev %lx ", (unsigned long)stat->st_rdev);
	/* Pipes are the kernel's own on every mount; FUSE keeps no times of what moves through one. */
	if (S_ISFIFO(stat->st_mode)) {
		printf("] ");
		return;
	}
	when("atime", stat->st_atim);
	when("mtime", stat->st_mtim);
	printf("] ");
}

void state(int fd, const char *path)
{
	struct stat stat;
	int failed = fd >= 0 ? fstat(fd, &stat) : *path ? lstat(path, &stat) : -1;
	if (!failed)
		show(&stat);
	if (!failed && fd >= 0 && S_ISREG(stat.st_mode))
		printf("position %ld", (long)lseek(fd, 0, SEEK_CUR));
	printf("\n");
}

static int by_text(const void *one, const void *other)
{
	return strcmp(*(char *const *)one, *(char *const *)other);
}

static void attributes(const char *path)
{
	char names[8000], *sorted[100], value[8000];
	ssize_t length = llistxattr(path, names, sizeof names);
	int count = 0;
	for (char *name = names; name < names + length; name += strlen(name) + 1)
		sorted[count++] = name;
	qsort(sorted, (size_t)count, sizeof *sorted, by_text);
	for (int each = 0; each < count; each++) {
		ssize_t size = lgetxattr(path, sorted[each], value, sizeof value);
		printf("%s %zd %lx ", sorted[each], size, size > 0 ? sum(value, (size_t)size) : 0);
	}
}

/* A file's bytes. Nobody's access time is of interest any more. */
static void contents(const char *path)
{
	static char text[1 << 20];
	int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
	ssize_t length = read(fd, text, sizeof text);
	printf("contents %zd %lx ", length, length > 0 ? sum(text, (size_t)length) : 0);
	close(fd);
}

static int by_name(const struct dirent **one, const struct dirent **other)
{
	return strcmp((*one)->d_name, (*other)->d_name);
}

void tree(const char *directory)
{
	struct dirent **entries;
	char path[8000], target[400];
	struct stat stat;
	int count = scandir(directory, &entries, NULL, by_name);
	for (int each = 0; each < count; each++) {
		const char *name = entries[each]->d_name;
		snprintf(path, sizeof path, "%s/%s", directory, name);
		int others = !strncmp(name, ".poly", 5) || !strcmp(name, "lost+found");
		if (!strcmp(name, ".") || !strcmp(name, "..") || others)
			continue;
		printf("%s ", path);
		if (lstat(path, &stat) != 0) {
			printf("%s\n", strerrorname_np(errno));
			continue;
		}
		show(&stat);
		attributes(path);
		if (S_ISREG(stat.st_mode))
			contents(path);
		if (S_ISLNK(stat.st_mode)) {
			ssize_t length = readlink(path, target, sizeof target);
			printf("to %.*s", length < 0 ? 0 : (int)length, target);
		}
		printf("\n");
		if (S_ISDIR(stat.st_mode))
			tree(path);
	}
}
