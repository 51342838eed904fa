grep 19.9 t/a/numbers
grep -c 1 t/a/numbers
grep -rl words t
grep -r two t | sort
grep x no || echo $?
grep -q zzz t/a/numbers || echo $?
grep -rn last t/a
grep -a x t/c/binary || echo $?
grep -R words t | sort
