/* Programs and shared libraries in the lane: run, loaded, replaced while in use. Its arguments are
 * where the host has a library and a static program. */
#include "say.h"
#include <dlfcn.h>

static void copy(const char *from, const char *to, mode_t mode)
{
	static char bytes[1 << 16];
	int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, mode);
	ssize_t count;
	MUST(in >= 0 && out >= 0);
	while ((count = read(in, bytes, sizeof bytes)) > 0)
		MUST(write(out, bytes, count) == count);
	MUST(close(in) == 0 && close(out) == 0);
}

static int library(const char *path)
{
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		return -1;
	int (*answer)(void) = (int (*)(void))dlsym(handle, "answer");
	int said = answer ? answer() : -2;
	dlclose(handle);
	return said;
}

static void run(char *const *args)
{
	CHILD {
		execv(args[0], args);
		SAY(execv(args[0], args));
	}
}

int main(int argc, char **argv)
{
	char self[PATH_MAX] = "";
	MUST(argc == 3 && getcwd(self, sizeof self));
	mkdir("bin", 0755);
	copy(argv[1], "bin/lib.so", 0644);
	copy(argv[2], "bin/prog", 0755);
	copy("/bin/echo", "bin/echo", 0755);

	SAY(library("./bin/lib.so"));
	SAY(library("bin/none.so"));
	void *held = dlopen("./bin/lib.so", RTLD_NOW);
	MUST(held);
	SAY(rename("bin/lib.so", "bin/moved.so"));
	copy(argv[1], "bin/lib.so", 0644);
	SAY(library("./bin/lib.so"));
	SAY(unlink("bin/moved.so"));
	SAY(((int (*)(void))dlsym(held, "answer"))());

	run((char *[]){ "bin/prog", "out", "by a static program", NULL });
	show("out");
	run((char *[]){ "bin/echo", "a", "copy", NULL });
	strcat(self, "/bin/echo");
	run((char *[]){ self, "by", "path", NULL });
	int fd = open("bin/prog", O_RDONLY | O_CLOEXEC);
	CHILD {
		fexecve(fd, (char *[]){ "prog", "out", "by descriptor", NULL }, environ);
		_exit(9);
	}
	show("out");
	int script = make("script", "#!/bin/sh\necho script $0 $#\nexec bin/echo \"$@\"\n");
	SAY(fchmod(script, 0755));
	SAY(close(script));
	run((char *[]){ "./script", "one", "two", NULL });
	SAY(close(make("line", "#!bin/echo interpreted\n")));
	run((char *[]){ "./line", NULL });
	SAY(chmod("line", 0755));
	run((char *[]){ "./line", "more", NULL });
	SAY(close(make("noise", "neither script nor program")));
	SAY(chmod("noise", 0755));
	run((char *[]){ "./noise", NULL });
	run((char *[]){ "./bin", NULL });
	run((char *[]){ "bin/none", NULL });
	/* By PATH, and after the program is replaced. */
	SAY(setenv("PATH", "bin:/bin:/usr/bin", 1));
	SAY(rename("bin/echo", "bin/said"));
	CHILD {
		execlp("said", "said", "by PATH", NULL);
		_exit(9);
	}
	copy("/bin/true", "bin/new", 0755);
	SAY(rename("bin/new", "bin/said"));
	CHILD {
		execlp("said", "said", "not any more", NULL);
		_exit(9);
	}
	return 0;
}
