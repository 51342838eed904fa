//! Snapshots that are removed from between others, cut off the power: what stays is as it was.

use std::process::Command;

use polylane_tests::binary;
use polylane_tests::cut::{Content, State};

use super::place::Place;

/// Writes pieces of 12 KiB into an attached volume, at these MiB, each with bytes of its own.
const PUT: &str = r#"
export XDG_STATE_HOME="$PWD/../state"
"$POLYLANE" attach v --via nbd --socket "$PWD/../nbd" >/dev/null
trap '"$POLYLANE" detach v >/dev/null 2>&1 || true' EXIT
uri="nbd+unix:///?socket=$PWD/../nbd"
for at in $AT; do
    qemu-io -f raw -c "write -P $((BYTE + at)) ${at}M 12k" -c flush "$uri" >/dev/null
done
qemu-io -f raw -c "discard ${BYTE}k 64k" -c "write -z 15M ${BYTE}k" -c flush "$uri" >/dev/null
"$POLYLANE" detach v >/dev/null
"#;

/// A snapshot with these pieces of its own, on those before.
fn add(place: &Place, name: &str, byte: u8, at: &str) {
    let mut command = Command::new("timeout");
    command.args(["60", "sh", "-euc", PUT]).current_dir(&place.dir);
    command.env("POLYLANE", binary()).env("AT", at).env("BYTE", byte.to_string());
    let output = command.output().expect("run sh");
    assert!(output.status.success(), "{output:?}");
    place.done(&format!("snapshot v {name}"));
}

/// Removes one snapshot of a chain, with cuts; all others keep what they have, and it can be
/// removed whatever is left of it.
fn cut_remove(place: &Place, goes: &str, stay: &[&str]) {
    let view = |name: &str| place.view(name).unwrap_or_else(|line| panic!("{name}: {line}"));
    let whole: Vec<(&str, Content)> = stay.iter().map(|name| (*name, view(name))).collect();
    let (own, words) = (view(goes), format!("rm {goes}"));
    place.cut(&words, |state, returned| {
        let tell = || format!("{words}: {returned}, {:?}", state.names());
        let assert_all = |when: &str| {
            for (name, content) in &whole {
                assert!(place.view(name).as_ref() == Ok(content), "{}: {name} {when}", tell());
            }
        };
        assert_all("changed");
        match place.view(goes) {
            Ok(view) => assert!(view == own && !returned, "{}: half gone", tell()),
            Err(line) => {
                let gone = line.contains("No such file");
                assert!(gone || (!returned && line.contains("cut short")), "{}: {line}", tell());
            }
        }
        let left = |state: &State| {
            state.names().iter().any(|name| [goes, &format!("{goes}.polylane")].contains(name))
        };
        if left(state) {
            place.done(&words);
        }
        assert!(!left(&State::of(&place.dir)), "{}: left behind", tell());
        assert_all("changed by the second removal");
    });
}

/// The oldest, which is raw; one that gets the few blocks of the one above; one whose few blocks go
/// to the one above.
pub fn removed(place: &Place) {
    place.done("create v --size 16M --fs none");
    place.write("v", 3, 7);
    place.done("snapshot v a");
    add(place, "b", 10, "3 4");
    add(place, "c", 30, "4 5 6 7 8");
    add(place, "d", 50, "5");
    add(place, "e", 70, "3 9");
    add(place, "f", 90, "2 3 4 5 6 7 8");
    cut_remove(place, "a", &["v", "b", "c", "d", "e", "f"]);
    cut_remove(place, "c", &["v", "b", "d", "e", "f"]);
    cut_remove(place, "e", &["v", "b", "d", "f"]);
    place.remove("v f d b");
}
