/* Running out of descriptors is an error that passes. */
#include "check.h"

int main(int argc, char **argv)
{
	start(argc, argv);
	struct rlimit limit = { 128, 128 };
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	int fds[200], count = 0;
	for (int round = 0; round < 3; round++) {
		for (count = 0; count < 200; count++) {
			char name[32];
			snprintf(name, sizeof name, "file-%d", count);
			fds[count] = open(in_dir(name), O_RDWR | O_CREAT, 0644);
			if (fds[count] < 0)
				break;
			CHECK(write(fds[count], name, strlen(name)) == (ssize_t)strlen(name));
		}
		CHECK(errno == EMFILE);
		/* The library keeps some for itself, but never half of them. */
		CHECK(count > 64 && count < 128);
		for (int n = 0; n < count; n++) {
			char name[32], text[32] = "";
			snprintf(name, sizeof name, "file-%d", n);
			CHECK(pread(fds[n], text, 31, 0) == (ssize_t)strlen(name));
			CHECK(strcmp(text, name) == 0);
		}
		FAILS(dup(fds[0]), EMFILE);
		for (int n = 0; n < count; n++)
			CHECK(close(fds[n]) == 0);
	}
	CHECK(close(make("after", "x")) == 0);
	return 0;
}
