//! Answers about paths that are known to hold: stat and access without a request.
//!
//! An answer comes with a mark: three counts in memory that the service shows, added up. As long as
//! the sum is the same, the service would answer the same (`docs/design/client-cache.md`). What
//! is asked for once only is not worth a mark, so the first question leaves no more than its hash.
//!
//! # Invariants
//!
//! - An entry has a sequence number, odd while it changes. A thread that finds it odd takes the
//!   entry for absent.
//! - An answer is given to the session that it was asked in: another may be of another identity.
//! - What a dead service showed counts no more: whether it is dead is looked at last.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use polylane_base::Errno;
use polylane_ipc::message::{IS_MARK, Reply, Status, WireAttr};
use zerocopy::FromZeros;
use zerocopy::little_endian::U64;

use crate::fd::at::At;
use crate::kernel::config;
use crate::session::Session;

/// Entries; each question has one place.
const ENTRIES: usize = 1024;
/// Longer paths are asked for.
const PATH_BYTES_MAX: usize = 8 * PATH_WORDS;
pub(crate) const PATH_WORDS: usize = 24;

/// What is asked of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Question {
    /// Its state; `follow`: of what a link at its end leads to.
    Stat { follow: bool },
    /// Whether it may be used so: the mask of access(2).
    Access { follow: bool, mask: u32 },
    /// Which file an open with these flags gives, as far as `handles` lets them differ.
    Open { flags: i32 },
}

impl Question {
    fn to_word(self) -> u64 {
        match self {
            Question::Stat { follow } => u64::from(follow),
            Question::Access { follow, mask } => u64::from(follow) | u64::from(mask & 7) << 1 | 16,
            Question::Open { flags } => {
                let bits = [libc::O_NOFOLLOW, libc::O_NONBLOCK, libc::O_RDWR, libc::O_APPEND];
                let set = (0..).zip(bits).map(|(n, bit)| u64::from(flags & bit != 0) << n);
                let dir = u64::from(flags & libc::O_DIRECTORY != 0) << 6;
                set.sum::<u64>() | dir | 32
            }
        }
    }
}

/// What is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    /// The state.
    Attr(WireAttr),
    /// It may be done.
    Done,
    /// There is nothing of that name.
    Absent,
}

/// One question and its answer; all zero: none.
#[derive(FromZeros)]
#[repr(align(64))]
struct Entry {
    seq: AtomicU32,
    session: AtomicU32,
    /// Hash of the question that came last.
    hash: AtomicU64,
    /// Bytes of the path, the question and the kind of answer.
    head: AtomicU64,
    dir: AtomicU64,
    places: AtomicU64,
    sum: AtomicU64,
    attr: [AtomicU64; WireAttr::WORDS],
    path: [AtomicU64; PATH_WORDS],
}

/// Kinds of answers in [`Entry::head`].
const ATTR: u64 = 1;
const DONE: u64 = 2;
const ABSENT: u64 = 3;

/// All that is known of paths. Zero is "nothing".
#[derive(FromZeros)]
pub(crate) struct Paths {
    entries: [Entry; ENTRIES],
    /// An open found nothing, ever: opens look here first. Most programs open what is there.
    missed: AtomicU32,
}

/// Answers in a row that the kernel would have given as well, after which it is asked.
const KNOWN_MIN: u32 = 4;
/// Questions that it is asked then, before the service is asked again whether it knows: at first,
/// and at most. It is twice as many each time that it does.
const KNOWN_TIMES: u32 = 28;
const KNOWN_TIMES_MAX: u32 = 16 * KNOWN_TIMES;
/// Directories that are listed by the service after a program opened a file in one: it needs to
/// know of them anyway.
const LISTED_TIMES: u32 = 64;

const _: () = assert!(KNOWN_MIN + KNOWN_TIMES_MAX <= LEFT);

/// Of a count: the part that says how many questions are left.
const LEFT: u32 = 0xFFFF;
const TIMES_SHIFT: u32 = 16;

/// How often the kernel knows what is asked of paths for the first time: of a lane over lowers it
/// remembers what it was told, and an answer that it knows costs a tenth of a request. Zero is
/// "not". Threads may count past each other: either way the answer is the same.
#[derive(FromZeros)]
pub(crate) struct KernelMemory {
    /// Answers that it knew, or questions left for it; above that, how many there were.
    count: AtomicU32,
    /// Directories that are listed by the service.
    listed: AtomicU32,
}

impl KernelMemory {
    pub(crate) const fn new() -> Self {
        KernelMemory { count: AtomicU32::new(0), listed: AtomicU32::new(0) }
    }

    /// Whether the kernel is to be asked next.
    #[inline]
    pub(crate) fn knows(&self) -> bool {
        self.count.load(Ordering::Relaxed) & LEFT > KNOWN_MIN
    }

    /// Whether the kernel is to be asked this time.
    pub(crate) fn takes_one(&self) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        let takes = count & LEFT > KNOWN_MIN;
        if takes {
            self.count.store(count - 1, Ordering::Relaxed);
        }
        takes
    }

    /// The service said whether it knows.
    pub(crate) fn heard(&self, knows: bool) {
        let count = self.count.load(Ordering::Relaxed);
        let (left, times) = (count & LEFT, count >> TIMES_SHIFT);
        let count = match knows {
            // Some names change often, among many that do not.
            false if times > KNOWN_TIMES => (KNOWN_MIN - 1) | ((times / 4) << TIMES_SHIFT),
            false => 0,
            true if left + 1 < KNOWN_MIN => left + 1,
            true => {
                let times = (2 * times).clamp(KNOWN_TIMES, KNOWN_TIMES_MAX);
                (KNOWN_MIN + times) | (times << TIMES_SHIFT)
            }
        };
        self.count.store(count, Ordering::Relaxed);
    }

    /// Whether the kernel is to list a directory that it opened, and of which the service was not
    /// told.
    pub(crate) fn lists(&self) -> bool {
        let listed = self.listed.load(Ordering::Relaxed);
        if listed > 0 {
            self.listed.store(listed - 1, Ordering::Relaxed);
        }
        listed == 0 && self.knows()
    }

    /// A file was opened by its name in a directory.
    #[inline]
    pub(crate) fn opened_below(&self) {
        self.listed.store(LISTED_TIMES, Ordering::Relaxed);
    }
}

/// A question about a path that is short enough to be kept, ready to be looked for.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) dir: u64,
    question: u64,
    pub(crate) hash: u64,
}

impl<'a> Asked<'a> {
    /// `None`: such a question is asked anew each time.
    #[inline]
    pub(crate) fn new(at: &At<'a>, question: Question) -> Option<Asked<'a>> {
        if at.path.len() > PATH_BYTES_MAX || config::views() == config::NEVER {
            return None;
        }
        let (path, dir, question) = (at.path, at.dir, question.to_word());
        let first = dir ^ question << 56 ^ (path.len() as u64) << 48;
        Some(Asked { path, dir, question, hash: hash(first, path) })
    }

    /// Length of the path, the question and a kind of answer.
    pub(crate) fn head(&self, kind: u64) -> u64 {
        self.path.len() as u64 | self.question << 16 | kind << 32
    }
}

fn hash(first: u64, path: &[u8]) -> u64 {
    words(path).fold(mixed(first), |hash, word| mixed(hash.rotate_left(5) ^ word))
}

/// A word of which each bit counts for each bit of the result: the upper half of the product says
/// what its lower one cannot, how words differ in their last bytes.
fn mixed(word: u64) -> u64 {
    let product = u128::from(word) * 0x9E37_79B9_7F4A_7C15;
    (product >> 64) as u64 ^ product as u64
}

/// A path as words, the last one filled up with zeros.
#[inline]
pub(crate) fn words(path: &[u8]) -> impl Iterator<Item = u64> {
    let (whole, rest) = path.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let last = (!rest.is_empty()).then_some(last);
    whole.iter().copied().chain(last).map(|word| U64::from_bytes(word).get())
}

/// The sum of a mark's counts now; `None`: the service shows none, or is dead.
#[inline]
pub(crate) fn sum_now(session: &'static Session, places: u64) -> Option<u64> {
    let marks = session.channel.marks()?;
    let (name, state) = (places as u32, (places & !IS_MARK) >> 32);
    let sum = [0, name as usize, state as usize]
        .into_iter()
        .fold(0u64, |sum, place| sum.wrapping_add(marks.count(place)));
    (!session.channel.is_dead()).then_some(sum)
}

impl Entry {
    const fn new() -> Self {
        Entry {
            seq: AtomicU32::new(0),
            session: AtomicU32::new(0),
            hash: AtomicU64::new(0),
            head: AtomicU64::new(0),
            dir: AtomicU64::new(0),
            places: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            attr: [const { AtomicU64::new(0) }; WireAttr::WORDS],
            path: [const { AtomicU64::new(0) }; PATH_WORDS],
        }
    }

    #[inline]
    fn is(&self, session: &Session, asked: &Asked<'_>) -> bool {
        self.hash.load(Ordering::Relaxed) == asked.hash
            && self.session.load(Ordering::Relaxed) == session.number
            && self.dir.load(Ordering::Relaxed) == asked.dir
            && self.head.load(Ordering::Relaxed) as u32 == asked.head(0) as u32
            && words(asked.path).zip(&self.path).all(|(a, b)| a == b.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn answer(&self) -> Option<Known> {
        match self.head.load(Ordering::Relaxed) >> 32 {
            ATTR => {
                let mut words = [0; WireAttr::WORDS];
                words.iter_mut().zip(&self.attr).for_each(|(a, b)| *a = b.load(Ordering::Relaxed));
                Some(Known::Attr(WireAttr::from_words(&words)))
            }
            DONE => Some(Known::Done),
            ABSENT => Some(Known::Absent),
            _ => None,
        }
    }

    /// Changes the entry, unless another thread does.
    fn change(&self, change: impl FnOnce(&Entry)) {
        let seq = self.seq.load(Ordering::Relaxed);
        let (done, else_) = (Ordering::Acquire, Ordering::Relaxed);
        if seq.is_multiple_of(2)
            && self.seq.compare_exchange(seq, seq.wrapping_add(1), done, else_).is_ok()
        {
            fence(Ordering::Release);
            change(self);
            self.seq.store(seq.wrapping_add(2), Ordering::Release);
        }
    }

    fn put(&self, session: &Session, asked: &Asked<'_>, kind: u64, reply: &Reply) {
        self.session.store(session.number, Ordering::Relaxed);
        self.hash.store(asked.hash, Ordering::Relaxed);
        self.head.store(asked.head(kind), Ordering::Relaxed);
        self.dir.store(asked.dir, Ordering::Relaxed);
        self.places.store(reply.value[0], Ordering::Relaxed);
        self.sum.store(reply.value[1], Ordering::Relaxed);
        let attr = reply.attr.unwrap_or_default().to_words();
        attr.iter().zip(&self.attr).for_each(|(a, b)| b.store(*a, Ordering::Relaxed));
        words(asked.path).zip(&self.path).for_each(|(a, b)| b.store(a, Ordering::Relaxed));
    }
}

impl Paths {
    pub(crate) const fn new() -> Self {
        Paths { entries: [const { Entry::new() }; ENTRIES], missed: AtomicU32::new(0) }
    }

    #[inline]
    fn entry(&self, asked: &Asked<'_>) -> &Entry {
        &self.entries[asked.hash as usize % ENTRIES]
    }

    /// The answer, if it is known to hold now.
    #[inline(always)]
    pub(crate) fn find(&self, session: &'static Session, asked: &Asked<'_>) -> Option<Known> {
        let entry = self.entry(asked);
        let seq = entry.seq.load(Ordering::Acquire);
        if !seq.is_multiple_of(2) || !entry.is(session, asked) {
            return None;
        }
        let answer = entry.answer()?;
        let places = entry.places.load(Ordering::Relaxed);
        let sum = entry.sum.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let same = entry.seq.load(Ordering::Relaxed) == seq;
        (same && sum_now(session, places)? == sum).then_some(answer)
    }

    /// Whether an open found nothing, ever.
    #[inline]
    pub(crate) fn has_missed(&self) -> bool {
        self.missed.load(Ordering::Relaxed) != 0
    }

    /// An open found nothing.
    pub(crate) fn miss(&self) {
        self.missed.store(1, Ordering::Relaxed);
    }

    /// Whether the question came before, lately; notes that it came.
    pub(crate) fn came_before(&self, asked: &Asked<'_>) -> bool {
        let entry = self.entry(asked);
        let before = entry.hash.load(Ordering::Relaxed) == asked.hash;
        if !before {
            entry.change(|entry| {
                entry.head.store(0, Ordering::Relaxed);
                entry.hash.store(asked.hash, Ordering::Relaxed);
            });
        }
        before || config::views() == 0
    }

    /// Keeps an answer that came with a mark.
    pub(crate) fn learn(&self, session: &Session, asked: &Asked<'_>, reply: &Reply) {
        let kind = match (reply.status, reply.attr) {
            (Status::Done(_), Some(_)) => ATTR,
            (Status::Done(_), None) => DONE,
            (Status::Failed(errno), None) if errno == Errno::ENOENT.0 => ABSENT,
            _ => return,
        };
        if reply.value[0] & IS_MARK != 0 {
            self.entry(asked).change(|entry| entry.put(session, asked, kind, reply));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_differ_in_their_last_bytes_have_places_of_their_own() {
        for dir in ["site/", "a/longer/way/to/", ""] {
            let paths: Vec<String> = (0..200).map(|n| format!("{dir}{n}")).collect();
            let place =
                |path: &String| hash((path.len() as u64) << 48, path.as_bytes()) as usize % ENTRIES;
            let places: std::collections::HashSet<usize> = paths.iter().map(place).collect();
            // Of 200 in 1024 at random 181 are expected.
            assert!(places.len() > 165, "{dir}: {}", places.len());
        }
    }

    #[test]
    fn the_kernel_is_asked_after_it_knew_some_answers_and_no_longer() {
        let kernel = KernelMemory::new();
        assert!(!kernel.takes_one());
        for _ in 0..KNOWN_MIN {
            assert!(!kernel.takes_one());
            kernel.heard(true);
        }
        for times in [1, 2, 4, 8, 16, 16] {
            let taken = (0..1000).take_while(|_| kernel.takes_one()).count();
            assert_eq!(taken as u32, times * KNOWN_TIMES);
            kernel.heard(true);
        }
        // One that it does not know costs a part of what was learned; some more all of it.
        while kernel.takes_one() {}
        kernel.heard(false);
        assert!(!kernel.takes_one());
        kernel.heard(true);
        let taken = (0..1000).take_while(|_| kernel.takes_one()).count();
        assert_eq!(taken as u32, 8 * KNOWN_TIMES);
        for _ in 0..4 {
            kernel.heard(false);
        }
        kernel.heard(true);
        assert!(!kernel.takes_one());
    }

    #[test]
    fn the_kernel_lists_directories_of_programs_that_open_nothing_in_them() {
        let kernel = KernelMemory::new();
        assert!(!kernel.lists());
        (0..2 * KNOWN_MIN).for_each(|_| kernel.heard(true));
        assert!(kernel.knows() && kernel.lists() && kernel.lists());
        kernel.opened_below();
        assert_eq!((0..1000).find(|_| kernel.lists()), Some(LISTED_TIMES));
        (0..4).for_each(|_| kernel.heard(false));
        assert!(!kernel.knows() && !kernel.lists());
    }

    #[test]
    fn paths_differ_in_every_byte_and_in_length() {
        let all = |path: &'static str| words(path.as_bytes()).collect::<Vec<_>>();
        assert_eq!(all("12345678"), [u64::from_le_bytes(*b"12345678")]);
        assert_eq!(all("123456789").len(), 2);
        assert_ne!(all("a/b/c/d/e"), all("a/b/c/d/f"));
        assert_eq!(all("").len(), 0);
    }

    #[test]
    fn who_changes_an_entry_is_alone() {
        let entry = Entry::new();
        let mut inner = false;
        entry.change(|entry| entry.change(|_| inner = true));
        assert!(!inner && entry.seq.load(Ordering::Relaxed) == 2);
    }
}
