/* io_uring at a file's own position, which other calls and other rings move, too. */
#include "say.h"
#include <liburing.h>

static struct io_uring ring;

static long finish(void)
{
	struct io_uring_cqe *cqe;
	MUST(io_uring_submit(&ring) == 1 && io_uring_wait_cqe(&ring, &cqe) == 0);
	long result = cqe->res;
	io_uring_cqe_seen(&ring, cqe);
	return result;
}

static void written(int fd, const char *text)
{
	io_uring_prep_write(io_uring_get_sqe(&ring), fd, text, strlen(text), -1);
	SAY(finish());
	SAY(lseek(fd, 0, SEEK_CUR));
}

static void taken(int fd, unsigned bytes)
{
	char text[64] = "";
	io_uring_prep_read(io_uring_get_sqe(&ring), fd, text, bytes, -1);
	SAY(finish());
	printf("%s at %ld\n", text, (long)lseek(fd, 0, SEEK_CUR));
}

static void used(int fd)
{
	written(fd, "one,");
	written(fd, "two,");
	SAY(write(fd, "three,", 6));
	written(fd, "four");
	SAY(lseek(fd, 0, SEEK_SET));
	taken(fd, 4);
	taken(fd, 4);
	char text[8] = "";
	SAY(read(fd, text, 6));
	puts(text);
	taken(fd, 10);
	taken(fd, 10);
	SAY(lseek(fd, 2, SEEK_SET));
	written(fd, "E");
	SAY(close(fd));
}

int main(void)
{
	static char page[4096], back[4096];
	int before = make("before", "");
	if (io_uring_queue_init(8, &ring, 0) != 0)
		return SKIP;
	used(before);
	show("before");
	used(open("by_call", O_RDWR | O_CREAT, 0644));
	show("by_call");
	io_uring_prep_openat(io_uring_get_sqe(&ring), AT_FDCWD, "by_ring", O_RDWR | O_CREAT, 0644);
	used(finish());
	show("by_ring");
	/* Many pages, of which each is seen at once by who asks for its place. */
	int fd = open("pages", O_RDWR | O_CREAT, 0644), other = open("pages", O_RDONLY);
	for (int n = 0; n < 300; n++) {
		memset(page, 'a' + n % 26, sizeof page);
		io_uring_prep_write(io_uring_get_sqe(&ring), fd, page, sizeof page, -1);
		MUST(finish() == sizeof page);
		MUST(pread(other, back, sizeof back, n * 4096L) == 4096);
		MUST(memcmp(page, back, sizeof page) == 0);
	}
	struct stat st;
	MUST(fstat(fd, &st) == 0);
	SAY(st.st_size);
	io_uring_queue_exit(&ring);
	return 0;
}
