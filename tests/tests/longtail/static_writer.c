/* A static program: writes its second argument to the file that the first names, and reads it. */
#include "say.h"

int main(int argc, char **argv)
{
	char text[64] = "";
	MUST(argc == 3);
	int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
	MUST(fd >= 0 && write(fd, argv[2], strlen(argv[2])) == (ssize_t)strlen(argv[2]));
	MUST(pread(fd, text, sizeof text, 0) == (ssize_t)strlen(argv[2]));
	printf("static: %s\n", text);
	return 0;
}
