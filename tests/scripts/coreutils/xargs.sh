find t -type f -print0 | sort -z | xargs -0 md5sum
ls t/c | wc -l
seq 1 200 | xargs -n 7 -P 4 touch
ls | wc -l
seq 1 200 | xargs rm
ls
find t -type f -print0 | xargs -0 -P 3 -I{} cp {} {}.copy
find t -name '*.copy' | sort
