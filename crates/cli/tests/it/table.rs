//! `--table` and `table`: the bytes of the described volume, and wrong lines that are refused.

use crate::harness::control::{Named, Run};
use crate::harness::{Dir, Ended, FAST, call, call_with, noise};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

fn bytes_of(key: &str) -> Vec<u8> {
    (0..key.len()).step_by(2).map(|at| u8::from_str_radix(&key[at..at + 2], 16).expect("hex")).collect()
}

#[test]
fn table_line_equals_plain_volume() {
    let dir = Dir::new();
    let image = dir.file("image", &noise(1 << 20));
    let key = dir.file("key", &bytes_of(KEY));
    for (options, line) in [
        (vec![], format!("0 2048 crypt aes-xts-plain64 {KEY} 0 {image} 0")),
        (vec!["-o", "8", "-p", "16"], format!("0 2040 crypt aes-xts-plain64 {KEY} 16 {image} 8")),
        (
            vec!["--sector-size", "4096", "--iv-large-sectors"],
            format!("0 2048 crypt aes-xts-plain64 {KEY} 0 {image} 0 2 sector_size:4096 iv_large_sectors"),
        ),
        (vec!["--sector-size", "65536"], format!("0 2048 crypt aes-xts-plain64 {KEY} 0 {image} 0 1 sector_size:65536")),
        (vec!["-c", "aes-cbc-essiv:sha256"], format!("0 2048 crypt aes-cbc-essiv:sha256 {KEY} 0 {image} 0")),
    ] {
        let common = ["--type", "plain", "-d", &key, "-s", "256"];
        let plain = call(["export", &image, "-"].into_iter().chain(common).chain(options.clone()));
        let table = call(["export", "-", "--table", &line]);
        assert!(table.works().out == plain.works().out, "{line}");
        // Printed, it is the same line.
        let printed = call(["table", &image, "--showkeys"].into_iter().chain(common).chain(options));
        assert_eq!(printed.text(), format!("{line}\n"));
        assert!(printed.err.contains("is a file; the Linux kernel needs a block device"), "{printed:?}");
        assert_eq!(printed.err.contains("sector_size:65536 is more than its 4096"), line.contains("65536"));
        let hidden = call(["table", "--table", &line]);
        assert_eq!(hidden.text(), format!("{line}\n").replace(KEY, &"0".repeat(64)));
    }
}

#[test]
fn table_of_spdk_volume_is_refused() {
    let dir = Dir::new();
    let image = dir.file("image", &noise(1 << 20));
    let key = dir.file("key", &bytes_of(KEY));
    let spdk = ["table", &image, "--type", "plain", "-d", &key, "-s", "256", "--spdk-tweak"];
    for more in [&[][..], &["--json"], &["--showkeys"]] {
        let refused = call(spdk.iter().chain(more));
        refused.fails(1, &["A table cannot describe a volume with SPDK's tweak"]);
        assert!(refused.out.is_empty(), "{refused:?}");
    }
}

#[test]
fn table_of_luks_volume_opens_it() {
    let dir = Dir::new();
    for image in [dir.luks2("two"), dir.luks1("one")] {
        let input = dir.file("input", &noise(1 << 20));
        call_with(b"secret", ["import", &input, &image]).works();
        let hidden = call_with(b"secret", ["table", &image]);
        assert!(hidden.code == 0 && hidden.text().contains(&format!(" crypt aes-xts-plain64 {} 0 ", "0".repeat(128))));
        let line = call_with(b"secret", ["table", &image, "--showkeys"]);
        assert_eq!(line.code, 0, "{line:?}");
        let table = dir.file("table", &line.out);
        let plain = call_with(b"secret", ["export", &image, "-"]);
        assert!(call(["export", "-", "--table", &table]).works().out == plain.works().out);
        assert!(plain.out.starts_with(&noise(1 << 20)));
        let json = call_with(b"secret", ["table", &image, "--json"]);
        let json: serde_json::Value = serde_json::from_str(json.text()).unwrap();
        assert_eq!((json["lines"][0]["key_bits"].as_u64(), json["lines"][0]["key"].is_null()), (Some(512), true));
        call_with(b"wrong", ["table", &image]).fails(2, &["No key available with this passphrase."]);
    }
}

#[test]
fn table_of_several_images_is_one_volume() {
    let dir = Dir::new();
    let (one, two) = (dir.file("my one", &noise(1 << 20)), dir.file("two", &noise(1 << 20)));
    let escaped = one.replace(' ', "\\ ");
    let text = format!(
        "# Encrypted, as it is, nothing.\n\n0 64 crypt aes-xts-plain64 {KEY} 0 {escaped} 8 2 sector_size:4096 no_read_workqueue\n\
         64 32 linear {two} 3\n  96 32 zero\n128 16 crypt aes-cbc-plain64 {KEY} 0 {two} 100\n"
    );
    let table = dir.file("table", text.as_bytes());
    let mut model = noise(144 * 512);
    let input = dir.file("input", &model);
    call(["import", &input, "--table", &table]).works();
    model[96 * 512..128 * 512].fill(0);
    assert!(call(["export", "-", "--table", &table]).works().out == model);
    let stored = std::fs::read(&two).unwrap();
    assert!(stored[3 * 512..35 * 512] == model[64 * 512..96 * 512], "linear is stored as it is");
    assert!(stored[..3 * 512] == noise(1 << 20)[..3 * 512] && stored[116 * 512..] == noise(1 << 20)[116 * 512..]);
    let line = format!("0 16 crypt aes-cbc-plain64 {KEY} 0 {two} 100");
    assert!(call(["export", "-", "--table", &line]).works().out == model[128 * 512..]);
    // Zeroes become a hole.
    let out = dir.name("out");
    call(["export", &out, "--table", "0 65536 zero"]).works();
    assert_eq!(std::fs::metadata(&out).unwrap().len(), 32 << 20);
    assert_eq!(crate::harness::allocated(std::path::Path::new(&out)), 0);
    call(["export", "-", "--table", "0 8 zero\n8 8 error"]).fails(1, &["cannot read"]);
}

#[test]
fn wrong_table_is_refused_before_devices_are_opened() {
    let dir = Dir::new();
    let image = dir.file("image", &noise(1 << 20));
    let missing = dir.name("missing");
    let input = dir.file("input", &[7; 4096]);
    let good = format!("0 2048 crypt aes-xts-plain64 {KEY} 0 {image} 0");
    for (line, words) in [
        (good.replace("2048", "2047") + " 1 sector_size:4096", &["word 2 (length) '2047'", "multiple of 8"][..]),
        (good.replace(" 0 /", " 4 /") + " 1 sector_size:4096", &["word 6 (iv_offset) '4'", "multiple of 8"]),
        (good.replace(KEY, &KEY[2..]), &["word 5 (key)", "does not take a key of 248 bits"]),
        (good.replace(KEY, ":32:logon:mine"), &["word 5 (key)", "keyring"]),
        (good.clone() + " 1 fast", &["word 10 (option) 'fast'", "allow_discards"]),
        (good.clone() + " 2 allow_discards", &["word 9 (number of options) '2'", "expected 1"]),
        (good.clone() + " 1 sector_size:131072", &["word 10 (option) 'sector_size:131072'", "512 to 65536"]),
        (good.replace("crypt", "striped"), &["word 3 (target) 'striped'", "expected crypt"]),
        (good.replace(&image, &missing) + " 1 fast", &["word 10"]),
        ("0 8 zero\n16 8 zero".to_owned(), &["line 2, word 1 (start) '16'", "expected 8"]),
        (good.replace("aes-xts", "aes-xtc"), &["word 4 (cipher) 'aes-xtc-plain64'"]),
    ] {
        let refused = call(["import", &input, "--table", &line]);
        refused.fails(1, words);
        assert!(!refused.err.contains(&KEY[..16]) && refused.err.lines().count() <= 2, "{refused:?}");
    }
    assert!(std::fs::read(&image).unwrap() == noise(1 << 20), "nothing was written");
    call(["import", &input, "--table", &good.replace(&image, &missing)]).fails(4, &[&missing]);
    call(["export", "-", "--table", &good.replace(&image, "999:999")]).fails(4, &["999:999"]);
    call(["export", "-", "--table", &dir.name("no table")]).fails(4, &["no table"]);
    call(["export", "-", "--table", &dir.file("binary", &[0xff; 99])]).fails(1, &["not text"]);
    call(["import", &input, "--table", &good.replace("0 2048", "0 2056")]).fails(1, &["needs 1052672 bytes"]);
    for option in [&["--type", "plain"][..], &["--cipher", "aes-xts-plain64"], &["-d", &input], &["--header", &image]] {
        call(["export", "-", "--table", &good].iter().chain(option)).fails(1, &["--table"]);
    }
    call(["export", &image, "-", "--table", &good]).fails(1, &["unexpected argument"]);
    call(["isLuks", &image, "--table", &good]).fails(1, &["Option --table is not allowed with isLuks action."]);
    assert!(std::fs::read(&image).unwrap() == noise(1 << 20), "nothing was written");
}

/// Prints the table of a LUKS volume, which is a file.
fn printed_table(image: &str, more: &[&str]) -> Ended {
    let printed = call_with(b"secret", ["table", image].iter().chain(more));
    assert!(printed.code == 0 && printed.err.contains("is a file; the Linux kernel needs a block device"));
    printed
}

#[test]
fn table_of_volume_with_integrity_opens_it() {
    for (cipher, integrity) in [("aes-xts-random", "hmac-sha256"), ("aes-gcm-random", "aead")] {
        let dir = Dir::new();
        let image = dir.image("image", 24);
        let options = ["--cipher", cipher, "--integrity", integrity, "--sector-size", "4096"];
        call_with(b"secret", ["luksFormat", "-q", &image].into_iter().chain(options).chain(FAST)).works();
        let input = dir.file("input", &noise(1 << 20));
        call_with(b"secret", ["import", &input, &image]).works();
        let (hidden, printed) = (printed_table(&image, &[]), printed_table(&image, &["--showkeys"]));
        assert_eq!(hidden.text().lines().count(), 2, "{hidden:?}");
        assert_ne!(hidden.text(), printed.text());
        let table = dir.file("table", &printed.out);
        let whole = call_with(b"secret", ["export", &image, "-"]);
        assert!(call(["export", "-", "--table", &table]).works().out == whole.works().out);
        assert!(whole.out.starts_with(&noise(1 << 20)));
        assert_eq!(call(["table", "--table", &table, "--showkeys"]).works().out, printed.out);
        let json = call(["table", "--table", &table, "--json"]);
        let json: serde_json::Value = serde_json::from_str(json.works().text()).unwrap();
        assert_eq!(
            (&json["lines"][0]["target"], &json["lines"][1]["key"]),
            (&"integrity".into(), &serde_json::Value::Null)
        );
        // Written through the table, read by the header.
        call(["import", "--table", &table, &dir.file("other", &[7; 8192])]).works();
        let exported = call_with(b"secret", ["export", "--range", "0:8192", &image, "-"]);
        assert_eq!(exported.works().out, [7; 8192]);
        // What the line says must be what the superblock says.
        for (from, to, message) in [
            ("block_size:4096", "block_size:512", "does not fit its integrity line: sector-size"),
            (" J ", " I ", "mode I"),
            (" integrity ", " integrity x", "does not exist"),
        ] {
            let wrong = dir.file("wrong", printed.text().replacen(from, to, 1).as_bytes());
            let refused = call(["export", "-", "--table", &wrong]);
            assert!(refused.code != 0 && refused.err.contains(message), "{from}: {refused:?}");
        }
        let policy = ["export", "-", "--table", &table, "--require-cipher", "aes-xts-plain64"];
        call(policy).fails(1, &["The table"]);
        let inline = printed.text().lines().next().unwrap().split_once(": ").unwrap().1.to_owned();
        call(["export", "-", "--table", &inline]).fails(1, &["has no internal_hash"]);
    }
}

#[test]
fn suspended_table_with_integrity_takes_its_key_from_the_same_table_only() {
    let dir = Dir::new();
    let run = Run::new();
    let format = |name: &str| {
        let image = dir.image(name, 24);
        let options = ["--integrity", "aead", "--cipher", "aes-gcm-random", "--integrity-no-wipe"];
        call_with(b"secret", ["luksFormat", "-q", &image].into_iter().chain(options).chain(FAST)).works();
        dir.file(&format!("{name}-table"), &printed_table(&image, &["--showkeys"]).out)
    };
    let (table, other) = (format("image"), format("other"));
    let server = Named::start(&run, "data", &["--table", &table]);
    let mut client = server.connect();
    client.write(0, &noise(8192)).unwrap();
    run.call(&["suspend", "data"]).works();
    run.call(&["resume", "data"]).fails(1, &["The key of data came with its table."]);
    run.call(&["reload", "data", "--table", &other]).fails(1, &["The volume was not opened on device"]);
    let lines = std::fs::read_to_string(&other).unwrap().replace(&dir.name("other"), &dir.name("image"));
    let other_key = dir.file("other-key", lines.as_bytes());
    run.call(&["reload", "data", "--table", &other_key]).fails(2, &["Volume key does not match the volume."]);
    let plain = format!("0 2048 crypt aes-xts-plain64 {KEY} 0 {} 0", dir.name("image"));
    let refused = run.call(&["reload", "data", "--table", &plain]);
    refused.fails(1, &["Volume data has integrity protection and accepts no other table."]);
    run.call(&["reload", "data", "--table", "0 2048 zero"]).fails(1, &["accepts no other table."]);
    run.call(&["reload", "data", "--table", &table]).works();
    run.call(&["resume", "data"]).works();
    assert_eq!(client.read(0, 8192).unwrap(), noise(8192));
    drop(client);
    run.call(&["close", "data"]).works();
}

/// Replaces the arguments of an integrity line by what `change` makes of them.
fn with_arguments(table: &str, change: impl FnOnce(&mut Vec<String>)) -> String {
    let (line, rest) = table.split_once('\n').expect("two lines");
    let words: Vec<&str> = line.split(' ').collect();
    // name, start, length, target, device, offset, tag size, mode, count
    let (head, arguments) = (&words[..8], &words[9..]);
    let mut arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
    change(&mut arguments);
    format!("{} {} {}\n{rest}", head.join(" "), arguments.len(), arguments.join(" "))
}

#[test]
fn reload_names_each_change_of_an_integrity_line() {
    let dir = Dir::new();
    let run = Run::new();
    let (image, other) = (dir.image("image", 24), dir.image("other", 24));
    let options = ["--integrity", "aead", "--cipher", "aes-gcm-random", "--integrity-no-wipe"];
    call_with(b"secret", ["luksFormat", "-q", &image].into_iter().chain(options).chain(FAST)).works();
    let printed = printed_table(&image, &["--showkeys"]).text().to_owned();
    let own = dir.file("own", printed.as_bytes());
    let with = |argument: &str| with_arguments(&printed, |arguments| arguments.push(argument.to_owned()));
    let swap = |from: &str, to: &str| {
        assert!(printed.contains(from), "{from}: {printed}");
        printed.replacen(from, to, 1)
    };
    let count = |name: &str| {
        with_arguments(&printed, |arguments| {
            let argument = arguments.iter_mut().find(|argument| argument.starts_with(name)).unwrap();
            *argument = format!("{name}:1000");
        })
    };
    let mac = format!("journal_mac:hmac(sha256):{KEY}");
    let refused = [
        (swap(" J ", " D "), "changes mode from J to D"),
        (swap(" J ", " B "), "changes mode from J to B"),
        (swap(" 28 J ", " 29 J "), "changes tag_size from 28 to 29"),
        (count("journal_sectors"), "changes journal_sectors from "),
        (count("interleave_sectors"), "changes interleave_sectors from 32768 to 1000"),
        (count("buffer_sectors"), "changes buffer_sectors from 32 to 1000"),
        (count("journal_watermark"), "changes journal_watermark from 50 to 1000"),
        (count("commit_time"), "changes commit_time from 10000 to 1000"),
        (swap("block_size:4096", "block_size:512"), "changes block_size from 4096 to 512"),
        (with("recalculate"), "changes recalculate from none to set"),
        (with("allow_discards"), "changes allow_discards from none to set"),
        (with("internal_hash:crc32c"), "changes internal_hash from none to crc32c"),
        (with("journal_crypt:ctr(aes)"), "changes journal_crypt from none to ctr(aes)"),
        (with(&mac), "changes journal_mac from none to hmac(sha256)"),
        (with(&format!("meta_device:{other}")), "changes meta_device from none to another device"),
        (swap(&image, &other), "was not opened on device"),
        (swap(" 32768 28 ", " 32776 28 "), "changes offset from 32768 to 32776"),
    ];
    let less = with_arguments(&printed, |arguments| {
        arguments.retain(|argument| !argument.starts_with("interleave_sectors") && !argument.starts_with("fix_"));
    });
    let less = dir.file("less", less.as_bytes());
    let key = dir.file("key", b"secret");
    for source in [&["--table", own.as_str()][..], &["--key-file", &key, &image]] {
        let server = Named::start(&run, "data", source);
        run.call(&["suspend", "data"]).works();
        for (table, message) in &refused {
            let ended = run.call(&["reload", "data", "--table", &dir.file("table", table.as_bytes())]);
            assert!(ended.code == 1 && ended.err.contains(message), "{table}: {message}: {ended:?}");
            assert!(ended.err.contains("hint: "), "{ended:?}");
        }
        run.call(&["reload", "data", "--table", &less]).works();
        run.call(&["reload", "data", "--table", &own]).works();
        run.call(&["resume", "data"]).works();
        run.call(&["close", "data"]).works();
        drop(server);
    }
}

#[test]
fn line_of_integrity_opens_a_volume_of_integritysetup() {
    let dir = Dir::new();
    let (image, meta) = (dir.image("image", 8), dir.image("meta", 1));
    let key = dir.file("hash", &bytes_of(KEY));
    let hash = ["--integrity", "hmac-sha256", "--integrity-key-file", &key, "--integrity-key-size", "32"];
    let sectors = |image: &str| {
        let dump = call(["integrity", "dump", image, "--json"]);
        serde_json::from_str::<serde_json::Value>(dump.works().text()).unwrap()["provided_data_sectors"].to_string()
    };
    let data = dir.file("data", &noise(1 << 20));
    call(["integrity", "format", "-q", &image].into_iter().chain(hash)).works();
    let len = sectors(&image);
    let line = |mode: &str, options: &str| format!("0 {len} integrity {image} 0 32 {mode} {options}");
    let hashed = format!("internal_hash:hmac(sha256):{KEY}");
    let table = line("J", &format!("2 commit_time:500 {hashed}"));
    call(["import", "--table", &table, &data]).works();
    let exported = call(["export", "--range", "0:1M", "-", "--table", &line("D", &format!("1 {hashed}"))]);
    assert!(exported.works().out == noise(1 << 20));
    // The data are right, and the hash is not: the journal, which still has them, does not match.
    let other = line("J", &format!("1 internal_hash:hmac(sha256):{}", KEY.replace("1f", "20")));
    let words = ["does not match its tag", "hint: nothing was written; check the hash and its key"];
    call(["export", "--range", "0:1M", "-", "--table", &other]).fails(1, &words);
    call(["export", "-", "--table", &line("J", "1 internal_hash:md5")]).fails(1, &["the hash is not supported"]);
    call(["export", "-", "--table", &line("J", "0")]).fails(1, &["has no internal_hash"]);
    let shorter = table.replacen(&len, "1024", 1);
    call(["export", "-", "--table", &shorter]).fails(1, &["has 1024 sectors, its device provides"]);
    // Superblock and tags on another device.
    call(["integrity", "format", "-q", "--integrity", "crc32c", "--data-device", &image, &meta]).works();
    let len = sectors(&meta);
    let table = format!("0 {len} integrity {image} 0 4 J 2 meta_device:{meta} internal_hash:crc32c");
    call(["import", "--table", &table, &data]).works();
    assert!(call(["export", "--range", "0:1M", "-", "--table", &table]).works().out == noise(1 << 20));
    assert!(std::fs::read(&image).unwrap().starts_with(&noise(1 << 20)), "the data alone");
}
