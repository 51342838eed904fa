/* MAP_SHARED and MAP_PRIVATE beside read and write of other processes; msync; the errors. */
#include "say.h"

enum { SIZE = 1 << 20 };

static unsigned long sum(const unsigned char *bytes, size_t count)
{
	unsigned long sum = 0;
	for (size_t n = 0; n < count; n++)
		sum = sum * 31 + bytes[n];
	return sum;
}

static void errors(int fd)
{
	int reads = open("f", O_RDONLY), writes = open("f", O_WRONLY), dir = open(".", O_RDONLY);
	SAY(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, reads, 0));
	SAY(mmap(NULL, 4096, PROT_READ, MAP_SHARED, writes, 0));
	SAY(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, writes, 0));
	SAY(mmap(NULL, 0, PROT_READ, MAP_SHARED, fd, 0));
	SAY(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 77));
	SAY(mmap(NULL, 4096, PROT_READ, MAP_SHARED, dir, 0));
	SAY(mmap(NULL, 4096, PROT_READ, MAP_SHARED, 999, 0));
	SAY(mmap(NULL, 4096, PROT_READ, 0, fd, 0));
	char *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, reads, 0);
	MUST(map != MAP_FAILED);
	SAY(mprotect(map, 4096, PROT_READ | PROT_WRITE));
	SAY(msync(map + 1, 4096, MS_SYNC));
	SAY(msync(map, 4096, MS_SYNC | MS_ASYNC));
	SAY(munmap(map, 4096));
	SAY(msync(map, 4096, MS_SYNC));
	map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, reads, 0);
	MUST(map != MAP_FAILED);
	map[0] = 'p';
	SAY(pread(reads, map + 10, 1, 0));
	printf("%c%c\n", map[0], map[10]);
	SAY(close(reads) + close(writes) + close(dir));
}

int main(void)
{
	char text[16] = "";
	int fd = make("f", "0123456789");
	SAY(ftruncate(fd, SIZE));
	unsigned char *map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	unsigned char *own = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	MUST(map != MAP_FAILED && own != MAP_FAILED);
	errors(fd);
	own[1] = 'P';
	CHILD {
		int mine = open("f", O_RDWR);
		for (int n = 0; n < SIZE / 1000; n++)
			MUST(pwrite(mine, "child", 5, n * 1000 + 3) == 5);
		memcpy(map + 500, "child's map", 11);
		memcpy(own + 600, "unseen", 6);
	}
	printf("%.10s %.11s %d %lx\n", map, map + 500, own[600], sum(map, SIZE));
	for (int n = 0; n < SIZE; n += 4096)
		memcpy(map + n + 100, "parent", 6);
	SAY(msync(map, SIZE, MS_ASYNC));
	CHILD {
		int mine = open("f", O_RDONLY), wrong = 0;
		for (int n = 0; n < SIZE; n += 4096)
			wrong += pread(mine, text, 6, n + 100) != 6 || memcmp(text, "parent", 6);
		SAY(wrong);
	}
	SAY(msync(map, SIZE, MS_SYNC | MS_INVALIDATE));
	SAY(pread(fd, text, 10, 0));
	printf("%s %.3s\n", text, own);

	/* Into and out of mappings of lane files by read and write themselves. */
	int other = make("g", "");
	SAY(write(other, map, SIZE));
	SAY(pread(other, map + 4096, 8192, 0));
	printf("%lx\n", sum(map, SIZE));
	unsigned char *moved = mremap(map, SIZE, 2 * SIZE, MREMAP_MAYMOVE);
	MUST(moved != MAP_FAILED);
	SAY(ftruncate(fd, 2 * SIZE));
	SAY(pwrite(fd, "far", 3, SIZE + 5000));
	printf("%.3s\n", moved + SIZE + 5000);
	SAY(close(fd));
	SAY(unlink("f"));
	CHILD {
		memcpy(moved, "after unlink", 12);
	}
	printf("%.12s\n", moved);
	int last = open("g", O_RDWR);
	unsigned char *part = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, last, 8192);
	MUST(part != MAP_FAILED && close(last) == 0);
	part[0] = '!';
	SAY(pread(other, text, 1, 8192));
	printf("%c\n", text[0]);
	return 0;
}
