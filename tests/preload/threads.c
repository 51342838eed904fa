/* Threads: one offset used by many, files of their own, and many short-lived threads. */
#include "check.h"
#include <pthread.h>

enum { THREADS = 8, RECORDS = 4000, RECORD = 16 };

static int shared;
static char seen[RECORDS];

static void *reader(void *unused)
{
	char record[RECORD];
	ssize_t count;
	while ((count = read(shared, record, RECORD)) > 0) {
		CHECK(count == RECORD);
		int number = atoi(record);
		CHECK(number >= 0 && number < RECORDS);
		CHECK(__atomic_fetch_add(&seen[number], 1, __ATOMIC_RELAXED) == 0);
	}
	CHECK(count == 0);
	return unused;
}

static void *writer(void *unused)
{
	char record[RECORD + 1];
	for (int n = 0; n < RECORDS / THREADS; n++) {
		snprintf(record, sizeof record, "%015d\n", n);
		CHECK(write(shared, record, RECORD) == RECORD);
	}
	return unused;
}

static void *own_files(void *number)
{
	char name[32], text[64];
	for (int n = 0; n < 200; n++) {
		snprintf(name, sizeof name, "own-%ld-%d", (long)number, n % 3);
		int fd = open(in_dir(name), O_RDWR | O_CREAT | O_TRUNC, 0644);
		CHECK(fd >= 0);
		CHECK(write(fd, name, strlen(name)) == (ssize_t)strlen(name));
		CHECK(pread(fd, text, sizeof text, 0) == (ssize_t)strlen(name));
		CHECK(memcmp(text, name, strlen(name)) == 0);
		CHECK(close(fd) == 0);
		CHECK(unlink(in_dir(name)) == 0);
	}
	return NULL;
}

static void run(void *(*part)(void *))
{
	pthread_t threads[THREADS];
	for (long n = 0; n < THREADS; n++)
		CHECK(pthread_create(&threads[n], NULL, part, (void *)n) == 0);
	for (int n = 0; n < THREADS; n++)
		CHECK(pthread_join(threads[n], NULL) == 0);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	struct stat stat;
	CHECK((shared = open(in_dir("shared"), O_RDWR | O_CREAT | O_TRUNC, 0644)) >= 0);
	for (int n = 0; n < RECORDS; n++) {
		char record[RECORD + 1];
		snprintf(record, sizeof record, "%015d\n", n);
		CHECK(write(shared, record, RECORD) == RECORD);
	}
	CHECK(lseek(shared, 0, SEEK_SET) == 0);
	run(reader);
	for (int n = 0; n < RECORDS; n++)
		CHECK(seen[n] == 1);
	CHECK(ftruncate(shared, 0) == 0 && lseek(shared, 0, SEEK_SET) == 0);
	run(writer);
	CHECK(fstat(shared, &stat) == 0 && stat.st_size == RECORDS * RECORD);
	run(own_files);
	/* More threads, one after the other, than there are mailboxes. */
	for (int n = 0; n < 400; n++) {
		pthread_t thread;
		CHECK(pthread_create(&thread, NULL, reader, NULL) == 0);
		CHECK(pthread_join(thread, NULL) == 0);
	}
	int fd = make("still", "fast");
	expect_fast(fd);
	CHECK(close(fd) == 0 && close(shared) == 0);
	return 0;
}
