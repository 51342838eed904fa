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
	try_all();
	CHILD {
		MUST(setgid(OTHER) == 0 && setuid(OTHER) == 0);
		try_all();
	}
	return 0;
}
