//! The table beside a map of paths, with random operations, and what damage does to it.

use std::collections::BTreeMap;

use polylane_base::rng::Rng;

use super::*;

fn entry(path: &str, number: u32) -> Entry {
    Entry {
        path: path.into(),
        source: format!("mem:{number}").into_bytes(),
        users: [&b""[..], b"0:100000:65536"][number as usize % 2].to_vec(),
        service: number,
        instance: number % 3,
        count: 1 + number % 2,
        supervisor: number,
        device: u64::from(number) << 33,
        mount: number << 3,
        unique: u64::from(number % 4) << 31,
        read_only: number.is_multiple_of(2),
        id_maps: number.is_multiple_of(3),
        kernel_cache: number.is_multiple_of(11),
        starting: number.is_multiple_of(5),
        is_ground: number.is_multiple_of(7),
        access_times: [AccessTimes::Relatime, AccessTimes::NotOfDirs, AccessTimes::Never]
            [number as usize % 3],
        id: number.wrapping_mul(7),
    }
}

/// Few names, so that paths are prefixes of each other.
fn random_path(rng: &mut Rng) -> String {
    let depth = 1 + rng.below(4);
    (0..depth).map(|_| format!("/{}", ["a", "b", "ab", "srv"][rng.below(4) as usize])).collect()
}

/// What the longest prefix is, by comparing all.
fn longest<'a>(model: &'a BTreeMap<String, Entry>, path: &str) -> Option<&'a Entry> {
    let is_prefix = |prefix: &str| {
        path.strip_prefix(prefix).is_some_and(|more| more.is_empty() || more.starts_with('/'))
    };
    let prefixes = model.iter().filter(|(prefix, _)| is_prefix(prefix));
    prefixes.max_by_key(|(prefix, _)| prefix.len()).map(|(_, entry)| entry)
}

/// Tables outlive the program that wrote them.
#[test]
fn the_sum_of_a_slot_is_that_of_its_bytes_one_after_the_other() {
    let mut rng = Rng::new(1);
    for number in 0..300 {
        let mut slot = entry(&random_path(&mut rng), number).to_slot();
        for _ in 0..rng.below(4) {
            let at = rng.below(slot.names.len() as u64) as usize;
            slot.names[at] = rng.below(2) as u8;
        }
        assert_eq!(slot.hashed(), hash(slot.as_bytes()), "{number}");
    }
}

#[test]
fn the_table_is_a_map_with_longest_prefixes() {
    for seed in 0..20 {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = Table::path(dir.path(), "p");
        let mut rng = Rng::new(seed);
        let mut model: BTreeMap<String, Entry> = BTreeMap::new();
        for number in 0..400 {
            let name = random_path(&mut rng);
            match rng.below(3) {
                0 => {
                    if let Some(table) = Table::open(&path).expect("table") {
                        table.remove(name.as_bytes()).expect("remove");
                    }
                    model.remove(&name);
                }
                _ if model.len() < MOUNTS_MAX || model.contains_key(&name) => {
                    let table = Table::open_or_make(&path).expect("table");
                    table.put(&entry(&name, number)).expect("put");
                    model.insert(name.clone(), entry(&name, number));
                }
                _ => {}
            }
            let table = Table::open(&path).expect("table");
            assert_eq!(table.is_some(), !model.is_empty(), "the file goes with the last mount");
            let Some(table) = table else { continue };
            let asked = random_path(&mut rng);
            assert_eq!(table.find(asked.as_bytes()).as_ref(), model.get(&asked));
            assert_eq!(table.find_longest(asked.as_bytes()).as_ref(), longest(&model, &asked));
            assert_eq!(table.entries().len(), model.len());
        }
    }
}

/// Programs of the same version of the table without unique numbers write and read zeros there.
#[test]
fn an_entry_of_a_program_without_unique_numbers_is_read() {
    let written = Entry { unique: 0, ..entry("/m/a", 4) };
    let slot = written.to_slot();
    assert_eq!(slot.as_bytes()[0xff4..0xffc], [0; 8]);
    assert_eq!(Entry::from_slot(&slot), Some(written));
}

#[test]
fn a_full_table_refuses_and_goes_on() {
    let dir = tempfile::tempdir().expect("tempdir");
    let table = Table::open_or_make(&Table::path(dir.path(), "p")).expect("table");
    for number in 0..MOUNTS_MAX as u32 {
        table.put(&entry(&format!("/m/{number}"), number)).expect("room");
    }
    assert!(table.put(&entry("/one/more", 1)).is_err());
    assert_eq!(table.find(b"/one/more"), None);
    table.put(&entry("/m/7", 70)).expect("the same path needs no room");
    assert_eq!(table.find(b"/m/7"), Some(entry("/m/7", 70)));
    table.remove(b"/m/8").expect("remove");
    table.put(&entry("/one/more", 1)).expect("room again");
    let long = Entry { path: vec![b'x'; NAMES_BYTES_MAX], ..entry("/", 1) };
    assert_eq!(table.put(&long).expect_err("too long").status, 2);
}

#[test]
fn the_root_is_a_prefix_of_everything() {
    let dir = tempfile::tempdir().expect("tempdir");
    let table = Table::open_or_make(&Table::path(dir.path(), "p")).expect("table");
    table.put(&entry("/", 1)).expect("put");
    assert_eq!(table.find_longest(b"/a/b"), Some(entry("/", 1)));
    assert_eq!(table.find_longest(b"/"), Some(entry("/", 1)));
    assert_eq!(table.find_longest(b""), None);
}

/// Whatever bytes change, an entry is as it was written or not there, and what was behind it in its
/// probe is still found.
#[test]
fn damaged_slots_count_as_removed() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = Table::path(dir.path(), "p");
    let table = Table::open_or_make(&path).expect("table");
    for number in 0..40 {
        table.put(&entry(&format!("/m/{number}"), number)).expect("put");
    }
    let mut rng = Rng::new(7);
    let bytes = fs::metadata(&path).expect("size").len();
    for _ in 0..200 {
        let at = SLOT_BYTES as u64 + rng.below(bytes - SLOT_BYTES as u64);
        // The state alone says that a probe ends here, so only used slots' other bytes change.
        if at % (SLOT_BYTES as u64) < 4 {
            continue;
        }
        table.file.write_all_at(&[rng.below(256) as u8], at).expect("write");
        for found in table.entries() {
            assert_eq!(found, entry(&format!("/m/{}", found.service), found.service));
        }
    }
    fs::write(&path, b"something else").expect("write");
    assert!(Table::open(&path).is_err());
}
