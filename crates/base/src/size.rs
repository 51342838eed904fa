//! Sizes as people write them: `4096`, `64K`, `10G`, `1.5T`, `512MiB`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes, parsed and printed in binary units (1K = 1024).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct ByteSize(pub u64);

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSize(String);

impl fmt::Display for BadSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is not a size: write a number with K, M, G or T, such as 512M", self.0)
    }
}

impl std::error::Error for BadSize {}

impl FromStr for ByteSize {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        let bad = || BadSize(text.to_string());
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(bad()),
        };
        if let Ok(whole) = digits.parse::<u64>() {
            return whole.checked_mul(1 << shift).map(ByteSize).ok_or_else(bad);
        }
        let number: f64 = digits.parse().map_err(|_| bad())?;
        let bytes = number * (1u64 << shift) as f64;
        let plain = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        if plain && bytes.is_finite() && bytes < u64::MAX as f64 {
            Ok(ByteSize(bytes as u64))
        } else {
            Err(bad())
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let unit = (63 - self.0.max(1).leading_zeros() as usize) / 10;
        match unit {
            0 => write!(f, "{} B", self.0),
            _ if self.0.is_multiple_of(1 << (10 * unit)) => {
                write!(f, "{} {}", self.0 >> (10 * unit), units[unit])
            }
            _ => write!(f, "{:.1} {}", self.0 as f64 / (1u64 << (10 * unit)) as f64, units[unit]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("64K", 65536), ("1.5M", 3 << 19), ("2GiB", 2 << 30)]
        {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "K", "-1", "1X", "99999999999T", "1e3", "nan", "inf"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_print_in_binary_units() {
        assert_eq!(ByteSize(0).to_string(), "0 B");
        assert_eq!(ByteSize(65536).to_string(), "64 KiB");
        assert_eq!(ByteSize(3 << 19).to_string(), "1.5 MiB");
    }
}
