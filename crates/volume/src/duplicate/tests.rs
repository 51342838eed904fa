//! Copies beside processes that have the volume open, and end.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;

use super::*;

/// A directory with a volume `v`.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().expect("dir"));
        let draft = Draft::new(&place.at("v"), 1 << 20).expect("draft");
        introduce(draft, &place.at("v"), &Sidecar::new().expect("id")).expect("volume");
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn open(&self) -> Files {
        image::open(&self.at("v")).expect("open")
    }
}

/// What is said of the volume, in turn, each time that it is asked for; then that nobody has it.
struct Says {
    next: RefCell<Vec<Freeze>>,
    asked: Cell<u32>,
    /// Who has the volume open, for so long from the first question on.
    has: RefCell<Option<(Files, Duration)>>,
    since: Cell<Option<Instant>>,
    /// How long each question takes.
    takes: Duration,
}

impl Says {
    fn new(next: Vec<Freeze>, has: Files, lasts: Duration) -> Says {
        let has = RefCell::new(Some((has, lasts)));
        let (asked, since) = (Cell::new(0), Cell::new(None));
        Says { next: next.into(), asked, has, since, takes: Duration::ZERO }
    }
}

impl Holders for Says {
    fn freeze(&self, _: &Path) -> Result<Freeze> {
        self.asked.set(self.asked.get() + 1);
        let since = self.since.get().unwrap_or_else(Instant::now);
        self.since.set(Some(since));
        thread::sleep(self.takes);
        self.has.borrow_mut().take_if(|(_, lasts)| since.elapsed() >= *lasts);
        Ok(self.next.borrow_mut().pop().unwrap_or(Freeze::Nobody))
    }

    fn rebase(&self, _: &Path) -> Result<()> {
        Ok(())
    }

    fn resize(&self, _: &Path, _: u64) -> Result<Option<()>> {
        Ok(None)
    }
}

/// Its server ends over the exchange of the names, before or after it is done.
struct Ends {
    after: bool,
}

impl Exchange for Ends {
    fn exchange(&self, from: &Path, base: &Path, top: &Files) -> Result<()> {
        if self.after {
            cow::Closed.exchange(from, base, top)?;
        }
        Err(Failure::failed("the process that has it has ended"))
    }
}

impl Still for Ends {
    fn thaw(&self, _: &Path) -> Result<()> {
        Err(Failure::failed("the process that has it has ended"))
    }

    fn has_ended(&self) -> bool {
        true
    }
}

#[test]
fn a_volume_that_a_stranger_has_is_refused_after_few_questions() {
    let place = Place::new();
    let says = Says::new(Vec::new(), place.open(), Duration::MAX);
    let refused = duplicate(&place.at("v"), &place.at("s"), Copy::Snapshot, &says);
    let line = refused.expect_err("in use").line;
    assert!(line.contains("in use"), "{line}");
    // At 0, 10, 30, 70, 150, 310, 630 and 1270 ms, or later.
    assert!(says.asked.get() <= 8, "{} questions", says.asked.get());
}

/// What it had not written back yet takes it longer than a stranger is waited for.
#[test]
fn a_server_that_ends_is_waited_for() {
    let takes = LET_GO_TIME_MAX + Duration::from_millis(500);
    for first in [Freeze::Ended, Freeze::Still(Box::new(Ends { after: false }))] {
        let place = Place::new();
        let says = Says::new(vec![first], place.open(), takes);
        duplicate(&place.at("v"), &place.at("s"), Copy::Snapshot, &says).expect("a copy");
        assert!(place.at("s").exists());
        image::open(&place.at("v")).expect("open");
    }
}

#[test]
fn a_volume_whose_servers_all_end_is_refused_after_some() {
    let place = Place::new();
    let ends = (0..ENDS_MAX * 2).map(|_| Freeze::Ended).collect();
    let says = Says::new(ends, place.open(), Duration::MAX);
    let refused = duplicate(&place.at("v"), &place.at("s"), Copy::Snapshot, &says);
    let line = refused.expect_err("no server stays").line;
    assert!(line.contains("each process that has it ends"), "{line}");
    assert_eq!(says.asked.get() as usize, ENDS_MAX);
}

/// The one question that finds nobody takes longer than a stranger is waited for: a keeper that
/// ends answers late, and the file is free by then.
#[test]
fn a_volume_that_got_free_while_it_was_asked_for_is_opened() {
    let place = Place::new();
    let mut says = Says::new(Vec::new(), place.open(), LET_GO_TIME_MAX);
    says.takes = LET_GO_TIME_MAX + Duration::from_millis(200);
    duplicate(&place.at("v"), &place.at("s"), Copy::Snapshot, &says).expect("a copy");
    assert_eq!(says.asked.get(), 1);
}

/// The names were exchanged, and then its clone cannot be made. A volume on a base, whose blocks
/// are shared by no host.
#[test]
fn an_exchange_that_its_server_did_not_outlive_is_not_done_again() {
    let place = Place::new();
    let shape = Stack::open(&place.at("v")).expect("open").shape();
    cow::snapshot(&place.at("v"), &shape, &place.at("s"), &cow::Closed).expect("snapshot");
    let still = Freeze::Still(Box::new(Ends { after: true }));
    let says = Says::new(vec![still], place.open(), Duration::ZERO);
    let clone = duplicate(&place.at("v"), &place.at("gone/c"), Copy::Clone, &says);
    let line = clone.expect_err("there is no such directory").line;
    assert!(line.contains("/gone"), "{line}");
    let bases = fs::read_dir(place.0.path()).expect("list").flatten();
    let bases = bases.filter(|entry| {
        let name = entry.file_name().into_string().expect("text");
        name.contains(".base-") && !name.ends_with(".polylane")
    });
    assert_eq!((bases.count(), says.asked.get()), (1, 1));
}
