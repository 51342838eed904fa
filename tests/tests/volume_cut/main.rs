//! Power cuts under `volume create`, `snapshot`, `clone`, `resize`, `rm`, `import` and `set`, one
//! by one and in any order, and under copies of a volume in use: at every change of a file or name,
//! with what was not synced there, missing and torn. A volume keeps its bytes; a copy is whole or
//! refused.

use polylane_base::rng::Rng;
use polylane_tests::cut::{Record, State};
use polylane_tests::volume::HostFs;

mod bypass;
mod live;
mod merge;
mod place;
mod random;

use place::{MIB, Place, assert_text, put_text};

/// On a host that cannot share blocks, the temporary directory's as a rule: overlays and bases.
#[test]
fn a_copy_that_is_cut_is_whole_or_none() {
    let dir = tempfile::tempdir().expect("tempdir");
    let Some(place) = Place::new("a_copy_that_is_cut_is_whole_or_none", dir.path()) else { return };
    place.done("create v --size 16M --fs none");
    place.write("v", 3, 7);
    place.cut_copy("snapshot v s", "v", "s");
    place.cut_copy("clone s c", "s", "c");
    place.cut_copy("clone v d", "v", "d");
    place.cut_copy("snapshot d e", "d", "e");
}

/// Somebody writes to a volume without a sync, and then it is copied: what the copy has is durable
/// with it.
#[test]
fn what_was_written_before_a_copy_is_in_it() {
    let name = "what_was_written_before_a_copy_is_in_it";
    let dir = tempfile::tempdir().expect("tempdir");
    let Some(place) = Place::new(name, dir.path()) else { return };
    place.done("create v --size 16M --fs none");
    let script = "printf %09000d 7 | dd of=v bs=9000 seek=300 conv=notrunc 2>/dev/null
                  exec \"$0\" volume snapshot v s";
    let mut command = std::process::Command::new("sh");
    command
        .args(["-euc", script])
        .arg(polylane_tests::binary())
        .env("XDG_STATE_HOME", "/proc/none");
    let (record, output) = Record::of(&place.dir, &mut command);
    assert!(output.status.success(), "{output:?}");
    let written = place.view("v").expect("whole");
    let mut rng = Rng::new(3);
    let states = record.states(&mut rng, place.random);
    for state in &states {
        state.restore(&place.dir);
        place.view("v").expect("whole");
        let copy = place.view("s");
        assert!(copy.is_err() || copy == Ok(written.clone()), "{:?}", state.names());
    }
    for state in record.states_after(&mut rng) {
        state.restore(&place.dir);
        let both = (place.view("v"), place.view("s"));
        assert!(both == (Ok(written.clone()), Ok(written.clone())), "{:?}", state.names());
    }
    println!("write and snapshot: {} changes, {} directories", record.len(), states.len());
}

#[test]
fn a_copy_with_shared_blocks_that_is_cut_is_whole_or_none() {
    let name = "a_copy_with_shared_blocks_that_is_cut_is_whole_or_none";
    let Some(host) = HostFs::new(name, "xfs", 400 * MIB) else { return };
    let Some(place) = Place::new(name, &host.path()) else { return };
    place.done("create v --size 16M --fs none");
    place.write("v", 3, 7);
    place.cut_copy("snapshot v s", "v", "s");
    place.cut_copy("clone v c", "v", "c");
    place.remove("v s c");
}

#[test]
fn a_volume_that_is_cut_while_it_grows_or_goes_keeps_its_bytes() {
    let name = "a_volume_that_is_cut_while_it_grows_or_goes_keeps_its_bytes";
    let dir = tempfile::tempdir().expect("tempdir");
    let Some(place) = Place::new(name, dir.path()) else { return };
    place.done("create v --size 16M --fs none");
    place.write("v", 3, 7);
    place.cut("resize v 20M", |state, returned| {
        let sizes = if returned { vec![20 * MIB] } else { vec![16 * MIB, 20 * MIB] };
        let view = place.view("v").expect("whole");
        assert!(sizes.contains(&view.length()), "{:?}", state.names());
    });
    let whole = place.view("v").expect("whole");
    place.done("clone v c");
    let grown = |returned| if returned { vec![24 * MIB] } else { vec![20 * MIB, 24 * MIB] };
    // A copy becomes one file of its own; what it was on stays for the others.
    place.cut("resize c 24M", |state, returned| {
        let view = place.view("c").expect("whole");
        assert!(grown(returned).contains(&view.length()), "{:?}", state.names());
        assert!(view.cut_to(20 * MIB) == whole, "{:?}", state.names());
        assert!(place.view("v").as_ref() == Ok(&whole), "{:?}", state.names());
        place.done("resize c 24M");
        assert!(place.view("v").as_ref() == Ok(&whole), "{:?}", state.names());
    });
    place.done("resize v 20M");
    place.cut("set v --weight 300", |state, _| {
        assert!(place.view("v").as_ref() == Ok(&whole), "{:?}", state.names());
    });
    place.remove("v c");
}

#[test]
fn a_removal_that_is_cut_takes_nothing_of_others() {
    let dir = tempfile::tempdir().expect("tempdir");
    let name = "a_removal_that_is_cut_takes_nothing_of_others";
    let Some(place) = Place::new(name, dir.path()) else { return };
    place.done("create v --size 16M --fs none");
    place.write("v", 3, 7);
    place.done("clone v c");
    place.done("clone c d");
    let whole = place.view("v").expect("whole");
    for (goes, stay) in [("c", &["v", "d"][..]), ("v", &["d"][..]), ("d", &[][..])] {
        place.cut(&format!("rm {goes}"), |state, returned| {
            for volume in stay {
                let same = place.view(volume).as_ref() == Ok(&whole);
                assert!(same, "{:?}: {volume} changed", state.names());
            }
            match place.view(goes) {
                Ok(view) => assert!(view == whole && !returned, "{:?}", state.names()),
                Err(line) => {
                    assert!(line.contains("No such file"), "{line}");
                    place.make_again(goes);
                    let left = State::of(&place.dir);
                    assert!(!stay.is_empty() || left.names().is_empty(), "{:?}", left.names());
                }
            }
        });
    }
    assert_eq!(State::of(&place.dir).names(), [""; 0], "left behind");
}

#[test]
fn a_snapshot_between_others_whose_removal_is_cut_leaves_them_as_they_are() {
    let name = "a_snapshot_between_others_whose_removal_is_cut_leaves_them_as_they_are";
    let dir = tempfile::tempdir().expect("tempdir");
    if polylane_tests::lacks(name, &["qemu-io"]) {
        return;
    }
    let Some(mut place) = Place::new(name, dir.path()) else { return };
    (place.random, place.most) = (1, 5);
    merge::removed(&place);
}

/// resize2fs in place: after a cut e2fsck mends what is left, and no file has changed.
#[test]
fn an_ext4_that_is_cut_while_it_grows_keeps_its_files() {
    let dir = tempfile::tempdir().expect("tempdir");
    let name = "an_ext4_that_is_cut_while_it_grows_keeps_its_files";
    let Some(mut place) = Place::new(name, dir.path()) else { return };
    (place.random, place.most) = (1, 12);
    place.done("create v --size 32M");
    let text = put_text(&place);
    place.cut("resize v 300M", |state, returned| {
        let length = state.file("v").expect("v").length();
        assert!([32 * MIB, 300 * MIB].contains(&length), "{length}");
        if returned {
            place.done("check v");
        }
        place.done("check --repair v");
        assert_text(&place, &text);
        place.done("resize v 300M");
        place.done("check v");
    });
}

/// A smaller form takes the volume's place when it is whole: a cut shows one of both.
#[test]
fn an_ext4_that_is_cut_while_it_shrinks_is_the_old_one_or_the_new_one() {
    let dir = tempfile::tempdir().expect("tempdir");
    let name = "an_ext4_that_is_cut_while_it_shrinks_is_the_old_one_or_the_new_one";
    let Some(mut place) = Place::new(name, dir.path()) else { return };
    (place.random, place.most) = (1, 12);
    place.done("create v --size 64M");
    let text = put_text(&place);
    place.cut("resize v 32M", |state, returned| {
        let length = state.file("v").expect("v").length();
        assert!(length == 32 * MIB || (length == 64 * MIB && !returned), "{length}");
        place.done("check v");
        assert_text(&place, &text);
        place.done("resize v 32M");
        place.done("check v");
    });
}

#[test]
fn commands_in_any_order_go_on_from_what_a_cut_left() {
    let name = "commands_in_any_order_go_on_from_what_a_cut_left";
    let (mut count, mut judged) = (0, 0);
    for seed in random::seeds(3) {
        let dir = tempfile::tempdir().expect("tempdir");
        let Some(mut place) = Place::new(name, dir.path()) else { return };
        (place.random, place.most) = (1, 6);
        judged += random::walk(&place, seed, 12);
        count += 1;
    }
    println!("{count} workloads of 12 commands, {judged} directories");
}

#[test]
fn copies_of_a_lane_at_work_that_are_cut_are_whole_or_none() {
    let dir = tempfile::tempdir().expect("tempdir");
    let name = "copies_of_a_lane_at_work_that_are_cut_are_whole_or_none";
    if polylane_tests::unavailable(name) {
        return;
    }
    let Some(mut place) = Place::new(name, dir.path()) else { return };
    (place.random, place.most) = (1, 20);
    live::copies(&place);
}

#[test]
fn copies_with_shared_blocks_of_a_lane_at_work_that_are_cut_are_whole_or_none() {
    let name = "copies_with_shared_blocks_of_a_lane_at_work_that_are_cut_are_whole_or_none";
    let Some(host) = HostFs::new(name, "xfs", 400 * MIB) else { return };
    let Some(mut place) = Place::new(name, &host.path()) else { return };
    (place.random, place.most) = (1, 20);
    live::copies(&place);
}

#[test]
fn a_bypass_volume_that_is_cut_while_it_is_made_is_whole_or_none() {
    let name = "a_bypass_volume_that_is_cut_while_it_is_made_is_whole_or_none";
    let Some((_host, place)) = bypass::place(name, 8) else { return };
    bypass::made(&place);
}

#[test]
fn a_bypass_volume_that_is_cut_while_it_grows_or_goes_leaves_nothing_and_harms_none() {
    let name = "a_bypass_volume_that_is_cut_while_it_grows_or_goes_leaves_nothing_and_harms_none";
    let Some((_host, place)) = bypass::place(name, 8) else { return };
    bypass::changed(&place);
}

#[test]
fn a_bypass_volume_that_is_cut_while_it_is_copied_or_mended_keeps_its_files() {
    let name = "a_bypass_volume_that_is_cut_while_it_is_copied_or_mended_keeps_its_files";
    let Some((_host, mut place)) = bypass::place(name, 8) else { return };
    bypass::copied(&mut place);
}

/// e2fsck works in place on a volume that is one file; a copy-on-write volume becomes one first.
#[test]
fn a_volume_that_is_cut_while_it_is_mended_keeps_its_files() {
    let dir = tempfile::tempdir().expect("tempdir");
    let name = "a_volume_that_is_cut_while_it_is_mended_keeps_its_files";
    let Some(mut place) = Place::new(name, dir.path()) else { return };
    (place.random, place.most) = (1, 6);
    place.done("create v --size 32M");
    let text = put_text(&place);
    place.cut("check --repair v", |_, _| {
        place.done("check --repair v");
        place.done("check v");
        assert_text(&place, &text);
    });
    place.done("snapshot v s");
    place.cut("check --repair v", |_, _| {
        place.done("check --repair v");
        place.done("check s");
        place.done("check v");
        assert_text(&place, &text);
        place.done("rm v s");
    });
}

#[test]
fn commands_on_bypass_volumes_in_any_order_go_on_from_what_a_cut_left() {
    let name = "commands_on_bypass_volumes_in_any_order_go_on_from_what_a_cut_left";
    let (mut count, mut judged) = (0, 0);
    for seed in random::seeds(1) {
        let Some((_host, mut place)) = bypass::place(name, 3) else { return };
        place.bypass = true;
        judged += random::walk(&place, seed, 7);
        count += 1;
    }
    println!("{count} workloads of 7 commands, {judged} directories");
}

#[test]
fn copies_of_an_attached_volume_that_are_cut_are_whole_or_none() {
    let dir = tempfile::tempdir().expect("tempdir");
    let name = "copies_of_an_attached_volume_that_are_cut_are_whole_or_none";
    if polylane_tests::lacks(name, &["qemu-io"]) {
        return;
    }
    let Some(mut place) = Place::new(name, dir.path()) else { return };
    (place.random, place.most) = (1, 20);
    live::copies_attached(&place);
}
