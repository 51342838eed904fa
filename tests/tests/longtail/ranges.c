/* fallocate as the first call on a lane that a process makes after open: what the kernel refuses on
 * every FUSE mount must not depend on how early it comes. */
#include "say.h"

int main(int count, char **words)
{
	MUST(count == 3);
	int fd = open(words[2], O_RDWR);
	MUST(fd >= 0);
	int insert = strcmp(words[1], "insert") == 0;
	SAY(fallocate(fd, insert ? FALLOC_FL_INSERT_RANGE : FALLOC_FL_COLLAPSE_RANGE, 4096, 4096));
	return 0;
}
