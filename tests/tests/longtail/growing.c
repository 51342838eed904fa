/* A file that one process makes longer and others watch: every record is whole and in its place for
 * whoever looks, by any door, whatever ends the writer. */
#include "say.h"

/* None lies in two pages, of which a kernel whose writer is killed may write one. */
enum { RECORD = 128, RECORDS = 3000 };

static void record(char *text, int n)
{
	memset(text, 'a' + n % 26, RECORD);
	snprintf(text, RECORD, "record %d", n);
	text[RECORD - 1] = '\n';
}

/* Whole records, all of them right: how many. */
static long whole(const char *path)
{
	static char all[RECORD * RECORDS + 1];
	char want[RECORD];
	int fd = open(path, O_RDONLY);
	long size = read(fd, all, sizeof all);
	MUST(size >= 0 && size % RECORD == 0 && close(fd) == 0);
	for (int n = 0; n < size / RECORD; n++) {
		record(want, n);
		MUST(memcmp(all + n * RECORD, want, RECORD) == 0);
	}
	return size / RECORD;
}

/* Writes all records; after some of them, others look. */
static void append(const char *path, int flags)
{
	char text[RECORD], back[RECORD];
	struct stat st;
	int fd = open(path, flags | O_CREAT | O_TRUNC, 0644), ends[2], answers[2];
	MUST(fd >= 0 && pipe(ends) == 0 && pipe(answers) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		long n = 0, seen;
		close(ends[1]);
		while (read(ends[0], &n, sizeof n) == sizeof n) {
			seen = whole(path);
			MUST(seen == n && stat(path, &st) == 0 && st.st_size == n * RECORD);
			MUST(write(answers[1], &seen, sizeof seen) == sizeof seen);
		}
		_exit(0);
	}
	for (long n = 0; n < RECORDS; n++) {
		record(text, n);
		MUST(write(fd, text, RECORD) == RECORD);
		if ((flags & O_ACCMODE) == O_RDWR && n % 7 == 0)
			MUST(pread(fd, back, RECORD, n * RECORD) == RECORD && !memcmp(text, back, RECORD));
		if (n % 500 == 499) {
			long told = n + 1, seen;
			MUST(write(ends[1], &told, sizeof told) == sizeof told);
			MUST(read(answers[0], &seen, sizeof seen) == sizeof seen);
		}
		if (n % 700 == 699)
			MUST(fsync(fd) == 0);
	}
	close(ends[1]);
	reap(pid);
	SAY(lseek(fd, 0, SEEK_CUR));
	SAY(close(fd));
	SAY(whole(path));
}

static void killed(void)
{
	for (int round = 0; round < 5; round++) {
		char name[16];
		int ends[2];
		long n = 0, told = 0;
		snprintf(name, sizeof name, "killed%d", round);
		MUST(pipe(ends) == 0);
		pid_t pid = fork();
		if (pid == 0) {
			char text[RECORD];
			int fd = open(name, O_WRONLY | O_CREAT, 0644);
			for (n = 0; n < RECORDS; n++) {
				record(text, n);
				MUST(write(fd, text, RECORD) == RECORD);
				MUST(write(ends[1], &n, sizeof n) == sizeof n);
			}
			pause();
		}
		close(ends[1]);
		while (told < 200 + 150 * round && read(ends[0], &n, sizeof n) == sizeof n)
			told = n + 1;
		MUST(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
		while (read(ends[0], &n, sizeof n) == sizeof n)
			told = n + 1;
		close(ends[0]);
		/* What it was told was written is there; of the next one, all or nothing. */
		long there = whole(name);
		MUST(there == told || there == told + 1);
	}
	printf("killed writers left whole records\n");
}

static void two_at_once(void)
{
	char text[RECORD];
	pid_t pids[2];
	for (int who = 0; who < 2; who++) {
		if ((pids[who] = fork()) != 0)
			continue;
		int fd = open("both", O_WRONLY | O_CREAT | O_APPEND, 0644);
		memset(text, 'A' + who, RECORD);
		for (int n = 0; n < 1000; n++)
			MUST(write(fd, text, RECORD) == RECORD);
		_exit(0);
	}
	reap(pids[0]);
	reap(pids[1]);
	int fd = open("both", O_RDONLY), counts[2] = { 0 };
	while (read(fd, text, RECORD) == RECORD) {
		for (int at = 1; at < RECORD; at++)
			MUST(text[at] == text[0]);
		counts[text[0] - 'A']++;
	}
	SAY(counts[0]);
	SAY(counts[1]);
}

static void ends(void)
{
	char text[64] = "", page[5000];
	int fd = open("ends", O_RDWR | O_CREAT, 0644);
	memset(page, 'p', sizeof page);
	for (int n = 0; n < 40; n++)
		MUST(write(fd, page, 333) == 333);
	/* Cut, grown by a hole, by what lies far behind, by a mapping's file. */
	SAY(ftruncate(fd, 5000));
	SAY(ftruncate(fd, 20000));
	SAY(pread(fd, text, 4, 6000));
	SAY(text[0] | text[3]);
	SAY(pwrite(fd, "end", 3, 20000));
	SAY(pwrite(fd, "far", 3, 50000));
	SAY(pread(fd, text, 8, 20000));
	printf("%s %d\n", text, text[4]);
	SAY(lseek(fd, 0, SEEK_END));
	for (int n = 0; n < 20; n++)
		MUST(write(fd, page, 1000) == 1000);
	SAY(lseek(fd, 0, SEEK_CUR));
	char *map = mmap(NULL, 1 << 17, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(map != MAP_FAILED);
	SAY(map[69999]);
	map[69999] = 'm';
	SAY(pread(fd, text, 8, 69999));
	for (int n = 0; n < 20; n++)
		MUST(write(fd, page, 1000) == 1000);
	SAY(map[80000]);
	struct stat st;
	SAY((fstat(fd, &st), st.st_size));
	MUST(munmap(map, 1 << 17) == 0);
	SAY(close(fd));
}

int main(void)
{
	alarm(100);
	append("rw", O_RDWR);
	append("w", O_WRONLY);
	append("a", O_WRONLY | O_APPEND);
	killed();
	two_at_once();
	ends();
	return 0;
}
