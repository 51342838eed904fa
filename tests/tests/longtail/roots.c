/* chroot, unshare and mounts: paths that begin to mean something else. */
#include "say.h"
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>

static char cwd[PATH_MAX];

static void *apart(void *unused)
{
	SAY(unshare(CLONE_FS));
	SAY(chdir("jail"));
	SAY(close(open("inside", O_RDONLY)));
	SAY(close(open("outside", O_RDONLY)));
	umask(077);
	return unused;
}

/* The root of all that run here is another for a while. */
static void pivots(void)
{
	static char path[PATH_MAX + 32];
	MUST(mkdir("many", 0755) == 0 && close(make("many/file", "")) == 0);
	DIR *dir = opendir("many");
	MUST(dir && readdir(dir));
	MUST(mount("tmpfs", "/media", "tmpfs", 0, NULL) == 0 && mkdir("/media/old", 0755) == 0);
	SAY(syscall(SYS_pivot_root, "/media", "/media/old"));
	SAY(chdir("/"));
	SAY(dirfd(dir) >= 0 && faccessat(dirfd(dir), "file", F_OK, 0) == 0);
	SAY(readdir(dir) && readdir(dir) && !readdir(dir));
	SAY(closedir(dir));
	snprintf(path, sizeof path, "/old%s/outside", cwd);
	show(path);
	snprintf(path, sizeof path, "%s/outside", cwd);
	show(path);
	SAY(syscall(SYS_pivot_root, "/old", "/old/media"));
	SAY(umount2("/media", MNT_DETACH));
	show(path);
}

int main(void)
{
	char path[PATH_MAX + 16], text[32] = "";
	struct stat st;
	MUST(getcwd(cwd, sizeof cwd));
	MUST(mkdir("jail", 0755) == 0 && mkdir("jail/sub", 0755) == 0);
	int in = make("jail/inside", "in the jail"), out = make("outside", "at large");
	MUST(symlink("/inside", "jail/link") == 0);
	if (geteuid() != 0)
		return SKIP;
	CHILD {
		int dir = open(".", O_RDONLY);
		SAY(chroot("jail"));
		show("/inside");
		show("/link");
		show("outside");
		SAY(chdir("/"));
		show("inside");
		show("../inside");
		snprintf(path, sizeof path, "%s/outside", cwd);
		SAY(open(path, O_RDONLY));
		SAY(pread(out, text, 8, 0));
		SAY(openat(dir, "outside", O_RDONLY) > 0);
		SAY(close(make("/sub/new", "made inside")));
		SAY(rename("/sub/new", "/new"));
		SAY(getcwd(path, sizeof path) != NULL);
		printf("%s\n", path);
		/* The very path of the lane, made again inside. */
		MUST(mkdir("/srv", 0755) == 0);
		SAY(close(make("/srv/decoy", "a decoy")));
		show("/srv/decoy");
		CHILD {
			show("/srv/decoy");
		}
	}
	show("jail/new");
	show("jail/srv/decoy");
	show("/srv/decoy");
	CHILD {
		SAY(unshare(CLONE_NEWNS));
		SAY(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
		SAY(mount("tmpfs", "jail/sub", "tmpfs", 0, NULL));
		SAY(close(make("jail/sub/file", "on the other mount")));
		show("jail/sub/file");
		SAY(rename("jail/sub/file", "jail/file"));
		SAY(link("jail/sub/file", "jail/file"));
		SAY(rmdir("jail/sub"));
		SAY(mount("jail", "jail", NULL, MS_BIND, NULL));
		SAY(mount(NULL, "jail", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL));
		SAY(open("jail/inside", O_RDWR));
		SAY(pread(in, text, 5, 0));
		show("outside");
	}
	show("jail/sub/file");
	pthread_t thread;
	MUST(pthread_create(&thread, NULL, apart, NULL) == 0);
	pthread_join(thread, NULL);
	SAY(close(open("outside", O_RDONLY)));
	SAY(close(open("inside", O_RDONLY)));
	SAY(close(open("masked", O_CREAT | O_WRONLY, 0666)));
	SAY((stat("masked", &st), st.st_mode & 0777));
	CHILD {
		int space = open("/proc/self/ns/mnt", O_RDONLY);
		SAY(unshare(CLONE_NEWNS | CLONE_FILES));
		SAY(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
		SAY(mount("tmpfs", "jail", "tmpfs", 0, NULL));
		show("jail/inside");
		SAY(setns(space, CLONE_NEWNS));
		SAY(chdir(cwd));
		show("jail/inside");
	}
	CHILD {
		SAY(unshare(CLONE_NEWUSER));
		SAY(pread(in, text, 5, 0));
		SAY(close(open("jail/inside", O_RDONLY)));
	}
	CHILD {
		pivots();
	}
	return 0;
}
