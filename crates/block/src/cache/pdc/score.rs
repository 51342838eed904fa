//! Recall and precision of a rule on requests whose journal is known.
//!
//! Blocks of [`BLOCK_BYTES`] that bypassed the cache are remembered until they are written through
//! it, to find those that are read again. Memory grows with the bypassed footprint: this is for
//! evaluation, not for the data path.

use std::collections::HashMap;

use rustc_hash::FxHashMap;

use super::{Access, Admission, Region, Rule};

/// Granularity of the search for bypassed data that is read again.
pub const BLOCK_BYTES: u64 = 4096;

/// What a rule did with a sequence of requests.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Score {
    /// Bytes written in all.
    pub written_bytes: u64,
    /// Bytes written to the journal.
    pub journal_bytes: u64,
    /// Bytes that bypassed the cache.
    pub bypassed_bytes: u64,
    /// Bytes of the journal that bypassed the cache.
    pub hit_bytes: u64,
    /// Bytes of the journal written before the first of them bypassed the cache.
    pub lead_bytes: u64,
    /// Bytes sent to the cold end.
    pub cold_bytes: u64,
    /// Bypassed bytes that were read again before they were overwritten.
    pub reread_bytes: u64,
}

impl Score {
    /// The part of the journal that bypassed the cache; `None` without a journal.
    pub fn recall(&self) -> Option<f64> {
        ratio(self.hit_bytes, self.journal_bytes)
    }

    /// The same from the first bypass on: what a longer run comes near to.
    pub fn recall_after_lead(&self) -> Option<f64> {
        ratio(self.hit_bytes, self.journal_bytes - self.lead_bytes)
    }

    /// The part of the bypassed bytes that are the journal's; `None` when nothing bypassed.
    pub fn precision(&self) -> Option<f64> {
        ratio(self.hit_bytes, self.bypassed_bytes)
    }

    /// The part of the bypassed bytes that were read again; `None` when nothing bypassed.
    pub fn reread(&self) -> Option<f64> {
        ratio(self.reread_bytes, self.bypassed_bytes)
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// A rule under test, with what is known.
pub struct Judge<R> {
    rule: R,
    journal: Vec<Region>,
    score: Score,
    bypassed: FxHashMap<u64, ()>,
}

impl<R: Rule> Judge<R> {
    /// A rule, and the ranges that its journal truly has: a write that starts inside is the
    /// journal's.
    pub fn new(rule: R, journal: impl IntoIterator<Item = Region>) -> Self {
        let journal = journal.into_iter().collect();
        Judge { rule, journal, score: Score::default(), bypassed: HashMap::default() }
    }

    /// Shows one request to the rule and counts its answer.
    pub fn observe(&mut self, now_us: u64, access: Access, range: Region) -> Admission {
        let admission = self.rule.observe(now_us, access, range);
        match access {
            Access::Write { .. } => self.written(range, admission),
            Access::Read => self.score.reread_bytes += self.take_bypassed(range) * BLOCK_BYTES,
            Access::Discard => {
                self.take_bypassed(range);
            }
            Access::Flush => {}
        }
        admission
    }

    /// Forgets the bypassed blocks in a range, which may be the whole volume; their number.
    fn take_bypassed(&mut self, range: Region) -> u64 {
        let (before, span) = (self.bypassed.len(), blocks(range));
        match span.end - span.start > before as u64 {
            true => self.bypassed.retain(|block, ()| !span.contains(block)),
            false => span.for_each(|block| {
                self.bypassed.remove(&block);
            }),
        }
        (before - self.bypassed.len()) as u64
    }

    fn written(&mut self, range: Region, admission: Admission) {
        let (bytes, score) = (range.bytes(), &mut self.score);
        let journal = self.journal.iter().any(|journal| journal.contains(range.first));
        let bypass = admission == Admission::Bypass;
        score.written_bytes += bytes;
        score.journal_bytes += if journal { bytes } else { 0 };
        score.bypassed_bytes += if bypass { bytes } else { 0 };
        score.hit_bytes += if journal && bypass { bytes } else { 0 };
        score.lead_bytes += if journal && score.hit_bytes == 0 { bytes } else { 0 };
        score.cold_bytes += if admission == Admission::Cold { bytes } else { 0 };
        for block in blocks(range) {
            match bypass {
                true => self.bypassed.insert(block, ()),
                false => self.bypassed.remove(&block),
            };
        }
    }

    /// What was counted so far.
    pub fn score(&self) -> Score {
        self.score
    }

    /// The rule.
    pub fn rule(&self) -> &R {
        &self.rule
    }
}

fn blocks(range: Region) -> std::ops::Range<u64> {
    range.first / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES)
}
