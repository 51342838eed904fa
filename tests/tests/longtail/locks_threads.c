/* Threads whose first calls are waits for locks: each has its own open file. */
#include "say.h"
#include <pthread.h>
#include <sys/file.h>

enum { THREADS = 6, TURNS = 20, RECORD = 100 };

static pthread_barrier_t together;
static int by_flock;

static void lock(int fd, int set)
{
	struct flock all = { .l_type = set ? F_WRLCK : F_UNLCK, .l_whence = SEEK_SET, .l_len = 1 };
	if (by_flock)
		MUST(flock(fd, set ? LOCK_EX : LOCK_UN) == 0);
	else
		MUST(fcntl(fd, F_OFD_SETLKW, &all) == 0);
}

static void *work(void *number)
{
	char record[RECORD];
	int fd = open("shared", O_RDWR);
	MUST(fd >= 0);
	memset(record, (int)(size_t)number + 'a', RECORD);
	pthread_barrier_wait(&together);
	for (int turn = 0; turn < TURNS; turn++) {
		lock(fd, 1);
		MUST(lseek(fd, 0, SEEK_END) >= 0);
		MUST(write(fd, record, RECORD) == RECORD);
		lock(fd, 0);
	}
	close(fd);
	return NULL;
}

int main(void)
{
	for (int round = 0; round < 6; round++) {
		by_flock = round % 2;
		CHILD {
			pthread_t threads[THREADS];
			char record[RECORD];
			int fd = open("shared", O_CREAT | O_TRUNC | O_RDWR, 0644), whole = 0;
			pthread_barrier_init(&together, NULL, THREADS);
			for (size_t n = 0; n < THREADS; n++)
				MUST(pthread_create(&threads[n], NULL, work, (void *)n) == 0);
			for (int n = 0; n < THREADS; n++)
				MUST(pthread_join(threads[n], NULL) == 0);
			lseek(fd, 0, SEEK_SET);
			while (read(fd, record, RECORD) == RECORD)
				whole += memcmp(record, record + 1, RECORD - 1) == 0;
			printf("%d whole records\n", whole);
		}
	}
	return 0;
}
