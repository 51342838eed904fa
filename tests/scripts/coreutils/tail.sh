tail -n 3 t/a/numbers
tail -c 5 t/a/b/text
tail -n +1999 t/a/numbers
tail no || echo $?
: >g
(for i in 1 2 3 4 5; do echo line $i >>g; sleep 0.1; done) & tail -s 0.05 -f -n +1 --pid=$! g
