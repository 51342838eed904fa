/* A little of everything, in plain C: also built against musl, statically, and run beside another
 * preloaded library. */
#include "say.h"
#include <dirent.h>
#include <pthread.h>

static void *work(void *number)
{
	char name[16], text[64];
	snprintf(name, sizeof name, "t%ld", (long)number);
	for (int n = 0; n < 200; n++) {
		char *block = malloc(1000 + n * 37);
		memset(block, 'a' + n % 26, 1000);
		int fd = open(name, O_RDWR | O_CREAT, 0644);
		MUST(fd >= 0 && pwrite(fd, block, 1000, n * 1000) == 1000);
		MUST(pread(fd, text, 64, n * 1000 + 900) == 64 && text[63] == 'a' + n % 26);
		MUST(close(fd) == 0);
		free(block);
	}
	return NULL;
}

int main(void)
{
	char text[64] = "", line[64];
	struct stat st;
	pthread_t threads[4];
	for (long n = 0; n < 4; n++)
		MUST(pthread_create(&threads[n], NULL, work, (void *)n) == 0);
	for (int n = 0; n < 4; n++)
		MUST(pthread_join(threads[n], NULL) == 0);
	SAY((stat("t3", &st), st.st_size));
	int fd = make("f", "0123456789");
	SAY(lseek(fd, 4, SEEK_SET));
	SAY(read(fd, text, 3));
	SAY(rename("f", "g") + link("g", "h") + symlink("g", "s") + mkdir("d", 0755));
	SAY(open("f", O_RDONLY));
	SAY(readlink("s", text, sizeof text));
	SAY((fstat(fd, &st), st.st_nlink));
	char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(map != MAP_FAILED);
	map[0] = 'M';
	show("h");
	struct flock lock = { .l_type = F_WRLCK };
	SAY(fcntl(fd, F_SETLK, &lock));
	CHILD {
		SAY(fcntl(fd, F_SETLK, &lock));
		SAY(lseek(fd, 0, SEEK_CUR));
	}
	FILE *stream = fopen("stream", "w+");
	for (int n = 0; n < 1000; n++)
		fprintf(stream, "line %d\n", n);
	rewind(stream);
	long sum = 0;
	while (fgets(line, sizeof line, stream))
		sum += strlen(line);
	SAY(sum);
	SAY(fclose(stream));
	FILE *pipe = popen("wc -l < stream; ls", "r");
	while (fgets(line, sizeof line, pipe))
		printf("%s", line);
	SAY(pclose(pipe));
	DIR *dir = opendir(".");
	int names = 0;
	while (readdir(dir))
		names++;
	SAY(names);
	SAY(closedir(dir));
	SAY(unlink("g") + unlink("h") + unlink("s") + rmdir("d"));
	SAY((fstat(fd, &st), st.st_nlink));
	return 0;
}
