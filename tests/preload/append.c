/* O_APPEND between processes: every record whole, none lost. */
#include "check.h"

enum { PROCESSES = 4, RECORDS = 400 };

int main(int argc, char **argv)
{
	start(argc, argv);
	pid_t pids[PROCESSES];
	CHECK(close(make("log", "")) == 0);
	for (int n = 0; n < PROCESSES; n++) {
		CHECK((pids[n] = fork()) >= 0);
		if (pids[n] == 0) {
			int fd = open(in_dir("log"), O_WRONLY | O_APPEND);
			CHECK(fd >= 0);
			for (int k = 0; k < RECORDS; k++) {
				char record[600];
				size_t len = 20 + k % 500;
				memset(record, 'a' + n, len);
				record[len - 1] = '\n';
				CHECK(write(fd, record, len) == (ssize_t)len);
			}
			_exit(0);
		}
	}
	for (int n = 0; n < PROCESSES; n++)
		reap(pids[n]);
	FILE *file = fopen(in_dir("log"), "r");
	CHECK(file != NULL);
	int counts[PROCESSES] = { 0 };
	char line[1024];
	while (fgets(line, sizeof line, file)) {
		int n = line[0] - 'a';
		CHECK(n >= 0 && n < PROCESSES);
		size_t len = 20 + counts[n]++ % 500;
		CHECK(strlen(line) == len);
		for (size_t k = 0; k < len - 1; k++)
			CHECK(line[k] == line[0]);
	}
	for (int n = 0; n < PROCESSES; n++)
		CHECK(counts[n] == RECORDS);
	CHECK(fclose(file) == 0);
	return 0;
}
