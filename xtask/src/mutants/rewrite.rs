//! Compiles the mutants of a source file into it, each behind a check at run time.
//!
//! Only one mutant is active at a time, so the variants of an expression contain the unchanged text of its operands,
//! and the source grows in proportion to the depth of its expressions.

use std::collections::BTreeSet;
use std::ops::Range;

use super::sites::{self, Insertion, Sites};

/// A source file with its mutants.
pub(super) struct Source {
    text: String,
    sites: Sites,
    /// Number of the file's first mutant.
    first: usize,
}

/// A rewritten file, and where its mutants are.
pub(super) struct Rewritten {
    pub(super) text: String,
    /// Text of one mutant each.
    regions: Vec<(Range<usize>, usize)>,
    /// Expressions with all their variants.
    wider: Vec<(Range<usize>, Vec<usize>)>,
}

impl Source {
    /// Parses a file whose mutants are numbered from `first` on. Their names begin with the file's.
    pub(super) fn parse(file: &str, text: String, first: usize) -> syn::Result<Self> {
        let mut sites = sites::find(&text)?;
        for name in &mut sites.names {
            *name = format!("{file}: {name}");
        }
        // Stable: what begins first is outside, and what ends first is inside.
        sites.insertions.sort_by_key(|insertion| (insertion.at, !insertion.is_end, sort_inside(insertion)));
        Ok(Self { text, sites, first })
    }

    /// Returns the names of the mutants in the order of their numbers.
    pub(super) fn names(&self) -> &[String] {
        &self.sites.names
    }

    /// Returns a mutant's line, the code there, and what is inserted.
    pub(super) fn change(&self, number: usize) -> Option<(usize, &str, &str)> {
        let index = number.checked_sub(self.first)?;
        let inserted = |insertion: &'_ Insertion| insertion.pieces.iter().position(|piece| piece.mutants == [index]);
        let (insertion, piece) = self.sites.insertions.iter().find_map(|one| Some((one, inserted(one)?)))?;
        let line = self.text[..insertion.at].matches('\n').count() + 1;
        Some((line, &self.text[insertion.around.clone()], &insertion.pieces[piece].text))
    }

    /// Returns the text with all mutants but those that do not compile.
    pub(super) fn rewrite(&self, disabled: &BTreeSet<usize>) -> Rewritten {
        let mut out = Rewritten { text: String::new(), regions: Vec::new(), wider: Vec::new() };
        let mut done = 0;
        let mut open: Vec<(Range<usize>, usize)> = Vec::new();
        for insertion in &self.sites.insertions {
            out.text.push_str(&self.text[done..insertion.at]);
            done = insertion.at;
            let start = out.text.len();
            let mut enabled = BTreeSet::new();
            for piece in &insertion.pieces {
                let own: Vec<usize> =
                    piece.mutants.iter().map(|n| n + self.first).filter(|n| !disabled.contains(n)).collect();
                if own.is_empty() {
                    continue;
                }
                let start = out.text.len();
                out.text.push_str(&numbered(&piece.text, self.first));
                if let [only] = own[..] {
                    out.regions.push((start..out.text.len(), only));
                }
                enabled.extend(own);
            }
            if !insertion.is_end {
                open.push((insertion.around.clone(), start));
            } else if let Some(n) = open.iter().rposition(|(around, _)| *around == insertion.around) {
                let (_, start) = open.remove(n);
                out.wider.push((start..out.text.len(), enabled.into_iter().collect()));
            }
        }
        out.text.push_str(&self.text[done..]);
        out
    }
}

impl Rewritten {
    /// Returns the mutants that a compiler's message about these bytes is about: the innermost one, or all of the
    /// innermost expression.
    pub(super) fn blamed(&self, bytes: &Range<usize>) -> Option<Vec<usize>> {
        let within = |range: &Range<usize>| range.start <= bytes.start && bytes.end <= range.end;
        let own = self.regions.iter().filter(|(range, _)| within(range)).min_by_key(|(range, _)| range.len());
        own.map(|(_, mutant)| vec![*mutant])
    }

    /// As [`Rewritten::blamed`], for a message about code that all variants share.
    pub(super) fn blamed_around(&self, bytes: &Range<usize>) -> Option<Vec<usize>> {
        let within = |range: &Range<usize>| range.start <= bytes.start && bytes.end <= range.end;
        let wider = self.wider.iter().filter(|(range, mutants)| within(range) && !mutants.is_empty());
        wider.min_by_key(|(range, _)| range.len()).map(|(_, mutants)| mutants.clone())
    }
}

/// Orders insertions at one place: of those that begin, the longer is outside; of those that end, the shorter inside.
fn sort_inside(insertion: &Insertion) -> usize {
    if insertion.is_end { insertion.around.len() } else { usize::MAX - insertion.around.len() }
}

/// Replaces `@INDEX@` by the number that the mutant has in the whole tree.
fn numbered(text: &str, first: usize) -> String {
    let parts: Vec<&str> = text.split('@').collect();
    match parts[..] {
        [before, index, ref rest @ ..] if parts.len() >= 3 => {
            let number = index.parse::<usize>().map_or_else(|_| index.to_owned(), |n| (n + first).to_string());
            format!("{before}{number}{}", rest.join("@"))
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::parse("a.rs", text.to_owned(), 0).unwrap()
    }

    /// Returns the file with the mutants whose names contain one of these words.
    fn rewritten(text: &str, words: &[&str]) -> String {
        let source = source(text);
        let unwanted = |name: &String| !words.iter().any(|word| name.contains(word));
        let disabled = source.names().iter().enumerate().filter(|(_, name)| unwanted(name)).map(|(n, _)| n);
        source.rewrite(&disabled.collect()).text.replace("crate::mutant_check::is_active", "m")
    }

    #[test]
    fn operator_is_replaced_behind_a_check() {
        let text = "fn f(a: u8, b: u8) -> bool {\n    a < b\n}\n";
        let found = rewritten(text, &["with >", "with <="]);
        assert_eq!(
            found,
            "fn f(a: u8, b: u8) -> bool {\n    (if m(3) { (a) > (b) } else if m(4) { (a) <= (b) } else { a < b })\n}\n"
        );
        assert_eq!(rewritten(text, &["nothing"]), text, "mutants that do not compile leave no trace");
    }

    #[test]
    fn names_have_function_and_expression_but_no_line() {
        let text = "impl T {\n fn f(&self) -> Option<u8> {\n  if self.a == 1 || self.a == 1 { g()?; }\n  None\n }\n}";
        assert_eq!(
            source(text).names(),
            [
                "a.rs: replace T::f -> Option<u8> with None",
                "a.rs: replace T::f -> Option<u8> with Some(0)",
                "a.rs: replace T::f -> Option<u8> with Some(1)",
                "a.rs: replace || with && in T::f: self.a == 1 || self.a == 1",
                "a.rs: replace == with != in T::f: self.a == 1",
                "a.rs: replace == with != in T::f: self.a == 1 (2)",
                "a.rs: leave out a statement of T::f: g()?",
                "a.rs: ignore the error of a statement of T::f: g()?",
            ]
        );
        assert_eq!(source(text).names(), source(&text.replace('\n', "\n\n")).names());
    }

    #[test]
    fn change_is_told_with_its_line() {
        let source = Source::parse("a.rs", "fn f() {\n    g(a + b);\n}".to_owned(), 10).unwrap();
        let (line, code, inserted) = source.change(12).unwrap();
        assert_eq!((line, code), (2, "a + b"));
        assert!(source.names()[2].contains("+ with -") && inserted.contains("(a) - (b)"), "{inserted}");
        assert!(source.change(9).is_none() && source.change(100).is_none());
    }

    #[test]
    fn nested_expressions_nest_in_the_unchanged_branch() {
        let found = rewritten("fn f() { g(!(a && b) && c); }", &["replace &&", "delete !"]);
        assert_eq!(
            found,
            "fn f() { g((if m(2) { (! (a && b)) || (c) } else { (if m(3) { (a && b) } else \
             { !((if m(4) { (a) || (b) } else { a && b })) }) && c })); }"
        );
        syn::parse_file(&found).unwrap();
    }

    #[test]
    fn chain_with_let_keeps_its_operators() {
        let text = "fn f() { if a && let Some(b) = c && b < 1 { g(); } }";
        let found = rewritten(text, &["&&", "with >"]);
        assert_eq!(found, "fn f() { if a && let Some(b) = c && (if m(2) { (b) > (1) } else { b < 1 }) { g(); } }");
    }

    #[test]
    fn arms_before_a_wildcard_can_be_deleted_and_guards_decided() {
        let text = "fn f() { match x { A => 1, B if y => 2, _ => 3 }; }";
        let found = rewritten(text, &["match"]);
        assert_eq!(
            found,
            "fn f() { match x { A if !m(1) => 1, B if !m(2) && (m(3) || (!m(4) && (y))) => 2, _ => 3 }; }"
        );
        assert_eq!(rewritten("fn f() { match x { A => 1, B => 2 }; }", &["match"]).matches("m(").count(), 0);
    }

    #[test]
    fn field_before_a_base_can_be_deleted() {
        let found = rewritten("fn f() -> S { S { a: 1, b, ..s } }", &["delete field b"]);
        assert_eq!(found, "fn f() -> S { (if m(2) { S { a : 1,  ..s } } else { S { a: 1, b, ..s } }) }");
    }

    #[test]
    fn constants_tests_and_debug_are_left_alone() {
        for text in [
            "const A: u8 = 1 + 2;",
            "const fn f() -> u8 { 1 + 2 }",
            "#[cfg(test)] mod t { fn f() -> u8 { 1 + 2 } }",
            "#[cfg(test)] fn f() -> u8 { 1 + 2 }",
            "#[cfg(feature = \"fault-injection\")] impl T { fn f() -> u8 { 1 + 2 } }",
            "impl fmt::Debug for T { fn fmt(&self) -> bool { 1 < 2 } }",
            "fn f() { }",
        ] {
            assert_eq!(source(text).names(), [""; 0], "{text}");
        }
        let kept = |text: &str| source(text).names().iter().filter(|name| !name.contains("replace f")).count();
        assert_eq!(kept("fn f() { let a = [0; 1 + 2]; let b: [u8; 3 - 1] = a; match b { -1 => {} } }"), 0);
        assert_eq!(kept("#[cfg(not(test))] fn f() { g(1 + 2); }"), 3);
    }

    #[test]
    fn message_of_the_compiler_blames_the_mutant_around_it() {
        let source = source("fn f(a: u8, b: u8) -> bool { a < b }");
        let rewritten = source.rewrite(&BTreeSet::new());
        let at = |part: &str| {
            let start = rewritten.text.find(part).unwrap();
            start..start + part.len()
        };
        assert_eq!(rewritten.blamed(&at("(a) > (b)")), Some(vec![3]));
        assert_eq!(rewritten.blamed(&at("return true")), Some(vec![0]));
        assert_eq!(rewritten.blamed(&at("a < b")), None);
        assert_eq!(rewritten.blamed_around(&at("a < b")), Some(vec![2, 3, 4]));
        assert_eq!(rewritten.blamed_around(&at("fn f")), None);
        assert!(rewritten.text.contains("is_active(3)"));
    }

    #[test]
    fn mutants_of_later_files_have_later_numbers() {
        let source = Source::parse("b.rs", "fn f() { g(a + b); }".to_owned(), 100).unwrap();
        let text = source.rewrite(&BTreeSet::from([100])).text;
        assert!(text.contains("is_active(101)") && !text.contains("is_active(100)"));
    }
}
