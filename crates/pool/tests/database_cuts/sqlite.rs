//! SQLite: a rollback journal that is deleted, truncated or kept, and a log (WAL).

use crate::Database;

/// Commits a transaction for each line that it reads, and then says which: a row here, a row and an
/// index there, some of them large, an old one away. With less than `EXTRA` SQLite lets a rollback
/// journal that it deleted come back after a cut, and then takes the transaction back.
const WORK: &str = r#"
import sqlite3, sys
db = sqlite3.connect("db", isolation_level=None)
db.execute("PRAGMA journal_mode=" + sys.argv[1]); db.execute("PRAGMA synchronous=EXTRA")
db.execute("CREATE TABLE a(n INTEGER PRIMARY KEY, t)")
db.execute("CREATE TABLE b(n, t)"); db.execute("CREATE INDEX i ON b(t)")
db.execute("PRAGMA wal_autocheckpoint=20")
print(0, flush=True)
for n, line in enumerate(sys.stdin, 1):
    db.execute("BEGIN"); db.execute("INSERT INTO a VALUES(?, ?)", (n, "x" * (n * 7919 % 9000)))
    db.execute("INSERT INTO b VALUES(?, ?)", (n, str(n * 7919 % 1009)))
    db.execute("DELETE FROM a WHERE n = ?", (n - 12,)); db.execute("COMMIT")
    print(n, flush=True)
"#;

/// A volume's root may hold nothing of the database yet.
const LOOK: &str = r#"
import sqlite3, sys
for line in sys.stdin:
    try:
        db = sqlite3.connect(line.strip() + "/db")
        wrong = [row for row in db.execute("PRAGMA integrity_check")]
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master ORDER BY name")]
        last = [-1, -1]
        if names == ["a", "b", "i"]:
            last = [db.execute("SELECT coalesce(max(n), 0) FROM " + t).fetchone()[0] for t in "ab"]
        rows = db.execute("SELECT count(*) FROM b").fetchone()[0] if "b" in names else -1
        good = wrong == [("ok",)] and last[0] == last[1] and rows == last[0]
        made = names == ["a", "b", "i"]
        print(last[0] if good or not made else ("damaged", wrong, last, rows), flush=True)
    except sqlite3.Error as error:
        print("damaged", error, flush=True)
"#;

/// In the journal mode `mode`, on a volume small enough that its log wraps.
pub fn database(mode: &'static str) -> Database {
    Database {
        name: "SQLite",
        mode,
        needs: &[],
        image_mib: 16,
        format: "-N 512 -J size=4",
        binding: "",
        make: None,
        work: WORK,
        look: LOOK,
        transactions: (24, 100),
    }
}
