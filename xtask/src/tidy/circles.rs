//! Import circles between the modules of a crate.
//!
//! A module with everything below it is one node. Nodes with the same parent must not use each other in a circle,
//! directly or through others. A parent's own file may use its children, and they may use its declarations: outside
//! both are the same node. A use leads to the module that declares the item, so a re-export is not a use of its module.
//! Tests may use everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::modules::{Crate, ModulePath};

/// Known circles, to be removed: `CRATE PARENT: MODULE MODULE…`.
pub(crate) const KNOWN: &str = "xtask/tidy-circles.txt";

/// Modules with the same parent that use each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Circle {
    /// `CRATE PARENT`.
    place: String,
    modules: BTreeSet<String>,
    /// A use for each step of one circle.
    example: String,
}

/// Returns the circles of the crate in `directory`, called `name`.
///
/// # Errors
///
/// Fails if a file cannot be read.
pub(crate) fn of_crate(name: &str, directory: &Path) -> Result<Vec<Circle>> {
    let mut all = Crate::default();
    add_directory(&mut all, &directory.join("src"), &[])?;
    Ok(circles(name, &all))
}

fn add_directory(all: &mut Crate, directory: &Path, path: &[String]) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))? {
        let file = entry?.path();
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let child = [path, std::slice::from_ref(&stem)].concat();
        if file.is_dir() {
            add_directory(all, &file, &child)?;
        } else if file.extension().is_some_and(|extension| extension == "rs") {
            let is_own = stem == "mod" || path.is_empty() && (stem == "lib" || stem == "main");
            let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            all.add(if is_own { path } else { &child }, &text)?;
        }
    }
    Ok(())
}

/// Returns the circles among the children of each module.
pub(crate) fn circles(name: &str, all: &Crate) -> Vec<Circle> {
    let edges = all.edges();
    let mut found = Vec::new();
    for parent in all.paths() {
        // Between nodes, with a pair of modules as an example.
        let mut rooms: BTreeMap<(&str, &str), (&ModulePath, &ModulePath)> = BTreeMap::new();
        for (from, to) in &edges {
            let below = |path: &'_ ModulePath| path.starts_with(parent) && path.len() > parent.len();
            if below(from) && below(to) && from[parent.len()] != to[parent.len()] {
                rooms.entry((&from[parent.len()], &to[parent.len()])).or_insert((from, to));
            }
        }
        let place = format!("{name} {}", text_of(parent));
        found.extend(components(&rooms.keys().copied().collect()).into_iter().map(|modules| {
            let round = way_round(&rooms.keys().copied().collect(), &modules);
            let steps = round.windows(2).map(|step| rooms[&(step[0], step[1])]);
            let example: Vec<String> =
                steps.map(|(from, to)| format!("{} uses {}", text_of(from), text_of(to))).collect();
            Circle { place: place.clone(), modules, example: example.join(", ") }
        }));
    }
    found
}

fn text_of(path: &[String]) -> String {
    std::iter::once("crate").chain(path.iter().map(String::as_str)).collect::<Vec<_>>().join("::")
}

/// Returns the nodes that can be reached from a node.
fn reachable<'a>(edges: &BTreeSet<(&'a str, &'a str)>, from: &'a str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(node) = open.pop() {
        open.extend(edges.iter().filter(|(a, b)| *a == node && seen.insert(*b)).map(|(_, b)| *b));
    }
    seen
}

/// Returns sets of nodes that reach each other.
fn components(edges: &BTreeSet<(&str, &str)>) -> BTreeSet<BTreeSet<String>> {
    let nodes: BTreeSet<&str> = edges.iter().map(|(from, _)| *from).collect();
    let reach: BTreeMap<&str, BTreeSet<&str>> = nodes.iter().map(|node| (*node, reachable(edges, node))).collect();
    let circle = |node: &str| -> BTreeSet<String> {
        let others = reach[node].iter().filter(|other| reach.get(*other).is_some_and(|back| back.contains(node)));
        others.map(|other| (*other).to_owned()).collect()
    };
    nodes.into_iter().map(circle).filter(|circle| circle.len() > 1).collect()
}

/// Returns the shortest path from one of the modules to itself.
fn way_round<'a>(edges: &BTreeSet<(&'a str, &'a str)>, modules: &BTreeSet<String>) -> Vec<&'a str> {
    let mut shortest: Vec<&str> = Vec::new();
    for start in edges.iter().map(|(from, _)| *from).filter(|from| modules.contains(*from)) {
        let mut ways = std::collections::VecDeque::from([vec![start]]);
        let mut seen = BTreeSet::new();
        while let Some(way) = ways.pop_front() {
            let end = way[way.len() - 1];
            if way.len() > 1 && end == start {
                if shortest.is_empty() || way.len() < shortest.len() {
                    shortest = way;
                }
                break;
            }
            for (_, to) in edges.iter().filter(|(from, _)| *from == end) {
                if seen.insert(*to) {
                    ways.push_back([way.as_slice(), &[*to]].concat());
                }
            }
        }
    }
    shortest
}

/// Reports circles that are not in the list, and entries of the list that are no longer circles.
pub(crate) fn check(list: &str, circles: &[Circle]) -> Vec<String> {
    let known: Vec<(&str, BTreeSet<String>)> = known(list).collect();
    let is_known = |circle: &Circle| {
        known.iter().any(|(place, modules)| *place == circle.place && circle.modules.is_subset(modules))
    };
    let new = circles.iter().filter(|circle| !is_known(circle)).map(|Circle { place, modules, example }| {
        let modules: Vec<&str> = modules.iter().map(String::as_str).collect();
        format!("crates/{place}: {} use each other: {example}", modules.join(", "))
    });
    let stale = known.iter().filter(|(place, modules)| {
        !circles.iter().any(|circle| circle.place == *place && circle.modules.is_subset(modules))
    });
    let stale = stale.map(|(place, _)| format!("{KNOWN}: '{place}' has no such circle any longer: remove the line"));
    new.chain(stale).collect()
}

fn known(list: &str) -> impl Iterator<Item = (&str, BTreeSet<String>)> {
    let lines = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    // A path has colons, but no space after them.
    lines
        .filter_map(|line| line.split_once(": "))
        .map(|(place, modules)| (place, modules.split_whitespace().map(str::to_owned).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Circle> {
        let mut all = Crate::default();
        for (path, text) in files {
            let path: ModulePath = path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
            all.add(&path, text).unwrap();
        }
        circles("x", &all)
    }

    const ROOT: (&str, &str) = ("", "mod a; mod b; mod c;");

    #[test]
    fn siblings_that_use_each_other_are_a_circle() {
        let circles = found(&[
            ROOT,
            ("a", "use crate::b::B; pub struct A;"),
            ("b", "use crate::c::C; pub struct B;"),
            ("c", "use crate::a::A; pub struct C;"),
        ]);
        assert_eq!(circles.len(), 1);
        assert_eq!(
            check("", &circles),
            [
                "crates/x crate: a, b, c use each other: crate::a uses crate::b, crate::b uses crate::c, crate::c uses crate::a"
            ]
        );
        assert_eq!(check("# why\nx crate: a b c d\n", &circles), Vec::<String>::new());
        assert_eq!(check("x crate: a b\n", &circles).len(), 2, "the circle is larger, and there is none of two");
        assert_eq!(check("x crate: a b c\n", &[]).len(), 1);
    }

    #[test]
    fn modules_that_use_each_other_through_other_files_are_a_circle() {
        let circles = found(&[
            ROOT,
            ("a", "mod one; mod two;"),
            ("a::one", "use crate::b::three::T;"),
            ("a::two", "pub struct U;"),
            ("b", "pub mod three; mod four;"),
            ("b::three", "pub struct T;"),
            ("b::four", "use crate::a::two::U;"),
        ]);
        assert_eq!(circles.len(), 1, "{circles:?}");
    }

    #[test]
    fn parent_and_children_are_no_circle() {
        let child = "use super::A; use crate::c::C; pub fn f() {}";
        let circles = found(&[
            ROOT,
            ("a", "mod in_a; fn g() { in_a::f() } pub struct A;"),
            ("a::in_a", child),
            ("c", "pub struct C;"),
        ]);
        assert_eq!(circles, []);
    }
}
