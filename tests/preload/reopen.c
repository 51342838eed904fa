/*
 * Files that are opened, read and closed over and over, which the fast lane keeps open for the next
 * time: each open is one of its own, of what the path leads to by then, and a close gives up what any
 * close gives up.
 */
#include "check.h"
#include <pthread.h>
#include <sys/file.h>

enum { WARM = 8, FILES = 150, VERSIONS = 300, READERS = 3 };

#if defined(__x86_64__)
/* Past every hook: the other way into the lane. */
static long raw(long number, long a, long b, long c)
{
	long rc;
	__asm__ volatile("syscall"
			 : "=a"(rc)
			 : "a"(number), "D"(a), "S"(b), "d"(c)
			 : "rcx", "r11", "memory");
	return rc;
}
#else
#define raw(number, a, b, c) syscall(number, a, b, c)
#endif

static void warm(const char *name, const char *text)
{
	for (int n = 0; n < WARM; n++)
		expect_text(name, text);
}

static void put(const char *name, const char *text)
{
	CHECK(close(make(name, text)) == 0);
}

/* What others do to a name, or to what it names, is seen by the next open. */
static void changes(void)
{
	put("f", "one");
	warm("f", "one");
	put("new", "two");
	CHECK(rename(in_dir("new"), in_dir("f")) == 0);
	expect_text("f", "two");
	warm("f", "two");
	CHECK(raw(SYS_unlinkat, AT_FDCWD, (long)in_dir("f"), 0) == 0);
	FAILS(open(in_dir("f"), O_RDONLY), ENOENT);
	put("f", "three");
	warm("f", "three");
	CHECK(raw(SYS_truncate, (long)in_dir("f"), 2, 0) == 0);
	expect_text("f", "th");
	warm("f", "th");
	int fd = open(in_dir("f"), O_WRONLY | O_APPEND);
	CHECK(fd >= 0 && write(fd, "is", 2) == 2 && close(fd) == 0);
	expect_text("f", "this");
	warm("f", "this");
	fd = open(in_dir("f"), O_RDONLY | O_TRUNC);
	CHECK(fd >= 0 && close(fd) == 0);
	expect_text("f", "");
	CHECK(unlink(in_dir("f")) == 0);
	FAILS(open(in_dir("f"), O_RDONLY), ENOENT);
}

/* Links and directories on the way. */
static void ways(void)
{
	CHECK(mkdir(in_dir("a"), 0755) == 0 && mkdir(in_dir("b"), 0755) == 0);
	put("a/f", "in a");
	put("b/f", "in b");
	CHECK(symlink("a", in_dir("way")) == 0);
	warm("way/f", "in a");
	FAILS(open(in_dir("way"), O_RDONLY | O_NOFOLLOW), ELOOP);
	CHECK(symlink("b", in_dir("other")) == 0);
	CHECK(rename(in_dir("other"), in_dir("way")) == 0);
	expect_text("way/f", "in b");
	warm("a/f", "in a");
	CHECK(rename(in_dir("a"), in_dir("c")) == 0);
	FAILS(open(in_dir("a/f"), O_RDONLY), ENOENT);
	expect_text("c/f", "in a");
	if (geteuid() != 0) {
		warm("c/f", "in a");
		CHECK(chmod(in_dir("c"), 0600) == 0);
		FAILS(open(in_dir("c/f"), O_RDONLY), EACCES);
		CHECK(chmod(in_dir("c"), 0755) == 0 && chmod(in_dir("c/f"), 0200) == 0);
		FAILS(open(in_dir("c/f"), O_RDONLY), EACCES);
	}
}

/* An open begins where opens begin, with the flags that it was given. */
static void opens(void)
{
	char text[8];
	put("g", "abcdef");
	warm("g", "abcdef");
	for (int n = 0; n < WARM; n++) {
		int fd = open(in_dir("g"), n % 2 ? O_RDONLY : O_RDONLY | O_CLOEXEC);
		/* A slot that had a second open is not the library's any more. */
		if (n == 0)
			expect_fast(fd);
		CHECK(fcntl(fd, F_GETFD) == (n % 2 ? 0 : FD_CLOEXEC));
		CHECK(read(fd, text, 3) == 3 && memcmp(text, "abc", 3) == 0);
		int again = open(in_dir("g"), O_RDONLY);
		CHECK(read(again, text, 2) == 2 && memcmp(text, "ab", 2) == 0);
		CHECK(lseek(fd, 0, SEEK_CUR) == 3 && close(fd) == 0);
		CHECK(read(again, text, 2) == 2 && memcmp(text, "cd", 2) == 0);
		FAILS(write(again, "x", 1), EBADF);
		/* The kernel's own position, and a second open of the descriptor. */
		CHECK(raw(SYS_lseek, again, 5, SEEK_SET) == 5);
		char link[64];
		snprintf(link, sizeof link, "/proc/self/fd/%d", again);
		int second = open(link, O_RDONLY);
		CHECK(second >= 0 && close(again) == 0);
		CHECK(read(second, text, 8) == 6 && close(second) == 0);
		expect_text("g", "abcdef");
	}
	int fd = open(in_dir("g"), O_RDONLY | O_NONBLOCK);
	CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
	CHECK(fcntl(fd, F_SETFL, 0) == 0 && close(fd) == 0);
	fd = open(in_dir("g"), O_RDONLY);
	CHECK(!(fcntl(fd, F_GETFL) & O_NONBLOCK) && close(fd) == 0);
	/* Mapped, it is the file's own bytes, whoever writes them. */
	fd = open(in_dir("g"), O_RDONLY);
	char *map = mmap(NULL, 6, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(map != MAP_FAILED && close(fd) == 0);
	warm("g", "abcdef");
	fd = open(in_dir("g"), O_WRONLY);
	CHECK(pwrite(fd, "A", 1, 0) == 1 && close(fd) == 0);
	CHECK(map[0] == 'A' && munmap(map, 6) == 0);
	expect_text("g", "Abcdef");
}

static int is_locked(void)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
		int fd = open(in_dir("l"), O_RDWR);
		if (fd < 0 || fcntl(fd, F_GETLK, &lock) != 0)
			_exit(2);
		_exit(lock.l_type == F_UNLCK && flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : 1);
	}
	int status = -1;
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	CHECK(WEXITSTATUS(status) < 2);
	return WEXITSTATUS(status);
}

/* A close gives locks up: at once, and only those of its time. */
static void locks(void)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	put("l", "text");
	warm("l", "text");
	int fd = open(in_dir("l"), O_RDONLY);
	CHECK(flock(fd, LOCK_EX) == 0 && is_locked());
	CHECK(close(fd) == 0 && !is_locked());
	warm("l", "text");
	fd = open(in_dir("l"), O_RDWR);
	CHECK(fcntl(fd, F_SETLK, &lock) == 0 && is_locked());
	for (int n = 0; n < FILES; n++) {
		char name[16];
		snprintf(name, sizeof name, "m%d", n);
		put(name, name);
	}
	for (int n = 0; n < 3 * FILES; n++) {
		char name[16];
		snprintf(name, sizeof name, "m%d", n % FILES);
		expect_text(name, name);
	}
	CHECK(is_locked());
	expect_text("l", "text");
	CHECK(!is_locked() && close(fd) == 0);
}

static int published;

/* Whoever opens the file after a version of it was put there reads that one, or a later one. */
static void *reads(void *end)
{
	while (!__atomic_load_n((int *)end, __ATOMIC_ACQUIRE)) {
		char text[16] = "";
		int least = __atomic_load_n(&published, __ATOMIC_SEQ_CST);
		int fd = open(in_dir("version"), O_RDONLY);
		CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0 && close(fd) == 0);
		CHECK(atoi(text) >= least);
	}
	return NULL;
}

static void versions(void)
{
	pthread_t readers[READERS];
	static int end;
	put("version", "0");
	for (int n = 0; n < READERS; n++)
		CHECK(pthread_create(&readers[n], NULL, reads, &end) == 0);
	for (int n = 1; n <= VERSIONS; n++) {
		char text[16];
		snprintf(text, sizeof text, "%d", n);
		put("next", text);
		CHECK(rename(in_dir("next"), in_dir("version")) == 0);
		__atomic_store_n(&published, n, __ATOMIC_SEQ_CST);
		usleep(500);
	}
	__atomic_store_n(&end, 1, __ATOMIC_RELEASE);
	for (int n = 0; n < READERS; n++)
		CHECK(pthread_join(readers[n], NULL) == 0);
}

/* A child has what it inherited, and its parent what it had. */
static void children(void)
{
	put("h", "text");
	warm("h", "text");
	for (int n = 0; n < 4; n++) {
		char text[4];
		int fd = open(in_dir("h"), O_RDONLY);
		CHECK(read(fd, text, 1) == 1);
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			CHECK(read(fd, text, 1) == 1 && text[0] == 'e');
			warm("h", "text");
			_exit(0);
		}
		reap(pid);
		CHECK(read(fd, text, 1) == 1 && text[0] == 'x' && close(fd) == 0);
		warm("h", "text");
	}
}

int main(int argc, char **argv)
{
	start(argc, argv);
	changes();
	ways();
	opens();
	children();
	versions();
	/* Last: a process with locks closes by requests alone. */
	locks();
	return 0;
}
