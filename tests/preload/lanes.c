/*
 * Two lanes in one process, each with a session of its own: descriptors, directories, locks, children and
 * threads of both at a time. With one directory as its argument both are in that; with two, they may be on
 * two devices, and what the kernel refuses between these is refused.
 */
#include "check.h"
#include <dirent.h>
#include <pthread.h>
#include <sys/sendfile.h>

enum { LANES = 2, ROUNDS = 40, FILES = 48, THREADS = 4 };

static char lanes[LANES][PATH_MAX];
static int apart;

/* A path in a lane, good until sixteen more were asked for. */
static const char *in(int lane, const char *name)
{
	static __thread char paths[16][2 * PATH_MAX];
	static __thread unsigned next;
	char *path = paths[next++ % 16];
	snprintf(path, sizeof paths[0], "%s/%s", lanes[lane], name);
	return path;
}

static int make_in(int lane, const char *name, const char *text)
{
	int fd = open(in(lane, name), O_RDWR | O_CREAT | O_TRUNC, 0644);
	CHECK(fd >= 0);
	CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	return fd;
}

static void holds(int lane, const char *name, const char *text)
{
	char buffer[256];
	int fd = open(in(lane, name), O_RDONLY);
	CHECK(fd >= 0);
	ssize_t count = read(fd, buffer, sizeof buffer - 1);
	CHECK(count >= 0);
	buffer[count] = 0;
	if (strcmp(buffer, text) != 0) {
		fprintf(stderr, "%s holds \"%s\", not \"%s\"\n", in(lane, name), buffer, text);
		_exit(1);
	}
	CHECK(close(fd) == 0);
}

/* Between two devices the call fails with EXDEV, else it does not. */
#define CROSSES(call)                                                                              \
	do {                                                                                       \
		errno = 0;                                                                         \
		int done = (call);                                                                 \
		CHECK(apart ? done == -1 && errno == EXDEV : done == 0);                           \
	} while (0)

static void files_of_both(void)
{
	for (int round = 0; round < ROUNDS; round++) {
		int fd[LANES];
		char text[64];
		struct stat by_fd, by_path;
		for (int lane = 0; lane < LANES; lane++) {
			snprintf(text, sizeof text, "lane %d round %d", lane, round);
			fd[lane] = make_in(lane, "same-name", text);
			expect_fast(fd[lane]);
		}
		for (int lane = LANES; lane-- > 0;) {
			char buffer[64] = "";
			snprintf(text, sizeof text, "lane %d round %d", lane, round);
			CHECK(pread(fd[lane], buffer, sizeof buffer, 0) == (ssize_t)strlen(text));
			CHECK(strcmp(buffer, text) == 0);
			CHECK(fstat(fd[lane], &by_fd) == 0);
			CHECK(stat(in(lane, "same-name"), &by_path) == 0);
			CHECK(by_fd.st_dev == by_path.st_dev && by_fd.st_ino == by_path.st_ino);
			CHECK(close(fd[lane]) == 0);
		}
	}
	FAILS(open(in(1, "none"), O_RDONLY), ENOENT);
	CHECK(close(make_in(0, "none", "x")) == 0);
	FAILS(open(in(1, "none"), O_RDONLY), ENOENT);
	CHECK(unlink(in(0, "none")) == 0);
}

static void names_across(void)
{
	CHECK(close(make_in(0, "here", "here")) == 0);
	CROSSES(link(in(0, "here"), in(1, "linked")));
	CROSSES(rename(in(0, "here"), in(1, "there")));
	holds(apart ? 0 : 1, apart ? "here" : "there", "here");
	CHECK(mkdir(in(0, "tree"), 0755) == 0);
	CROSSES(rename(in(0, "tree"), in(1, "tree")));
	CHECK(rmdir(in(apart ? 0 : 1, "tree")) == 0);
	CHECK(symlink(in(1, "aim"), in(0, "arrow")) == 0);
	CHECK(close(make_in(1, "aim", "seen through a link")) == 0);
	holds(0, "arrow", "seen through a link");
}

static void copies_of_numbers(void)
{
	int one = make_in(0, "one", "1"), two = make_in(1, "two", "2");
	int kept = dup(two);
	CHECK(kept >= 0);
	/* The number of the one lane's file means the other's from here on, with its position. */
	CHECK(dup2(one, two) == two);
	CHECK(write(two, "+", 1) == 1 && write(one, "-", 1) == 1);
	CHECK(write(kept, "=", 1) == 1);
	holds(0, "one", "1+-");
	holds(1, "two", "2=");
	CHECK(dup3(kept, one, O_CLOEXEC) == one);
	CHECK(lseek(one, 0, SEEK_CUR) == 2 && lseek(two, 0, SEEK_CUR) == 3);
	CHECK(ftruncate(one, 1) == 0);
	holds(1, "two", "2");
	CHECK(close(one) == 0 && close(two) == 0 && close(kept) == 0);
}

static void directories(void)
{
	char path[PATH_MAX];
	int dir[LANES];
	for (int lane = 0; lane < LANES; lane++) {
		dir[lane] = open(lanes[lane], O_RDONLY | O_DIRECTORY);
		CHECK(dir[lane] >= 0);
		CHECK(mkdirat(dir[lane], "sub", 0755) == 0);
	}
	for (int round = 0; round < 4; round++)
		for (int lane = 0; lane < LANES; lane++) {
			const char *text = lane ? "one" : "zero";
			CHECK(round % 2 ? fchdir(dir[lane]) == 0 : chdir(lanes[lane]) == 0);
			CHECK(getcwd(path, sizeof path) && strcmp(path, lanes[lane]) == 0);
			int fd = open("sub/relative", O_WRONLY | O_CREAT | O_TRUNC, 0644);
			CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
			CHECK(close(fd) == 0);
			/* From here into the other one. */
			fd = openat(dir[!lane], "sub/other", O_WRONLY | O_CREAT | O_TRUNC, 0644);
			CHECK(fd >= 0 && close(fd) == 0);
			CROSSES(renameat(AT_FDCWD, "sub/relative", dir[!lane], "sub/moved"));
			if (!apart)
				CHECK(renameat(dir[!lane], "sub/moved", AT_FDCWD, "sub/relative") == 0);
			holds(lane, "sub/relative", text);
		}
	CHECK(chdir("/") == 0);
	DIR *stream[LANES];
	int count[LANES] = {0};
	for (int lane = 0; lane < LANES; lane++)
		CHECK((stream[lane] = opendir(in(lane, "sub"))) != NULL);
	for (int more = 1; more;) {
		more = 0;
		for (int lane = 0; lane < LANES; lane++)
			if (readdir(stream[lane]) != NULL)
				count[lane]++, more = 1;
	}
	for (int lane = 0; lane < LANES; lane++) {
		CHECK(count[lane] == 4); /* ., .., relative, other */
		CHECK(closedir(stream[lane]) == 0 && close(dir[lane]) == 0);
	}
}

static struct flock whole(short kind)
{
	return (struct flock){.l_type = kind, .l_whence = SEEK_SET};
}

static void locks(void)
{
	int fd[LANES] = {make_in(0, "lock", "x"), make_in(1, "lock", "x")};
	struct flock lock = whole(F_WRLCK);
	CHECK(fcntl(fd[0], F_SETLK, &lock) == 0);
	lock = whole(F_RDLCK);
	CHECK(fcntl(fd[1], F_SETLK, &lock) == 0);
	pid_t parent = getpid(), pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		for (int lane = 0; lane < LANES; lane++) {
			lock = whole(F_WRLCK);
			CHECK(fcntl(fd[lane], F_GETLK, &lock) == 0);
			CHECK(lock.l_type == (lane ? F_RDLCK : F_WRLCK));
			/* A run's further lanes do not know the run's process numbers. */
			CHECK(lock.l_pid == parent || (lane && lock.l_pid == 0));
		}
		_exit(0);
	}
	reap(pid);
	/* A close in the one lane gives up nothing in the other. */
	CHECK(close(open(in(1, "lock"), O_RDONLY)) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		lock = whole(F_WRLCK);
		CHECK(fcntl(fd[0], F_GETLK, &lock) == 0 && lock.l_type == F_WRLCK);
		lock = whole(F_WRLCK);
		CHECK(fcntl(fd[1], F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK);
		_exit(0);
	}
	reap(pid);
	CHECK(close(fd[0]) == 0 && close(fd[1]) == 0);
}

static void bytes_across(void)
{
	int from = make_in(0, "source", "what is copied"), to = make_in(1, "target", "");
	off_t at = 0;
	CHECK(sendfile(to, from, &at, 14) == 14);
	holds(1, "target", "what is copied");
	CHECK(lseek(from, 0, SEEK_SET) == 0 && lseek(to, 0, SEEK_SET) == 0);
	ssize_t count = copy_file_range(from, NULL, to, NULL, 4, 0);
	CHECK(count == 4 || (count == -1 && errno == EXDEV));
	CHECK(fsync(from) == 0 && fdatasync(to) == 0 && syncfs(to) == 0);
	CHECK(close(from) == 0 && close(to) == 0);
	sync();
}

/* Names that come and go in both directories by turns. */
static void many_names(void)
{
	char name[64], other[64];
	for (int round = 0; round < 3; round++) {
		for (int file = 0; file < FILES; file++)
			for (int lane = 0; lane < LANES; lane++) {
				snprintf(name, sizeof name, "sub/n%d", file);
				snprintf(other, sizeof other, "sub/m%d", file);
				CHECK(close(make_in(lane, name, lane ? "b" : "a")) == 0);
				CHECK(rename(in(lane, name), in(lane, other)) == 0);
			}
		for (int file = 0; file < FILES; file++)
			for (int lane = LANES; lane-- > 0;) {
				snprintf(other, sizeof other, "sub/m%d", file);
				holds(lane, other, lane ? "b" : "a");
				CHECK(unlink(in(lane, other)) == 0);
			}
	}
}

static void *busy(void *number)
{
	char name[64], text[64];
	for (int round = 0; round < 100; round++)
		for (int lane = 0; lane < LANES; lane++) {
			snprintf(name, sizeof name, "thread%d", (int)(intptr_t)number);
			snprintf(text, sizeof text, "%s in %d, %d", name, lane, round);
			CHECK(close(make_in(lane, name, text)) == 0);
			holds(lane, name, text);
		}
	return NULL;
}

static void threads(void)
{
	pthread_t all[THREADS];
	for (intptr_t n = 0; n < THREADS; n++)
		CHECK(pthread_create(&all[n], NULL, busy, (void *)n) == 0);
	for (int n = 0; n < THREADS; n++)
		CHECK(pthread_join(all[n], NULL) == 0);
}

/* What a child does with descriptors that it has from its parent, and with files of its own. */
static void child(int one, int two)
{
	CHECK(write(one, "c", 1) == 1 && write(two, "C", 1) == 1);
	for (int round = 0; round < 4; round++)
		for (int lane = 0; lane < LANES; lane++) {
			int fd = make_in(lane, "of-child", lane ? "second" : "first");
			expect_fast(fd);
			CHECK(close(fd) == 0);
		}
	CHECK(write(one, "d", 1) == 1 && write(two, "D", 1) == 1);
}

static void children(const char *program)
{
	int one = make_in(0, "shared", "p"), two = make_in(1, "shared", "P");
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		child(one, two);
		_exit(0);
	}
	reap(pid);
	CHECK(write(one, "q", 1) == 1 && write(two, "Q", 1) == 1);
	holds(0, "shared", "pcdq");
	holds(1, "shared", "PCDQ");
	char first[16], second[16];
	snprintf(first, sizeof first, "%d", one);
	snprintf(second, sizeof second, "%d", two);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		char *const arguments[] = {"lanes", lanes[0], lanes[1], first, second, NULL};
		/* Its variables are put back. */
		char *const environment[] = {
			"POLYLANE_PATIENCE=0", getenv("EXPECT_FAST") ? "EXPECT_FAST=1" : NULL, NULL};
		execve(program, arguments, environment);
		_exit(127);
	}
	reap(pid);
	CHECK(write(one, "r", 1) == 1 && write(two, "R", 1) == 1);
	holds(0, "shared", "pcdqcdr");
	holds(1, "shared", "PCDQCDR");
	holds(0, "of-child", "first");
	holds(1, "of-child", "second");
	CHECK(close(one) == 0 && close(two) == 0);
}

int main(int argc, char **argv)
{
	char program[PATH_MAX] = "";
	struct stat st[LANES];
	start(argc, argv);
	CHECK(readlink("/proc/self/exe", program, sizeof program - 1) > 0);
	for (int lane = 0; lane < LANES; lane++) {
		if (argc > 2) {
			CHECK(realpath(argv[1 + lane], lanes[lane]) != NULL);
		} else {
			CHECK(snprintf(lanes[lane], PATH_MAX, "%s/%d", dir_path, lane) < PATH_MAX);
			CHECK(mkdir(lanes[lane], 0755) == 0);
		}
		CHECK(stat(lanes[lane], &st[lane]) == 0);
	}
	apart = st[0].st_dev != st[1].st_dev;
	if (argc > 4) {
		child(atoi(argv[3]), atoi(argv[4]));
		return 0;
	}
	files_of_both();
	names_across();
	copies_of_numbers();
	directories();
	many_names();
	locks();
	bytes_across();
	threads();
	children(program);
	return 0;
}
