/* A thread makes and writes files while another changes the group of the process, again and again. */
#include "say.h"
#include <pthread.h>

enum { ROUNDS = 25, WRITES = 20, GROUP = 1 };

static volatile int over;
static int made, failed;

static void *work(void *unused)
{
	while (!over) {
		char path[64];
		snprintf(path, sizeof path, "d/f%d", made);
		int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0644), wrong = fd < 0;
		for (int i = 0; i < WRITES; i++)
			wrong |= pwrite(fd, "0123456789", 10, 10 * i) != 10;
		wrong |= close(fd) != 0;
		if (wrong && failed++ == 0)
			fprintf(stderr, "%s: %s\n", path, strerror(errno));
		made++;
	}
	return unused;
}

static int short_files(void)
{
	int count = 0;
	for (int i = 0; i < made; i++) {
		char path[64];
		struct stat status;
		snprintf(path, sizeof path, "d/f%d", i);
		count += stat(path, &status) != 0 || status.st_size != 10 * WRITES;
	}
	return count;
}

int main(void)
{
	pthread_t thread;
	if (geteuid() != 0)
		return SKIP;
	SAY(mkdir("d", 0755));
	MUST(pthread_create(&thread, NULL, work, NULL) == 0);
	for (int i = 0; i < ROUNDS; i++) {
		usleep(20000);
		MUST(setegid(GROUP) == 0);
		usleep(1000);
		MUST(setegid(0) == 0);
	}
	over = 1;
	MUST(pthread_join(thread, NULL) == 0);
	SAY(made > 0);
	SAY(failed);
	SAY(short_files());
	return 0;
}
