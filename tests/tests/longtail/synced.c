/* What SQLite does: locks, a file made and removed beside, and the directory synced each time. */
#include "say.h"

/* Whether a child finds the first bytes of the file locked. */
static void locked(int fd)
{
	CHILD {
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 4 };
		MUST(fcntl(fd, F_GETLK, &lock) == 0);
		printf("locked: %d\n", lock.l_type == F_WRLCK);
	}
}

static void sync_directory(int times)
{
	int fd = open(".", O_RDONLY | O_CLOEXEC);
	MUST(fd >= 0);
	for (int n = 0; n < times; n++)
		MUST(fsync(fd) == 0);
	MUST(fdatasync(fd) == 0);
	MUST(faccessat(fd, "data", F_OK, 0) == 0);
	MUST(close(fd) == 0);
	MUST(fsync(fd) == -1 && errno == EBADF);
}

int main(void)
{
	int data = make("data", "0123456789");
	MUST(mkdir("taken", 0755) == 0);
	for (int n = 0; n < 30; n++) {
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 4 };
		MUST(fcntl(data, F_SETLK, &lock) == 0);
		int journal = make("journal", "before");
		MUST(fsync(journal) == 0);
		sync_directory(n % 4);
		MUST(pwrite(data, "ab", 2, n % 8) == 2);
		MUST(fdatasync(data) == 0);
		MUST(close(journal) == 0);
		MUST(unlink("journal") == 0);
		sync_directory(n % 3);
		if (n % 10 == 0)
			locked(data);
		lock.l_type = F_UNLCK;
		MUST(fcntl(data, F_SETLK, &lock) == 0);
	}
	/* A number that was a directory's is a file's, and the other way round. */
	int fd = open("taken", O_RDONLY);
	SAY(fsync(fd));
	MUST(dup2(data, fd) == fd);
	SAY(pwrite(fd, "zz", 2, 0));
	SAY(fsync(fd));
	int other = open("taken", O_RDONLY), copy = dup(other);
	SAY(fsync(copy));
	SAY(fsync(other));
	SAY(fsync(other));
	MUST(dup2(other, fd) == fd);
	SAY(pwrite(fd, "yy", 2, 0));
	SAY(fsync(fd));
	SAY(close(other) | close(copy) | close(fd));
	SAY(rmdir("taken"));
	show("data");
	return 0;
}
