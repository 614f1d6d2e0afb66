//! `export` and `import`: same bytes at any offset, and input that does not fit.

use crate::harness::{Dir, FAST1, allocated, call, call_with, noise, run};
use std::os::unix::fs::FileExt;
use std::process::Command;

fn import(input: &str, image: &str, more: &[&str]) -> crate::harness::Ended {
    call_with(b"secret", ["import", input, image].iter().chain(more))
}

fn export(image: &str, out: &str, more: &[&str]) -> crate::harness::Ended {
    call_with(b"secret", ["export", "-q", image, out].iter().chain(more))
}

#[test]
fn import_and_export_return_same_bytes() {
    let dir = Dir::new();
    for image in [dir.luks2("two"), dir.luks1("one")] {
        let out = dir.name("out");
        export(&image, &out, &[]).works();
        let size = std::fs::metadata(&out).unwrap().len() as usize;
        let input = dir.file("input", &noise(size));
        import(&input, &image, &[]).works();
        export(&image, &out, &[]).works();
        assert!(std::fs::read(&out).unwrap() == noise(size));
        assert!(
            !std::fs::read(&image).unwrap().windows(16).any(|bytes| bytes == &noise(16)[..]),
            "plaintext in the image"
        );
        // The same through streams.
        assert!(export(&image, "-", &[]).works().out == noise(size));
    }
}

/// Zeroes decrypted under SPDK's tweak layout. The blocks were computed with the Python package `cryptography`:
/// AES-256-XTS, key 00 01 ... 3f, tweak eight zero bytes and the number in eight bytes, little-endian.
#[test]
fn spdk_volume_has_iv_number_in_upper_half_of_tweak() {
    let dir = Dir::new();
    let (image, key) = (dir.file("image", &[0; 8192]), dir.file("key", &(0..64).collect::<Vec<u8>>()));
    let blocks = |more: &[&str], at: [usize; 2]| {
        let words = ["export", &image, "-", "--type", "plain", "-d", &key, "-s", "512"];
        let out = call(words.iter().chain(more)).works().out.clone();
        at.map(|at| u128::from_be_bytes(out[at..at + 16].try_into().unwrap()))
    };
    let (zero, one) = (0x885d472839319c326354bae2a9289c62, 0x2f325390716389dcd21998a5c1b2ee8d);
    assert_eq!(blocks(&["--spdk-tweak"], [0, 512]), [zero, one]);
    assert_eq!(blocks(&["--spdk-tweak"], [7 * 512, 0]), [0xf682f635b9ad084ef3df4ac326a18022, zero]);
    // SPDK with blocks of 4096 bytes, each a data unit.
    let blocks_of_4096 = ["--spdk-tweak", "--sector-size", "4096", "--iv-large-sectors"];
    assert_eq!(blocks(&blocks_of_4096, [0, 4096]), [zero, one]);
    let plain64 = blocks(&[], [0, 512]);
    assert!(plain64[0] == zero && plain64[1] != one);
}

#[test]
fn import_of_range_changes_nothing_else() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let mut model = noise(2 << 20);
    import(&dir.file("input", &model), &image, &[]).works();
    for (offset, len) in [(0, 1), (511, 2), (4095, 4098), (65536, 65536), (1_000_001, 99_999), ((2 << 20) - 1, 1)] {
        let patch: Vec<u8> = noise(len).iter().map(|byte| !byte).collect();
        let input = dir.file("patch", &patch);
        import(&input, &image, &["--range", &format!("{offset}:{len}")]).works();
        model[offset..offset + len].copy_from_slice(&patch);
        let range = format!("{}:{}", offset.saturating_sub(10), (len + 20).min((2 << 20) - offset));
        let start = offset.saturating_sub(10);
        let end = start + (len + 20).min((2 << 20) - offset);
        assert!(export(&image, "-", &["--range", &range]).works().out == model[start..end]);
    }
    assert!(export(&image, "-", &["--range", "0:2M"]).works().out == model);
    // To the end of the volume, and of standard input.
    assert_eq!(export(&image, "-", &["--range", "7M:"]).works().out.len(), 1 << 20);
    let key = dir.file("key", b"secret");
    call_with(b"streamed", ["import", "-", &image, "-d", &key, "--range", "3:"]).works();
    model[3..11].copy_from_slice(b"streamed");
    assert!(export(&image, "-", &["--range", "0:2M"]).works().out == model);
}

#[test]
fn too_long_input_is_refused_before_first_byte() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let before = std::fs::read(&image).unwrap();
    let long = dir.image("long", 9);
    import(&long, &image, &[]).fails(1, &["but the volume has only 8388608. Nothing was written.", "hint: "]);
    let input = dir.file("input", &noise(5000));
    import(&input, &image, &["--range", "0:4999"]).fails(1, &["but the volume has only 4999"]);
    import(&input, &image, &["--range", "8383609:"]).fails(1, &["but the volume has only 4999"]);
    import(&input, &image, &["--range", "0:5001"]).fails(1, &["but the range has 5001"]);
    import(&input, &image, &["--range", "8388609:"]).fails(1, &["exceeds the volume"]);
    import(&input, &image, &["--range", "1:8388608"]).fails(1, &["exceeds the volume"]);
    import(&image, &image, &[]).fails(1, &["the image itself"]);
    import(&dir.name("missing"), &image, &[]).fails(1, &["No such file"]);
    import(&dir.name(""), &image, &[]).fails(1, &["directory"]);
    assert!(std::fs::read(&image).unwrap() == before, "something was written");
    export(&image, &dir.name("out"), &["--range", "0:9M"]).fails(1, &["exceeds the volume"]);
    assert!(!dir.path("out").exists());
    export(&image, &image, &[]).fails(1, &["the image itself"]);
    assert!(std::fs::read(&image).unwrap() == before, "the image was overwritten");
    // The length of a stream is known only at its end.
    let key = dir.file("key", b"secret");
    let ended = call_with(&noise(5000), ["import", "-", &image, "-d", &key, "--range", "0:4999"]);
    ended.fails(1, &["its first 4999 bytes were written"]);
    assert!(export(&image, "-", &["--range", "0:4999"]).works().out == noise(4999));
}

#[test]
fn plaintext_holes_are_kept() {
    let dir = Dir::new();
    let image = dir.luks1("image");
    let input = dir.image("input", 2);
    let file = std::fs::OpenOptions::new().write(true).open(&input).unwrap();
    file.write_all_at(&noise(8192), 1 << 20).unwrap();
    let before = noise(2 << 20);
    import(&dir.file("before", &before), &image, &[]).works();
    import(&input, &image, &[]).works();
    let out = dir.name("out");
    export(&image, &out, &[]).works();
    assert!(std::fs::read(&out).unwrap() == std::fs::read(&input).unwrap(), "a hole reads as zeroes");
    assert!(allocated(&dir.path("out")) < 256 << 10, "{} bytes for 8192", allocated(&dir.path("out")));
    // The image has no holes and no zeroes, which would show where there are no data.
    let stored = std::fs::read(&image).unwrap();
    assert!(!stored[2 << 20..].chunks(512).any(|sector| sector.iter().all(|byte| *byte == 0)));

    // Without a cipher a hole stays a hole.
    let raw = dir.name("raw");
    call(["export", "--type", "raw", &input, &raw]).works();
    assert!(std::fs::read(&raw).unwrap() == std::fs::read(&input).unwrap());
    assert!(allocated(&dir.path("raw")) < 256 << 10);

    // A hole of an encrypted image does not decrypt to zeroes.
    let empty = dir.image("empty", 4);
    call_with(b"secret", ["luksFormat", "-q", &empty].iter().chain(&FAST1)).works();
    export(&empty, &out, &[]).works();
    assert!(!std::fs::read(&out).unwrap().chunks(512).any(|sector| sector.iter().all(|byte| *byte == 0)));
}

#[test]
fn existing_output_is_replaced_as_a_whole() {
    let dir = Dir::new();
    let image = dir.luks1("image");
    import(&dir.image("input", 2), &image, &[]).works();
    let out = dir.file("out", &noise(3 << 20));
    export(&image, &out, &[]).works();
    assert!(std::fs::read(&out).unwrap() == vec![0; 2 << 20]);
    use std::os::unix::fs::PermissionsExt;
    let fresh = dir.name("fresh");
    export(&image, &fresh, &[]).works();
    assert_eq!(std::fs::metadata(&fresh).unwrap().permissions().mode() & 0o777, 0o600, "plaintext is for its owner");
}

#[test]
fn progress_has_form_of_cryptsetup() {
    let dir = Dir::new();
    let image = dir.luks1("image");
    let key = dir.file("key", b"secret");
    let json = call(["export", "--progress-json", "-d", &key, &image, &dir.name("out")]);
    let last = json.works().text().lines().last().unwrap();
    let value: serde_json::Value = serde_json::from_str(last).unwrap();
    let keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["device", "device_bytes", "device_size", "speed", "eta_ms", "time_ms"]);
    assert_eq!((&value["device"], &value["device_bytes"]), (&image.clone().into(), &"2097152".into()));
    assert!(value.as_object().unwrap().values().all(serde_json::Value::is_string));
    // With data on standard output, progress goes to standard error.
    let json = call(["export", "--progress-json", "-d", &key, &image, "-"]);
    assert_eq!(json.out.len(), 2 << 20);
    assert!(json.err.starts_with("{\"device\":"), "{}", json.err);
    let text = call(["export", "--progress-frequency", "1", "-d", &key, &image, &dir.name("next")]);
    assert!(text.out.is_empty() && text.err.starts_with("Finished, time 00m0"), "{text:?}");
    let quiet = call(["export", "-q", "--progress-frequency", "1", "-d", &key, &image, &dir.name("out")]);
    quiet.works();
}

#[test]
fn progress_bar_on_terminal_is_cleared() {
    if !crate::harness::have("python3") {
        return;
    }
    let dir = Dir::new();
    let image = dir.luks1("image");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/terminal.py");
    let shown = |words: &[&str]| {
        let mut command = Command::new("python3");
        command.env("TERM", "xterm").args([script, "[]", env!("CARGO_BIN_EXE_inlock")]).args(words);
        let ended = run(&mut command, b"");
        let said: serde_json::Value = serde_json::from_str(ended.works().text()).unwrap();
        assert_eq!(said["status"], 0, "{said}");
        said["text"].as_str().unwrap().to_owned()
    };
    let (key, out) = (dir.file("key", b"secret"), dir.name("out"));
    let bar = shown(&["export", "-d", &key, &image, &out]);
    assert!(bar.contains('%') && bar.contains("MiB"), "{bar:?}");
    let left = bar.rsplit("\u{1b}[2K").next().unwrap_or_default();
    assert!(left.trim_start_matches("\u{1b}[1A").starts_with("Finished, time 00m0"), "the bar stays: {bar:?}");
    assert_eq!(shown(&["export", "-q", "-d", &key, &image, &out, "-q"]), "");
}

#[test]
fn plain_volume_is_copied() {
    let dir = Dir::new();
    let image = dir.image("image", 1);
    let key = dir.file("key", &noise(64));
    let plain =
        ["--type", "plain", "-d", &key, "-s", "512", "-o", "16", "-p", "8", "-b", "1024", "--sector-size", "4096"];
    let input = dir.file("input", &noise(1024 * 512));
    call(["import", &input, &image].iter().chain(&plain)).works();
    let out = call(["export", &image, "-"].iter().chain(&plain));
    assert!(out.works().out == noise(1024 * 512));
    let stored = std::fs::read(&image).unwrap();
    assert!(stored[..8192].iter().all(|byte| *byte == 0), "written before the offset");
    assert!(stored[8192 + 1024 * 512..].iter().all(|byte| *byte == 0), "written behind the size");
    // Another IV offset gives other ciphertext.
    let other: Vec<_> = plain.iter().map(|word| if *word == "8" { "16" } else { word }).collect();
    assert!(call(["export", &image, "-"].iter().chain(&other)).works().out != noise(1024 * 512));
}

#[test]
fn raw_image_on_terminal_is_refused() {
    let dir = Dir::new();
    let image = dir.luks1("image");
    if !crate::harness::have("python3") {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/terminal.py");
    for words in [["export", &image, "-"], ["import", "-", &image]] {
        let ended = run(Command::new("python3").args([script, "[]", env!("CARGO_BIN_EXE_inlock")]).args(words), b"");
        let said: serde_json::Value = serde_json::from_str(ended.works().text()).unwrap();
        assert_eq!(said["status"], 1, "{said}");
        assert!(said["text"].as_str().unwrap().contains("is a terminal."), "{said}");
    }
}
