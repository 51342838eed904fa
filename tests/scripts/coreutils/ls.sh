ls -A t
ls -AR t
ls -ld t/a | cut -c1-10
ls -lA t/a/b t/c | grep -v ^total | awk '{print $1,$2,$5,$NF}'
ls -F t
ls -1S t/c
ls -1t t/c | tail -1
ls no || echo $?
ls -d t/*
ls -Q t/c
