/*
 * Calls in handlers that run on a signal stack of the size that programs use, SIGSTKSZ (8192 bytes),
 * above which the kernel's frame takes up to 3376 bytes on a CPU with AVX-512. Where that frame is
 * larger, the stack is, too. Below the stack lies memory that no call may have touched.
 */
#include "check.h"
#include <poll.h>
#include <sys/auxv.h>

#define USUAL 8192
#define USUAL_FRAME 3376
#define BELOW (64 << 10)

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

static int file = -1, other;
static const char *a, *b, *link_name, *dir;
static char bytes[64], much[1 << 16];
static struct stat st;

static long open_a(void) { return close(open(a, O_RDONLY)); }
static long open_rw(void) { return file = open(a, O_RDWR); }
static long create(void) { return close(open(b, O_RDWR | O_CREAT | O_EXCL, 0600)); }
static long remove_b(void) { return unlink(b); }
static long missing(void) { return open("no/such/name", O_RDONLY) == -1 ? 0 : -1; }
static long read_one(void) { return lseek(file, 0, SEEK_SET) == 0 ? read(file, bytes, 8) : -1; }
static long pread_one(void) { return pread(file, bytes, 8, 0); }
static long pread_much(void) { return pread(file, much, sizeof much, 0); }
static long write_one(void) { return write(file, "x", 1); }
static long pwrite_one(void) { return pwrite(file, "x", 1, 0); }
static long pwrite_much(void) { return pwrite(file, much, sizeof much, 0); }
static long readv_two(void)
{
	struct iovec parts[2] = { { bytes, 4 }, { bytes + 8, 4 } };
	return lseek(file, 0, SEEK_SET) == 0 ? readv(file, parts, 2) : -1;
}
static long writev_two(void)
{
	struct iovec parts[2] = { { bytes, 4 }, { bytes + 8, 4 } };
	return writev(file, parts, 2);
}
static long stat_a(void) { return stat(a, &st); }
static long lstat_a(void) { return lstat(a, &st); }
static long fstat_file(void) { return fstat(file, &st); }
static long access_a(void) { return access(a, R_OK); }
static long chmod_a(void) { return chmod(a, 0640); }
static long fchmod_file(void) { return fchmod(file, 0644); }
static long ftruncate_file(void) { return ftruncate(file, 100); }
static long sync_file(void) { return fsync(file); }
static long copy(void) { return close(dup(file)); }
static long copy_to(void) { return dup2(file, 77) == 77 ? close(77) : -1; }
static long flags(void) { return fcntl(file, F_GETFL); }
static long lock(void)
{
	struct flock range = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1 };
	return fcntl(file, F_SETLK, &range);
}
static long rename_away(void) { return rename(a, b); }
static long rename_back(void) { return rename(b, a); }
static long link_b(void) { return link(a, b); }
static long symlink_a(void) { return symlink("a", link_name); }
static long read_link(void) { return readlink(link_name, bytes, sizeof bytes); }
static long open_by_link(void) { return close(open(link_name, O_RDONLY)); }
static long remove_link(void) { return unlink(link_name); }
static long make_dir(void) { return mkdir(dir, 0700); }
static long enter(void) { return chdir(dir); }
static long open_relative(void) { return close(open("../a", O_RDONLY)); }
static long stat_relative(void) { return stat("../a", &st); }
static long leave(void) { return chdir(".."); }
static long open_from(void)
{
	other = open(dir, O_RDONLY | O_DIRECTORY);
	return other < 0 ? -1 : close(openat(other, "../a", O_RDONLY)) | close(other);
}
static long remove_dir(void) { return rmdir(dir); }
static long touch(void) { return utimensat(AT_FDCWD, a, NULL, 0); }
static long make_fifo(void) { return mkfifo(b, 0600); }
static long look(void) { return poll(&(struct pollfd){ file, POLLIN, 0 }, 1, 0); }
/* The child reads and writes by what it got. */
static long fork_child(void)
{
	int status;
	pid_t child = fork();
	if (child == 0)
		_exit(pread(file, bytes, 8, 0) == 8 && pwrite(file, "y", 1, 0) == 1 ? 0 : 1);
	return child > 0 && waitpid(child, &status, 0) == child && status == 0 ? 0 : -1;
}
static long close_file(void) { return close(file); }

/* In this order. The first may be the call that connects the process to the lane. */
#define CALL(name) { #name, name }
static const struct {
	const char *name;
	long (*call)(void);
} calls[] = {
	CALL(open_a), CALL(open_rw), CALL(create), CALL(remove_b), CALL(missing), CALL(pwrite_much),
	CALL(read_one), CALL(pread_one), CALL(pread_much), CALL(write_one), CALL(pwrite_one),
	CALL(readv_two), CALL(writev_two), CALL(stat_a), CALL(lstat_a), CALL(fstat_file),
	CALL(access_a), CALL(chmod_a), CALL(fchmod_file), CALL(ftruncate_file), CALL(sync_file),
	CALL(copy), CALL(copy_to), CALL(flags), CALL(lock), CALL(rename_away), CALL(rename_back),
	CALL(link_b), CALL(remove_b), CALL(symlink_a), CALL(read_link), CALL(open_by_link),
	CALL(remove_link), CALL(make_dir), CALL(enter), CALL(open_relative), CALL(stat_relative),
	CALL(leave), CALL(open_from), CALL(remove_dir), CALL(touch), CALL(make_fifo), CALL(remove_b),
	CALL(look), CALL(fork_child), CALL(close_file),
};
#define COUNT (sizeof calls / sizeof *calls)

static volatile unsigned which;
static volatile long result;
static volatile int error;

static void handler(int signal)
{
	(void)signal;
	int saved = errno;
	result = calls[which].call();
	error = errno;
	errno = saved;
}

static void run_all(unsigned char *below, const char *when)
{
	for (which = 0; which < COUNT; which++) {
		memset(below, 0xa5, BELOW);
		CHECK(raise(SIGUSR1) == 0);
		size_t low = 0;
		while (low < BELOW && below[low] == 0xa5)
			low++;
		if (result < 0 || low < BELOW) {
			fprintf(stderr, "%s: %s: %ld (errno %d), %zu bytes below the stack\n", when,
				calls[which].name, result, error, BELOW - low);
			_exit(1);
		}
	}
}

int main(int argc, char **argv)
{
	size_t frame = getauxval(AT_MINSIGSTKSZ), size = USUAL;
	if (frame > USUAL_FRAME)
		size += frame - USUAL_FRAME;
	size = (size + 15) / 16 * 16;
	start(argc, argv);
	a = strdup(in_dir("a")), b = strdup(in_dir("b"));
	link_name = strdup(in_dir("link")), dir = strdup(in_dir("dir"));
	unsigned char *below = mmap(NULL, BELOW + size, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(below != MAP_FAILED);
	stack_t stack = { .ss_sp = below + BELOW, .ss_size = size };
	CHECK(sigaltstack(&stack, NULL) == 0);
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	/* Past the library, which is not to connect by it. */
	int made = syscall(SYS_openat, AT_FDCWD, a, O_RDWR | O_CREAT, 0644);
	CHECK(made >= 0 && syscall(SYS_write, made, "hello, stack", 12) == 12);
	syscall(SYS_close, made);
	run_all(below, "first");
	expect_fast(open(a, O_RDWR));
	run_all(below, "connected");
	CHECK(chdir("/") == 0);
	run_all(below, "once more");
	return 0;
}
