/* A file that a thread just made and writes to, and that other threads of its process come to
 * meanwhile, by its number or by its name: they see what was written before they looked. */
#include <pthread.h>
#include <stdatomic.h>

#include "say.h"

enum { FILES = 200, WRITES = 40, BLOCK = 512 };

/* Ways to come to it. */
enum { READ, STATE, OPENED, MAPPED, WAYS };

static const char *const ways[WAYS] = { "read", "state", "opened", "mapped" };

static pthread_barrier_t begins, ends;
static atomic_long told;
static char name[64];
static int file, way, missed;

/* The number that all of a block was filled with; one that is being written may be begun. */
static long number(const long *block)
{
	long least = LONG_MAX;
	for (int n = 0; n < BLOCK / (int)sizeof *block; n++)
		least = block[n] < least ? block[n] : least;
	return least;
}

/* What was written last, as it is seen. */
static long seen(void)
{
	static long block[BLOCK / sizeof(long)];
	struct stat state;
	int fd = file;
	if (way == STATE) {
		MUST(fstat(fd, &state) == 0);
		return state.st_size / BLOCK - 1;
	}
	if (way == OPENED)
		MUST((fd = open(name, O_RDONLY)) >= 0);
	if (way == MAPPED) {
		long *map = mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, fd, 0);
		MUST(map != MAP_FAILED);
		long at = number(map);
		MUST(munmap(map, BLOCK) == 0);
		return at;
	}
	MUST(pread(fd, block, BLOCK, 0) == BLOCK);
	if (way == OPENED)
		MUST(close(fd) == 0);
	return number(block);
}

static void *look(void *nothing)
{
	for (int n = 0; n < WAYS * FILES; n++) {
		pthread_barrier_wait(&begins);
		for (long before = 0; before < WRITES;) {
			before = atomic_load(&told);
			missed += seen() < before;
		}
		pthread_barrier_wait(&ends);
	}
	return nothing;
}

static void write_block(long n)
{
	long block[BLOCK / sizeof(long)];
	for (size_t at = 0; at < sizeof block / sizeof *block; at++)
		block[at] = n;
	/* Behind one another where the size tells. */
	MUST(pwrite(file, block, BLOCK, way == STATE ? n * BLOCK : 0) == BLOCK);
	atomic_store(&told, n);
}

int main(void)
{
	pthread_t thread;
	MUST(pthread_barrier_init(&begins, NULL, 2) == 0 && pthread_barrier_init(&ends, NULL, 2) == 0);
	MUST(pthread_create(&thread, NULL, look, NULL) == 0);
	MUST(mkdir("made", 0755) == 0);
	for (way = 0; way < WAYS; way++) {
		missed = 0;
		for (int n = 0; n < FILES; n++) {
			snprintf(name, sizeof name, "made/%s%d", ways[way], n);
			MUST((file = open(name, O_RDWR | O_CREAT | O_EXCL, 0644)) >= 0);
			write_block(0);
			pthread_barrier_wait(&begins);
			for (long k = 1; k <= WRITES; k++)
				write_block(k);
			pthread_barrier_wait(&ends);
			MUST(close(file) == 0);
		}
		printf("%s: missed %d\n", ways[way], missed);
	}
	MUST(pthread_join(thread, NULL) == 0);
	return 0;
}
