/* exec with environments that lack what preloading needs, or set it to something else. */
#include "say.h"

static int library_is_here(void)
{
	char line[512];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof line, maps))
		found |= strstr(line, "libpolylane") != NULL;
	fclose(maps);
	return found;
}

int main(int argc, char **argv)
{
	int here = library_is_here();
	if (argc > 1) {
		/* arguments: what it is, whether the library is to be here, a descriptor */
		char text[16] = "", name[64];
		snprintf(name, sizeof name, "by %s", argv[1]);
		printf("%s: library as expected: %d\n", argv[1], here == atoi(argv[2]));
		SAY(read(atoi(argv[3]), text, 2));
		printf("%s\n", text);
		SAY(close(make(name, "made")));
		show(name);
		SAY(close(open("f", O_RDWR)));
		printf("PATH is %s\n", getenv("PATH") ? "set" : "not set");
		return 0;
	}
	int fd = make("f", "0123456789abcdef");
	char number[16], have[2] = { '0' + here, 0 }, self[PATH_MAX];
	snprintf(number, sizeof number, "%d", fd);
	MUST(realpath(argv[0], self));
	SAY(lseek(fd, 0, SEEK_SET));
	CHILD {
		execle(self, self, "execle", have, number, NULL, (char *[]){ "A=b", NULL });
	}
	CHILD {
		execve(self, (char *[]){ self, "execve", have, number, NULL }, (char *[]){ NULL });
	}
	CHILD {
		unsetenv("LD_PRELOAD");
		unsetenv("POLYLANE_MOUNT");
		execl(self, self, "unset", have, number, NULL);
	}
	CHILD {
		clearenv();
		execv(self, (char *[]){ self, "cleared", have, number, NULL });
	}
	CHILD {
		/* Somebody's own choice is respected. */
		setenv("LD_PRELOAD", "", 1);
		execl(self, self, "emptied", "0", number, NULL);
	}
	CHILD {
		char command[PATH_MAX + 128];
		snprintf(command, sizeof command, "env -i %s 'env -i' %s %s", self, have, number);
		MUST(system(command) == 0);
	}
	CHILD {
		clearenv();
		char command[PATH_MAX + 128];
		snprintf(command, sizeof command, "unset LD_PRELOAD; exec %s shell %s %s", self, have, number);
		execl("/bin/sh", "sh", "-c", command, NULL);
	}
	SAY(lseek(fd, 0, SEEK_CUR));
	return 0;
}
