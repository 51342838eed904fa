/* Hard links to files of others: as fs.protected_hardlinks has it. */
#include "say.h"
#include <grp.h>

enum { OTHER = 65533 };

static void try_all(void)
{
	SAY(link("secret", "link1"));
	SAY(link("readable", "link2"));
	SAY(link("open", "link3"));
	SAY(link("setuid", "link4"));
	SAY(link("setgid", "link5"));
	SAY(link("setgid-not-run", "link6"));
	SAY(link("fifo", "link7"));
	SAY(link("symlink", "link8"));
	SAY(linkat(AT_FDCWD, "symlink", AT_FDCWD, "link9", AT_SYMLINK_FOLLOW));
	SAY(link("theirs", "link10"));
	SAY(link("secret", "open"));
	SAY(link("secret", "nothing/link"));
	SAY(link("secret", "closed/link"));
	SAY(link("dir", "link11"));
	SAY(link("nothing", "link12"));
	for (int n = 1; n <= 12; n++) {
		char name[16];
		snprintf(name, sizeof name, "link%d", n);
		unlink(name);
	}
}

static void with_mode(const char *name, mode_t mode)
{
	close(make(name, "text"));
	MUST(chmod(name, mode) == 0);
}

/*
 * By a descriptor that another user opened, of a file whose mode changed since: with pages of the
 * kernel's, and without.
 */
static void by_descriptor(mode_t mode, int mapped)
{
	int opened[2], changed[2], fd;
	char from[64];
	with_mode("later", 0666);
	MUST(pipe(opened) == 0 && pipe(changed) == 0);
	pid_t child = begin();
	if (child == 0) {
		MUST(setgid(OTHER) == 0 && setuid(OTHER) == 0);
		MUST((fd = open("later", O_RDWR)) >= 0);
		if (mapped) {
			char *map = mmap(NULL, 4, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
			MUST(map != MAP_FAILED);
			map[0] = 'T';
		}
		MUST(write(opened[1], "", 1) == 1 && read(changed[0], from, 1) == 1);
		printf("-- %04o%s\n", (unsigned)mode, mapped ? ", mapped" : "");
		sprintf(from, "/proc/self/fd/%d", fd);
		int followed = linkat(AT_FDCWD, from, AT_FDCWD, "link", AT_SYMLINK_FOLLOW);
		printf("followed: %d %s\n", followed, followed ? strerror(errno) : "");
		unlink("link");
		int direct = linkat(fd, "", AT_FDCWD, "link", AT_EMPTY_PATH);
		printf("direct: %d %s\n", direct, direct ? strerror(errno) : "");
		unlink("link");
		/* Where nothing may be made: which of the two refusals comes first. */
		followed = linkat(AT_FDCWD, from, AT_FDCWD, "fixed/link", AT_SYMLINK_FOLLOW);
		printf("followed into fixed: %d %s\n", followed, followed ? strerror(errno) : "");
		direct = linkat(fd, "", AT_FDCWD, "fixed/link", AT_EMPTY_PATH);
		printf("direct into fixed: %d %s\n", direct, direct ? strerror(errno) : "");
		followed = linkat(AT_FDCWD, from, AT_FDCWD, "open", AT_SYMLINK_FOLLOW);
		printf("followed to open: %d %s\n", followed, followed ? strerror(errno) : "");
		fflush(stdout);
		_exit(0);
	}
	MUST(read(opened[0], from, 1) == 1);
	MUST(chmod("later", mode) == 0);
	MUST(write(changed[1], "", 1) == 1);
	reap(child);
	for (int end = 0; end < 2; end++)
		MUST(close(opened[end]) == 0 && close(changed[end]) == 0);
	MUST(unlink("later") == 0);
}

int main(void)
{
	if (getuid() != 0 || setgroups(0, NULL) != 0)
		return SKIP;
	umask(0);
	MUST(chmod(".", 0777) == 0);
	with_mode("secret", 0600);
	with_mode("readable", 0644);
	with_mode("open", 0666);
	with_mode("setuid", 04666);
	with_mode("setgid", 02676);
	with_mode("setgid-not-run", 02666);
	with_mode("theirs", 0);
	MUST(chown("theirs", OTHER, OTHER) == 0);
	MUST(mkfifo("fifo", 0666) == 0 && symlink("open", "symlink") == 0);
	MUST(mkdir("dir", 0777) == 0 && mkdir("closed", 0700) == 0);
	MUST(mkdir("fixed", 0755) == 0);
	try_all();
	CHILD {
		MUST(setgid(OTHER) == 0 && setuid(OTHER) == 0);
		try_all();
	}
	static const mode_t modes[] = { 0666, 0600, 0644, 04666, 02676, 02666 };
	for (unsigned n = 0; n < sizeof modes / sizeof *modes; n++)
		for (int mapped = 0; mapped < 2; mapped++)
			by_descriptor(modes[n], mapped);
	return 0;
}
