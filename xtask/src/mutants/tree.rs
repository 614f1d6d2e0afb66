//! A copy of the tree with the mutants of some groups compiled in.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use inlock_tests::process::{program, text};

use super::groups::Group;
use super::rewrite::{Rewritten, Source};

/// Module that each mutated crate gets.
const CHECK: &str = include_str!("check.rs");
/// Attributes of each mutated crate: variants have needless parentheses, and arithmetic that lints refuse.
const ALLOWED: &[u8] = b"#![allow(warnings, arithmetic_overflow, unconditional_panic)] ";

/// The copy, and what is mutated in it.
pub(super) struct Tree {
    groups: Vec<&'static Group>,
    root: PathBuf,
    pub(super) copy: PathBuf,
    /// Names of the files under version control.
    files: BTreeSet<String>,
    sources: Vec<(String, Source)>,
    rewritten: Vec<(String, Rewritten)>,
    /// Names of all mutants, in the order of their numbers.
    pub(super) names: Vec<String>,
    /// Mutants that do not compile.
    pub(super) disabled: BTreeSet<usize>,
    /// Mutants that are not compiled in, as the options leave them out.
    pub(super) unwanted: BTreeSet<usize>,
    /// File with their names from run to run.
    unviable: PathBuf,
}

impl Tree {
    /// Reads the tree at `root`, to be copied to `place`, with the mutants of these groups. Those that did not compile
    /// earlier are left out.
    pub(super) fn read(root: &Path, place: &Path, groups: &[&'static Group]) -> Result<Self> {
        let listed = text(program("git").arg("-C").arg(root).args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]))?;
        let files: BTreeSet<String> =
            listed.split('\0').filter(|name| root.join(name).is_file()).map(str::to_owned).collect();
        ensure!(files.contains("Cargo.toml"), "version control lists no Cargo.toml");
        let (mut sources, mut names) = (Vec::new(), Vec::new());
        for file in files.iter().filter(|file| groups.iter().any(|group| group.has_file(file))) {
            let text = fs::read_to_string(root.join(file))?;
            let source = Source::parse(file, text, names.len()).with_context(|| format!("cannot parse {file}"))?;
            names.extend_from_slice(source.names());
            sources.push((file.clone(), source));
        }
        let unviable = place.join("unviable.txt");
        let known = fs::read_to_string(&unviable).unwrap_or_default();
        let known: BTreeSet<&str> = known.lines().collect();
        let disabled = (0..names.len()).filter(|&number| known.contains(names[number].as_str())).collect();
        let (groups, root, copy) = (groups.to_vec(), root.to_owned(), place.join("tree"));
        Ok(Self {
            groups,
            root,
            copy,
            files,
            sources,
            rewritten: Vec::new(),
            names,
            disabled,
            unwanted: BTreeSet::new(),
            unviable,
        })
    }

    /// Keeps the names of mutants that do not compile for the next run.
    pub(super) fn save_disabled(&self) -> Result<()> {
        let known = fs::read_to_string(&self.unviable).unwrap_or_default();
        let names = self.disabled.iter().map(|&number| self.names[number].as_str());
        // Those of other groups stay.
        let names: BTreeSet<&str> = known.lines().chain(names).collect();
        Ok(fs::write(&self.unviable, names.into_iter().collect::<Vec<_>>().join("\n"))?)
    }

    /// Brings the copy up to date.
    pub(super) fn write(&mut self) -> Result<()> {
        let left_out = &self.disabled | &self.unwanted;
        self.rewritten = self.sources.iter().map(|(name, s)| (name.clone(), s.rewrite(&left_out))).collect();
        for name in &self.files {
            let (from, to) = (self.root.join(name), self.copy.join(name));
            let mut bytes = fs::read(&from)?;
            if let Some((_, rewritten)) = self.rewritten.iter().find(|(file, _)| file == name) {
                bytes = rewritten.text.clone().into_bytes();
            }
            if self.groups.iter().any(|group| group.has_root(name)) {
                bytes = [ALLOWED, &bytes, b"\nmod mutant_check;\n"].concat();
                write_changed(&to.with_file_name("mutant_check.rs"), CHECK.as_bytes())?;
            }
            write_changed(&to, &bytes)?;
            fs::set_permissions(&to, fs::metadata(&from)?.permissions())?;
        }
        self.remove_others(&self.copy)
    }

    /// Removes files in `directory` that are not of the tree.
    fn remove_others(&self, directory: &Path) -> Result<()> {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.strip_prefix(&self.copy)?.to_str().context("a file name is not UTF-8")?;
            if path.is_dir() {
                self.remove_others(&path)?;
            } else if !self.files.contains(name) && !name.ends_with("/mutant_check.rs") {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// Describes a mutant for a person: name, place, code, what is inserted.
    pub(super) fn described(&self, number: usize) -> Option<String> {
        let change = |(file, source): &(String, Source)| {
            let (line, code, inserted) = source.change(number)?;
            Some(format!("{}\n  {file}:{line}\n  - {code}\n  + {inserted}\n", self.names[number]))
        };
        self.sources.iter().find_map(change)
    }

    /// Returns the mutants that a message about these bytes of a file is about; with `around`, all those of the
    /// expression that it is in.
    pub(super) fn blamed(&self, file: &str, bytes: &Range<usize>, around: bool) -> Option<Vec<usize>> {
        let (_, rewritten) = self.rewritten.iter().find(|(name, _)| name == file)?;
        if around { rewritten.blamed_around(bytes) } else { rewritten.blamed(bytes) }
    }
}

/// Writes a file unless it has this content: an unchanged file keeps its modification time, and is not rebuilt.
fn write_changed(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).ok().as_deref() != Some(bytes) {
        fs::create_dir_all(path.parent().context("a file lies in no directory")?)?;
        fs::write(path, bytes)?;
    }
    Ok(())
}
