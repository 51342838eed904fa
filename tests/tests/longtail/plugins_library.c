/* The plugin that plugins.c loads. */
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

int plugin_close(int fd)
{
	return close(fd);
}

int plugin_copy(int fd)
{
	return fcntl(fd, F_DUPFD_CLOEXEC, 200);
}

ssize_t plugin_read(int fd, char *into, size_t count)
{
	return read(fd, into, count);
}

void *plugin_load(const char *name)
{
	return dlopen(name, RTLD_NOW);
}
