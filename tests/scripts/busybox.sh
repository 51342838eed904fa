# A static program: no preload library can reach it.
bb="$(command -v busybox)"
"$bb" mkdir -p a/b c
"$bb" seq 1 3000 >a/numbers
"$bb" dd if=/dev/urandom of=a/random bs=64k count=5 2>/dev/null
"$bb" cp -a a d
"$bb" cmp a/random d/random && echo same
"$bb" ln -s ../a/numbers c/link
"$bb" wc -l c/link
"$bb" tar cf t.tar a c
"$bb" mkdir x
"$bb" tar xf t.tar -C x
"$bb" diff -r a x/a && echo same
"$bb" find . -type f | "$bb" sort
"$bb" sed -i s/^1/one/ d/numbers
"$bb" grep -c one d/numbers
"$bb" mv d e
"$bb" rm -r a
"$bb" ls -R
"$bb" stat -c '%F %s %h' e/numbers c/link
"$bb" chmod 600 e/numbers
"$bb" ls -l e/numbers | "$bb" cut -c1-10
"$bb" vi --help 2>&1 | "$bb" head -n 1 | "$bb" cut -c1-7
"$bb" sh -c 'echo x >f; cat f; exec 3<f; rm f; cat <&3; cd e; pwd'
# Both kinds of program on one file.
echo dynamic >mixed
"$bb" sh -c 'echo static >>mixed'
echo dynamic >>mixed
"$bb" cat mixed
cat mixed
