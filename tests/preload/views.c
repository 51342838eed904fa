/*
 * A file in constant use, which the fast lane shows to its program and lets it write: whatever
 * others do to it is seen at once, and what it writes is seen by all.
 */
#include "check.h"
#include <pthread.h>
#include <sys/time.h>

enum { PAGE = 4096, PAGES = 8 };

static char page[PAGE], seen[PAGE];

#if defined(__x86_64__)
/* Past every hook: the other way into the lane. */
static long raw(long number, long a, long b, long c, long d)
{
	long rc;
	register long r10 __asm__("r10") = d;
	__asm__ volatile("syscall"
			 : "=a"(rc)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return rc;
}
#else
#define raw(number, a, b, c, d) syscall(number, a, b, c, d)
#endif

static void put(int fd, int at, char byte)
{
	memset(page, byte, PAGE);
	CHECK(pwrite(fd, page, PAGE, (off_t)at * PAGE) == PAGE);
}

static void expect(int fd, int at, char byte)
{
	CHECK(pread(fd, seen, PAGE, (off_t)at * PAGE) == PAGE);
	CHECK(seen[0] == byte && seen[PAGE - 1] == byte);
}

/* In use for so long that it is shown and lent. */
static int warm(const char *name)
{
	int fd = make(name, "");
	for (int round = 0; round < 6; round++)
		for (int at = 0; at < PAGES; at++) {
			put(fd, at, 'w');
			expect(fd, at, 'w');
		}
	return fd;
}

static void other_door(void)
{
	int fd = warm("door");
	expect_fast(fd);
	for (int n = 0; n < 200; n++) {
		char byte = 'a' + n % 26;
		int at = n % PAGES;
		put(fd, at, byte);
		put(fd, at, byte + 1);
		CHECK(raw(SYS_pread64, fd, (long)seen, PAGE, at * PAGE) == PAGE);
		CHECK(seen[0] == byte + 1 && seen[PAGE - 1] == byte + 1);
		expect(fd, at, byte + 1);
		CHECK(raw(SYS_pwrite64, fd, (long)"raw", 3, at * PAGE) == 3);
		CHECK(pread(fd, seen, 4, (off_t)at * PAGE) == 4 && memcmp(seen, "raw", 3) == 0);
		CHECK(seen[3] == byte + 1);
	}
	CHECK(close(fd) == 0);
}

static void size_and_state(void)
{
	struct stat st;
	int fd = warm("state");
	for (int n = 1; n <= 50; n++) {
		put(fd, 0, 'x');
		CHECK(fstat(fd, &st) == 0 && st.st_size == PAGES * PAGE);
		CHECK(ftruncate(fd, n) == 0 && fstat(fd, &st) == 0 && st.st_size == n);
		CHECK(pread(fd, seen, PAGE, 0) == n && seen[n - 1] == 'x');
		CHECK(truncate(in_dir("state"), PAGES * PAGE) == 0);
		CHECK(lseek(fd, 0, SEEK_END) == PAGES * PAGE);
		expect(fd, 1, 0);
		CHECK(pread(fd, seen, PAGE, 0) == PAGE && seen[n - 1] == 'x' && seen[n] == 0);
		CHECK(fchmod(fd, n % 2 ? 0600 : 0644) == 0 && fstat(fd, &st) == 0);
		CHECK((st.st_mode & 0777) == (n % 2 ? 0600 : 0644));
		int end = open(in_dir("state"), O_WRONLY | O_APPEND);
		CHECK(end >= 0 && write(end, "end", 3) == 3 && close(end) == 0);
		CHECK(pread(fd, seen, PAGE, PAGES * PAGE) == 3 && memcmp(seen, "end", 3) == 0);
		CHECK(ftruncate(fd, PAGES * PAGE) == 0);
	}
	CHECK(link(in_dir("state"), in_dir("linked")) == 0);
	CHECK(fstat(fd, &st) == 0 && st.st_nlink == 2);
	int flags = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
	put(fd, 2, 'p');
	put(fd, 3, 'p');
	if (fallocate(fd, flags, 2 * PAGE, PAGE) == 0)
		expect(fd, 2, 0);
	expect(fd, 3, 'p');
	CHECK(fsync(fd) == 0 && fdatasync(fd) == 0);
	CHECK(close(fd) == 0);
	CHECK(close(open(in_dir("state"), O_RDWR | O_TRUNC)) == 0);
	CHECK(stat(in_dir("linked"), &st) == 0 && st.st_size == 0);
}

/* Read to its end, whatever the buffer, and then made longer and shorter by others. */
static void end_of_file(void)
{
	static char large[200 * 1024];
	for (int n = 1; n <= 20; n++) {
		int other = make("end", "four"), fd = open(in_dir("end"), O_RDONLY);
		size_t want = n % 2 ? sizeof large : 4;
		CHECK(fd >= 0 && read(fd, large, want) == 4);
		CHECK(read(fd, large, want) == 0 && read(fd, large, want) == 0);
		CHECK(raw(SYS_pwrite64, other, (long)"kernel", 6, 4) == 6);
		CHECK(read(fd, large, sizeof large) == 6 && memcmp(large, "kernel", 6) == 0);
		CHECK(read(fd, large, sizeof large) == 0);
		int child = fork();
		CHECK(child >= 0);
		if (child == 0)
			_exit(pwrite(other, "child", 5, 10) != 5);
		int status;
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		CHECK(read(fd, large, sizeof large) == 5 && memcmp(large, "child", 5) == 0);
		CHECK(read(fd, large, sizeof large) == 0 && ftruncate(other, 2) == 0);
		CHECK(pread(fd, large, sizeof large, 1) == 1 && pread(fd, large, 9, 2) == 0);
		CHECK(pwrite(other, "own", 3, 2) == 3 && pread(fd, large, 9, 2) == 3);
		CHECK(close(fd) == 0 && close(other) == 0 && unlink(in_dir("end")) == 0);
	}
}

static void mapped(void)
{
	int fd = warm("mapped");
	for (int n = 0; n < 20; n++) {
		put(fd, 1, 'a' + n);
		char *map = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		CHECK(map != MAP_FAILED && map[PAGE] == 'a' + n);
		map[PAGE] = 'M';
		CHECK(pread(fd, seen, 2, PAGE) == 2 && seen[0] == 'M' && seen[1] == 'a' + n);
		put(fd, 2, 'b' + n);
		CHECK(map[2 * PAGE] == 'b' + n);
		CHECK(munmap(map, PAGES * PAGE) == 0);
		CHECK(pread(fd, seen, 1, PAGE) == 1 && seen[0] == 'M');
	}
	CHECK(close(fd) == 0);
}

/* Children that share the descriptor, open the file anew, and are killed amid writes. */
static void processes(void)
{
	int fd = warm("family");
	for (int n = 0; n < 10; n++) {
		put(fd, 0, 'p');
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			expect(fd, 0, 'p');
			put(fd, 1, 'c' + n);
			int mine = open(in_dir("family"), O_RDWR);
			CHECK(mine >= 0);
			for (int m = 0; m < 8; m++)
				put(mine, 2, 'd' + n);
			_exit(0);
		}
		reap(pid);
		expect(fd, 1, 'c' + n);
		expect(fd, 2, 'd' + n);
	}
	for (int n = 0; n < 10; n++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			int mine = open(in_dir("family"), O_RDWR);
			for (unsigned m = 0;; m++) {
				uint32_t *words = (uint32_t *)page;
				for (int at = 0; at < PAGE / 4; at++)
					words[at] = m;
				CHECK(pwrite(mine, page, PAGE, (m % PAGES) * PAGE) == PAGE);
			}
		}
		usleep(5000 + 3000 * n);
		CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
		int torn = 0;
		for (int at = 0; at < PAGES; at++) {
			CHECK(pread(fd, seen, PAGE, at * PAGE) == PAGE);
			torn += memcmp(seen, seen + 4, PAGE - 4) != 0;
		}
		CHECK(torn <= 1);
		put(fd, 3, 'k');
		expect(fd, 3, 'k');
	}
	CHECK(close(fd) == 0);
}

/* Files that come and go at the same numbers. */
static void passing(void)
{
	for (int n = 0; n < 40; n++) {
		char name[3][16];
		int fd[3];
		for (int m = 0; m < 3; m++) {
			snprintf(name[m], sizeof name[m], "pass%d", (n + m) % 5);
			fd[m] = open(in_dir(name[m]), O_RDWR | O_CREAT | O_TRUNC, 0644);
			CHECK(fd[m] >= 0);
		}
		for (int round = 0; round < 4; round++)
			for (int m = 0; m < 3; m++)
				put(fd[m], 0, 'a' + (n + m) % 26);
		for (int round = 0; round < 4; round++)
			for (int m = 0; m < 3; m++)
				expect(fd[m], 0, 'a' + (n + m) % 26);
		CHECK(close(fd[n % 3]) == 0);
		fd[n % 3] = open(in_dir(name[(n + 1) % 3]), O_RDWR);
		expect(fd[n % 3], 0, 'a' + (n + (n + 1) % 3) % 26);
		for (int m = 0; m < 3; m++)
			CHECK(close(fd[m]) == 0);
	}
}

static int shared;

static void *fill(void *byte)
{
	char mine[PAGE];
	memset(mine, *(char *)byte, PAGE);
	for (int n = 0; n < 3000; n++)
		CHECK(pwrite(shared, mine, PAGE, (n % PAGES) * PAGE) == PAGE);
	return NULL;
}

/* Writes of whole pages exclude each other. */
static void threads(void)
{
	pthread_t thread[3];
	shared = warm("threads");
	for (int n = 0; n < 3; n++)
		CHECK(pthread_create(&thread[n], NULL, fill, &"123"[n]) == 0);
	for (int n = 0; n < 3; n++)
		CHECK(pthread_join(thread[n], NULL) == 0);
	for (int at = 0; at < PAGES; at++) {
		CHECK(pread(shared, seen, PAGE, at * PAGE) == PAGE);
		CHECK(memcmp(seen, seen + 1, PAGE - 1) == 0);
	}
	CHECK(close(shared) == 0);
}

static volatile sig_atomic_t rings;

static void ring(int signal)
{
	(void)signal;
	int saved = errno;
	char mine[16] = "handler", back[16] = "";
	if (pwrite(shared, mine, 16, PAGE) != 16 || pread(shared, back, 16, PAGE) != 16)
		_exit(3);
	if (memcmp(mine, back, 16) != 0)
		_exit(4);
	errno = saved;
	rings++;
}

/* A handler writes the file that the interrupted call is writing. */
static void handlers(void)
{
	shared = warm("handlers");
	struct sigaction action = { .sa_handler = ring, .sa_flags = SA_RESTART };
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	struct itimerval often = { { 0, 500 }, { 0, 500 } };
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	for (int n = 0; n < 400000 && (n < 20000 || rings < 100); n++) {
		put(shared, 0, 'a' + n % 26);
		expect(shared, 0, 'a' + n % 26);
	}
	often.it_value.tv_usec = often.it_interval.tv_usec = 0;
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	CHECK(rings > 0 && pread(shared, seen, 16, PAGE) == 16 && strcmp(seen, "handler") == 0);
	CHECK(close(shared) == 0);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	other_door();
	size_and_state();
	end_of_file();
	mapped();
	processes();
	passing();
	threads();
	handlers();
	return 0;
}
