//! What the configuration of an image has librbd do.
//!
//! The image's own (`rbd config image set`) and its pool's (`rbd config pool set`) go before the
//! options of a client. librbd takes over what they say when the image is opened: a cache that is
//! switched on or off later begins or ends with the next opener.

use polylane_base::Errno;

use super::settings::Failure;
use crate::ffi::Image;

/// When a change of an image is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Durable {
    /// As it completes.
    AtOnce,
    /// When a flush behind it has ended: librbd may keep it.
    Flushed,
}

/// Of librbd, by its name.
const BARS: &str = "rbd_blocklist_on_break_lock";

/// When changes of an image that was opened are durable.
///
/// # Errors
/// [`Failure::BarsNobody`]: two clients could write to it.
pub(super) fn durable(image: &Image) -> Result<Durable, Failure> {
    read(&image.options())
}

fn read(options: &Result<Vec<(String, String)>, Errno>) -> Result<Durable, Failure> {
    // Whether librbd caches is not known; a lock is broken as the client's option says.
    let Ok(options) = options else { return Ok(Durable::Flushed) };
    let value = |name: &str| options.iter().find(|one| one.0 == name).map(|one| one.1.as_str());
    if value(BARS).is_some_and(is_false) {
        return Err(Failure::BarsNobody);
    }
    let has_cache = !value("rbd_cache").is_some_and(is_false);
    let has_plugin = value("rbd_plugins") != Some("");
    Ok(if has_cache || has_plugin { Durable::Flushed } else { Durable::AtOnce })
}

/// As Ceph reads it: a word in any case, or a number.
fn is_false(value: &str) -> bool {
    value.eq_ignore_ascii_case("false") || value.parse::<i64>() == Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_flushed_unless_it_is_known_that_nothing_caches() {
        let all = |cache: &str, plugins: &str, bars: &str| {
            let pair = |(name, value): (&str, &str)| (name.to_string(), value.to_string());
            Ok([("rbd_cache", cache), ("rbd_plugins", plugins), (BARS, bars)].map(pair).to_vec())
        };
        for (options, expected) in [
            (all("false", "", "true"), Ok(Durable::AtOnce)),
            (all("False", "", "1"), Ok(Durable::AtOnce)),
            (all("0", "", "true"), Ok(Durable::AtOnce)),
            (all("true", "", "true"), Ok(Durable::Flushed)),
            (all("1", "", "true"), Ok(Durable::Flushed)),
            (all("of", "", "true"), Ok(Durable::Flushed)),
            (all("false", "pwl_cache", "true"), Ok(Durable::Flushed)),
            (all("false", "", "false"), Err(Failure::BarsNobody)),
            (all("true", "", "0"), Err(Failure::BarsNobody)),
            (Ok(Vec::new()), Ok(Durable::Flushed)),
            (Err(Errno::EIO), Ok(Durable::Flushed)),
        ] {
            assert_eq!(read(&options), expected, "{options:?}");
        }
    }
}
