//! Tokens: the action `token` compared with cryptsetup, keys in the kernel's keyring, and helpers.

use crate::harness::keyring::KernelKey;
use crate::harness::{Dir, Ended, FAST, call, call_with, have, inlock, run};
use inlock_tests::wait::eventually;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Returns the tokens of an image as stored.
fn tokens(image: &str) -> Value {
    let dumped = call(["luksDump", "--dump-json-metadata", image]);
    serde_json::from_str::<Value>(dumped.works().text()).expect("JSON")["tokens"].take()
}

fn import(image: &str, token: &Value) {
    call_with(token.to_string().as_bytes(), ["token", "import", image]).works();
}

/// Creates a LUKS2 volume with tokens of these types, each assigned to its only keyslot.
fn image_with(dir: &Dir, kinds: &[&str]) -> String {
    let image = dir.luks2("image");
    for kind in kinds {
        import(&image, &json!({"type": kind, "keyslots": ["0"]}));
    }
    image
}

/// Tests the tokens of an image with options, and nothing on standard input.
fn test_tokens(image: &str, options: &[&str]) -> Ended {
    call(["open", "--test-passphrase", image].iter().chain(options))
}

/// Texts of tokens, valid or not.
const JSON: [&str; 18] = [
    r#"{"type":"foo","keyslots":["0"],"x":1}"#,
    r#"{"type":"foo","keyslots":[]}"#,
    r#"{"type":"foo","keyslots":["1"]}"#,
    r#"{"type":"foo"}"#,
    r#"{"keyslots":[]}"#,
    r#"{"type":"foo","keyslots":[0]}"#,
    r#"{"type":"foo","keyslots":["0","0"]}"#,
    r#"{"type":"foo","keyslots":["00"]}"#,
    r#"{"type":"","keyslots":[]}"#,
    r#"[]"#,
    "nonsense",
    r#"{"type":"luks2-keyring","keyslots":["0"]}"#,
    r#"{"type":"luks2-keyring","keyslots":["0"],"key_description":"d"}"#,
    r#"{"type":"luks2-keyring","keyslots":["0"],"key_description":"d","e":1}"#,
    r#"{"type":"luks2-keyring","keyslots":["0"],"key_description":""}"#,
    r#"{"type":"luks2-other","keyslots":["0"]}"#,
    r#"{"type":"systemd-recovery","keyslots":["0"]}"#,
    r#"{"type":"clevis","keyslots":["0"],"jwe":{}}"#,
];

/// Command lines for a volume with a token 3; `IMAGE` stands for it.
const LINES: [&str; 38] = [
    "token add --key-description d IMAGE",
    "token add --key-description d --key-slot 0 IMAGE",
    "token add --key-description d --key-slot 1 IMAGE",
    "token add --key-description d --key-slot 32 IMAGE",
    "token add --key-description d --unbound IMAGE",
    "token add --key-description d --unbound --key-slot 0 IMAGE",
    "token add --key-description d --token-id 5 IMAGE",
    "token add --key-description d --token-id 31 IMAGE",
    "token add --key-description d --token-id 32 IMAGE",
    "token add --key-description d --token-id 3 IMAGE",
    "token add --key-description d --token-id 3 --token-replace IMAGE",
    "token add --key-description d --token-id 4 --token-replace IMAGE",
    "token add --key-description d --token-replace IMAGE",
    "token add IMAGE --key-description=",
    "token add IMAGE",
    "token nonsense IMAGE",
    "token IMAGE",
    "token",
    "token remove IMAGE",
    "token remove --token-id 3 IMAGE",
    "token remove --token-id 4 IMAGE",
    "token remove --token-id 32 IMAGE",
    "token remove --token-id x IMAGE",
    "token export IMAGE",
    "token export --token-id 3 IMAGE",
    "token export --token-id 3 --json-file - IMAGE",
    "token export --token-id 4 IMAGE",
    "token export --token-id 32 IMAGE",
    "token import --json-file /nonexistent IMAGE",
    "token import IMAGE",
    "token unassign IMAGE",
    "token unassign --token-id 3 IMAGE",
    "token unassign --key-slot 0 IMAGE",
    "token unassign --token-id 3 --key-slot 0 IMAGE",
    "token unassign --token-id 3 --key-slot 1 IMAGE",
    "token unassign --token-id 4 --key-slot 0 IMAGE",
    "token unassign --token-id 3 --key-slot 32 IMAGE",
    "token unassign --token-id 32 --key-slot 0 IMAGE",
];

#[test]
fn token_action_has_effect_and_status_of_cryptsetup() {
    if !have("cryptsetup") {
        return;
    }
    let dir = Dir::new();
    let base = dir.luks2("base");
    let mut lines: Vec<String> = LINES.map(ToOwned::to_owned).to_vec();
    for (number, text) in JSON.iter().enumerate() {
        let file = dir.file(&format!("json{number}"), text.as_bytes());
        lines.push(format!("token import --json-file {file} IMAGE"));
        lines.push(format!("token import --json-file {file} --key-slot 0 IMAGE"));
    }
    let file = dir.file("json", JSON[1].as_bytes());
    for options in
        ["--token-id 3", "--token-id 3 --token-replace", "--token-id 7", "--key-slot 1", "--unbound", "--token-id 32"]
    {
        lines.push(format!("token import --json-file {file} {options} IMAGE"));
    }
    call(["token", "add", "--token-id", "3", "--key-description", "old", &base]).works();
    for line in &lines {
        let [ours, theirs] = ["ours", "theirs"].map(|name| {
            let image = dir.name(name);
            std::fs::copy(&base, &image).expect("copied");
            let mut command = if name == "ours" { inlock() } else { Command::new("cryptsetup") };
            let words = line.split(' ').map(|word| if word == "IMAGE" { &*image } else { word });
            let ended = run(command.args(words), b"");
            (ended, tokens(&image))
        });
        assert_eq!(ours.0.code, theirs.0.code, "{line}: {:?}, cryptsetup: {:?}", ours.0, theirs.0);
        assert_eq!(ours.1, theirs.1, "{line}");
        assert_eq!(ours.0.out, theirs.0.out, "{line}");
        if ours.0.code != 0 {
            assert!(ours.0.err.starts_with("inlock: "), "{line}: {:?}", ours.0);
        }
    }
    println!("{} command lines", lines.len());
}

#[test]
fn token_is_kept_by_cryptsetup_and_inlock_field_for_field() {
    if !have("cryptsetup") {
        return;
    }
    let dir = Dir::new();
    let image = dir.luks2("image");
    let strange = json!({"type": "x/y\u{1b}\n", "keyslots": [], "a": {"b": [1, 2.5, null, true, "ü"]}, "c": "0"});
    import(&image, &strange);
    call(["token", "add", "--key-description", "d", &image]).works();
    run(Command::new("cryptsetup").args(["token", "add", "--key-description", "e", &image]), b"").works();
    call(["token", "remove", "--token-id", "1", &image]).works();
    assert_eq!(tokens(&image)["0"], strange);
    let exported = call(["token", "export", "--token-id", "0", &image]);
    assert_eq!(serde_json::from_str::<Value>(exported.works().text()).expect("JSON"), strange);
    let file = dir.name("token.json");
    call(["token", "export", "--token-id", "0", "--json-file", &file, &image]).works();
    assert_eq!(std::fs::read(&file).expect("written"), exported.out);
    let dump = call(["luksDump", &image]);
    assert!(dump.works().text().contains("  0: x/y\\u001b\\u000a\n"), "{dump:?}");
}

#[test]
fn token_with_verbose_prints_its_number() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let verbose =
        |words: &[&str]| call(["-v", "token"].iter().chain(words).chain([&&*image])).works().text().to_owned();
    assert_eq!(verbose(&["add", "--key-description", "d"]), "Token 0 created.\nCommand successful.\n");
    assert_eq!(verbose(&["unassign", "--token-id", "0", "-S", "0"]), "Command successful.\n");
    assert_eq!(verbose(&["remove", "--token-id", "0"]), "Token 0 removed.\nCommand successful.\n");
    call(["token", "add", "--key-description", "d", &dir.luks1("one")])
        .fails(1, &["is not a valid LUKS2 device.", "hint: "]);
    call(["token", "remove", "--token-id", "0", "--key-description", "d", &image])
        .fails(1, &["not allowed with token remove"]);
}

#[test]
fn keyring_token_unlocks_and_falls_back_to_passphrase() {
    let names = ["good", "bad", "none"].map(|name| format!("inlock-test-{}-{name}", std::process::id()));
    let [good, bad, none] = names.each_ref().map(String::as_str);
    let (Some(_good), Some(_bad)) = (KernelKey::add(good, b"secret"), KernelKey::add(bad, b"wrong")) else { return };
    let dir = Dir::new();
    let with = |description: &str| {
        let image = dir.luks2("image");
        call(["token", "add", "--key-description", description, &image]).works();
        image
    };
    let image = with(good);
    for options in [
        &["--token-only"][..],
        &[],
        &["--token-id", "0"],
        &["--token-type", "luks2-keyring"],
        &["--token-only", "--disable-external-tokens"],
        &["-S", "0"],
        &["-d", &dir.file("wrong", b"wrong")],
    ] {
        test_tokens(&image, options).works();
        if have("cryptsetup") {
            let mut cryptsetup = Command::new("cryptsetup");
            run(cryptsetup.args(["open", "--test-passphrase", &image]).args(options), b"").works();
        }
    }
    let plain = call(["export", "--token-only", "--range", "0:4096", &image, "-"]).works().out.clone();
    assert_eq!(plain, call_with(b"secret", ["export", "--range", "0:4096", &image, "-"]).works().out);
    test_tokens(&image, &["--token-only", "-S", "1"]).fails(1, &["No usable token is available."]);
    let missing = test_tokens(&image, &["--token-id", "1"]);
    missing.fails(1, &["warning: no usable token is available", "Nothing to read on input."]);

    // An existing key for a new keyslot, only if a token is requested.
    let (image, new) = (with(good), dir.file("new", b"new"));
    let add = ["luksAddKey", &image, &new, "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
    call(add).fails(1, &["Nothing to read on input."]);
    call(add.iter().chain(&["--token-only"])).works();
    call(["open", "--test-passphrase", "-S", "1", "--disable-external-tokens", "-d", &new, &image]).works();

    for wrong in [bad, none] {
        let image = with(wrong);
        test_tokens(&image, &["--token-only"]).fails(2, &["cannot unlock assigned keyslot(s)"]);
        let only = test_tokens(&image, &["--token-only", "--token-id", "0"]);
        only.fails(2, &["Token 0 cannot unlock assigned keyslot(s) (wrong keyslot passphrase).", "hint: "]);
        call_with(b"secret", ["open", "--test-passphrase", &image]).works();
        let asked = call_with(b"secret", ["open", "--test-passphrase", "--token-id", "0", &image]);
        assert_eq!(asked.code, 0);
        assert!(asked.err.contains("warning: token 0 cannot unlock"), "{asked:?}");
        assert!(!asked.err.contains("secret"));
    }
    // A token that is assigned to no keyslot.
    let image = dir.luks2("image");
    call(["token", "add", "--unbound", "--key-description", good, &image]).works();
    test_tokens(&image, &["--token-only"]).fails(1, &["No usable token is available."]);
    test_tokens(&dir.luks1("one"), &["--token-only"]).fails(1, &["No usable token is available."]);
    call(["export", "--type", "plain", "--token-only", &image, "-"])
        .fails(1, &["--token-only is not allowed with type plain"]);
}

#[test]
fn key_actions_take_tokens() {
    let names = ["one", "two"].map(|name| format!("inlock-edit-{}-{name}", std::process::id()));
    let [one, two] = names.each_ref().map(String::as_str);
    let (Some(_one), Some(_two)) = (KernelKey::add(one, b"secret"), KernelKey::add(two, b"second")) else { return };
    let dir = Dir::new();
    const COSTS: [&str; 4] = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
    let new = dir.file("new", b"new");
    // Keyslot 0 and token 0 have the first passphrase; token 1, which is assigned to none, the second one.
    let image = || {
        let image = dir.luks2("image");
        call(["token", "add", "--key-description", one, "--key-slot", "0", &image]).works();
        call(["token", "add", "--key-description", two, "--unbound", &image]).works();
        image
    };
    let opens = |image: &str, passphrase: &[u8]| {
        let open = ["open", "--test-passphrase", "-d", "-", "--token-type", "none", "-v", image];
        let ended = call_with(passphrase, open);
        (ended.code == 0).then(|| ended.text().contains("Key slot 1 unlocked"))
    };

    let added = image();
    call(["luksAddKey", "--token-id", "0", "--new-token-id", "1", &added].iter().chain(&COSTS)).works();
    assert_eq!([opens(&added, b"secret"), opens(&added, b"second")], [Some(false), Some(true)]);
    let no_token = call(["luksAddKey", "--token-id", "0", "--new-token-id", "5", &added].iter().chain(&COSTS));
    no_token.fails(1, &["No usable token is available."]);
    call(["luksAddKey", "--token-id", "0", "--new-key-description", two, &added].iter().chain(&COSTS)).works();

    // A token proves that a keyslot remains, unless it opens the one to remove.
    call(["luksKillSlot", "--token-id", "0", &added, "0"]).fails(1, &["opens keyslot 0, which is to be removed"]);
    call(["luksKillSlot", "--token-id", "9", &added, "2"]).fails(1, &["Nothing to read on input."]);
    call(["luksKillSlot", "--token-id", "0", &added, "1"]).works();
    call(["luksRemoveKey", "--token-id", "0", "-q", &added]).works();
    assert_eq!([opens(&added, b"secret"), opens(&added, b"second")], [None, Some(false)]);

    let changed = image();
    call(["luksChangeKey", "--token-only", &changed, &new].iter().chain(&COSTS)).works();
    assert_eq!([opens(&changed, b"secret"), opens(&changed, b"new")], [None, Some(false)]);

    let converted = image();
    call(["luksConvertKey", "--token-only", &converted, "-h", "sha512"].iter().chain(&COSTS)).works();
    assert_eq!(opens(&converted, b"secret"), Some(false));
    assert!(call(["luksDump", &converted]).text().contains("AF hash:    sha512"));

    let dump = ["luksDump", "-q", "--dump-volume-key", &converted];
    let by_token = call(dump.iter().chain(&["--token-only"]));
    assert_eq!(by_token.works().text(), call_with(b"secret", dump).works().text());
    call(["luksDump", &converted, "--token-only"]).fails(1, &["--token-only needs --dump-volume-key or --unbound"]);
}

#[test]
fn unlocking_with_tokens_has_status_of_cryptsetup() {
    let names = ["own", "bad", "none"].map(|name| format!("inlock-status-{}-{name}", std::process::id()));
    let [good, bad, none] = names.each_ref().map(String::as_str);
    let (Some(_good), Some(_bad)) = (KernelKey::add(good, b"secret"), KernelKey::add(bad, b"wrong")) else { return };
    if !have("cryptsetup") {
        return;
    }
    let dir = Dir::new();
    let wrong = dir.file("wrong", b"wrong");
    let keyring =
        |description: &str| json!({"type": "luks2-keyring", "keyslots": ["0"], "key_description": description});
    let unassigned = json!({"type": "luks2-keyring", "keyslots": [], "key_description": good});
    let unknown = json!({"type": "inlock-unknown", "keyslots": ["0"]});
    let tpm2 = json!({"type": "clevis", "keyslots": ["0"], "jwe": {}});
    let mut lines = 0;
    for (tokens, priority) in [
        (vec![], "normal"),
        (vec![keyring(good)], "normal"),
        (vec![keyring(good)], "prefer"),
        (vec![keyring(good)], "ignore"),
        (vec![keyring(bad)], "normal"),
        (vec![keyring(none)], "normal"),
        (vec![unassigned], "normal"),
        (vec![unknown.clone(), tpm2], "normal"),
        (vec![unknown, keyring(none), keyring(bad)], "normal"),
        (vec![keyring(bad), keyring(good)], "normal"),
    ] {
        let image = dir.luks2("image");
        tokens.iter().for_each(|token| import(&image, token));
        let mut config = Command::new("cryptsetup");
        run(config.args(["config", "--key-slot", "0", "--priority", priority, &image]), b"").works();
        for options in [
            &[][..],
            &["--token-only"],
            &["--token-id", "0"],
            &["--token-id", "0", "--token-only"],
            &["--token-id", "1"],
            &["--token-id", "1", "--token-only"],
            &["--token-type", "luks2-keyring"],
            &["--token-type", "luks2-keyring", "--token-only"],
            &["--token-type", "inlock-unknown"],
            &["--token-id", "0", "--token-type", "inlock-unknown", "--token-only"],
            &["--token-only", "--disable-external-tokens"],
            &["--key-file", &wrong],
            &["--key-file", &wrong, "--token-only"],
        ] {
            for input in [&b""[..], b"secret\n", b"wrong\n"] {
                let [ours, theirs] = [env!("CARGO_BIN_EXE_inlock"), "cryptsetup"].map(|program| {
                    run(Command::new(program).args(["open", "--test-passphrase", &image]).args(options), input).code
                });
                let input = String::from_utf8_lossy(input);
                assert_eq!(ours, theirs, "{options:?}, {input:?}, priority {priority}: {tokens:?}");
                lines += 1;
            }
        }
    }
    println!("{lines} command lines");
}

/// Writes a helper. Another process does it, so that no child of this one has the file open for writing when it runs.
fn helper(dir: &Dir, kind: &str, script: &str) {
    let path = dir.path("helpers");
    std::fs::create_dir_all(&path).expect("created");
    let mut sh = Command::new("sh");
    sh.args(["-c", "umask 022; cat > \"$0\" && chmod 755 \"$0\""]).arg(path.join(kind));
    run(&mut sh, format!("#!/bin/sh\n{script}\n").as_bytes()).works();
}

/// Tests the tokens of an image with the helpers in `dir`.
fn test_helpers(dir: &Dir, image: &str, options: &[&str]) -> Ended {
    let path = dir.name("helpers");
    test_tokens(image, &[&["--external-tokens-path", &path], options].concat())
}

#[test]
fn helper_gets_token_and_its_output_is_passphrase() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let token = json!({"type": "box", "keyslots": ["0"], "sent": "secret", "long": "x".repeat(9000)});
    call_with(token.to_string().as_bytes(), ["token", "import", "--token-id", "7", &image]).works();
    let seen = dir.name("seen");
    helper(
        &dir,
        "box",
        &format!(
            "cat > {seen}; env > {seen}.env; pwd > {seen}.pwd; echo $# \"$INLOCK_TOKEN_ID\" > {seen}.args; printf secret"
        ),
    );
    test_helpers(&dir, &image, &["--token-only"]).works();
    let json = std::fs::read_to_string(&seen).expect("written");
    assert_eq!(serde_json::from_str::<Value>(json.strip_suffix('\n').expect("a newline")).expect("JSON"), token);
    assert_eq!(std::fs::read_to_string(format!("{seen}.args")).expect("written"), "0 7\n");
    assert_eq!(std::fs::read_to_string(format!("{seen}.pwd")).expect("written"), "/\n");
    let env = std::fs::read_to_string(format!("{seen}.env")).expect("written");
    let mut names: Vec<&str> = env.lines().filter_map(|line| line.split('=').next()).collect();
    names.retain(|name| !["_", "PWD", "OLDPWD", "SHLVL"].contains(name));
    names.sort_unstable();
    assert_eq!(names, ["INLOCK_TOKEN_ID", "INLOCK_TOKEN_PROTOCOL", "LC_ALL", "PATH"]);
    // Also by default, before the passphrase on standard input; not if helpers are disabled.
    std::fs::remove_file(&seen).expect("removed");
    let path = dir.name("helpers");
    call_with(b"wrong", ["open", "--test-passphrase", "--external-tokens-path", &path, &image]).works();
    assert!(Path::new(&seen).exists());
    std::fs::remove_file(&seen).expect("removed");
    test_helpers(&dir, &image, &["--token-only", "--disable-external-tokens"])
        .fails(1, &["No usable token is available."]);
    assert!(!Path::new(&seen).exists());
    test_tokens(&image, &["--external-tokens-path", "helpers"])
        .fails(1, &["Failed to set external tokens path helpers."]);
}

#[test]
fn token_begins_a_re_encryption_and_goes_on_with_it() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let (other, key) = (dir.file("other", b"other"), dir.file("key", b"secret"));
    call(["luksAddKey", "-q", "--key-file", &key, &image, &other].iter().chain(&FAST)).works();
    call_with(br#"{"type":"box","keyslots":["1"]}"#, ["token", "import", &image]).works();
    helper(&dir, "box", "printf other");
    let path = dir.name("helpers");
    let by_token = ["--token-only", "--external-tokens-path", &path];
    let reencrypt =
        |words: &[&str]| call(["reencrypt", "-q", &image].iter().chain(&FAST).chain(&by_token).chain(words));
    reencrypt(&["--init-only"]).works();
    test_helpers(&dir, &image, &["--token-only"]).works();
    test_helpers(&dir, &image, &["--token-only", "--token-type", "mine"]).fails(1, &["No usable token"]);
    reencrypt(&["--resume-only", "--token-id", "1"]).fails(1, &["No usable token is available."]);
    helper(&dir, "box", "printf wrong");
    reencrypt(&["--resume-only"]).fails(2, &["cannot unlock assigned keyslot(s) (wrong keyslot passphrase)"]);
    helper(&dir, "box", "printf other");
    reencrypt(&["--resume-only"]).works();
    // The keyslot without the token is gone.
    call(["open", "--test-passphrase", "--key-file", &key, &image]).fails(2, &["No key available"]);
    call(["open", "--test-passphrase", "--key-file", &other, &image]).works();
    test_helpers(&dir, &image, &["--token-only"]).works();
}

#[test]
fn passphrase_of_a_re_encryption_may_be_in_the_keyring() {
    let dir = Dir::new();
    let (image, name) = (dir.luks2("image"), format!("inlock-reencrypt-{}", std::process::id()));
    let Some(_key) = KernelKey::add(&name, b"secret") else { return };
    let reencrypt = |words: &[&str]| call(["reencrypt", "-q"].iter().chain(&FAST).chain(words));
    let key = dir.file("key", b"secret");
    reencrypt(&[&image, "--key-description", &name, "--key-file", &key]).fails(1, &["Only one of --key-file"]);
    reencrypt(&[&image, "--key-description", "inlock-missing"]).fails(1, &["Failed to find key 'inlock-missing'"]);
    reencrypt(&[&image, "--key-description", &name, "--init-only"]).works();
    reencrypt(&[&image, "--key-description", &name, "--resume-only"]).works();
    call(["open", "--test-passphrase", "--key-file", &key, &image]).works();
    let luks1 = dir.luks1("luks1");
    reencrypt(&[&luks1, "--key-description", &name]).fails(1, &["--key-description"]);
}

#[test]
fn helper_inherits_no_descriptor() {
    let dir = Dir::new();
    let image = image_with(&dir, &["box"]);
    let seen = dir.name("seen");
    helper(&dir, "box", &format!("ls /proc/$$/fd > {seen}; readlink /proc/$$/fd/* >> {seen}; printf secret"));
    let script = format!(
        "exec 7< /dev/null 8> {}; exec {} open --test-passphrase --token-only --external-tokens-path {} {image}",
        dir.name("leak"),
        env!("CARGO_BIN_EXE_inlock"),
        dir.name("helpers"),
    );
    run(Command::new("sh").args(["-c", &script]), b"").works();
    let seen = std::fs::read_to_string(seen).expect("written");
    // From 10 on the shell has its own, such as the script.
    let numbers: Vec<&str> = seen.lines().filter(|line| line.parse::<u32>().is_ok_and(|number| number < 10)).collect();
    assert_eq!(numbers, ["0", "1", "2"], "{seen}");
    assert!(!seen.contains("image") && !seen.contains("leak"), "{seen}");
}

#[test]
fn broken_helper_costs_its_token_only() {
    let dir = Dir::new();
    let image = image_with(&dir, &["broken", "good"]);
    helper(&dir, "good", "printf secret");
    let pid = dir.name("pid");
    for (script, status, text) in [
        ("kill -SEGV $$", 1, "was killed by signal 11"),
        ("kill -KILL $$", 1, "was killed by signal 9"),
        ("exit 7", 1, "exited with status 7"),
        ("exit 0", 1, "printed no passphrase"),
        ("printf wrong", 2, ""),
        // No newline is removed.
        ("echo secret", 2, ""),
        ("printf ' secret'", 2, ""),
        ("printf secret; exit 1", 1, "exited with status 1"),
        ("exit 3", 1, ""),
        ("exit 4", 1, ""),
        ("exec cat /dev/zero", 1, "printed more than 8192 KiB"),
        ("exec yes >&2", 1, "did not finish within 3 s"),
        ("head -c 100000 /dev/zero | tr '\\0' x >&2; exit 9", 1, "exited with status 9"),
        ("exec > /dev/null; exec sleep 100", 1, "did not finish within 3 s"),
        (&format!("trap '' TERM INT HUP; sleep 100 & echo $! > {pid}; wait"), 1, "did not finish within 3 s"),
    ] {
        helper(&dir, "broken", script);
        let start = Instant::now();
        let limit = if text.contains("3 s") { "3" } else { "60" };
        let only = test_helpers(&dir, &image, &["--token-only", "--token-timeout", limit, "--token-id", "0"]);
        only.fails(status, &[text, if script == "exit 4" { "No usable token" } else { "Token 0 " }]);
        assert!(only.err.len() < 6 << 10, "{} bytes of messages", only.err.len());
        let both = test_helpers(&dir, &image, &["--token-only", "--token-timeout", limit]);
        assert_eq!(both.code, 0, "{script}: {both:?}");
        assert!(both.err.contains(text), "{script}: {both:?}");
        assert!(start.elapsed() < Duration::from_secs(50), "{script}: {:?}", start.elapsed());
        assert!(!only.err.contains("secret") && !both.err.contains("secret"), "{script}");
    }
    let pid = std::fs::read_to_string(&pid).expect("written");
    assert!(is_gone(pid.trim()), "a child of the helper still runs");
    helper(&dir, "broken", "echo secret");
    test_helpers(&dir, &image, &["--token-only", "--token-id", "0"]).fails(2, &["ends with a newline"]);
}

/// Whether a process is gone soon.
fn is_gone(pid: &str) -> bool {
    let runs = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
    };
    let deadline = Instant::now() + Duration::from_secs(5);
    while runs() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    !runs()
}

#[test]
fn careless_helper_works() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    // More than a pipe holds.
    import(&image, &json!({"type": "careless", "keyslots": ["0"], "x": "long".repeat(1500)}));
    for script in [
        "exec < /dev/null; printf secret",
        "exec <&-; sleep 0.1; printf sec; sleep 0.1; printf ret",
        "printf secret; exec >&-; sleep 0.1",
        "printf 'a message\\033[2J' >&2; printf secret",
    ] {
        helper(&dir, "careless", script);
        let ended = test_helpers(&dir, &image, &["--token-only"]);
        assert_eq!(ended.code, 0, "{script}: {ended:?}");
        if script.contains("message") {
            assert_eq!(ended.err, "token 0 (careless): a message\\u001b[2J\n");
        }
    }
    // A process that it leaves behind does not delay the command, and does not survive it.
    let pid = dir.name("pid");
    helper(&dir, "careless", &format!("sleep 100 & echo $! > {pid}; printf secret"));
    let start = Instant::now();
    test_helpers(&dir, &image, &["--token-only"]).works();
    assert!(start.elapsed() < Duration::from_secs(20));
    assert!(is_gone(std::fs::read_to_string(&pid).expect("written").trim()));
}

#[test]
fn helper_is_not_found_by_path_or_run_if_others_can_write_it() {
    let dir = Dir::new();
    let image = image_with(&dir, &["sh", "../evil", "/bin/sh"]);
    helper(&dir, "unused", "exit 1");
    run(Command::new("cp").args([dir.name("helpers/unused"), dir.name("evil")]), b"").works();
    let ended =
        run(inlock().env("PATH", dir.name("helpers")).args(["open", "--test-passphrase", "--token-only", &image]), b"");
    ended.fails(1, &["No usable token is available.", "hint: install a helper"]);
    test_helpers(&dir, &image, &["--token-only"]).fails(1, &["No usable token is available."]);
    helper(&dir, "sh", "printf secret");
    test_helpers(&dir, &image, &["--token-only"]).works();
    run(Command::new("chmod").args(["o+w", &dir.name("helpers/sh")]), b"").works();
    test_helpers(&dir, &image, &["--token-only"]).fails(1, &["other users can write to", "Token failed."]);
}

#[test]
fn pin_is_read_from_stdin_and_given_on_descriptor() {
    let dir = Dir::new();
    let image = image_with(&dir, &["pin", "plain"]);
    helper(&dir, "plain", "printf wrong");
    helper(
        &dir,
        "pin",
        "[ -n \"$INLOCK_TOKEN_PIN_FD\" ] || exit 2\nread -r pin <&\"$INLOCK_TOKEN_PIN_FD\"\n\
         [ \"$pin\" = 1234 ] || exit 2\nprintf secret",
    );
    let path = dir.name("helpers");
    let with = |input: &[u8], options: &[&str]| {
        let open = ["open", "--test-passphrase", "--external-tokens-path", &path, &image];
        call_with(input, open.iter().chain(options))
    };
    with(b"1234\n", &["--token-only"]).works();
    with(b"1234", &["--token-id", "0"]).works();
    with(b"1234\n", &["--token-type", "pin"]).works();
    with(b"999\n", &["--token-only"]).fails(1, &["No token could be unlocked with this PIN.", "Token requires PIN."]);
    with(b"999\nsecret\n", &["--token-id", "0"]).fails(0, &["warning: token 0 requires PIN"]);
    with(b"", &["--token-only"]).fails(1, &["Nothing to read on input."]);
    // No token is requested, so no PIN: the line is the passphrase.
    with(b"1234\n", &[]).fails(2, &["No key available with this passphrase."]);
    with(b"secret\n", &[]).works();
    let ended = with(b"4321\n", &["--token-only"]);
    assert!(!ended.err.contains("4321"), "{ended:?}");
}

#[test]
fn token_without_helper_is_explained() {
    let dir = Dir::new();
    let tpm2 = json!({"type": "systemd-tpm2", "keyslots": ["0"], "tpm2-blob": "AA==", "tpm2-pcrs": [7], "tpm2-policy-hash": "00"});
    let fido2 = json!({"type": "systemd-fido2", "keyslots": ["0"], "fido2-credential": "AA==", "fido2-salt": "AA=="});
    let ssh = json!({"type": "ssh", "keyslots": ["0"], "ssh_server": "s", "ssh_user": "u", "ssh_path": "p", "ssh_keypath": "k"});
    for (token, hint) in [
        (tpm2, "cryptsetup luksAddKey --token-only IMAGE KEYFILE"),
        (fido2, "use a passphrase or the recovery key"),
        (ssh, "ssh USER@SERVER cat PATH"),
        (json!({"type": "systemd-recovery", "keyslots": ["0"]}), "type the recovery key as the passphrase"),
        (json!({"type": "clevis", "keyslots": ["0"], "jwe": {}}), "contrib/tokens/clevis"),
        (json!({"type": "foo", "keyslots": ["0"]}), "install a helper for its type"),
    ] {
        let image = dir.luks2("image");
        import(&image, &token);
        let ended = test_tokens(&image, &["--token-only", "--external-tokens-path", "/nonexistent"]);
        ended.fails(1, &["No usable token is available.", "hint: ", hint]);
        call_with(b"secret", ["open", "--test-passphrase", &image]).works();
    }
    let image = dir.luks2("image");
    let broken = json!({"type": "systemd-tpm2", "keyslots": ["0"]});
    call_with(broken.to_string().as_bytes(), ["token", "import", &image])
        .fails(1, &["Failed to import token from file", "tpm2-blob"]);
}

/// A tang server on the loopback address, stopped when dropped.
struct Tang {
    socat: std::process::Child,
    url: String,
}

impl Tang {
    fn start(dir: &Dir) -> Self {
        let db = dir.name("tang");
        std::fs::create_dir(&db).expect("created");
        run(Command::new("/usr/libexec/tangd-keygen").arg(&db), b"").works();
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
        let listen = format!("TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr");
        let mut socat = Command::new("socat");
        socat.args([listen, format!("EXEC:/usr/libexec/tangd {db}")]).stdin(Stdio::null()).stdout(Stdio::null());
        let socat = socat.stderr(Stdio::null()).spawn().expect("socat starts");
        drop(eventually("socat listens", || std::net::TcpStream::connect(("127.0.0.1", port)), Result::is_ok));
        Self { socat, url: format!("http://127.0.0.1:{port}") }
    }
}

impl Drop for Tang {
    fn drop(&mut self) {
        self.socat.kill().and_then(|()| self.socat.wait()).expect("socat ends");
    }
}

#[test]
fn clevis_token_unlocks_while_its_tang_server_runs() {
    if !["cryptsetup", "clevis", "jose", "socat", "curl"].into_iter().all(have) {
        return;
    }
    if !Path::new("/usr/libexec/tangd-keygen").exists() {
        println!("SKIPPED: tang is not installed");
        return;
    }
    let dir = Dir::new();
    let (image, key) = (dir.luks2("image"), dir.file("key", b"secret"));
    let tang = Tang::start(&dir);
    let adv = dir.name("adv.jws");
    run(Command::new("curl").args(["-sSf", &format!("{}/adv", tang.url), "-o", &adv]), b"").works();
    let config = json!({"url": tang.url, "adv": adv}).to_string();
    let mut bind = Command::new("clevis");
    let bound = run(bind.args(["luks", "bind", "-f", "-k", &key, "-d", &image, "tang", &config]), b"");
    assert_eq!(bound.code, 0, "{bound:?}");
    let dump = call(["luksDump", &image]);
    let expected = format!("clevis\n\tclevis pin: tang\n\ttang url:   {}\n\tKeyslot:    1\n", tang.url);
    assert!(dump.works().text().contains(&expected), "{dump:?}");

    let script =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/tokens/clevis")).expect("helper");
    helper(&dir, "clevis", script.trim_start_matches("#!/bin/sh\n"));
    test_helpers(&dir, &image, &["--token-only"]).works();
    let path = dir.name("helpers");
    let export = ["export", "--range", "0:4096", &image, "-"];
    let by_token = call(export.iter().chain(&["--token-type", "clevis", "--external-tokens-path", &path]));
    assert_eq!(by_token.works().out, call_with(b"secret", export).works().out);

    drop(tang);
    let failed = test_helpers(&dir, &image, &["--token-only"]);
    failed.fails(1, &["token 0 (clevis): ", "requires additional missing resource"]);
    let fallback = call_with(b"secret", ["open", "--test-passphrase", "--external-tokens-path", &path, &image]);
    assert_eq!(fallback.code, 0, "{fallback:?}");
}
