//! `--volume-key-keyring`: a volume key from the kernel's keyring. The newest cryptsetup, if there is one, has the same
//! exit statuses.

mod harness;

use harness::keyring::KernelKey;
use harness::{Dir, FAST, call, call_with, run};
use std::process::Command;

/// Runs `inlock`, and the newest cryptsetup with the same words, which must end with the same status.
#[track_caller]
fn both(words: &[&str]) -> harness::Ended {
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
