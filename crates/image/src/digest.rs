//! SHA-256 digests, and streams that compute them as bytes pass.

use std::fmt;
use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// `sha256:HEX`. Its digits are known to be 64 lower-case ones: it is safe as a file name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Digest(String);

impl Digest {
    /// Reads `sha256:HEX`; `None` for anything else.
    pub(crate) fn parse(text: &str) -> Option<Digest> {
        let hex = text.strip_prefix("sha256:")?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (hex.len() == 64 && hex.bytes().all(is_digit)).then(|| Digest(hex.to_string()))
    }

    /// The digest of these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Digest {
        Digest::finish(Sha256::new_with_prefix(bytes))
    }

    /// Its 64 digits.
    pub(crate) fn hex(&self) -> &str {
        &self.0
    }

    /// Enough of it for people.
    pub(crate) fn short(&self) -> &str {
        &self.0[..12]
    }

    fn finish(state: Sha256) -> Digest {
        let hex = state.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Digest(hex)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Digest, String> {
        Digest::parse(&text).ok_or_else(|| format!("not a sha256 digest: {text:?}"))
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

/// A stream whose digest and length are known at its end.
pub(crate) struct Hashing<S> {
    stream: S,
    state: Sha256,
    bytes: u64,
}

impl<S> Hashing<S> {
    pub(crate) fn new(stream: S) -> Self {
        Hashing { stream, state: Sha256::new(), bytes: 0 }
    }

    /// What passed: its digest, its bytes; and the stream.
    pub(crate) fn finish(self) -> (Digest, u64, S) {
        (Digest::finish(self.state), self.bytes, self.stream)
    }

    fn pass(&mut self, bytes: &[u8]) {
        self.state.update(bytes);
        self.bytes += bytes.len() as u64;
    }
}

impl<S: Read> Read for Hashing<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.pass(&buffer[..count]);
        Ok(count)
    }
}

impl<S: Write> Write for Hashing<S> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.stream.write(buffer)?;
        self.pass(&buffer[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Reads `from` to its end, and writes all of it to `to`.
pub(crate) struct Copying<'a, R> {
    pub(crate) from: R,
    /// `None`: it is kept already.
    pub(crate) to: Option<&'a mut dyn Write>,
}

impl<R: Read> Read for Copying<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        if let Some(to) = &mut self.to {
            to.write_all(&buffer[..count])?;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_read_and_computed() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        assert_eq!(Digest::parse(empty), Some(Digest::of(b"")));
        let upper = empty.to_uppercase().replace("SHA256", "sha256");
        for bad in ["", "sha256:", "sha512:00", "sha256:../../../../etc/passwd", &upper] {
            assert_eq!(Digest::parse(bad), None, "{bad}");
        }
        let mut hashing = Hashing::new(&b"abc"[..]);
        let mut kept = Vec::new();
        let mut copying = Copying { from: &mut hashing, to: Some(&mut kept) };
        copying.read_to_end(&mut Vec::new()).expect("from memory");
        assert_eq!(hashing.finish().0, Digest::of(b"abc"));
        assert_eq!(kept, b"abc");
    }
}
