/* Stores through a shared mapping beside write(2) into other bytes of the same pages, which nobody
 * has touched before: neither is lost. */
#include "say.h"
#include <pthread.h>
#include <sys/mman.h>

enum { PAGES = 512, PAGE = 4096, ROUNDS = 6, WRITERS = 2 };

static pthread_barrier_t start;
static int fd;
static char *map;

static void *store(void *unused)
{
	pthread_barrier_wait(&start);
	for (int page = 0; page < PAGES; page++)
		map[page * PAGE] = 's';
	return unused;
}

static void *write_beside(void *number)
{
	long which = (long)number;
	pthread_barrier_wait(&start);
	for (int page = 0; page < PAGES; page++)
		MUST(pwrite(fd, "w", 1, page * (off_t)PAGE + 8 * (which + 1)) == 1);
	return NULL;
}

static int lost(void)
{
	char bytes[PAGE];
	int count = 0;
	for (int page = 0; page < PAGES; page++) {
		MUST(pread(fd, bytes, PAGE, page * (off_t)PAGE) == PAGE);
		count += bytes[0] != 's';
		for (int which = 0; which < WRITERS; which++)
			count += bytes[8 * (which + 1)] != 'w';
	}
	return count;
}

int main(void)
{
	int all = 0;
	pthread_barrier_init(&start, NULL, WRITERS + 1);
	for (int round = 0; round < ROUNDS; round++) {
		pthread_t threads[WRITERS + 1];
		fd = open("pages", O_RDWR | O_CREAT | O_TRUNC, 0644);
		MUST(fd >= 0 && ftruncate(fd, PAGES * (off_t)PAGE) == 0);
		map = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		MUST(map != MAP_FAILED);
		for (long which = 0; which < WRITERS; which++)
			pthread_create(&threads[which], NULL, write_beside, (void *)which);
		pthread_create(&threads[WRITERS], NULL, store, NULL);
		for (int which = 0; which <= WRITERS; which++)
			pthread_join(threads[which], NULL);
		MUST(munmap(map, PAGES * PAGE) == 0);
		all += lost();
		close(fd);
		MUST(unlink("pages") == 0);
	}
	printf("lost: %d\n", all);
	return 0;
}
