/* Linux AIO by libaio: reads and writes, vectors, fsync, descriptors closed while requests run. */
#include "say.h"
#include <libaio.h>
#include <stdbool.h>

static io_context_t context;

static void finish(int count)
{
	struct io_event events[16];
	int done = 0, n;
	long sum = 0;
	while (done < count) {
		MUST((n = io_getevents(context, 1, 16, events, NULL)) > 0);
		for (int i = 0; i < n; i++)
			sum += (long)events[i].res;
		done += n;
	}
	printf("%d done, %ld in all\n", done, sum);
}

int main(void)
{
	struct iocb all[16], *list[16];
	char text[16][16] = { "" };
	for (int n = 0; n < 16; n++)
		list[n] = &all[n];
	SAY(io_setup(32, &context));
	int fd = make("f", "");
	for (int n = 0; n < 16; n++) {
		snprintf(text[n], sizeof text[n], "%015d", n);
		io_prep_pwrite(&all[n], fd, text[n], 16, n * 16);
	}
	SAY(io_submit(context, 16, list));
	finish(16);
	struct stat st;
	SAY((fstat(fd, &st), st.st_size));
	SAY(lseek(fd, 0, SEEK_CUR));
	memset(text, 0, sizeof text);
	for (int n = 0; n < 16; n++)
		io_prep_pread(&all[n], fd, text[n], 16, (15 - n) * 16);
	SAY(io_submit(context, 16, list));
	finish(16);
	printf("%s %s\n", text[0], text[15]);
	struct iovec parts[2] = { { text[0], 4 }, { text[1], 4 } };
	io_prep_preadv(&all[0], fd, parts, 2, 240);
	io_prep_fsync(&all[1], fd);
	io_prep_fdsync(&all[2], fd);
	SAY(io_submit(context, 3, list));
	finish(3);
	/* Closed as soon as it is submitted; the number serves other files at once. */
	for (int round = 0; round < 20; round++) {
		int old = open("f", O_RDWR);
		for (int n = 0; n < 8; n++)
			io_prep_pwrite(&all[n], old, "overwritten....", 16, n * 16);
		MUST(io_submit(context, 8, list) == 8);
		MUST(close(old) == 0);
		int other = open("other", O_RDWR | O_CREAT | O_TRUNC, 0644);
		MUST(other == old);
		struct io_event events[8];
		MUST(io_getevents(context, 8, 8, events, NULL) == 8);
		MUST(fstat(other, &st) == 0 && st.st_size == 0 && close(other) == 0);
	}
	show("f");
	io_prep_pread(&all[0], 999, text[0], 16, 0);
	SAY(io_submit(context, 1, list));
	int writes = open("f", O_WRONLY);
	io_prep_pread(&all[0], writes, text[0], 16, 0);
	SAY(io_submit(context, 1, list));
	SAY(io_destroy(context));
	return 0;
}
