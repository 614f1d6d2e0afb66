//! The modules of a crate, their declarations, and the names of other modules that each uses.
//!
//! Works on tokens, without types: a path that starts with `crate`, `self`, `super`, a child module or an imported
//! module is followed, through re-exports, to the module that declares the item. Code under `#[cfg(test)]` is ignored.
//! Names that macros generate count as declared by the module in which the path ends.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// Names of the modules from the crate's root to one module.
pub(crate) type ModulePath = Vec<String>;

/// One module of a crate.
#[derive(Debug, Default)]
struct Module {
    children: BTreeSet<String>,
    items: BTreeSet<String>,
    /// Names that a `use` imports, with their paths.
    imports: BTreeMap<String, Vec<String>>,
    /// Paths of `use …::*`.
    globs: Vec<Vec<String>>,
    /// Paths that the module uses, in a `use` and in its code. Re-exports of a child are excluded.
    used: BTreeSet<Vec<String>>,
}

/// The modules of one crate.
#[derive(Debug, Default)]
pub(crate) struct Crate {
    modules: BTreeMap<ModulePath, Module>,
}

/// Target of a path.
enum Target {
    /// An item of a module.
    Item(ModulePath),
    Module(ModulePath),
    /// Another crate, or a local name.
    Elsewhere,
}

impl Crate {
    /// Adds the module `path`, whose file holds `text`.
    ///
    /// # Errors
    ///
    /// Fails if the text does not consist of Rust tokens.
    pub(crate) fn add(&mut self, path: &[String], text: &str) -> Result<()> {
        let tokens: TokenStream = text.parse().ok().with_context(|| format!("cannot read the tokens of {path:?}"))?;
        self.read_items(path, tokens);
        Ok(())
    }

    /// Returns pairs of modules, the first of which uses an item of the second.
    pub(crate) fn edges(&self) -> BTreeSet<(ModulePath, ModulePath)> {
        let mut edges = BTreeSet::new();
        for (path, module) in &self.modules {
            for used in &module.used {
                if let Target::Item(to) = self.resolve(path, used, 0)
                    && to != *path
                {
                    edges.insert((path.clone(), to));
                }
            }
        }
        edges
    }

    /// Returns all modules.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &ModulePath> {
        self.modules.keys()
    }

    fn read_items(&mut self, path: &[String], tokens: TokenStream) {
        self.modules.entry(path.to_vec()).or_default();
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            let item = Item::read(&tokens[at..]);
            at += item.len.max(1);
            if !item.for_tests {
                self.take_item(path, &item);
            }
        }
    }

    fn take_item(&mut self, path: &[String], item: &Item<'_>) {
        let module = self.modules.entry(path.to_vec()).or_default();
        match (item.keyword.as_str(), &item.name) {
            ("use", _) => {
                for Import { path: used, name } in imports(item.tokens) {
                    let of_child = used.first().is_some_and(|first| first != "crate" && first != "super");
                    if !(item.is_public && of_child) {
                        module.used.insert(used.clone());
                    }
                    match name {
                        Some(name) => _ = module.imports.insert(name, used),
                        None => module.globs.push(used),
                    }
                }
                return;
            }
            ("mod", Some(name)) => {
                module.children.insert(name.clone());
                if let Some(body) = item.body() {
                    let child = [path, std::slice::from_ref(name)].concat();
                    self.read_items(&child, body.stream());
                }
                return;
            }
            (_, Some(name)) => _ = module.items.insert(name.clone()),
            _ => {}
        }
        let mut used = BTreeSet::new();
        used_paths(item.tokens, &mut used);
        self.modules.entry(path.to_vec()).or_default().used.extend(used);
    }

    /// Follows `used`, a path in the module `from`.
    fn resolve(&self, from: &[String], used: &[String], depth: usize) -> Target {
        // Limits imports that lead back to themselves.
        const DEEPEST: usize = 16;
        let Some(module) = self.modules.get(from).filter(|_| depth < DEEPEST) else { return Target::Elsewhere };
        let Some((first, rest)) = used.split_first() else { return Target::Module(from.to_vec()) };
        match first.as_str() {
            "crate" => self.resolve(&[], rest, depth + 1),
            "self" => self.resolve(from, rest, depth + 1),
            "super" => self.resolve(&from[..from.len().saturating_sub(1)], rest, depth + 1),
            name if module.children.contains(name) => {
                let child = [from, std::slice::from_ref(first)].concat();
                match self.resolve(&child, rest, depth + 1) {
                    // A name that a macro generates.
                    Target::Elsewhere => Target::Item(child),
                    found => found,
                }
            }
            name if module.items.contains(name) => Target::Item(from.to_vec()),
            name => match module.imports.get(name).filter(|import| **import != *used) {
                Some(import) => match self.resolve(from, import, depth + 1) {
                    Target::Module(module) => self.resolve(&module, rest, depth + 1),
                    found => found,
                },
                None => self.through_globs(module, from, used, depth),
            },
        }
    }

    fn through_globs(&self, module: &Module, from: &[String], used: &[String], depth: usize) -> Target {
        for glob in &module.globs {
            if let Target::Module(other) = self.resolve(from, glob, depth + 1)
                && other != from
                && let found @ (Target::Item(_) | Target::Module(_)) = self.resolve(&other, used, depth + 1)
            {
                return found;
            }
        }
        Target::Elsewhere
    }
}

/// One item at the top level of a module.
struct Item<'a> {
    tokens: &'a [TokenTree],
    len: usize,
    keyword: String,
    name: Option<String>,
    is_public: bool,
    for_tests: bool,
}

impl<'a> Item<'a> {
    /// Parses the item at the start of `tokens`.
    fn read(tokens: &'a [TokenTree]) -> Self {
        const KEYWORDS: [&str; 14] = [
            "fn",
            "struct",
            "enum",
            "union",
            "trait",
            "type",
            "static",
            "const",
            "mod",
            "use",
            "impl",
            "extern",
            "let",
            "macro_rules",
        ];
        let (mut keyword, mut name, mut is_public, mut for_tests) = (String::new(), None, false, false);
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Punct(punct) if punct.as_char() == ';' => {
                    at += 1;
                    break;
                }
                TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket && keyword.is_empty() => {
                    for_tests |= is_for_tests(group);
                }
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                    at += 1;
                    // A `use` or a value extends to its semicolon.
                    if !matches!(keyword.as_str(), "use" | "const" | "static" | "type") {
                        break;
                    }
                    continue;
                }
                TokenTree::Ident(ident) => {
                    let word = ident.to_string();
                    if word == "pub" && keyword.is_empty() {
                        is_public = true;
                    } else if KEYWORDS.contains(&word.as_str()) && (keyword.is_empty() || is_prefix(&keyword)) {
                        keyword = word;
                        name = None;
                    } else if !keyword.is_empty() && name.is_none() && keyword != "impl" {
                        name = Some(word);
                    }
                }
                _ => {}
            }
            at += 1;
        }
        Self { tokens: &tokens[..at], len: at, keyword, name, is_public, for_tests }
    }

    fn body(&self) -> Option<&Group> {
        match self.tokens.last() {
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => Some(group),
            _ => None,
        }
    }
}

/// Whether another keyword may follow: `const fn`, `extern "C" fn`.
fn is_prefix(keyword: &str) -> bool {
    matches!(keyword, "const" | "extern")
}

/// Whether an attribute is `cfg(test)`, or a list of conditions with `test` that is not inverted.
fn is_for_tests(attribute: &Group) -> bool {
    let text = attribute.stream().to_string().replace(' ', "");
    text.starts_with("cfg(") && !text.contains("not(test") && {
        let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|word| word == "test")
    }
}

/// One name of a `use`: its path, and the imported name. `None`: all names of a module.
struct Import {
    path: Vec<String>,
    name: Option<String>,
}

/// Returns the names of a `use`, whose tokens may start with attributes and visibility and end with the semicolon.
fn imports(tokens: &[TokenTree]) -> Vec<Import> {
    let start = tokens.iter().position(|token| matches!(token, TokenTree::Ident(ident) if ident == "use"));
    let mut found = Vec::new();
    use_tree(&tokens[start.map_or(0, |at| at + 1)..], &[], &mut found);
    found
}

fn use_tree(tokens: &[TokenTree], before: &[String], found: &mut Vec<Import>) {
    for branch in tokens.split(|token| matches!(token, TokenTree::Punct(punct) if matches!(punct.as_char(), ',' | ';')))
    {
        let mut path = before.to_vec();
        let mut name = None;
        let mut renamed = false;
        for token in branch {
            match token {
                TokenTree::Ident(ident) if ident == "as" => renamed = true,
                TokenTree::Ident(ident) if renamed => name = Some(ident.to_string()),
                TokenTree::Ident(ident) => path.push(ident.to_string()),
                TokenTree::Punct(punct) if punct.as_char() == '*' => {
                    found.push(Import { path: path.clone(), name: None });
                    path.clear();
                }
                TokenTree::Group(group) => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    use_tree(&inner, &path, found);
                    path.clear();
                }
                _ => {}
            }
        }
        // `{self, …}` imports the module itself.
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        if let Some(last) = path.last().filter(|_| path.len() > before.len() || before.len() > 1) {
            let name = name.unwrap_or_else(|| last.clone());
            found.push(Import { path, name: Some(name) });
        }
    }
}

/// Collects the paths of at least two names in code, including macro calls, and of each `use` in a body.
fn used_paths(tokens: &[TokenTree], found: &mut BTreeSet<Vec<String>>) {
    let is_colon = |token: Option<&TokenTree>| matches!(token, Some(TokenTree::Punct(p)) if p.as_char() == ':');
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(ident) if ident == "use" => {
                let end = tokens[at..].iter().position(|t| matches!(t, TokenTree::Punct(p) if p.as_char() == ';'));
                let end = end.map_or(tokens.len(), |len| at + len);
                found.extend(imports(&tokens[at..end]).into_iter().map(|import| import.path));
                at = end;
            }
            TokenTree::Ident(ident) => {
                let mut path = vec![ident.to_string()];
                while is_colon(tokens.get(at + 1)) && is_colon(tokens.get(at + 2)) {
                    let Some(TokenTree::Ident(next)) = tokens.get(at + 3) else { break };
                    path.push(next.to_string());
                    at += 3;
                }
                if path.len() > 1 {
                    found.insert(path);
                }
            }
            TokenTree::Group(group) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                used_paths(&inner, found);
            }
            _ => {}
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(files: &[(&str, &str)]) -> Vec<(String, String)> {
        let mut all = Crate::default();
        for (path, text) in files {
            let path: ModulePath = path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
            all.add(&path, text).unwrap();
        }
        all.edges().into_iter().map(|(from, to)| (from.join("::"), to.join("::"))).collect()
    }

    fn pair(from: &str, to: &str) -> (String, String) {
        (from.to_owned(), to.to_owned())
    }

    #[test]
    fn edges_of_uses_and_paths_lead_to_the_declaring_module() {
        let root = "mod a; mod b; mod c; pub use b::B;";
        let a = "use crate::B; fn f() { crate::c::g(super::c::H) }";
        let found = edges(&[("", root), ("a", a), ("b", "pub struct B;"), ("c", "pub fn g() {} pub struct H;")]);
        assert_eq!(found, [pair("a", "b"), pair("a", "c")], "a re-export is no use, and is looked through");
    }

    #[test]
    fn edges_through_imported_modules_and_macros_are_seen() {
        let a = "use crate::{b, c as d}; fn f() { assert!(b::B == 1); } type T = d::inner::U;";
        let c = "pub mod inner { pub struct U; }";
        let found = edges(&[("", "mod a; mod b; mod c;"), ("a", a), ("b", "pub const B: u8 = { 1 };"), ("c", c)]);
        assert_eq!(found, [pair("a", "b"), pair("a", "c::inner")]);
    }

    #[test]
    fn edges_of_tests_comments_and_strings_are_none() {
        let a = "// crate::b::B\nfn f() { let _ = \"crate::b::B\"; }\n#[cfg(test)]\nmod tests { use crate::b::B; }";
        let b = "pub struct B; #[cfg(all(test, unix))] use crate::a::f; #[cfg(not(test))] use crate::c::C;";
        let found = edges(&[("", "mod a; mod b; mod c;"), ("a", a), ("b", b), ("c", "pub struct C;")]);
        assert_eq!(found, [pair("b", "c")]);
    }

    #[test]
    fn edges_of_names_made_by_macros_end_at_the_module() {
        let a = "make!(A); pub(crate) use self::deep::Z; mod deep { make!(Z); }";
        let found = edges(&[("", "mod a; mod b;"), ("a", a), ("b", "use crate::a::{A, Z, self as other};")]);
        assert_eq!(found, [pair("b", "a"), pair("b", "a::deep")]);
    }

    #[test]
    fn edges_between_parent_and_child_are_found() {
        let root = "mod a; fn f() { a::g(); } pub struct S;";
        assert_eq!(edges(&[("", root), ("a", "use super::S; pub fn g() {}")]), [pair("", "a"), pair("a", "")]);
    }
}
