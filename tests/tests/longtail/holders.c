/*
 * Who holds a lock, by F_GETLK and F_OFD_GETLK: by the same way and without the library, in one
 * namespace of process numbers and in another.
 */
#include "say.h"
#include <sched.h>

static struct flock whole(int type)
{
	return (struct flock){ .l_type = type, .l_whence = SEEK_SET };
}

/* In a child: holds a lock until its input ends. */
static int hold(const char *how, int in, int out)
{
	struct flock lock = whole(F_WRLCK);
	char byte;
	int fd = open("f", O_RDWR);
	MUST(fd >= 0);
	MUST(fcntl(fd, strcmp(how, "OFD") ? F_SETLK : F_OFD_SETLK, &lock) == 0);
	MUST(write(out, "r", 1) == 1);
	while (read(in, &byte, 1) > 0)
		;
	return 0;
}

static void ask(const char *who, int command, pid_t holder)
{
	struct flock lock = whole(F_WRLCK);
	int fd = open("f", O_RDWR);
	MUST(fd >= 0);
	MUST(fcntl(fd, command, &lock) == 0);
	printf("%s: %s\n", who,
	       lock.l_type == F_UNLCK	? "no lock"
	       : lock.l_pid == -1	? "an open file's"
	       : lock.l_pid == 0	? "nobody that is seen here"
	       : lock.l_pid == holder	? "the holder"
					: "another number");
	fflush(stdout);
	close(fd);
}

/* Runs this program anew as "ask", without the library. */
static void ask_plainly(const char *who, const char *what, pid_t holder)
{
	char number[16];
	snprintf(number, sizeof number, "%d", holder);
	CHILD {
		setenv("LD_PRELOAD", "", 1);
		execl("/proc/self/exe", "holders", "ask", who, what, number, NULL);
		MUST(!"exec");
	}
}

/* Asks by each way while a child holds a lock, in a namespace of its own if `apart`. */
static void round_of(const char *how, int plain, int apart)
{
	int go[2], ready[2];
	char byte, in[8], out[8];
	MUST(pipe(go) == 0 && pipe(ready) == 0);
	snprintf(in, sizeof in, "%d", go[0]);
	snprintf(out, sizeof out, "%d", ready[1]);
	fflush(stdout);
	pid_t holder = apart ? (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0) : fork();
	MUST(holder >= 0);
	if (holder == 0) {
		close(go[1]);
		if (plain)
			setenv("LD_PRELOAD", "", 1);
		execl("/proc/self/exe", "holders", "hold", how, in, out, NULL);
		_exit(9);
	}
	close(go[0]);
	MUST(read(ready[0], &byte, 1) == 1);
	printf("-- %s, %s, %s\n", how, plain ? "plain" : "same way", apart ? "apart" : "here");
	/* Whose kind of lock it is FUSE says neither to nor by the kernel: each is asked by its own. */
	int is_file = !strcmp(how, "OFD");
	ask("asked", is_file ? F_OFD_GETLK : F_GETLK, holder);
	ask_plainly("asked without the library", is_file ? "ofd" : "posix", holder);
	/* The holder has no number in a namespace of its sibling's. */
	CHILD {
		MUST(unshare(CLONE_NEWPID) == 0);
		CHILD {
			ask("asked in another namespace", is_file ? F_OFD_GETLK : F_GETLK, holder);
			ask_plainly("asked there without the library", is_file ? "ofd" : "posix", holder);
		}
	}
	close(go[1]);
	reap(holder);
	close(ready[0]);
	close(ready[1]);
}

int main(int count, char **words)
{
	struct flock lock;
	if (count == 5 && !strcmp(words[1], "hold"))
		return hold(words[2], atoi(words[3]), atoi(words[4]));
	if (count == 5) {
		ask(words[2], strcmp(words[3], "ofd") ? F_GETLK : F_OFD_GETLK, atoi(words[4]));
		return 0;
	}
	if (geteuid() != 0)
		return SKIP;
	int fd = make("f", "bytes");
	for (int plain = 0; plain < 2; plain++)
		for (int apart = 0; apart < 2; apart++) {
			round_of("POSIX", plain, apart);
			round_of("OFD", plain, apart);
		}
	/* What is refused, whoever holds what. */
	lock = whole(F_UNLCK);
	SAY(fcntl(fd, F_GETLK, &lock));
	lock = whole(F_UNLCK);
	SAY(fcntl(fd, F_OFD_GETLK, &lock));
	lock = whole(F_WRLCK);
	lock.l_pid = 1;
	SAY(fcntl(fd, F_OFD_GETLK, &lock));
	SAY(fcntl(fd, F_GETLK, &lock));
	printf("%d %d\n", lock.l_type == F_UNLCK, lock.l_pid);
	lock = whole(77);
	SAY(fcntl(fd, F_GETLK, &lock));
	lock = whole(F_WRLCK);
	lock.l_whence = 9;
	SAY(fcntl(fd, F_GETLK, &lock));
	return 0;
}
