/* A static program: copies so many bytes of standard input to standard output. */
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char bytes[4096];
	long want = argc > 1 ? atol(argv[1]) : 0;
	ssize_t count = read(0, bytes, want);
	return count == want && write(1, bytes, count) == count ? 0 : 1;
}
