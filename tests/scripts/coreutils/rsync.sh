rsync -aH t/ u/
diff -r --no-dereference t u && echo same
stat -c '%h %a' u/a/numbers
rsync -aHi t/ u/
echo more >>t/a/b/text
rm t/c/big
rsync -ai --delete t/ u/ | grep -v '^\.d' | sed 's/\.[tpogx+]*\.* / /'
ls u/c
rsync -a --inplace t/a/numbers u/n
cmp t/a/numbers u/n
rsync -a --sparse t/c/ v/
ls v
rsync no/ w || echo $?
