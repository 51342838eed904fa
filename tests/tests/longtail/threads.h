/* More threads than the library has mailboxes for, and those that come later. */
#include "say.h"
#include <pthread.h>

/* A session has 192 mailboxes, and a thread takes two. */
enum { THREADS = 100 };

static pthread_t start(void *(*part)(void *))
{
	pthread_attr_t small;
	pthread_t thread;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 256 << 10);
	MUST(pthread_create(&thread, &small, part, NULL) == 0);
	return thread;
}

static void late(void *(*part)(void *))
{
	MUST(pthread_join(start(part), NULL) == 0);
}
