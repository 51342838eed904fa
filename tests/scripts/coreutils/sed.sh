sed -n '5p;10,12p' t/a/numbers
sed -i 's/^1$/ONE/' t/a/numbers
head -2 t/a/numbers
stat -c '%a %h' t/a/numbers
sed -i.bak 2d t/a/b/text
cat t/a/b/text t/a/b/text.bak
sed -i x no || echo $?
sed 'w copy' t/a/b/text
cat copy
sed -i --follow-symlinks s/one/1/ t/soft
readlink t/soft
cat t/a/b/text
