//! A name without allocation, up to a length that nearly all names keep to.

use std::fmt;
use std::ops::Deref;

/// Longest name stored in place. With it, a slot of the dentry table is one cache line.
const SHORT: usize = 30;

/// The name of a directory entry: at most 255 bytes. Reads as `[u8]`.
#[derive(Clone)]
pub struct Name(Form);

#[derive(Clone)]
enum Form {
    Short(u8, [u8; SHORT]),
    Long(Box<[u8]>),
}

impl Name {
    pub(crate) fn new(name: &[u8]) -> Name {
        if name.len() > SHORT {
            return Name(Form::Long(name.into()));
        }
        let mut bytes = [0; SHORT];
        bytes[..name.len()].copy_from_slice(name);
        Name(Form::Short(name.len() as u8, bytes))
    }
}

impl Deref for Name {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Form::Short(len, bytes) => &bytes[..usize::from(*len)],
            Form::Long(bytes) => bytes,
        }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_names_read_the_same() {
        for len in [0, 1, SHORT - 1, SHORT, SHORT + 1, 255] {
            let name: Vec<u8> = (0..len).map(|n| n as u8).collect();
            assert_eq!(*Name::new(&name), *name);
        }
        assert!(size_of::<Name>() <= 32);
    }
}
