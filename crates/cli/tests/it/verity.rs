//! dm-verity devices: creating, verifying, serving, describing, mistakes; each as veritysetup does it.

use crate::harness::control::Run;
use crate::harness::{Dir, Ended, call, have, inlock, noise, run};
use inlock_tests::process::PYTHON;
use inlock_tests::report::count;
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};

const SALT: &str = "00112233445566778899aabbccddeeff";

fn veritysetup(args: &[&str]) -> Ended {
    run(Command::new("veritysetup").args(args), b"")
}

/// Returns the root hash that a command has printed.
fn root_of(ended: &Ended) -> String {
    let line = ended.text().lines().find_map(|line| line.strip_prefix("Root hash:"));
    line.unwrap_or_else(|| panic!("no root hash: {ended:?}")).trim().to_owned()
}

/// Creates a device of this many bytes of data, and returns data, hash device and root hash.
fn device(dir: &Dir, len: usize) -> (String, String, String) {
    let (data, hash) = (dir.file("data", &noise(len)), dir.name("hash"));
    let formatted = call(["verity", "format", &data, &hash]);
    (data, hash, root_of(formatted.works()))
}

fn flip(path: &str, at: usize) {
    let mut bytes = fs::read(path).expect("readable");
    bytes[at] ^= 1;
    fs::write(path, bytes).expect("writable");
}

#[test]
fn created_devices_are_those_of_veritysetup() {
    if !have("veritysetup") {
        return;
    }
    let rows: &[&[&str]] = &[
        &[],
        &["--hash", "sha512", "--data-block-size", "512"],
        &["--hash", "SHA1", "--hash-block-size", "65536"],
        &["--format", "0", "--data-block-size", "1024"],
        &["--no-superblock", "--hash-block-size", "512"],
        &["--hash-offset", "8192"],
        &["--no-superblock", "--hash-offset", "4096"],
        &["--data-blocks", "1"],
        &["--data-blocks", "129", "--hash", "ripemd160"],
        &["--hash", "blake2s-256", "--format", "0", "--hash-block-size", "1024"],
    ];
    let mut compared = 0;
    for (options, salt) in rows.iter().flat_map(|options| [(options, "-"), (options, SALT)]) {
        let dir = Dir::new();
        let (data, theirs, ours) = (dir.file("data", &noise(1_310_720)), dir.name("theirs"), dir.name("ours"));
        let (their_root, our_root) = (dir.name("their-root"), dir.name("our-root"));
        let uuid = "67d8cc2c-d8c1-4ada-a044-47333b44d202";
        let all = |hash: &str, root: &str| -> Vec<String> {
            let fixed = ["format", &data, hash, "--salt", salt, "--root-hash-file", root];
            let uuid = if options.contains(&"--no-superblock") { vec![] } else { vec!["--uuid", uuid] };
            fixed.iter().chain(*options).chain(&uuid).map(|word| (*word).to_owned()).collect()
        };
        let their_output = run(Command::new("veritysetup").args(all(&theirs, &their_root)), b"");
        let our_output = call(["verity".to_owned()].into_iter().chain(all(&ours, &our_root)));
        let printed = |ended: &Ended, path: &str| ended.works().text().replace(path, "PATH");
        assert_eq!(printed(&our_output, &ours), printed(&their_output, &theirs), "{options:?}");
        assert!(fs::read(&ours).unwrap() == fs::read(&theirs).unwrap(), "{options:?}");
        assert_eq!(fs::read(&our_root).unwrap(), fs::read(&their_root).unwrap());
        // Each verifies what the other has made.
        let options: Vec<&str> = if options.contains(&"--no-superblock") {
            options.iter().copied().chain(["--salt", salt]).collect()
        } else {
            let offset = options.iter().position(|word| *word == "--hash-offset");
            offset.map(|at| options[at..at + 2].to_vec()).unwrap_or_default()
        };
        let root = root_of(&our_output);
        let words: Vec<&str> = ["verify", &data, &theirs, &root].into_iter().chain(options.clone()).collect();
        call(["verity"].iter().chain(&words)).works();
        let words: Vec<&str> = ["verify", &data, &ours, &root].into_iter().chain(options).collect();
        assert_eq!(veritysetup(&words).code, 0);
        if fs::read(&ours).unwrap().starts_with(b"verity") {
            let (our_dump, their_dump) = (call(["verity", "dump", &ours]), veritysetup(&["dump", &ours]));
            assert_eq!(our_dump.works().text(), their_dump.works().text());
        }
        compared += 1;
    }
    count("verity_devices_of_the_command", compared);
}

#[test]
fn tree_behind_the_data_is_verified_by_both() {
    let dir = Dir::new();
    let data = dir.file("data", &noise(40960));
    let words = ["--hash-offset", "40960", "--data-blocks", "10"];
    let root = root_of(call(["verity", "format", &data, &data].iter().chain(&words)).works());
    assert!(fs::read(&data).unwrap().starts_with(&noise(40960)));
    call(["verity", "verify", &data, &data, &root, "--hash-offset", "40960"]).works();
    if have("veritysetup") {
        assert_eq!(veritysetup(&["verify", &data, &data, &root, "--hash-offset", "40960"]).code, 0);
    }
    call(["verity", "format", &data, &data]).fails(1, &["Data area overlaps with hash area."]);
}

/// A corrupted block has status 2 and a wrong root hash status 1, in both programs.
#[test]
fn corruption_is_reported_with_level_block_and_status() {
    let dir = Dir::new();
    let (data, hash, root) = device(&dir, 4096 * 300);
    let statuses = |root: &str| {
        let ours = call(["verity", "verify", &data, &hash, root]);
        if have("veritysetup") {
            assert_eq!(veritysetup(&["verify", &data, &hash, root]).code, ours.code);
        }
        ours
    };
    statuses(&root).works();
    statuses(&root.to_uppercase()).works();
    let mut other = root.clone();
    other.replace_range(..1, if root.starts_with('0') { "1" } else { "0" });
    statuses(&other).fails(1, &["Verification of root hash failed", "hash block 0 of level 1 at position 4096"]);
    flip(&data, 4096 * 17 + 9);
    let words = ["Verification of data area failed", "data block 17 at position 69632 does not match its digest"];
    statuses(&root).fails(2, &words);
    flip(&data, 4096 * 17 + 9);
    // Blocks of the hash device: superblock, top, three leaves.
    flip(&hash, 4096 * 4);
    statuses(&root)
        .fails(2, &["Verification of hash area level 0 failed", "hash block 2 of level 0 at position 16384"]);
    flip(&hash, 4096 * 4);
    // The topmost block: veritysetup begins at the data, and reports the digest as theirs.
    flip(&hash, 4096);
    call(["verity", "verify", &data, &hash, &root]).fails(1, &["Verification of root hash failed"]);
    // Nothing is served.
    let served = call(["verity", "serve", &data, &hash, &root, "--run", "echo served"]);
    served.fails(1, &["Verification of root hash failed"]);
    assert_eq!(served.text(), "");
}

/// Reads through the kernel's protocol by a client of its own: all data, and around a corrupted block.
#[test]
fn served_device_fails_reads_of_corrupted_blocks_alone() {
    if !have("qemu-io") || !have("nbdcopy") {
        return;
    }
    let dir = Dir::new();
    let (data, hash, root) = device(&dir, 4096 * 1000);
    let copy = dir.name("copy");
    let serve = |command: &str| call(["verity", "serve", &data, &hash, &root, "--run", command]);
    serve(&format!("nbdcopy \"$uri\" {copy}")).works();
    assert!(fs::read(&copy).unwrap() == fs::read(&data).unwrap());
    let written = fs::read(&data).unwrap();
    flip(&data, 4096 * 500 + 77);
    assert_ne!(serve(&format!("nbdcopy \"$uri\" {copy}")).code, 0);
    let script = "for at in 498 499 500 501 500; do \
        if qemu-io -r -f raw -c \"read -q $((at * 4096)) 4096\" \"$uri\" 2>&1 | grep -q 'Input/output error'; \
        then echo $at bad; else echo $at good; fi; done; \
        qemu-io -f raw -c 'write 0 512' \"$uri\" >/dev/null 2>&1 || echo read-only; \
        qemu-io -r -f raw -c 'read -v 2043904 4096' \"$uri\" | head -c 0";
    let ended = serve(script);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(ended.text(), "498 good\n499 good\n500 bad\n501 good\n500 bad\nread-only\n");
    // Once for two reads.
    let said = "data block 500 at position 2048000 does not match its digest";
    assert_eq!(ended.err.matches(said).count(), 1, "{}", ended.err);
    let ignoring = call([
        "verity",
        "serve",
        &data,
        &hash,
        &root,
        "--ignore-corruption",
        "--run",
        &format!("nbdcopy \"$uri\" {copy}"),
    ]);
    assert_eq!(ignoring.code, 0, "{ignoring:?}");
    assert!(ignoring.err.contains(said));
    let read = fs::read(&copy).unwrap();
    assert!(read == fs::read(&data).unwrap() && read != written);
}

#[test]
fn status_counts_verified_and_corrupted_blocks() {
    if !have("qemu-io") {
        return;
    }
    let dir = Dir::new();
    let (data, hash, root) = device(&dir, 4096 * 300);
    flip(&data, 4096 * 7);
    let name = format!("verity-test-{}", std::process::id());
    let metrics = dir.name("metrics");
    let mut serving = inlock();
    let script = format!(
        "qemu-io -r -f raw -c 'read -q 0 28672' -c 'read -q 28672 4096' \"$uri\" >/dev/null 2>&1; \
         {0} verity status {name} --json; {0} verity status {name}; \
         {PYTHON} -c \"import socket; s = socket.socket(socket.AF_UNIX); s.connect('{metrics}'); \
         s.sendall(b'GET /metrics HTTP/1.1\\r\\n\\r\\n'); print(s.makefile().read())\"",
        env!("CARGO_BIN_EXE_inlock")
    );
    let address = format!("unix:{metrics}");
    serving.args(["verity", "serve", &data, &hash, &root, "--name", &name, "--metrics", &address, "--run", &script]);
    let ended = run(serving.stderr(Stdio::piped()), b"");
    let mut values = serde_json::Deserializer::from_slice(&ended.out).into_iter::<Value>();
    let json = values.next().unwrap().unwrap();
    assert_eq!((&json["verity"]["corrupted"], &json["verity"]["hash_block_size"]), (&1.into(), &4096.into()));
    assert!(json["verity"]["verified_blocks"].as_u64().unwrap() >= 8);
    assert_eq!((&json["type"], &json["read_only"]), (&"VERITY".into(), &true.into()));
    let [corrupted, rebuilt] = [("corrupted", 1), ("rebuilt", 0)]
        .map(|(kind, count)| format!("inlock_verity_bad_blocks_total{{volume=\"{name}\",kind=\"{kind}\"}} {count}"));
    for line in ["  type:    VERITY", "  status:      corrupted", "  hash name:   sha256", "  mode:    readonly"]
        .into_iter()
        .chain([&*corrupted, &*rebuilt])
    {
        assert!(ended.text().lines().any(|other| other == line), "no {line:?} in {}", ended.text());
    }
}

#[test]
fn device_is_attached_as_a_file() {
    if !crate::harness::has_fuse() {
        return;
    }
    let dir = Dir::new();
    let (data, hash, root) = device(&dir, 4096 * 300);
    let name = format!("verity-file-{}", std::process::id());
    let opened = call(["verity", "open", &data, &name, &hash, &root, "--via", "fuse"]);
    let path = opened.works().text().trim().to_owned();
    let read = fs::read(&path);
    let close = call(["verity", "close", &name]);
    assert!(read.unwrap() == fs::read(&data).unwrap());
    close.works();
}

/// Runs commands that fail with these words, and checks that they write nothing.
fn refuse(files: &[&String], commands: &[(&[&str], &str)]) {
    let contents = || files.iter().map(|file| fs::read(file).expect("it can be read")).collect::<Vec<_>>();
    let before = contents();
    for (words, said) in commands {
        call(["verity"].iter().chain(*words)).fails(1, &[said, "inlock: "]);
    }
    assert!(contents() == before);
}

#[test]
fn mistake_is_refused_by_name_and_nothing_is_written() {
    let dir = Dir::new();
    let (data, hash, root) = device(&dir, 4096 * 20);
    let (empty, long) = (dir.file("empty", b""), dir.file("long", &[b'0'; 5000]));
    let (d, h, r, run) = (data.as_str(), hash.as_str(), root.as_str(), ["--run", "true"]);
    refuse(
        &[&data, &hash, &empty],
        &[
            (&["format", d, h, "--hash", "sha255"], "Hash algorithm sha255 not supported."),
            (&["format", d, h, "--data-block-size", "1000"], "Unsupported VERITY block size."),
            (&["format", d, h, "--hash-block-size", "256"], "Unsupported VERITY block size."),
            (&["format", d, h, "--hash-block-size", "1M"], "Unsupported VERITY block size."),
            (&["format", d, h, "--format", "2"], "Unsupported VERITY hash type 2."),
            (&["format", d, h, "--salt", "abc"], "Invalid salt string specified."),
            (&["format", d, h, "--salt", "xy"], "Invalid salt string specified."),
            (&["format", d, h, "--salt", &"00".repeat(257)], "Invalid salt string specified."),
            (&["format", d, h, "--hash-offset", "100"], "Unsupported VERITY hash offset."),
            (&["format", d, h, "--no-superblock", "--hash-offset", "512"], "Unsupported VERITY hash offset."),
            (&["format", d, h, "--uuid", "x"], "Wrong VERITY UUID format provided on device"),
            (&["format", d, h, "--data-blocks", "21"], "is too small for the data blocks."),
            (&["format", &empty, h], "there are no data"),
            (&["format", d, d], "Data area overlaps with hash area."),
            (&["format", d], "verity format: requires <data_device> <hash_device> as arguments."),
            (&["verify", d, h], "Command requires <root_hash> or --root-hash-file option as argument."),
            (&["verify", d, h, r, "--root-hash-file", h], "not both"),
            (&["verify", d, h, "zz"], "Invalid root hash string specified."),
            (&["verify", d, h, "abcd"], "Invalid root hash string specified."),
            (&["verify", d, h, "--root-hash-file", "/nonexistent"], "Cannot read root hash file /nonexistent"),
            (&["verify", d, h, "--root-hash-file", &long], "Invalid root hash string specified."),
            (&["verify", d, d, r], "is not a valid VERITY device."),
            (&["verify", d, &empty, r], "the device ends before the superblock does"),
            (&["verify", &empty, h, r], "the data device ends before the data do"),
            (&["verify", d, h, r, "--hash", "sha1"], "Option --hash is not that of the superblock"),
            (&["verify", d, h, r, "--salt", "00"], "Option --salt is not that of the superblock"),
            (&["verify", d, h, r, "--data-blocks", "19"], "Option --data-blocks is not that of the superblock"),
            (&["verify", d, h, r, "--no-superblock"], "Verification of root hash failed"),
            (&["verify", d, h, r, "--hash-offset", "4096"], "is not a valid VERITY device."),
            (&["verify", d, h, r, "--ignore-corruption"], "is not allowed with verity verify."),
            (&["verify", d, h, r, "--json"], "is not allowed with verity verify."),
            (&["dump", h, "--nbd", "unix:x"], "Option --nbd is not allowed with verity dump."),
            (&["format", d, h, "--nbd", "unix:x"], "Option --nbd is not allowed with verity format."),
            (&["format", d, h, "--via", "fuse"], "Option --via is not allowed with verity format."),
            (&["verify", d, h, r, "--run", "true"], "Option --run is not allowed with verity verify."),
            (&["table", d, h, r, "--threads", "2"], "Option --threads is not allowed with verity table."),
            (&["open", d, "name", h, r, "--deferred"], "Option --deferred is not allowed with verity open."),
            (&["serve", d, h, r, run[0], run[1], "--via", "fuse"], "Option --via is not allowed with verity serve."),
            (&["dump", h, "--salt", "-"], "Option --salt is not allowed with verity dump."),
            (&["status", "name", "--hash", "sha1"], "Option --hash is not allowed with verity status."),
            (&["close", "name", "--json"], "Option --json is not allowed with verity close."),
            (&["dump", d], "is not a valid VERITY device."),
            (&["dump", h, r], "verity dump: requires <hash_device> as arguments."),
            (&["serve", d, h, r], "Option --nbd or --run is required"),
            (&["serve", d, h, r, run[0], run[1], "--root-hash-signature", h], "verify the signature of the root hash"),
            (&["serve", d, h, r, run[0], run[1], "--restart-on-corruption"], "restarts no machine"),
            (&["serve", d, h, r, run[0], run[1], "--panic-on-corruption"], "cannot stop the kernel"),
            (&["serve", d, h, r, run[0], run[1], "--check-at-most-once"], "every read is verified"),
            (&["open", d, "name", h], "Command requires <root_hash>"),
            (&["open", d, h], "verity open: requires <data_device> <name> <hash_device>"),
            (&["mend", d, h], "is none of format, verify, open, serve, dump, table, status, close."),
        ],
    );
    call(["verity", "verify", d, "/nonexistent", r]).fails(4, &["does not exist or access denied"]);
    call(["verity", "status", "no-such-device"]).fails(4, &[]);
    let file = dir.file("root", root.as_bytes());
    call(["verity", "verify", d, h, "--root-hash-file", &file]).works();
}

#[test]
fn open_device_keeps_its_hash_tree_and_its_length() {
    let dir = Dir::new();
    let runs = Run::new();
    let (data, hash, root) = device(&dir, 4096 * 20);
    let printed = call(["verity", "table", &data, &hash, &root]);
    assert_eq!(printed.code, 0, "{printed:?}");
    let table = dir.file("table", &printed.out);
    let nbd = format!("unix:{}", runs.socket("nbd"));
    let background = ["--background", "--name", "data", "--nbd", &nbd];
    let mut refused = 0;
    for words in [&["verity", "serve", &data, &hash, &root][..], &["serve", "--table", &table]] {
        runs.call(&[words, &background].concat()).works();
        for other in ["0 2048 zero", &format!("0 160 linear {data} 0"), &table] {
            let reloaded = runs.call(&["reload", "data", "--table", other]);
            let message = "Volume data has a hash tree and accepts no other table.";
            reloaded.fails(1, &[message, "hint: close it, and open it with the new table\n"]);
        }
        for more in [&["--size", "8"][..], &[]] {
            let resized = runs.call(&[&["resize", "data"][..], more].concat());
            resized.fails(1, &["Volume data has a hash tree, which fixes its length.", "inlock verity format"]);
        }
        assert_eq!(runs.json(&["status", "data", "--json"])["sectors"], 160);
        runs.call(&["close", "data"]).works();
        refused += 5;
    }
    runs.call(&[&["serve", "--type", "raw", &data][..], &background].concat()).works();
    let reloaded = runs.call(&["reload", "data", "--table", &table]);
    reloaded.fails(1, &["A table with a hash tree cannot replace another one."]);
    runs.call(&["close", "data"]).works();
    count("changes_of_open_verity_devices_refused", refused);
}

#[test]
fn digest_of_a_file_is_that_of_fsverity() {
    let dir = Dir::new();
    let (file, empty) = (dir.file("file", &noise(1_000_001)), dir.file("empty", b""));
    let rows: &[&[&str]] = &[&[], &["--compact"], &["--hash-alg=sha512", "--block-size=1024", "--salt=00ff"]];
    if have("fsverity") {
        for options in rows {
            let theirs = run(Command::new("fsverity").args(["digest", &file, &empty]).args(*options), b"");
            let ours = call(["fsverity", "digest", &file, &empty].iter().chain(*options));
            assert_eq!(ours.works().text(), theirs.works().text());
        }
    }
    let descriptor = dir.name("descriptor");
    let printed = call(["fsverity", "digest", &file, "--out-descriptor", &descriptor]);
    let digest = printed.works().text().split(' ').next().unwrap().to_owned();
    assert_eq!(fs::read(&descriptor).unwrap()[..4], [1, 1, 12, 0]);
    call(["fsverity", "verify", &file, &digest]).works();
    call(["fsverity", "verify", &file, digest.strip_prefix("sha256:").unwrap()]).works();
    flip(&file, 500_000);
    call(["fsverity", "verify", &file, &digest]).fails(2, &["does not have this digest."]);
    call(["fsverity", "digest", &file, &empty, "--out-descriptor", &descriptor]).fails(1, &["with one file only"]);
    call(["fsverity", "digest", &file, "--block-size", "1000"]).fails(1, &["no power of two"]);
    call(["fsverity", "digest", &file, "--hash-alg", "sha1"]).fails(1, &["is neither sha256 nor sha512"]);
    call(["fsverity", "digest", "/nonexistent"]).fails(1, &["cannot open /nonexistent"]);
    call(["fsverity", "verify", &file, "sha256:00"]).fails(1, &["Invalid digest string"]);
    call(["fsverity", "verify", &file, &digest, "--hash-alg", "sha512"]).fails(1, &["is not that of the digest"]);
    call(["fsverity", "mend", &file]).fails(1, &["is none of digest, verify."]);
}

#[test]
fn dump_as_json_has_the_parameters() {
    let dir = Dir::new();
    let (data, hash) = (dir.file("data", &noise(8192)), dir.name("hash"));
    call(["verity", "format", &data, &hash, "--salt", SALT, "--data-block-size", "512"]).works();
    let json: Value = serde_json::from_str(call(["verity", "dump", "--json", &hash]).works().text()).unwrap();
    assert_eq!((&json["hash"], &json["salt"]), (&"sha256".into(), &SALT.into()));
    assert_eq!((&json["data_blocks"], &json["hash_blocks"]), (&16.into(), &1.into()));
}

/// Key of a table's line.
fn table_key() -> String {
    (0..64).map(|byte| format!("{byte:02x}")).collect()
}

/// Writes `data` through one line of dm-crypt, and returns the image of the ciphertext with its line.
fn encrypted(dir: &Dir, name: &str, data: &[u8]) -> (String, String) {
    let image = dir.file(name, &vec![0; data.len()]);
    let line = format!("0 {} crypt aes-xts-plain64 {} 0 {image} 0", data.len() / 512, table_key());
    let plain = dir.file("plain", data);
    call(["import", "--table", &dir.file("line", line.as_bytes()), &plain]).works();
    (image, line)
}

/// Exports a table's device.
fn exported(dir: &Dir, table: &str) -> Ended {
    call(["export", "-", "--table", &dir.file("table", table.as_bytes())])
}

#[test]
fn printed_line_of_a_device_opens_it() {
    let dir = Dir::new();
    let (data, hash) = (dir.file("data", &noise(4096 * 300)), dir.name("hash"));
    let root = root_of(call(["verity", "format", &data, &hash, "--salt", SALT]).works());
    let printed = call(["verity", "table", &data, &hash, &root, "--ignore-corruption"]);
    let line = format!("0 2400 verity 1 {data} {hash} 4096 4096 300 1 sha256 {root} {SALT} 1 ignore_corruption\n");
    assert_eq!((printed.code, printed.text()), (0, line.as_str()));
    assert!(printed.err.contains("is a file; the Linux kernel needs a block device"), "{printed:?}");
    let line = line.replace(" 1 ignore_corruption\n", "");
    assert!(exported(&dir, &line).works().out == noise(4096 * 300));
    assert_eq!(call(["table", "--table", &line]).works().text(), format!("{line}\n"));
    // The length is that of the line.
    assert!(exported(&dir, &line.replacen("2400", "17", 1)).works().out == noise(17 * 512));
    let longer = exported(&dir, &line.replacen("2400", "2401", 1));
    longer.fails(1, &["table line 1, word 9 (data blocks) '300': expected a number of data blocks"]);
    let json = call(["verity", "table", &data, &hash, &root, "--json"]);
    assert_eq!(json.text(), call(["table", "--table", &line, "--json"]).works().text());
    let json: Value = serde_json::from_str(json.text()).unwrap();
    assert_eq!((&json["lines"][0]["target"], &json["lines"][0]["root_hash"]), (&"verity".into(), &root.into()));
    // Without superblock, and with blocks longer than a page.
    let words = ["--no-superblock", "--data-block-size", "8192", "--data-blocks", "150", "--salt", "-"];
    let root = root_of(call(["verity", "format", &data, &hash].iter().chain(&words)).works());
    let printed = call(["verity", "table", &data, &hash, &root].iter().chain(&words));
    let text = format!("0 2400 verity 1 {data} {hash} 8192 4096 150 0 sha256 {root} -\n");
    assert_eq!((printed.code, printed.text()), (0, text.as_str()));
    assert!(printed.err.contains("data blocks of 8192 bytes exceed its page"), "{printed:?}");
    assert!(exported(&dir, &text).works().out == noise(4096 * 300));
    flip(&data, 8192 * 77);
    exported(&dir, &text).fails(1, &["data block 77 at position 630784 does not match its digest"]);
    let ignoring = exported(&dir, &text.replace(" -\n", " - 2 ignore_corruption check_at_most_once\n"));
    assert!(ignoring.code == 0 && ignoring.out == fs::read(&data).unwrap());
}

#[test]
fn hash_tree_over_plaintext_is_a_stack_of_lines() {
    let dir = Dir::new();
    // Data and tree on one encrypted device.
    let file = dir.file("file", &noise(4096 * 200));
    let words = ["--hash-offset", "819200", "--data-blocks", "200", "--salt", SALT];
    let root = root_of(call(["verity", "format", &file, &file].iter().chain(&words)).works());
    let (image, line) = encrypted(&dir, "image", &fs::read(&file).unwrap());
    let verity =
        |hash: &str| format!("root: 0 1600 verity 1 /dev/mapper/plain {hash} 4096 4096 200 201 sha256 {root} {SALT}\n");
    let stack = format!("plain: {line}\n{}", verity("/dev/mapper/plain"));
    assert!(exported(&dir, &stack).works().out == noise(4096 * 200));
    // The tree on a device of its own.
    assert!(exported(&dir, &format!("plain: {line}\n{}", verity(&file))).works().out == noise(4096 * 200));
    let shown = call(["table", "--table", &dir.file("table", stack.as_bytes())]);
    assert_eq!(shown.works().text(), stack.replace(&table_key(), &"0".repeat(128)));
    // A block of the ciphertext makes a block of the plaintext bad; another key all of them.
    flip(&image, 4096 * 70 + 4000);
    let bad = ["/dev/mapper/plain: data block 70 at position 286720 does not match its digest", "cannot read"];
    exported(&dir, &stack).fails(1, &bad);
    flip(&image, 4096 * 70 + 4000);
    let other = stack.replacen("000102", "000103", 1);
    exported(&dir, &other).fails(1, &["Verification of root hash failed"]);
    let policy =
        |cipher| call(["export", "-", "--table", &dir.file("table", stack.as_bytes()), "--require-cipher", cipher]);
    policy("aes-xts-plain64").works();
    policy("serpent-xts-plain64").fails(1, &["The table"]);
    // Nothing is written through it.
    let before = fs::read(&image).unwrap();
    let written = call(["import", "--table", &dir.file("table", stack.as_bytes()), &file]);
    assert!(written.code != 0 && written.err.contains("read-only"), "{written:?}");
    assert!(fs::read(&image).unwrap() == before);
}

#[test]
fn ciphertext_under_a_hash_tree_is_a_stack_of_lines() {
    let dir = Dir::new();
    let (image, line) = encrypted(&dir, "image", &noise(4096 * 200));
    let hash = dir.name("hash");
    let root = root_of(call(["verity", "format", &image, &hash, "--salt", SALT]).works());
    let line = line.replace(&image, "/dev/mapper/root");
    let verity = format!("root: 0 1600 verity 1 {image} {hash} 4096 4096 200 1 sha256 {root} {SALT}");
    let stack = format!("{verity}\ntop: {line}\n");
    assert!(exported(&dir, &stack).works().out == noise(4096 * 200));
    let json = call(["table", "--table", &dir.file("table", stack.as_bytes()), "--json"]);
    let json: Value = serde_json::from_str(json.works().text()).unwrap();
    assert_eq!((&json["lines"][0]["name"], &json["lines"][1]["name"]), (&"root".into(), &"top".into()));
    assert_eq!((&json["lines"][1]["key"], &json["sectors"]), (&Value::Null, &1600.into()));
    // Lines that reach behind the verified device.
    let beyond = stack.replacen("top: 0 1600", "top: 0 1601", 1);
    exported(&dir, &beyond).fails(1, &["cannot be used"]);
    flip(&image, 4096 * 9);
    let at = format!("{image}: data block 9 at position 36864 does not match its digest");
    exported(&dir, &stack).fails(1, &[&at, "cannot read"]);
    let ignoring = exported(&dir, &stack.replace("\ntop", " 1 ignore_corruption\ntop"));
    let differ = ignoring.out.iter().zip(noise(4096 * 200)).filter(|(ours, data)| **ours != *data).count();
    assert!(ignoring.code == 0 && (14..=16).contains(&differ), "{differ} bytes of a block of the cipher differ");
    for (option, said) in [
        ("1 restart_on_corruption", "restarts or stops the machine"),
        ("1 panic_on_error", "restarts or stops the machine"),
        ("2 root_hash_sig_key_desc key", "has root_hash_sig_key_desc"),
    ] {
        exported(&dir, &stack.replace("\ntop", &format!(" {option}\ntop"))).fails(1, &[said, "hint: "]);
    }
}

#[test]
fn served_table_with_a_hash_tree_has_its_state_and_is_not_suspended() {
    if !have("qemu-io") {
        return;
    }
    let dir = Dir::new();
    let (image, line) = encrypted(&dir, "image", &noise(4096 * 50));
    let hash = dir.name("hash");
    let root = root_of(call(["verity", "format", &image, &hash, "--salt", "-"]).works());
    let line = line.replace(&image, "/dev/mapper/root");
    let stack = format!("root: 0 400 verity 1 {image} {hash} 4096 4096 50 1 sha256 {root} -\ntop: {line}\n");
    let table = dir.file("table", stack.as_bytes());
    let name = format!("verity-table-{}", std::process::id());
    let script = format!(
        "qemu-io -r -f raw -c 'read -q 0 200k' \"$uri\"; {0} status {name} --json; {0} suspend {name}; \
         {0} reload {name} --table {table}; qemu-io -r -f raw -c 'read 0 4k' \"$uri\" | head -n 1",
        env!("CARGO_BIN_EXE_inlock")
    );
    let ended = run(inlock().args(["serve", "--table", &table, "--name", &name, "--run", &script]), b"");
    let mut values = serde_json::Deserializer::from_slice(&ended.out).into_iter::<Value>();
    let json = values.next().unwrap().unwrap();
    assert_eq!((&json["type"], &json["read_only"]), (&"TABLE".into(), &true.into()), "{ended:?}");
    assert_eq!((&json["verity"]["verified_blocks"], &json["verity"]["corrupted"]), (&50.into(), &0.into()));
    assert!(ended.err.contains("has a table with a hash tree and cannot be suspended"), "{ended:?}");
    assert!(ended.err.contains("has a hash tree and accepts no other table."), "{ended:?}");
    assert!(ended.text().ends_with("read 4096/4096 bytes at offset 0\n"), "{ended:?}");
}

/// Parity of `veritysetup` and of Inlock is the same, and corrects the same errors.
#[test]
fn parity_is_written_shown_and_used_as_by_veritysetup() {
    if !have("veritysetup") {
        return;
    }
    let dir = Dir::new();
    let data = dir.file("data", &noise(4096 * 700));
    let uuid = "67d8cc2c-d8c1-4ada-a044-47333b44d202";
    for (roots, offset, on_hash) in [("2", "0", false), ("13", "8192", false), ("4", "65536", true)] {
        let mut made = Vec::new();
        for who in ["theirs", "ours"] {
            let hash = dir.file(&format!("{who}-hash"), &vec![0; if on_hash { 65536 } else { 0 }]);
            let fec = if on_hash { hash.clone() } else { dir.name(&format!("{who}-fec-{roots}")) };
            let words =
                ["format", &data, &hash, "--salt", SALT, "--uuid", uuid, "--fec-device", &fec, "--fec-roots", roots];
            let more = ["--fec-offset", offset];
            let words = words.iter().chain(&more);
            let ended = match who {
                "theirs" => run(Command::new("veritysetup").args(words), b""),
                _ => call(["verity"].iter().chain(words)),
            };
            let text = ended.works().text().replace(&hash, "HASH");
            let options = ["--fec-device", &fec, "--fec-roots", roots, "--fec-offset", offset];
            let dump = call(["verity", "dump", &hash].iter().chain(&options));
            let theirs = veritysetup(&["dump", &hash].iter().chain(&options).copied().collect::<Vec<_>>());
            assert_eq!(dump.works().text(), theirs.works().text());
            made.push((text, fs::read(&hash).unwrap(), fs::read(&fec).unwrap(), root_of(&ended), hash, fec));
        }
        let [(text, tree, parity, ..), ours] = &made[..] else { unreachable!() };
        assert_eq!(*text, ours.0);
        assert!(*tree == ours.1 && *parity == ours.2, "{roots} {offset}");
        let (root, hash, fec) = (&ours.3, &ours.4, &ours.5);
        let options = ["--fec-device", fec, "--fec-roots", roots, "--fec-offset", offset];
        let words: Vec<&str> = ["verify", &data, hash, root].into_iter().chain(options).collect();
        call(["verity"].iter().chain(&words)).works();
        // Three blocks in a row are in three rounds.
        (10..13).for_each(|block| flip(&data, block * 4096 + 5));
        let (theirs, found) = (veritysetup(&words), call(["verity"].iter().chain(&words)));
        assert_eq!((theirs.code, found.code), (0, 0), "{found:?}");
        assert!(theirs.err.contains("Found 3 repairable errors") && found.err.contains("found 3 repairable errors"));
        let copy = dir.name("copy");
        let run = ["--run".to_owned(), format!("nbdcopy \"$uri\" {copy}")];
        let serve =
            ["verity", "serve"].into_iter().chain(words[1..].iter().copied()).chain(run.iter().map(String::as_str));
        let served = call(serve);
        assert_eq!(served.code, 0, "{served:?}");
        assert!(served.err.contains("data block 11 at position 45056 does not match its digest, and was rebuilt"));
        assert!(fs::read(&copy).unwrap() == noise(4096 * 700));
        // By its table, too.
        let printed = call(["verity", "table"].iter().chain(&words[1..]));
        let arguments = format!(" 8 use_fec_from_device {fec} fec_blocks ");
        assert!(printed.text().contains(&arguments), "{printed:?}");
        assert!(printed.text().ends_with(&format!(" fec_roots {roots}\n")), "{printed:?}");
        let read = exported(&dir, printed.text());
        assert!(read.code == 0 && read.out == noise(4096 * 700), "{}", read.err);
        // More blocks of a round than the parity corrects.
        (0..700).for_each(|block| flip(&data, block * 4096));
        let (theirs, ours) = (veritysetup(&words), call(["verity"].iter().chain(&words)));
        assert_eq!((theirs.code, ours.code), (2, 2), "{ours:?}");
        fs::write(&data, noise(4096 * 700)).unwrap();
    }
}

#[test]
fn mistake_about_parity_is_refused_by_name() {
    let dir = Dir::new();
    let (data, hash, root) = device(&dir, 4096 * 20);
    let fec = dir.file("fec", &[]);
    let (d, h, r, f) = (data.as_str(), hash.as_str(), root.as_str(), fec.as_str());
    refuse(
        &[&data, &hash, &fec],
        &[
            (&["format", d, h, "--fec-device", f, "--fec-roots", "1"], "Invalid number of parity bytes."),
            (&["format", d, h, "--fec-device", f, "--fec-roots", "25"], "Invalid number of parity bytes."),
            (&["format", d, h, "--fec-device", f, "--fec-offset", "100"], "Unsupported VERITY FEC offset."),
            (&["format", d, h, "--fec-device", f, "--fec-offset", "512"], "Unsupported VERITY FEC offset."),
            (&["format", d, h, "--fec-device", f, "--data-block-size", "512"], "Block sizes must match for FEC."),
            (&["format", d, h, "--fec-device", h], "FEC area overlaps with hash area."),
            (&["format", d, h, "--fec-device", h, "--fec-offset", "4096"], "FEC area overlaps with hash area."),
            (&["format", d, h, "--fec-device", d], "The FEC device names the data device."),
            (&["verify", d, h, r, "--fec-device", f], "the device ends before the parity does"),
            (&["serve", d, h, r, "--fec-device", f, "--run", "true"], "the device ends before the parity does"),
        ],
    );
    call(["verity", "verify", d, h, r, "--fec-device", "/nonexistent"]).fails(4, &["does not exist or access denied"]);
}

/// Only the parity is on an export. A request that waits for all threads, which wait for its server, fails in time.
#[test]
fn waits_for_remote_parity_are_limited() {
    let dir = Dir::new();
    let (data, hash, fec) = (dir.file("data", &noise(4096 * 20)), dir.name("hash"), dir.name("fec"));
    let root = root_of(call(["verity", "format", &data, &hash, "--fec-device", &fec]).works());
    let table = call(["verity", "table", &data, &hash, &root, "--fec-device", &fec]).text().trim().to_owned();
    let threads = |device: &str, options: &str| {
        let (inlock, table) = (env!("CARGO_BIN_EXE_inlock"), table.replace(&fec, device));
        let inner = format!("{inlock} serve --table \"{table}\" {options} --run 'cat /proc/$PPID/task/*/comm'");
        call(["serve", "--type", "raw", "--read-only", &fec, "--run", &inner])
    };
    for (device, is_limited) in [("$uri", true), (&fec, false)] {
        let served = threads(device, "");
        assert_eq!(served.text().lines().any(|name| name == "inlock-s-limit"), is_limited, "{served:?}");
    }
    assert_eq!(threads("$uri", "--store-timeout 7").code, 0);
    threads(&fec, "--store-timeout 7").fails(1, &["Option --store-timeout needs an export"]);
    // Without a table all of it must be on this host.
    let inlock = env!("CARGO_BIN_EXE_inlock");
    let inner = format!("{inlock} verity verify {data} {hash} {root} --fec-device \"$uri\"");
    let refused = call(["serve", "--type", "raw", "--read-only", &fec, "--run", &inner]);
    refused.fails(1, &["Device nbd+unix:", "is not on this host", "or open it with --table"]);
}

/// The superblock is not hashed: with one data block the root is the hash of that block, here the one of the tree.
#[test]
fn policy_pins_the_number_of_data_blocks() {
    let dir = Dir::new();
    let (data, hash, root) = device(&dir, 40 * 4096);
    let pinned = dir.file("pinned", b"data-blocks = 40\n");
    let with = |more: &[&str]| {
        let verify = [&["verity", "verify", &data, &hash, &root], more].concat();
        let serve = [&["verity", "serve", &data, &hash, &root, "--run", "true"], more].concat();
        let table = [&["verity", "table", &data, &hash, &root], more].concat();
        [verify, serve, table].map(call)
    };
    with(&["--policy", &pinned]).iter().for_each(|ended| assert_eq!(ended.code, 0, "{ended:?}"));
    let (mut device, mut tree) = (fs::read(&data).unwrap(), fs::read(&hash).unwrap());
    device[..4096].copy_from_slice(&tree[4096..8192]);
    tree[72..80].copy_from_slice(&1u64.to_le_bytes());
    fs::write(&data, device).unwrap();
    fs::write(&hash, tree).unwrap();
    // As for veritysetup, a block of the tree is verified data.
    call(["verity", "serve", &data, &hash, &root, "--run", "true"]).works();
    for ended in with(&["--policy", &pinned]).iter().chain(&with(&["--data-blocks", "40"])) {
        ended.fails(1, &["Option --data-blocks is not that of the superblock"]);
    }
    let twice = ["--policy", &pinned, "--data-blocks", "40"];
    with(&twice).iter().for_each(|ended| ended.fails(1, &["--data-blocks is not allowed with a policy"]));
    let other = dir.file("other", b"data-blocks = 40\ncipher = [\"aes-xts-plain64\"]\n");
    with(&["--policy", &other]).iter().for_each(|ended| ended.fails(1, &["has the key data-blocks and no other"]));
    call(["export", "--policy", &pinned, &data, "-"]).fails(1, &["is allowed with dm-verity devices only"]);
}
