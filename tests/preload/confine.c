/*
 * A program that confines itself after it used the lane is confined there, too: by Landlock or seccomp,
 * in its children and in what they execute. What it left itself goes on, by the very calls it makes. One that does so
 * by inline system calls, which no hook sees, keeps its session; its children and what they execute get none.
 */
#include "check.h"
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

enum { LONG = 300000 };

static void use(void)
{
	struct stat st;
	for (int turn = 0; turn < 40; turn++) {
		int fd = open(in_dir("file"), O_RDWR);
		char bytes[8];
		CHECK(fd >= 0 && pread(fd, bytes, 8, 0) == 8 && pwrite(fd, bytes, 8, 0) == 8);
		CHECK(close(fd) == 0 && stat(in_dir("file"), &st) == 0);
	}
}

#define LOAD BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define IS(number, to, other) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, to, other)
#define SAYS(what) BPF_STMT(BPF_RET | BPF_K, what)

/* Allows these four calls and the end; anything else ends the program, or fails. */
static struct sock_filter few[] = {
	LOAD, IS(SYS_read, 5, 0), IS(SYS_write, 4, 0), IS(SYS_lseek, 3, 0), IS(SYS_close, 2, 0),
	IS(SYS_exit_group, 1, 0), SAYS(SECCOMP_RET_KILL), SAYS(SECCOMP_RET_ALLOW),
};

/* Nothing is opened, made or removed. */
static struct sock_filter names[] = {
	LOAD,
	IS(SYS_openat, 7, 0), IS(SYS_unlinkat, 6, 0), IS(SYS_mkdirat, 5, 0), IS(SYS_renameat2, 4, 0),
#ifdef SYS_open
	IS(SYS_open, 3, 0), IS(SYS_unlink, 2, 0), IS(SYS_mkdir, 1, 0),
#else
	IS(SYS_openat2, 3, 0), IS(SYS_symlinkat, 2, 0), IS(SYS_linkat, 1, 0),
#endif
	SAYS(SECCOMP_RET_ALLOW), SAYS(SECCOMP_RET_ERRNO | EPERM),
};

#define PROGRAM(filter) { sizeof(filter) / sizeof *(filter), filter }

/* By the function or by number. */
static void filter(struct sock_fprog program, int way)
{
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	if (way == 0)
		CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	else if (way == 1)
		CHECK(syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
	else
		CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
}

/* Reads and writes on by descriptors from before, in every mode in which the kernel lets it. */
static void goes_on(int strict, int way)
{
	static char text[LONG];
	memset(text, 'x', sizeof text);
	use();
	int fd = open(in_dir("long"), O_RDWR | O_CREAT | O_TRUNC, 0644);
	int log = open(in_dir("log"), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644);
	CHECK(fd >= 0 && log >= 0);
	for (int turn = 0; turn < 20; turn++)
		CHECK(write(fd, "12345", 5) == 5 && write(log, "a", 1) == 1);
	CHECK(lseek(fd, 50, SEEK_SET) == 50);
	if (strict)
		CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
	else
		filter((struct sock_fprog)PROGRAM(few), way);
	int good = write(fd, "behind", 6) == 6 && write(log, "b", 1) == 1;
	good = good && write(fd, text, sizeof text) == sizeof text && write(log, "c", 1) == 1;
	good = good && read(fd, text, 1) == 0;
	if (!strict)
		good = good && lseek(fd, 48, SEEK_SET) == 48 && read(fd, text, 8) == 8
			&& memcmp(text, "45behind", 8) == 0 && close(log) == 0 && close(fd) == 0;
	syscall(strict ? SYS_exit : SYS_exit_group, good ? 0 : 9);
}

static void left_behind(void)
{
	struct stat st;
	char text[32] = "";
	CHECK(stat(in_dir("long"), &st) == 0 && st.st_size == 56 + LONG);
	int fd = open(in_dir("log"), O_RDONLY);
	CHECK(fd >= 0 && read(fd, text, 32) == 22 && strcmp(text + 18, "aabc") == 0 && close(fd) == 0);
}

/* What a confined program must not be able to do, and cannot in a child either. */
static void refused(int error)
{
	for (int child = 0; child < 2; child++) {
		for (int turn = 0; turn < 20; turn++) {
			FAILS(open(in_dir("file"), O_WRONLY), error);
			FAILS(open(in_dir("new"), O_CREAT | O_WRONLY, 0600), error);
			FAILS(unlink(in_dir("victim")), error);
			FAILS(mkdir(in_dir("sub"), 0700), error);
		}
		if (child == 0) {
			int status;
			pid_t pid = fork();
			CHECK(pid >= 0);
			if (pid > 0) {
				CHECK(waitpid(pid, &status, 0) == pid && status == 0);
				return;
			}
		}
	}
	_exit(0);
}

static void refused_to_a_child(void)
{
	int status;
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		refused(EACCES);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* A system call that no hook sees. */
static long inline_call(long number, long a, long b, long c, long d, long e)
{
#ifdef __x86_64__
	register long fourth __asm__("r10") = d, fifth __asm__("r8") = e;
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
			 : "rcx", "r11", "memory");
	return result;
#else
	(void)number, (void)a, (void)b, (void)c, (void)d, (void)e;
	_exit(SKIP);
#endif
}

#ifdef SYS_landlock_restrict_self
static int landlock(int unseen)
{
	struct landlock_ruleset_attr rules = {
		.handled_access_fs = LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_MAKE_REG
			| LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_DIR,
	};
	int ruleset = (int)syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
	if (ruleset < 0)
		return SKIP;
	if (unseen) {
		CHECK(inline_call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
		CHECK(inline_call(SYS_landlock_restrict_self, ruleset, 0, 0, 0, 0) == 0);
		return 0;
	}
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(syscall(SYS_landlock_restrict_self, ruleset, 0) == 0);
	return 0;
}
#else
static int landlock(int unseen)
{
	(void)unseen;
	return SKIP;
}
#endif

int main(int argc, char **argv)
{
	start(argc, argv);
	if (argc > 2)
		refused(EACCES);
	if (argc > 2)
		return 0;
	CHECK(close(make("file", "contents")) == 0 && close(make("victim", "")) == 0);
	/* Who only asks what there is goes on as before. */
	FAILS(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL), EFAULT);
	use();
	int fast = open(in_dir("file"), O_RDONLY);
	expect_fast(fast);
	CHECK(close(fast) == 0);
	for (int what = 0; what < 11; what++) {
		int status;
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			if (what < 4)
				goes_on(what == 3, what);
			use();
			if (what < 7) {
				filter((struct sock_fprog)PROGRAM(names), what - 4);
				refused(EPERM);
				_exit(0);
			}
			int confined = landlock(what > 8);
			if (confined != 0)
				_exit(confined);
			if (what == 7)
				refused(EACCES);
			else if (what == 9)
				refused_to_a_child();
			else
				execl("/proc/self/exe", argv[0], dir_path, "again", NULL);
			_exit(what == 8 || what == 10 ? 1 : 0);
		}
		CHECK(waitpid(pid, &status, 0) == pid);
		CHECK(status == 0 || (WIFEXITED(status) && WEXITSTATUS(status) == SKIP));
		if (what < 4 && status == 0)
			left_behind();
	}
	/* It is itself not confined. */
	CHECK(unlink(in_dir("victim")) == 0);
	return 0;
}
