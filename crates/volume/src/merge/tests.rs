//! Chains of snapshots against a model, with holders of the files as they were.

use std::collections::BTreeMap;

use polylane_base::rng::Rng;
use polylane_block::Sector;
use polylane_block::device::SECTOR_BYTES;
use polylane_block::image::Draft;
use polylane_block::wait::Waiter;
use polylane_sys::buffer::Buffer;

use super::super::make::introduce;
use super::super::open::open_to_read;
use super::super::stack::Assembled;
use super::super::{remove as whole, sidecar};
use super::*;
use crate::holders::Freeze;

/// The last block is cut.
const SECTORS: u64 = 2048 + 3;

/// No process serves volumes.
struct NoHolders;

impl Holders for NoHolders {
    fn freeze(&self, _: &Path) -> Result<Freeze> {
        Ok(Freeze::Nobody)
    }

    fn rebase(&self, _: &Path) -> Result<()> {
        Ok(())
    }

    fn resize(&self, _: &Path, _: u64) -> Result<Option<()>> {
        Ok(None)
    }
}

/// A directory with a volume `v` and snapshots of it, and what each holds.
struct Chain {
    dir: tempfile::TempDir,
    model: BTreeMap<String, Vec<u8>>,
    /// Names from the newest to the oldest.
    snapshots: Vec<String>,
}

impl Chain {
    fn new() -> Chain {
        let dir = tempfile::tempdir().expect("dir");
        let model = [("v".to_string(), vec![0; SECTORS as usize * SECTOR_BYTES])].into();
        let chain = Chain { dir, model, snapshots: Vec::new() };
        let draft = Draft::new(&chain.at("v"), SECTORS * SECTOR_BYTES as u64).expect("draft");
        introduce(draft, &chain.at("v"), &Sidecar::new().expect("id")).expect("volume");
        chain
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn snapshot(&mut self, name: &str) {
        let (from, to) = (self.at("v"), self.at(name));
        let mut stack = Stack::open(&from).expect("open");
        chain::tidy(&from, &stack.files[0].plain, &mut stack.sidecar).expect("tidy");
        cow::snapshot(&from, &stack.shape(), &to, &cow::Closed).expect("snapshot");
        self.model.insert(name.to_string(), self.model["v"].clone());
        self.snapshots.insert(0, name.to_string());
    }

    /// The volume, as one who has it in use has it.
    fn hold(&self) -> Assembled {
        assemble(Stack::open(&self.at("v")).expect("open"))
    }

    fn change(&mut self, rng: &mut Rng, held: &Assembled) {
        let waiter = Waiter::new(held.device.clone());
        let model = self.model.get_mut("v").expect("v");
        for _ in 0..1 + rng.below(6) {
            let start = rng.below(SECTORS);
            let most = if rng.percent(70) { 20 } else { 400 };
            let count = (1 + rng.below(most)).min(SECTORS - start);
            let bytes =
                &mut model[start as usize * SECTOR_BYTES..][..count as usize * SECTOR_BYTES];
            match rng.below(5) {
                0 => waiter.discard(Sector(start), count).expect("discard"),
                1 => waiter.write_zeroes(Sector(start), count, true).expect("zero"),
                _ => {
                    let data = vec![1 + rng.below(255) as u8; bytes.len()];
                    waiter.write(Sector(start), Buffer::copy_of(&data), false).expect("write");
                    bytes.copy_from_slice(&data);
                    continue;
                }
            }
            bytes.fill(0);
        }
        waiter.flush().expect("flush");
    }

    fn view(&self, name: &str) -> Vec<u8> {
        let path = self.at(name);
        let sidecar = Sidecar::load(&path).expect("sidecar");
        let own = open_to_read(&path, &sidecar).expect("open");
        read(&assemble(Stack::from_own(&path, own).expect("whole")))
    }

    fn assert_snapshots(&self, tell: &str) {
        for name in &self.snapshots {
            assert!(self.view(name) == self.model[name], "{tell}: {name}");
        }
    }
}

fn assemble(stack: Stack) -> Assembled {
    let (parts, _) = stack.parts().expect("files");
    Stack::assemble(parts, Way::Calls, None, CacheSpec::default(), None).expect("assemble")
}

fn read(assembled: &Assembled) -> Vec<u8> {
    let waiter = Waiter::new(assembled.device.clone());
    waiter.read(Sector(0), SECTORS as usize * SECTOR_BYTES).expect("read").to_vec()
}

/// Snapshots are taken and removed in any order, the volume is written to between, by somebody who
/// goes over to the new files or goes on over those that it has.
#[test]
fn what_stays_is_the_same_whichever_snapshots_go() {
    let (mut removed_count, mut refused) = (0, 0);
    for seed in 0..8 {
        let (mut rng, mut chain) = (Rng::new(seed), Chain::new());
        let mut held = chain.hold();
        for step in 0..40 {
            let tell = format!("seed {seed}, step {step}");
            match rng.below(4) {
                0 if chain.snapshots.len() < 12 => {
                    drop(held);
                    chain.snapshot(&format!("s{step}"));
                    held = chain.hold();
                }
                1 if !chain.snapshots.is_empty() => {
                    let at = rng.below(chain.snapshots.len() as u64) as usize;
                    let name = chain.snapshots[at].clone();
                    let before = chain.view(&name);
                    let removed = whole::remove(&chain.at(&name), false, &NoHolders);
                    if at == 0 {
                        let line = removed.expect_err("the newest").line;
                        assert!(line.contains("is the base of"), "{tell}: {line}");
                        assert!(chain.view(&name) == before, "{tell}");
                        refused += 1;
                        continue;
                    }
                    removed.unwrap_or_else(|failure| panic!("{tell}: {name}: {failure}"));
                    chain.snapshots.remove(at);
                    assert!(!chain.at(&name).exists(), "{tell}");
                    assert!(!sidecar::path_of(&chain.at(&name)).exists(), "{tell}");
                    removed_count += 1;
                    // By the files as they were.
                    assert!(read(&held) == chain.model["v"], "{tell}: the former files");
                    if rng.percent(60) {
                        go_over(&chain, &held);
                        assert!(read(&held) == chain.model["v"], "{tell}: the new files");
                    }
                    chain.assert_snapshots(&tell);
                }
                _ => {
                    chain.change(&mut rng, &held);
                    assert!(read(&held) == chain.model["v"], "{tell}: v");
                }
            }
        }
        drop(held);
        assert!(chain.view("v") == chain.model["v"], "seed {seed}: v");
        chain.assert_snapshots("at the end");
        let own = chain.at("v");
        whole::remove(&own, false, &NoHolders).expect("the volume");
        for name in &chain.snapshots {
            whole::remove(&chain.at(name), false, &NoHolders).expect("a snapshot");
        }
        let left = fs::read_dir(chain.dir.path()).expect("list").count();
        assert_eq!(left, 0, "seed {seed}: left behind");
    }
    assert!(removed_count > 30 && refused > 5, "{removed_count} removed, {refused} refused");
}

fn go_over(chain: &Chain, held: &Assembled) {
    let path = chain.at("v");
    let own = std::fs::File::open(&path).expect("open").into();
    let bases = Stack::bases(&path, &own, &Sidecar::load(&path).expect("sidecar")).expect("bases");
    let below = Stack::below(bases, Way::Calls, CacheSpec::default()).expect("assemble");
    held.base.as_ref().expect("a base").replace(below.expect("bases")).expect("replace");
}

/// A snapshot that a clone is on too, or that somebody reads, stays as it is.
#[test]
fn a_snapshot_that_others_need_is_refused_and_stays() {
    let mut chain = Chain::new();
    let mut rng = Rng::new(1);
    for name in ["a", "b", "c"] {
        let held = chain.hold();
        chain.change(&mut rng, &held);
        drop(held);
        chain.snapshot(name);
    }
    let refused = |chain: &Chain, why: &str| {
        let line = whole::remove(&chain.at("a"), false, &NoHolders).expect_err(why).line;
        assert!(line.contains(why), "{line}");
        assert!(!Sidecar::load(&chain.at("a")).expect("sidecar").removing);
        line
    };
    for name in ["a", "b"] {
        let read = image::open_snapshot(&chain.at(name)).expect("a reader");
        refused(&chain, &format!("{name}: in use by"));
        drop(read);
    }
    let own = image::open_snapshot(&chain.at("a")).expect("open");
    let shape = Stack::from_own(&chain.at("a"), own).expect("whole").shape();
    cow::clone(&chain.at("a"), shape, &chain.at("clone"), &cow::Closed).expect("clone");
    refused(&chain, "a: is the base of");
    let before = chain.view("clone");
    // The clone is on one that goes: it is not asked for.
    whole::remove(&chain.at("b"), false, &NoHolders).expect("between two others");
    chain.snapshots.retain(|name| name != "b");
    chain.assert_snapshots("without b");
    assert!(chain.view("clone") == before);
    whole::remove(&chain.at("clone"), false, &NoHolders).expect("the clone");
    whole::remove(&chain.at("a"), false, &NoHolders).expect("the oldest");
    chain.snapshots.retain(|name| name != "a");
    chain.assert_snapshots("without a");
    assert!(chain.view("v") == chain.model["v"]);
}

/// One whose removal was cut short is no volume any more, but a base.
#[test]
fn a_snapshot_that_is_half_gone_is_refused_by_all_but_who_removes_it() {
    let mut chain = Chain::new();
    let mut rng = Rng::new(2);
    for name in ["a", "b"] {
        let held = chain.hold();
        chain.change(&mut rng, &held);
        drop(held);
        chain.snapshot(name);
    }
    Sidecar::change(&chain.at("a"), |sidecar| sidecar.removing = true).expect("mark");
    let own = image::open_snapshot(&chain.at("a")).expect("open");
    let line = Stack::from_own(&chain.at("a"), own).expect_err("half gone").line;
    assert!(line.contains("its removal was cut short: 'polylane volume rm"), "{line}");
    assert!(chain.view("b") == chain.model["b"] && chain.view("v") == chain.model["v"]);
    whole::remove(&chain.at("a"), false, &NoHolders).expect("goes on");
    chain.snapshots.retain(|name| name != "a");
    chain.assert_snapshots("without a");
    assert_eq!(Sidecar::load(&chain.at("b")).expect("sidecar").overlays, []);
}
