/* errno survives successes; umask, also a changed one, is honoured. */
#include "check.h"

static unsigned mode_of(const char *name)
{
	struct stat st;
	CHECK(lstat(in_dir(name), &st) == 0);
	return st.st_mode & 07777;
}

int main(int argc, char **argv)
{
	start(argc, argv);
	char text[16];
	struct stat st;
	errno = 42;
	int fd = open(in_dir("file"), O_RDWR | O_CREAT, 0666);
	CHECK(fd >= 0 && errno == 42);
	CHECK(write(fd, "0123456789", 10) == 10 && errno == 42);
	CHECK(lseek(fd, 0, SEEK_SET) == 0 && read(fd, text, 10) == 10 && errno == 42);
	CHECK(fstat(fd, &st) == 0 && stat(in_dir("file"), &st) == 0 && errno == 42);
	CHECK(dup2(fd, 50) == 50 && close(50) == 0 && errno == 42);
	CHECK(access(in_dir("file"), F_OK) == 0 && chmod(in_dir("file"), 0600) == 0);
	CHECK(mkdir(in_dir("errdir"), 0700) == 0 && rmdir(in_dir("errdir")) == 0 && errno == 42);
	CHECK(chdir(dir_path) == 0 && access("file", F_OK) == 0 && errno == 42);
	CHECK(rename("file", "other") == 0 && unlink("other") == 0 && errno == 42);
	pid_t pid = fork();
	CHECK(pid >= 0 && errno == 42);
	if (pid == 0) {
		CHECK(fstat(fd, &st) == 0 && errno == 42);
		_exit(0);
	}
	reap(pid);
	CHECK(close(fd) == 0 && errno == 42);

	mode_t old = umask(027);
	CHECK(umask(027) == 027);
	CHECK(close(open(in_dir("masked"), O_CREAT | O_WRONLY, 0666)) == 0);
	CHECK(mode_of("masked") == 0640);
	CHECK(mkdir(in_dir("maskdir"), 0777) == 0 && mode_of("maskdir") == 0750);
	CHECK(mknod(in_dir("node"), S_IFREG | 0666, 0) == 0 && mode_of("node") == 0640);
	CHECK(mkfifo(in_dir("fifo"), 0666) == 0 && mode_of("fifo") == 0640);
	CHECK(umask(0) == 027);
	CHECK(close(open(in_dir("bare"), O_CREAT | O_WRONLY, 0666)) == 0);
	CHECK(mode_of("bare") == 0666);
	/* The mode travels as a variadic argument, set-id bits and all. */
	CHECK(close(open(in_dir("bits"), O_CREAT | O_WRONLY, 04751)) == 0);
	CHECK(mode_of("bits") == 04751);
	CHECK(close(openat(AT_FDCWD, in_dir("bits2"), O_CREAT | O_WRONLY, 0421)) == 0);
	CHECK(mode_of("bits2") == 0421);
	CHECK(close(creat(in_dir("bits3"), 0604)) == 0 && mode_of("bits3") == 0604);
	umask(old);
	return 0;
}
