//! Superblocks of dm-integrity, as Inlock and the newest integritysetup describe them.

use crate::harness::{call, newest, run};
use serde_json::{Value, json};

/// Lines of integritysetup, and the fields of `inlock integrity dump --json`.
const NUMBERS: [(&str, &str); 7] = [
    ("version", "superblock_version"),
    ("tag size", "integrity_tag_size"),
    ("sector size", "sector_size"),
    ("data size", "provided_data_sectors"),
    ("recalculate sector", "recalc_sector"),
    ("journal sections", "journal_sections"),
    ("log2 blocks per bitmap", "log2_blocks_per_bitmap"),
];

/// Fails unless the newest integritysetup, which must be there, reads the same superblock as Inlock. `flags` are some
/// that it must have.
pub(crate) fn compare(image: &str, flags: &[&str]) {
    let theirs = run(newest("integritysetup").expect("the caller has asked").args(["dump", image]), b"");
    let ours: Value = serde_json::from_str(call(["integrity", "dump", "--json", image]).works().text()).expect("JSON");
    let (mut seen, mut expected) = (serde_json::Map::new(), ours.as_object().expect("an object").clone());
    for line in theirs.works().text().lines().skip(1) {
        let (name, value) = line.split_once(": ").unwrap_or_else(|| panic!("{line}"));
        let first = value.split_whitespace().next().unwrap_or_default();
        let number = |text: &str| json!(text.parse::<u64>().unwrap_or_else(|_| panic!("{line}")));
        if name == "flags" {
            seen.insert(name.to_owned(), json!(value.split_whitespace().collect::<Vec<_>>()));
        } else if name == "log2 interleave sectors" {
            seen.insert("log2_interleave_sectors".to_owned(), number(first));
        } else {
            let field = NUMBERS.iter().find(|(theirs, _)| *theirs == name).unwrap_or_else(|| panic!("{line}")).1;
            seen.insert(field.to_owned(), number(first));
        }
    }
    assert!(flags.iter().all(|flag| seen["flags"].as_array().expect("a list").contains(&json!(flag))), "{seen:?}");
    // They print neither, and these only where they mean something.
    expected.retain(|name, value| !["device", "salt"].contains(&&**name) && !value.is_null());
    assert_eq!(Value::Object(seen), Value::Object(expected), "{}", theirs.text());
}
