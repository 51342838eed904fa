//! Finds access to records by raw offsets: integers put together from bytes by hand, and slices of
//! bytes that are cut by numbers. `base::record` has what takes their place.

use crate::lexer::words;

/// Functions that make integers from bytes and bytes from integers.
const CONVERSIONS: [&str; 4] = ["from_le_bytes", "from_be_bytes", "to_le_bytes", "to_be_bytes"];

/// Where `code`, whose comments and literals are blank, takes a record apart by hand; each place
/// with what takes it apart.
pub fn raw_access(code: &[char]) -> Vec<(usize, String)> {
    let conversions = words(code).into_iter().filter(|(at, word)| {
        // A number that a literal spells has no offset.
        let of_literal = argument(code, at + word.len()).is_some_and(|inner| inner == "*");
        CONVERSIONS.contains(&word.as_str()) && !of_literal
    });
    conversions.chain(indices(code)).collect()
}

/// What stands in the parentheses that open at `at`, without spaces.
fn argument(code: &[char], at: usize) -> Option<String> {
    let inner = code.get(at..)?.strip_prefix(&['('])?;
    let inner = inner.iter().take_while(|c| **c != ')');
    Some(inner.filter(|c| !c.is_whitespace()).collect())
}

/// Indices that are a hexadecimal number, or a range with a number above 1 as a bound.
fn indices(code: &[char]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for at in 1..code.len() {
        let follows =
            matches!(code[at - 1], ')' | ']' | '?' | '_') || code[at - 1].is_alphanumeric();
        if code[at] != '[' || !follows {
            continue;
        }
        let index: String = code[at..].iter().take(80).take_while(|c| **c != ']').collect();
        let index = &index[1..];
        // As a bound, and what is added to one.
        let is_number = |term: &str| term.trim().parse::<u64>().is_ok_and(|number| number > 1);
        let mut terms = index.split("..").flat_map(|bound| bound.split('+'));
        let is_raw = index.contains("..") && terms.any(is_number);
        if !index.contains('[') && (is_raw || index.contains("0x")) {
            found.push((at, format!("[{index}]")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lexer::blank;

    fn found(source: &str) -> Vec<String> {
        raw_access(&blank(source)).into_iter().map(|(_, what)| what).collect()
    }

    #[test]
    fn numbers_by_hand_are_found() {
        assert_eq!(found("u32::from_le_bytes([a[at], a[at + 1]])"), ["from_le_bytes"]);
        assert_eq!(found("bytes[4..8].copy_from_slice(&x)"), ["[4..8]"]);
        assert_eq!(found("be(&raw[..0x3fc]); raw[0x1e]; &f()[2..]; b[at..at + 4]").len(), 4);
        assert_eq!(found("into(&number.to_be_bytes())"), ["to_be_bytes"]);
    }

    #[test]
    fn records_and_lists_are_not() {
        for fine in [
            "names[0]",
            "list[1..].iter()",
            "const X: [u8; 16] = [0x11; 16];",
            "u64::from_le_bytes(*b\"magic123\")",
            "bytes[HEADER_BYTES..][..len]",
            "bits[..blocks / 8]",
            "record::at::<Header>(bytes, 0).magic.get() // raw[0x38]",
        ] {
            assert!(found(fine).is_empty(), "{fine}: {:?}", found(fine));
        }
    }
}
