# RocksDB: fillrandom, readrandom, half reads half writes; what was written is read by another process.
keys=200000
run() { db_bench --db="$PWD/db" --num=$keys --value_size=400 --threads=2 --histogram=0 "$@"; }
run --benchmarks=fillrandom,stats >fill.log 2>&1
run --benchmarks=readrandom --use_existing_db=1 >read.log 2>&1
run --benchmarks=readrandomwriterandom --readwritepercent=50 --use_existing_db=1 >mixed.log 2>&1
$OTHER db_bench --db="$PWD/db" --num=$keys --use_existing_db=1 --benchmarks=verifychecksum >check.log 2>&1
grep -q 'of [0-9]* found' read.log
! grep -hi 'corruption\|i/o error' ./*.log
for log in fill read mixed; do
    sed -n "s/^\([a-z]*random\) .* \([0-9]*\) ops\/sec.*/\1 \2\/s/p" $log.log | head -1
done | paste -sd,
