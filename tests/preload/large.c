/* Transfers larger than any buffer, and in many pieces. */
#include "check.h"

enum { SIZE = 5 * 1024 * 1024 + 17 };

static char pattern(size_t n)
{
	return (char)(n * 2654435761u >> 13);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	char *bytes = malloc(SIZE), *back = malloc(SIZE);
	CHECK(bytes && back);
	for (size_t n = 0; n < SIZE; n++)
		bytes[n] = pattern(n);
	int fd = make("large", "");
	CHECK(write(fd, bytes, SIZE) == SIZE);
	CHECK(lseek(fd, 0, SEEK_SET) == 0 && read(fd, back, SIZE) == SIZE);
	CHECK(memcmp(bytes, back, SIZE) == 0);
	memset(back, 0, SIZE);
	CHECK(pread(fd, back, SIZE, 1000) == SIZE - 1000);
	CHECK(memcmp(bytes + 1000, back, SIZE - 1000) == 0);
	CHECK(read(fd, back, 1) == 0);

	/* Small pieces in one call, then large ones, then too many for the fast road. */
	struct iovec parts[100];
	size_t sizes[] = { 3, 0, 4096, 1, 70000 };
	size_t at = 0;
	for (int n = 0; n < 5; n++) {
		parts[n] = (struct iovec){ bytes + at, sizes[n] };
		at += sizes[n];
	}
	CHECK(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0);
	CHECK(writev(fd, parts, 5) == (ssize_t)at);
	CHECK(pwritev(fd, parts, 5, at) == (ssize_t)at);
	CHECK(lseek(fd, 0, SEEK_CUR) == (off_t)at);
	memset(back, 0, SIZE);
	for (int n = 0; n < 5; n++)
		parts[n].iov_base = back + (parts[n].iov_base == NULL ? 0 : (char *)parts[n].iov_base - bytes);
	CHECK(preadv(fd, parts, 5, at) == (ssize_t)at && memcmp(bytes, back, at) == 0);
	memset(back, 0, SIZE);
	CHECK(lseek(fd, 0, SEEK_SET) == 0);
	CHECK(readv(fd, parts, 5) == (ssize_t)at && memcmp(bytes, back, at) == 0);
	CHECK(preadv2(fd, parts, 5, -1, 0) == (ssize_t)at && lseek(fd, 0, SEEK_CUR) == 2 * (off_t)at);
	CHECK(preadv2(fd, parts, 5, 0, RWF_HIPRI) >= 0 || errno == EOPNOTSUPP);

	/* Into one place twice: the later part counts. Into the vector itself, which is read first. */
	parts[0] = (struct iovec){ back, 10 };
	parts[1] = (struct iovec){ back + 5, 10 };
	CHECK(preadv(fd, parts, 2, 0) == 20);
	CHECK(memcmp(bytes, back, 5) == 0 && memcmp(bytes + 10, back + 5, 10) == 0);
	CHECK(lseek(fd, 3, SEEK_SET) == 3 && readv(fd, parts, 2) == 20);
	CHECK(lseek(fd, 0, SEEK_CUR) == 23 && memcmp(bytes + 13, back + 5, 10) == 0);
	parts[0] = (struct iovec){ parts, 2 * sizeof *parts };
	CHECK(preadv(fd, parts, 2, 7) == 2 * sizeof *parts + 10);
	CHECK(memcmp(bytes + 7, parts, 2 * sizeof *parts) == 0);
	CHECK(memcmp(bytes + 7 + 2 * sizeof *parts, back + 5, 10) == 0);

	for (int n = 0; n < 100; n++)
		parts[n] = (struct iovec){ bytes + n * 50000, 50000 };
	CHECK(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0);
	CHECK(writev(fd, parts, 10) == 500000);
	CHECK(writev(fd, parts + 10, 90) == 4500000);
	CHECK(lseek(fd, 0, SEEK_CUR) == 5000000);
	CHECK(pread(fd, back, SIZE, 0) == 5000000 && memcmp(bytes, back, 5000000) == 0);
	volatile int negative = -1;
	FAILS(writev(fd, parts, negative), EINVAL);

	/* Copies inside the kernel, from and to the offset. */
	int to = make("copy", "");
	CHECK(lseek(fd, 100, SEEK_SET) == 100);
	off_t offset = 7;
	ssize_t count = copy_file_range(fd, NULL, to, NULL, 300000, 0);
	if (count > 0) {
		CHECK(lseek(fd, 0, SEEK_CUR) == 100 + count && lseek(to, 0, SEEK_CUR) == count);
		CHECK(pread(to, back, count, 0) == count && memcmp(bytes + 100, back, count) == 0);
		CHECK(copy_file_range(fd, &offset, to, NULL, 1000, 0) == 1000 && offset == 1007);
		CHECK(pread(to, back, 1000, count) == 1000 && memcmp(bytes + 7, back, 1000) == 0);
	}
	int ends[2];
	CHECK(pipe(ends) == 0 && lseek(fd, 200, SEEK_SET) == 200);
	CHECK(splice(fd, NULL, ends[1], NULL, 1000, 0) == 1000);
	CHECK(read(ends[0], back, 1000) == 1000 && memcmp(bytes + 200, back, 1000) == 0);
	CHECK(lseek(fd, 0, SEEK_CUR) == 1200);
	CHECK(ftruncate(to, 0) == 0 && lseek(to, 0, SEEK_SET) == 0);
	CHECK(close(to) == 0 && close(fd) == 0);
	return 0;
}
