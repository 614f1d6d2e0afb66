//! The crate arrows of the design, checked in each crate's manifest without Cargo.
//!
//! A crate in `crates/` may depend on another Inlock crate only along an arrow listed here, in each table of the
//! manifest (plain, dev, build or target dependencies), renamed or not.

/// The crates, and those on which each may depend. No other crates may be in `crates/`.
const ALLOWED: [(&str, &[&str]); 15] = [
    ("cipher", &[]),
    ("volume", &["cipher"]),
    ("engine", &["cipher"]),
    ("frontend", &["engine"]),
    ("afalg", &["cipher", "engine"]),
    ("bench", &["afalg", "cipher", "engine", "frontend"]),
    ("zoned-file", &["engine"]),
    ("integrity", &["cipher", "engine"]),
    ("verity", &["cipher", "engine"]),
    ("nbd-store", &["engine", "frontend"]),
    ("rbd-store", &["engine"]),
    ("testing", &["engine"]),
    (
        "open",
        &[
            "afalg",
            "cipher",
            "volume",
            "engine",
            "frontend",
            "integrity",
            "nbd-store",
            "rbd-store",
            "verity",
            "zoned-file",
        ],
    ),
    ("serve", &["cipher", "volume", "engine", "frontend", "integrity", "open", "verity"]),
    (
        "cli",
        &[
            "afalg",
            "bench",
            "cipher",
            "volume",
            "engine",
            "frontend",
            "integrity",
            "nbd-store",
            "open",
            "rbd-store",
            "serve",
            "verity",
            "zoned-file",
        ],
    ),
];

/// Further arrows for tests only.
const ALLOWED_IN_TESTS: [(&str, &str); 18] = [
    // Tests search the memory of a process for keys.
    ("integrity", "tests"),
    // Tests wait for other threads.
    ("open", "tests"),
    ("serve", "tests"),
    // Tests of the command need a client.
    ("cli", "tests"),
    ("frontend", "tests"),
    // Tests script their stores.
    ("engine", "testing"),
    ("frontend", "testing"),
    ("integrity", "testing"),
    ("open", "testing"),
    ("verity", "testing"),
    // Tests wait for other threads with one helper, which ends.
    ("engine", "tests"),
    // The server's tests serve an encrypted device, made of a key and a segment.
    ("frontend", "cipher"),
    // A served volume over a store whose server is killed.
    ("nbd-store", "cipher"),
    ("nbd-store", "tests"),
    ("rbd-store", "cipher"),
    ("rbd-store", "tests"),
    // The engine's tests use it with the feature that injects faults.
    ("engine", "engine"),
    // The engine's tests use zoned files.
    ("engine", "zoned-file"),
];

/// Checks the manifest of `crates/NAME`.
pub(crate) fn check(name: &str, manifest: &str) -> Vec<String> {
    let Some((_, allowed)) = ALLOWED.iter().find(|(n, _)| *n == name) else {
        return vec![format!("crates/{name}: the design has no crate of this name (xtask/src/tidy/arrows.rs)")];
    };
    let forbidden = |(to, in_tests): &(String, bool)| {
        let for_tests = *in_tests && ALLOWED_IN_TESTS.contains(&(name, to.as_str()));
        !allowed.contains(&to.as_str()) && !for_tests
    };
    let found = inlock_dependencies(manifest).into_iter().filter(forbidden);
    found.map(|(to, _)| format!("crates/{name}/Cargo.toml: the design has no arrow from {name} to {to}")).collect()
}

/// Returns the Inlock crates in a manifest, without the prefix `inlock-`, and whether only tests depend on them.
fn inlock_dependencies(manifest: &str) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    let mut in_table = false;
    let mut in_tests = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(table) = line.strip_prefix('[') {
            let table = table.trim_matches(|c| "[]\"' ".contains(c));
            in_table = table.split('.').any(|part| part.ends_with("dependencies"));
            in_tests = table.split('.').any(|part| part == "dev-dependencies");
            if in_table && let Some(last) = table.rsplit('.').next() {
                found.extend(inlock_name(last).map(|n| (n, in_tests)));
            }
            continue;
        }
        if !in_table || line.starts_with('#') {
            continue;
        }
        if let Some((key, value)) = line.split_once('=') {
            let key = key.trim().trim_matches('"');
            found.extend(inlock_name(key.split('.').next().unwrap_or(key)).map(|n| (n, in_tests)));
            found.extend(value.split(['"', '\'', '/']).filter_map(inlock_name).map(|n| (n, in_tests)));
            if key == "path" || value.contains("path") {
                let quoted = value.split(['"', '\'']);
                found.extend(quoted.filter_map(|p| p.strip_prefix("../")).map(|n| (n.to_owned(), in_tests)));
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

fn inlock_name(word: &str) -> Option<String> {
    word.strip_prefix("inlock-").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrow_of_the_design_passes() {
        let manifest =
            "[package]\nname = \"inlock-engine\"\n[dependencies]\ninlock-cipher.workspace = true\nlibc = \"0.2\"\n";
        assert_eq!(check("engine", manifest), Vec::<String>::new());
    }

    #[test]
    fn every_form_of_forbidden_arrow_is_found() {
        let bad = [
            "[dependencies]\ninlock-volume.workspace = true\n",
            "[dependencies]\ninlock-volume = { workspace = true }\n",
            "[dev-dependencies]\ninlock-volume = { path = \"../volume\" }\n",
            "[build-dependencies]\n\"inlock-volume\" = \"1\"\n",
            "[dependencies.inlock-volume]\nworkspace = true\n",
            "[target.'cfg(unix)'.dependencies]\ninlock-volume.workspace = true\n",
            "[dependencies]\nheaders = { package = \"inlock-volume\", path = \"../volume\" }\n",
            "[dependencies]\nheaders = { path = \"../volume\" }\n",
        ];
        for manifest in bad {
            let findings = check("engine", manifest);
            assert_eq!(findings.len(), 1, "{manifest}: {findings:?}");
            assert!(findings[0].contains("from engine to volume"), "{findings:?}");
        }
    }

    #[test]
    fn arrow_for_tests_is_none_for_the_crate() {
        assert_eq!(check("frontend", "[dev-dependencies]\ninlock-cipher.workspace = true\n"), Vec::<String>::new());
        assert_eq!(check("frontend", "[dependencies]\ninlock-cipher.workspace = true\n").len(), 1);
        assert_eq!(check("frontend", "[dev-dependencies]\ninlock-volume.workspace = true\n").len(), 1);
    }

    #[test]
    fn unknown_crate_is_refused() {
        assert_eq!(check("helpers", "[package]\n").len(), 1);
    }

    #[test]
    fn package_name_or_a_comment_is_no_arrow() {
        let manifest = "[package]\nname = \"inlock-volume\"\n[dependencies]\n# inlock-engine = \"1\"\nserde = \"1\"\n";
        assert_eq!(check("volume", manifest), Vec::<String>::new());
    }
}
