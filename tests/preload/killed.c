/*
 * A process writes a range anew, again and again, each time with another letter, and is stopped or killed in the
 * middle: each page of the range is of one letter. A long read takes several requests, between which a write that was
 * on its way may be done: through the library it finds whole pages beside a writer that goes on, too, which tmpfs does
 * not promise.
 */
#include "check.h"

enum { PAGE = 4096, BYTES = 400000, STOPS = 25, KILLS = 6, READS = 100 };

static const struct way {
	const char *name;
	size_t at, len;
	int parts;
} ways[] = {
	{ "a page", 0, PAGE, 1 },
	{ "less than a page", 700, 512, 1 },
	{ "pages", 2 * PAGE, 3 * PAGE, 1 },
	{ "across two pages", PAGE - 100, 200, 1 },
	{ "two pages in parts", PAGE, 2 * PAGE, 4 },
	{ "long, and not aligned", 1000, 300000, 1 },
	{ "the same in parts", 1000, 300000, 3 },
};

static char bytes[BYTES];

static void write_on(const struct way *way)
{
	int fd = open(in_dir("range"), O_RDWR);
	CHECK(fd >= 0);
	expect_fast(fd);
	for (unsigned n = 0;; n++) {
		struct iovec parts[4];
		size_t each = way->len / way->parts - 50, done = 0;
		memset(bytes, 'a' + n % 26, way->len);
		for (int part = 0; part < way->parts; part++, done += each)
			parts[part] = (struct iovec){ bytes + done, each };
		parts[way->parts - 1].iov_len = way->len - (done - each);
		ssize_t count = way->parts == 1 ? pwrite(fd, bytes, way->len, way->at) :
						  pwritev(fd, parts, way->parts, way->at);
		CHECK(count == (ssize_t)way->len);
	}
}

static pid_t start_writer(const struct way *way)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		write_on(way);
	return pid;
}

static void expect_whole_pages(const struct way *way, const char *how)
{
	int fd = open(in_dir("range"), O_RDONLY);
	CHECK(fd >= 0);
	CHECK(pread(fd, bytes, way->len, way->at) == (ssize_t)way->len);
	CHECK(close(fd) == 0);
	for (size_t n = 1; n < way->len; n++) {
		if (bytes[n] != bytes[n - 1] && (way->at + n) % PAGE != 0) {
			fprintf(stderr, "%s, %s: '%c' and '%c' at %zu\n", way->name, how, bytes[n - 1], bytes[n],
				way->at + n);
			_exit(1);
		}
	}
}

static void end(pid_t pid, const struct way *way)
{
	int status = 0;
	CHECK(kill(pid, SIGKILL) == 0);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	expect_whole_pages(way, "killed");
}

static void judge(const struct way *way)
{
	memset(bytes, 'a', sizeof bytes);
	int fd = open(in_dir("range"), O_RDWR | O_CREAT | O_TRUNC, 0644);
	CHECK(fd >= 0 && pwrite(fd, bytes, sizeof bytes, 0) == sizeof bytes && close(fd) == 0);
	pid_t pid = start_writer(way);
	usleep(20000);
	for (int n = 0; getenv("EXPECT_FAST") && n < READS; n++)
		expect_whole_pages(way, "running");
	for (int n = 0; n < STOPS; n++) {
		int status = 0;
		usleep(rand() % 1500);
		CHECK(kill(pid, SIGSTOP) == 0);
		CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
		expect_whole_pages(way, "stopped");
		CHECK(kill(pid, SIGCONT) == 0);
	}
	end(pid, way);
	for (int n = 0; n < KILLS; n++) {
		pid = start_writer(way);
		usleep(4000 + rand() % 3000);
		end(pid, way);
	}
}

int main(int argc, char **argv)
{
	start(argc, argv);
	srand(getpid());
	for (size_t n = 0; n < sizeof ways / sizeof *ways; n++)
		judge(&ways[n]);
	return 0;
}
