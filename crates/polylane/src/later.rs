//! Commands that the finished polylane has and this version does not: refused by name, so that a
//! missing part is not taken for a mistyped word.

use std::ffi::OsString;

/// Commands of later versions.
const COMMANDS: [&str; 1] = ["container"];

/// The line that refuses these arguments, if they name something of a later version.
pub(crate) fn refusal(arguments: &[OsString]) -> Option<String> {
    let mut words = arguments.iter().skip(1).map(|word| word.to_string_lossy());
    let command = words.next()?;
    if COMMANDS.contains(&&*command) {
        return Some(format!("{command}: not in this version yet"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_words_are_refused_where_they_are_commands() {
        let refused = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            refusal(&words)
        };
        assert_eq!(
            refused("polylane container"),
            Some("container: not in this version yet".to_string())
        );
        assert_eq!(refused("polylane pool ls"), None);
        assert_eq!(refused("polylane bench run --cache"), None);
        assert_eq!(refused("polylane"), None);
    }
}
