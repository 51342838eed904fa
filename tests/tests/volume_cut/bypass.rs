//! Bypass volumes whose host is cut off the power: what is in pool files, and the files themselves.
//! The commands that judge pin the pool file, and so find whatever would keep it from that.

use polylane_testkit::effort::is_full;
use polylane_tests::cut::{Content, State};
use polylane_tests::volume::HostFs;

use super::place::{MIB, Place};

/// A directory on a host of its own in memory, which goes with what is returned first; of each
/// command at most so many directories are judged.
pub fn place(test: &str, most: usize) -> Option<(HostFs, Place)> {
    let host = host(test)?;
    let mut place = Place::new(test, &host.path())?;
    (place.random, place.most) = (1, most);
    Some((host, place))
}

/// Needs the right to pin.
fn host(test: &str) -> Option<HostFs> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let sets = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let sets = sets.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    if sets >> 21 & 1 == 0 {
        polylane_tests::skip(test, "needs CAP_SYS_ADMIN");
        return None;
    }
    HostFs::in_memory(test, "ext4", 512 * MIB)
}

/// Puts a file `raw` beside the directory, to be imported.
pub fn put_raw(place: &Place, seed: u8) -> Content {
    use std::os::unix::fs::FileExt;
    let path = place.dir.with_file_name("raw");
    let file = std::fs::File::create(&path).expect("create");
    file.set_len(16 * MIB).expect("size");
    for at in [3, 4 * MIB - 700, 9 * MIB] {
        file.write_all_at(&[seed; 9000], at).expect("write");
    }
    Content::of(&path)
}

/// A volume that is made by `words` and cut is whole, or has no name, and can be removed with all
/// that it was to have; others keep what they have.
fn cut_make(place: &Place, words: &str, name: &str, whole: &Content, others: &[(&str, &Content)]) {
    place.cut(words, |state, returned| {
        let tell = || format!("{words}: {:?}", state.names());
        for (other, content) in others {
            assert!(place.view(other).as_ref() == Ok(*content), "{}: {other}", tell());
        }
        match place.view(name) {
            Ok(view) => assert!(view == *whole, "{}: half made", tell()),
            Err(line) => {
                assert!(!returned && line.contains("No such file"), "{}: {line}", tell());
                let again = place.volume(words);
                if !again.status.success() {
                    let line = String::from_utf8_lossy(&again.stderr);
                    assert!(line.contains("clears up"), "{}: {line}", tell());
                    place.done(&format!("rm {name}"));
                    if others.is_empty() {
                        let left = State::of(&place.dir);
                        assert_eq!(left.names(), [""; 0], "{}: left behind", tell());
                    }
                    place.done(words);
                }
                assert!(place.view(name).as_ref() == Ok(whole), "{}: made again", tell());
            }
        }
        remove_all(place, name, others, &tell());
    });
    place.done(words);
}

/// Removes what is there: then nothing is left, the pool file neither.
fn remove_all(place: &Place, name: &str, others: &[(&str, &Content)], tell: &str) {
    place.done(&format!("rm {name}"));
    others.iter().for_each(|(other, _)| place.done(&format!("rm {other}")));
    assert_eq!(State::of(&place.dir).names(), [""; 0], "{tell}: left behind");
}

/// Making, the first one with its pool file and one more with a pool file that grows.
pub fn made(place: &Place) {
    let one = put_raw(place, 7);
    cut_make(place, "import ../raw a --medium bypass", "a", &one, &[]);
    let before = State::of(&place.dir);
    let two = put_raw(place, 9);
    cut_make_beside(place, &before, &two, &one);
}

fn cut_make_beside(place: &Place, before: &State, two: &Content, one: &Content) {
    before.restore(&place.dir);
    // What a former volume wrote is in its chunks: they are cleared, and the file grows.
    place.done("create gone --size 16M --fs none --medium bypass");
    place.done("rm gone");
    cut_make(place, "import ../raw b --medium bypass", "b", two, &[("a", one)]);
}

/// Growing and removing.
pub fn changed(place: &Place) {
    let one = put_raw(place, 7);
    place.done("import ../raw a --medium bypass");
    let two = put_raw(place, 9);
    place.done("import ../raw b --medium bypass");
    place.cut("resize a 24M", |state, returned| {
        let tell = || format!("resize a 24M: {:?}", state.names());
        let view = place.view("a").unwrap_or_else(|line| panic!("{}: {line}", tell()));
        assert!(view == one.cut_to(24 * MIB) || (view == one && !returned), "{}", tell());
        assert!(place.view("b").as_ref() == Ok(&two), "{}: b", tell());
        place.done("resize a 28M");
        assert!(place.view("a").as_ref() == Ok(&one.cut_to(28 * MIB)), "{}: again", tell());
        remove_all(place, "a", &[("b", &two)], &tell());
    });
    place.done("import ../raw a --medium bypass");
    place.done("import ../raw b --medium bypass");
    place.cut("rm a", |state, returned| {
        let tell = || format!("rm a: {:?}", state.names());
        assert!(place.view("b").as_ref() == Ok(&two), "{}: b", tell());
        match place.view("a") {
            Ok(view) => {
                assert!(view == two && !returned, "{}", tell());
                place.done("rm a");
            }
            Err(line) => {
                assert!(line.contains("No such file"), "{}: {line}", tell());
                place.make_again("a");
            }
        }
        place.done("rm b");
        assert_eq!(State::of(&place.dir).names(), [""; 0], "{}: left behind", tell());
    });
}

/// Copies, and mending the ext4 on one.
pub fn copied(place: &mut Place) {
    place.done("create v --size 16M");
    let text = super::place::put_text(place);
    place.done("import v e --medium bypass");
    place.done("rm v");
    place.cut_copy("snapshot e s", "e", "s");
    place.most = if is_full() { usize::MAX } else { 5 };
    place.cut("check --repair e", |state, _| {
        let tell = || format!("check --repair e: {:?}", state.names());
        place.done("check e");
        let _ = std::fs::remove_file(place.dir.join("v"));
        place.done("export e v");
        super::place::assert_text(place, &text);
        std::fs::remove_file(place.dir.join("v")).expect("remove");
        place.done("rm e");
        place.done("rm s");
        assert_eq!(State::of(&place.dir).names(), [""; 0], "{}: left behind", tell());
    });
}
