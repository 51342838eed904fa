//! What a program of another version wrote, says or asks for: one line and a status, and nothing
//! else is held up by it.

use std::fs;
use std::path::Path;
use std::process::Command;

use polylane_tests::daemon::{Daemon, code, mounts};
use polylane_tests::host::{Host, text};
use polylane_tests::{binary, lacks, unavailable};
use serde_json::json;

/// A pool's record and a mount table of a later form; the run-time directory is the test's own.
#[test]
fn files_of_a_later_version_hold_up_their_own_pools_alone() {
    let name = "files_of_a_later_version_hold_up_their_own_pools_alone";
    if unavailable(name) || lacks(name, &["unshare", "mount"]) {
        return;
    }
    let host = Host::new();
    let dir = host.dir("d");
    let script = r#"
        mount --make-rprivate /; mount -t tmpfs -o mode=755 none /run/polylane
        cd "$D"; mkdir m n o t
        polylane() { "$POLYLANE" "$@"; }
        refused() {
            word=$1; shift; code=0; polylane "$@" >out 2>said || code=$?
            if [ $code != 1 ] || [ "$(wc -l <said)" != 1 ] || ! grep -q "$word" said; then
                echo "$*: $code" >&2; cat said >&2; exit 9
            fi
        }
        for pool in right record table; do polylane pool create $pool; done
        record=$(find state -name record.json | grep pools)
        sed -i 's/"version": *1/"version": 2/' "$record"
        for words in "pool info" "pool set --pids 9" "pool rm"; do
            refused 'record.json: not a pool' $words record
        done
        refused 'record.json: not a pool' mount --pool record mem:16M "$D/m"
        polylane pool ls >out 2>said; grep -q right out; grep -q table out
        polylane mount --pool right mem:16M "$D/m"
        of_version() {
            printf "polylane mount table $1\n" |
                dd of=/run/polylane/table.table conv=notrunc status=none
        }
        polylane mount --pool table mem:16M "$D/t"; echo x >t/file
        of_version 2
        polylane mount --pool right mem:16M "$D/n"; echo x >m/file; polylane umount "$D/n"
        refused 'table.table: not a mount table' mount --pool table mem:16M "$D/n"
        for words in "" --all "--all --lazy"; do
            refused 'table.table: not a mount table' umount $words "$D/t"
        done
        refused 'table.table: not a mount table' mount --pool right mem:16M "$D/t"
        grep -q x t/file
        refused 'no lane is mounted there' umount "$D/o"; polylane umount --all "$D/o"
        refused 'table.table: not a mount table' pool rm table
        polylane mount >out 2>said; grep -q "$D/m" out
        [ "$(wc -l <said)" = 1 ]; grep -q 'table.table: not a mount table' said
        polylane umount "$D/m"; [ ! -e m/file ]
        of_version 1; grep -q x t/file; polylane umount "$D/t"; [ ! -e t/file ]
        polylane pool rm right; polylane pool rm table
    "#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-euc", script]).env("D", &dir).env("POLYLANE", binary());
    let output = command.env("XDG_STATE_HOME", dir.join("state")).output().expect("unshare");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
}

/// Requests of a later client, and commands that another version of the program answers.
#[test]
fn a_daemon_and_commands_of_other_versions_understand_each_other_or_say_so() {
    if unavailable("a_daemon_and_commands_of_other_versions_understand_each_other_or_say_so") {
        return;
    }
    let host = Host::new();
    let (config, pool) = (host.dir("config"), host.pool("versions"));
    let program = host.path("program");
    fs::copy(binary(), &program).expect("copy");
    let daemon = Daemon::start_by(&program, &host, &config, &[]);
    let of_pool = format!("/v1/pools/{pool}");
    let ask = |method: &str, path: &str, body: &str| {
        let answer = daemon.request(method, path, body);
        let message = answer.body["error"]["message"].as_str().unwrap_or_default().to_string();
        assert!(!message.contains('\n'), "{message}");
        (answer.status, code(&answer).to_string(), message)
    };
    let of_code = |(status, code, _): (u16, String, String)| (status, code);
    assert_eq!(of_code(ask("GET", "/v2/pools", "")), (404, "not-found".to_string()));
    assert_eq!(of_code(ask("PATCH", &of_pool, "{}")), (405, "unknown-method".to_string()));
    let later = json!({ "source": "mem:16M", "later": true }).to_string();
    let (status, code, message) = ask("PUT", &mounts(&host.path("m")), &later);
    assert!((status, &*code) == (400, "malformed") && message.contains("later"), "{message}");

    // The program's file is replaced under the daemon, by a former version and by a later one.
    let replace = |text: &str| {
        fs::remove_file(&program).expect("rm");
        host.program("program", text);
    };
    replace("#!/bin/sh\necho \"polylane: unexpected argument '--once' found\" >&2; exit 2\n");
    let (status, code, message) = ask("PUT", &of_pool, "{}");
    assert!((status, &*code) == (400, "usage") && message.contains("--once"), "{message}");
    replace("#!/bin/sh\necho NAME MEMORY\n");
    let (status, code, message) = ask("GET", "/v1/pools", "");
    assert!((status, &*code) == (500, "internal"), "{message}");
    assert!(message.contains("pool") && message.contains("another version"), "{message}");
    replace("#!/bin/sh\necho '[{\"name\": \"a\", \"later\": 1}]'\n");
    assert_eq!(daemon.request("GET", "/v1/pools", "").body[0]["later"], 1);
    fs::remove_file(&program).expect("rm");
    let (status, code, message) = ask("GET", "/v1/pools", "");
    assert!((status, &*code) == (500, "internal"), "{message}");
    fs::copy(binary(), &program).expect("copy");
    assert_eq!(daemon.done("PUT", &of_pool, "{}").status, 200);
    assert_eq!(daemon.done("DELETE", &of_pool, "").status, 200);

    // A word of a later version in the daemon's files is named, with its file and line.
    fs::write(config.join("a.toml"), "[[mount]]\nsource = 'mem:16M'\npath = '/m'\nlater = 1\n")
        .expect("written");
    polylane_tests::pool::signal_to(daemon.child.id(), "HUP");
    polylane_tests::host::until("it is said", || {
        let said = daemon.said();
        said.contains("unknown field `later`") && said.contains(text(Path::new("a.toml")))
    });
}
