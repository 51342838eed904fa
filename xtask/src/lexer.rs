//! Just enough Rust lexing for tidy: blanks comments and literals out, finds blocks and functions.
//!
//! [`blank`] keeps every line break and the length of the text in characters, so that positions and
//! line numbers in the result are those of the source.

/// The source with the insides of comments, strings and character literals replaced by spaces.
pub fn blank(source: &str) -> Vec<char> {
    let text: Vec<char> = source.chars().collect();
    let mut out = text.clone();
    let mut at = 0;
    while at < text.len() {
        let end = match text[at] {
            '/' if text.get(at + 1) == Some(&'/') => line_end(&text, at),
            '/' if text.get(at + 1) == Some(&'*') => block_comment_end(&text, at),
            '"' => string_end(&text, at + 1),
            'r' | 'b' | 'c' if starts_word(&text, at) => prefixed_end(&text, at),
            '\'' => char_end(&text, at),
            _ => at,
        };
        if end == at {
            at += 1;
            continue;
        }
        for slot in &mut out[at..end.min(text.len())] {
            if *slot != '\n' {
                *slot = ' ';
            }
        }
        at = end;
    }
    out
}

fn starts_word(text: &[char], at: usize) -> bool {
    at == 0 || !is_word(text[at - 1])
}

/// Whether `c` can be part of an identifier.
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn line_end(text: &[char], at: usize) -> usize {
    text[at..].iter().position(|c| *c == '\n').map_or(text.len(), |length| at + length)
}

fn block_comment_end(text: &[char], at: usize) -> usize {
    let mut depth = 0;
    let mut at = at;
    while at < text.len() {
        match (text[at], text.get(at + 1)) {
            ('/', Some('*')) => depth += 1,
            ('*', Some('/')) => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

fn string_end(text: &[char], mut at: usize) -> usize {
    while at < text.len() {
        match text[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// The end of `r"…"`, `r#"…"#`, `b"…"`, `b'…'`, `br"…"`, `c"…"`, `cr"…"`; `at` when it is none of
/// them.
fn prefixed_end(text: &[char], at: usize) -> usize {
    let mut next = at + 1;
    let raw = text[at] == 'r' || text.get(next) == Some(&'r');
    if text[at] != 'r' && raw {
        next += 1;
    }
    if !raw {
        return match text.get(next) {
            Some('"') => string_end(text, next + 1),
            Some('\'') if text[at] == 'b' => char_end(text, next),
            _ => at,
        };
    }
    let hashes = text[next..].iter().take_while(|c| **c == '#').count();
    next += hashes;
    if text.get(next) != Some(&'"') {
        return at;
    }
    next += 1;
    while next < text.len() {
        let closing = text[next + 1..].iter().take(hashes).filter(|c| **c == '#').count();
        if text[next] == '"' && closing == hashes {
            return next + 1 + hashes;
        }
        next += 1;
    }
    text.len()
}

/// The end of a character literal; `at` for a lifetime.
fn char_end(text: &[char], at: usize) -> usize {
    match (text.get(at + 1), text.get(at + 2)) {
        (Some('\\'), Some(_)) => {
            let close = text[at + 3..].iter().position(|c| *c == '\'');
            close.map_or(text.len(), |length| at + 4 + length)
        }
        (Some(_), Some('\'')) => at + 3,
        _ => at,
    }
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Line of the `fn` word, from 1.
    pub line: usize,
    /// Lines from there to the closing brace.
    pub lines: usize,
}

/// Every function with a body in blanked text, nested ones too.
pub fn functions(text: &[char]) -> Vec<Function> {
    let mut found = Vec::new();
    for (at, word) in words(text) {
        if word != "fn" {
            continue;
        }
        let name: String = text[at + 2..]
            .iter()
            .skip_while(|c| c.is_whitespace())
            .take_while(|c| is_word(**c))
            .collect();
        // `fn(u32)` without a name is a type.
        if let (false, Some(open)) = (name.is_empty(), body(text, at)) {
            let line = line_of(text, at);
            let lines = line_of(text, block_end(text, open)) + 1 - line;
            found.push(Function { name, line, lines });
        }
    }
    found
}

/// Position of the `{` that opens the body of the item at `at`; none when a `;` comes first.
fn body(text: &[char], at: usize) -> Option<usize> {
    let mut depth = 0;
    for (index, c) in text.iter().enumerate().skip(at) {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' if depth == 0 => return Some(index),
            ';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// Position of the `}` that closes the block opened at `open`.
pub fn block_end(text: &[char], open: usize) -> usize {
    let mut depth = 0;
    for (index, c) in text.iter().enumerate().skip(open) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return index;
        }
    }
    text.len().saturating_sub(1)
}

/// Line number of a position, from 1.
pub fn line_of(text: &[char], at: usize) -> usize {
    1 + text[..at].iter().filter(|c| **c == '\n').count()
}

/// Every word of the text with its position.
pub fn words(text: &[char]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        if !is_word(text[at]) {
            at += 1;
            continue;
        }
        let word: String = text[at..].iter().take_while(|c| is_word(**c)).collect();
        let length = word.chars().count();
        found.push((at, word));
        at += length;
    }
    found
}

/// Blanks every `#[cfg(test)] mod … { … }` out as well, so that what is left is the product.
pub fn without_tests(text: &[char]) -> Vec<char> {
    let mut out = text.to_vec();
    let mark: Vec<char> = "#[cfg(test)]".chars().collect();
    let mut at = 0;
    while at + mark.len() <= out.len() {
        if out[at..at + mark.len()] != mark[..] {
            at += 1;
            continue;
        }
        let Some(open) = body(&out, at + mark.len()) else {
            at += mark.len();
            continue;
        };
        let end = block_end(&out, open);
        // The lines vanish with their contents: a blanked test module must not count as product.
        out.drain(at..=end);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blanked(source: &str) -> String {
        blank(source).into_iter().collect()
    }

    #[test]
    fn literals_and_comments_vanish_and_lines_stay() {
        let source =
            "a /* x /* y */ \n z */ b // c\n\"d\\\"e\" 'f' '\\'' r#\"g\"h\"# b\"i\" 'static k";
        let text = blanked(source);
        assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["a", "b", "'static", "k"]);
        assert_eq!(text.lines().count(), source.lines().count());
        assert_eq!(text.chars().count(), source.chars().count());
    }

    #[test]
    fn functions_are_measured_from_fn_to_brace() {
        let text =
            blank("fn a() {\n}\ntrait T { fn b(&self); fn c(x: fn(u8)) -> [u8; 2] { {\n\n} } }");
        let found: Vec<_> =
            functions(&text).into_iter().map(|f| (f.name, f.line, f.lines)).collect();
        assert_eq!(found, [("a".to_string(), 1, 2), ("c".to_string(), 3, 3)]);
    }

    #[test]
    fn test_modules_do_not_count() {
        let text = blank("fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\nfn c() {}\n");
        let rest = without_tests(&text);
        let names: Vec<_> = functions(&rest).into_iter().map(|f| f.name).collect();
        assert_eq!(names, ["a", "c"]);
    }
}
