//! Spare frames: in one the client of a loan writes anew what a page holds, and then has the page
//! lie there. `ipc/view/spare.rs`.

use std::collections::HashSet;

use polylane_ipc::ServiceChannel;
use polylane_ipc::view::{Taken, tag};

use super::{FramesLeft, PAGE, Piece, State};

/// Entries that are looked at for one whose frame can be the spare one.
const LOOKS: usize = 1024;

impl State {
    /// Gives the client of a loan that begins a frame in which no page lies: the one that it had,
    /// one that nobody uses, or that of a page that is shown no more. Without one it asks for each
    /// change of what is there.
    pub(in super::super) fn let_switch(
        &mut self,
        channel: &ServiceChannel,
        left: &FramesLeft,
        number: u32,
    ) {
        let had = self.get(number).and_then(|view| view.spare);
        let unused = had.or_else(|| self.take_frame(channel, left));
        let spare = unused.or_else(|| self.give_up_frame(channel));
        if let Some(view) = self.get(number) {
            view.spare = spare;
        }
        channel.views().put_spare(number, spare);
    }

    /// The frame of a page to which no client can be writing, and which is shown no more.
    fn give_up_frame(&mut self, channel: &ServiceChannel) -> Option<u32> {
        let (start, all) = (self.hand, self.frames.len());
        let mut entries = (0..LOOKS.min(all)).map(|n| start.wrapping_add(n) % all);
        let entry = entries.find(|&at| self.frame(at).tag != 0 && self.is_quiet(at))?;
        self.hand = entry + 1;
        self.take_out(channel, entry)
    }

    /// Takes what a client wrote on loan: the pages that it says it wrote, in the order of the
    /// file, those side by side in one piece. Their frames stay as long as the loan is not over.
    /// The client does not change them any more. Whether it may again with the next loan: all have
    /// `left`, and it has the frames that it was given.
    pub(in super::super) fn take_written(
        &mut self,
        channel: &ServiceChannel,
        number: u32,
        left: bool,
    ) -> (Vec<Piece>, bool) {
        let Some(view) = self.get(number) else { return (Vec::new(), left) };
        let first = tag(view.generation, 0).unwrap_or(0);
        let mut entries = std::mem::take(&mut view.writable);
        entries.retain(|&entry| self.frame(entry).writable && self.is_mine(entry, number));
        // Where a thread is inside, what it writes next must fail. Most pages of a loan that ends
        // with a sync were not written since the one before: those are looked at and no more.
        let is_due = |&entry: &usize| !left || channel.views().is_written(entry);
        let mut known = HashSet::new();
        // One that was given up and lent anew is there twice.
        let due = entries.iter().copied().filter(|entry| is_due(entry) && known.insert(*entry));
        let taken: Vec<(usize, Taken)> =
            due.map(|entry| (entry, channel.views().take_back(entry))).collect();
        let written = taken.iter().filter(|(_, taken)| taken.written);
        let lies = |(entry, taken): &(usize, Taken)| {
            let there = taken.frame < channel.geometry().frames;
            let frame = self.frame(*entry);
            (frame.tag - first, if there { taken.frame } else { frame.number })
        };
        let mut pages: Vec<(u64, u32)> = written.map(lies).collect();
        pages.sort_unstable();
        let sound = self.follow(number, &taken);
        if left && sound {
            let again = |(entry, _): &(usize, Taken)| (*entry, self.frame(*entry).number);
            taken.iter().map(again).for_each(|(at, frame)| channel.views().let_write(at, frame));
        }
        if let Some(view) = self.get(number) {
            view.writable = entries;
        }
        let runs = pages.chunk_by(|one, next| one.0 + 1 == next.0);
        let frames = |run: &[(u64, u32)]| run.iter().map(|(_, frame)| *frame).collect();
        let piece = |run: &[(u64, u32)]| Piece { offset: run[0].0 * PAGE, frames: frames(run) };
        (runs.map(piece).collect(), left && sound)
    }

    /// Notes where the pages lie that were taken back from a client, after it has switched some
    /// over. False: it names other frames than those that it has. What it wrote is what lies there,
    /// but which frame holds what is not known any more.
    fn follow(&mut self, number: u32, taken: &[(usize, Taken)]) -> bool {
        let moves = |(entry, taken): &&(usize, Taken)| self.frame(*entry).number != taken.frame;
        let moved: Vec<(usize, u32)> =
            taken.iter().filter(moves).map(|(entry, taken)| (*entry, taken.frame)).collect();
        if moved.is_empty() {
            return true;
        }
        let Some(spare) = self.get(number).and_then(|view| view.spare) else { return false };
        let former = moved.iter().map(|(entry, _)| self.frame(*entry).number);
        let mut had: Vec<u32> = former.chain([spare]).collect();
        let mut used: Vec<u32> = moved.iter().map(|(_, frame)| *frame).collect();
        had.sort_unstable();
        used.sort_unstable();
        let Some(spare) = the_other(&had, &used) else { return false };
        for (entry, number) in moved {
            self.change(entry, |frame| frame.number = number);
        }
        if let Some(view) = self.get(number) {
            view.spare = Some(spare);
        }
        true
    }
}

/// The one of `had` that is not in `used`, where all of `used` and one more are in `had`. Both are
/// in order.
fn the_other(had: &[u32], used: &[u32]) -> Option<u32> {
    let same = had.iter().zip(used).take_while(|(had, used)| had == used).count();
    let (other, behind) = had.get(same..)?.split_first()?;
    (behind == &used[same..]).then_some(*other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_the_frames_that_it_was_given() {
        for (had, used, other) in [
            (&[3, 7][..], &[7][..], Some(3)),
            (&[3, 7], &[3], Some(7)),
            (&[1, 3, 7], &[1, 7], Some(3)),
            (&[3, 7], &[9], None),
            (&[1, 3, 7], &[3, 3], None),
            (&[1, 3, 7], &[1, 1], None),
            (&[3], &[3], None),
            (&[5], &[], Some(5)),
        ] {
            assert_eq!(the_other(had, used), other, "{had:?} {used:?}");
        }
    }
}
