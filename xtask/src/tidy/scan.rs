//! Enough of Rust's lexing to separate code from comments, strings and characters.
//!
//! `code_only` keeps lines and columns: everything except code becomes spaces, so a position in the result is the
//! position in the file.

/// Returns the text with comments, strings and character literals blanked; line breaks stay.
pub(crate) fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = token_to_blank(&chars, at);
        if end > at {
            out.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        } else {
            out.push(chars[at]);
            at += 1;
        }
    }
    out
}

/// Returns the end of the comment, string or character literal that starts at `at`, or `at` if none does.
fn token_to_blank(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => chars[at..].iter().position(|c| *c == '\n').map_or(chars.len(), |n| at + n),
        '/' if next == Some('*') => end_of_block_comment(chars, at),
        '"' => end_of_string(chars, at),
        'r' | 'b' | 'c' if !follows_word(chars, at) => end_of_prefixed_string(chars, at),
        '\'' => end_of_char(chars, at),
        _ => at,
    }
}

fn follows_word(chars: &[char], at: usize) -> bool {
    at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_')
}

fn end_of_block_comment(chars: &[char], at: usize) -> usize {
    let mut depth = 0;
    let mut i = at;
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => {
                depth += 1;
                i += 2;
            }
            ('*', '/') => {
                depth -= 1;
                i += 2;
                if depth == 0 {
                    return i;
                }
            }
            _ => i += 1,
        }
    }
    chars.len()
}

fn end_of_string(chars: &[char], at: usize) -> usize {
    let mut i = at + 1;
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

/// Returns the end of `r"…"`, `r#"…"#`, `b"…"`, `br#"…"#`, `b'…'` or `c"…"`, or `at` if it is a name.
fn end_of_prefixed_string(chars: &[char], at: usize) -> usize {
    let mut i = at;
    while i < at + 2 && matches!(chars.get(i), Some('r' | 'b' | 'c')) {
        i += 1;
    }
    let raw = chars[at..i].contains(&'r');
    let quote = chars[i.min(chars.len())..].iter().take_while(|c| **c == '#').count();
    match chars.get(i + quote) {
        Some('"') if raw => {
            let mut close = i + quote + 1;
            while close < chars.len() {
                let hashes = chars[close + 1..].iter().take(quote).filter(|c| **c == '#').count();
                if chars[close] == '"' && hashes == quote {
                    return close + 1 + quote;
                }
                close += 1;
            }
            chars.len()
        }
        Some('"') if quote == 0 => end_of_string(chars, i),
        Some('\'') if quote == 0 && i == at + 1 && chars[at] == 'b' => end_of_char(chars, i),
        _ => at,
    }
}

/// Returns the end of a character literal, which its closing quote distinguishes from a lifetime.
fn end_of_char(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), _) => {
            chars[(at + 3).min(chars.len())..].iter().position(|c| *c == '\'').map_or(at, |n| at + n + 4)
        }
        (Some(_), Some('\'')) => at + 3,
        _ => at,
    }
}

/// Whether the code has `word` as a whole word.
pub(crate) fn has_word(code: &str, word: &str) -> bool {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|w| w == word)
}

/// A function with a body: its name, first line (from 1) and number of lines.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub name: String,
    pub line: usize,
    pub lines: usize,
}

/// Returns every function with a body in the output of `code_only`.
pub(crate) fn functions(code: &str) -> Vec<Function> {
    let bytes = code.as_bytes();
    let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b >= 0x80;
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(n) = code[at..].find("fn") {
        let start = at + n;
        at = start + 2;
        let whole = (start == 0 || !is_name(bytes[start - 1])) && bytes.get(at).is_some_and(u8::is_ascii_whitespace);
        if !whole {
            continue;
        }
        let name: String = code[at..].trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if name.is_empty() {
            continue;
        }
        if let Some(end) = end_of_body(bytes, at) {
            let line = 1 + code[..start].matches('\n').count();
            let lines = 1 + code[start..end].matches('\n').count();
            found.push(Function { name, line, lines });
        }
    }
    found
}

/// Returns the end of the body after a function's name. `None`: a declaration without a body.
fn end_of_body(bytes: &[u8], from: usize) -> Option<usize> {
    let mut round = 0usize;
    let mut curly = 0usize;
    for (i, byte) in bytes.iter().enumerate().skip(from) {
        match byte {
            b'(' | b'[' => round += 1,
            b')' | b']' => round = round.checked_sub(1)?,
            b';' if round == 0 && curly == 0 => return None,
            b'{' => curly += 1,
            b'}' => {
                curly = curly.checked_sub(1)?;
                if curly == 0 && round == 0 {
                    return Some(i);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_strings_and_characters_are_not_code() {
        let hidden = [
            "// unsafe",
            "/* unsafe /* unsafe */ unsafe */",
            "\"unsafe\"",
            "\"a \\\" unsafe\"",
            "r\"unsafe\"",
            "r#\"a \" unsafe\"#",
            "br##\"\"# unsafe\"##",
            "b\"unsafe\"",
            "c\"unsafe\"",
            "let q = '\"'; // unsafe",
            "let q = '\\''; // unsafe",
            "let q = b'\"'; // unsafe",
            "let q = '\\u{22}'; // unsafe",
            "forbid(unsafe_code)",
        ];
        for text in hidden {
            assert!(!has_word(&code_only(text), "unsafe"), "{text} -> {}", code_only(text));
        }
    }

    #[test]
    fn code_that_says_unsafe_is_found() {
        let shown = [
            "unsafe { x() }",
            "pub unsafe fn f() {}",
            "let q = '\"'; unsafe { x() }",
            "let s = \"a\\\\\"; unsafe { x() }",
            "fn f<'a>(x: &'a u8) { unsafe { x() } }",
            "/* one */ unsafe impl Send for A {}",
            "let s = r#\"\"#; unsafe {}",
            "let char = b'\\''; unsafe {}",
        ];
        for text in shown {
            assert!(has_word(&code_only(text), "unsafe"), "{text} -> {}", code_only(text));
        }
    }

    #[test]
    fn blanking_keeps_every_line() {
        let text = "a\n/* b\nc */ d\n\"e\nf\"\n";
        assert_eq!(code_only(text).matches('\n').count(), text.matches('\n').count());
    }

    #[test]
    fn functions_are_measured() {
        let text = "trait T {\n    fn without(&self) -> [u8; 4];\n}\nfn one() {}\npub fn three<F: Fn()>(x: [u8; 2])\n{\n    if x[0] == 1 { }\n}\n";
        let found = functions(&code_only(text));
        let short: Vec<(&str, usize, usize)> = found.iter().map(|f| (f.name.as_str(), f.line, f.lines)).collect();
        assert_eq!(short, [("one", 4, 1), ("three", 5, 4)]);
    }
}
