/* Walks and names made up by libc: ftw, nftw, fts, glob, scandir, realpath, mkstemp, tmpfile. */
#include "say.h"
#include <dirent.h>
#include <fnmatch.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>

static char lines[64][128];
static int count;

static void note(const char *format, const char *path, int type, int level)
{
	snprintf(lines[count++ % 64], 128, format, path, type, level);
}

static int order(const void *a, const void *b)
{
	return strcmp(a, b);
}

static void sorted(const char *what)
{
	qsort(lines, count, 128, order);
	printf("%s: %d\n", what, count);
	for (int n = 0; n < count; n++)
		printf("  %s\n", lines[n]);
	count = 0;
}

static int by_ftw(const char *path, const struct stat *st, int type)
{
	note("%s %d %d", path, type, S_ISREG(st->st_mode) ? (int)st->st_size : -1);
	return 0;
}

static int by_nftw(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	note("%s %d level %d", path, type, at->level);
	return 0;
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

static int is_c(const struct dirent *entry)
{
	return fnmatch("*.c", entry->d_name, 0) == 0;
}

static void trees(void)
{
	SAY(ftw("tree/sub", by_ftw, 3));
	sorted("ftw");
	SAY(nftw("tree", by_nftw, 2, FTW_PHYS | FTW_DEPTH));
	sorted("nftw");
	SAY(nftw("tree", by_nftw, 8, FTW_PHYS | FTW_CHDIR | FTW_MOUNT));
	sorted("nftw with chdir");
	SAY(nftw("none", by_nftw, 8, 0));
	char *const roots[] = { "tree", NULL };
	FTS *fts = fts_open(roots, FTS_PHYSICAL, by_name);
	for (FTSENT *entry; (entry = fts_read(fts));)
		printf("fts %d %s\n", entry->fts_info, entry->fts_path);
	SAY(fts_close(fts));
}

static void lists(void)
{
	static const char *const patterns[] = { "tree/*", "tree/*/*.c", "tree/{a,b}*", "*/.*", "tree/z*" };
	for (int n = 0; n < 5; n++) {
		glob_t found = { 0 };
		printf("glob %s = %d\n", patterns[n], glob(patterns[n], GLOB_BRACE | GLOB_MARK, NULL, &found));
		for (size_t i = 0; i < found.gl_pathc; i++)
			if (!strstr(found.gl_pathv[i], "/./") && !strstr(found.gl_pathv[i], "/../"))
				printf("  %s\n", found.gl_pathv[i]);
		globfree(&found);
	}
	struct dirent **names;
	int found = SAY(scandir("tree/sub", &names, is_c, alphasort));
	for (int n = 0; n < found; n++)
		printf("  %s %d\n", names[n]->d_name, names[n]->d_type);
	SAY(scandir("none", &names, NULL, alphasort));
	SAY(scandirat(open("tree", O_RDONLY), "sub", &names, is_c, versionsort));

	DIR *dir = opendir("tree/sub");
	int all = 0, rest = 0;
	long half = 0;
	while (readdir(dir))
		if (++all == 3)
			half = telldir(dir);
	seekdir(dir, half);
	while (readdir(dir))
		rest++;
	printf("readdir: %d, after the third %d\n", all, rest);
	rewinddir(dir);
	SAY(readdir(dir) != NULL);
	struct stat st;
	SAY(fstatat(dirfd(dir), "1.c", &st, 0));
	SAY(closedir(dir));
	dir = fdopendir(open("tree/sub", O_RDONLY));
	for (all = 0; readdir(dir);)
		all++;
	SAY(all);
	SAY(closedir(dir));
	SAY(fdopendir(open("tree/a.c", O_RDONLY)) == NULL);
	SAY(opendir("tree/a.c") == NULL);
	SAY(opendir("none") == NULL);
}

static void paths(void)
{
	static const char *const all[] = { "tree/../tree/sub", "tree/link/1.c", "tree/loop", "tree/none",
					   "tree/dangling", "tree/a.c/x", "", "/", "tree//./sub/" };
	char cwd[PATH_MAX], path[PATH_MAX];
	MUST(getcwd(cwd, sizeof cwd));
	for (int n = 0; n < 9; n++) {
		char *real = realpath(all[n], path);
		size_t skip = real && strncmp(real, cwd, strlen(cwd)) == 0 ? strlen(cwd) : 0;
		printf("realpath %s = %s\n", all[n], real ? real + skip : strerror(errno));
	}
	MUST(chdir("tree/link") == 0);
	char *own = get_current_dir_name();
	printf("%s\n", own + strlen(cwd));
	free(own);
	MUST(chdir("../..") == 0);
}

static void temporary(void)
{
	struct stat st;
	char name[32] = "tmp-XXXXXX", suffix[32] = "tmp-XXXXXX.txt", dir[32] = "dir-XXXXXX";
	char bad[32] = "XXX";
	int fd = mkstemp(name);
	SAY(write(fd, "x", 1));
	SAY((stat(name, &st), st.st_mode));
	SAY(strncmp(name, "tmp-", 4));
	SAY(close(fd) + unlink(name));
	fd = mkostemps(suffix, 4, O_APPEND | O_CLOEXEC);
	SAY(fcntl(fd, F_GETFL) & (O_APPEND | O_ACCMODE));
	SAY(fcntl(fd, F_GETFD));
	SAY(close(fd) + unlink(suffix));
	SAY(mkdtemp(dir) == dir);
	SAY((stat(dir, &st), st.st_mode));
	SAY(rmdir(dir));
	SAY(mkstemp(bad));
	FILE *file = tmpfile();
	SAY(fputs("temporary", file));
	SAY(fseek(file, 2, SEEK_SET));
	SAY(fgetc(file));
	SAY(fclose(file));
	fd = open("tree", O_TMPFILE | O_RDWR, 0600);
	SAY(write(fd, "nameless", 8));
	SAY((fstat(fd, &st), st.st_nlink));
	SAY(close(fd));
}

int main(void)
{
	MUST(mkdir("tree", 0755) == 0 && mkdir("tree/sub", 0755) == 0);
	MUST(mkdir("tree/sub/deep", 0755) == 0);
	static const char *const files[] = { "tree/a.c", "tree/b", "tree/sub/1.c", "tree/sub/2.c",
					     "tree/sub/10.c", "tree/sub/deep/x", "tree/.hidden" };
	for (int n = 0; n < 7; n++)
		MUST(close(make(files[n], files[n])) == 0);
	MUST(symlink("sub", "tree/link") == 0 && symlink("loop", "tree/loop") == 0);
	MUST(symlink("nowhere", "tree/dangling") == 0);
	trees();
	lists();
	paths();
	temporary();
	return 0;
}
