/* Pages written here and there in a long file: whoever looks, by any door, sees those written
 * before, whatever ends the writer. */
#include <pthread.h>

#include "say.h"

enum { PAGE = 4096, PAGES = 512, WRITES = 4000 };

/* What is written to a page the n-th time; 0: it never was. */
static void fill(char *page, int at, int n)
{
	memset(page, n ? 'a' + n % 26 : 0, PAGE);
	if (n)
		snprintf(page, PAGE, "page %d, write %d", at, n);
}

static int differs(const char *page, int at, int n)
{
	char want[PAGE];
	fill(want, at, n);
	return memcmp(page, want, PAGE) != 0;
}

static unsigned next(unsigned *state)
{
	*state = *state * 1103515245 + 12345;
	return *state >> 16;
}

static int long_file(const char *path, int flags)
{
	int fd = open(path, flags | O_CREAT | O_TRUNC, 0644);
	MUST(fd >= 0 && ftruncate(fd, PAGES * PAGE) == 0);
	return fd;
}

/* How many pages differ from what was written to them last. */
static int wrong(const char *path, const int *last)
{
	char page[PAGE];
	int fd = open(path, O_RDONLY), count = 0;
	for (int at = 0; at < PAGES; at++) {
		MUST(pread(fd, page, PAGE, (off_t)at * PAGE) == PAGE);
		count += differs(page, at, last[at]);
	}
	MUST(close(fd) == 0);
	return count;
}

static void watched(const char *path, int flags)
{
	static int last[PAGES];
	char page[PAGE], back[PAGE];
	unsigned state = 7;
	int fd = long_file(path, flags), copy = dup(fd), mapped = 0;
	memset(last, 0, sizeof last);
	for (int n = 1; n <= WRITES; n++) {
		int at = next(&state) % PAGES;
		fill(page, at, n);
		MUST(pwrite(n % 3 ? fd : copy, page, PAGE, (off_t)at * PAGE) == PAGE);
		last[at] = n;
		if ((flags & O_ACCMODE) == O_RDWR && n % 50 == 0) {
			at = next(&state) % PAGES;
			MUST(pread(fd, back, PAGE, (off_t)at * PAGE) == PAGE && !differs(back, at, last[at]));
		}
		if (n % 700 == 699)
			MUST(fsync(fd) == 0);
		if (n % 900 == 899) {
			/* Another process, by a session of its own. */
			pid_t pid = fork();
			if (pid == 0)
				_exit(wrong(path, last) != 0);
			reap(pid);
		}
		if ((flags & O_ACCMODE) == O_RDWR && n % 1300 == 1299) {
			char *all = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_SHARED, fd, 0);
			MUST(all != MAP_FAILED);
			for (at = 0; at < PAGES; at++)
				mapped += differs(all + (size_t)at * PAGE, at, last[at]);
			MUST(munmap(all, PAGES * PAGE) == 0);
		}
	}
	SAY(mapped);
	SAY(wrong(path, last));
	SAY(ftruncate(fd, 100 * PAGE + 10));
	SAY(ftruncate(fd, PAGES * PAGE));
	for (int at = 101; at < PAGES; at++)
		last[at] = 0;
	MUST(pread(fd, back, 1, 0) == ((flags & O_ACCMODE) == O_RDWR ? 1 : -1));
	fill(page, 100, last[100] = 1);
	MUST(pwrite(fd, page, PAGE, 100 * PAGE) == PAGE);
	SAY(wrong(path, last));
	SAY(close(copy));
	SAY(close(fd));
}

/* What a page holds is a write of its page, and none before the one that was told. */
static int is_write(const char *page, int at, int told)
{
	int n = 0, place = 0;
	if (page[0] && (sscanf(page, "page %d, write %d", &place, &n) != 2 || place != at))
		return 0;
	return n >= told && !differs(page, at, n);
}

static void killed(void)
{
	for (int round = 0; round < 4; round++) {
		static int told[PAGES];
		struct { int at, n; } one;
		char name[16], page[PAGE];
		int ends[2], count = 0, bad = 0;
		snprintf(name, sizeof name, "killed%d", round);
		memset(told, 0, sizeof told);
		MUST(pipe(ends) == 0);
		int fd = long_file(name, O_RDWR);
		pid_t pid = fork();
		if (pid == 0) {
			unsigned state = round;
			int mine = open(name, O_RDWR);
			for (one.n = 1;; one.n++) {
				one.at = next(&state) % PAGES;
				fill(page, one.at, one.n);
				MUST(pwrite(mine, page, PAGE, (off_t)one.at * PAGE) == PAGE);
				MUST(write(ends[1], &one, sizeof one) == sizeof one);
			}
		}
		close(ends[1]);
		while (count++ < 300 + 170 * round && read(ends[0], &one, sizeof one) == sizeof one)
			told[one.at] = one.n;
		MUST(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
		while (read(ends[0], &one, sizeof one) == sizeof one)
			told[one.at] = one.n;
		close(ends[0]);
		for (int at = 0; at < PAGES; at++) {
			MUST(pread(fd, page, PAGE, (off_t)at * PAGE) == PAGE);
			bad += !is_write(page, at, told[at]);
		}
		SAY(bad);
		close(fd);
	}
}

struct part {
	int fd, odd, last[PAGES];
};

/* Writes the odd pages of a file, or the even ones, and reads them back. */
static void *scatter(void *arg)
{
	struct part *part = arg;
	unsigned state = 3 + part->odd;
	char page[PAGE];
	for (int n = 1; n <= WRITES; n++) {
		int at = next(&state) % (PAGES / 2) * 2 + part->odd;
		fill(page, at, part->last[at] = n);
		MUST(pwrite(part->fd, page, PAGE, (off_t)at * PAGE) == PAGE);
		if (n % 40 == 0) {
			at = next(&state) % (PAGES / 2) * 2 + part->odd;
			MUST(pread(part->fd, page, PAGE, (off_t)at * PAGE) == PAGE);
			MUST(!differs(page, at, part->last[at]));
		}
	}
	return NULL;
}

static void threads(void)
{
	static struct part parts[2];
	pthread_t thread;
	parts[0].fd = parts[1].fd = long_file("threads", O_RDWR);
	parts[1].odd = 1;
	MUST(pthread_create(&thread, NULL, scatter, &parts[1]) == 0);
	scatter(&parts[0]);
	MUST(pthread_join(thread, NULL) == 0);
	for (int at = 1; at < PAGES; at += 2)
		parts[0].last[at] = parts[1].last[at];
	SAY(wrong("threads", parts[0].last));
}

/* Writes that go side by side with whole pages: parts of pages, appends, past the end. */
static void others(void)
{
	char page[PAGE], back[PAGE];
	struct stat st;
	int fd = long_file("others", O_RDWR);
	for (int round = 0; round < 8; round++) {
		for (int n = 1; n < 40; n++) {
			int at = n * 12 % PAGES;
			fill(page, at, n);
			MUST(pwrite(fd, page, PAGE, (off_t)at * PAGE) == PAGE);
			MUST(pwrite(fd, "part", 4, (off_t)at * PAGE + 40) == 4);
			memcpy(page + 40, "part", 4);
			MUST(pread(fd, back, PAGE, (off_t)at * PAGE) == PAGE && !memcmp(page, back, PAGE));
		}
		MUST(pwrite(fd, page, PAGE, (off_t)(PAGES + round) * PAGE) == PAGE);
		MUST(fstat(fd, &st) == 0 && st.st_size == (off_t)(PAGES + round + 1) * PAGE);
	}
	SAY(fcntl(fd, F_SETFL, O_APPEND));
	SAY(pwrite(fd, page, PAGE, 0));
	SAY(lseek(fd, 0, SEEK_END) / PAGE);
	SAY(close(fd));
	fd = long_file("others", O_RDWR | O_DSYNC);
	for (int at = PAGES - 1; at >= 0; at--)
		MUST(pwrite(fd, page, PAGE, (off_t)at * PAGE) == PAGE);
	SAY(unlink("others"));
	SAY(pread(fd, back, PAGE, 77 * PAGE));
	SAY(memcmp(page, back, PAGE));
	SAY(close(fd));
}

int main(void)
{
	watched("both", O_RDWR);
	watched("written", O_WRONLY);
	killed();
	threads();
	others();
	return 0;
}
