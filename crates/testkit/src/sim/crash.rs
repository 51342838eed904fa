//! From a record to the images that a power cut may leave.
//!
//! A cut comes after some event. Of the writes that were submitted by then, those that a flush or
//! FUA made durable are on the medium. Each other one may be there, may be missing, and may be
//! there in part: any of its units of [`Tear::unit_bytes`]. Where two writes overlap, the later
//! one's submission decides, if it is there.

use std::ops::Range;

use polylane_base::rng::Rng;

use super::disk::Event;
use super::image::Image;

/// How writes may be torn.
#[derive(Clone, Debug)]
pub struct Tear {
    /// What never tears, if aligned: 512 by the block contract, 4096 on many a disk.
    pub unit_bytes: usize,
    /// A range of bytes that is a unit in itself, such as a superblock of 1024 bytes that every
    /// implementation of the format writes in place.
    pub whole: Option<Range<usize>>,
}

impl Tear {
    /// Units of `unit_bytes`.
    pub fn at(unit_bytes: usize) -> Tear {
        Tear { unit_bytes, whole: None }
    }

    /// The next border after byte `at`.
    fn unit_end(&self, at: usize) -> usize {
        let whole = self.whole.as_ref().filter(|range| range.contains(&at));
        whole.map_or((at / self.unit_bytes + 1) * self.unit_bytes, |range| range.end)
    }
}

/// What becomes of a write that is not durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It is on the medium.
    Kept,
    /// It is not.
    Lost,
    /// Some of its units are; the seed decides which.
    Torn(u64),
    /// Its first units are, so many.
    Begun(usize),
    /// All of its units are but one, counted from 0.
    Without(usize),
    /// Those of its units are whose bit is set; no more than 64 units are.
    Parts(u64),
}

impl Fate {
    /// Whether a unit, counted from 0, of a write with a part that is told exactly is there.
    fn keeps(self, unit: usize) -> bool {
        match self {
            Fate::Begun(count) => unit < count,
            Fate::Without(missing) => unit != missing,
            Fate::Parts(bits) => unit < 64 && bits >> unit & 1 == 1,
            Fate::Kept | Fate::Torn(_) => true,
            Fate::Lost => false,
        }
    }
}

#[derive(Clone)]
struct Pending<'a> {
    id: u64,
    event: &'a Event,
    completed: bool,
    durable: bool,
}

/// A cut that walks along a record.
#[derive(Clone)]
pub struct Crash<'a> {
    events: &'a [Event],
    position: usize,
    /// All that is durable, up to the first write that is not.
    stable: Image,
    pending: Vec<Pending<'a>>,
    /// Flushes in flight, each with the writes that it will make durable.
    flushes: Vec<(u64, Vec<u64>)>,
}

impl<'a> Crash<'a> {
    /// A cut before the first event, on a disk that held `base`.
    pub fn new(base: &Image, events: &'a [Event]) -> Crash<'a> {
        let (stable, pending, flushes) = (base.clone(), Vec::new(), Vec::new());
        Crash { events, position: 0, stable, pending, flushes }
    }

    /// Events before the cut.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Moves the cut behind one more event. `None` at the end; else whether the set of images that
    /// it may leave has changed.
    pub fn advance(&mut self) -> Option<bool> {
        let event = self.events.get(self.position)?;
        self.position += 1;
        Some(match event {
            Event::Write { id, .. } | Event::Zero { id, .. } => {
                let id = *id;
                self.pending.push(Pending { id, event, completed: false, durable: false });
                true
            }
            Event::Flush { id } => {
                let done = self.pending.iter().filter(|p| p.completed).map(|p| p.id).collect();
                self.flushes.push((*id, done));
                false
            }
            Event::Done { id } => self.done(*id),
        })
    }

    fn done(&mut self, id: u64) -> bool {
        if let Some(at) = self.flushes.iter().position(|(flush, _)| *flush == id) {
            let (_, covered) = self.flushes.swap_remove(at);
            self.pending.iter_mut().for_each(|p| p.durable |= covered.contains(&p.id));
        } else if let Some(pending) = self.pending.iter_mut().find(|pending| pending.id == id) {
            pending.completed = true;
            pending.durable |= is_fua(pending.event);
            if !pending.durable {
                return false;
            }
        }
        let durable = self.pending.iter().take_while(|pending| pending.durable).count();
        for pending in self.pending.drain(..durable) {
            apply(&mut self.stable, pending.event, |_| true, None);
        }
        true
    }

    /// How many writes are in doubt.
    pub fn in_doubt(&self) -> usize {
        self.pending.iter().filter(|pending| !pending.durable).count()
    }

    /// The image after the cut, with a fate for each write in doubt, oldest first.
    pub fn image(&self, tear: &Tear, mut fate: impl FnMut(usize) -> Fate) -> Image {
        let mut image = self.stable.clone();
        let mut doubt = 0;
        for pending in &self.pending {
            let decided = if pending.durable {
                Fate::Kept
            } else {
                doubt += 1;
                fate(doubt - 1)
            };
            match decided {
                Fate::Lost => {}
                Fate::Kept => apply(&mut image, pending.event, |_| true, None),
                Fate::Torn(seed) => {
                    let mut rng = Rng::new(seed);
                    apply(&mut image, pending.event, |_| rng.percent(50), Some(tear));
                }
                Fate::Begun(_) | Fate::Without(_) | Fate::Parts(_) => {
                    let mut unit = 0..;
                    let keep = |_| unit.next().is_some_and(|unit| decided.keeps(unit));
                    apply(&mut image, pending.event, keep, Some(tear));
                }
            }
        }
        image
    }

    /// Choices of fates worth trying here: nothing, everything, each write alone missing and alone
    /// there (up to `single` of each), and `random` mixtures with torn writes.
    pub fn choices(&self, rng: &mut Rng, single: usize, random: usize) -> Vec<Vec<Fate>> {
        let doubt = self.in_doubt();
        let mut choices = vec![vec![Fate::Lost; doubt]];
        if doubt == 0 {
            return choices;
        }
        choices.push(vec![Fate::Kept; doubt]);
        if doubt > 1 {
            for _ in 0..doubt.min(single) {
                let which = if doubt <= single { choices.len() / 2 - 1 } else { pick(rng, doubt) };
                let mut without = vec![Fate::Kept; doubt];
                without[which] = Fate::Lost;
                let mut only = vec![Fate::Lost; doubt];
                only[which] = Fate::Kept;
                choices.extend([without, only]);
            }
        }
        for _ in 0..random {
            let lost = rng.below(100);
            let any = |_| match rng.below(100) {
                roll if roll < lost => Fate::Lost,
                roll if roll % 3 == 0 => Fate::Torn(rng.next_u64()),
                _ => Fate::Kept,
            };
            choices.push((0..doubt).map(any).collect());
        }
        let mut torn = vec![Fate::Kept; doubt];
        torn[pick(rng, doubt)] = Fate::Torn(rng.next_u64());
        choices.push(torn);
        choices
    }
}

fn pick(rng: &mut Rng, among: usize) -> usize {
    rng.below(among as u64) as usize
}

fn is_fua(event: &Event) -> bool {
    matches!(event, Event::Write { fua: true, .. } | Event::Zero { fua: true, .. })
}

/// Puts a write on the medium: all of it, or the units that `keep` says.
fn apply(
    image: &mut Image,
    event: &Event,
    mut keep: impl FnMut(usize) -> bool,
    tear: Option<&Tear>,
) {
    let (start, end) = match event {
        Event::Write { at, data, .. } => (*at, at + data.len()),
        Event::Zero { at, len, .. } => (*at, at + len),
        Event::Flush { .. } | Event::Done { .. } => return,
    };
    let mut at = start;
    while at < end {
        let next = tear.map_or(end, |tear| tear.unit_end(at).min(end));
        if keep(at) {
            match event {
                Event::Write { data, .. } => image.write(at, &data[at - start..next - start]),
                _ => image.zero(at, next - at),
            }
        }
        at = next;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;

    fn write(id: u64, sector: usize, byte: u8, fua: bool) -> Event {
        Event::Write { id, at: sector * 512, data: Arc::from(vec![byte; 512]), fua }
    }

    /// The first byte of each of the first two sectors, in every image of the cut after `position`.
    fn outcomes(events: &[Event], position: usize) -> BTreeSet<(u8, u8)> {
        let mut crash = Crash::new(&Image::zeroed(4096), events);
        while crash.position() < position {
            crash.advance();
        }
        let doubt = crash.in_doubt();
        let look = |mask: usize| {
            let fate = |n: usize| if mask >> n & 1 == 1 { Fate::Kept } else { Fate::Lost };
            let bytes = crash.image(&Tear::at(512), fate).bytes();
            (bytes[0], bytes[512])
        };
        (0..1 << doubt).map(look).collect()
    }

    #[test]
    fn a_write_is_in_doubt_until_a_later_flush_is_done() {
        let events = [
            write(0, 0, 1, false),
            Event::Flush { id: 1 },
            Event::Done { id: 0 },
            Event::Done { id: 1 },
            Event::Flush { id: 2 },
            Event::Done { id: 2 },
        ];
        assert_eq!(outcomes(&events, 0), [(0, 0)].into());
        assert_eq!(outcomes(&events, 4), [(0, 0), (1, 0)].into(), "flushed before completion");
        assert_eq!(outcomes(&events, 6), [(1, 0)].into());
    }

    #[test]
    fn fua_is_durable_when_done_and_nothing_else_with_it() {
        let events = [
            write(0, 0, 1, false),
            Event::Done { id: 0 },
            write(1, 1, 2, true),
            Event::Done { id: 1 },
            write(2, 0, 3, true),
            Event::Done { id: 2 },
        ];
        assert_eq!(outcomes(&events, 4), [(0, 2), (1, 2)].into());
        assert_eq!(outcomes(&events, 6), [(3, 2)].into(), "an older one cannot come back");
    }

    #[test]
    fn a_tear_respects_units_and_exceptions() {
        let data: Arc<[u8]> = vec![9; 8192].into();
        let events = [Event::Write { id: 0, at: 0, data, fua: false }];
        let mut crash = Crash::new(&Image::zeroed(8192), &events);
        crash.advance();
        let tear = Tear { unit_bytes: 512, whole: Some(1024..2048) };
        for seed in 0..50 {
            let bytes = crash.image(&tear, |_| Fate::Torn(seed)).bytes();
            assert!(bytes.chunks(512).all(|sector| sector.iter().all(|b| *b == sector[0])));
            assert_eq!(bytes[1024], bytes[1536]);
        }
    }
}
