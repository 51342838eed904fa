ln t/a/b/text h
stat -c %h h t/a/b/text
ln -s t/a d
ls d
ln -s x x
cat x || echo $?
ln t dir || echo $?
ln h h || echo $?
ln no n || echo $?
ln -sf h d2
ln -sf t/c d2
readlink d2
ln -sn t/c d2 || echo $?
ln -L t/soft hs
stat -c '%F %h' hs
ln -P t/soft hp
stat -c %F hp
ln -sr t/a/numbers t/c/rel
readlink t/c/rel
head -1 t/c/rel
ln -f h t/c/empty
stat -c %h h
