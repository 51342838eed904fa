/* Arguments that lie at odd addresses: the kernel asks for no alignment. */
#include "say.h"
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <utime.h>

static char room[4096];

/* A value at an odd address. */
static void *odd(const void *value, size_t size)
{
	memset(room, 0, sizeof room);
	return memcpy(room + 1, value, size);
}

#define ODD(type, ...) odd(&(type)__VA_ARGS__, sizeof(type))

static long offset(void)
{
	long at;
	memcpy(&at, room + 1, sizeof at);
	return at;
}

static void locks(int fd)
{
	struct flock *lock = ODD(struct flock, { .l_type = F_WRLCK, .l_start = 2, .l_len = 3 });
	SAY(fcntl(fd, F_SETLK, lock));
	CHILD {
		int again = open("file", O_RDWR);
		lock = ODD(struct flock, { .l_type = F_WRLCK });
		SAY(fcntl(again, F_GETLK, lock));
		struct flock found;
		memcpy(&found, lock, sizeof found);
		printf("%d %ld %ld\n", found.l_type, (long)found.l_start, (long)found.l_len);
		SAY(fcntl(again, F_SETLK, lock));
	}
	lock = ODD(struct flock, { .l_type = F_UNLCK });
	SAY(fcntl(fd, F_OFD_GETLK, lock));
	SAY(fcntl(fd, F_SETLK, lock));
	SAY(fcntl(fd, F_SETLK, (struct flock *)8));
}

static void data(int fd, int other)
{
	int ends[2];
	char text[32] = "";
	struct iovec parts[2] = { { text, 4 }, { text + 4, 4 } };
	MUST(pipe(ends) == 0);
	SAY(preadv(fd, odd(parts, sizeof parts), 2, 1));
	printf("%s\n", text);
	SAY(pwritev(fd, odd(parts, sizeof parts), 2, 2));
	SAY(readv(fd, odd(parts, sizeof parts), 2));
	SAY(sendfile(ends[1], fd, ODD(off_t, { 3 }), 4));
	SAY(offset());
	SAY(sendfile(ends[1], fd, (off_t *)8, 4));
	SAY(copy_file_range(fd, ODD(off_t, { 1 }), other, NULL, 4, 0));
	SAY(offset());
	SAY(copy_file_range(fd, NULL, other, ODD(off_t, { 6 }), 4, 0));
	SAY(offset());
	SAY(splice(fd, ODD(off_t, { 2 }), ends[1], NULL, 3, 0));
	SAY(offset());
	show("file");
	show("other");
	close(ends[0]);
	close(ends[1]);
}

static void attributes(int fd)
{
	struct timespec times[2] = { { 10, 11 }, { 12, 13 } };
	struct stat state;
	struct statx more;
	SAY(futimens(fd, odd(times, sizeof times)));
	SAY(fstat(fd, (struct stat *)(room + 1)));
	memcpy(&state, room + 1, sizeof state);
	printf("%ld %ld %ld\n", (long)state.st_size, (long)state.st_mtim.tv_sec, state.st_mtim.tv_nsec);
	SAY(utimensat(AT_FDCWD, "file", odd(times, sizeof times), 0));
	SAY(utime("file", ODD(struct utimbuf, { 20, 21 })));
	SAY(stat("file", (struct stat *)(room + 1)));
	memcpy(&state, room + 1, sizeof state);
	printf("%ld %ld\n", (long)state.st_atim.tv_sec, (long)state.st_mtim.tv_sec);
	SAY(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, (struct statx *)(room + 1)));
	memcpy(&more, room + 1, sizeof more);
	printf("%llu %lld\n", more.stx_size, more.stx_mtime.tv_sec);
	SAY(futimens(fd, (struct timespec *)8));
}

static void flags(int fd)
{
	int set = FS_NODUMP_FL;
	SAY(ioctl(fd, FS_IOC_SETFLAGS, odd(&set, sizeof set)));
	memset(room, 0, sizeof room);
	SAY(ioctl(fd, FS_IOC_GETFLAGS, room + 1));
	memcpy(&set, room + 1, sizeof set);
	printf("%s\n", set & FS_NODUMP_FL ? "no dump" : "dump");
	set = FS_NODUMP_FL | FS_IMMUTABLE_FL;
	CHILD {
		MUST(setuid(65534) == 0);
		SAY(ioctl(fd, FS_IOC_SETFLAGS, odd(&set, sizeof set)));
	}
}

int main(void)
{
	for (int n = 0; n < 9; n++)
		MUST(close(make("warm", "warm")) == 0);
	for (int twice = 0; twice < 2; twice++) {
		int fd = make("file", "0123456789"), other = make("other", "abcdefghij");
		SAY(lseek(fd, 0, SEEK_SET));
		locks(fd);
		data(fd, other);
		attributes(fd);
		flags(fd);
		MUST(close(fd) == 0 && close(other) == 0);
	}
	return 0;
}
