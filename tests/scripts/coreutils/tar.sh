tar --sort=name -cf a.tar t
tar tf a.tar | sort
mkdir x
tar xf a.tar -C x
diff -r --no-dereference t x/t && echo same
stat -c '%a %h %Y' x/t/a/numbers x/t/c/big | sed 's/ [0-9]*$//'
tar czf a.tgz -C t a c
tar tzf a.tgz | sort | md5sum
truncate -s 1M s
echo x >>s
tar cSf s.tar s
mkdir y
tar xSf s.tar -C y
cmp s y/s && echo same
tar df a.tar
echo >>t/a/numbers
tar df a.tar 2>&1 | grep -v time | sort
tar xf no || echo $?
tar --xattrs -cf z.tar t
tar rf a.tar s
