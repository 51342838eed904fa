/* io_uring by raw system calls: reads, writes, registered files, files closed under a request. */
#include "say.h"
#include <linux/io_uring.h>

static int ring;
static unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
static struct io_uring_sqe *sqes;
static struct io_uring_cqe *cqes;

static void setup(void)
{
	struct io_uring_params p = { 0 };
	ring = syscall(SYS_io_uring_setup, 16, &p);
	if (ring < 0)
		exit(SKIP);
	size_t sq_size = p.sq_off.array + p.sq_entries * 4, cq_size = p.cq_off.cqes + p.cq_entries * 16;
	char *sq = mmap(NULL, sq_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	char *cq = mmap(NULL, cq_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
	sqes = mmap(NULL, p.sq_entries * 64, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
	MUST(sq != MAP_FAILED && cq != MAP_FAILED && sqes != MAP_FAILED);
	sq_tail = (unsigned *)(sq + p.sq_off.tail), sq_mask = (unsigned *)(sq + p.sq_off.ring_mask);
	sq_array = (unsigned *)(sq + p.sq_off.array);
	cq_head = (unsigned *)(cq + p.cq_off.head), cq_tail = (unsigned *)(cq + p.cq_off.tail);
	cq_mask = (unsigned *)(cq + p.cq_off.ring_mask);
	cqes = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
}

static void push(int op, int fd, void *bytes, unsigned len, off_t at, int flags)
{
	unsigned tail = *sq_tail, index = tail & *sq_mask;
	sqes[index] = (struct io_uring_sqe){ .opcode = op, .fd = fd, .addr = (uintptr_t)bytes,
					     .len = len, .off = at, .flags = flags };
	sq_array[index] = index;
	__atomic_store_n(sq_tail, tail + 1, __ATOMIC_RELEASE);
	MUST(syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0) == 1);
}

static long pull(void)
{
	MUST(syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) >= 0);
	unsigned head = *cq_head;
	MUST(head != __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE));
	long result = cqes[head & *cq_mask].res;
	__atomic_store_n(cq_head, head + 1, __ATOMIC_RELEASE);
	return result;
}

static long doing(int op, int fd, void *bytes, unsigned len, off_t at, int flags)
{
	push(op, fd, bytes, len, at, flags);
	return pull();
}

int main(void)
{
	char text[32] = "";
	setup();
	int fd = make("f", "0123456789");
	SAY(doing(IORING_OP_READ, fd, text, 4, 3, 0));
	SAY(doing(IORING_OP_WRITE, fd, "uring", 5, 20, 0));
	SAY(pread(fd, text + 4, 5, 20));
	printf("%s\n", text);
	SAY(doing(IORING_OP_FSYNC, fd, NULL, 0, 0, 0));
	SAY(doing(IORING_OP_READ, 999, text, 3, 0, 0));
	int opened = doing(IORING_OP_OPENAT, AT_FDCWD, "f", 0, 0, 0);
	MUST(opened > 0);
	SAY(read(opened, text, 6));
	SAY(doing(IORING_OP_CLOSE, opened, NULL, 0, 0, 0));
	SAY(read(opened, text, 6));
	int next = make("next", "the next file");
	SAY(next == opened);
	SAY(pread(next, text, 8, 0));
	printf("%.8s\n", text);
	/* A file closed by the ring that our calls opened. */
	SAY(doing(IORING_OP_CLOSE, next, NULL, 0, 0, 0));
	SAY(pread(next, text, 8, 0));
	next = make("third", "the third file");
	SAY(pread(next, text, 9, 0));
	printf("%.9s\n", text);
	SAY(close(next));

	/* Registered files outlive their descriptors. */
	SAY(syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES, &fd, 1));
	SAY(close(fd));
	for (int n = 0; n < 20; n++) {
		int other = make("other", "");
		MUST(doing(IORING_OP_WRITE, 0, "fixed", 5, 5, IOSQE_FIXED_FILE) == 5);
		struct stat st;
		MUST(fstat(other, &st) == 0 && st.st_size == 0 && close(other) == 0);
	}
	show("other");
	SAY(doing(IORING_OP_READ, 0, text, 10, 0, IOSQE_FIXED_FILE));
	printf("%.10s\n", text);
	/* Closed while requests are under way. */
	for (int n = 0; n < 50; n++) {
		int one = open("f", O_RDWR);
		push(IORING_OP_READ, one, text, 10, 0, 0);
		MUST(close(one) == 0);
		int other = open("other", O_RDWR);
		MUST(pull() == 10 && memcmp(text, "01234fixed", 10) == 0 && close(other) == 0);
	}
	return 0;
}
