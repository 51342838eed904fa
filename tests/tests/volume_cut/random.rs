//! Commands in any order on a few names, with power cuts between that leave litter: each goes on
//! from what the one before left.

use std::collections::BTreeMap;
use std::process::Output;
use std::time::{Duration, Instant};

use polylane_base::rng::Rng;
use polylane_testkit::effort::{is_full, number};
use polylane_tests::cut::{Content, Record, State};

use super::place::{MIB, Place};

const NAMES: [&str; 4] = ["a", "b.img", "c", "d"];

/// What a name stands for.
#[derive(Clone, PartialEq)]
struct Known {
    content: Content,
    is_snapshot: bool,
}

/// A command, and what the one name that it changes stands for afterwards.
struct Step {
    words: String,
    name: &'static str,
    after: Option<Known>,
}

/// A directory and what was told of it.
struct Walk<'a> {
    place: &'a Place,
    rng: Rng,
    known: BTreeMap<&'static str, Known>,
    /// Directories that were judged.
    judged: usize,
    /// What was done so far: a failure shows it.
    story: Vec<String>,
}

/// `steps` commands, cut and gone on from; how many directories were judged.
pub fn walk(place: &Place, seed: u64, steps: usize) -> usize {
    let (rng, known) = (Rng::new(seed), BTreeMap::new());
    let mut walk = Walk { place, rng, known, judged: 0, story: vec![format!("seed {seed}")] };
    for _ in 0..steps {
        let step = walk.choose();
        walk.take(&step);
    }
    walk.end();
    walk.judged
}

/// Seeds for the ordinary test; in the campaign, all for so long.
pub fn seeds(ordinary: u64) -> impl Iterator<Item = u64> {
    let limit = Duration::from_secs(number("POLYLANE_CRASH_SECONDS", 600));
    let begin = Instant::now();
    (0..).take_while(move |seed| *seed < ordinary || (is_full() && begin.elapsed() < limit))
}

impl Walk<'_> {
    /// A command that what is known allows, unless others are on a volume that it removes.
    fn choose(&mut self) -> Step {
        let name = *self.rng.pick(&NAMES);
        let sources: Vec<_> = self.known.keys().copied().collect();
        let Some(known) = self.known.get(name).cloned() else {
            return self.choose_new(name, &sources);
        };
        let (words, after) = match self.rng.below(8) {
            0..3 if !known.is_snapshot => {
                let length = known.content.length() + self.rng.below(2) * 4 * MIB;
                let content = known.content.cut_to(length);
                (format!("resize {name} {length}"), Some(Known { content, ..known }))
            }
            3 => (format!("set {name} --weight {}", 1 + self.rng.below(900)), Some(known)),
            4 if self.write(name) => return self.choose(),
            _ => (format!("rm {name}"), None),
        };
        Step { words, name, after }
    }

    fn choose_new(&mut self, name: &'static str, sources: &[&'static str]) -> Step {
        let medium = match self.place.bypass && self.rng.percent(60) {
            true => " --medium bypass",
            false => "",
        };
        if sources.is_empty() || self.rng.percent(15) {
            let content = Content::default().cut_to(16 * MIB);
            let words = format!("create {name} --size 16M --fs none --weight 7{medium}");
            return Step { words, name, after: Some(Known { content, is_snapshot: false }) };
        }
        let from = *self.rng.pick(sources);
        let source = self.known[from].clone();
        let (verb, is_snapshot) = match self.rng.below(5) {
            0..2 if !source.is_snapshot => ("snapshot", true),
            _ if !medium.is_empty() => ("import", false),
            2 => ("import", false),
            _ => ("clone", false),
        };
        let after = Some(Known { is_snapshot, ..source });
        let medium = if verb == "import" { medium } else { "" };
        Step { words: format!("{verb} {from} {name}{medium}"), name, after }
    }

    /// Writes into a volume, if it is one file.
    fn write(&mut self, name: &'static str) -> bool {
        let known = &self.known[name];
        let length = self.place.dir.join(name).metadata().expect("stat").len();
        if known.is_snapshot || length != known.content.length() {
            return false;
        }
        self.place.write(name, self.rng.below(15), 1 + self.rng.below(255) as u8);
        let content = self.place.view(name).expect("whole");
        self.story.push(format!("write {name}"));
        self.known.insert(name, Known { content, is_snapshot: false });
        true
    }

    fn take(&mut self, step: &Step) {
        let (mut record, mut output) = self.record(step);
        if String::from_utf8_lossy(&output.stderr).contains("that was cut short") {
            self.place.done(&format!("rm {}", step.name));
            (record, output) = self.record(step);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            assert!(step.after.is_none() && said.contains("is the base of"), "{}", self.tell());
            return;
        }
        let mut states = record.states(&mut self.rng, self.place.random);
        let step_by = states.len().div_ceil(self.place.most);
        let first = self.rng.below(step_by as u64) as usize;
        for state in states.iter().skip(first).step_by(step_by) {
            self.judge(step, state, false);
        }
        let mut after = record.states_after(&mut self.rng);
        for state in &after {
            self.judge(step, state, true);
        }
        let goes_on = if self.rng.percent(50) { &mut after } else { &mut states };
        let state = goes_on.swap_remove(self.rng.below(goes_on.len() as u64) as usize);
        self.go_on(step, &state);
    }

    fn record(&mut self, step: &Step) -> (Record, Output) {
        let (record, output) = Record::of(&self.place.dir, &mut self.place.command(&step.words));
        let said = String::from_utf8_lossy(&output.stderr);
        self.story.push(format!("{} {said}", step.words));
        (record, output)
    }

    fn judge(&mut self, step: &Step, state: &State, returned: bool) {
        self.judged += 1;
        state.restore(&self.place.dir);
        let tell = || format!("{}: {returned}, {:?}", self.tell(), state.names());
        for (name, known) in self.known.iter().filter(|(name, _)| **name != step.name) {
            assert!(self.see(name).as_ref() == Ok(known), "{}: {name} changed", tell());
        }
        let before = self.known.get(step.name).filter(|_| !returned);
        match self.see(step.name) {
            Ok(seen) => {
                let right = Some(&seen) == before || Some(&seen) == step.after.as_ref();
                assert!(right, "{}: neither old nor new", tell());
            }
            Err(line) => {
                let there = self.place.dir.join(step.name).exists();
                let made = !returned && !self.known.contains_key(step.name);
                assert!(made || step.after.is_none(), "{}: {line}", tell());
                assert!(!there || line.contains("cut short"), "{}: {line}", tell());
            }
        }
    }

    /// Takes a directory for what is there. What is refused is removed, as its refusal says.
    fn go_on(&mut self, step: &Step, state: &State) {
        state.restore(&self.place.dir);
        self.story.push(format!("= {:?}", state.names()));
        match self.see(step.name) {
            Ok(seen) => {
                self.known.insert(step.name, seen);
            }
            Err(_) => {
                self.known.remove(step.name);
                if self.place.dir.join(step.name).exists() {
                    self.place.done(&format!("rm {}", step.name));
                }
            }
        }
    }

    /// Removes all that is there, half gone or whole; nothing is left then.
    fn end(&mut self) {
        for name in NAMES.iter().filter(|name| !self.known.contains_key(*name)) {
            if State::of(&self.place.dir).names().iter().any(|there| there.starts_with(name)) {
                let _ = self.place.volume(&format!("rm {name}"));
            }
        }
        while !self.known.is_empty() {
            let before = self.known.len();
            let place = self.place;
            self.known.retain(|name, _| !place.volume(&format!("rm {name}")).status.success());
            assert!(self.known.len() < before, "{}: nothing can be removed", self.tell());
        }
        // The first sidecar of a volume that was not stored: the next one's takes its place.
        let is_left = |name: &&&str| !name.ends_with(".polylane.new");
        let state = State::of(&self.place.dir);
        let names = state.names();
        let left: Vec<_> = names.iter().filter(is_left).collect();
        assert!(left.is_empty(), "{}: left behind: {left:?}", self.tell());
    }

    fn see(&self, name: &str) -> Result<Known, String> {
        let content = self.place.view(name)?;
        Ok(Known { content, is_snapshot: self.place.is_snapshot(name) })
    }

    fn tell(&self) -> String {
        self.story.join("\n")
    }
}
