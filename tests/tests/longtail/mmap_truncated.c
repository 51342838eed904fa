/* Mappings of files that grow and shrink: what appears, what is zero, and where SIGBUS comes. */
#include "say.h"
#include <setjmp.h>

static sigjmp_buf back;

static void bus(int signal)
{
	siglongjmp(back, signal);
}

static void look(const char *map, size_t at)
{
	int signal = sigsetjmp(back, 1);
	if (signal)
		printf("at %zu: %s\n", at, signal == SIGBUS ? "SIGBUS" : "another signal");
	else
		printf("at %zu: %d\n", at, ((volatile const char *)map)[at]);
}

static void poke(char *map, size_t at)
{
	int signal = sigsetjmp(back, 1);
	if (signal)
		printf("to %zu: %s\n", at, signal == SIGBUS ? "SIGBUS" : "another signal");
	else
		printf("to %zu: %d\n", at, ((volatile char *)map)[at] = 7);
}

int main(void)
{
	struct sigaction action = { .sa_handler = bus };
	struct stat st;
	sigaction(SIGBUS, &action, NULL);
	int fd = make("f", "start");
	char *map = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(map != MAP_FAILED);
	look(map, 0);
	look(map, 100);
	look(map, 4096);
	poke(map, 5000);

	/* Grows: by ftruncate, by a write past the end, by another process. */
	SAY(ftruncate(fd, 5000));
	look(map, 4096);
	poke(map, 4999);
	SAY(pwrite(fd, "x", 1, 12000));
	look(map, 12000);
	look(map, 8200);
	CHILD {
		int own = open("f", O_RDWR);
		MUST(pwrite(own, "y", 1, 20000) == 1);
	}
	look(map, 20000);
	look(map, 20479);
	look(map, 20480);
	poke(map, 20001);
	SAY((fstat(fd, &st), st.st_size));

	/* Shrinks: what lay past the new end is gone, and zero when it grows again. */
	poke(map, 4500);
	SAY(ftruncate(fd, 4400));
	look(map, 4399);
	look(map, 4500);
	look(map, 8192);
	poke(map, 12000);
	SAY(ftruncate(fd, 16384));
	look(map, 4500);
	look(map, 12000);
	CHILD {
		MUST(truncate("f", 10) == 0);
	}
	look(map, 9);
	look(map, 4096);
	SAY(ftruncate(fd, 4096));
	look(map, 16);
	int again = open("f", O_RDWR | O_TRUNC);
	look(map, 0);
	SAY(close(again));
	SAY(munmap(map, 65536));

	/* A private one of a file that another process cuts. */
	SAY(ftruncate(fd, 8192));
	map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	MUST(map != MAP_FAILED);
	SAY(close(fd));
	look(map, 10);
	SAY(truncate("f", 0));
	look(map, 10);
	look(map, 5000);
	return 0;
}
