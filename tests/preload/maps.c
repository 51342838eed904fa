/* Mappings and read/write show the same bytes, within and across processes, also after close. */
#include "check.h"

enum { SIZE = 3 * 4096 };

int main(int argc, char **argv)
{
	start(argc, argv);
	char text[32] = "";
	int fd = make("map", "0123456789");
	CHECK(ftruncate(fd, SIZE) == 0);
	char *map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(map != MAP_FAILED);
	CHECK(memcmp(map, "0123456789", 10) == 0 && map[4096] == 0);

	/* Written there, read here, and the reverse. */
	memcpy(map + 4090, "across pages", 12);
	CHECK(msync(map, SIZE, MS_SYNC) == 0);
	CHECK(pread(fd, text, 12, 4090) == 12 && memcmp(text, "across pages", 12) == 0);
	CHECK(pwrite(fd, "through write", 13, 5000) == 13);
	CHECK(memcmp(map + 5000, "through write", 13) == 0);
	map[0] = 'M';
	CHECK(pread(fd, text, 1, 0) == 1 && text[0] == 'M');
	CHECK(pwrite(fd, "W", 1, 1) == 1 && map[1] == 'W');

	/* A second open, and a second mapping. */
	int other = open(in_dir("map"), O_RDWR);
	CHECK(other >= 0);
	char *second = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, other, 0);
	CHECK(second != MAP_FAILED);
	map[2] = 'S';
	CHECK(second[2] == 'S');
	CHECK(pwrite(other, "T", 1, 3) == 1 && map[3] == 'T' && second[3] == 'T');

	/* A private one keeps its changes to itself. */
	char *own = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	CHECK(own != MAP_FAILED);
	own[9] = 'P';
	CHECK(map[9] == '9' && own[0] == 'M');

	/* Another process. */
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		int mine = open(in_dir("map"), O_RDWR);
		CHECK(mine >= 0 && pwrite(mine, "C", 1, 4) == 1);
		map[5] = 'D';
		_exit(0);
	}
	reap(pid);
	CHECK(map[4] == 'C' && map[5] == 'D');
	CHECK(pread(fd, text, 10, 0) == 10 && memcmp(text, "MWSTCD6789", 10) == 0);

	/* The descriptors go, the mappings stay. */
	CHECK(close(fd) == 0 && close(other) == 0);
	for (int n = 0; n < 20; n++)
		CHECK(close(make("noise", "another file, at the same numbers")) == 0);
	map[6] = 'E';
	CHECK((fd = open(in_dir("map"), O_RDONLY)) >= 0);
	CHECK(pread(fd, text, 10, 0) == 10 && memcmp(text, "MWSTCDE789", 10) == 0);
	CHECK(second[6] == 'E');
	FAILS((long)mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), EACCES);
	CHECK(unlink(in_dir("map")) == 0 && map[0] == 'M');
	CHECK(munmap(map, SIZE) == 0 && munmap(second, SIZE) == 0 && munmap(own, SIZE) == 0);
	CHECK(close(fd) == 0);
	return 0;
}
