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

/// Integer types that flags of a format have.
const FLAG_TYPES: [&str; 4] = ["u8", "u16", "u32", "u64"];

/// Where `code`, whose comments and literals are blank, has two or more constants of one integer
/// type in a row that are single bits: flags without a type of their own.
pub fn untyped_flags(code: &[char]) -> Vec<(usize, String)> {
    let text: String = code.iter().collect();
    let (mut found, mut at) = (Vec::new(), 0);
    let mut former: Option<(usize, &str)> = None;
    for line in text.split_inclusive('\n') {
        let bit = single_bit(line);
        if let (Some((first, kind)), Some(same)) = (former, bit)
            && kind == same
            && found.last().is_none_or(|(known, _)| *known != first)
        {
            found.push((first, format!("constants of {kind} that are single bits")));
        }
        if !line.trim().is_empty() {
            // The first of a row stands for it.
            former = bit.map(|kind| former.filter(|(_, same)| *same == kind).unwrap_or((at, kind)));
        }
        at += line.chars().count();
    }
    found
}

/// The type of the constant that a line declares, where it is a single bit by its spelling, and no
/// most of something by its name.
fn single_bit(line: &str) -> Option<&str> {
    let (declared, value) = line.split_once('=')?;
    let (name, kind) = declared.split_once(':')?;
    let is_const = name.split_whitespace().any(|word| word == "const");
    let digits = value.trim().strip_suffix(';')?.strip_prefix("1 << ")?;
    let kind = kind.trim();
    let is_most = name.trim_end().ends_with("_MAX");
    let is_bit = digits.parse::<u32>().is_ok() && FLAG_TYPES.contains(&kind) && !is_most;
    (is_const && is_bit).then_some(kind)
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

    fn flags(source: &str) -> usize {
        untyped_flags(&blank(source)).len()
    }

    #[test]
    fn bits_in_a_row_without_a_type_are_flags() {
        let two = "/// a\nconst A: u32 = 1 << 0;\n/// b\n\npub(super) const B: u32 = 1 << 31;\n";
        assert_eq!(flags(two), 1);
        assert_eq!(flags(&two.repeat(2)), 1, "one row is one finding");
        assert_eq!(flags(&format!("{two}fn f() {{}}\n{two}")), 2);
    }

    #[test]
    fn sizes_typed_flags_and_single_bits_are_none() {
        for fine in [
            "const A: u32 = 1 << 0;\nconst B: u64 = 1 << 1;\n",
            "const A: u32 = 1 << 0;\nfn f() {}\nconst B: u32 = 1 << 1;\n",
            "const A_BYTES: usize = 1 << 20;\nconst B_BYTES: usize = 1 << 21;\n",
            "const A_MAX: u32 = 1 << 0;\nconst B_MAX: u32 = 1 << 1;\n",
            "bitflags! { struct A: u32 {\nconst A = 1 << 0;\nconst B = 1 << 1;\n} }",
            "const A: u32 = 1 << 0; // 1\nconst B: u32 = 2;\n",
        ] {
            assert_eq!(flags(fine), 0, "{fine}");
        }
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
