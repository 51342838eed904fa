# A small C project with a library, generated headers and dependency files, built by make.
mkdir -p src include
for i in 1 2 3 4 5 6 7 8; do
    printf '#include "all.h"\nint part%d(int x) { return x * %d + OFFSET; }\n' "$i" "$i" >src/part$i.c
    echo "int part$i(int x);" >>include/parts.inc
done
cat >src/main.c <<'C'
#include <stdio.h>
#include "all.h"
int main(void) {
    int sum = part1(1) + part2(2) + part3(3) + part4(4) + part5(5) + part6(6) + part7(7) + part8(8);
    printf("%d\n", sum);
    return sum == 204 + 8 * OFFSET ? 0 : 1;
}
C
cat >Makefile <<'M'
OBJECTS := $(patsubst src/%.c,build/%.o,$(wildcard src/part*.c))
CFLAGS := -O1 -g -Wall -Iinclude -MMD
build/program: build/main.o build/libparts.a
	$(CC) -o $@ $^
build/libparts.a: $(OBJECTS)
	$(AR) rcs $@ $?
build/%.o: src/%.c include/all.h | build
	$(CC) $(CFLAGS) -c -o $@ $<
include/all.h: include/parts.inc
	{ echo '#define OFFSET 5'; cat $<; } > $@.new && mv $@.new $@
build:
	mkdir $@
clean:
	rm -rf build include/all.h
-include $(wildcard build/*.d)
M
make -s -j2
build/program
make -q && echo 'up to date'
sleep 0.02
echo >>src/part3.c
make -s -j2
make -n | wc -l
nm -g build/libparts.a | grep -c ' T '
strip -o stripped build/program
./stripped
gcc -shared -fPIC -Iinclude -o libshared.so src/part*.c
gcc -Iinclude -o dynamic src/main.c -L. -lshared -Wl,-rpath,"$PWD"
./dynamic
make -s clean
ls
