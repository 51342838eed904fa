# Two processes write to one database at once; JOURNAL is its journal mode.
sqlite3 db "PRAGMA journal_mode=$JOURNAL; CREATE TABLE t(id INTEGER PRIMARY KEY, who, text)" >/dev/null

write() {
    i=0
    while [ $i -lt 100 ]; do
        echo "INSERT INTO t(who, text) VALUES('$1', hex(randomblob(200)));"
        i=$((i + 1))
    done | sqlite3 -cmd '.timeout 30000' db
}
write one & one=$!
write two & two=$!
wait $one
wait $two

# One transaction that is rolled back, one that is large, one vacuum.
sqlite3 -cmd '.timeout 30000' db "BEGIN; DELETE FROM t; ROLLBACK;
    BEGIN; INSERT INTO t(who, text) SELECT 'bulk', hex(randomblob(100)) FROM t a, t b LIMIT 20000; COMMIT;
    DELETE FROM t WHERE who = 'bulk' AND id % 2 = 0; VACUUM;"

sqlite3 db "PRAGMA journal_mode; PRAGMA integrity_check; SELECT who, count(*) FROM t GROUP BY who;
    SELECT count(DISTINCT id) = count(*) FROM t;"
cp db copy
sqlite3 copy 'PRAGMA integrity_check; SELECT count(*) FROM t'
ls
