/* libc's streams on descriptors of the lane, mixed with direct calls. */
#include "check.h"

int main(int argc, char **argv)
{
	start(argc, argv);
	char line[64];
	int fd = make("stream", "direct ");
	FILE *stream = fdopen(fd, "w+");
	CHECK(stream != NULL && fileno(stream) == fd);
	CHECK(fprintf(stream, "stream %d\n", 1) == 9 && fflush(stream) == 0);
	CHECK(lseek(fd, 0, SEEK_CUR) == 16);
	CHECK(write(fd, "again\n", 6) == 6);
	CHECK(fprintf(stream, "last\n") == 5 && fclose(stream) == 0);
	FAILS(write(fd, "x", 1), EBADF);
	expect_text("stream", "direct stream 1\nagain\nlast\n");

	CHECK((stream = fopen(in_dir("stream"), "r+")) != NULL);
	CHECK(fgets(line, sizeof line, stream) && strcmp(line, "direct stream 1\n") == 0);
	struct stat st;
	CHECK(fstat(fileno(stream), &st) == 0 && st.st_size == 27);
	CHECK(fseek(stream, 0, SEEK_END) == 0 && ftell(stream) == 27);
	CHECK(fputs("more\n", stream) >= 0 && fflush(stream) == 0);
	CHECK(fsync(fileno(stream)) == 0);
	CHECK(fstat(fileno(stream), &st) == 0 && st.st_size == 32);
	CHECK(freopen(in_dir("second"), "w", stream) == stream);
	CHECK(fputs("second\n", stream) >= 0 && fclose(stream) == 0);
	expect_text("second", "second\n");

	fd = make("dprintf", "0123");
	CHECK(lseek(fd, 2, SEEK_SET) == 2);
	CHECK(dprintf(fd, "%s-%d-%.1f-%d%d%d%d%d", "a", 5, 1.5, 1, 2, 3, 4, 5) == 13);
	CHECK(write(fd, "!", 1) == 1 && close(fd) == 0);
	expect_text("dprintf", "01a-5-1.5-12345!");

	/* A descriptor that another stream left behind. */
	CHECK((stream = fopen(in_dir("second"), "r")) != NULL);
	int number = fileno(stream);
	CHECK(fcntl(number, F_GETFL) >= 0 && fclose(stream) == 0);
	fd = make("number", "own text");
	CHECK(fd == number && pread(fd, line, 8, 0) == 8 && memcmp(line, "own text", 8) == 0);
	CHECK(close(fd) == 0);

	char template[PATH_MAX];
	snprintf(template, sizeof template, "%s/tmpXXXXXX", dir_path);
	CHECK((fd = mkstemp(template)) >= 0 && write(fd, "t", 1) == 1);
	CHECK(fstat(fd, &st) == 0 && st.st_size == 1 && (st.st_mode & 0777) == 0600);
	CHECK(close(fd) == 0 && remove(template) == 0);
	CHECK(mkdir(in_dir("removed"), 0700) == 0 && remove(in_dir("removed")) == 0);
	return 0;
}
