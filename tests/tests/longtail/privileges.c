/* Dropped and changed privileges: what may be opened, and whose the new files are. */
#include "say.h"
#include <dirent.h>
#include <grp.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>

enum { OTHER = 65533, NOBODY = 65534, GROUP = 4242 };

static int kept;

static void try_all(const char *who)
{
	char path[64];
	struct stat st;
	printf("-- %s\n", who);
	SAY(close(open("secret", O_RDONLY)));
	SAY(close(open("theirs", O_RDONLY)));
	SAY(close(open("group", O_RDONLY)));
	SAY(access("theirs", R_OK));
	SAY(chmod("theirs", 0600));
	SAY(chown("theirs", 0, 0));
	SAY(chown("theirs", NOBODY, NOBODY));
	SAY(mkdir("closed/x", 0755));
	snprintf(path, sizeof path, "by %s", who);
	SAY(close(open(path, O_CREAT | O_WRONLY, 0644)));
	if (stat(path, &st) == 0)
		printf("%s: %d:%d\n", path, st.st_uid, st.st_gid);
	SAY(unlink(path));
	SAY(pread(kept, path, 1, 0));
	SAY(pwrite(kept, "w", 1, 0));
}

static void *in_thread(void *unused)
{
	SAY(close(open("secret", O_RDONLY)));
	return unused;
}

static pthread_barrier_t turn;

/* Becomes somebody else, while the other threads stay who they are. */
static void *alone(void *unused)
{
	struct stat st;
	SAY(syscall(SYS_setresgid, -1, NOBODY, -1));
	SAY(syscall(SYS_setresuid, -1, NOBODY, -1));
	pthread_barrier_wait(&turn);
	pthread_barrier_wait(&turn);
	SAY(close(open("secret", O_RDONLY)));
	SAY(access("group", R_OK));
	SAY(close(open("by the thread", O_CREAT | O_WRONLY, 0644)));
	if (stat("by the thread", &st) == 0)
		printf("%d:%d\n", st.st_uid, st.st_gid);
	SAY(unlink("by the thread"));
	return unused;
}

/* As many calls as have the library connect. */
static void connect_as_root(void)
{
	struct stat st;
	for (int i = 0; i < 30; i++) {
		int fd = open("secret", O_RDWR);
		MUST(fd >= 0 && fstat(fd, &st) == 0 && close(fd) == 0);
	}
}

static void beside_a_thread_of_another(void)
{
	pthread_t thread;
	pthread_barrier_init(&turn, NULL, 2);
	connect_as_root();
	MUST(pthread_create(&thread, NULL, alone, NULL) == 0);
	pthread_barrier_wait(&turn);
	connect_as_root();
	pthread_barrier_wait(&turn);
	pthread_join(thread, NULL);
	connect_as_root();
	SAY(close(open("by root", O_CREAT | O_WRONLY, 0644)));
	struct stat st;
	MUST(stat("by root", &st) == 0);
	printf("%d:%d\n", st.st_uid, st.st_gid);
}

static void without_capabilities(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2] = { { 0 } };
	SAY(syscall(SYS_capset, &header, data));
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		kept = atoi(argv[2]);
		try_all(argv[1]);
		return 0;
	}
	if (getuid() != 0 || setgroups(0, NULL) != 0)
		return SKIP;
	umask(022);
	MUST(chmod(".", 0777) == 0);
	kept = make("secret", "for root");
	MUST(fchmod(kept, 0600) == 0);
	MUST(close(make("theirs", "nobody's")) == 0 && chmod("theirs", 0600) == 0);
	MUST(chown("theirs", NOBODY, NOBODY) == 0);
	MUST(close(make("group", "the group's")) == 0 && chmod("group", 0640) == 0);
	MUST(chown("group", 0, GROUP) == 0 && mkdir("closed", 0700) == 0);
	MUST(mkdir("nobodys", 0700) == 0 && close(make("nobodys/file", "")) == 0);
	MUST(chown("nobodys", NOBODY, NOBODY) == 0);
	char number[16];
	snprintf(number, sizeof number, "%d", kept);
	try_all("root");
	CHILD {
		SAY(setgid(NOBODY));
		SAY(setuid(NOBODY));
		try_all("nobody");
		pthread_t thread;
		MUST(pthread_create(&thread, NULL, in_thread, NULL) == 0);
		pthread_join(thread, NULL);
		CHILD {
			try_all("child");
		}
		CHILD {
			execl(argv[0], argv[0], "executed", number, NULL);
		}
		SAY(setuid(0));
	}
	CHILD {
		SAY(setegid(NOBODY));
		SAY(seteuid(NOBODY));
		try_all("effective");
		SAY(seteuid(0));
		try_all("root again");
		SAY(setresuid(OTHER, OTHER, 0));
		try_all("other");
		SAY(setresuid(NOBODY, 0, 0));
		SAY(access("theirs", R_OK));
		SAY(eaccess("secret", R_OK));
	}
	CHILD {
		gid_t group = GROUP;
		SAY(setgroups(1, &group));
		SAY(setresgid(OTHER, OTHER, OTHER));
		SAY(setresuid(OTHER, OTHER, OTHER));
		try_all("member");
	}
	CHILD {
		SAY(setfsuid(NOBODY));
		try_all("fsuid");
		SAY(setfsuid(0));
		SAY(close(open("secret", O_RDONLY)));
	}
	CHILD {
		DIR *dir = opendir("nobodys");
		MUST(dir && readdir(dir));
		without_capabilities();
		SAY(dirfd(dir) >= 0 && faccessat(dirfd(dir), ".", F_OK, 0));
		SAY(readdir(dir) && readdir(dir) && !readdir(dir));
		SAY(closedir(dir));
		SAY(opendir("nobodys") == NULL && errno == EACCES);
		try_all("root without capabilities");
	}
	CHILD {
		SAY(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0));
		SAY(setuid(NOBODY));
		SAY(close(open("secret", O_RDONLY)));
	}
	CHILD {
		beside_a_thread_of_another();
	}
	CHILD {
		SAY(syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY));
		SAY(close(open("secret", O_RDONLY)));
		SAY(close(open("theirs", O_RDONLY)));
	}
	return 0;
}
