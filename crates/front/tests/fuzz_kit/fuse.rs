//! FUSE input: what a session reads from /dev/fuse is anything.
//!
//! The input is a list of messages. Each: a byte for the operation (200 and more: two bytes for any
//! number), a byte for the node (the root, a virtual directory, one that was told, any), then
//! fields: a byte says number, text or end. One byte before each message may damage its length.
//!
//! # Oracle
//!
//! - No panic: the session ends as one that was asked to.
//! - Every whole request that wants a reply gets exactly one, under its number, whose length is its
//!   own and whose error is none or an errno; nobody else gets one.
//! - Then a good request for the root is answered as ever.
//! - What was handed over is right after any input: the next service takes it in and answers.

use std::collections::BTreeSet;

use polylane_base::sync::Arc;
use polylane_front::{Handover, Lane, Survived};
use polylane_vfs::handover::Store;

use super::{Input, NAMES};
use crate::kernel::{Kernel, ROOT, vfs};

const GETATTR: u32 = 3;
const INTERRUPT: u32 = 36;
/// `FUSE_SETLKW`, which may wait for ever.
const SETLKW: u32 = 33;
/// FORGET, INTERRUPT, NOTIFY_REPLY, BATCH_FORGET: nobody waits for them.
const SILENT: [u32; 4] = [2, INTERRUPT, 41, 42];
/// Set in the number of a request that is sent again.
const RESEND: u64 = 1 << 63;

/// Longest wait for a reply, in milliseconds.
const PATIENCE_MS: i64 = 20_000;

/// Plays an input; how many of its requests were done.
///
/// # Panics
/// The oracle finds something.
pub fn play(input: &[u8]) -> u64 {
    let fd = Store::create().expect("a memfd");
    let lane = |fd| {
        let (store, records) = Store::attach(fd).expect("its own memfd");
        Lane::handed_over(vfs(), Handover::new(Arc::new(store), records, vec![], Survived::All))
    };
    let mut game =
        Game { kernel: Kernel::on(lane(&fd), 0), owed: BTreeSet::new(), told: vec![ROOT], done: 0 };
    let mut input = Input(input);
    for _ in 0..200 {
        if input.is_empty() {
            break;
        }
        game.message(&mut input);
    }
    game.settle();
    game.is_sound();
    let done = game.done;
    drop(game);
    // Its files were in memory and are gone; what else was handed over must not hurt.
    let mut next =
        Game { kernel: Kernel::on(lane(&fd), 1), owed: BTreeSet::new(), told: vec![], done: 0 };
    next.is_sound();
    done
}

struct Game {
    kernel: Kernel,
    /// Requests that want a reply and have none.
    owed: BTreeSet<u64>,
    /// Numbers that replies began with: node ids and handles, as a rule.
    told: Vec<u64>,
    /// Requests that were answered without an error.
    done: u64,
}

impl Game {
    fn message(&mut self, input: &mut Input<'_>) {
        let code = match input.u8() {
            known @ 0..200 => u32::from(known) % 54,
            _ => u32::from(input.u16()),
        };
        let node = self.number(input);
        let mut args = Vec::new();
        for _ in 0..16 {
            match input.u8() % 8 {
                0..3 => args.extend(self.number(input).to_le_bytes()),
                3 => args.extend((input.number() as u32).to_le_bytes()),
                4 => {
                    args.extend(input.pick(&NAMES));
                    args.push(0);
                }
                5 => {
                    let count = usize::from(input.u8());
                    args.extend(input.bytes(count));
                }
                6 => args.extend([0; 16]),
                _ => break,
            }
        }
        let unique = self.unique(input.u8());
        let length = match input.u8() {
            0 => input.number() as u32,
            _ => 40 + args.len() as u32,
        };
        let mut message = Vec::new();
        for word in [length, code] {
            message.extend(word.to_le_bytes());
        }
        for word in [unique, node] {
            message.extend(word.to_le_bytes());
        }
        for word in [0u32, 0, 4711, 0] {
            message.extend(word.to_le_bytes());
        }
        message.extend(args);
        let whole = length as usize == message.len();
        self.kernel.send_raw(&message);
        if whole && !SILENT.contains(&code) {
            self.owed.insert(unique);
        }
        if whole && code == SETLKW {
            self.kernel.send(INTERRUPT, 0, &unique.to_le_bytes());
        }
        self.settle();
    }

    /// A number of its own for each request; sometimes one that is sent again.
    fn unique(&mut self, how: u8) -> u64 {
        let unique = self.kernel.next_unique();
        if how == 1 { unique | RESEND } else { unique }
    }

    fn number(&self, input: &mut Input<'_>) -> u64 {
        match input.u8() % 4 {
            0 => input.number(),
            _ => self.told[usize::from(input.u8()) % self.told.len().max(1)],
        }
    }

    /// Takes replies until none is owed.
    fn settle(&mut self) {
        while !self.owed.is_empty() {
            let message = self.kernel.receive(PATIENCE_MS);
            let message = message.unwrap_or_else(|| panic!("never answered: {:?}", self.owed));
            if message.unique == 0 {
                continue;
            }
            assert!(self.owed.remove(&message.unique), "nobody asked: {message:?}");
            assert!((-4095..=0).contains(&message.error), "no errno: {message:?}");
            assert!(message.error == 0 || message.body.is_empty(), "{message:?}");
            self.done += u64::from(message.error == 0);
            if let Some(first) = message.body.first_chunk() {
                self.told.push(u64::from_ne_bytes(*first));
                // A handle follows an entry.
                if let Some(handle) = message.body.get(128..136) {
                    self.told.push(u64::from_ne_bytes(handle.try_into().expect("eight bytes")));
                }
            }
        }
    }

    fn is_sound(&mut self) {
        let unique = self.kernel.send(GETATTR, ROOT, &[0; 16]);
        self.owed.insert(unique);
        loop {
            let message = self.kernel.receive(PATIENCE_MS).expect("the root is there");
            if message.unique == unique {
                assert_eq!((message.error, message.body.len()), (0, 16 + 88));
                self.owed.clear();
                return;
            }
            assert_eq!(message.unique, 0, "nobody asked: {message:?}");
        }
    }
}
