/* syscall(), the function, for whatever else a program may call by number. */
#include "say.h"
#include <dirent.h>
#include <linux/stat.h>

static int entries(int dir)
{
	char bytes[4096];
	long count, found = 0;
	while ((count = syscall(SYS_getdents64, dir, bytes, sizeof bytes)) > 0)
		for (long at = 0; at < count; at += *(unsigned short *)(bytes + at + 16))
			found++;
	return found;
}

int main(void)
{
	char text[32] = "";
	struct stat st;
	SAY(syscall(SYS_mkdirat, AT_FDCWD, "dir", 0755));
	int dir = SAY(syscall(SYS_openat, AT_FDCWD, "dir", O_RDONLY | O_DIRECTORY));
	int fd = SAY(syscall(SYS_openat, dir, "f", O_RDWR | O_CREAT, 0644));
	SAY(syscall(SYS_write, fd, "0123456789", 10));
	SAY(read(fd, text, 1));
	SAY(lseek(fd, 2, SEEK_SET));
	SAY(syscall(SYS_read, fd, text, 3));
	SAY(syscall(SYS_lseek, fd, 0, SEEK_CUR));
	SAY(syscall(SYS_pwrite64, fd, "AB", 2, 4));
	SAY(pread(fd, text, 10, 0));
	printf("%s\n", text);
	SAY(syscall(SYS_ftruncate, fd, 8));
	SAY((fstat(fd, &st), st.st_size));
	SAY(syscall(SYS_fchmod, fd, 0600));
	SAY(syscall(SYS_fallocate, fd, 0, 0, 100));
	SAY(syscall(SYS_newfstatat, dir, "f", &st, 0));
	SAY(st.st_size);
	SAY(syscall(SYS_linkat, dir, "f", AT_FDCWD, "link", 0));
	SAY(syscall(SYS_symlinkat, "dir/f", AT_FDCWD, "soft"));
	SAY(syscall(SYS_readlinkat, AT_FDCWD, "soft", text, 20));
	SAY(syscall(SYS_renameat2, AT_FDCWD, "link", dir, "moved", 0));
	SAY(access("dir/moved", F_OK));
	SAY(access("link", F_OK));
	SAY(entries(dir));
	SAY(syscall(SYS_unlinkat, dir, "f", 0));
	SAY(open("dir/f", O_RDONLY));
	SAY((fstat(fd, &st), st.st_nlink));
	SAY(syscall(SYS_fsync, fd) + syscall(SYS_fdatasync, fd));
	SAY(syscall(SYS_faccessat, AT_FDCWD, "soft", R_OK));
	int copy = SAY(syscall(SYS_dup, fd));
	SAY(syscall(SYS_close, fd));
	SAY(read(fd, text, 1));
	SAY(syscall(SYS_lseek, copy, 0, SEEK_SET));
	SAY(read(copy, text, 4));
	/* The number again, by the kernel and by us in turn. */
	for (int n = 0; n < 6; n++) {
		int next = n % 2 ? open("dir/moved", O_RDONLY)
				 : (int)syscall(SYS_openat, AT_FDCWD, "dir/moved", O_RDONLY);
		MUST(next == fd && read(next, text, 3) == 3 && lseek(next, 0, SEEK_CUR) == 3);
		MUST((n / 2 % 2 ? close(next) : (int)syscall(SYS_close, next)) == 0);
	}
	SAY(syscall(SYS_chdir, "dir"));
	SAY(access("moved", F_OK));
	SAY(syscall(SYS_fchdir, dir) + access("moved", F_OK));
	SAY(syscall(SYS_chdir, ".."));
	SAY(syscall(SYS_umask, 077));
	SAY(close(open("masked", O_CREAT | O_WRONLY, 0666)));
	SAY((stat("masked", &st), st.st_mode & 0777));
#ifdef SYS_open
	SAY(syscall(SYS_umask, 022));
	SAY(close(syscall(SYS_open, "old", O_CREAT | O_WRONLY, 0666)));
	SAY(syscall(SYS_rename, "old", "older"));
	SAY(syscall(SYS_unlink, "older"));
	SAY(syscall(SYS_rmdir, "dir"));
#endif
	void *map = (void *)syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, copy, 0);
	MUST(map != MAP_FAILED);
	memcpy(map, "mapped", 6);
	SAY(pread(copy, text, 6, 0));
	printf("%.6s\n", text);
	struct flock lock = { .l_type = F_WRLCK };
	SAY(syscall(SYS_fcntl, copy, F_SETLK, &lock));
	SAY(syscall(SYS_flock, copy, 2));
	pid_t pid = syscall(SYS_fork);
	if (pid == 0) {
		SAY(fcntl(copy, F_SETLK, &lock));
		_exit(0);
	}
	reap(pid);
	SAY(syscall(12345678));
	return 0;
}
