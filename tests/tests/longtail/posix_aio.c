/* POSIX AIO: aio_read, aio_write, lio_listio, aio_fsync, aio_cancel, completion by signal. */
#include "say.h"
#include <aio.h>

static volatile sig_atomic_t rings;

static void ring(int signal)
{
	(void)signal;
	rings++;
}

static long finish(struct aiocb *block)
{
	const struct aiocb *list[] = { block };
	while (aio_error(block) == EINPROGRESS)
		aio_suspend(list, 1, NULL);
	errno = aio_error(block);
	return aio_return(block);
}

int main(void)
{
	char text[8][16] = { "" };
	struct aiocb blocks[8], *list[8];
	int fd = make("f", "");
	for (int n = 0; n < 8; n++) {
		snprintf(text[n], sizeof text[n], "block number %2d", n);
		blocks[n] = (struct aiocb){ .aio_fildes = fd, .aio_buf = text[n], .aio_nbytes = 16,
					    .aio_offset = n * 16, .aio_lio_opcode = LIO_WRITE };
		list[n] = &blocks[n];
	}
	SAY(lio_listio(LIO_WAIT, list, 8, NULL));
	SAY(lseek(fd, 0, SEEK_CUR));
	struct stat st;
	SAY((fstat(fd, &st), st.st_size));
	memset(text, 0, sizeof text);
	for (int n = 0; n < 8; n++) {
		blocks[n].aio_offset = (7 - n) * 16;
		MUST(aio_read(&blocks[n]) == 0);
	}
	for (int n = 0; n < 8; n++)
		SAY(finish(&blocks[n]));
	printf("%s %s\n", text[0], text[7]);
	SAY(aio_fsync(O_SYNC, &blocks[0]));
	SAY(finish(&blocks[0]));

	/* An appender writes at the end, whatever the offset says. */
	int appends = open("f", O_WRONLY | O_APPEND);
	blocks[0] = (struct aiocb){ .aio_fildes = appends, .aio_buf = "end", .aio_nbytes = 3 };
	SAY(aio_write(&blocks[0]));
	SAY(finish(&blocks[0]));
	SAY((fstat(fd, &st), st.st_size));

	struct sigaction action = { .sa_handler = ring };
	sigaction(SIGUSR1, &action, NULL);
	blocks[0] = (struct aiocb){ .aio_fildes = fd, .aio_buf = text[0], .aio_nbytes = 5 };
	blocks[0].aio_sigevent.sigev_notify = SIGEV_SIGNAL;
	blocks[0].aio_sigevent.sigev_signo = SIGUSR1;
	SAY(aio_read(&blocks[0]));
	while (!rings)
		usleep(1000);
	SAY(finish(&blocks[0]));
	SAY(aio_cancel(fd, NULL) >= 0);
	blocks[0] = (struct aiocb){ .aio_fildes = appends, .aio_buf = text[0], .aio_nbytes = 5 };
	SAY(aio_read(&blocks[0]));
	SAY(finish(&blocks[0]));
	/* Mixed with calls on the same descriptor. */
	SAY(lseek(fd, 6, SEEK_SET));
	SAY(read(fd, text[1], 6));
	SAY(pwrite(fd, "BLOCK", 5, 16));
	blocks[0] = (struct aiocb){ .aio_fildes = fd, .aio_buf = text[2], .aio_nbytes = 15 };
	blocks[0].aio_offset = 16;
	SAY(aio_read(&blocks[0]));
	SAY(finish(&blocks[0]));
	printf("%.6s %.15s\n", text[1], text[2]);
	SAY(close(fd));
	return 0;
}
