/* copy_file_range: positions given and own, overlap, ends, errors, and what copies depend on. */
#include "say.h"

int main(void)
{
	int in = make("in", "0123456789abcdef"), out = make("out", "");
	loff_t from = 4, to = 8;
	SAY(copy_file_range(in, &from, out, &to, 6, 0));
	SAY(from);
	SAY(to);
	SAY(lseek(in, 0, SEEK_CUR));
	SAY(lseek(in, 0, SEEK_SET));
	SAY(copy_file_range(in, NULL, out, NULL, 5, 0));
	SAY(lseek(in, 0, SEEK_CUR));
	SAY(lseek(out, 0, SEEK_CUR));
	char text[64] = "";
	SAY(pread(out, text, 63, 0));
	printf("%s|%s\n", text, text + 8);
	SAY(copy_file_range(in, NULL, out, NULL, 1000, 0));
	SAY(copy_file_range(in, NULL, out, NULL, 1000, 0));
	from = 100;
	SAY(copy_file_range(in, &from, out, NULL, 10, 0));
	SAY(from);
	from = 0, to = 8;
	SAY(copy_file_range(in, &from, in, &to, 8, 0));
	show("in");
	from = 0, to = 4;
	SAY(copy_file_range(in, &from, in, &to, 8, 0));
	from = -1;
	SAY(copy_file_range(in, &from, out, NULL, 8, 0));
	/* Ends that no number holds, signed or not. */
	from = to = LLONG_MAX;
	SAY(copy_file_range(in, &from, out, NULL, 10ull << 60, 0));
	SAY(copy_file_range(in, &from, out, NULL, 8, 0));
	from = 0;
	SAY(copy_file_range(in, &from, out, &to, 10ull << 60, 0));
	SAY(copy_file_range(in, &from, out, NULL, 8, 1));
	SAY(copy_file_range(in, &from, out, NULL, 0, 0));
	int reads = open("out", O_RDONLY), writes = open("in", O_WRONLY), dir = open(".", O_RDONLY);
	int appends = open("out", O_WRONLY | O_APPEND), ends[2];
	MUST(pipe(ends) == 0);
	SAY(copy_file_range(in, &from, reads, NULL, 8, 0));
	SAY(copy_file_range(writes, &from, out, NULL, 8, 0));
	SAY(copy_file_range(in, &from, appends, NULL, 8, 0));
	SAY(copy_file_range(dir, NULL, out, NULL, 8, 0));
	SAY(copy_file_range(in, &from, ends[1], NULL, 8, 0));
	SAY(copy_file_range(in, &from, 999, NULL, 8, 0));

	/* From a file that is mapped, and one that another process is writing. */
	char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, in, 0);
	MUST(map != MAP_FAILED);
	memcpy(map, "mapped", 6);
	from = to = 0;
	SAY(copy_file_range(in, &from, out, &to, 6, 0));
	CHILD {
		int mine = open("in", O_RDWR);
		MUST(pwrite(mine, "child", 5, 0) == 5);
		loff_t a = 0, b = 40;
		SAY(copy_file_range(mine, &a, out, &b, 5, 0));
	}
	from = 0, to = 6;
	SAY(copy_file_range(in, &from, out, &to, 5, 0));
	SAY(pread(out, text, 63, 0));
	printf("%.11s|%s\n", text, text + 40);
	SAY(copy_file_range(out, &from, in, &to, 3, 0));
	printf("%.16s\n", map);

	/* Sparse and large. */
	int big = make("big", "");
	SAY(pwrite(big, "far", 3, 5 << 20));
	from = to = 0;
	long sum = 0, n;
	while ((n = copy_file_range(big, &from, out, &to, 16 << 20, 0)) > 0)
		sum += n;
	SAY(sum);
	SAY(pread(out, text, 3, 5 << 20));
	SAY(memcmp(text, "far", 3));
	struct stat st;
	SAY((fstat(out, &st), st.st_size));
	return 0;
}
