/* io_uring by liburing, whose system calls nobody sees: registered files, closed under requests. */
#include "say.h"
#include <liburing.h>

static struct io_uring ring;

static long finish(void)
{
	struct io_uring_cqe *cqe;
	MUST(io_uring_submit(&ring) >= 0 && io_uring_wait_cqe(&ring, &cqe) == 0);
	long result = cqe->res;
	io_uring_cqe_seen(&ring, cqe);
	return result;
}

int main(void)
{
	static char bytes[1 << 16], back[1 << 16];
	char text[32] = "";
	struct stat st;
	int fd = make("f", "0123456789");
	if (io_uring_queue_init(16, &ring, 0) != 0)
		return SKIP;
	io_uring_prep_read(io_uring_get_sqe(&ring), fd, text, 4, 3);
	SAY(finish());
	io_uring_prep_write(io_uring_get_sqe(&ring), fd, "uring", 5, 10);
	SAY(finish());
	show("f");
	SAY(io_uring_register_files(&ring, &fd, 1));
	SAY(close(fd));
	for (int n = 0; n < 20; n++) {
		int other = make("other", "");
		struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
		io_uring_prep_write(sqe, 0, "fixed", 5, 5);
		io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
		MUST(finish() == 5);
		MUST(fstat(other, &st) == 0 && st.st_size == 0 && close(other) == 0);
	}
	show("f");
	show("other");
	for (int n = 0; n < 50; n++) {
		int one = open("f", O_RDWR);
		io_uring_prep_read(io_uring_get_sqe(&ring), one, text, 10, 0);
		MUST(io_uring_submit(&ring) == 1 && close(one) == 0);
		int other = open("other", O_RDWR);
		MUST(finish() == 10 && memcmp(text, "01234fixed", 10) == 0 && close(other) == 0);
	}
	/* Linked: written, synced, read. */
	memset(bytes, 'u', sizeof bytes);
	fd = open("f", O_RDWR);
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
	io_uring_prep_write(sqe, fd, bytes, sizeof bytes, 0);
	io_uring_sqe_set_flags(sqe, IOSQE_IO_LINK);
	sqe = io_uring_get_sqe(&ring);
	io_uring_prep_fsync(sqe, fd, 0);
	io_uring_sqe_set_flags(sqe, IOSQE_IO_LINK);
	io_uring_prep_read(io_uring_get_sqe(&ring), fd, back, sizeof back, 0);
	SAY(finish());
	SAY(finish());
	SAY(finish());
	SAY(memcmp(bytes, back, sizeof bytes));
	struct iovec part = { back, sizeof back };
	SAY(io_uring_register_buffers(&ring, &part, 1));
	io_uring_prep_read_fixed(io_uring_get_sqe(&ring), fd, back, 36, 65500, 0);
	SAY(finish());
	io_uring_prep_statx(io_uring_get_sqe(&ring), AT_FDCWD, "f", 0, STATX_SIZE, (struct statx *)bytes);
	SAY(finish());
	SAY(((struct statx *)bytes)->stx_size);
	io_uring_queue_exit(&ring);
	/* The processes to come are like any other. */
	CHILD {
		show("other");
	}
	return 0;
}
