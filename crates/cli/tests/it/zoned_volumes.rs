//! Volumes on zoned storage: alignment, copies, and frontends without zones.

use crate::harness::control::{Named, Run};
use crate::harness::{Dir, Ended, FAST, FAST1, allocated, call, call_with, noise};
use inlock_tests::wait::eventually;
use inlock_zoned_file::{ZonedFile, ZonedLayout};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::Stdio;

const MIB: u64 = 1 << 20;

/// 24 zones of 1 MiB with a capacity of 768 KiB; the first 18 are conventional, the last has half the length.
const LAYOUT: ZonedLayout = ZonedLayout {
    len: 23 * MIB + MIB / 2,
    zone_len: MIB,
    capacity: 3 << 18,
    conventional: 18,
    max_open: 4,
    max_active: 6,
    write_granularity: 4096,
};

fn zoned(dir: &Dir, name: &str, layout: &ZonedLayout) -> String {
    ZonedFile::create(&dir.path(name), layout).expect("it fits");
    dir.name(name)
}

fn format(image: &str, more: &[&str]) -> Ended {
    call_with(b"secret", ["luksFormat", "-q", image].iter().chain(&FAST).chain(more))
}

/// Returns a LUKS2 volume on [`LAYOUT`]: two conventional zones, five and a half sequential ones.
fn volume(dir: &Dir, name: &str) -> String {
    let image = zoned(dir, name, &LAYOUT);
    format(&image, &[]).works();
    image
}

fn on(action: &str, one: &str, other: &str, more: &[&str]) -> Ended {
    call_with(b"secret", [action, one, other].iter().chain(more))
}

/// Returns the write pointer of each zone, relative to its start.
fn pointers(image: &str) -> Vec<Option<u64>> {
    let (_, zones) = ZonedFile::look(image.as_ref()).expect("it is whole");
    zones.iter().map(|zone| zone.write_pointer.map(|pointer| pointer - zone.start)).collect()
}

#[test]
fn new_volume_is_aligned_with_zones() {
    let dir = Dir::new();
    let zones = |zone: u64, conventional, write_granularity| ZonedLayout {
        capacity: zone * MIB,
        conventional,
        write_granularity,
        ..ZonedLayout::new(64 * MIB, zone * MIB)
    };
    for (name, layout, offset, unit) in [
        ("usual", zones(1, 20, 4096), 16, 4096),
        ("large", zones(32, 1, 4096), 32, 4096),
        ("few", zones(1, 3, 4096), 3, 4096),
        ("fine", zones(1, 16, 512), 16, 512),
        ("coarse", zones(1, 16, 16384), 16, 4096),
    ] {
        let image = zoned(&dir, name, &layout);
        format(&image, &[]).works();
        let json = call(["luksDump", "--dump-json-metadata", &image]);
        let json: serde_json::Value = serde_json::from_slice(&json.works().out).unwrap();
        let segment = &json["segments"]["0"];
        let found = (segment["offset"].as_str().unwrap().parse(), segment["sector_size"].as_u64());
        assert_eq!(found, (Ok(offset * MIB), Some(unit)), "{name}");
        if crate::harness::have("cryptsetup") {
            let key = dir.file("key", b"secret");
            let words = ["open", "--test-passphrase", "--key-file", &key, &image];
            let ended = crate::harness::run(std::process::Command::new("cryptsetup").args(words), b"");
            assert_eq!(ended.code, 0, "{name}: {ended:?}");
        }
        // It opens in full length.
        let out = dir.name("out");
        on("export", &image, &out, &["-q"]).works();
        assert_eq!(std::fs::metadata(&out).unwrap().len(), (64 - offset) * MIB, "{name}");
    }
    let one = zoned(&dir, "one", &zones(4, 2, 4096));
    call_with(b"secret", ["luksFormat", "-q", &one].iter().chain(&FAST1)).works();
    assert!(call(["luksDump", &one]).works().text().contains("Payload offset:\t8192\n"));
    on("export", &one, &dir.name("out"), &["-q"]).works();
    // With any options, it fits the zones or is refused.
    let image = zoned(&dir, "asked", &zones(1, 20, 4096));
    format(&image, &["-o", "36864", "--sector-size", "512"]).works();
    on("export", &image, &dir.name("out"), &["-q"]).works();
}

#[test]
fn volume_that_does_not_fit_zones_is_refused_with_numbers() {
    let dir = Dir::new();
    let ordered = ZonedLayout { conventional: 0, write_granularity: 512, ..LAYOUT };
    let image = zoned(&dir, "ordered", &ordered);
    let before = std::fs::read(&image).unwrap();
    let words = ["a header takes the first 1048576 bytes, but only the first 0 are in", "luksFormat --header FILE"];
    format(&image, &[]).fails(1, &words);
    call_with(b"secret", ["luksFormat", "-q", &image].iter().chain(&FAST1))
        .fails(1, &["takes the first 2097152 bytes"]);
    let header = dir.name("header");
    let unit = ["--header", &header, "--sector-size", "4096"];
    format(&image, &unit).fails(
        1,
        &["units of 4096 bytes do not divide the write granularity of 512 bytes", ": 512 would fit", "--sector-size"],
    );
    let offset = ["--header", &header, "-o", "32"];
    format(&image, &offset).fails(1, &["start at sector 32, inside a zone of 2048 sectors: 0 or 2048 would fit"]);
    assert!(!dir.path("header").exists());
    format(&image, &["--header", &header]).works();
    on("export", &image, &dir.name("out"), &["--header", &header]).works();

    let image = zoned(&dir, "image", &LAYOUT);
    format(&image, &["-o", "38912"]).fails(1, &["takes the first 19922944 bytes, but only the first 18874368"]);
    format(&image, &["-o", "32776"]).fails(1, &["32768 or 34816 would fit", "hint: set the data offset with --offset"]);
    // A detached header on a zoned file needs conventional zones, too.
    let words = ["a header takes the first 16777216 bytes, but only the first 0 are"];
    format(&dir.image("data", 1), &["--header", &dir.name("ordered")]).fails(1, &words);

    let plain = |more: &[&str]| {
        let words = ["export", "--type", "plain", "-d", "/dev/zero", "-l", "32", &image, "-"];
        call(words.iter().chain(more))
    };
    plain(&["-o", "8"]).fails(1, &["start at sector 8, inside a zone of 2048 sectors: 0 or 2048 would fit"]);
    plain(&["-b", "100"]).fails(1, &["100 sectors of data end inside a zone of 2048 sectors: 2048 would fit"]);
    plain(&["-b", "48000"]).fails(1, &["48000 sectors of data end", ": 47104 or 48128 would fit"]);
    plain(&["--sector-size", "8192"])
        .fails(1, &["8192 bytes do not divide the write granularity of 4096 bytes", ": 4096 would fit"]);
    assert_eq!(plain(&["-o", "36864", "-b", "2048"]).works().out.len() as u64, MIB);
    let table = |line: &str| call(["export", "--table", &line.replace("IMAGE", &image), "-"]);
    table("0 2048 linear IMAGE 2048").works();
    table("0 2048 linear IMAGE 2056").fails(1, &["start at sector 2056, inside a zone", ": 2048 or 4096 would fit"]);
    table("0 2040 linear IMAGE 2048\n2040 2048 linear IMAGE 4096").fails(1, &["2040 sectors of data end", ": 2048"]);
    table("0 2048 linear IMAGE 0\n2048 2048 zero").fails(1, &["does not lie on the zoned store"]);
    assert_eq!(pointers(&image)[18..], [Some(0); 6], "nothing was written");
    assert!(std::fs::read(dir.path("ordered")).unwrap() == before);
}

/// A LUKS header can be copied to a sequential zone, where it cannot be rewritten.
#[test]
fn header_in_sequential_zone_is_read_only() {
    let dir = Dir::new();
    let luks = dir.image("luks", 4);
    format(&luks, &["-o", "2048"]).works();
    on("import", &dir.file("input", &noise(1 << 20)), &luks, &[]).works();
    let image = zoned(&dir, "image", &ZonedLayout { conventional: 0, capacity: MIB, ..LAYOUT });
    call(["import", "--type", "raw", &luks, &image]).works();
    call(["isLuks", &image]).works();
    on("import", &luks, &image, &[]).fails(1, &["takes the first 1048576 bytes, but only the first 0", "--read-only"]);
    let out = on("export", &image, "-", &["--range", "0:1M"]);
    assert!(out.works().out == noise(1 << 20));
    // With a detached header it is writable.
    on("export", &image, "-", &["--range", "0:1M", "--header", &luks]).works();
    // A volume whose data do not start with a zone is refused.
    format(&luks, &["-o", "2056"]).works();
    let image = zoned(&dir, "other", &ZonedLayout { conventional: 8, capacity: MIB, ..LAYOUT });
    call(["import", "--type", "raw", &luks, &image]).works();
    on("export", &image, "-", &[]).fails(1, &["start at sector 2056", ": 2048 or 4096 would fit", "luksFormat"]);
}

#[test]
fn import_and_export_keep_write_pointers() {
    let dir = Dir::new();
    let (image, out) = (volume(&dir, "image"), dir.name("out"));
    // Conventional zones 0 and 1; 2 is full, 3 has a hole before its end, 4 is empty, 5 ends with the image.
    let input = dir.image("input", 6);
    let file = std::fs::OpenOptions::new().write(true).open(&input).unwrap();
    let data = noise(3 << 18);
    let put = |len: usize, at: u64| file.write_all_at(&data[..len], at).unwrap();
    put(5000, 100);
    put(3 << 18, 2 * MIB);
    put(4096, 3 * MIB);
    put(8000, 3 * MIB + 65536);
    put(100, 5 * MIB + 4096);
    on("import", &input, &image, &[]).works();
    let wanted = [Some(MIB), Some(65536 + 8192), Some(0), Some(8192), Some(0), Some(0)].to_vec();
    assert_eq!(pointers(&image)[18..], wanted);
    on("export", &image, &out, &[]).works();
    let expected = std::fs::read(&input).unwrap();
    let found = std::fs::read(&out).unwrap();
    assert_eq!(found.len() as u64, 7 * MIB + MIB / 2);
    assert!(found[..expected.len()] == expected && is_zero(&found[expected.len()..]));
    assert!(allocated(out.as_ref()) < 4 * MIB, "what was never written is a hole");
    // The same through pipes, to other zones.
    let other = volume(&dir, "other");
    let stream = on("export", &image, "-", &[]);
    let key = dir.file("key", b"secret");
    call_with(&stream.works().out, ["import", "-", &other, "-d", &key]).works();
    assert_eq!(pointers(&other)[18..], wanted);
    // A second time no write pointer matches, and no byte is written.
    let before = std::fs::read(&image).unwrap();
    let words = ["Zone 2097152: write pointer 3145728, but data is for 2097152.", "blkzone"];
    on("import", &input, &image, &[]).fails(1, &words);
    assert!(std::fs::read(&image).unwrap() == before);
    // An import continues only at a write pointer.
    let at = format!("{}:", 3 * MIB + 65536 + 8192);
    let patch = dir.file("patch", &noise(4096));
    on("import", &patch, &image, &["--range", "3145729:"])
        .fails(1, &["Byte 3145729 is not a multiple of the write granularity of 4096 bytes."]);
    on("import", &patch, &image, &["--range", "3145728:"])
        .fails(1, &["write pointer 3219456, but data is for 3145728"]);
    on("import", &patch, &image, &["--range", &at]).works();
    assert_eq!(pointers(&image)[19], Some(65536 + 12288));
    assert!(on("export", &image, "-", &["--range", &format!("{at}4096")]).works().out == noise(4096));
    // Conventional zones can be overwritten at any byte.
    on("import", &patch, &image, &["--range", "1000000:"]).works();
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

#[test]
fn import_over_zone_limits_is_refused() {
    let dir = Dir::new();
    let image = volume(&dir, "image");
    let refused = ["has data up to byte 2936832", "ends at byte 2883584", "bytes before 2097152"];
    let mut bytes = noise(3 << 20);
    bytes[(2 << 20) + (3 << 18) + 51200 + 2048..].fill(0);
    on("import", &dir.file("input", &bytes), &image, &["-q"]).fails(1, &refused);
    // More partly written zones than the limit.
    let image = zoned(&dir, "few", &ZonedLayout { max_open: 2, max_active: 2, ..LAYOUT });
    format(&image, &[]).works();
    let mut bytes = vec![0; 6 << 20];
    for zone in 2..6 {
        bytes[zone << 20] = 1;
    }
    on("import", &dir.file("input", &bytes), &image, &[]).fails(1, &["Too many zones would be active", "hint: "]);
}

#[test]
fn zoned_volume_has_bytes_of_volume_without_zones() {
    let dir = Dir::new();
    let key = dir.file("key", &noise(64));
    let layout = ZonedLayout { conventional: 1, capacity: MIB, ..ZonedLayout::new(4 * MIB, MIB) };
    let (flat, zones) = (dir.image("flat", 4), zoned(&dir, "zones", &layout));
    let input = dir.file("input", &noise(2 << 20));
    for image in [&flat, &zones] {
        let words = ["-d", &key, "-s", "512", "--sector-size", "4096", "-o", "2048", "-p", "8"];
        call(["import", "--type", "plain", &input, image].iter().chain(&words)).works();
    }
    let (flat, zones) = (std::fs::read(&flat).unwrap(), std::fs::read(&zones).unwrap());
    assert!(flat[..3 << 20] == zones[..3 << 20] && flat[1 << 20..2 << 20] != noise(1 << 20));
}

#[test]
fn zoned_volume_over_nbd_is_read_only() {
    let dir = Dir::new();
    let run = Run::new();
    let image = volume(&dir, "image");
    on("import", &dir.file("input", &noise(3 << 19)), &image, &["--range", "0:"]).works();
    let socket = format!("unix:{}", run.socket("x"));
    run.call(&["serve", &image, "--nbd", &socket])
        .fails(1, &["is zoned; NBD clients can only read it.", "--read-only", "--via ublk"]);
    for via in ["nbd", "loop", "fuse"] {
        let refused = [&*format!("--via {via} does not support zoned volumes."), "--read-only"];
        run.call(&["open", &image, "x", "--foreground", "--via", via]).fails(1, &refused);
    }
    let server = Named::start(&run, "data", &["-r", &image]);
    let text = run.call(&["status", "data"]).works().text().to_owned();
    let line =
        "  zones:   8 of 1048576 [bytes], 2 conventional, max open 4, max active 6, write granularity 4096 [bytes]\n";
    assert!(text.contains(line), "{text}");
    let zoned = &run.json(&["status", "data", "--json"])["zoned"];
    let wanted = serde_json::json!({
        "zones": 8, "zone_size": MIB, "conventional": 2, "max_open": 4, "max_active": 6, "write_granularity": 4096
    });
    assert_eq!(*zoned, wanted);
    assert_eq!(run.json(&["list", "--json"])[0]["zones"], 8);
    // Other volumes have no zones.
    let _raw = Named::start(&run, "raw", &["--type", "raw", &dir.image("raw", 1)]);
    assert!(run.json(&["list", "--json"])[1]["zones"].is_null());
    assert!(run.json(&["status", "raw", "--json"]).get("zoned").is_none());
    assert!(!run.call(&["status", "raw"]).works().text().contains("zones:"));

    run.call(&["suspend", "data"]).works();
    run.call_with(b"secret", &["resume", "data"]).works();
    run.call(&["resize", "data"]).works();
    let sectors = run.json(&["status", "data", "--json"])["sectors"].as_u64();
    assert_eq!(sectors, Some((7 * MIB + MIB / 2) / 512), "zones do not grow");
    // Another table must keep every zone in place.
    let reload = |lines: &str| {
        let table = dir.file("table", lines.replace("IMAGE", &image).as_bytes());
        run.call(&["reload", "data", "--table", &table])
    };
    let whole = "0 15360 linear IMAGE 32768";
    reload("0 15360 linear IMAGE 30720").fails(1, &["does not have the same zones"]);
    reload("0 2048 linear IMAGE 32768\n2048 13312 linear IMAGE 34816").works();
    reload(whole).works();
    reload("0 2048 linear IMAGE 34816\n2048 13312 linear IMAGE 34816").fails(1, &["does not have the same zones"]);
    run.call(&["close", "data"]).works();
    assert_eq!(server.ended(), (Some(0), String::new()));
}

#[test]
fn zoned_file_without_sidecar_is_refused_unchanged() {
    let dir = Dir::new();
    let image = volume(&dir, "image");
    let (sidecar, aside) = (dir.path("image.zones"), dir.path("aside"));
    std::fs::rename(&sidecar, &aside).unwrap();
    on("export", &image, "-", &[]).fails(1, &["its sidecar", "is missing"]);
    format(&image, &[]).fails(1, &["its sidecar", "is missing"]);
    let mut bytes = std::fs::read(&aside).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&sidecar, &bytes).unwrap();
    on("export", &image, "-", &[]).fails(1, &["damaged"]);
    zoned(&dir, "other", &LAYOUT);
    std::fs::copy(dir.path("other.zones"), &sidecar).unwrap();
    on("import", &dir.file("input", &[1; 512]), &image, &[]).fails(1, &["does not match"]);
    std::fs::rename(&aside, &sidecar).unwrap();
    on("export", &image, &dir.name("out"), &["-q"]).works();
    // Readers share, a writer is exclusive.
    let run = Run::new();
    let _reader = Named::start(&run, "data", &["-r", &image]);
    on("export", &image, &dir.name("out"), &["-q"]).works();
    on("import", &dir.file("input", &[1; 512]), &image, &[]).fails(5, &["in use"]);
}

#[test]
fn killed_import_continues_at_write_pointer() {
    let dir = Dir::new();
    let image = zoned(&dir, "image", &ZonedLayout { conventional: 4, ..ZonedLayout::new(24 * MIB, 4 * MIB) });
    format(&image, &[]).works();
    let (key, bytes) = (dir.file("key", b"secret"), noise(4 << 20));
    let mut child =
        crate::harness::inlock().args(["import", "-", &image, "-d", &key]).stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    // Then it waits for more input.
    pipe.write_all(&bytes[..2 << 20]).unwrap();
    eventually("2 MiB are written", || pointers(&image), |pointers| pointers[4] == Some(2 * MIB));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(pointers(&image)[4], Some(2 * MIB));
    on("import", &dir.file("rest", &bytes[2 << 20..]), &image, &["--range", "2M:"]).works();
    assert!(on("export", &image, "-", &["--range", "0:4M"]).works().out == bytes);
}
