//! Volume keys in the kernel's keyrings: `--volume-key-keyring` and `--link-vk-to-keyring`. The newest cryptsetup, if
//! there is one, has the same exit statuses.

use crate::harness::control::Run;
use crate::harness::keyring::{KernelKey, TestKeyring};
use crate::harness::{Dir, FAST, call, call_with, run};
use std::process::Command;

/// Runs `inlock`, and the newest cryptsetup with the same words, which must end with the same status.
#[track_caller]
fn both(words: &[&str]) -> crate::harness::Ended {
    let ended = call(words);
    if let Ok(newest) = std::env::var("INLOCK_NEW_CRYPTSETUP")
        && let Some((program, first)) = newest.split_whitespace().collect::<Vec<_>>().split_first()
    {
        let theirs = run(Command::new(program).args(first).args(words), b"");
        assert_eq!(theirs.code, ended.code, "{words:?}: {theirs:?}, inlock: {ended:?}");
    }
    ended
}

#[test]
fn volume_key_is_read_from_keyring() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let key_file = dir.name("key");
    call_with(b"secret", ["luksDump", "-q", "--dump-volume-key", "--volume-key-file", &key_file, &image]).works();
    let content = std::fs::read(&key_file).expect("written");
    let mut other = content.clone();
    other[0] ^= 1;
    let longer = [&content[..], &[0]].concat();
    let names = ["right", "other", "short", "long"].map(|name| format!("inlock-test-{}-{name}", std::process::id()));
    let [right, wrong, short, long] = names.each_ref();
    let Some(key) = KernelKey::add(right, &content) else { return };
    let others = [(wrong, &other[..]), (short, &content[..63]), (long, &longer)];
    let _others = others.map(|(name, key)| KernelKey::add(name, key).expect("as before"));
    let open = |name: &str| both(&["open", "--test-passphrase", &image, "--volume-key-keyring", name]);
    open(&format!("%user:{right}")).works();
    // cryptsetup takes a number for a description, which comes first here, too.
    let number = key.number().to_string();
    call(["open", "--test-passphrase", &image, "--volume-key-keyring", &number]).works();
    let named = KernelKey::add(&number, &other).expect("as before");
    open(&number).fails(2, &["Volume key does not match the volume."]);
    drop(named);
    open(&format!("%user:{wrong}")).fails(2, &["Volume key does not match the volume."]);
    for (name, len) in [(short, 63), (long, 65)] {
        let message = format!("has {len} bytes; the volume key has 64");
        open(&format!("%user:{name}")).fails(2, &["Volume key does not match the volume", &message]);
    }
    open("%user:inlock-test-no-such-key").fails(1, &["Failed to find key '%user:inlock-test-no-such-key'"]);
    let logon = call(["open", "--test-passphrase", &image, "--volume-key-keyring", &format!("%logon:{right}")]);
    logon.fails(1, &["name a key of type user"]);
    let twice = ["open", "--test-passphrase", &image, "--volume-key-keyring", right, "--volume-key-file", &key_file];
    call(twice).fails(1, &["Only one of --volume-key-file and --volume-key-keyring is allowed."]);

    // In place of an existing passphrase for a new keyslot.
    let new = dir.file("new", b"new");
    let add = |name: &str| call(["luksAddKey", "-q", &image, &new, "--volume-key-keyring", name].iter().chain(&FAST));
    add(wrong).fails(2, &["Volume key does not match the volume."]);
    call(["open", "--test-passphrase", &image, "-d", &new]).fails(2, &[]);
    add(right).works();
    call(["open", "--test-passphrase", &image, "-d", &new]).works();
    // The content of the volume.
    let export = |option: &str, key: &str| call(["export", "--range", "0:4096", &image, "-", option, key]);
    let by_key = export("--volume-key-keyring", right).works().out.clone();
    assert_eq!(by_key, export("--key-file", &new).works().out);
}

#[test]
fn verified_volume_key_is_linked() {
    let dir = Dir::new();
    let image = dir.luks2("image");
    let (passphrase, key_file) = (dir.file("passphrase", b"secret"), dir.name("key"));
    call_with(b"secret", ["luksDump", "-q", "--dump-volume-key", "--volume-key-file", &key_file, &image]).works();
    let key = std::fs::read(&key_file).expect("written");
    let Some(keyring) = TestKeyring::add("linked") else { return };
    let link = |at: &str| both(&["open", "--test-passphrase", &image, "-d", &passphrase, "--link-vk-to-keyring", at]);
    let name = keyring.name();
    // Twice: the second replaces the first.
    for (at, found) in [
        (format!("%:{name}::plain"), "plain"),
        (format!("%:{name}::plain"), "plain"),
        (format!("%keyring:{name}::%user:typed"), "typed"),
        (format!("{name}::two::colons"), "two::colons"),
        (format!("{}::numbered", keyring.number()), "numbered"),
    ] {
        link(&at).works();
        // That of cryptsetup.
        keyring.unlink("user", found);
        call(["open", "--test-passphrase", &image, "-d", &passphrase, "--link-vk-to-keyring", &at]).works();
        assert_eq!(keyring.read(found).as_deref(), Some(&key[..]), "{at}");
        call(["open", "--test-passphrase", &image, "--volume-key-keyring", &keyring.key(found).to_string()]).works();
    }
    link(&format!("%:{name}::%logon:prefix:name")).works();
    assert!(keyring.has_key("logon", "prefix:name") && keyring.read("prefix:name").is_none());
    link("@t::of-a-thread").works();

    // The key of a keyslot that is not bound to the volume.
    let other = dir.file("other", b"other");
    let add = ["luksAddKey", "-q", "--unbound", "--key-size", "256", "--new-key-slot", "5", &image, &other];
    call_with(b"secret", add.iter().chain(&FAST)).works();
    let at = format!("{name}::unbound");
    both(&["open", "--test-passphrase", "-S", "5", &image, "-d", &other, "--link-vk-to-keyring", &at]).works();
    assert_eq!(keyring.read("unbound").map(|key| key.len()), Some(32));
}

#[test]
fn impossible_links_are_refused() {
    let dir = Dir::new();
    let (luks1, luks2) = (dir.luks1("luks1"), dir.luks2("luks2"));
    let (passphrase, wrong) = (dir.file("passphrase", b"secret"), dir.file("wrong", b"wrong"));
    let Some(keyring) = TestKeyring::add("refused") else { return };
    let name = keyring.name();
    let open = |image: &str, key: &str, at: &str| {
        both(&["open", "--test-passphrase", image, "-d", key, "--link-vk-to-keyring", at])
    };
    for at in ["@s:one-colon", "no-delimiter", "@s::", "::name", "@s::%user:", "@s::%big_key:name", "@s::%name"] {
        open(&luks2, &passphrase, at).fails(1, &["Invalid --link-vk-to-keyring value"]);
    }
    // cryptsetup adds no key of this type without a prefix.
    open(&luks2, &passphrase, &format!("{name}::%logon:name")).fails(1, &["Invalid", "PREFIX"]);
    for at in ["@x::name", "%:inlock-no-such-keyring::name", "0::name", "2147483647::name"] {
        open(&luks2, &passphrase, at).fails(1, &["Could not find keyring"]);
    }
    let key = KernelKey::add("inlock-test-no-keyring", b"content").expect("as above");
    open(&luks2, &passphrase, &format!("{}::name", key.number())).fails(1, &["Failed to link the volume key"]);
    let at = format!("{name}::name");
    open(&luks1, &passphrase, &at).fails(1, &["allowed only for LUKS2 volumes"]);
    open(&luks2, &wrong, &at).fails(2, &["No key available"]);
    both(&["open", "--test-passphrase", &luks2, "-d", &passphrase, "--disable-keyring", "--link-vk-to-keyring", &at])
        .fails(1, &["not allowed with --disable-keyring"]);
    both(&["luksDump", &luks2, "--link-vk-to-keyring", &at]).fails(1, &["not allowed with"]);
    both(&["close", "name", "--link-vk-to-keyring", &at]).fails(1, &["not allowed with"]);
    let plain = ["open", "--type", "plain", &luks2, "name", "--link-vk-to-keyring", &at];
    call(plain).fails(1, &["Option --link-vk-to-keyring is not allowed with type plain"]);
    assert!(!keyring.has_key("user", "name"));
}

#[test]
fn key_is_linked_when_the_volume_is_open() {
    if !crate::harness::has_fuse() {
        return;
    }
    let dir = Dir::new();
    let run = Run::new();
    let image = dir.luks2("image");
    let Some(keyring) = TestKeyring::add("open") else { return };
    let at = format!("{}::name", keyring.name());
    let open = ["open", "--via", "fuse", &image, "data", "--link-vk-to-keyring", &at];
    run.call_with(b"secret", &open).works();
    let key = keyring.read("name").expect("linked");
    assert_eq!(key.len(), 64);
    // It stays when the volume is suspended or closed, and comes again when it is resumed.
    run.call_with(b"secret", &["resume", "data", "--link-vk-to-keyring", &at]).fails(1, &["has its key"]);
    run.call(&["suspend", "data"]).works();
    keyring.unlink("user", "name");
    run.call_with(b"wrong", &["resume", "data", "--link-vk-to-keyring", &at]).fails(2, &["No key available"]);
    assert!(!keyring.has_key("user", "name"));
    run.call_with(b"secret", &["resume", "data", "--link-vk-to-keyring", &at]).works();
    assert_eq!(keyring.read("name").as_deref(), Some(&key[..]));
    run.call(&["close", "data"]).works();
    assert!(keyring.has_key("user", "name"));
    keyring.unlink("user", "name");

    // Nothing is left in the keyring when the volume is not opened after its key is known.
    std::fs::create_dir_all(run.path("data.sock/file")).expect("in the way of the socket");
    for mode in [&["--foreground"][..], &[]] {
        let ended = run.call_with(b"secret", &[&open[..], mode].concat());
        ended.fails(1, &["cannot listen"]);
        assert!(!keyring.has_key("user", "name"), "{mode:?}");
    }
}
