//! Names and texts of others' making, as a terminal may show them.
//!
//! A file's name may hold anything but a slash and a zero byte: sequences that a terminal obeys,
//! line breaks, blanks, bytes that are no text. [`Shown`] writes it as bash reads it back:
//!
//! | name | shown |
//! |---|---|
//! | `web-1.img` | `web-1.img` |
//! | `my volume.img` | `'my volume.img'` |
//! | with ESC, a line break or bytes that are no UTF-8 | `$'a\e[31m\nb\xff'` |

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

/// A name in quotes where it needs them. See the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(&'a [u8]);

impl<'a> Shown<'a> {
    /// Of a path or another name of the system's.
    pub fn new(name: &'a (impl AsRef<OsStr> + ?Sized)) -> Self {
        Shown(name.as_ref().as_bytes())
    }
}

/// Means itself to every shell, anywhere in a word.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-./:@%+=,".contains(c) || (!c.is_ascii() && !obeyed(c))
}

/// Changes what a terminal shows of its surroundings: control characters, and those that turn the
/// direction of text round or cannot be seen.
fn obeyed(c: char) -> bool {
    let turns = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}');
    c.is_control() || turns || matches!(c, '\u{2066}'..='\u{2069}' | '\u{feff}')
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = std::str::from_utf8(self.0);
        match text {
            Ok(text) if !text.is_empty() && text.chars().all(is_plain) => f.write_str(text),
            Ok(text) if !text.chars().any(obeyed) && !text.contains('\'') => {
                write!(f, "'{text}'")
            }
            _ => {
                f.write_str("$'")?;
                for chunk in self.0.utf8_chunks() {
                    for c in chunk.valid().chars() {
                        match c {
                            '\'' | '\\' => write!(f, "\\{c}")?,
                            c => write_escaped(f, c)?,
                        }
                    }
                    chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
                }
                f.write_str("'")
            }
        }
    }
}

fn write_escaped(f: &mut impl fmt::Write, c: char) -> fmt::Result {
    match c {
        '\x07' => f.write_str("\\a"),
        '\x08' => f.write_str("\\b"),
        '\t' => f.write_str("\\t"),
        '\n' => f.write_str("\\n"),
        '\r' => f.write_str("\\r"),
        '\x1b' => f.write_str("\\e"),
        c if c.is_ascii_control() => write!(f, "\\x{:02x}", c as u32),
        c if obeyed(c) => write!(f, "\\u{:04x}", c as u32),
        c => f.write_char(c),
    }
}

/// A text with what a terminal obeys written as escapes, line breaks among it.
pub fn escape_control(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        // A string takes everything.
        let _ = write_escaped(&mut escaped, c);
    }
    escaped
}

/// JSON as a terminal may show it: the same values, with what a terminal obeys written as escapes.
/// Line breaks stay, since there are none in its strings.
pub fn escape_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\n' => escaped.push(c),
            c if obeyed(c) => escaped.push_str(&format!("\\u{:04x}", c as u32)),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(name: &[u8]) -> String {
        Shown::new(OsStr::from_bytes(name)).to_string()
    }

    #[test]
    fn names_are_quoted_where_a_shell_would_trip_over_them() {
        for plain in ["web-1.img", "/srv/a_b/c.img", "rbd:pool/image@snap", "größe"] {
            assert_eq!(shown(plain.as_bytes()), plain);
        }
        for quoted in ["my volume", "a$b", "*", "a;b", "~", "a\\b", "#1", "a\"b", ""] {
            assert_eq!(shown(quoted.as_bytes()), format!("'{quoted}'"));
        }
        assert_eq!(shown(b"it's"), "$'it\\'s'");
        assert_eq!(shown(b"a\x1b]0;x\x07\n\x7f\x00"), "$'a\\e]0;x\\a\\n\\x7f\\x00'");
        assert_eq!(shown(b"\xff\\x"), "$'\\xff\\\\x'");
        assert_eq!(shown("\u{9b}31m\u{202e}".as_bytes()), "$'\\u009b31m\\u202e'");
    }

    #[test]
    fn nothing_shown_has_what_a_terminal_obeys() {
        for byte in 0..=255u8 {
            for name in [vec![byte], vec![b'a', byte, b'b'], vec![byte, byte]] {
                assert!(!shown(&name).chars().any(obeyed), "{name:?}");
                let text = String::from_utf8_lossy(&name).into_owned();
                let escaped = escape_control(&text);
                assert!(!escaped.chars().any(obeyed), "{name:?}");
                assert_eq!(escape_control(&escaped), escaped, "once is enough");
            }
        }
        assert_eq!(
            escape_control("plain, with blanks and 'quotes'"),
            "plain, with blanks and 'quotes'"
        );
    }

    #[test]
    fn json_stays_what_it_was() {
        assert_eq!(
            escape_json("{\n\"a\": \"\u{9b}x\u{7f}\"\n}"),
            "{\n\"a\": \"\\u009bx\\u007f\"\n}"
        );
    }

    #[test]
    fn bash_reads_back_what_is_shown() {
        let bash = |word: &str| {
            let script = format!("printf %s {word}");
            std::process::Command::new("bash")
                .args(["-c", &script])
                .env("LC_ALL", "C.UTF-8")
                .output()
        };
        if bash("x").is_err() {
            return println!("skipped: no bash here");
        }
        for name in [&b"a b"[..], b"it's", b"\x1b[1m\r\n\t", b"\xff\xfe", b"$(x) `y` \\", b"!~#"] {
            let output = bash(&shown(name)).expect("bash");
            assert_eq!(output.stdout, name, "{}", shown(name));
        }
    }
}
