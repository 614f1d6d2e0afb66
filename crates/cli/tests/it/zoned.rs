//! Zoned files: creating, reporting, mistakes.

use crate::harness::{Dir, call};
use serde_json::Value;
use std::path::Path;

#[test]
fn zoned_file_is_created_and_reported() {
    let dir = Dir::new();
    let file = dir.name("disk");
    let made =
        ["zoned", "create", file.as_str(), "--zone-size", "1M", "--zone-capacity", "768K", "--conventional-zones", "2"];
    call(made.into_iter().chain(["--max-open-zones", "3", "--max-active-zones", "4", "--size", "8708K"])).works();
    let report = call(["zoned", "report", &file]);
    let text = report.works().text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 9, "{text}");
    assert_eq!(
        lines[1],
        "  start: 0x000000800, len 0x000800, cap 0x000800, wptr 0x000000 reset:0 non-seq:0, zcond: 0(nw) [type: 1(CONVENTIONAL)]"
    );
    assert_eq!(
        lines[2],
        "  start: 0x000001000, len 0x000800, cap 0x000600, wptr 0x000000 reset:0 non-seq:0, zcond: 1(em) [type: 2(SEQ_WRITE_REQUIRED)]"
    );
    assert!(lines[8].starts_with("  start: 0x000004000, len 0x000408, cap 0x000408, wptr"), "{text}");
    let json: Value = serde_json::from_str(call(["zoned", "report", "--json", &file]).works().text()).unwrap();
    assert_eq!(
        (&json["kind"], &json["zone_length"], &json["zone_count"]),
        (&"file".into(), &(1 << 20).into(), &9.into())
    );
    assert_eq!((&json["max_open"], &json["max_active"]), (&3.into(), &4.into()));
    assert_eq!(json["write_granularity"], 4096);
    let zone = &json["zones"][2];
    assert_eq!((&zone["start"], &zone["write_pointer"]), (&(2 << 20).into(), &(2 << 20).into()));
    assert_eq!((&zone["type"], &zone["condition"]), (&"sequential-required".into(), &"empty".into()));
    assert_eq!(json["zones"][0]["write_pointer"], Value::Null);
}

#[test]
fn zoned_file_has_length_of_existing_empty_file() {
    let dir = Dir::new();
    let file = dir.image("disk", 4);
    call(["zoned", "create", &file, "--zone-size", "1M", "--zone-write-granularity", "512"]).works();
    let json: Value = serde_json::from_str(call(["zoned", "report", "--json", &file]).works().text()).unwrap();
    assert_eq!((&json["zone_count"], &json["write_granularity"]), (&4.into(), &512.into()));
}

#[test]
fn invalid_zoned_file_is_refused_with_numbers() {
    let dir = Dir::new();
    let file = dir.name("disk");
    let create = |options: &[&str]| call(["zoned", "create", file.as_str()].into_iter().chain(options.iter().copied()));
    for (options, said) in [
        (&["--size", "8M"][..], "Option --zone-size is required for zoned create."),
        (&["--zone-size", "1M"], "is empty; specify --size."),
        (&["--zone-size", "1M", "--size", "0"], "The size is zero"),
        (&["--zone-size", "3M", "--size", "8M"], "a zone length of 3145728 bytes is not a power of two"),
        (&["--zone-size", "1M", "--size", "8M", "--zone-capacity", "2M"], "a zone capacity of 2097152 bytes"),
        (&["--zone-size", "1M", "--size", "8M", "--conventional-zones", "8"], "8 of 8 zones are conventional"),
        (
            &["--zone-size", "1M", "--size", "8M", "--max-open-zones", "5", "--max-active-zones", "4"],
            "a maximum of 5 open zones exceeds that of 4",
        ),
        (
            &["--zone-size", "1M", "--size", "8M", "--zone-write-granularity", "1000"],
            "a write granularity of 1000 bytes",
        ),
        (&["--zone-size", "1M", "--size", "1K"], "a length of 1024 bytes is not a multiple"),
        (&["--zone-size", "4K", "--size", "1T"], "268435456 zones exceed the maximum of 1048576"),
        (&["--zone-size", "1M", "--size", "8M", "--json"], "Option --json is not allowed with zoned create"),
    ] {
        create(options).fails(1, &[said]);
        assert!(!Path::new(&file).exists() || std::fs::metadata(&file).unwrap().len() == 0, "{options:?}");
        assert!(!Path::new(&format!("{file}.zones")).exists(), "{options:?}");
    }
    call(["zoned", "report", &file, "--max-open-zones", "1"])
        .fails(1, &["Option --max-open-zones is not allowed with zoned report"]);
    call(["zoned", "remake", &file]).fails(1, &["'remake' is neither create nor report"]);
    let plain = dir.file("plain", &[1; 4096]);
    call(["zoned", "report", &plain]).fails(1, &["is neither a zoned block device nor a zoned file"]);
    call(["zoned", "create", &plain, "--zone-size", "4K"]).fails(1, &["is not empty"]);
    create(&["--zone-size", "1M", "--size", "8M"]).works();
    create(&["--zone-size", "1M", "--size", "8M"]).fails(1, &["is not empty"]);
    std::fs::remove_file(&file).unwrap();
    create(&["--zone-size", "1M", "--size", "8M"]).fails(5, &["already exists."]);
}

#[test]
fn missing_damaged_or_foreign_sidecar_is_refused() {
    let dir = Dir::new();
    let (a, b) = (dir.name("a"), dir.name("b"));
    for file in [&a, &b] {
        call(["zoned", "create", file, "--zone-size", "1M", "--size", "8M"]).works();
    }
    let sidecar = |file: &str| format!("{file}.zones");
    let good = std::fs::read(sidecar(&a)).unwrap();
    let mut bad = good.clone();
    bad[8192 + 3 * 32 + 16] ^= 1;
    std::fs::write(sidecar(&a), &bad).unwrap();
    call(["zoned", "report", &a]).fails(1, &["the record of zone 3 in the first table of promises is invalid"]);
    std::fs::write(sidecar(&a), &good[..8192]).unwrap();
    call(["zoned", "report", &a]).fails(1, &["it has 8192 bytes instead of 20480"]);
    std::fs::copy(sidecar(&b), sidecar(&a)).unwrap();
    call(["zoned", "report", &a]).fails(1, &["it belongs to another file"]);
    std::fs::remove_file(sidecar(&a)).unwrap();
    call(["zoned", "report", &a]).fails(1, &["is missing"]);
    let shorter = std::fs::OpenOptions::new().write(true).open(&b).unwrap();
    shorter.set_len(4 << 20).unwrap();
    call(["zoned", "report", &b]).fails(1, &["the file has 4194304 bytes instead of 8392704"]);
}

#[test]
fn old_option_names_mean_the_same() {
    let dir = Dir::new();
    let (old, new) = (dir.name("old"), dir.name("new"));
    let create = |file: &str, [capacity, conventional, open, active, granularity]: [&str; 5]| {
        let zones = ["--zone-size", "1M", "--size", "8M", capacity, "512K", conventional, "2", open, "3", active, "4"];
        call(["zoned", "create", file].into_iter().chain(zones).chain([granularity, "512"])).works();
        serde_json::from_str::<Value>(call(["zoned", "report", "--json", file]).works().text()).unwrap()
    };
    let by_old = create(&old, ["--capacity", "--conventional", "--max-open", "--max-active", "--granularity"]);
    let mut by_new = create(
        &new,
        [
            "--zone-capacity",
            "--conventional-zones",
            "--max-open-zones",
            "--max-active-zones",
            "--zone-write-granularity",
        ],
    );
    by_new["source"] = by_old["source"].clone();
    assert_eq!(by_old, by_new);
    let help = call(["zoned", "--help"]);
    assert!(!help.works().text().contains("--capacity"), "{help:?}");
}
