/*
 * Set-id bits: what is left of them after changes of contents and of owners that change nothing, by
 * root, by root without CAP_FSETID, by the owner and by somebody else.
 */
#include "say.h"
#include <grp.h>
#include <linux/capability.h>

enum { OTHER = 65533, OWNER = 65534, GROUP = 4242 };

static void drop_fsetid(void)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct caps[2];
	MUST(syscall(SYS_capget, &head, caps) == 0);
	caps[0].effective &= ~(1u << CAP_FSETID);
	MUST(syscall(SYS_capset, &head, caps) == 0);
}

static void become(const char *who)
{
	int owner = !strcmp(who, "owner");
	if (!strcmp(who, "root"))
		return;
	if (!strcmp(who, "root without CAP_FSETID"))
		return drop_fsetid();
	MUST(setgroups(0, NULL) == 0);
	MUST(setgid(owner ? GROUP : OTHER) == 0 && setuid(owner ? OWNER : OTHER) == 0);
}

/* Each kind of change, of the file "f", by whoever calls. */
static void change(int which)
{
	int fd = which < 8 ? open("f", which == 7 ? O_RDWR | O_APPEND : O_RDWR) : -1, from;
	MUST(fd >= 0 || which >= 8);
	switch (which) {
	case 0:
		SAY(pwrite(fd, "x", 1, 0));
		break;
	case 1:
		SAY(ftruncate(fd, 3));
		break;
	case 2:
		SAY(fallocate(fd, 0, 0, 9000));
		break;
	case 3:
		SAY(fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 4, 9));
		break;
	case 4:
		MUST((from = open("from", O_RDONLY)) >= 0);
		SAY(copy_file_range(from, NULL, fd, NULL, 5, 0));
		break;
	case 5:
		SAY(pread(fd, (char[4]){ 0 }, 4, 0));
		break;
	case 6:
		SAY(ftruncate(fd, 10));
		break;
	case 7:
		SAY(write(fd, "more", 4));
		break;
	case 8:
		SAY(truncate("f", 2));
		break;
	case 9:
		SAY(close(open("f", O_WRONLY | O_TRUNC)));
		break;
	case 10:
		SAY(chown("f", OWNER, -1));
		break;
	case 11:
		SAY(chown("f", -1, -1));
		break;
	case 12:
		MUST((fd = open("f", O_RDONLY)) >= 0);
		SAY(fchown(fd, -1, -1));
		break;
	}
}

/* With an argument, by the library alone: what FUSE does not tell a lane, too. */
int main(int count, char **words)
{
	static const char *const callers[] = { "root", "root without CAP_FSETID", "owner", "another" };
	static const int modes[] = { 06777, 04777, 02777, 06767, 02767, 00777 };
	struct stat st;
	int all = count > 1;
	(void)words;
	if (geteuid() != 0)
		return SKIP;
	MUST(chmod(".", 0777) == 0);
	close(make("from", "some bytes"));
	for (int which = 0; which <= 12; which++)
		for (unsigned who = 0; who < 4; who++)
			for (unsigned mode = 0; mode < sizeof modes / sizeof *modes; mode++) {
				/* Refused by the kernel where there are such bits; by FUSE nothing is
				 * done there. */
				if (!all && who == 3 && which >= 11 && modes[mode] & 06000)
					continue;
				/* By root without CAP_FSETID FUSE leaves the bit that runs nothing. */
				if (who == 1 && modes[mode] & 02000 && !(modes[mode] & 010))
					continue;
				close(make("f", "0123456789"));
				MUST(chown("f", OWNER, GROUP) == 0 && chmod("f", modes[mode]) == 0);
				printf("-- %04o by %s: ", modes[mode], callers[who]);
				CHILD {
					become(callers[who]);
					change(which);
				}
				MUST(stat("f", &st) == 0);
				printf("%04o\n", st.st_mode & 07777);
				MUST(unlink("f") == 0);
			}
	return 0;
}
