//! RocksDB by its C interface, with a second thread that puts, so that writers share a log record.

use crate::Database;

/// What both scripts begin with.
const BINDING: &str = r#"
import ctypes, ctypes.util, glob, sys, threading
lib = ctypes.CDLL(sorted(glob.glob("/usr/lib/*/librocksdb.so.*"))[0])
P, S, C = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
for name, result, takes in [
    ("options_create", P, []), ("options_set_create_if_missing", None, [P, ctypes.c_ubyte]),
    ("options_set_write_buffer_size", None, [P, S]),
    ("options_set_paranoid_checks", None, [P, ctypes.c_ubyte]),
    ("options_set_level0_file_num_compaction_trigger", None, [P, ctypes.c_int]),
    ("open", P, [P, C, P]), ("close", None, [P]),
    ("writeoptions_create", P, []), ("writeoptions_set_sync", None, [P, ctypes.c_ubyte]),
    ("readoptions_create", P, []), ("readoptions_set_verify_checksums", None, [P, ctypes.c_ubyte]),
    ("writebatch_create", P, []), ("writebatch_destroy", None, [P]),
    ("writebatch_put", None, [P, C, S, C, S]), ("writebatch_delete", None, [P, C, S]),
    ("write", None, [P, P, P, P]), ("create_iterator", P, [P, P]), ("iter_destroy", None, [P]),
    ("iter_seek_to_first", None, [P]), ("iter_valid", ctypes.c_ubyte, [P]),
    ("iter_next", None, [P]), ("iter_key", P, [P, P]), ("iter_value", P, [P, P]),
    ("iter_get_error", None, [P, P])]:
    call = getattr(lib, "rocksdb_" + name); call.restype, call.argtypes = result, takes
class Wrong(Exception): pass
def checked(call, *words):
    error = ctypes.c_char_p()
    result = call(*words, ctypes.byref(error))
    if error.value: raise Wrong(error.value.decode(errors="replace"))
    return result
def opened(path):
    options = lib.rocksdb_options_create(); lib.rocksdb_options_set_create_if_missing(options, 1)
    lib.rocksdb_options_set_write_buffer_size(options, 64 << 10)
    lib.rocksdb_options_set_level0_file_num_compaction_trigger(options, 2)
    lib.rocksdb_options_set_paranoid_checks(options, 1)
    return checked(lib.rocksdb_open, options, path.encode())
def value(n): return b"%d." % n * (n * 7919 % 3000 // 4 + 1)
"#;

const MAKE: &str = r#"
lib.rocksdb_close(opened("db")); print(0, flush=True)
"#;

const WORK: &str = r#"
db = opened("db"); sync = lib.rocksdb_writeoptions_create()
lib.rocksdb_writeoptions_set_sync(sync, 1)
def write(puts, deletes=()):
    batch = lib.rocksdb_writebatch_create()
    for key, data in puts: lib.rocksdb_writebatch_put(batch, key, len(key), data, len(data))
    for key in deletes: lib.rocksdb_writebatch_delete(batch, key, len(key))
    checked(lib.rocksdb_write, db, sync, batch); lib.rocksdb_writebatch_destroy(batch)
ending = threading.Event()
def busy():
    n = 0
    while not ending.wait(0.002): n += 1; write([(b"busy", value(n)), (b"n", b"%d" % n)])
beside = threading.Thread(target=busy); beside.start(); print(0, flush=True)
for n, line in enumerate(sys.stdin, 1):
    write([(b"k%09d" % n, value(n)), (b"last", b"%d" % n)], [b"k%09d" % (n - 30)])
    print(n, flush=True)
ending.set(); beside.join(); lib.rocksdb_close(db)
"#;

const LOOK: &str = r#"
read = lib.rocksdb_readoptions_create(); lib.rocksdb_readoptions_set_verify_checksums(read, 1)
def text(call, it):
    size = S(); at = call(it, ctypes.byref(size)); return ctypes.string_at(at, size.value)
for line in sys.stdin:
    try:
        db = opened(line.strip() + "/db"); found = {}
        it = lib.rocksdb_create_iterator(db, read)
        lib.rocksdb_iter_seek_to_first(it)
        while lib.rocksdb_iter_valid(it):
            found[text(lib.rocksdb_iter_key, it)] = text(lib.rocksdb_iter_value, it)
            lib.rocksdb_iter_next(it)
        checked(lib.rocksdb_iter_get_error, it)
        lib.rocksdb_iter_destroy(it); lib.rocksdb_close(db)
        last, n = int(found.pop(b"last", b"0")), int(found.pop(b"n", b"0"))
        good = found.pop(b"busy", value(0)) == value(n)
        good &= found == {b"k%09d" % n: value(n) for n in range(max(1, last - 29), last + 1)}
        print(last if good else "damaged %d %r" % (last, sorted(found)), flush=True)
    except Wrong as error:
        print("damaged", str(error).replace("\n", " "), flush=True)
"#;

/// Tables of 64 KiB, so that they are written and merged all the time.
pub fn database() -> Database {
    Database {
        name: "RocksDB",
        mode: "two writers",
        needs: &["/usr/bin/db_bench"],
        image_mib: 64,
        format: "-N 2048 -J size=4",
        binding: BINDING,
        make: Some(MAKE),
        work: WORK,
        look: LOOK,
        transactions: (60, 400),
    }
}
