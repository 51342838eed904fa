/* stdio: every mode of fopen, large buffers, fdopen, freopen, popen, and streams beside calls. */
#include "say.h"

static char big[3 << 20];

static void modes(void)
{
	static const char *const all[] = { "r", "r+", "w", "w+", "a", "a+", "wx", "re", "we" };
	for (size_t n = 0; n < sizeof all / sizeof *all; n++) {
		SAY(close(make("m", "0123456789")));
		FILE *stream = fopen("m", all[n]);
		printf("fopen %s: %s\n", all[n], stream ? "open" : strerror(errno));
		if (!stream)
			continue;
		char text[8] = "";
		SAY(fread(text, 1, 3, stream));
		clearerr(stream);
		SAY(fseek(stream, 0, SEEK_CUR));
		SAY(ftell(stream));
		SAY(fwrite("abc", 1, 3, stream));
		SAY(fflush(stream));
		SAY(ftell(stream));
		SAY(fcntl(fileno(stream), F_GETFL) & (O_ACCMODE | O_APPEND));
		SAY(fcntl(fileno(stream), F_GETFD));
		SAY(fclose(stream));
		show("m");
	}
}

static void buffers(void)
{
	static char buffer[1 << 20], copy[3 << 20];
	for (size_t n = 0; n < sizeof big; n++)
		big[n] = 'a' + n % 23;
	FILE *stream = fopen("big", "w+");
	MUST(stream);
	SAY(setvbuf(stream, buffer, _IOFBF, sizeof buffer));
	for (size_t at = 0; at < sizeof big; at += 3 << 10)
		MUST(fwrite(big + at, 3 << 10, 1, stream) == 1);
	struct stat st;
	SAY((stat("big", &st), st.st_size));
	SAY(fseek(stream, 12345, SEEK_SET));
	SAY(fgetc(stream) == big[12345]);
	SAY(ungetc('!', stream));
	SAY(ftell(stream));
	SAY(fgetc(stream));
	rewind(stream);
	SAY(fread(copy, 1, sizeof copy, stream));
	SAY(memcmp(copy, big, sizeof big));
	SAY(fgetc(stream));
	SAY(!!feof(stream));
	SAY(fseeko(stream, -5, SEEK_END));
	SAY(fputs("end", stream));
	SAY(fclose(stream));
	stream = fopen("big", "r");
	SAY(setvbuf(stream, NULL, _IONBF, 0));
	SAY(fseek(stream, -6, SEEK_END));
	SAY(fgetc(stream));
	SAY(lseek(fileno(stream), 0, SEEK_CUR));
	SAY(fclose(stream));
	char *line = NULL;
	size_t room = 0;
	SAY(close(make("lines", "one\ntwo\n\nlast")));
	stream = fopen("lines", "r");
	while (getline(&line, &room, stream) >= 0)
		printf("[%s]", line);
	SAY(fclose(stream));
	free(line);
}

static void beside(void)
{
	char text[16] = "";
	int fd = make("d", "0123456789");
	SAY(lseek(fd, 4, SEEK_SET));
	FILE *stream = fdopen(fd, "r+");
	SAY(fgetc(stream));
	SAY(fflush(stream));
	SAY(lseek(fd, 0, SEEK_CUR));
	SAY(fseek(stream, 2, SEEK_SET));
	SAY(fprintf(stream, "%s", "xyz"));
	SAY(read(fd, text, 2));
	SAY(fflush(stream));
	SAY(fclose(stream));
	show("d");
	SAY(fdopen(999, "r") == NULL);
	/* Two appenders, one by stream, one by descriptor. */
	stream = fopen("d", "a");
	fd = open("d", O_WRONLY | O_APPEND);
	for (int n = 0; n < 3; n++) {
		MUST(fprintf(stream, "s%d", n) == 2 && fflush(stream) == 0);
		MUST(write(fd, "w", 1) == 1);
	}
	SAY(fclose(stream));
	SAY(close(fd));
	show("d");
	/* A buffered child and parent share the position. */
	stream = fopen("d", "w");
	fputs("parent ", stream);
	fflush(stream);
	CHILD {
		fputs("child ", stream);
		fflush(stream);
	}
	fputs("parent again", stream);
	SAY(fclose(stream));
	show("d");
}

static void reopened(void)
{
	char line[64] = "";
	fflush(stdout);
	int kept = dup(1);
	MUST(freopen("out", "w", stdout) == stdout);
	printf("into the file\n");
	MUST(system("echo by the shell") == 0);
	MUST(freopen("out", "a", stdout) == stdout);
	printf("more\n");
	fflush(stdout);
	MUST(dup2(kept, 1) == 1 && close(kept) == 0);
	show("out");
	MUST(freopen("out", "r", stdin) == stdin);
	SAY(fileno(stdin));
	SAY(fgets(line, sizeof line, stdin) == line);
	printf("%s", line);
	FILE *pipe = popen("cat; cat out; echo piped > piped", "r");
	while (fgets(line, sizeof line, pipe))
		printf("from: %s", line);
	SAY(pclose(pipe));
	pipe = popen("cat >> piped", "w");
	SAY(fputs("written to\n", pipe));
	SAY(pclose(pipe));
	show("piped");
	SAY(freopen("none/none", "r", stdin) == NULL);
}

int main(void)
{
	modes();
	buffers();
	beside();
	reopened();
	return 0;
}
