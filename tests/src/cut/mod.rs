//! Power cuts under commands that change files and names of the host: a record of what a command
//! did to one directory, taken with strace(1), and the directories that a power cut may leave.
//!
//! The host that is played promises no more than POSIX: what was written to a file may be missing
//! or there in part until that file was synced; a change of names (a file made, linked, renamed,
//! exchanged, removed) is there or not, whatever became of earlier ones, until its directory was
//! synced. Hosts with one log for all names do better. Writes that follow each other in one page of
//! a file are one: a host writes pages.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::{Command, Output};
use std::rc::Rc;

use polylane_base::rng::Rng;

mod trace;
mod written;

use trace::Reader;
use written::Written;

/// What is written, lost or torn as one.
const UNIT: usize = 4096;

/// A file's content: its units that are not zeros.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Content {
    length: u64,
    units: BTreeMap<u64, Rc<Vec<u8>>>,
    written: Written,
}

impl Content {
    /// Reads a file.
    ///
    /// # Panics
    /// It cannot be read.
    pub fn of(path: &Path) -> Content {
        let mut file = fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let length = file.metadata().expect("stat").len();
        let mut content = Content { length, ..Content::default() };
        let mut unit = [0; UNIT];
        for number in 0..length.div_ceil(UNIT as u64) {
            let at = number * UNIT as u64;
            let size = (length - at).min(UNIT as u64) as usize;
            file.seek(SeekFrom::Start(at)).expect("seek");
            file.read_exact(&mut unit[..size]).expect("read");
            content.write(at, &unit[..size]);
        }
        content.written = Written::of(&file);
        content
    }

    /// Where this is first unlike another content, for whoever reads of a failure.
    fn difference(&self, other: &Content) -> Option<String> {
        if self.length != other.length {
            return Some(format!("length {}, is {}", self.length, other.length));
        }
        let all = self.units.keys().chain(other.units.keys());
        let unit = all.filter(|unit| self.units.get(unit) != other.units.get(unit)).min()?;
        let is =
            |content: &Content| if content.units.contains_key(unit) { "data" } else { "zeros" };
        Some(format!("unit {unit}, {}, is {}", is(self), is(other)))
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    fn write(&mut self, mut at: u64, mut bytes: &[u8]) {
        let end = (at + bytes.len() as u64).div_ceil(UNIT as u64);
        self.written.add(at / UNIT as u64..end);
        self.length = self.length.max(at + bytes.len() as u64);
        while !bytes.is_empty() {
            let inside = (at % UNIT as u64) as usize;
            let (piece, rest) = bytes.split_at(bytes.len().min(UNIT - inside));
            self.write_unit(at / UNIT as u64, inside, piece);
            (at, bytes) = (at + piece.len() as u64, rest);
        }
    }

    fn write_unit(&mut self, number: u64, inside: usize, piece: &[u8]) {
        let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        match self.units.get_mut(&number) {
            Some(unit) => {
                Rc::make_mut(unit)[inside..inside + piece.len()].copy_from_slice(piece);
            }
            None if is_zero(piece) => return,
            None => {
                let mut unit = vec![0; UNIT];
                unit[inside..inside + piece.len()].copy_from_slice(piece);
                self.units.insert(number, Rc::new(unit));
            }
        }
        if self.units.get(&number).is_some_and(|unit| is_zero(unit)) {
            self.units.remove(&number);
        }
    }

    fn zero(&mut self, at: u64, length: u64) {
        let end = (at + length).min(self.length);
        let (first, last) = (at.div_ceil(UNIT as u64), end / UNIT as u64);
        if first >= last {
            let length = self.length;
            self.write(at, &vec![0; end.saturating_sub(at) as usize]);
            self.length = length;
            return;
        }
        self.units.retain(|number, _| !(first..last).contains(number));
        self.written.remove(first..last);
        self.write(at, &vec![0; (first * UNIT as u64 - at) as usize]);
        self.write(last * UNIT as u64, &vec![0; (end - last * UNIT as u64) as usize]);
    }

    fn set_length(&mut self, length: u64) {
        let old = std::mem::replace(&mut self.length, length);
        if length < old {
            let kept = self.units.split_off(&length.div_ceil(UNIT as u64));
            drop(kept);
            self.written.remove(length.div_ceil(UNIT as u64)..u64::MAX);
            let rest = (UNIT as u64 - length % UNIT as u64) % UNIT as u64;
            self.write(length, &vec![0; rest as usize]);
            self.length = length;
        }
    }

    /// The content up to `length`, zeros behind a shorter one.
    #[must_use]
    pub fn cut_to(&self, length: u64) -> Content {
        let mut content = self.clone();
        content.set_length(length);
        content
    }

    fn store(&self, path: &Path) {
        let mut file = fs::File::create(path).expect("create");
        for (number, unit) in &self.units {
            let at = number * UNIT as u64;
            let size = (self.length - at).min(UNIT as u64) as usize;
            file.seek(SeekFrom::Start(at)).expect("seek");
            file.write_all(&unit[..size]).expect("write");
        }
        // Of a file that is to have all its blocks it matters where zeros were written.
        let fills = path.extension().is_some_and(|extension| extension == "pool");
        let units =
            self.written.units().take_while(|unit| fills && unit * (UNIT as u64) < self.length);
        for number in units.filter(|number| !self.units.contains_key(number)) {
            file.seek(SeekFrom::Start(number * UNIT as u64)).expect("seek");
            file.write_all(&[0; UNIT]).expect("write");
        }
        file.set_len(self.length).expect("size");
    }
}

/// The name of a file in the directory.
type Name = String;
type Inode = usize;

/// One thing that a command did.
#[derive(Clone, Debug)]
enum Event {
    Write(Inode, u64, Vec<u8>),
    Length(Inode, u64),
    Zero(Inode, u64, u64),
    /// All of another file's content, shared.
    Share(Inode, Content),
    /// Of a file, for what had been done when it began: so many events.
    Sync(Inode, usize),
    /// The event of this number is durable.
    Through(usize),
    /// Names that mean other files from here on, all at once.
    Names(Vec<(Name, Option<Inode>)>),
    /// For what had been done when it began.
    SyncNames(usize),
}

/// What a directory holds.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct State {
    files: BTreeMap<Name, Content>,
}

impl State {
    /// Reads a directory of regular files.
    ///
    /// # Panics
    /// It cannot be read.
    pub fn of(dir: &Path) -> State {
        let entries = fs::read_dir(dir).expect("list").flatten();
        let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        let read = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().expect("UTF-8");
            (name, Content::of(&entry.path()))
        };
        State { files: files.map(read).collect() }
    }

    /// Makes a directory hold this and no other file.
    ///
    /// # Panics
    /// The host fails.
    pub fn restore(&self, dir: &Path) {
        for entry in fs::read_dir(dir).expect("list").flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                fs::remove_file(entry.path()).expect("remove");
            }
        }
        self.files.iter().for_each(|(name, content)| content.store(&dir.join(name)));
    }

    /// What a name stands for.
    pub fn file(&self, name: &str) -> Option<&Content> {
        self.files.get(name)
    }

    /// All names.
    pub fn names(&self) -> Vec<&str> {
        self.files.keys().map(String::as_str).collect()
    }
}

/// What one command did to a directory.
pub struct Record {
    before: State,
    inodes: Vec<Content>,
    first_names: BTreeMap<Name, Inode>,
    events: Vec<Event>,
    marks: Vec<usize>,
}

/// A change that no sync has made durable yet, and whether it is there after the cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lost,
    Kept,
    Torn(u64),
}

impl Record {
    /// Runs a command in `dir` and records what it does to the files there.
    ///
    /// # Panics
    /// strace cannot be run, or says what this does not understand; the command did more than
    /// was seen.
    pub fn of(dir: &Path, command: &mut Command) -> (Record, Output) {
        let before = State::of(dir);
        let log = tempfile::NamedTempFile::new().expect("file");
        let mut traced = Command::new("strace");
        traced.args(["-f", "-qq", "-y", "-xx", "-s", "16777216", "-e", trace::CALLS]);
        traced.args(["-e", trace::NO_RINGS, "-e", trace::NO_PINS, "-o"]);
        traced.arg(log.path()).arg(command.get_program()).args(command.get_args());
        let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
        let output = traced.envs(set).current_dir(dir).output().expect("run strace");
        let mut reader = Reader::new(dir, &before);
        let text = fs::read_to_string(log.path()).expect("strace's output");
        reader.read(&text);
        let Reader { first, first_names, events, live, names, marks, .. } = reader;
        let after = State::of(dir);
        let seen = names.iter().map(|(name, inode)| (name.clone(), live[*inode].clone()));
        let seen = State { files: seen.collect() };
        assert!(seen.names() == after.names(), "{:?} {:?}", seen.names(), after.names());
        for (name, content) in &after.files {
            let difference = seen.files[name].difference(content);
            assert!(difference.is_none(), "{command:?}: {name}: {difference:?} was not seen");
        }
        (Record { before, inodes: first, first_names, events, marks }, output)
    }

    /// Every directory that a power cut may leave, at any moment of the command or right after it:
    /// of up to five changes in doubt then every combination, of more nothing, all, some alone,
    /// some alone missing; and `random` mixtures with torn writes. Equal ones once.
    pub fn states(&self, rng: &mut Rng, random: usize) -> Vec<State> {
        let found = self.states_between(0..=self.events.len(), rng, random);
        found.into_iter().map(|(state, _)| state).collect()
    }

    /// The same for cuts after so many changes alone, each with how many marks had been made then:
    /// files called `mark-…` beside the directory.
    pub fn states_between(
        &self,
        cuts: RangeInclusive<usize>,
        rng: &mut Rng,
        random: usize,
    ) -> Vec<(State, usize)> {
        let mut found = HashMap::new();
        for cut in cuts {
            let marks = self.marks.iter().filter(|mark| **mark <= cut).count();
            for state in self.states_at(cut, rng, random) {
                let order = found.len();
                found.entry(state).or_insert((order, marks)).1 = marks;
            }
        }
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort_by_key(|(_, (order, _))| *order);
        found.into_iter().map(|(state, (_, marks))| (state, marks)).collect()
    }

    /// How many changes there had been when each mark was made.
    pub fn marks(&self) -> &[usize] {
        &self.marks
    }

    /// The directories that a power cut may leave once the command has returned.
    pub fn states_after(&self, rng: &mut Rng) -> Vec<State> {
        self.states_at(self.events.len(), rng, 2)
    }

    /// How many changes of files and names were recorded.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing was changed.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    fn states_at(&self, cut: usize, rng: &mut Rng, random: usize) -> Vec<State> {
        let doubt = self.doubt(cut);
        let count = doubt.iter().filter(|doubt| **doubt).count();
        fates(count, rng, random).into_iter().map(|fates| self.state(cut, &doubt, &fates)).collect()
    }

    /// Of each event before the cut, whether it is in doubt.
    fn doubt(&self, cut: usize) -> Vec<bool> {
        let mut doubt = vec![false; cut];
        for (at, event) in self.events[..cut].iter().enumerate() {
            doubt[at] = event.inode().is_some() || matches!(event, Event::Names(_));
            match event {
                Event::Through(which) => doubt[*which] = false,
                Event::SyncNames(begun) => {
                    let is_names = |earlier: &Event| matches!(earlier, Event::Names(_));
                    self.settle(&mut doubt[..*begun], is_names);
                }
                Event::Sync(inode, begun) => {
                    self.settle(&mut doubt[..*begun], |earlier| earlier.inode() == Some(*inode));
                }
                _ => {}
            }
        }
        doubt
    }

    fn settle(&self, doubt: &mut [bool], is_durable: impl Fn(&Event) -> bool) {
        for (event, doubtful) in self.events.iter().zip(doubt) {
            *doubtful &= !is_durable(event);
        }
    }

    fn state(&self, cut: usize, doubt: &[bool], fates: &[Fate]) -> State {
        let (mut files, mut names) = (self.inodes.clone(), self.first_names.clone());
        let mut fates = fates.iter();
        for (event, doubtful) in self.events[..cut].iter().zip(doubt) {
            let fate = if *doubtful { *fates.next().expect("one each") } else { Fate::Kept };
            event.apply(&mut files, &mut names, fate);
        }
        let files = names.iter().map(|(name, inode)| (name.clone(), files[*inode].clone()));
        State { files: files.collect() }
    }

    /// The directory before the command.
    pub fn before(&self) -> &State {
        &self.before
    }
}

/// What may become of so many changes in doubt: of a few each there or not, in every combination.
fn fates(count: usize, rng: &mut Rng, random: usize) -> Vec<Vec<Fate>> {
    const SINGLE: usize = 8;
    const EVERY: usize = 5;
    if count <= EVERY {
        let fate = |set: usize, at: usize| if set >> at & 1 == 1 { Fate::Kept } else { Fate::Lost };
        let every = (0..1 << count).map(|set| (0..count).map(|at| fate(set, at)).collect());
        let every: Vec<_> = every.collect();
        let torn = (0..random.min(count)).map(|_| mixture(count, rng));
        return every.into_iter().chain(torn).collect();
    }
    let mut all = vec![vec![Fate::Lost; count], vec![Fate::Kept; count]];
    for _ in 0..SINGLE {
        let which = rng.below(count as u64) as usize;
        for (rest, one) in [(Fate::Kept, Fate::Lost), (Fate::Lost, Fate::Kept)] {
            let mut fates = vec![rest; count];
            fates[which] = one;
            all.push(fates);
        }
    }
    all.extend((0..random).map(|_| mixture(count, rng)));
    all
}

fn mixture(count: usize, rng: &mut Rng) -> Vec<Fate> {
    let mut any = |_| match rng.below(3) {
        0 => Fate::Lost,
        1 => Fate::Kept,
        _ => Fate::Torn(rng.next_u64()),
    };
    (0..count).map(&mut any).collect()
}

impl Event {
    fn inode(&self) -> Option<Inode> {
        match self {
            Event::Write(inode, ..) | Event::Length(inode, _) | Event::Zero(inode, ..) => {
                Some(*inode)
            }
            Event::Share(inode, _) => Some(*inode),
            Event::Sync(..) | Event::Through(_) | Event::Names(_) | Event::SyncNames(_) => None,
        }
    }

    fn apply(&self, files: &mut [Content], names: &mut BTreeMap<Name, Inode>, fate: Fate) {
        if fate == Fate::Lost {
            return;
        }
        match self {
            Event::Write(inode, at, bytes) => tear(&mut files[*inode], *at, bytes, fate),
            Event::Length(inode, length) => files[*inode].set_length(*length),
            Event::Zero(inode, at, length) => files[*inode].zero(*at, *length),
            Event::Share(inode, content) => files[*inode] = content.clone(),
            Event::Sync(..) | Event::Through(_) | Event::SyncNames(_) => {}
            Event::Names(changes) => change(names, changes),
        }
    }
}

fn change(names: &mut BTreeMap<Name, Inode>, changes: &[(Name, Option<Inode>)]) {
    for (name, inode) in changes {
        match inode {
            Some(inode) => names.insert(name.clone(), *inode),
            None => names.remove(name),
        };
    }
}

/// Writes all of it, or some of its units.
fn tear(file: &mut Content, at: u64, bytes: &[u8], fate: Fate) {
    let Fate::Torn(seed) = fate else { return file.write(at, bytes) };
    let mut rng = Rng::new(seed);
    let (mut at, mut bytes) = (at, bytes);
    while !bytes.is_empty() {
        let inside = (at % UNIT as u64) as usize;
        let (piece, rest) = bytes.split_at(bytes.len().min(UNIT - inside));
        if rng.percent(50) {
            file.write(at, piece);
        }
        (at, bytes) = (at + piece.len() as u64, rest);
    }
}

impl Content {
    fn read(&self, at: u64, length: u64) -> Vec<u8> {
        let byte = |offset: u64| {
            let unit = self.units.get(&(offset / UNIT as u64));
            unit.map_or(0, |unit| unit[(offset % UNIT as u64) as usize])
        };
        (at..at + length).map(byte).collect()
    }
}
