/* Access control lists: who may do what, by every kind of call; what new files inherit; chmod. */
#include "say.h"
#include <grp.h>
#include <sys/xattr.h>

#define ACCESS "system.posix_acl_access"
#define DEFAULT "system.posix_acl_default"

enum { OWNER = 1, USER = 2, OWNING = 4, NAMED = 8, MASK = 16, OTHERS = 32 };
enum { ANN = 2001, BOB = 2002, CLEO = 2003, DAVE = 2004, STAFF = 3001, GUESTS = 3002 };

struct entry {
	uint16_t tag, rights;
	uint32_t id;
};

struct list {
	uint32_t version;
	struct entry entries[16];
};

static size_t count;

static void put(struct list *list, int tag, int rights, uint32_t id)
{
	list->version = 2;
	list->entries[count++] = (struct entry){ tag, rights, id };
}

/* Sets a list of which everything but these is the same everywhere. */
static int set(const char *path, const char *name, int bob, int cleo, int staff, int mask)
{
	struct list list;
	count = 0;
	put(&list, OWNER, 7, -1);
	put(&list, USER, bob, BOB);
	put(&list, USER, cleo, CLEO);
	put(&list, OWNING, 0, -1);
	put(&list, NAMED, staff, STAFF);
	put(&list, MASK, mask, -1);
	put(&list, OTHERS, 0, -1);
	return setxattr(path, name, &list, 4 + count * sizeof *list.entries, 0);
}

static void tell(const char *path)
{
	struct stat st;
	if (lstat(path, &st) != 0) {
		printf("%s: %s\n", path, strerror(errno));
		return;
	}
	printf("%s: %o %d:%d", path, st.st_mode, st.st_uid, st.st_gid);
	const char *names[] = { ACCESS, DEFAULT };
	for (int which = 0; which < 2; which++) {
		struct list list;
		ssize_t size = lgetxattr(path, names[which], &list, sizeof list);
		printf(" |");
		if (size < 0)
			printf(" %s", strerror(errno));
		for (ssize_t at = 0; at < (size - 4) / 8 && size > 0; at++)
			printf(" %x:%d:%o", list.entries[at].tag, (int)list.entries[at].id,
			       list.entries[at].rights);
	}
	printf("\n");
	fflush(stdout);
}

static void names(const char *path)
{
	char list[256];
	ssize_t size = llistxattr(path, list, sizeof list);
	printf("%s has %zd:", path, size);
	for (char *at = list; at < list + size; at += strlen(at) + 1)
		printf(" %s", at);
	printf("\n");
}

/* Becomes somebody for good, as a login does. */
static void become(uid_t uid, gid_t gid, gid_t other)
{
	MUST(setgroups(other != 0, &other) == 0);
	MUST(setresgid(gid, gid, gid) == 0 && setresuid(uid, uid, uid) == 0);
}

static void try_file(const char *path)
{
	printf("- %s\n", path);
	for (int mask = 0; mask < 8; mask++)
		printf("%d", access(path, mask));
	printf("\n");
	for (int round = 0; round < 4; round++) {
		int fd = open(path, O_RDONLY);
		printf("read %s\n", fd < 0 ? strerror(errno) : "yes");
		if (fd >= 0)
			close(fd);
	}
	int fd = open(path, O_WRONLY | O_APPEND);
	printf("write %s\n", fd < 0 ? strerror(errno) : "yes");
	if (fd >= 0)
		close(fd);
	SAY(truncate(path, 1));
	SAY(faccessat(AT_FDCWD, path, R_OK, AT_EACCESS));
	SAY(chmod(path, 0777));
	SAY(setxattr(path, ACCESS, "", 0, 0));
	SAY(removexattr(path, ACCESS));
	fflush(stdout);
}

static void try_dir(const char *dir)
{
	char path[64], other[64];
	struct stat st;
	printf("- %s\n", dir);
	snprintf(path, sizeof path, "%s/inside", dir);
	snprintf(other, sizeof other, "%s/other", dir);
	for (int round = 0; round < 4; round++) {
		printf("stat %s\n", stat(path, &st) ? strerror(errno) : "yes");
		printf("access %s\n", access(path, R_OK) ? strerror(errno) : "yes");
	}
	SAY(close(open(dir, O_RDONLY | O_DIRECTORY)) * 0);
	int fd = open(other, O_CREAT | O_EXCL | O_WRONLY, 0666);
	printf("create %s\n", fd < 0 ? strerror(errno) : "yes");
	if (fd >= 0)
		close(fd);
	tell(other);
	SAY(rename(path, other));
	SAY(rename(other, path));
	SAY(unlink(other));
	SAY(chdir(dir));
	SAY(chdir("/") * 0);
	fflush(stdout);
}

static const char *dirs[] = { "open", "closed", "sticky" };

/* Everything as it was before somebody tried. */
static void prepare(void)
{
	const char *files[] = { "file", "shut", "program" };
	for (int each = 0; each < 3; each++) {
		char path[64];
		snprintf(path, sizeof path, "%s/inside", dirs[each]);
		MUST(close(make(path, "x")) == 0);
		MUST(chown(dirs[each], ANN, GUESTS) == 0 && chown(files[each], ANN, GUESTS) == 0);
	}
	MUST(set("file", ACCESS, 6, 0, 4, 6) == 0);
	MUST(set("shut", ACCESS, 7, 7, 7, 0) == 0);
	MUST(set("program", ACCESS, 1, 6, 5, 7) == 0);
	MUST(set("open", ACCESS, 7, 6, 5, 7) == 0);
	MUST(set("closed", ACCESS, 0, 7, 1, 5) == 0);
	MUST(set("sticky", ACCESS, 7, 7, 7, 7) == 0 && chmod("sticky", 01777) == 0);
}

static void try_all(const char *who, uid_t uid, gid_t gid, gid_t other)
{
	int here = open(".", O_RDONLY | O_DIRECTORY);
	prepare();
	CHILD {
		printf("-- %s\n", who);
		become(uid, gid, other);
		try_file("file");
		try_file("shut");
		try_file("program");
		MUST(fchdir(here) == 0);
		try_dir("open");
		MUST(fchdir(here) == 0);
		try_dir("closed");
		MUST(fchdir(here) == 0);
		try_dir("sticky");
		MUST(fchdir(here) == 0);
		CHILD {
			execl("program", "program", NULL);
			printf("exec %s\n", strerror(errno));
		}
	}
	close(here);
	tell("file");
	tell("sticky");
}

static int copy_program(const char *from, const char *to)
{
	static char text[1 << 16];
	int in = open(from, O_RDONLY), out = open(to, O_CREAT | O_WRONLY, 0700);
	MUST(in >= 0 && out >= 0);
	for (ssize_t size; (size = read(in, text, sizeof text)) > 0;)
		MUST(write(out, text, size) == size);
	close(in);
	return close(out);
}

static void everybody(void)
{
	try_all("owner", ANN, GUESTS, 0);
	try_all("bob", BOB, GUESTS, 0);
	try_all("bob of staff", BOB, GUESTS, STAFF);
	try_all("cleo", CLEO, STAFF, 0);
	try_all("dave of staff", DAVE, GUESTS, STAFF);
	try_all("dave of the file's group", DAVE, GUESTS, 0);
	try_all("dave of neither", DAVE, DAVE, 0);
}

static void inherit(void)
{
	printf("-- inheriting\n");
	MUST(mkdir("heir", 0777) == 0 && chown("heir", ANN, GUESTS) == 0);
	SAY(set("heir", DEFAULT, 7, 4, 5, 7));
	SAY(chmod("heir", 02775));
	tell("heir");
	umask(077);
	SAY(close(open("heir/file", O_CREAT | O_WRONLY, 0666)) * 0);
	SAY(close(open("heir/private", O_CREAT | O_WRONLY, 0600)) * 0);
	SAY(mkdir("heir/dir", 0750));
	SAY(mkdir("heir/dir/below", 0777));
	SAY(mkfifo("heir/fifo", 0666));
	SAY(symlink("x", "heir/link"));
	SAY(mknod("heir/node", S_IFREG | 0640, 0));
	int fd = open("heir", O_TMPFILE | O_RDWR, 0660);
	if (fd >= 0) {
		char path[32];
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		SAY(linkat(AT_FDCWD, path, AT_FDCWD, "heir/tmpfile", AT_SYMLINK_FOLLOW));
		close(fd);
	}
	for (int file = 0; file < 12; file++) {
		char path[32];
		snprintf(path, sizeof path, "heir/dir/%d", file);
		MUST(close(open(path, O_CREAT | O_WRONLY, 0664)) == 0);
	}
	umask(022);
	tell("heir/file");
	tell("heir/private");
	tell("heir/dir");
	tell("heir/dir/below");
	tell("heir/fifo");
	tell("heir/link");
	tell("heir/node");
	tell("heir/tmpfile");
	tell("heir/dir/0");
	tell("heir/dir/11");
	names("heir");
	names("heir/file");
	SAY(removexattr("heir", DEFAULT));
	SAY(close(open("heir/after", O_CREAT | O_WRONLY, 0666)) * 0);
	tell("heir/after");
	/* Files are made one after the other before there is a list, and after. */
	MUST(mkdir("later", 0777) == 0);
	for (int file = 0; file < 24; file++) {
		char path[32];
		snprintf(path, sizeof path, "later/%d", file);
		MUST(close(open(path, O_CREAT | O_WRONLY, 0666)) == 0);
		if (file == 11)
			SAY(set("later", DEFAULT, 7, 4, 5, 7));
	}
	tell("later/11");
	tell("later/12");
	tell("later/23");
}

static void change(void)
{
	printf("-- changes\n");
	prepare();
	SAY(chmod("file", 0600));
	tell("file");
	SAY(chmod("file", 0671));
	tell("file");
	SAY(chown("file", BOB, STAFF));
	tell("file");
	SAY(chown("file", ANN, GUESTS));
	SAY(chmod("file", 02771));
	CHILD {
		become(ANN, ANN, 0);
		SAY(set("file", ACCESS, 1, 2, 3, 7));
	}
	tell("file");
	int fd = open("file", O_RDWR);
	struct list plain;
	count = 0;
	put(&plain, OWNER, 6, -1);
	put(&plain, OWNING, 4, -1);
	put(&plain, OTHERS, 1, -1);
	SAY(fsetxattr(fd, ACCESS, &plain, 4 + count * 8, XATTR_CREATE));
	tell("file");
	SAY(set("file", ACCESS, 1, 2, 3, 7));
	SAY(fgetxattr(fd, ACCESS, NULL, 0));
	SAY(fgetxattr(fd, ACCESS, &plain, 8));
	SAY(fchmod(fd, 0640));
	tell("file");
	SAY(fremovexattr(fd, ACCESS));
	SAY(fremovexattr(fd, ACCESS));
	tell("file");
	SAY(set("file", DEFAULT, 1, 2, 3, 7));
	SAY(removexattr("file", DEFAULT));
	plain.entries[1].tag = OTHERS;
	SAY(fsetxattr(fd, ACCESS, &plain, 4 + count * 8, 0));
	SAY(fsetxattr(fd, ACCESS, &plain, 3 + count * 8, 0));
	plain.version = 1;
	SAY(fsetxattr(fd, ACCESS, &plain, 4 + count * 8, 0));
	SAY(setxattr("file", "system.posix_acl_other", "", 0, 0));
	SAY(symlink("file", "soft"));
	SAY(lsetxattr("soft", ACCESS, "", 0, 0));
	SAY(lgetxattr("soft", ACCESS, NULL, 0));
	close(fd);
}

/* What was allowed, and is not any more, and the other way round, seen by who looked before. */
static void while_looking(void)
{
	int to[2], back[2];
	char byte = 0;
	printf("-- while somebody looks\n");
	MUST(pipe(to) == 0 && pipe(back) == 0);
	MUST(mkdir("seen", 0755) == 0 && close(make("seen/inside", "x")) == 0);
	pid_t pid = begin();
	if (pid == 0) {
		struct stat st;
		become(BOB, BOB, 0);
		while (read(to[0], &byte, 1) == 1 && byte != 'q') {
			for (int round = 0; round < 5; round++) {
				int fd = open("seen/inside", O_RDONLY);
				printf("%d %d %d; ", stat("seen/inside", &st),
				       access("seen/inside", R_OK), fd < 0 ? errno : 0);
				if (fd >= 0) {
					MUST(read(fd, &byte, 1) == 1);
					close(fd);
				}
			}
			printf("\n");
			fflush(stdout);
			MUST(write(back[1], "r", 1) == 1);
		}
		_exit(0);
	}
	for (int round = 0; round < 8; round++) {
		const char *what = round & 1 ? "seen" : "seen/inside";
		switch (round / 2) {
		case 1:
			MUST(set(what, ACCESS, round & 1 ? 6 : 2, 7, 7, 7) == 0);
			break;
		case 2:
			MUST(set(what, ACCESS, round & 1 ? 1 : 4, 7, 7, 7) == 0);
			break;
		case 3:
			MUST(removexattr(what, ACCESS) == 0 && chmod(what, 0755) == 0);
			break;
		}
		MUST(write(to[1], "l", 1) == 1 && read(back[0], &byte, 1) == 1);
	}
	MUST(write(to[1], "q", 1) == 1);
	reap(pid);
}

int main(void)
{
	if (getuid() != 0 || setgroups(0, NULL) != 0)
		return SKIP;
	umask(022);
	MUST(chmod(".", 0755) == 0);
	MUST(close(make("file", "text")) == 0);
	if (set("file", ACCESS, 6, 0, 4, 6) != 0)
		return SKIP;
	MUST(close(make("shut", "text")) == 0 && copy_program("/bin/true", "program") == 0);
	for (int dir = 0; dir < 3; dir++)
		MUST(mkdir(dirs[dir], 0755) == 0);
	prepare();
	tell("sticky");
	everybody();
	inherit();
	change();
	while_looking();
	return 0;
}
