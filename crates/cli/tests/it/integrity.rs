//! Volumes of dm-integrity: creating, serving, describing, mistakes.

use crate::harness::control::{Named, Run};
use crate::harness::{Dir, allocated, call, have, inlock, newest, run};
use inlock_integrity::{DeviceSizes, Layout, Superblock};
use inlock_tests::report::count;
use inlock_tests::wait::eventually;
use serde_json::Value;
use std::fs;
use std::process::Stdio;

/// Options of a volume with keys for tags, journal MAC and journal cipher.
fn keyed(dir: &Dir) -> Vec<String> {
    let key = dir.name("key");
    fs::write(&key, [7; 64]).expect("it can be written");
    let mut options = vec!["-I".to_owned(), "hmac-sha256".to_owned()];
    for (option, len) in [("integrity", "40"), ("journal-integrity", "32"), ("journal-crypt", "16")] {
        options.extend([format!("--{option}-key-file"), key.clone(), format!("--{option}-key-size"), len.to_owned()]);
    }
    options.extend(["--journal-integrity", "hmac-sha256", "--journal-crypt", "ctr-aes"].map(str::to_owned));
    options
}

/// Serves a volume while a command runs.
fn serve(image: &str, options: &[String], command: &str) -> crate::harness::Ended {
    call(["integrity", "serve", image, "--run", command].map(str::to_owned).into_iter().chain(options.iter().cloned()))
}

#[test]
fn data_are_there_again_in_every_mode() {
    if !have("nbdcopy") {
        return;
    }
    for mode in ["", "-B", "-D"] {
        let dir = Dir::new();
        let image = dir.image("image", 4);
        let mut options = if mode.is_empty() { keyed(&dir) } else { vec![mode.to_owned()] };
        call(
            ["integrity", "format", &image, "--sector-size", "4096"]
                .map(str::to_owned)
                .into_iter()
                .chain(options.clone()),
        )
        .works();
        options.push("--name".to_owned());
        options.push(format!("integrity-test-{}{mode}", std::process::id()));
        let data = dir.name("data");
        fs::write(&data, (0..1_000_000u32).map(|byte| (byte % 251) as u8).collect::<Vec<_>>()).unwrap();
        serve(&image, &options, &format!("nbdcopy --flush {data} \"$uri\"")).works();
        let copy = dir.name("copy");
        serve(&image, &options, &format!("nbdcopy \"$uri\" {copy}")).works();
        assert!(fs::read(&copy).unwrap().starts_with(&fs::read(&data).unwrap()), "{mode}");
        // Nothing but tagged blocks is returned.
        let (mut changed, written) = (fs::read(&image).unwrap(), fs::read(&data).unwrap());
        let block = &written[4096 * 100..4096 * 101];
        let at =
            changed.chunks_exact(512).zip(0..).position(|(_, n)| changed[n * 512..].starts_with(block)).unwrap() * 512;
        changed[at] ^= 1;
        fs::write(&image, changed).unwrap();
        let broken = serve(&image, &options, &format!("nbdcopy \"$uri\" {copy}"));
        assert_ne!(broken.code, 0, "{mode}: {broken:?}");
    }
}

#[test]
fn metadata_device_has_superblock_and_tags() {
    let dir = Dir::new();
    let (meta, data) = (dir.image("meta", 1), dir.image("data", 4));
    let both = ["--data-device", &data].map(str::to_owned);
    call(["integrity", "format", &meta, both[0].as_str(), both[1].as_str()]).works();
    let json: Value = serde_json::from_str(call(["integrity", "dump", "--json", &meta]).works().text()).unwrap();
    assert_eq!((&json["log2_interleave_sectors"], &json["provided_data_sectors"]), (&0.into(), &8192.into()));
    assert!(fs::read(&data).unwrap().iter().all(|byte| *byte == 0));
    serve(&meta, &both, "true").works();
    serve(&meta, &[], "true").fails(1, &["superblock field log2_interleave_sectors"]);
    call(["integrity", "format", &meta, "--data-device", &meta]).fails(1, &["names the device itself"]);
}

#[test]
fn dump_has_the_lines_of_integritysetup() {
    let dir = Dir::new();
    let image = dir.image("image", 4);
    call(["integrity", "format", &image, "-I", "xxhash64", "--journal-size", "131072", "--no-wipe"]).works();
    let dump = call(["integrity", "dump", &image]);
    let lines: Vec<&str> = dump.works().text().lines().collect();
    assert_eq!(lines[1..4], ["version: 5", "tag size: 8 [bytes]", "sector size: 512 [bytes]"]);
    assert!(lines.contains(&"log2 interleave sectors: 15") && lines.contains(&"flags: fix_padding fix_hmac "));
    // Version 2.6 had other lines.
    if let Some(mut newest) = newest("integritysetup") {
        let theirs = run(newest.args(["dump", &image]), b"");
        let theirs: Vec<&str> = theirs.works().text().lines().collect();
        // They do not print the salt.
        assert!(lines.starts_with(&theirs) && theirs.len() > 8, "{theirs:?} {lines:?}");
    }
}

#[test]
fn superblock_is_the_one_that_the_newest_integritysetup_reads() {
    if newest("integritysetup").is_none() {
        return;
    }
    let dir = Dir::new();
    let data = dir.image("data", 4);
    let keyed = keyed(&dir);
    let keyed: Vec<&str> = keyed.iter().map(String::as_str).collect();
    let cases: [(Vec<&str>, &[&str]); 10] = [
        (vec![], &["fix_padding", "fix_hmac"]),
        (vec!["-I", "sha256", "--sector-size", "4096", "--tag-size", "20", "--interleave-sectors", "1024"], &[]),
        (vec!["--integrity-legacy-padding", "--integrity-legacy-hmac"], &[]),
        (vec!["-I", "xxhash64", "--integrity-bitmap-mode"], &[]),
        (vec!["--integrity-bitmap-mode", "--sector-size", "4096", "--journal-size", "262144"], &[]),
        (vec!["-I", "sha1", "--journal-size", "1048576"], &[]),
        (vec!["--integrity-recalculate"], &["recalculating"]),
        (keyed.clone(), &["have_journal_mac"]),
        ([&keyed[..], &["--integrity-legacy-hmac", "--sector-size", "1024"]].concat(), &["have_journal_mac"]),
        (vec!["-I", "sha512", "--data-device", &data], &[]),
    ];
    for (number, (options, flags)) in cases.iter().enumerate() {
        let image = dir.image(&format!("image{number}"), 8);
        call([&["integrity", "format", "--no-wipe", &image], &options[..]].concat()).works();
        crate::harness::superblock::compare(&image, flags);
    }
}

#[test]
fn resized_volume_keeps_its_data_and_reads_zeroes_behind_them() {
    if !have("nbdcopy") {
        return;
    }
    let dir = Dir::new();
    let (image, data, copy) = (dir.image("image", 4), dir.name("data"), dir.name("copy"));
    call(["integrity", "format", &image]).works();
    fs::write(&data, [0x5a; 100_000]).unwrap();
    serve(&image, &[], &format!("nbdcopy {data} \"$uri\"")).works();
    let before = sectors(&image);
    fs::File::options().write(true).open(&image).unwrap().set_len(8 << 20).unwrap();
    call(["integrity", "resize", &image, "--wipe"]).works();
    assert!(sectors(&image) > 2 * before - 1000);
    serve(&image, &[], &format!("nbdcopy \"$uri\" {copy}")).works();
    let read = fs::read(&copy).unwrap();
    assert!(read[..100_000].iter().all(|byte| *byte == 0x5a) && read[before as usize * 512..].iter().all(|b| *b == 0));
    assert_eq!(read.len() as u64, sectors(&image) * 512);
    call(["integrity", "resize", &image, "--device-size", "8192"]).works();
    assert_eq!(sectors(&image), 16);
}

/// Clients are connected meanwhile. Each length is that of the superblock, and of the volume when it is opened again.
#[test]
fn open_volume_is_resized_under_its_clients() {
    let dir = Dir::new();
    let run = Run::new();
    let keys = keyed(&dir);
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    for (name, formatting, opening, resizing) in [
        ("journal", &["--sector-size", "4096"][..], &[][..], &[][..]),
        ("bitmap", &[], &["-B"], &["--wipe"]),
        ("direct", &[], &["-D"], &[]),
        ("keyed", &keys, &keys, &[]),
        ("wiped", &keys, &keys, &["--wipe"]),
    ] {
        let image = dir.image(name, 4);
        call([&["integrity", "format", "-q", &image], formatting].concat()).works();
        let opening = [&[&*image], opening].concat();
        let server = Named::start_integrity(&run, name, &opening);
        let old = sectors(&image);
        server.connect().write(0, &[5; 64 << 10]).unwrap();
        let resize = |words: &[&str]| run.call(&[&["integrity", "resize", "-q", name], words].concat());
        let grown = shrunk_and_grown(&server, &image, |len| {
            resize(&[&["--device-size", len], resizing].concat()).works();
        });
        assert!(grown > old * 2, "{name} {grown}");
        if !resizing.is_empty() {
            let read = server.connect().read(1 << 20, 4 << 20).unwrap();
            assert!(read.iter().all(|byte| *byte == 0), "{name}");
        }
        resize(&["--device-size", "9M"]).fails(1, &["the devices have no room for it"]);
        resize(&["--integrity-lazy"]).fails(1, &["--integrity-lazy is not possible while the volume is open."]);
        if name == "journal" {
            // Its blocks have eight sectors.
            resize(&["--size", "4095"]).fails(1, &["it is not whole blocks"]);
        }
        let state = || run.json(&["status", name, "--json"])["integrity"].clone();
        eventually("the tags are computed", state, |state| state.is_object() && state["recalc_sector"].is_null());
        // A device that has become shorter does not cut the volume by itself.
        let file = fs::File::options().write(true).open(&image).unwrap();
        file.set_len(5 << 20).unwrap();
        resize(&[]).fails(1, &["the devices have become shorter"]);
        file.set_len(9 << 20).unwrap();
        run.call(&["close", name]).works();
        assert_eq!(server.ended().0, Some(0), "{name}");
        let server = Named::start_integrity(&run, name, &opening);
        assert_eq!(server.connect().size, grown * 512, "{name}");
        run.call(&["close", name]).works();
        server.ended();
    }
}

/// The process wipes 32 MiB for a command, so that other commands need not wait for all.
#[test]
fn long_wipe_of_an_open_volume_reaches_its_end() {
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.image("image", 4);
    call(["integrity", "format", "-q", &image]).works();
    let server = Named::start_integrity(&run, "data", &[&image, "-D"]);
    fs::File::options().write(true).open(&image).unwrap().set_len(80 << 20).unwrap();
    let resized = run.call(&["integrity", "resize", "data", "--wipe", "--progress-json"]);
    let told = String::from_utf8_lossy(&resized.works().out).into_owned() + &resized.err;
    let (len, size) = (sectors(&image), server.connect().size);
    assert!(len > (76 << 20) / 512 && size == len * 512, "{len} {size}");
    assert!(told.contains("device_bytes"), "{told}");
    assert!(server.connect().read(size - 4096, 4096).unwrap().iter().all(|byte| *byte == 0));
    run.call(&["close", "data"]).works();
    server.ended();
    // Nothing of the option is left out silently.
    let raw = Named::start(&run, "raw", &["--type", "raw", &image]);
    let refused = run.call(&["integrity", "resize", "raw", "--wipe"]);
    refused.fails(1, &["Volume raw is not a volume of dm-integrity.", "hint: run `inlock resize NAME`"]);
    drop(raw);
}

/// Returns the sectors that a volume has by its superblock.
fn sectors(image: &str) -> u64 {
    let dump: Value = serde_json::from_str(call(["integrity", "dump", "--json", image]).works().text()).unwrap();
    dump["provided_data_sectors"].as_u64().unwrap()
}

/// Gives a volume 1 MiB, and then all of an image that has grown to 9 MiB. Returns its sectors.
fn shrunk_and_grown(server: &Named, image: &str, resize: impl Fn(&str)) -> u64 {
    let mut before = server.connect();
    resize("1MiB");
    assert_eq!((sectors(image), server.connect().size), (2048, 1 << 20), "{image}");
    assert!(before.read(1 << 20, 4096).is_err(), "{image}");
    let mut before = server.connect();
    fs::File::options().write(true).open(image).unwrap().set_len(9 << 20).unwrap();
    resize("0");
    let (grown, mut after) = (sectors(image), server.connect());
    assert_eq!(after.size, grown * 512, "{image}");
    let all = after.read(0, 1 << 20).unwrap();
    assert!(all[..64 << 10].iter().all(|byte| *byte == 5), "{image}");
    for at in ((1 << 20)..after.size).step_by(1 << 20) {
        after.read(at, (after.size - at).min(1 << 20) as usize).unwrap();
    }
    after.write(after.size - 9000, &[7; 9000]).unwrap();
    assert_eq!(before.read(after.size - 9000, 9000).unwrap(), [7; 9000], "{image}");
    grown
}

#[test]
fn volume_with_marks_reads_zeroes_before_and_after_a_resize() {
    if !have("nbdcopy") {
        return;
    }
    let dir = Dir::new();
    let (image, data, copy) = (dir.name("image"), dir.name("data"), dir.name("copy"));
    fs::write(&image, crate::harness::noise(4 << 20)).unwrap();
    let options = keyed(&dir);
    let keyed = |words: &[&str]| call(words.iter().map(|word| (*word).to_owned()).chain(options.iter().cloned()));
    keyed(&["integrity", "format", &image, "-q", "--integrity-lazy"]).works();
    fs::write(&data, [0x5a; 100_000]).unwrap();
    serve(&image, &options, &format!("nbdcopy {data} \"$uri\"")).works();
    let mut bytes = fs::read(&image).unwrap();
    bytes.extend(crate::harness::noise(4 << 20));
    fs::write(&image, &bytes).unwrap();
    keyed(&["integrity", "resize", &image, "--integrity-lazy"]).works();
    serve(&image, &options, &format!("nbdcopy \"$uri\" {copy}")).works();
    let read = fs::read(&copy).unwrap();
    assert!(read.len() > 6 << 20 && read[..100_000].iter().all(|byte| *byte == 0x5a));
    assert!(read[100_000..].iter().all(|byte| *byte == 0));
    // Without the option the new blocks cannot be read.
    fs::File::options().write(true).open(&image).unwrap().set_len(9 << 20).unwrap();
    keyed(&["integrity", "resize", &image]).works();
    serve(&image, &options, &format!("nbdcopy \"$uri\" {copy}")).fails(1, &[]);
    keyed(&["integrity", "format", &image, "--resume-wipe", "--integrity-lazy"]).works();
    serve(&image, &options, &format!("nbdcopy \"$uri\" {copy}")).works();
}

#[test]
fn volume_in_use_is_refused_through_either_device() {
    let dir = Dir::new();
    let (meta, data) = (dir.image("meta", 1), dir.image("data", 4));
    call(["integrity", "format", &meta, "--data-device", &data]).works();
    let mut serving = inlock();
    serving.args(["integrity", "serve", &meta, "--data-device", &data, "--run", "echo ready; cat"]);
    let mut child = serving.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    for image in [&meta, &data] {
        call(["integrity", "format", image]).fails(5, &["is in use"]);
        call(["serve", "--type", "raw", image, "--run", "true"]).fails(5, &["is in use"]);
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// Runs commands that fail with these words, and checks that they write nothing.
fn refuse(images: &[&String], commands: &[(&[&str], &str)]) {
    let contents = || images.iter().map(|image| fs::read(image).expect("it can be read")).collect::<Vec<_>>();
    let before = contents();
    for (words, said) in commands {
        call(["integrity"].iter().chain(*words)).fails(1, &[said, "inlock: "]);
    }
    assert!(contents() == before);
}

#[test]
fn unusable_volume_is_refused_by_name() {
    let dir = Dir::new();
    let (image, other, small) = (dir.image("image", 4), dir.image("other", 4), dir.name("small"));
    let key = dir.name("key");
    fs::write(&key, [7; 16]).unwrap();
    fs::write(&small, [0; 1024]).unwrap();
    call(["integrity", "format", &image]).works();
    let key = key.as_str();
    refuse(
        &[&image, &other, &small],
        &[
            (&["dump", &other], "is not a valid INTEGRITY device."),
            (&["dump", &small], "the device ends before the superblock does"),
            (&["format", &other, "--tag-size", "256"], "Option --tag-size cannot be used"),
            (&["format", &other, "--sector-size", "8192"], "Option --sector-size cannot be used"),
            (&["format", &other, "--interleave-sectors", "7"], "Option --interleave-sectors cannot be used"),
            (&["format", &small], "the device ends before the superblock does"),
            (
                &[
                    "serve",
                    &image,
                    "--run",
                    "true",
                    "--journal-integrity",
                    "hmac-sha1",
                    "--journal-integrity-key-file",
                    key,
                    "--journal-integrity-key-size",
                    "9",
                ],
                "the volume's journal has no MAC",
            ),
        ],
    );
}

/// The superblock says what is missing, not the user.
#[test]
fn journal_with_a_mac_that_is_not_given_is_told() {
    let dir = Dir::new();
    let (image, key) = (dir.image("image", 4), dir.file("key", &[7; 16]));
    let mac = ["--journal-integrity", "hmac-sha256", "--journal-integrity-key-file", &key];
    call([&["integrity", "format", &image, "--journal-integrity-key-size", "16"][..], &mac].concat()).works();
    for words in [&["integrity", "serve", &image, "--run", "true"][..], &["integrity", "resize", &image]] {
        let refused = call(words);
        assert!(!refused.err.contains("Option --journal-integrity cannot be used"), "{refused:?}");
        refused.fails(1, &["its journal has a MAC, and option journal-integrity is not given", "hint: give its hash"]);
    }
}

#[test]
fn mistake_in_options_is_refused_by_name() {
    let dir = Dir::new();
    let (image, other, key) = (dir.image("image", 4), dir.image("other", 4), dir.name("key"));
    fs::write(&key, [7; 16]).unwrap();
    call(["integrity", "format", &image]).works();
    let key = key.as_str();
    refuse(
        &[&image, &other],
        &[
            (&["serve", &other, "--run", "true"], "is not a valid INTEGRITY device."),
            (&["dump", &image, "--nbd", "unix:x"], "Option --nbd is not allowed with integrity dump."),
            (&["format", &other, "--nbd", "unix:x"], "Option --nbd is not allowed with integrity format."),
            (&["format", &other, "--via", "fuse"], "Option --via is not allowed with integrity format."),
            (&["open", &image, "name", "--deferred"], "Option --deferred is not allowed with integrity open."),
            (&["open", &image, "name", "--nbd", "unix:x"], "Option --nbd is not allowed with integrity open."),
            (&["serve", &image, "--run", "true", "--via", "fuse"], "--via is not allowed with integrity serve."),
            (&["resize", &image, "--threads", "2"], "Option --threads is not allowed with integrity resize."),
            (&["status", "name", "--foreground"], "Option --foreground is not allowed with integrity status."),
            (&["close", "name", "-I", "crc32c"], "Option --integrity is not allowed with integrity close."),
            (&["dump", &image, "--wipe"], "Option --wipe is not allowed with integrity dump."),
            (&["resize", &image, "--size", "9G"], "Option --size cannot be used"),
            (&["mend", &image], "is none of format, open, serve, dump, status, resize, close."),
            (&["format", &other, "--integrity-lazy"], "the tags have no key, so anyone could mark"),
            (&["resize", &image, "--integrity-lazy"], "the tags have no key, so anyone could mark"),
            (&["format", &other, "--integrity-lazy", "--no-wipe"], "--no-wipe is not allowed with --integrity-lazy."),
            (&["serve", &image, "--integrity-lazy"], "Option --integrity-lazy is not allowed with integrity serve."),
            (&["format", &other, "-I", "md5"], "Option --integrity 'md5' is not supported."),
            (&["format", &other, "--integrity-inline"], "Inline integrity is not supported"),
            (&["format", &other, "-I", "hmac-sha256"], "needs --integrity-key-file"),
            (&["format", &other, "--integrity-key-file", key], "Both --integrity-key-file and"),
            (
                &["format", &other, "--integrity-key-file", key, "--integrity-key-size", "9"],
                "is not allowed with crc32c",
            ),
            (
                &["format", &other, "-I", "hmac-sha1", "--integrity-key-file", key, "--integrity-key-size", "99"],
                "Cannot read 99 bytes from keyfile",
            ),
            (&["format", &other, "-B", "-R"], "--integrity-recovery-mode cannot be used with"),
            (&["format", &other, "-D", "--journal-size", "65536"], "is not allowed with --integrity-no-journal"),
            (&["format", &other, "--bitmap-flush-time", "5"], "only in bitmap mode"),
            (&["format", &other, "--journal-crypt", "ctr-aes"], "needs --journal-crypt-key-file"),
            (&["serve", &image, "--run", "true", "--sector-size", "512"], "is not allowed with integrity serve"),
            (&["serve", &image], "Option --nbd or --run is required"),
            (&["open", &image], "integrity open: requires <device> <name>"),
        ],
    );
}

#[test]
fn luks_volume_is_not_told_to_be_overwritten() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    for words in [&["dump"][..], &["serve", "--run", "true"]] {
        let ended = call(["integrity", words[0], &image].iter().chain(&words[1..]));
        ended.fails(1, &["is not a valid INTEGRITY device.", "hint: check the device; `inlock luksDump` shows"]);
        assert!(!ended.err.contains("format"), "{ended:?}");
    }
}

#[test]
fn open_volume_keeps_its_table_and_the_length_of_that() {
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.image("image", 4);
    call(["integrity", "format", &image]).works();
    let dump: Value = serde_json::from_str(call(["integrity", "dump", "--json", &image]).works().text()).unwrap();
    let len = &dump["provided_data_sectors"];
    let table = format!("0 {len} integrity {image} 0 4 J 1 internal_hash:crc32c");
    let nbd = format!("unix:{}", run.socket("nbd"));
    let background = ["--background", "--name", "data", "--nbd", &nbd];
    let mut refused = 0;
    for words in [&["integrity", "serve", &image][..], &["serve", "--table", &table]] {
        run.call(&[words, &background].concat()).works();
        for other in [format!("0 {len} zero"), format!("0 {len} linear {image} 0")] {
            let reloaded = run.call(&["reload", "data", "--table", &other]);
            let message = "Volume data has integrity protection and accepts no other table.";
            reloaded.fails(1, &[message, "hint: close it, and open it with the new table\n"]);
        }
        run.call(&["reload", "data", "--table", &table]).fails(1, &["The table is not that of the volume."]);
        if words[0] == "serve" {
            for verb in [&["resize"][..], &["integrity", "resize"]] {
                for more in [&["--size", "8"][..], &[]] {
                    let resized = run.call(&[verb, &["data"], more].concat());
                    let message = "Volume data has the length of its table.";
                    resized.fails(1, &[message, "hint: close it, and open it with the new table\n"]);
                }
            }
        }
        assert_eq!(&run.json(&["status", "data", "--json"])["sectors"], len);
        run.call(&["close", "data"]).works();
        refused += if words[0] == "serve" { 7 } else { 3 };
    }
    count("changes_of_open_integrity_volumes_refused", refused);
}

#[test]
fn wipe_of_a_volume_is_continued() {
    let dir = Dir::new();
    let image = dir.image("image", 8);
    call(["integrity", "format", &image, "--no-wipe", "--sector-size", "4096"]).works();
    let json: Value = serde_json::from_str(call(["integrity", "dump", "--json", &image]).works().text()).unwrap();
    let blocks = json["provided_data_sectors"].as_u64().unwrap() / 8;
    let resumed = call(["integrity", "format", &image, "--resume-wipe"]);
    assert_eq!(resumed.works().text(), format!("{blocks} blocks could not be read, and are filled with zeroes.\n"));
    if have("nbdcopy") {
        let copy = dir.name("copy");
        serve(&image, &[], &format!("nbdcopy \"$uri\" {copy}")).works();
        let read = fs::read(&copy).unwrap();
        assert!(read.len() as u64 == blocks * 4096 && read.iter().all(|byte| *byte == 0));
    }
    call(["integrity", "open", &image, "x", "--resume-wipe"]).fails(1, &["Option --resume-wipe is not allowed"]);
}

/// Options of a volume whose tags have a key.
fn hmac(dir: &Dir) -> Vec<String> {
    let key = dir.file("key", &[7; 32]);
    ["-I", "hmac-sha256", "--integrity-key-file", &key, "--integrity-key-size", "32"].map(str::to_owned).to_vec()
}

#[test]
fn forged_block_with_the_filler_of_discards_is_not_read() {
    if !have("nbdcopy") {
        return;
    }
    for (mode, allows) in [("-B", false), ("-D", false), ("", false), ("", true)] {
        let dir = Dir::new();
        let (image, data, copy) = (dir.image("image", 4), dir.file("data", &[1; 512 * 8]), dir.name("copy"));
        let mut options = hmac(&dir);
        call(["integrity", "format", &image, "-q"].map(str::to_owned).into_iter().chain(options.clone())).works();
        options.extend((!mode.is_empty()).then(|| mode.to_owned()));
        serve(&image, &options, &format!("nbdcopy --flush {data} \"$uri\"")).works();
        let mut bytes = fs::read(&image).unwrap();
        let superblock = Superblock::decode(&bytes).unwrap();
        let sizes = DeviceSizes { data: bytes.len() as u64 / 512, meta: None, start: 0 };
        let layout = Layout::new(&superblock, &sizes).unwrap();
        // The journal is not to be replayed over it.
        let journal = layout.journal_at() as usize..layout.tags_at() as usize;
        assert!(mode.is_empty() || !bytes[journal].windows(512).any(|sector| sector == [1; 512]));
        let (block, tag) = (layout.data_position(3).0 as usize, layout.tag_position(3).0 as usize);
        bytes[block..block + 512].fill(9);
        bytes[tag..tag + layout.journal.tag_size].fill(0xf6);
        fs::write(&image, &bytes).unwrap();
        options.extend(allows.then(|| "--allow-discards".to_owned()));
        // Read-only: nothing is replayed to its place.
        options.extend(["--read-only".to_owned()].into_iter().filter(|_| !allows));
        let read = serve(&image, &options, &format!("nbdcopy \"$uri\" {copy}"));
        let forged = fs::read(&copy).unwrap_or_default();
        assert!(!forged.windows(512).any(|sector| sector == [9; 512]), "{mode}, {allows}");
        if !mode.is_empty() {
            assert_ne!(read.code, 0, "{mode}: {read:?}");
        }
    }
}

#[test]
fn flag_of_the_superblock_does_not_turn_verification_off() {
    for (flag, option) in [(4, "--integrity-legacy-recalculate"), (2, "--integrity-recalculate")] {
        let dir = Dir::new();
        let image = dir.image("image", 4);
        let options = hmac(&dir);
        call(["integrity", "format", &image, "-q"].map(str::to_owned).into_iter().chain(options.clone())).works();
        serve(&image, &options, "true").works();
        let mut bytes = fs::read(&image).unwrap();
        bytes[24] |= flag;
        fs::write(&image, &bytes).unwrap();
        for mode in ["-B", "-D", "--read-only", ""] {
            let options: Vec<_> =
                options.iter().cloned().chain([mode.to_owned()]).filter(|word| !word.is_empty()).collect();
            serve(&image, &options, "true").fails(1, &[option]);
        }
        assert!(fs::read(&image).unwrap() == bytes, "nothing was written");
        let legacy: Vec<_> = options.iter().cloned().chain(["--integrity-legacy-recalculate".to_owned()]).collect();
        serve(&image, &legacy, "true").works();
    }
}

#[test]
fn tags_shorter_than_the_hash_are_asked_for_by_name() {
    let dir = Dir::new();
    let image = dir.image("image", 4);
    let options = hmac(&dir);
    let with = |size: &str| [&options[..], &["--tag-size".to_owned(), size.to_owned()]].concat();
    call(["integrity", "format", &image, "-q"].map(str::to_owned).into_iter().chain(with("1"))).works();
    serve(&image, &options, "true").fails(1, &["--tag-size", "shorter tags than the hash"]);
    serve(&image, &with("2"), "true").fails(1, &["--tag-size", "the superblock has another one"]);
    serve(&image, &with("1"), "true").works();
    let line = ["integrity", "resize", &image, "--size", "2048"].map(str::to_owned);
    call(line.clone().into_iter().chain(options.clone())).fails(1, &["--tag-size"]);
    call(line.into_iter().chain(with("1"))).works();
}

#[test]
fn journal_of_a_hostile_superblock_is_not_written() {
    let dir = Dir::new();
    let image = dir.image("image", 4);
    call(["integrity", "format", &image, "-q", "--no-wipe"]).works();
    let superblock = fs::read(&image).unwrap()[..4096].to_vec();
    // Sections have 176 sectors. A journal of almost 2 TiB, the longest, and one of 512 MiB.
    for (sections, mode, words) in [
        (u32::MAX / 176 - 1, "--journal-commit-time=1000", ["more than 1 GiB", "--integrity-long-journal"]),
        (u32::MAX / 176 - 1, "--integrity-bitmap-mode", ["more than 1 GiB", "--integrity-long-journal"]),
        (u32::MAX / 176 - 1, "--integrity-no-journal", ["more than 1 GiB", "--integrity-long-journal"]),
        ((512 << 11) / 176, "--journal-commit-time=1000", ["was never written", "--integrity-salvage-journal"]),
    ] {
        let mut bytes = superblock.clone();
        bytes[12..16].copy_from_slice(&sections.to_le_bytes());
        fs::write(&image, &bytes).unwrap();
        let file = fs::File::options().write(true).open(&image).unwrap();
        if file.set_len(3 << 40).is_err() {
            println!("files of 3 TiB are not possible here");
            return;
        }
        let before = allocated(image.as_ref());
        call(["integrity", "serve", &image, mode, "--run", "true"]).fails(1, &words);
        assert_eq!(allocated(image.as_ref()), before, "{sections}, {mode}");
    }
}

#[test]
fn status_has_one_line_for_what_scripts_of_integritysetup_search() {
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.image("image", 4);
    call(["integrity", "format", "-q", &image]).works();
    let nbd = format!("unix:{}", run.socket("nbd"));
    for (option, journal) in [("--read-only", "journal size: "), ("--integrity-no-journal", "journal: not active")] {
        run.call(&["integrity", "serve", &image, "--background", "--name", "data", "--nbd", &nbd, option]).works();
        let status = run.call(&["integrity", "status", "data"]);
        let lines = |word: &str| status.text().lines().filter(|line| line.contains(word)).collect::<Vec<_>>();
        assert!(matches!(lines("mode")[..], [line] if line.starts_with("  mode:    read")), "{status:?}");
        if option == "--integrity-no-journal" {
            assert!(matches!(lines("journal")[..], [line] if line.contains(journal)), "{status:?}");
        } else {
            assert!(lines(journal).len() == 1, "{status:?}");
        }
        run.call(&["close", "data"]).works();
    }
}

#[test]
fn format_says_if_nothing_protects_the_superblock() {
    let dir = Dir::new();
    let image = dir.image("image", 4);
    let note = "nothing protects the superblock";
    let all = keyed(&dir);
    let words = ["integrity", "format", &image].map(str::to_owned);
    let format = |options: &[String]| call([&words[..], options].concat());
    // The tags have a key, and the journal has none, or a hash without one.
    let tags = &all[..6];
    assert!(tags.concat().contains("--integrity-key-size") && !tags.concat().contains("journal"), "{tags:?}");
    let hash = [tags, &["--journal-integrity", "sha256"].map(str::to_owned)].concat();
    for (options, is_said) in [(tags, true), (&hash[..], true), (&all[..], false), (&[], false)] {
        let ended = format(options);
        assert!(ended.code == 0 && ended.err.contains(note) == is_said, "{options:?}: {ended:?}");
    }
}
