//! Copies of a volume that a lane goes on writing to, cut off the power.

use std::process::{Command, Output};

use polylane_base::rng::Rng;
use polylane_testkit::effort::is_full;
use polylane_tests::cut::{Record, State};
use polylane_tests::{binary, tool};

use super::place::Place;

/// A tenant makes a file durable, and the next when it is told to; after the first a snapshot is
/// taken, after the second a clone. Each of these five is told by a mark.
const SCRIPT: &str = r#"
wait_for() { while ! [ -e "$1" ]; do sleep 0.01; done; }
export WHERE="$PWD/.."
"$POLYLANE" run --no-preload --pool "$POOL" --volume v -- sh -euc '
    for n in 1 2 3; do
        dd if="$WHERE/bytes-$n" of=/lane/f$n conv=fsync 2>/dev/null
        : >"$WHERE/mark-file-$n"
        while ! [ -e "$WHERE/go-$n" ]; do sleep 0.01; done
    done' &
wait_for "$WHERE/mark-file-1"
"$POLYLANE" volume snapshot v s
: >"$WHERE/mark-snapshot"
: >"$WHERE/go-1"
wait_for "$WHERE/mark-file-2"
"$POLYLANE" volume clone v c
: >"$WHERE/mark-clone"
: >"$WHERE/go-2"
wait_for "$WHERE/mark-file-3"
: >"$WHERE/go-3"
wait $!
"#;

/// The same of an attached volume: pieces that its user has flushed, by the NBD protocol.
const ATTACHED: &str = r#"
export WHERE="$PWD/.." XDG_STATE_HOME="$PWD/../state"
"$POLYLANE" attach v --via nbd --socket "$WHERE/nbd" >/dev/null
trap '"$POLYLANE" detach v >/dev/null 2>&1 || true' EXIT
put() {
    qemu-io -f raw -c "write -P $1 ${1}M 12k" -c flush "nbd+unix:///?socket=$WHERE/nbd" >/dev/null
    : >"$WHERE/mark-file-$1"
}
put 1
"$POLYLANE" volume snapshot v s
: >"$WHERE/mark-snapshot"
put 2
"$POLYLANE" volume clone v c
: >"$WHERE/mark-clone"
put 3
"$POLYLANE" detach v >/dev/null
"#;

/// Who looks whether a volume has the nth file or piece; the line that refuses the volume.
type Look = fn(&Place, &str, usize) -> Result<bool, String>;

/// Marks at which files and copies had been told of.
const FILES: [usize; 3] = [1, 3, 5];
const SNAPSHOT: usize = 2;
const CLONE: usize = 4;

/// Content of the nth file, 1 to 3.
fn bytes(number: usize) -> Vec<u8> {
    (0..30_000).map(|at: usize| (at / 7 * number + number) as u8).collect()
}

/// Copies of a volume that a lane has: what cuts during both leave; in the campaign at any moment.
pub fn copies(place: &Place) {
    place.done("create v --size 32M");
    for number in 1..=3 {
        let path = place.dir.with_file_name(format!("bytes-{number}"));
        std::fs::write(path, bytes(number)).expect("write");
    }
    record(place, SCRIPT, has, "copies of a lane");
}

/// Copies of a volume that is attached.
pub fn copies_attached(place: &Place) {
    place.done("create v --size 16M --fs none");
    record(place, ATTACHED, has_piece, "copies of an attachment");
}

/// Records the script, and judges what cuts leave.
fn record(place: &Place, script: &str, has: Look, what: &str) {
    let mut command = Command::new("timeout");
    command.args(["60", "sh", "-euc", script]).env("POLYLANE", binary());
    let pool = format!("cut-{}-{}", std::process::id(), place.dir.as_os_str().len());
    let (record, output) = Record::of(&place.dir, command.env("POOL", pool));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(record.marks().len(), 5, "{output:?}");
    let marks = record.marks();
    let ranges = match is_full() {
        true => vec![0..=record.len()],
        false => vec![marks[0]..=marks[1] + 3, marks[2]..=marks[3] + 3],
    };
    let (mut rng, mut all, mut judged) = (Rng::new(11), 0, 0);
    for range in ranges {
        let states = record.states_between(range, &mut rng, place.random);
        all += states.len();
        for (state, told) in states.iter().step_by(place.step(states.len())) {
            state.restore(&place.dir);
            judge(place, has, state, *told);
            judged += 1;
        }
    }
    println!("{what}: {} changes, {judged} directories of {all}", record.len());
}

fn judge(place: &Place, has: Look, state: &State, told: usize) {
    let tell = || format!("told {told}, {:?}", state.names());
    for (number, at) in (1..).zip(FILES) {
        if told >= at {
            let what = format!("{}: f{number} of v", tell());
            assert!(has(place, "v", number).expect(&what), "{what}");
        }
    }
    is_copy_of((place, has), "s", 1, told >= SNAPSHOT, "snapshot v s", &tell());
    is_copy_of((place, has), "c", 2, told >= CLONE, "clone v c", &tell());
    if told >= FILES[0] {
        assert!(has(place, "v", 1).expect("v"), "{}: after all", tell());
    }
}

/// A copy has the first `files` files and no other, or is refused and can be made, unless it is
/// `promised`.
fn is_copy_of(
    (place, has): (&Place, Look),
    copy: &str,
    files: usize,
    promised: bool,
    words: &str,
    tell: &str,
) {
    match has(place, copy, 1) {
        Ok(first) => {
            assert!(first, "{tell}: {copy} has no f1");
            for number in 2..=3 {
                let there = has(place, copy, number).expect("whole");
                assert_eq!(there, number <= files, "{tell}: f{number} of {copy}");
            }
        }
        Err(line) => {
            assert!(!promised, "{tell}: {copy}: {line}");
            let there = place.dir.join(copy).exists();
            assert!(!there || line.contains("cut short"), "{tell}: {line}");
            place.done(words);
            has(place, copy, 1).unwrap_or_else(|line| panic!("{tell}: {copy} again: {line}"));
        }
    }
}

/// Whether a volume has the nth file whole, as whoever mounts it would see; the line that refuses
/// the volume.
fn has(place: &Place, volume: &str, number: usize) -> Result<bool, String> {
    place.view(volume)?;
    let view = place.dir.with_file_name("view");
    let run = |name: &str, words: &[&str]| -> Output {
        let mut command = Command::new(tool(name).expect("e2fsprogs"));
        command.args(words).arg(&view).output().expect("run")
    };
    let mended = run("e2fsck", &["-fp"]);
    assert!(mended.status.code().is_some_and(|code| code <= 1), "{volume}: {mended:?}");
    Ok(run("debugfs", &["-R", &format!("cat f{number}")]).stdout == bytes(number))
}

/// Whether a volume has the nth piece whole.
fn has_piece(place: &Place, volume: &str, number: usize) -> Result<bool, String> {
    use std::os::unix::fs::FileExt;
    place.view(volume)?;
    let view = std::fs::File::open(place.dir.with_file_name("view")).expect("open");
    let mut piece = vec![0; 12 << 10];
    view.read_exact_at(&mut piece, (number as u64) << 20).expect("read");
    Ok(piece.iter().all(|byte| usize::from(*byte) == number))
}
