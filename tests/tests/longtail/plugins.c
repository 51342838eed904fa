/* Plugins that are loaded to find libc's functions before those of preloaded libraries. */
#include "say.h"
#include <dlfcn.h>

#ifndef RTLD_DEEPBIND
#define RTLD_DEEPBIND 0
#endif

int main(int argc, char **argv)
{
	MUST(argc == 3);
	char text[64] = "", name[16];
	int others[8];
	void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND);
	MUST(plugin != NULL);
	int (*plugin_close)(int) = (int (*)(int))dlsym(plugin, "plugin_close");
	int (*plugin_copy)(int) = (int (*)(int))dlsym(plugin, "plugin_copy");
	ssize_t (*plugin_read)(int, char *, size_t) =
		(ssize_t(*)(int, char *, size_t))dlsym(plugin, "plugin_read");
	void *(*plugin_load)(const char *) = (void *(*)(const char *))dlsym(plugin, "plugin_load");
	MUST(plugin_close && plugin_copy && plugin_read && plugin_load);
	/* By the search path of who asks: the plugin has one, this program has none. */
	SAY(dlopen(argv[2], RTLD_NOW) != NULL);
	SAY(plugin_load(argv[2]) != NULL);
	SAY(dlopen("no such library", RTLD_NOW | RTLD_DEEPBIND) != NULL);
	SAY(dlmopen(LM_ID_BASE, argv[1], RTLD_NOW | RTLD_DEEPBIND) == plugin);
	for (int n = 0; n < 8; n++)
		MUST(close(make("warm", "warm")) == 0);

	int fd = make("precious", "precious data"), two[2];
	SAY(plugin_close(fd));
	MUST(pipe(two) == 0);
	SAY(two[0] == fd);
	SAY(write(two[1], "GET / HTTP", 10));
	SAY(read(two[0], text, 63));
	printf("%.10s\n", text);
	close(two[0]);
	close(two[1]);
	show("precious");

	fd = make("copied", "what was copied");
	int copy = plugin_copy(fd);
	SAY(close(fd));
	for (int n = 0; n < 8; n++) {
		snprintf(name, sizeof name, "other%d", n);
		others[n] = make(name, "another's file");
	}
	SAY(lseek(copy, 0, SEEK_SET));
	SAY(plugin_read(copy, text, 63));
	printf("%.15s\n", text);
	for (int n = 0; n < 8; n++)
		close(others[n]);

	fd = make("moved", "0123456789");
	SAY(lseek(fd, 3, SEEK_SET));
	SAY(plugin_read(fd, text, 4));
	printf("%.4s\n", text);
	SAY(lseek(fd, 0, SEEK_CUR));
	return 0;
}
