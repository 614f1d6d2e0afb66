//! Finds the places of a source file that can be mutated, and what to insert there.

use std::ops::Range;

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Arm, Attribute, BinOp, Block, Expr, Item, Pat, ReturnType, Signature, Type, UnOp};

use super::values;

pub(super) mod subtle;

/// Characters of an expression that a mutant's name quotes.
const QUOTED_LEN: usize = 72;

/// Mutants of a file, and the insertions that compile them in.
#[derive(Default)]
pub(super) struct Sites {
    /// Name of each mutant without its file.
    pub(super) names: Vec<String>,
    pub(super) insertions: Vec<Insertion>,
}

/// Text that is inserted at one place.
pub(super) struct Insertion {
    pub(super) at: usize,
    /// Ends an expression: it comes before what begins at the same place.
    pub(super) is_end: bool,
    pub(super) pieces: Vec<Piece>,
    /// Range of the source that the insertion and its counterpart enclose.
    pub(super) around: Range<usize>,
}

/// Text that is needed by the mutants with these indices, and left out if none of them compiles.
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) mutants: Vec<usize>,
}

/// Returns the sites of a source file.
pub(super) fn find(source: &str) -> syn::Result<Sites> {
    let file = syn::parse_file(source)?;
    let mut finder = Finder { source, sites: Sites::default(), scope: Vec::new() };
    finder.visit_file(&file);
    Ok(finder.sites)
}

struct Finder<'a> {
    source: &'a str,
    sites: Sites,
    /// Names of the types and functions around the place.
    scope: Vec<String>,
}

impl Finder<'_> {
    /// Adds a mutant and returns its index. `{}` in the text is the place of its function.
    fn mutant(&mut self, change: &str, expression: Option<&str>) -> usize {
        let place = self.scope.join("::");
        let quoted = expression.map(|text| format!(": {}", shortened(text))).unwrap_or_default();
        let name = format!("{}{quoted}", change.replace("{}", &place));
        let same = |known: &&String| **known == name || known.strip_prefix(&name).is_some_and(is_ordinal);
        let name = match self.sites.names.iter().filter(same).count() {
            0 => name,
            others => format!("{name} ({})", others + 1),
        };
        self.sites.names.push(name);
        self.sites.names.len() - 1
    }

    fn text(&self, node: &impl Spanned) -> &str {
        &self.source[node.span().byte_range()]
    }

    /// Puts an expression with its variants into parentheses: `(if MUTANT { variant } else { expression })`.
    fn replace(&mut self, around: Range<usize>, variants: Vec<(usize, String)>) {
        let mutants: Vec<usize> = variants.iter().map(|(mutant, _)| *mutant).collect();
        let all = |text: &str| Piece { text: text.to_owned(), mutants: mutants.clone() };
        let mut pieces = vec![all("(")];
        for (mutant, text) in &variants {
            let text = format!("if {} {{ {text} }} else ", active(*mutant));
            pieces.push(Piece { text, mutants: vec![*mutant] });
        }
        pieces.push(all("{ "));
        let close = vec![all(" })")];
        let at = around.end;
        self.sites.insertions.push(Insertion { at: around.start, is_end: false, pieces, around: around.clone() });
        self.sites.insertions.push(Insertion { at, is_end: true, pieces: close, around });
    }

    /// Makes a function return simple values of its result type.
    fn replace_body(&mut self, signature: &Signature, block: &Block) {
        let Some(first) = block.stmts.first() else { return };
        let body: String = block.stmts.iter().map(|stmt| stmt.to_token_stream().to_string()).collect();
        let result = match &signature.output {
            ReturnType::Default => String::new(),
            ReturnType::Type(_, ty) => format!(" -> {}", shortened(self.text(ty))),
        };
        let mut pieces = Vec::new();
        for value in values::of_result(&signature.output) {
            if value.parse::<TokenStream>().is_ok_and(|tokens| tokens.to_string() == body) {
                continue;
            }
            let mutant = self.mutant(&format!("replace {{}}{result} with {value}"), None);
            pieces.push(Piece { text: format!("if {} {{ return {value}; }} ", active(mutant)), mutants: vec![mutant] });
        }
        // Around the whole body: an expression that begins at the same place is inside.
        let (at, around) = (first.span().byte_range().start, block.span().byte_range());
        self.sites.insertions.push(Insertion { at, is_end: false, pieces, around });
    }

    fn function(&mut self, attributes: &[Attribute], signature: &Signature, block: &Block) {
        if is_for_tests(attributes) || signature.constness.is_some() {
            return;
        }
        self.scope.push(signature.ident.to_string());
        if signature.unsafety.is_none() {
            self.replace_body(signature, block);
        }
        self.visit_block(block);
        self.scope.pop();
    }

    /// Adds mutants of an arm's guard, and one that deletes the arm if another takes its values.
    fn arm(&mut self, arm: &Arm, is_deletable: bool) {
        let pattern = self.text(&arm.pat).to_owned();
        let deleted = is_deletable.then(|| self.mutant("delete match arm in {}", Some(&pattern)));
        let Some((_, guard)) = &arm.guard else {
            let Some(mutant) = deleted else { return };
            let at = arm.pat.span().byte_range().end;
            let pieces = vec![Piece { text: format!(" if !{}", active(mutant)), mutants: vec![mutant] }];
            self.sites.insertions.push(Insertion { at, is_end: true, pieces, around: at..at });
            return;
        };
        if has_let(guard) {
            return;
        }
        let quoted = self.text(guard).to_owned();
        let [held, failed] = ["true", "false"]
            .map(|value| self.mutant(&format!("replace match guard with {value} in {{}}"), Some(&quoted)));
        let mut open = Vec::new();
        if let Some(mutant) = deleted {
            open.push(Piece { text: format!("!{} && (", active(mutant)), mutants: vec![mutant] });
        }
        open.push(Piece { text: format!("{} || (", active(held)), mutants: vec![held] });
        open.push(Piece { text: format!("!{} && (", active(failed)), mutants: vec![failed] });
        let close = open.iter().rev().map(|piece| Piece { text: ")".to_owned(), mutants: piece.mutants.clone() });
        let (close, around) = (close.collect(), guard.span().byte_range());
        let at = around.end;
        self.sites.insertions.push(Insertion { at: around.start, is_end: false, pieces: open, around: around.clone() });
        // The guard's own mutants end before.
        self.visit_expr(guard);
        self.sites.insertions.push(Insertion { at, is_end: true, pieces: close, around });
    }

    fn binary(&mut self, binary: &syn::ExprBinary) {
        let whole = self.text(binary).to_owned();
        let (op, others) = operators(&binary.op);
        let (left, right) = (binary.left.to_token_stream(), binary.right.to_token_stream());
        let mut variants = Vec::new();
        for other in others {
            let mutant = self.mutant(&format!("replace {op} with {other} in {{}}"), Some(&whole));
            let text = match op.ends_with('=') && !matches!(*other, "==" | "!=") && is_assignment(&binary.op) {
                true => format!("{left} {other} {right}"),
                false => format!("({left}) {other} ({right})"),
            };
            variants.push((mutant, text));
        }
        if !variants.is_empty() {
            self.replace(binary.span().byte_range(), variants);
        }
    }

    fn structure(&mut self, structure: &syn::ExprStruct) {
        let (Some(rest), true) = (&structure.rest, structure.dot2_token.is_some()) else { return };
        let path = structure.path.to_token_stream().to_string().replace(' ', "");
        let mut variants = Vec::new();
        for (n, field) in structure.fields.iter().enumerate() {
            let member = field.member.to_token_stream();
            let change = format!("delete field {member} from struct {path} expression in {{}}");
            let mutant = self.mutant(&change, None);
            let others = structure.fields.iter().enumerate().filter(|(other, _)| *other != n);
            let others: String = others.map(|(_, field)| format!("{}, ", field.to_token_stream())).collect();
            let name = structure.path.to_token_stream();
            variants.push((mutant, format!("{name} {{ {others} ..{} }}", rest.to_token_stream())));
        }
        if !variants.is_empty() {
            self.replace(structure.span().byte_range(), variants);
        }
    }

    fn unary(&mut self, unary: &syn::ExprUnary) {
        let op = match unary.op {
            UnOp::Not(_) => "!",
            UnOp::Neg(_) => "-",
            _ => return,
        };
        let whole = self.text(unary).to_owned();
        let mutant = self.mutant(&format!("delete {op} in {{}}"), Some(&whole));
        self.replace(unary.span().byte_range(), vec![(mutant, unary.expr.to_token_stream().to_string())]);
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Fn(function) => self.function(&function.attrs, &function.sig, &function.block),
            Item::Mod(module) if !is_for_tests(&module.attrs) => visit::visit_item_mod(self, module),
            Item::Impl(item) if !is_for_tests(&item.attrs) => {
                let own = type_name(&item.self_ty);
                let name = match &item.trait_ {
                    Some((_, path, _)) => {
                        let path = path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
                        if path == "Debug" {
                            return;
                        }
                        format!("<{path} for {own}>")
                    }
                    None => own,
                };
                self.scope.push(name);
                for item in &item.items {
                    if let syn::ImplItem::Fn(function) = item {
                        self.function(&function.attrs, &function.sig, &function.block);
                    }
                }
                self.scope.pop();
            }
            Item::Trait(item) if !is_for_tests(&item.attrs) => {
                self.scope.push(item.ident.to_string());
                for item in &item.items {
                    if let syn::TraitItem::Fn(syn::TraitItemFn { attrs, sig, default: Some(block), .. }) = item {
                        self.function(attrs, sig, block);
                    }
                }
                self.scope.pop();
            }
            // Everything else is evaluated by the compiler, or has no expressions.
            _ => {}
        }
    }

    fn visit_stmt(&mut self, stmt: &'ast syn::Stmt) {
        self.statement(stmt, |finder| visit::visit_stmt(finder, stmt));
    }

    fn visit_expr(&mut self, expr: &'ast Expr) {
        self.subtle(expr);
        match expr {
            Expr::Const(_) => {}
            Expr::Repeat(repeat) => self.visit_expr(&repeat.expr),
            Expr::Binary(binary) if !has_let(expr) => {
                self.binary(binary);
                visit::visit_expr(self, expr);
            }
            Expr::Unary(unary) => {
                self.unary(unary);
                visit::visit_expr(self, expr);
            }
            Expr::Struct(structure) => {
                self.structure(structure);
                visit::visit_expr(self, expr);
            }
            Expr::Match(matching) => {
                self.visit_expr(&matching.expr);
                let is_wild = |arm: &Arm| matches!(arm.pat, Pat::Wild(_)) && arm.guard.is_none();
                let wild = matching.arms.iter().position(is_wild).unwrap_or(0);
                for (n, arm) in matching.arms.iter().enumerate().filter(|(_, arm)| !is_for_tests(&arm.attrs)) {
                    let has_let_guard = arm.guard.as_ref().is_some_and(|(_, guard)| has_let(guard));
                    self.arm(arm, n < wild && !has_let_guard);
                    self.visit_expr(&arm.body);
                }
            }
            _ => visit::visit_expr(self, expr),
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !is_for_tests(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_expr_block(&mut self, block: &'ast syn::ExprBlock) {
        if !is_for_tests(&block.attrs) {
            visit::visit_expr_block(self, block);
        }
    }

    // The compiler evaluates these.
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_pat(&mut self, _: &'ast Pat) {}
    fn visit_path(&mut self, _: &'ast syn::Path) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

/// Returns the condition that a mutant is active; the number follows when all files are known.
fn active(mutant: usize) -> String {
    format!("crate::mutant_check::is_active(@{mutant}@)")
}

/// Returns an operator's text and those that replace it.
fn operators(op: &BinOp) -> (&'static str, &'static [&'static str]) {
    match op {
        BinOp::Eq(_) => ("==", &["!="]),
        BinOp::Ne(_) => ("!=", &["=="]),
        BinOp::And(_) => ("&&", &["||"]),
        BinOp::Or(_) => ("||", &["&&"]),
        BinOp::Lt(_) => ("<", &["==", ">", "<="]),
        BinOp::Gt(_) => (">", &["==", "<", ">="]),
        BinOp::Le(_) => ("<=", &[">"]),
        BinOp::Ge(_) => (">=", &["<"]),
        BinOp::Add(_) => ("+", &["-", "*"]),
        BinOp::Sub(_) => ("-", &["+", "/"]),
        BinOp::Mul(_) => ("*", &["+", "/"]),
        BinOp::Div(_) => ("/", &["%", "*"]),
        BinOp::Rem(_) => ("%", &["/", "+"]),
        BinOp::Shl(_) => ("<<", &[">>"]),
        BinOp::Shr(_) => (">>", &["<<"]),
        BinOp::BitAnd(_) => ("&", &["|", "^"]),
        BinOp::BitOr(_) => ("|", &["&", "^"]),
        BinOp::BitXor(_) => ("^", &["|", "&"]),
        BinOp::AddAssign(_) => ("+=", &["-=", "*="]),
        BinOp::SubAssign(_) => ("-=", &["+=", "/="]),
        BinOp::MulAssign(_) => ("*=", &["+=", "/="]),
        BinOp::DivAssign(_) => ("/=", &["%=", "*="]),
        BinOp::RemAssign(_) => ("%=", &["/=", "+="]),
        BinOp::ShlAssign(_) => ("<<=", &[">>="]),
        BinOp::ShrAssign(_) => (">>=", &["<<="]),
        BinOp::BitAndAssign(_) => ("&=", &["|=", "^="]),
        BinOp::BitOrAssign(_) => ("|=", &["&=", "^="]),
        BinOp::BitXorAssign(_) => ("^=", &["|=", "&="]),
        _ => ("", &[]),
    }
}

fn is_assignment(op: &BinOp) -> bool {
    let (text, _) = operators(op);
    text.len() > 1 && text.ends_with('=') && !matches!(text, "==" | "!=" | "<=" | ">=")
}

/// Returns whether a condition binds variables: `a && let Some(b) = c`.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

/// Returns whether the code is compiled for tests or models only.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = attribute.to_token_stream().to_string();
        let has = |word: &str| text.split(|c: char| !c.is_alphanumeric()).any(|part| part == word);
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg") && (has("test") || has("loom") || has("injection")) && !has("not")
    })
}

fn type_name(ty: &Type) -> String {
    match ty {
        Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default(),
        other => other.to_token_stream().to_string(),
    }
}

/// Returns an expression in one line, cut if it is long.
fn shortened(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(QUOTED_LEN) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

fn is_ordinal(rest: &str) -> bool {
    rest.strip_prefix(" (").and_then(|rest| rest.strip_suffix(')')).is_some_and(|n| n.parse::<usize>().is_ok())
}
