//! The command line: order of options, short forms, and mistakes refused before any device is opened.

use crate::harness::{Dir, FAST, call, call_with};

#[test]
fn options_are_accepted_anywhere_and_in_every_form() {
    let dir = Dir::new();
    let key = dir.file("key", b"secret");
    let forms: [&[&str]; 6] = [
        &["luksFormat", "IMAGE", "-q", "-d", "KEY", "-s", "512", "-c", "aes-xts-plain64", "-h", "sha512"],
        &["-q", "-d", "KEY", "-s512", "-caes-xts-plain64", "-hsha512", "luksFormat", "IMAGE"],
        &["-qdKEY", "luksFormat", "--key-size=512", "IMAGE", "--hash=sha512", "--cipher", "aes-xts-plain64"],
        &["--batch-mode", "luksFormat", "-s512", "IMAGE", "--key-file=KEY", "-hsha512"],
        &["-s256", "luksFormat", "-q", "IMAGE", "KEY", "-h", "sha1", "-s", "512", "-h", "sha512"],
        &["luksFormat", "-q", "--hash", "sha512", "--", "IMAGE", "KEY"],
    ];
    for form in forms {
        let image = dir.image("image", 18);
        let words = form.iter().map(|word| word.replace("IMAGE", &image).replace("KEY", &key));
        call(FAST.into_iter().map(str::to_owned).chain(words)).works();
        let dump = call(["luksDump", &image]);
        let text = dump.works().text();
        assert!(text.contains("512 bits") && text.contains("AF hash:    sha512"), "{form:?}: {text}");
        call(["open", "--test-passphrase", &image, "-d", &key]).works();
    }
}

/// Arguments of the program, and a part of the error.
const MISTAKES: &[(&[&str], &str)] = &[
    (&[], "Argument <action> missing."),
    (&["luksfrobnicate"], "Unknown action 'luksfrobnicate'."),
    (&["luksopen", "IMAGE", "name"], "Unknown action 'luksopen'; is luksOpen meant?"),
    (&["help", "stat"], "Unknown action 'stat'; is status meant?"),
    (&["tcryptOpen", "IMAGE", "name"], "tcryptOpen is not available in this version.\nhint: use cryptsetup"),
    (&["open", "IMAGE", "name", "-M", "tcrypt"], "Unrecognized metadata device type tcrypt.\nhint: use cryptsetup"),
    (&["open", "IMAGE", "name", "-M", "bitlk"], "Unrecognized metadata device type bitlk.\nhint: use cryptsetup"),
    (&["open", "IMAGE", "name", "-M", "x"], "Unrecognized metadata device type x.\nhint: run `inlock open --help`"),
    (&["luksDump"], "luksDump: requires <image> as arguments"),
    (&["create"], "create: requires <name> <source> as arguments."),
    (&["create", "name"], "create: requires <name> <source> as arguments."),
    (&["luksDump", "IMAGE", "more"], "unexpected argument 'more'"),
    (&["luksDump", ""], "argument 1 is empty"),
    (&["--nonsense", "luksDump", "IMAGE"], "--nonsense: unknown option"),
    (&["luksFormat", "IMAGE", "--integrity", "crc32c"], "No known integrity specification pattern detected."),
    (&["luksFormat", "IMAGE", "--integrity-no-wipe"], "Option --integrity-no-wipe needs --integrity."),
    (&["-h"], "help is -? or --help"),
    (&["luksDump", "IMAGE", "--headr", "x"], "is --header meant?"),
    (&["luksDump", "IMAGE", "--foo=bar"], "--foo: unknown option."),
    (&["luksDump", "IMAGE", "--pbkdf-memry=8"], "--pbkdf-memry: unknown option; is --pbkdf-memory meant?"),
    (&["-Z", "luksDump", "IMAGE"], "-Z: unknown option"),
    (&["luksFormat", "IMAGE", "--pbkdf-memory", "1G"], "--pbkdf-memory: invalid value '1G': not a number."),
    (&["luksFormat", "IMAGE", "--iter-time", "foo"], "--iter-time: invalid value 'foo': not a number."),
    (&["luksFormat", "IMAGE", "--iter-time="], "--iter-time: invalid value '': not a number."),
    (&["export", "IMAGE", "x", "--progress-frequency", "x"], "--progress-frequency: invalid value 'x': not a number."),
    (&["luksFormat", "IMAGE", "-i", "4294967296"], "--iter-time: invalid value '4294967296': not a number from 0 to"),
    (
        &["luksFormat", "IMAGE", "-i", "99999999999999999999"],
        "invalid value '99999999999999999999': the number is too large.",
    ),
    (&["open", "IMAGE", "x", "--token-timeout", "0"], "invalid value '0': not a number from 1 to 86400."),
    (&["serve", "--table", "", "--nbd", "unix:x"], "Option --table is empty."),
    (&["reload", "name", "--table="], "Option --table is empty."),
    (&["luksDump", "IMAGE", "--label", "x"], "Option --label is not allowed with luksDump action."),
    (&["isLuks", "IMAGE", "--nbd", "unix:x"], "Option --nbd is not allowed with isLuks action."),
    (&["luksFormat", "IMAGE", "--range", "0:1"], "Option --range is not allowed with luksFormat action."),
    (&["luksFormat", "IMAGE", "-s"], "--key-size: missing argument"),
    (&["luksFormat", "IMAGE", "-s", "abc"], "--key-size: invalid value 'abc'"),
    (&["luksFormat", "IMAGE", "-s", "-8"], "unknown option"),
    (&["luksFormat", "IMAGE", "-s", "12"], "Key size must be a multiple of 8 bits"),
    (&["luksFormat", "IMAGE", "-s", "320"], "takes no key of 320 bits; it takes 256, 384 or 512 bits"),
    (&["luksFormat", "IMAGE", "-c", "rot13-xts-plain64"], "No known cipher specification pattern detected"),
    (
        &["luksFormat", "IMAGE", "-c", "aes-xts-random"],
        "unsupported IV mode 'random': expected plain, plain64, plain64be",
    ),
    (&["luksFormat", "IMAGE", "-c", "blowfish-cbc-plain", "-s", "464"], "it takes 32 to 448 bits"),
    (
        &["serve", "IMAGE", "--nbd", "unix:x", "-M", "plain", "--spdk-tweak", "-c", "aes-cbc-plain64"],
        "--spdk-tweak needs the cipher aes-xts-plain64",
    ),
    (&["serve", "IMAGE", "--nbd", "unix:x", "--spdk-tweak"], "Option --spdk-tweak is not allowed with type luks"),
    (&["luksFormat", "IMAGE", "-h", "md4"], "Hash 'md4' is not available."),
    (&["luksFormat", "IMAGE", "-M", "tcrypt"], "Unrecognized metadata device type tcrypt."),
    (&["luksFormat", "IMAGE", "-M", "plain"], "luksFormat creates LUKS volumes only."),
    (&["luksFormat", "IMAGE", "--pbkdf", "scrypt"], "Unknown PBKDF 'scrypt'"),
    (&["luksFormat", "IMAGE", "--pbkdf", "argon2id", "-M", "luks1"], "LUKS1 supports only the PBKDF pbkdf2."),
    (&["luksFormat", "IMAGE", "--pbkdf-force-iterations", "4", "-i", "9"], "cannot be combined with iteration time"),
    (&["luksFormat", "IMAGE", "--pbkdf-memory", "0"], "Option --pbkdf-memory needs a number above zero."),
    (&["luksFormat", "IMAGE", "--label", "x", "-M", "luks1"], "supported only for LUKS2"),
    (&["luksFormat", "IMAGE", "--label", "0123456789012345678901234567890123456789012345678"], "at most 47 bytes"),
    (&["luksFormat", "IMAGE", "--sector-size", "8192"], "Unsupported encryption sector size"),
    (&["luksFormat", "IMAGE", "--sector-size", "4096", "-M", "luks1"], "Unsupported encryption sector size"),
    (&["luksFormat", "IMAGE", "-S", "32"], "Keyslot is invalid"),
    (&["luksFormat", "IMAGE", "-S", "8", "-M", "luks1"], "Keyslot is invalid"),
    (&["luksFormat", "IMAGE", "--keyfile-offset", "1"], "--keyfile-offset needs --key-file"),
    (&["serve", "IMAGE"], "Option --nbd or --run is required for serve action."),
    (&["serve", "IMAGE", "--nbd", "/tmp/socket"], "neither unix:PATH nor tcp:HOST:PORT"),
    (&["serve", "IMAGE", "--nbd", "tcp:localhost"], "the port is missing"),
    (&["serve", "IMAGE", "--nbd", "tcp:0.0.0.0:0"], "is not loopback, and NBD is unencrypted."),
    (&["serve", "IMAGE", "--nbd", "tcp:127.0.0.1:0"], "is open to all users of this machine, and NBD is unencrypted."),
    (&["serve", "IMAGE", "--nbd", "tcp:[::1]:0"], "NBD is unencrypted"),
    (&["serve", "IMAGE", "--nbd", "tcp:localhost:0", "--run", "true"], "or allow it with --insecure"),
    (&["serve", "IMAGE", "--nbd", "unix:x", "--io", "magic"], "one of auto, uring, sync"),
    (&["serve", "IMAGE", "--nbd", "unix:x", "--threads", "0"], "--threads takes 1 to 1024"),
    (&["serve", "IMAGE", "--nbd", "unix:x", "--offload-threads", "0"], "--offload-threads takes 1 to 256"),
    (&["serve", "IMAGE", "--nbd", "unix:x", "--offload-threads", "2"], "Option --offload-threads needs --offload."),
    (&["serve", "IMAGE", "--run", "x", "--offload=none", "--offload-threads=2"], "--offload-threads needs --offload."),
    (&["serve", "IMAGE", "--nbd", "unix:x", "--insecure"], "Option --insecure needs a TCP address."),
    (&["serve", "IMAGE", "--run", "true", "--insecure"], "Option --insecure needs a TCP address."),
    (&["serve", "--config", "FILE", "--nbd", "unix:x", "--insecure"], "Option --insecure needs a TCP address."),
    (&["serve", "IMAGE", "--nbd", "unix:x", "--replay", "4M"], "Option --replay needs an export of an NBD server."),
    (
        &["serve", "IMAGE", "--run", "x", "--reconnect-delay", "1"],
        "--reconnect-delay needs an export of an NBD server.",
    ),
    (&["serve", "rbd:p/i", "--run", "x", "--replay", "4M"], "Option --replay needs an export of an NBD server."),
    (&["serve", "nbd://h", "--run", "x", "--steal-lock"], "Option --steal-lock needs an image of Ceph RBD."),
    (&["luksDump", "IMAGE", "--steal-lock"], "Option --steal-lock needs an image of Ceph RBD."),
    (&["luksDump", "IMAGE", "--store-timeout", "9"], "needs an export of an NBD server or an image of Ceph RBD."),
    (
        &["export", "IMAGE", "x", "--connect-timeout", "9"],
        "Option --connect-timeout needs an export of an NBD server or",
    ),
    (&["integrity", "dump", "IMAGE", "--store-timeout", "9"], "Option --store-timeout needs an export of an NBD"),
    (&["integrity", "status", "data", "--store-timeout", "9"], "--store-timeout is not allowed with integrity status"),
    (&["verity", "dump", "IMAGE", "--reconnect-delay", "9"], "Option --reconnect-delay needs an export of an NBD"),
    (&["import", "IMAGE", "IMAGE", "--replay", "4M"], "Option --replay needs an export of an NBD server."),
    (&["serve", "--table", "0 8 zero", "--run", "x", "--replay", "4M"], "--replay needs an export of an NBD server."),
    (
        &["serve", "IMAGE", "--nbd", "unix:x", "--busy-poll", "10001"],
        "--busy-poll takes 'auto', or 0 to 10000 microseconds",
    ),
    (&["serve", "IMAGE", "--nbd", "unix:x", "--offload", "all"], "none, reads, writes, both, auto"),
    (&["serve", "IMAGE", "--nbd", "unix:x", "--engine", "qat"], "one of software, afalg"),
    (&["serve", "IMAGE", "--nbd", "unix:x", "--engine-threshold", "4K"], "--engine-threshold needs --engine afalg"),
    (
        &["open", "IMAGE", "name", "--engine", "software", "--engine-threshold", "4K"],
        "--engine-threshold needs --engine afalg",
    ),
    (&["open", "IMAGE", "name", "--engine", "afalg", "--engine-threshold", "0"], "needs a number above zero"),
    (&["open", "IMAGE", "name", "--engine", "afalg", "--via", "fuse"], "--via fuse does not support --engine."),
    (&["mount", "IMAGE", "/", "--engine", "afalg", "--via", "loop"], "--via loop does not support --engine."),
    (&["serve", "--config", "FILE", "--nbd", "unix:x", "--engine", "afalg"], "--engine is not allowed with --config"),
    (&["export", "IMAGE", "out", "--engine", "afalg"], "Option --engine is not allowed with export action."),
    (&["serve", "IMAGE", "--nbd", "unix:x", "-c", "aes-xts-plain64"], "--cipher is not allowed with type luks"),
    (&["serve", "IMAGE", "--nbd", "unix:x", "-M", "raw", "-d", "KEY"], "--key-file is not allowed with type raw"),
    (&["serve", "IMAGE", "--nbd", "unix:x", "-M", "plain", "--header", "h"], "--header is not allowed with type plain"),
    (&["serve", "IMAGE", "--nbd", "unix:x", "-M", "plain", "--iv-large-sectors"], "needs --sector-size above 512"),
    (&["export", "IMAGE"], "export: requires <image> <output file or -> as arguments"),
    (&["export", "IMAGE", "out", "--range", "5"], "not a valid LUKS device"),
    (&["export", "IMAGE", "out", "--range", "x:5"], "--range: invalid value 'x:5'"),
    (&["import", "-", "-"], "The image cannot be standard input or output."),
    (&["open", "IMAGE"], "requires <source> <name> as arguments"),
    (&["open", "IMAGE", "a/b"], "letters, digits"),
    (&["open", "IMAGE", "name", "--via", "pigeon"], "one of auto, ublk, nbd, loop, fuse"),
    (&["open", "IMAGE", "name", "--threads", "0"], "--threads takes 1 to 1024"),
    (&["mount", "IMAGE", "/", "--foreground"], "--foreground is not allowed with mount"),
    (&["open", "IMAGE", "--test-passphrase", "-M", "plain", "--test-args"], "is allowed only for LUKS volumes."),
    (&["benchmark", "--key-size", "31"], "Key size must be a multiple of 8 bits."),
    (&["tcryptDump", "IMAGE"], "Action tcryptDump is not available in this version."),
    (&["refresh", "name", "--label", "x"], "Option --label is not allowed with refresh action"),
    (
        &["open", "--refresh", "IMAGE", "name", "--test-passphrase"],
        "--test-passphrase is not allowed with refresh action",
    ),
    (&["open", "IMAGE", "name", "-I", "hmac-sha256"], "Option --integrity is not allowed with open action."),
    (&["luksFormat", "IMAGE", "--hw-opal"], "not available: Inlock does not use the encryption of drives"),
    (&["open", "IMAGE", "name", "--veracrypt"], "Inlock does not open TrueCrypt and VeraCrypt volumes"),
    (&["luksDump", "IMAGE", "-d", "KEY", "-d", "KEY"], "Only one --key-file argument is allowed."),
    (
        &["close", "name", "--deferred", "--cancel-deferred"],
        "--cancel-deferred and --deferred cannot be used at the same",
    ),
    (&["resize", "name", "--size", "8", "--device-size", "4k"], "--device-size and --size cannot be combined"),
    (&["resize", "name", "--device-size", "513"], "Device size must be multiple of 512 bytes sector."),
    (&["open", "IMAGE", "name", "-M", "plain", "--device-size", "513"], "Device size must be multiple of 512 bytes"),
    (&["open", "IMAGE", "name", "--shared"], "Option --shared is not allowed with type luks"),
    (&["luksAddKey", "IMAGE", "KEY", "--new-token-id", "1"], "Only one of new key file, --new-token-id"),
    (&["luksDump", "IMAGE", "--progress-json"], "Option --progress-json is not allowed with luksDump action."),
    (&["bench", "disk"], "'disk' is none of cipher, engine"),
    (
        &["export", "IMAGE", "out", "-M", "plain", "--sector-size", "131072"],
        "Unsupported encryption sector size: data unit size 131072 is not a power of two",
    ),
    (
        &["export", "IMAGE", "out", "-M", "plain", "--size", "99999999"],
        "image cannot be used: offset and size exceed the device\nhint: check --offset, --size",
    ),
    (&["export", "-", "--table", "0 8 crypt x"], "The table cannot be used: table line 1, word 4"),
];

#[test]
fn mistake_has_status_1_and_hint() {
    let dir = Dir::new();
    let image = dir.image("image", 20);
    for (words, message) in MISTAKES {
        let words: Vec<_> = words.iter().map(|word| word.replace("IMAGE", &image)).collect();
        let ended = call_with(b"secret\n", &words);
        println!("{words:?}");
        ended.fails(1, &["inlock: ", message, "\nhint: "]);
        assert!(ended.out.is_empty(), "{ended:?}");
    }
    assert!(std::fs::read(&image).unwrap().iter().all(|byte| *byte == 0), "something was written");
}

#[test]
fn hint_names_the_action_or_the_file() {
    let dir = Dir::new();
    let (image, file) = (dir.image("image", 20), dir.file("file", b"colour = 1\n"));
    let actions = "hint: run `inlock --help` to list actions and options\n";
    for (words, hint) in [
        (&["luksDump"][..], "hint: run `inlock luksDump --help` to list its options\n"),
        (&["luksOpen", &image], "hint: run `inlock open --help` to list its options\n"),
        (&["--nonsense", "serve", &image], "hint: run `inlock serve --help` to list its options\n"),
        (&["verity", "mend", "a"], "hint: run `inlock verity --help` to list its options\n"),
        (&["import", &image, &image, "-M", "raw"], "hint: run `inlock import --help` to list its options\n"),
        (&["luksfrobnicate"], actions),
        (&[], actions),
        (&["luksDump", &image, "--policy", &file], "hint: correct the file\n"),
        (&["serve", "--config", &file, "--nbd", "unix:x"], "hint: correct the file\n"),
    ] {
        call(words).fails(1, &[hint]);
    }
}

#[test]
fn help_lists_every_command_of_an_action() {
    for wrong in [
        &["verity", "mend", "device", "x"][..],
        &["integrity", "mend", "device"],
        &["fsverity", "mend", "file"],
        &["control", "socket", "mend"],
    ] {
        let (refused, help) = (call(wrong), call([wrong[0], "--help"]));
        let known = refused.err.split_once(" is none of ").and_then(|(_, known)| known.split_once('.'));
        for command in known.expect("a list of commands").0.split(", ") {
            let mut lines = help.works().text().lines().filter_map(|line| line.strip_prefix("  "));
            assert!(lines.any(|line| line.split(' ').next() == Some(command)), "{command}: {help:?}");
        }
    }
}

#[test]
fn help_and_version_go_to_stdout() {
    for words in [&["--help"][..], &["-?"], &["luksFormat", "-?"], &["-?", "luksFormat"], &["serve", "--help", "x"]] {
        let help = call(words);
        assert!(help.works().text().contains("Usage: inlock"), "{help:?}");
    }
    assert_eq!(call(["help"]).works().text(), call(["--help"]).text());
    assert_eq!(call(["help", "luksFormat"]).works().text(), call(["luksFormat", "--help"]).text());
    assert!(call(["-?", "luksFormat"]).text().contains("--pbkdf-memory"));
    assert!(!call(["-?", "luksUUID"]).text().contains("--pbkdf-memory"));
    let version = call(["-V"]);
    assert_eq!(version.works().text(), concat!("inlock ", env!("CARGO_PKG_VERSION"), "\n"));
}

/// Options of `serve` that hold for a server of many volumes, and those of every action.
const WITH_CONFIG: &str = "config nbd control metrics insecure serialize-memory-hard-pbkdf disable-locks \
    connect-timeout reconnect-delay store-timeout steal-lock replay allow-copy allow-untrusted-config \
    help usage version verbose batch-mode debug debug-json test-args";
/// Options of `serve` that are keys of a volume.
const KEYS: &str = "key-file keyfile-offset keyfile-size key-slot type header volume-key-file table read-only \
    allow-discards io threads engine engine-threshold holes cipher key-size hash sector-size iv-large-sectors \
    spdk-tweak offset skip size device-size allow-null-cipher allow-null-iv allow-linear-segment \
    allow-integrity-superblock require-cipher expect-uuid policy integrity-no-journal integrity-salvage-journal \
    integrity-long-journal freshness \
    freshness-accept freshness-tags";

#[test]
fn option_of_one_volume_is_refused_with_config() {
    let usage = call(["serve", "--usage"]);
    let words = usage.works().text().split_whitespace().filter(|word| word.starts_with('['));
    let with_config: Vec<&str> = WITH_CONFIG.split_whitespace().collect();
    let keys: Vec<&str> = KEYS.split_whitespace().collect();
    let (mut refused, mut of_volumes) = (0, 0);
    for word in words {
        let text = &word[word.find("--").unwrap() + 2..];
        let name = text.split(['=', ']']).next().unwrap();
        if with_config.contains(&name) {
            continue;
        }
        let value = match name {
            "io" => "=sync",
            "offload" => "=both",
            "engine" => "=afalg",
            "holes" => "=zero",
            "log-limit" => "=1M",
            "tls" => "=require",
            "require-cipher" => "=aes-xts-plain64",
            _ if word.contains('=') => "=1",
            _ => "",
        };
        let option = format!("--{name}{value}");
        let place = match () {
            () if keys.contains(&name) => ", which has it for each volume.\n",
            () => ".\n",
        };
        let message = match name.starts_with("tls") {
            true => "inlock: Options of TLS are not allowed with --config: set tls in the file.\n".to_owned(),
            false => format!("inlock: Option --{name} is not allowed with --config{place}"),
        };
        let ended = call(["serve", "--config", "FILE", "--nbd", "unix:x", &option]);
        assert!(ended.code == 1 && ended.err.starts_with(&message), "{message}{ended:?}");
        refused += 1;
        of_volumes += usize::from(keys.contains(&name));
    }
    assert!(of_volumes == keys.len() && refused > of_volumes + 20, "{refused} {of_volumes}");
    // Those of the whole server are not.
    for option in
        ["--disable-locks", "--replay=4M", "--steal-lock", "--allow-copy", "--reconnect-delay=1", "--control=x"]
    {
        call(["serve", "--config", "FILE", "--nbd", "unix:x", option]).fails(4, &["FILE does not exist"]);
    }
}

#[test]
fn hash_of_a_plain_volume_with_a_key_file_is_noted() {
    let dir = Dir::new();
    let (image, key) = (dir.image("image", 1), dir.file("key", &[7; 32]));
    let note = "WARNING: The --hash parameter is being ignored in plain mode with keyfile specified.\n";
    let words = ["export", "-M", "plain", &image, "-", "--hash", "sha512", "-d", &key, "-s", "256"];
    let noted = call(words);
    assert_eq!((noted.code, noted.err.as_str()), (0, note));
    let quiet = call(words.into_iter().chain(["-q"]));
    assert_eq!(quiet.works().out, noted.out);
    assert_eq!(call(words.into_iter().chain(["-q", "--hash", "sha256"])).works().out, noted.out);
    // Standard input is hashed.
    let typed = call_with(&[7; 32], ["export", "-M", "plain", &image, "-", "--hash", "sha512", "-d", "-", "-s", "256"]);
    assert_ne!(typed.works().out, noted.out);
}

#[test]
fn help_of_action_lists_no_hidden_option() {
    let help = call(["--help"]);
    let actions = help.works().text().lines().skip_while(|line| *line != "<action> is one of:").skip(1);
    let actions: Vec<&str> =
        actions.take_while(|line| !line.is_empty()).filter_map(|line| line.split(' ').nth(2)).collect();
    assert!(actions.len() > 20 && actions.contains(&"serve"), "{actions:?}");
    for action in actions {
        let help = call([action, "--help"]);
        let text = help.works().text();
        assert!(text.starts_with(&format!("inlock {action}: ")) && text.contains("--verbose"), "{text}");
        assert!(!text.contains("--launched") && !text.contains("  \n"), "{text}");
        assert_eq!(text.contains("--nbd "), ["serve", "integrity", "verity"].contains(&action), "{text}");
    }
}

#[test]
fn verbose_prints_result() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    assert_eq!(call(["-v", "isLuks", &image]).works().text(), "Command successful.\n");
    let wrong = call_with(b"wrong", ["-v", "open", "--test-passphrase", &image]);
    wrong.fails(2, &["No key available with this passphrase."]);
    assert_eq!(wrong.text(), "Command failed with code -2 (no permission or bad passphrase).\n");
    let missing = call(["luksUUID", "-v", &dir.name("missing")]);
    assert_eq!(missing.text(), "Command failed with code -4 (wrong device or file specified).\n");
}

#[test]
fn usage_goes_to_stdout_without_an_action() {
    for words in [&["--usage"][..], &["luksFormat", "--usage"]] {
        let usage = call(words);
        assert!(usage.works().text().starts_with("Usage: inlock [-?|--help]"), "{usage:?}");
    }
    assert!(call(["luksFormat", "--usage"]).text().ends_with("luksFormat <image> [<key file>]\n"));
}

#[test]
fn debug_lines_begin_with_hash_and_hold_no_key() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let plain = call(["luksDump", &image]);
    let debug = call(["luksDump", "--debug", &image]);
    let lines = |text: &str, is_debug: bool| -> Vec<String> {
        text.lines().filter(|line| line.starts_with("# ") == is_debug).map(str::to_owned).collect()
    };
    let text = debug.works().text();
    assert!(lines(text, true).len() >= 3 && text.starts_with("# inlock "), "{text}");
    assert!(!text.contains("\"keyslots\""), "{text}");
    let rest: Vec<String> = lines(text, false).into_iter().filter(|line| line != "Command successful.").collect();
    assert_eq!(rest, lines(plain.works().text(), false));
    let json = call(["luksDump", "--debug-json", &image]);
    assert!(lines(json.works().text(), true).iter().any(|line| line.contains("\"keyslots\"")), "{json:?}");
    let opened = call_with(b"secret", ["open", "--test-passphrase", "--debug-json", &image]);
    assert!(opened.code == 0 && !opened.text().contains("secret") && !opened.err.contains("secret"), "{opened:?}");
    let token = call_with(br#"{"type":"x","keyslots":[]}"#, ["token", "import", &image]);
    token.works();
    let exported = call(["token", "export", "--debug", "--token-id", "0", &image]);
    assert!(
        exported.code == 0 && exported.text().starts_with('{') && exported.err.starts_with("# inlock "),
        "{exported:?}"
    );
}
