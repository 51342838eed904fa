/* One offset for all who share an open file: over dup, fork and exec, preloaded or not. */
#include "check.h"

static void over_fork(void)
{
	char text[8] = "";
	int fd = make("fork", "abcdefghij");
	CHECK(lseek(fd, 2, SEEK_SET) == 2);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		CHECK(read(fd, text, 3) == 3 && memcmp(text, "cde", 3) == 0);
		_exit(0);
	}
	reap(pid);
	CHECK(lseek(fd, 0, SEEK_CUR) == 5);
	CHECK(read(fd, text, 2) == 2 && memcmp(text, "fg", 2) == 0);
	CHECK(close(fd) == 0);
}

static void writers_take_turns(void)
{
	enum { EACH = 200 };
	int fd = open(in_dir("turns"), O_CREAT | O_TRUNC | O_WRONLY, 0644);
	CHECK(fd >= 0);
	pid_t pids[4];
	for (int n = 0; n < 4; n++) {
		CHECK((pids[n] = fork()) >= 0);
		if (pids[n] == 0) {
			char line[16];
			snprintf(line, sizeof line, "%d234567\n", n);
			for (int k = 0; k < EACH; k++)
				CHECK(write(fd, line, 9) == 9);
			_exit(0);
		}
	}
	for (int n = 0; n < 4; n++)
		reap(pids[n]);
	CHECK(lseek(fd, 0, SEEK_CUR) == 4 * EACH * 9);
	CHECK(close(fd) == 0);
	CHECK((fd = open(in_dir("turns"), O_RDONLY)) >= 0);
	int seen[4] = { 0 };
	char line[9];
	while (read(fd, line, 9) == 9) {
		CHECK(line[0] >= '0' && line[0] < '4' && memcmp(line + 1, "234567\n", 8) == 0);
		seen[line[0] - '0']++;
	}
	for (int n = 0; n < 4; n++)
		CHECK(seen[n] == EACH);
	CHECK(close(fd) == 0);
}

/* `{ preloaded; static; preloaded; } > file` */
static void over_exec(const char *here)
{
	char command[3 * PATH_MAX];
	snprintf(command, sizeof command,
		 "{ printf one; %s/static-write two; printf three; echo four | cat; "
		 "%s/static-write five; } > %s",
		 here, here, in_dir("shell"));
	CHECK(system(command) == 0);
	expect_text("shell", "onetwothreefour\nfive");

	snprintf(command, sizeof command,
		 "{ printf one; %s/static-write two; printf three; } >> %s", here,
		 in_dir("shell"));
	CHECK(system(command) == 0);
	expect_text("shell", "onetwothreefour\nfiveonetwothree");

	snprintf(command, sizeof command,
		 "{ read a; %s/static-read 4; read b; echo \"$a $b\" >&2; } < %s 2> %s > %s", here,
		 in_dir("lines"), in_dir("out2"), in_dir("out1"));
	CHECK(close(make("lines", "one\ntwo\nthree\n")) == 0);
	CHECK(system(command) == 0);
	expect_text("out1", "two\n");
	expect_text("out2", "one three\n");
}

/* More files than the library moves at a time, some with a copy: a child goes on where its parent was in each. */
static void many_over_fork(void)
{
	enum { MANY = 150 };
	int fds[MANY], copies[MANY];
	char name[32], text[64];
	for (int n = 0; n < MANY; n++) {
		snprintf(name, sizeof name, "many%d", n);
		snprintf(text, sizeof text, "%03d-", n);
		fds[n] = make(name, text);
		copies[n] = n % 3 == 0 ? dup(fds[n]) : fds[n];
		CHECK(copies[n] >= 0);
	}
	for (int round = 0; round < 2; round++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		for (int n = 0; n < MANY && pid == 0; n++)
			CHECK(write(copies[n], "child ", 6) == 6);
		if (pid == 0)
			_exit(0);
		reap(pid);
		for (int n = 0; n < MANY; n++)
			CHECK(write(fds[n], "parent ", 7) == 7);
	}
	for (int n = 0; n < MANY; n++) {
		snprintf(name, sizeof name, "many%d", n);
		snprintf(text, sizeof text, "%03d-child parent child parent ", n);
		expect_text(name, text);
		CHECK(close(fds[n]) == 0 && (copies[n] == fds[n] || close(copies[n]) == 0));
	}
}

int main(int argc, char **argv)
{
	start(argc, argv);
	many_over_fork();
	over_fork();
	writers_take_turns();
	char here[PATH_MAX];
	CHECK(realpath(argv[0], here) != NULL);
	*strrchr(here, '/') = 0;
	over_exec(here);
	return 0;
}
