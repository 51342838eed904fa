touch a
test -e a
touch -d '1999-12-31 23:59:59.123456789' a
stat -c '%y %x' a
touch -c b
test ! -e b
touch -r a c
stat -c %Y c
touch -a -d @5 a
stat -c '%X %Y' a
touch no/a || echo $?
mkdir d
touch -d @7 d
stat -c %Y d
ln -s a l
touch -h -d @9 l
stat -c '%Y %n' l a
echo x >f
touch f
cat f
