//! The bytes of a disk, cheap to copy: a base that is shared and never changes, and the chunks
//! that differ from it.

use std::collections::BTreeMap;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::sync::{Arc, OnceLock};

/// Bytes in a chunk, the unit of copying.
pub const CHUNK_BYTES: usize = 4096;

type Chunk = [u8; CHUNK_BYTES];

/// What copies share.
struct Base {
    bytes: Vec<u8>,
    /// Which chunks are not all zeros. Looked up once: a campaign makes a disk of each of millions
    /// of copies, and each disk asks.
    data: OnceLock<Vec<bool>>,
}

impl Base {
    fn chunk(&self, index: usize) -> &[u8] {
        &self.bytes[index * CHUNK_BYTES..(index + 1) * CHUNK_BYTES]
    }

    fn data(&self) -> &[bool] {
        let has_data = |chunk: &Chunk| chunk.iter().any(|byte| *byte != 0);
        let chunks = self.bytes.as_chunks::<CHUNK_BYTES>().0;
        self.data.get_or_init(|| chunks.iter().map(has_data).collect())
    }
}

/// A disk's content. A copy costs as much as there are changed chunks.
#[derive(Clone)]
pub struct Image {
    base: Arc<Base>,
    changed: BTreeMap<usize, Arc<Chunk>>,
}

impl Image {
    /// The bytes as they are, filled up with zeros to whole chunks.
    pub fn new(mut bytes: Vec<u8>) -> Image {
        bytes.resize(bytes.len().next_multiple_of(CHUNK_BYTES), 0);
        let base = Base { bytes, data: OnceLock::new() };
        Image { base: Arc::new(base), changed: BTreeMap::new() }
    }

    /// `len` bytes, all zero.
    pub fn zeroed(len: usize) -> Image {
        Image::new(vec![0; len])
    }

    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.base.bytes.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.base.bytes.is_empty()
    }

    fn chunk(&self, index: usize) -> &[u8] {
        match self.changed.get(&index) {
            Some(chunk) => &chunk[..],
            None => self.base.chunk(index),
        }
    }

    /// For each chunk whether it is not all zeros.
    pub(super) fn data(&self) -> Vec<bool> {
        let mut data = self.base.data().to_vec();
        for (index, chunk) in &self.changed {
            data[*index] = chunk.iter().any(|byte| *byte != 0);
        }
        data
    }

    fn chunk_mut(&mut self, index: usize) -> &mut Chunk {
        let base = &self.base;
        let chunk = self.changed.entry(index).or_insert_with(|| {
            let mut chunk = [0; CHUNK_BYTES];
            chunk.copy_from_slice(base.chunk(index));
            Arc::new(chunk)
        });
        Arc::make_mut(chunk)
    }

    /// Fills `into` from byte `at` on.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        for (index, start, from, len) in pieces(at, into.len()) {
            into[from..from + len].copy_from_slice(&self.chunk(index)[start..start + len]);
        }
    }

    /// Stores `bytes` from byte `at` on.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        for (index, start, from, len) in pieces(at, bytes.len()) {
            self.chunk_mut(index)[start..start + len].copy_from_slice(&bytes[from..from + len]);
        }
    }

    /// Stores `len` zeros from byte `at` on.
    pub fn zero(&mut self, at: usize, len: usize) {
        for (index, start, _, len) in pieces(at, len) {
            self.chunk_mut(index)[start..start + len].fill(0);
        }
    }

    /// A number that differs, with all but certainty, between images of one base that differ.
    pub fn fingerprint(&self) -> u64 {
        let mut sum = 0xcbf2_9ce4_8422_2325u64;
        let mut mix =
            |word: u64| sum = (sum ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        for (index, chunk) in &self.changed {
            if chunk[..] == *self.base.chunk(*index) {
                continue;
            }
            mix(*index as u64);
            let words = chunk.as_chunks::<8>().0;
            words.iter().for_each(|word| mix(u64::from_le_bytes(*word)));
        }
        sum
    }

    /// All bytes, in one piece.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.base.bytes.clone();
        for (index, chunk) in &self.changed {
            bytes[index * CHUNK_BYTES..(index + 1) * CHUNK_BYTES].copy_from_slice(&chunk[..]);
        }
        bytes
    }

    /// The same bytes as a base of their own, so that copies are as cheap as can be.
    pub fn rebased(&self) -> Image {
        Image::new(self.bytes())
    }

    /// Writes all of it to a file.
    ///
    /// # Errors
    /// The file's.
    pub fn save(&self, file: &mut std::fs::File) -> io::Result<()> {
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&self.base.bytes)?;
        for (index, chunk) in &self.changed {
            file.seek(SeekFrom::Start((index * CHUNK_BYTES) as u64))?;
            file.write_all(&chunk[..])?;
        }
        file.flush()
    }
}

/// The parts of `len` bytes from `at` on: chunk, position in it, position in the bytes, length.
fn pieces(at: usize, len: usize) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        (done < len).then(|| {
            let start = (at + done) % CHUNK_BYTES;
            let part = (CHUNK_BYTES - start).min(len - done);
            let piece = ((at + done) / CHUNK_BYTES, start, done, part);
            done += part;
            piece
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_with_data_are_known() {
        let mut image = Image::zeroed(4 * CHUNK_BYTES);
        image.write(CHUNK_BYTES, &[1]);
        let mut copy = image.rebased();
        assert_eq!((image.data(), copy.data()), (vec![false, true, false, false], image.data()));
        copy.zero(CHUNK_BYTES, 1);
        copy.write(4 * CHUNK_BYTES - 1, &[1]);
        assert_eq!(copy.data(), [false, false, false, true]);
    }

    #[test]
    fn copies_do_not_see_each_other() {
        let mut first = Image::new((0..10_000u32).map(|n| n as u8).collect());
        let mut second = first.clone();
        first.write(4090, &[200; 20]);
        second.zero(0, 5000);
        let mut bytes = [0; 20];
        first.read(4090, &mut bytes);
        assert_eq!(bytes, [200; 20]);
        second.read(4990, &mut bytes);
        let rest: Vec<u8> = (5000..5010u32).map(|n| n as u8).collect();
        assert_eq!(bytes[..10], [0; 10]);
        assert_eq!(bytes[10..], rest);
        assert_eq!(first.rebased().bytes(), first.bytes());
        assert_eq!(first.len(), 12_288);
    }
}
