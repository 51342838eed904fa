// Whether a file is reached by the library: its descriptor is then one of the slots.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words) {
    char link[64], target[4096] = "";
    int fd = count > 1 ? open(words[1], O_RDWR | O_CREAT, 0644) : -1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (fd < 0 || readlink(link, target, sizeof target - 1) < 0)
        return 2;
    puts(strstr(target, ".polylane-slots") ? "fast" : "fuse");
    return 0;
}
