//! Subtle changes: those of a slip that most runs do not notice.
//!
//! A statement is left out or its error ignored, a sync is not made, a guard is released at once, `max` stands for
//! `min`, a range ends one too early.

use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{BinOp, Expr, Local, Pat, RangeLimits, Stmt};

use super::{Finder, Insertion, Piece, active};

/// Beginnings of the names of these changes, and of the boundaries and conditions among the other ones.
const SUBTLE: [&str; 13] = [
    "leave out ",
    "ignore the error of ",
    "release ",
    "exchange ",
    "end a range one too early ",
    "replace < with <= ",
    "replace > with >= ",
    "replace <= with < ",
    "replace >= with > ",
    "replace && with || ",
    "replace || with && ",
    "delete ! ",
    "delete match arm ",
];

/// Methods that make changes durable.
const SYNCS: [&str; 9] =
    ["sync", "flush", "fsync", "fdatasync", "sync_all", "sync_data", "sync_blocking", "write_back", "checkpoint"];

/// Methods that are easily taken for each other.
const PAIRS: [(&str, &str); 5] = [
    ("max", "min"),
    ("max_by_key", "min_by_key"),
    ("any", "all"),
    ("is_some_and", "is_none_or"),
    ("saturating_add", "saturating_sub"),
];

/// Returns whether a mutant's name, with that of its file, is one of a subtle change.
pub(in crate::mutants) fn is_subtle(name: &str) -> bool {
    name.split_once(": ").is_some_and(|(_, change)| SUBTLE.iter().any(|start| change.starts_with(start)))
}

fn exchanged(method: &str) -> Option<&'static str> {
    PAIRS.iter().find_map(|&(one, other)| match method {
        _ if method == one => Some(other),
        _ if method == other => Some(one),
        _ => None,
    })
}

/// Returns whether a statement can be left out: a call, a change of a place that has a value.
fn is_optional(expr: &Expr) -> bool {
    match expr {
        // Without a `drop` a borrow may last too long, for which the compiler blames others.
        Expr::Call(call) => call.attrs.is_empty() && call.func.to_token_stream().to_string() != "drop",
        Expr::MethodCall(call) => call.attrs.is_empty(),
        Expr::Try(tried) => tried.attrs.is_empty() && is_optional(&tried.expr),
        Expr::Binary(binary) => binary.attrs.is_empty() && super::is_assignment(&binary.op),
        Expr::Assign(assign) => {
            assign.attrs.is_empty() && matches!(*assign.left, Expr::Field(_) | Expr::Unary(_) | Expr::Index(_))
        }
        _ => false,
    }
}

impl Finder<'_> {
    /// Adds the mutants that leave a statement out or ignore its error; `visit` adds those of its parts.
    pub(super) fn statement(&mut self, stmt: &Stmt, visit: impl FnOnce(&mut Self)) {
        let optional = match stmt {
            Stmt::Expr(expr, Some(_)) if is_optional(expr) => expr,
            Stmt::Local(local) => {
                visit(self);
                return self.guard(local);
            }
            _ => return visit(self),
        };
        let around = optional.span().byte_range();
        let quoted = self.text(optional).to_owned();
        let left_out = self.mutant("leave out a statement of {}", Some(&quoted));
        let mut variants = vec![(left_out, String::new())];
        if let Expr::Try(tried) = optional {
            let ignored = self.mutant("ignore the error of a statement of {}", Some(&quoted));
            variants.push((ignored, format!("let _ = {};", tried.expr.to_token_stream())));
        }
        let mutants: Vec<usize> = variants.iter().map(|(mutant, _)| *mutant).collect();
        let mut open: Vec<Piece> = variants
            .into_iter()
            .map(|(mutant, text)| Piece {
                text: format!("if {} {{ {text} }} else ", active(mutant)),
                mutants: vec![mutant],
            })
            .collect();
        open.push(Piece { text: "{ ".to_owned(), mutants: mutants.clone() });
        let close = vec![Piece { text: "; }".to_owned(), mutants }];
        let at = around.end;
        self.sites.insertions.push(Insertion { at: around.start, is_end: false, pieces: open, around: around.clone() });
        // Its parts end before.
        visit(self);
        self.sites.insertions.push(Insertion { at, is_end: true, pieces: close, around });
    }

    /// Adds a mutant that releases a guard at once: a variable that is only held.
    fn guard(&mut self, local: &Local) {
        let Pat::Ident(name) = &local.pat else { return };
        let (name, is_plain) = (name.ident.to_string(), name.by_ref.is_none() && local.attrs.is_empty());
        if local.init.is_none() || !is_plain || !name.starts_with('_') {
            return;
        }
        let at = local.span().byte_range().end;
        let quoted = self.text(local).to_owned();
        let mutant = self.mutant("release a guard of {} at once", Some(&quoted));
        let pieces = vec![Piece { text: format!(" if {} {{ drop({name}) }}", active(mutant)), mutants: vec![mutant] }];
        self.sites.insertions.push(Insertion { at, is_end: true, pieces, around: at..at });
    }

    /// Adds the mutants of a call or a range.
    pub(super) fn subtle(&mut self, expr: &Expr) {
        let around = expr.span().byte_range();
        match expr {
            Expr::MethodCall(call) => {
                let method = call.method.to_string();
                let quoted = self.text(call).to_owned();
                let receiver = call.receiver.to_token_stream();
                if SYNCS.contains(&method.as_str()) {
                    let mutant = self.mutant(&format!("leave out {method} in {{}}"), Some(&quoted));
                    self.replace(around, vec![(mutant, "Ok(())".to_owned())]);
                } else if let Some(other) = exchanged(&method) {
                    let mutant = self.mutant(&format!("exchange {method} for {other} in {{}}"), Some(&quoted));
                    let text = format!("({receiver}).{other}({})", call.args.to_token_stream());
                    self.replace(around, vec![(mutant, text)]);
                }
            }
            Expr::Range(range) if matches!(range.limits, RangeLimits::HalfOpen(_)) => {
                let Some(end) = &range.end else { return };
                let start = range.start.to_token_stream();
                let quoted = self.text(range).to_owned();
                let mutant = self.mutant("end a range one too early in {}", Some(&quoted));
                self.replace(around, vec![(mutant, format!("({start})..(({}) - 1)", end.to_token_stream()))]);
            }
            Expr::Binary(binary) if matches!(binary.op, BinOp::Le(_) | BinOp::Ge(_)) => {
                let quoted = self.text(binary).to_owned();
                let (op, other) = if matches!(binary.op, BinOp::Le(_)) { ("<=", "<") } else { (">=", ">") };
                let (left, right) = (binary.left.to_token_stream(), binary.right.to_token_stream());
                let mutant = self.mutant(&format!("replace {op} with {other} in {{}}"), Some(&quoted));
                self.replace(around, vec![(mutant, format!("({left}) {other} ({right})"))]);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::mutants::rewrite::Source;
    use std::collections::BTreeSet;

    /// Returns the file with the mutants whose names contain this, and how many these are.
    fn with(text: &str, wanted: &str) -> (String, usize) {
        let source = Source::parse("a.rs", text.to_owned(), 0).unwrap();
        let names = source.names().iter().enumerate();
        let disabled: BTreeSet<usize> = names.filter(|(_, name)| !name.contains(wanted)).map(|(n, _)| n).collect();
        let out = source.rewrite(&disabled).text.replace("crate::mutant_check::is_active", "m");
        syn::parse_file(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
        let digits = |c: char| c.is_ascii_digit();
        let parts: Vec<&str> = out.split("m(").collect();
        let rest = parts[1..].iter().map(|part| part.trim_start_matches(digits));
        (std::iter::once(parts[0]).chain(rest).collect::<Vec<_>>().join("m("), source.names().len() - disabled.len())
    }

    #[test]
    fn statements_are_left_out_and_their_errors_ignored() {
        for (text, wanted, expected) in [
            ("fn f() { g()?; h() }", "leave out", "fn f() { if m() {  } else { g()?; }; h() }"),
            ("fn f() { g()?; h() }", "ignore", "fn f() { if m() { let _ = g (); } else { g()?; }; h() }"),
            ("fn f() { self.n -= 1; }", "leave out", "fn f() { if m() {  } else { self.n -= 1; }; }"),
            ("fn f() { self.n = 1; }", "leave out", "fn f() { if m() {  } else { self.n = 1; }; }"),
            ("fn f() { a.sub(1); }", "leave out", "fn f() { if m() {  } else { a.sub(1); }; }"),
            ("fn f() { a.sync() }", "leave out sync", "fn f() { (if m() { Ok(()) } else { a.sync() }) }"),
        ] {
            assert_eq!(with(text, wanted), (expected.to_owned(), 1), "{text}");
        }
        // It may be what gives the variable its value.
        assert_eq!(with("fn f() { x = 1; let y = g(); }", "leave out").1, 0);
        assert_eq!(with("fn f() { #[cfg(test)] g(); drop(x); }", "leave out").1, 0);
    }

    #[test]
    fn statement_and_its_parts_have_mutants_of_their_own() {
        let (text, count) = with("fn f() { self.n -= a.max(b); }", "");
        assert_eq!(count, 5, "the function, the statement, two operators, the call: {text}");
        let statement = text.find("if m() {  } else { ").unwrap();
        assert!(text.find("-= (if m() { (a).min(b) }").unwrap() > statement, "{text}");
    }

    #[test]
    fn guards_are_released_at_once() {
        let (text, count) = with("fn f() { let _one = a.lock(); let b = c(); let _ = d(); g(); }", "release");
        assert_eq!(count, 1);
        assert!(text.starts_with("fn f() { let _one = a.lock(); if m() { drop(_one) } let b"), "{text}");
    }

    #[test]
    fn boundaries_and_extremes_are_exchanged() {
        for (text, wanted, expected) in [
            ("fn f() { g(a <= b) }", "<= with < ", "fn f() { g((if m() { (a) < (b) } else { a <= b })) }"),
            ("fn f() { g(a >= b) }", ">= with > ", "fn f() { g((if m() { (a) > (b) } else { a >= b })) }"),
            ("fn f() { g(a.max(b)) }", "exchange", "fn f() { g((if m() { (a).min(b) } else { a.max(b) })) }"),
            ("fn f() { g(a.all(b)) }", "exchange", "fn f() { g((if m() { (a).any(b) } else { a.all(b) })) }"),
            ("fn f() { g(a..b) }", "too early", "fn f() { g((if m() { (a)..((b) - 1) } else { a..b })) }"),
        ] {
            assert_eq!(with(text, wanted), (expected.to_owned(), 1), "{text}");
        }
        assert_eq!(with("fn f() { g(a..); g(..=b); }", "a range").1, 0);
    }

    #[test]
    fn subtle_changes_are_known_by_their_names() {
        for name in
            ["a.rs: leave out sync in f: a.sync()", "a.rs: replace <= with < in f: a <= b", "b.rs: delete ! in f"]
        {
            assert!(super::is_subtle(name), "{name}");
        }
        for name in ["a.rs: replace f -> bool with true", "a.rs: replace < with > in f: a < b", "leave out"] {
            assert!(!super::is_subtle(name), "{name}");
        }
    }
}
