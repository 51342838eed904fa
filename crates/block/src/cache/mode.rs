//! Cache modes by the names that QEMU gave them.
//!
//! | mode | reads and writes go through | a write is durable |
//! |---|---|---|
//! | `none` | the medium | at the next flush |
//! | `writeback` | the cache | at the next flush |
//! | `writethrough` | the cache | when it is done |
//! | `directsync` | the medium | when it is done |
//! | `pdc` | the cache, journals the medium | at the next flush |

use std::fmt;
use std::str::FromStr;

/// How a volume is cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Not at all.
    #[default]
    None,
    /// Reads and writes.
    Writeback,
    /// Reads; a write is done when it is durable.
    Writethrough,
    /// Not at all, and a write is done when it is durable.
    Directsync,
    /// As [`Mode::Writeback`], but what looks like a journal goes past the cache.
    Pdc,
}

/// Where cached blocks lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StoreKind {
    /// In the host's page cache, as in the paper. Survives the service.
    #[default]
    Host,
    /// In memory of the service's own, charged to its pool. Goes with the service as a disk's
    /// volatile cache goes with the power.
    Own,
}

impl Mode {
    /// All of them, in the order of the table.
    pub const ALL: [Mode; 5] =
        [Mode::None, Mode::Writeback, Mode::Writethrough, Mode::Directsync, Mode::Pdc];

    /// The name that is used for it.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::None => "none",
            Mode::Writeback => "writeback",
            Mode::Writethrough => "writethrough",
            Mode::Directsync => "directsync",
            Mode::Pdc => "pdc",
        }
    }

    /// Whether there is a cache at all.
    pub const fn has_cache(self) -> bool {
        matches!(self, Mode::Writeback | Mode::Writethrough | Mode::Pdc)
    }

    /// Whether every write is durable when it is done.
    pub const fn is_durable(self) -> bool {
        matches!(self, Mode::Writethrough | Mode::Directsync)
    }
}

impl StoreKind {
    /// The name that is used for it.
    pub const fn name(self) -> &'static str {
        match self {
            StoreKind::Host => "host",
            StoreKind::Own => "own",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Mode::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| "not none, writeback, writethrough, directsync or pdc".into())
    }
}

impl FromStr for StoreKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = [StoreKind::Host, StoreKind::Own].into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| "not host or own".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_as_they_are_written() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("unsafe".parse::<Mode>().is_err());
        assert_eq!("own".parse(), Ok(StoreKind::Own));
        assert_eq!(Mode::default(), Mode::None);
    }
}
