/* File handles of files that have no name any more, and are open or not. */
#include "say.h"

struct {
	struct file_handle head;
	unsigned char bytes[MAX_HANDLE_SZ];
} handle;

static int again(int mount, int flags)
{
	char text[8] = "";
	struct stat st;
	int fd = open_by_handle_at(mount, &handle.head, flags);
	if (fd < 0)
		return -1;
	MUST(pread(fd, text, 7, 0) >= 0 && fstat(fd, &st) == 0);
	printf("%s, %d names\n", text, (int)st.st_nlink);
	close(fd);
	return 0;
}

/* Whether it is gone: a moment after the last close, where that is told by and by. */
static int is_gone(int mount)
{
	int fd = -1;
	for (int tries = 0; tries < 200; tries++) {
		fd = open_by_handle_at(mount, &handle.head, O_RDONLY);
		if (fd < 0)
			return errno == ESTALE;
		close(fd);
		usleep(5000);
	}
	return 0;
}

int main(void)
{
	int number, mount = open(".", O_RDONLY | O_DIRECTORY);
	if (geteuid() != 0)
		return SKIP;
	for (int way = 0; way < 3; way++) {
		int fd = make("file", "bytes"), other = -1;
		handle.head.handle_bytes = MAX_HANDLE_SZ;
		MUST(name_to_handle_at(AT_FDCWD, "file", &handle.head, &number, 0) == 0);
		SAY(again(mount, O_RDONLY));
		if (way == 1)
			other = open("file", O_RDONLY);
		if (way == 2)
			SAY(link("file", "second"));
		SAY(unlink("file"));
		SAY(again(mount, O_RDWR));
		MUST(pwrite(fd, "BYTES", 5, 0) == 5);
		SAY(again(mount, O_RDONLY));
		SAY(close(fd));
		if (way > 0)
			SAY(again(mount, O_RDONLY));
		if (way == 1)
			SAY(close(other));
		if (way == 2)
			SAY(unlink("second"));
		SAY(is_gone(mount));
	}
	return 0;
}
