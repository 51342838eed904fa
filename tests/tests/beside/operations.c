/* What operations there are, each with arguments that its seed and index choose. */
#include "random.h"

enum { DESCRIPTORS = 5, BYTES_MAX = 40000, OFFSET_MAX = 70000 };

unsigned long seed;
static uint64_t state_of_chance;
static int fds[DESCRIPTORS] = { -1, -1, -1, -1, -1 };
static char bytes[BYTES_MAX];

static uint64_t chance(uint64_t below)
{
	uint64_t mixed = state_of_chance += 0x9e3779b97f4a7c15;
	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
	return (mixed ^ mixed >> 31) % below;
}

#define PICK(...) \
	((const long[]){ __VA_ARGS__ })[chance(sizeof((const long[]){ __VA_ARGS__ }) / sizeof(long))]
#define ONE_OF(...) \
	((const char *[]){ __VA_ARGS__ })[chance(sizeof((const char *[]){ __VA_ARGS__ }) / sizeof(char *))]

/* A path of few names, so that operations meet. */
static char *path(void)
{
	static char texts[4][600];
	static int next;
	char *text = texts[next++ % 4];
	*text = 0;
	switch (chance(60)) {
	case 0:
		return text;
	case 1:
		memset(text, 'n', 255 + chance(2));
		text[255 + chance(2)] = 0;
		return text;
	}
	for (uint64_t depth = PICK(0, 0, 1, 1, 2); depth > 0; depth--)
		strcat(text, chance(20) ? ONE_OF("d/", "d/", "e/") : ONE_OF("a/", "d/./", "d/../", "f/"));
	strcat(text, chance(30) ? ONE_OF("a", "b", "c", "d", "e", "f") : ONE_OF(".", "d/", "a/", "/"));
	return text[0] == '/' ? strcpy(text, "d/../") : text;
}

/* A descriptor, most often one that is open. */
static int *slot(void)
{
	int *fd = &fds[chance(DESCRIPTORS)];
	for (int again = 0; again < 6 && *fd < 0; again++)
		fd = &fds[chance(DESCRIPTORS)];
	return fd;
}

/* One to open a file in. */
static int *new_slot(void)
{
	return &fds[chance(DESCRIPTORS)];
}

/* Where something begins, or how long it is: of blocks, pages, and neither. */
static off_t place(off_t below)
{
	off_t any = (off_t)chance(below);
	switch (chance(4)) {
	case 0:
		return any & ~4095;
	case 1:
		return any & ~1023;
	case 2:
		return any % 5000;
	}
	return any;
}

static void said(const char *text, long result)
{
	int why = errno;
	printf("%s = %ld %s ", text, result, result == -1 ? strerrorname_np(why) : "");
}


static void fill(size_t length)
{
	char letter = (char)('A' + chance(26));
	for (size_t at = 0; at < length; at++)
		bytes[at] = (char)(letter + at % 7);
}

static void op_open(void)
{
	int *fd = new_slot();
	long mode = PICK(0644, 0666, 0666, 0755, 06777, 02777, 0444, 0, 0777);
	long flags = PICK(O_RDONLY, O_RDWR, O_RDWR, O_RDWR, O_RDWR, O_WRONLY);
	flags |= PICK(0, O_CREAT, O_CREAT, O_CREAT, O_CREAT | O_EXCL);
	flags |= PICK(0, 0, 0, 0, 0, 0, O_TRUNC, O_APPEND, O_APPEND, O_NOFOLLOW, O_DIRECTORY, O_PATH, O_NOATIME);
	char *name = path();
	/* Most files have names of files. */
	if (*name && chance(8))
		name[strlen(name) - 1] = (char)PICK('a', 'b', 'c');
	if (*fd >= 0)
		close(*fd);
	errno = 0;
	*fd = open(name, (int)flags | O_NONBLOCK | O_CLOEXEC, (mode_t)mode);
	printf("open %s %lo %lo slot %td", name, flags, mode, fd - fds);
	said("", *fd < 0 ? -1 : 0);
	state(*fd, name);
}

static void op_tmpfile(void)
{
	int *fd = new_slot();
	long mode = PICK(0644, 0600, 06755), flags = PICK(O_RDWR, O_WRONLY, O_RDWR | O_EXCL, O_RDONLY);
	char *name = chance(2) ? "." : path();
	if (*fd >= 0)
		close(*fd);
	errno = 0;
	*fd = open(name, O_TMPFILE | (int)flags | O_CLOEXEC, (mode_t)mode);
	printf("tmpfile %s %lo %lo slot %td", name, flags, mode, fd - fds);
	said("", *fd < 0 ? -1 : 0);
	state(*fd, name);
}

static void op_link_open(void)
{
	char from[64], *to = path();
	int fd = *slot();
	sprintf(from, "/proc/self/fd/%d", fd);
	errno = 0;
	long result = linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW);
	printf("link_open to %s", to);
	said("", fd < 0 ? 0 : result);
	state(-1, to);
}

static void op_write(void)
{
	int fd = *slot();
	size_t length = (size_t)place(BYTES_MAX);
	fill(length);
	errno = 0;
	said("write", write(fd, bytes, length));
	state(fd, "");
}

static void op_pwrite(void)
{
	int fd = *slot();
	size_t length = (size_t)place(BYTES_MAX);
	off_t at = place(OFFSET_MAX) - (chance(50) == 0);
	fill(length);
	errno = 0;
	printf("pwrite %zu at %ld", length, (long)at);
	said("", pwrite(fd, bytes, length, at));
	state(fd, "");
}

static void op_pwritev2(void)
{
	int fd = *slot();
	size_t length = (size_t)place(9000);
	off_t at = place(OFFSET_MAX);
	long flags = PICK(0, RWF_APPEND, RWF_DSYNC, RWF_SYNC);
	fill(length);
	struct iovec parts[2] = { { bytes, length / 3 }, { bytes, length } };
	errno = 0;
	printf("pwritev2 %zu at %ld flags %lx", length, (long)at, flags);
	said("", pwritev2(fd, parts, 2, at, (int)flags));
	state(fd, "");
}

static void op_read(void)
{
	int fd = *slot();
	size_t length = (size_t)place(BYTES_MAX);
	off_t at = place(OFFSET_MAX);
	int where = chance(2) == 0;
	errno = 0;
	ssize_t count = where ? read(fd, bytes, length) : pread(fd, bytes, length, at);
	printf("read %zu at %ld", length, where ? -1L : (long)at);
	said("", count);
	printf("sum %lx ", count > 0 ? sum(bytes, (size_t)count) : 0);
	state(fd, "");
}

static void op_truncate(void)
{
	int fd = *slot(), by_path = chance(3) == 0;
	off_t length = place(OFFSET_MAX) - (chance(60) == 0);
	char *name = path();
	errno = 0;
	long result = by_path ? truncate(name, length) : ftruncate(fd, length);
	printf("truncate %s to %ld", by_path ? name : "", (long)length);
	said("", result);
	state(by_path ? -1 : fd, name);
}

static void allocate(int mode)
{
	int fd = *slot();
	off_t at = place(OFFSET_MAX), length = place(OFFSET_MAX);
	if (chance(2)) {
		at &= ~4095;
		length = (length & ~4095) + (chance(2) ? 4096 : 0);
	}
	errno = 0;
	long result = fallocate(fd, mode, at, length);
	printf("fallocate %x at %ld length %ld", (unsigned)mode, (long)at, (long)length);
	said("", result);
	state(fd, "");
}

static void op_fallocate(void)
{
	allocate((int)PICK(0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			   FALLOC_FL_ZERO_RANGE, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE,
			   FALLOC_FL_PUNCH_HOLE));
}

/* Modes that the kernel passes to no FUSE file system. */
static void op_move_range(void)
{
	allocate((int)PICK(FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE,
			   FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_KEEP_SIZE));
}

static void op_rename(void)
{
	char *from = path(), *to = path();
	unsigned flags = (unsigned)PICK(0, 0, 0, 1, 2, 2, 3, 8);
	errno = 0;
	long result = renameat2(AT_FDCWD, from, AT_FDCWD, to, flags);
	printf("rename %s to %s flags %x", from, to, flags);
	said("", result);
	state(-1, from);
	state(-1, to);
}

static void op_link(void)
{
	char *from = path(), *to = path();
	int flags = (int)PICK(0, 0, AT_SYMLINK_FOLLOW, 1);
	errno = 0;
	long result = linkat(AT_FDCWD, from, AT_FDCWD, to, flags);
	printf("link %s to %s flags %x", from, to, (unsigned)flags);
	said("", result);
	state(-1, to);
}

static void op_symlink(void)
{
	char target[300], *name = path();
	strcpy(target, chance(4) ? path() : "");
	if (chance(3) == 0)
		memset(target, 'l', 200), target[PICK(58, 59, 60, 61, 199)] = 0;
	errno = 0;
	long result = symlink(target, name);
	printf("symlink %s at %s", target, name);
	said("", result);
	state(-1, name);
}

static void op_mkdir(void)
{
	char *name = path();
	long mode = PICK(0755, 0777, 0777, 0777, 0700, 01777, 02755, 0), result;
	if (*name && chance(4))
		name[strlen(name) - 1] = (char)PICK('d', 'e');
	errno = 0;
	result = mkdir(name, (mode_t)mode);
	printf("mkdir %s %lo", name, mode);
	said("", result);
	state(-1, name);
}

static void op_remove(void)
{
	char *name = path();
	int flags = chance(3) ? 0 : AT_REMOVEDIR;
	errno = 0;
	long result = unlinkat(AT_FDCWD, name, flags);
	printf("%s %s", flags ? "rmdir" : "unlink", name);
	said("", result);
	state(-1, name);
}

static void op_mknod(void)
{
	char *name = path();
	mode_t mode = (mode_t)(PICK(S_IFIFO, S_IFSOCK, S_IFREG, S_IFCHR, S_IFBLK, S_IFDIR) | PICK(0644, 0, 06777));
	dev_t device = chance(2) ? makedev(1, 3) : makedev(300, 70000);
	errno = 0;
	long result = mknod(name, mode, device);
	printf("mknod %s %o", name, mode);
	said("", result);
	state(-1, name);
}

static void op_chmod(void)
{
	int fd = *slot(), by_path = chance(2) == 0;
	char *name = path();
	mode_t mode = (mode_t)PICK(0644, 0755, 06755, 02755, 04711, 0, 0777, 01777, 0777, 0777, 02777, 0666, 0700, 02644);
	errno = 0;
	long result = by_path ? chmod(name, mode) : fchmod(fd, mode);
	printf("chmod %s %o", by_path ? name : "", mode);
	said("", result);
	state(by_path ? -1 : fd, name);
}

static void op_chown(void)
{
	int fd = *slot(), how = (int)chance(3);
	char *name = path();
	uid_t uid = (uid_t)PICK(0, 1000, 1001, -1, -1), gid = (gid_t)PICK(0, 1000, 1001, -1, 1000);
	/* FUSE sends a lane what may as well begin a change of contents. */
	if (as_fuse() && uid == (uid_t)-1 && gid == (gid_t)-1)
		gid = 1000;
	errno = 0;
	long result = how == 0 ? chown(name, uid, gid) : how == 1 ? lchown(name, uid, gid) : fchown(fd, uid, gid);
	printf("chown %s %d %d", how < 2 ? name : "", (int)uid, (int)gid);
	said("", result);
	state(how < 2 ? -1 : fd, name);
}

static void op_utimes(void)
{
	int fd = *slot(), by_path = chance(2) == 0;
	char *name = path();
	struct timespec times[2];
	for (int which = 0; which < 2; which++) {
		times[which].tv_sec = 1000000 + (time_t)chance(1000000000);
		times[which].tv_nsec = PICK(0, 1, 999999999, 123456789, UTIME_OMIT, UTIME_NOW, 1000000000);
	}
	errno = 0;
	const struct timespec *given = chance(8) ? times : NULL;
	int flags = by_path && chance(2) ? AT_SYMLINK_NOFOLLOW : 0;
	long result = by_path ? utimensat(AT_FDCWD, name, given, flags) : futimens(fd, given);
	printf("utimes %s %ld %ld", by_path ? name : "", times[0].tv_nsec, times[1].tv_nsec);
	said("", result);
	state(by_path ? -1 : fd, name);
}

/* Brings a file to the medium and out of the cache. */
static void put_away(int fd)
{
	if (getenv("BESIDE_WRITTEN")) {
		fsync(fd);
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	}
}

static void seek(int whence)
{
	int fd = *slot();
	off_t at = place(OFFSET_MAX) - (chance(20) == 0);
	struct stat stat;
	/* Positions in directories are each file system's own. */
	if (fstat(fd, &stat) == 0 && S_ISDIR(stat.st_mode))
		whence = SEEK_SET, at = 0;
	if (whence == SEEK_DATA || whence == SEEK_HOLE)
		put_away(fd);
	errno = 0;
	printf("seek %d %ld", whence, (long)at);
	said("", lseek(fd, at, whence));
	printf("\n");
}

static void op_seek(void)
{
	seek((int)PICK(SEEK_SET, SEEK_CUR, SEEK_END));
}

/* Where blocks are smaller than pages, a lane tells of whole pages until they are on the medium. */
static void op_hole(void)
{
	seek((int)PICK(SEEK_DATA, SEEK_HOLE));
}

static void op_access(void)
{
	char *name = path();
	int mode = (int)chance(8), flags = (int)PICK(0, AT_EACCESS, AT_SYMLINK_NOFOLLOW);
	errno = 0;
	printf("access %s %d %x", name, mode, (unsigned)flags);
	said("", faccessat(AT_FDCWD, name, mode, flags));
	state(-1, name);
}

static void op_copy(void)
{
	int from = *slot(), to = *slot();
	off_t in = place(OFFSET_MAX), out = place(OFFSET_MAX);
	size_t length = (size_t)place(BYTES_MAX);
	errno = 0;
	printf("copy from %ld to %ld length %zu", (long)in, (long)out, length);
	said("", copy_file_range(from, &in, to, &out, length, 0));
	state(to, "");
}

static void op_sync(void)
{
	int fd = *slot();
	errno = 0;
	said("sync", chance(2) ? fsync(fd) : fdatasync(fd));
	state(fd, "");
}

static void op_duplicate(void)
{
	int from = *slot(), *to = slot();
	if (*to != from && *to >= 0)
		close(*to);
	if (*to != from)
		*to = from < 0 ? -1 : fcntl(from, F_DUPFD_CLOEXEC, 0);
	printf("duplicate to slot %td ", to - fds);
	state(*to, "");
}

static void op_close(void)
{
	int *fd = slot();
	errno = 0;
	said("close", close(*fd));
	*fd = -1;
	printf("\n");
}

static void op_store(void)
{
	int fd = *slot();
	struct stat stat;
	off_t page = place(OFFSET_MAX) & ~4095;
	/* Beyond the end it is a signal. */
	int there = fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_size > page;
	errno = 0;
	char *map = there ? mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, page) : MAP_FAILED;
	printf("store at %ld", (long)page);
	said("", map == MAP_FAILED ? -1 : 0);
	if (map != MAP_FAILED) {
		/* What lies past the end is nobody's. */
		off_t end = stat.st_size - page < 4096 ? stat.st_size - page : 4096;
		for (off_t at = (off_t)chance((uint64_t)end); at < end; at++)
			map[at] = (char)('a' + at % 5);
		munmap(map, 4096);
	}
	state(fd, "");
}

static void op_attribute(void)
{
	char *name = path(), value[3000];
	const char *key = ONE_OF("user.one", "user.two", "trusted.t", "user.", "other.x", "security.none");
	int how = (int)chance(6);
	size_t length = (size_t)PICK(0, 3, 60, 600, 2900);
	memset(value, 'v', sizeof value);
	errno = 0;
	long result = how < 2 ? setxattr(name, key, value, length, (int)PICK(0, 0, 1, 2)) :
		      how == 2 ? lsetxattr(name, key, value, length, 0) :
		      how == 3 ? removexattr(name, key) :
		      how == 4 ? getxattr(name, key, value, length) : lgetxattr(name, key, value, sizeof value);
	printf("attribute %d %s %s %zu", how, name, key, length);
	said("", result);
	state(-1, name);
}

static void op_list(void)
{
	struct { uint32_t version; struct { uint16_t tag, perm; uint32_t id; } entries[6]; } list;
	char *name = path();
	const char *key = ONE_OF("system.posix_acl_access", "system.posix_acl_default");
	int count = 0, named = (int)chance(2), remove = chance(5) == 0;
	list.version = 2;
	list.entries[count].tag = 1, list.entries[count].perm = (uint16_t)chance(8), list.entries[count++].id = -1u;
	if (named)
		list.entries[count].tag = 2, list.entries[count].perm = (uint16_t)chance(8), list.entries[count++].id = 1001;
	list.entries[count].tag = 4, list.entries[count].perm = (uint16_t)chance(8), list.entries[count++].id = -1u;
	if (named) {
		list.entries[count].tag = 8, list.entries[count].perm = (uint16_t)chance(8), list.entries[count++].id = 1000;
		list.entries[count].tag = 16, list.entries[count].perm = (uint16_t)chance(8), list.entries[count++].id = -1u;
	}
	list.entries[count].tag = 32, list.entries[count].perm = (uint16_t)chance(8), list.entries[count++].id = -1u;
	errno = 0;
	long result = remove ? removexattr(name, key) : setxattr(name, key, &list, 4 + 8 * (size_t)count, 0);
	printf("list %s %s %s %d", remove ? "none" : "", name, key, named);
	said("", result);
	state(-1, name);
}

static int by_name(const struct dirent **one, const struct dirent **other)
{
	return strcmp((*one)->d_name, (*other)->d_name);
}

static void op_listing(void)
{
	struct dirent **entries;
	char *name = path();
	errno = 0;
	int count = scandir(name, &entries, NULL, by_name);
	printf("listing %s", name);
	said("", count);
	for (int each = 0; each < count; each++)
		/* The lane's own, and what mke2fs makes. */
		if (strncmp(entries[each]->d_name, ".poly", 5) && strcmp(entries[each]->d_name, "lost+found"))
			printf("%s/%d ", entries[each]->d_name, entries[each]->d_type);
	state(-1, name);
}

static void op_read_link(void)
{
	char *name = path(), text[300];
	errno = 0;
	ssize_t length = readlink(name, text, sizeof text);
	printf("read_link %s", name);
	said("", length);
	printf("%.*s ", length < 0 ? 0 : (int)length, text);
	state(-1, name);
}

static const struct { const char *name; void (*operate)(void); unsigned weight; } KINDS[] = {
	{ "open", op_open, 16 }, { "tmpfile", op_tmpfile, 2 }, { "link_open", op_link_open, 2 },
	{ "write", op_write, 5 }, { "pwrite", op_pwrite, 5 }, { "pwritev2", op_pwritev2, 2 },
	{ "read", op_read, 5 }, { "truncate", op_truncate, 4 }, { "fallocate", op_fallocate, 5 },
	{ "move_range", op_move_range, 3 }, { "rename", op_rename, 7 }, { "link", op_link, 4 },
	{ "symlink", op_symlink, 3 }, { "mkdir", op_mkdir, 4 }, { "remove", op_remove, 6 },
	{ "mknod", op_mknod, 2 }, { "chmod", op_chmod, 5 }, { "chown", op_chown, 5 },
	{ "utimes", op_utimes, 4 }, { "seek", op_seek, 2 }, { "hole", op_hole, 3 }, { "access", op_access, 2 },
	{ "copy", op_copy, 2 }, { "sync", op_sync, 2 }, { "duplicate", op_duplicate, 1 },
	{ "close", op_close, 2 }, { "store", op_store, 3 }, { "attribute", op_attribute, 4 },
	{ "list", op_list, 3 }, { "listing", op_listing, 2 }, { "read_link", op_read_link, 1 },
};

/* Begins the chances of an operation anew, so that it is what it is whatever was before. */
static size_t choose(unsigned long index, unsigned *actor)
{
	unsigned whole = 0, at;
	size_t kind = 0;
	state_of_chance = seed * 0x2545f4914f6cdd1d + index * 0x9e6c63d0876a9a47;
	chance(2);
	*actor = (unsigned)chance(1 << 20);
	for (size_t each = 0; each < sizeof KINDS / sizeof *KINDS; each++)
		whole += KINDS[each].weight;
	for (at = (unsigned)chance(whole); at >= KINDS[kind].weight; kind++)
		at -= KINDS[kind].weight;
	return kind;
}

const char *kind_of(unsigned long index)
{
	unsigned actor;
	return KINDS[choose(index, &actor)].name;
}

unsigned actor_of(unsigned long index)
{
	unsigned actor;
	choose(index, &actor);
	return actor;
}

void operate(unsigned long index)
{
	unsigned actor;
	size_t kind = choose(index, &actor);
	umask((mode_t)PICK(022, 022, 0, 077, 027));
	KINDS[kind].operate();
}
