//! Streams that are plain, gzip or zstd, told by their first bytes.

use std::io::{self, BufReader, Cursor, Read, Write};

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

/// How a stream is packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// Not at all: the digest of a layer is that of its tar file.
    #[default]
    Plain,
    /// By gzip.
    Gzip,
    /// By zstd.
    Zstd,
}

/// Bytes that are read at once.
pub(crate) const BUFFER_BYTES: usize = 128 << 10;

impl Compression {
    /// Told by its first bytes.
    pub(crate) fn of(head: &[u8]) -> Compression {
        match head {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
            // A skippable frame of zstd.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
            _ => Compression::Plain,
        }
    }

    /// Packs a tar file: the same bytes of the same ones.
    pub(crate) fn pack(self, mut tar: impl Read, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Compression::Plain => io::copy(&mut tar, out).map(drop),
            Compression::Gzip => {
                let mut packed = flate2::write::GzEncoder::new(out, flate2::Compression::default());
                io::copy(&mut tar, &mut packed)?;
                packed.finish().map(drop)
            }
            Compression::Zstd => pack_zstd(tar, out),
        }
    }
}

/// The packer takes no failure: it is given none, and told of afterwards.
fn pack_zstd(tar: impl Read, out: &mut dyn Write) -> io::Result<()> {
    let (mut from, mut to) = (Patient::new(tar), Patient::new(out));
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    ruzstd::encoding::compress(&mut from, &mut to, level);
    from.failed.and(to.failed)
}

/// A stream of which the first failure is its end.
struct Patient<S> {
    stream: S,
    failed: io::Result<()>,
}

impl<S> Patient<S> {
    fn new(stream: S) -> Self {
        Patient { stream, failed: Ok(()) }
    }

    fn count(&mut self, act: impl FnOnce(&mut S) -> io::Result<usize>, ended: usize) -> usize {
        if self.failed.is_err() {
            return ended;
        }
        act(&mut self.stream).unwrap_or_else(|error| {
            self.failed = Err(error);
            ended
        })
    }
}

impl<S: Read> Read for Patient<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.count(|stream| stream.read(buffer), 0))
    }
}

impl<S: Write> Write for Patient<S> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let all = buffer.len();
        Ok(self.count(|stream| stream.write_all(buffer).map(|()| all), all))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The unpacked bytes of `stream`. A packed stream that ends early is an error.
pub(crate) fn unpacked<'a>(mut stream: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut head = Vec::new();
    stream.by_ref().take(4).read_to_end(&mut head)?;
    let compression = Compression::of(&head);
    let whole = BufReader::with_capacity(BUFFER_BYTES, Cursor::new(head).chain(stream));
    Ok(match compression {
        Compression::Plain => Box::new(whole),
        Compression::Gzip => Box::new(MultiGzDecoder::new(whole)),
        Compression::Zstd => Box::new(Frames { decoder: None, source: Some(whole) }),
    })
}

/// Bytes of a skippable frame's header: the magic number and a length.
const FRAME_HEAD_BYTES: usize = 8;

/// A stream with the bytes that were read from it to look at.
type Peeked<R> = io::Chain<Cursor<Vec<u8>>, R>;

/// The frames of a zstd stream, one after the other.
struct Frames<R: Read> {
    decoder: Option<StreamingDecoder<Peeked<BufReader<R>>, FrameDecoder>>,
    /// What is left, between two frames.
    source: Option<BufReader<R>>,
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(decoder) = &mut self.decoder {
                let count = decoder.read(buffer)?;
                if count > 0 || buffer.is_empty() {
                    return Ok(count);
                }
                // A frame is longer than what was looked at of it: that was read.
                self.source =
                    self.decoder.take().map(|decoder| decoder.into_inner().into_inner().1);
            }
            let Some(mut source) = self.source.take() else { return Ok(0) };
            let mut head = Vec::new();
            source.by_ref().take(FRAME_HEAD_BYTES as u64).read_to_end(&mut head)?;
            match head[..] {
                [] => return Ok(0),
                [0x50..=0x5f, 0x2a, 0x4d, 0x18, a, b, c, d] => {
                    let bytes = u64::from(u32::from_le_bytes([a, b, c, d]));
                    if io::copy(&mut source.by_ref().take(bytes), &mut io::sink())? < bytes {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    self.source = Some(source);
                }
                _ => {
                    let frame = Cursor::new(head).chain(source);
                    self.decoder = Some(StreamingDecoder::new(frame).map_err(io::Error::other)?);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        unpacked(bytes)?.read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn streams_are_told_and_cut_ones_refused() {
        let text = b"some text, some text, some more text".repeat(100);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&text).expect("to memory");
        let gzip = gzip.finish().expect("to memory");
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        let zstd = ruzstd::encoding::compress_to_vec(&text[..], level);
        assert_eq!(read(&text).expect("plain"), text);
        for packed in [&gzip, &zstd] {
            assert_eq!(read(packed).expect("whole"), text);
            assert_eq!(read(&packed.repeat(2)).expect("two"), text.repeat(2));
            for cut in [5, packed.len() / 2, packed.len() - 1] {
                assert!(read(&packed[..cut]).is_err(), "cut at {cut}");
            }
        }
        let skippable = [&[0x52, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3], &zstd[..]].concat();
        assert_eq!(read(&skippable).expect("skipped"), text);
        assert!(read(&skippable[..9]).is_err(), "a frame to skip is cut");
        assert_eq!(read(b"").expect("empty"), b"");
    }
}
