//! Widths and wording of comments, strings and documents.
//!
//! Only the trees in [`CLEAN`] are checked; a tree is added when it has no findings left. In code, only the names of
//! functions are checked. Tables, lines that end in a link, and text in back quotes are left out.

use std::sync::LazyLock;

use regex_lite::Regex;

use super::scan;

/// Directories and files that are checked.
pub(crate) const CLEAN: &[&str] = &[
    "benches/",
    "crates/bench/",
    "crates/cipher/",
    "crates/cli/",
    "crates/engine/",
    "crates/afalg/",
    "crates/frontend/",
    "crates/integrity/",
    "crates/verity/",
    "crates/nbd-store/",
    "crates/rbd-store/",
    "crates/serve/",
    "crates/volume/",
    "crates/zoned-file/",
    "demo.sh",
    "fuzz/",
    "models/",
    "test.sh",
    "tests/",
    "xtask/",
];

/// Errors that are shown to users as sentences; those of other files are causes after a colon.
const SENTENCES: [&str; 2] = ["crates/cli/src/error.rs", "crates/serve/src/error.rs"];

/// Widest line of a comment or document.
const COLUMNS: usize = 120;

/// Keys of the JSON that `inlock bench` writes.
const JSON_KEYS: [&str; 5] =
    ["\"processor\"", "\"usable processors\"", "\"processor flags\"", "\"processor time\"", "\"front end\""];

/// A pattern to reject, and the wording to use.
struct Rule {
    pattern: Regex,
    write: &'static str,
}

fn rule(pattern: &str, write: &'static str) -> Rule {
    Rule { pattern: Regex::new(pattern).expect("the pattern is a regular expression"), write }
}

/// Patterns for comments, strings and documents.
static TEXT: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    vec![
        rule(r"(?i)\b(who|what|which)ever\b", "the actor's role"),
        rule(r"(?i)\b(nobody|somebody|anybody|he|his|himself)\b", "the role; it, its"),
        rule(r"(?i)\b(anew|as ever|any more|whom|shall|besides?|but for)\b", "again, no longer, must, except"),
        rule(r"(?i)way of a request|request's way|under way|on its way", "I/O path, in flight"),
        rule(r"(?i)\b(device|disk|store|file) below\b|past the .{0,10}cache", "underlying device, direct I/O"),
        rule(r"(?i)\b(granule|gulp|ticket|seat|keeper|carrier|twin|passage|stretch)", "the term of the field"),
        rule(r"(?i)\b(the|a|its|whole) cover\b|cover_len", "aligned range"),
        // Except in cryptsetup's sentences "Enter new passphrase for key slot: ", "Enter passphrase for key slot 1: ",
        // "exactly one key slot active" and "All key slots full."
        rule(
            r"\b([Ff]older|[Pp]rocessor)s?\b|\bkey slot([^s: ]| [^a\\{]|$)|\bkey slots( [^f]|[^ ]|$)",
            "directory, CPU, keyslot",
        ),
        rule(r"(?i)\bfront ends?\b|\b(hung|hangs?|hanging) up\b", "frontend, disconnect"),
        rule(r"(?i)\b(hand(s|ed|ing)? out|file of facts|but once)\b", "attach, state file, only once"),
    ]
});

/// Patterns for code.
static CODE: LazyLock<Vec<Rule>> =
    LazyLock::new(|| vec![rule(r"\bfn (who|what|those|nobody|others?|an?|the)_\w+ *\(", "subject_condition_result")]);

/// Beginnings of a doc comment.
static HEADS: LazyLock<Rule> =
    LazyLock::new(|| rule(r"^\s*//[/!] (Who|What|Those|The same|One that)\b", "a verb or a noun first"));

/// A method that returns a `bool`.
static PREDICATE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\bfn (\w+)(?:<[^>]*>)?\(&self[^()]*\) -> bool").expect("it is a regular expression"));

/// The text of an error.
static ERROR: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#"#\[error\(\s*"([^"]*)""#).expect("it is a regular expression"));

/// The message of an error of the command line.
static MESSAGE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"CliError::(?:usage|refused)\(\s*(?:format!\(\s*)?"([^"]*)""#).expect("it is a regular expression")
});

/// Returns the findings for the file `name`, if its place is clean.
pub(crate) fn check(name: &str, text: &str) -> Vec<String> {
    // Documents are checked everywhere.
    if !name.ends_with(".md") && !CLEAN.iter().any(|place| name.starts_with(place)) {
        return Vec::new();
    }
    match name.rsplit_once('.') {
        Some((_, "rs")) => rust(name, text),
        Some((_, "md")) => markdown(name, text),
        Some((_, "sh" | "py")) => script(name, text),
        _ => Vec::new(),
    }
}

fn rust(name: &str, text: &str) -> Vec<String> {
    let code = scan::code_only(text);
    let mut findings = Vec::new();
    for (number, (line, code)) in (1..).zip(text.lines().zip(code.lines())) {
        let mut found = |what: String| findings.push(format!("{name}:{number}: {what}"));
        if line.trim_start().starts_with("//") {
            found_width(line, &mut found);
        }
        if HEADS.pattern.is_match(line) {
            found(format!("'{}': write {}", line.trim(), HEADS.write));
        }
        found_words(&CODE, code, &mut found);
        // This file holds the patterns, and samples of them.
        if name != file!() {
            found_words(&TEXT, &prose_of(line, code), &mut found);
        }
        found_names(code, &mut found);
    }
    // Formatting may put a text on the line after the call.
    for (pattern, is_sentence) in [(&ERROR, SENTENCES.contains(&name)), (&MESSAGE, true)] {
        for text_found in pattern.captures_iter(text).filter_map(|captures| captures.get(1)) {
            let number = text[..text_found.start()].matches('\n').count() + 1;
            let mut found = |what: String| findings.push(format!("{name}:{number}: {what}"));
            if is_sentence {
                found_sentence(text_found.as_str(), &mut found);
            } else {
                found_error(text_found.as_str(), &mut found);
            }
        }
    }
    findings
}

/// Checks the comments of a script. Lines `#: KEY VALUE` configure a machine, and cannot be wrapped.
fn script(name: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| line.trim_start().starts_with('#')) {
        let mut found = |what: String| findings.push(format!("{name}:{number}: {what}"));
        if !line.starts_with("#:") && !line.contains("  ./") {
            found_width(line, &mut found);
        }
        found_words(&TEXT, &without_quotes(line), &mut found);
    }
    findings
}

fn markdown(name: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let mut in_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        let mut found = |what: String| findings.push(format!("{name}:{number}: {what}"));
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code && !line.starts_with("    ") {
            found_width(line, &mut found);
            found_words(&TEXT, &without_quotes(line), &mut found);
        }
    }
    findings
}

fn found_width(line: &str, found: &mut impl FnMut(String)) {
    let width = line.chars().count();
    let body = line.trim_start().trim_start_matches(['/', '!']).trim_start();
    let is_table = body.starts_with('|');
    // The word that crosses the limit cannot be cut.
    let crossing = line.char_indices().nth(COLUMNS).map_or("", |(at, _)| {
        let start = line[..at].rfind(' ').map_or(0, |space| space + 1);
        &line[start..]
    });
    let is_link = crossing.contains("](") || crossing.contains("://");
    if width > COLUMNS && !is_table && !is_link {
        found(format!("{width} columns, more than {COLUMNS}"));
    }
}

fn found_words(rules: &[Rule], text: &str, found: &mut impl FnMut(String)) {
    for Rule { pattern, write } in rules {
        for word in pattern.find_iter(text) {
            found(format!("'{}': write {write}", word.as_str().trim()));
        }
    }
}

/// Returns the comment and the strings of a line, without text in back quotes and without keys of JSON.
fn prose_of(line: &str, code: &str) -> String {
    let mut line = line.to_owned();
    for key in JSON_KEYS {
        line = line.replace(key, &" ".repeat(key.chars().count()));
    }
    let blanked = line.chars().zip(code.chars().chain(std::iter::repeat(' ')));
    without_quotes(&blanked.map(|(char, code)| if code == ' ' { char } else { ' ' }).collect::<String>())
}

/// Returns the text without the text in back quotes.
fn without_quotes(text: &str) -> String {
    text.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// Predicates are `is_`, `has_`, `can_`, `may_`, `needs_`, or have a name that the standard library has. `try_` is an
/// action that may fail.
fn found_names(code: &str, found: &mut impl FnMut(String)) {
    const PREFIXES: [&str; 6] = ["is_", "has_", "can_", "may_", "needs_", "try_"];
    const NAMES: [&str; 3] = ["contains", "eq", "starts_with"];
    if let Some(captures) = PREDICATE.captures(code) {
        let name = &captures[1];
        if !PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && !NAMES.contains(&name) {
            found(format!("fn {name} returns a bool: begin its name with is_, has_, can_, may_ or needs_"));
        }
    }
}

/// Errors of libraries are lower case without a full stop; proper names have more capitals than the first.
fn found_error(text: &str, found: &mut impl FnMut(String)) {
    let first = text.split(' ').next().unwrap_or_default();
    let is_name = first.chars().filter(|char| char.is_uppercase() || char.is_ascii_digit()).count() > 1;
    if first.starts_with(char::is_uppercase) && !is_name || text.ends_with('.') {
        found(format!("error \"{text}\": write lower case, no full stop"));
    }
}

/// Messages are sentences with a capital and a full stop, unless they are made by the caller.
fn found_sentence(text: &str, found: &mut impl FnMut(String)) {
    let is_made_by_caller = text.is_empty() || text.starts_with('{') && text.find('}') == Some(text.len() - 1);
    if !is_made_by_caller && (text.starts_with(char::is_lowercase) || !text.ends_with('.')) {
        found(format!("message \"{text}\": begin with a capital, end with a full stop"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_rust(text: &str) -> usize {
        rust("crates/cipher/src/a.rs", text).len()
    }

    #[test]
    fn wide_comment_is_found() {
        let words = "ab ".repeat(40);
        assert_eq!(of_rust(&format!("// {words}\n")), 1);
        assert_eq!(of_rust(&format!("//! | {words} |\n")), 0, "a table");
        assert_eq!(of_rust(&format!("/// {}https://example.org/{}\n", &words[..90], "x".repeat(60))), 0, "a link");
        assert_eq!(of_rust(&format!("let x = \"{words}\";\n")), 0, "no comment");
        assert_eq!(markdown("a.md", &format!("{words}{words}\n```\n{words}{words}\n```\n")).len(), 1);
        assert_eq!(markdown("a.md", &format!("    {words}{words}\n")).len(), 0, "indented code");
    }

    #[test]
    fn words_in_comments_and_strings_are_found() {
        for text in [
            "// Whoever asks",
            "x(\"nobody\");",
            "/// in the folder",
            "//! the whole cover",
            "// key slots",
            "// The front end",
            "// a client is hung up on",
            "// handed out",
            "x(\"told but once\");",
        ] {
            assert_eq!(of_rust(text), 1, "{text}");
        }
        for text in [
            "let folder = seat(whoever);",
            "// the `folder`",
            "json!({ \"processor\": x })",
            "// covers it",
            "// in front, ends there",
        ] {
            assert_eq!(of_rust(text), 0, "{text}");
        }
        assert_eq!(markdown("a.md", "He says `he`.\n").len(), 1);
        assert_eq!(script("a.sh", "# Whoever asks\nx=nobody # he\n#: about he\n").len(), 2);
        assert_eq!(script("a.sh", &format!("# {0}\n#: about {0}\n", "ab ".repeat(40))).len(), 1);
    }

    #[test]
    fn names_and_heads_and_errors_are_found() {
        for text in [
            "fn what_is_wrong_is_told() {}",
            "fn a_device_in_use_is_refused() {}",
            "/// What it is.",
            "fn fits(&self) -> bool {",
            "fn takes(&self, x: u8) -> bool {",
            "#[error(\"Not found\")]",
            "#[error(\"not found.\")]",
            "#[error(\n    \"Not found\"\n)]",
            "CliError::usage(\"not found.\")",
            "CliError::refused(\n    format!(\"Not {found}\"),",
        ] {
            assert_eq!(of_rust(text), 1, "{text}");
        }
        for text in [
            "fn one_bit_is_found() {}",
            "fn at_the_end(x: u8) {}",
            "CliError::usage(\"Not found.\")",
            "usage(\"not found\")",
            "CliError::refused(format!(\"{name}: not found.\"),",
            "fn is_fit(&self) -> bool {",
            "fn contains(&self, x: u8) -> bool {",
            "#[error(\"LUKS2 header\")]",
            "#[error(\"not found\")]",
        ] {
            assert_eq!(of_rust(text), 0, "{text}");
        }
    }

    #[test]
    fn unchecked_trees_are_left_out() {
        assert_eq!(rust(SENTENCES[0], "#[error(\"{message}\")]\n#[error(\"Not found.\")]"), Vec::<String>::new());
        assert_eq!(rust(SENTENCES[0], "#[error(\"not found\")]").len(), 1);
        assert_eq!(check("elsewhere/a.rs", "// whoever\n"), Vec::<String>::new());
        assert_eq!(check("tests/vm/a.sh", "# whoever\n").len(), 1);
        assert_eq!(check("crates/cipher/src/a.rs", "// whoever\n").len(), 1);
        assert_eq!(check("docs/a.md", "whoever\n").len(), 1, "a document");
    }
}
