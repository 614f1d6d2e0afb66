//! Hashes and notations of ciphers in headers: each is written by one program and opened by the other.
//!
//! `INLOCK_TEST_CRYPTSETUP` names another cryptsetup than that of the path.

use crate::support::{self, Bench, PASSPHRASE, chain, cheap, luks1_options, luks2_options, output, secret, with};
use inlock_volume::table::{CryptOptions, ShowKeys};
use inlock_volume::{FormatError, Hash, KdfKind, Table, Volume, luks1, luks2};

fn cryptsetup() -> String {
    std::env::var("INLOCK_TEST_CRYPTSETUP").unwrap_or_else(|_| "cryptsetup".to_owned())
}

/// Creates a volume with cryptsetup, and returns whether it could.
fn cryptsetup_formats(bench: &Bench, version: &str, args: &[&str]) -> bool {
    let image = bench.image("image", 20 << 20);
    let key = bench.text("key");
    let costs = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
    let command = ["luksFormat", "-q", &image, &key, "--type", version];
    output(&cryptsetup(), &[&command[..], &costs, args].concat()).status.success()
}

fn cryptsetup_opens(bench: &Bench) -> bool {
    let (image, key) = (bench.text("image"), bench.text("key"));
    output(&cryptsetup(), &["open", "--test-passphrase", "-d", &key, &image]).status.success()
}

fn inlock_opens(bench: &Bench, what: &str) {
    let device = bench.device("image");
    support::unlock(&device, PASSPHRASE).unwrap_or_else(|error| panic!("{what}: {}", chain(&error)));
}

/// Creates a volume with Inlock, with `hash` for the keyslot, its splitter and the digest.
fn inlock_formats(bench: &Bench, version: &str, hash: Hash) -> Result<(), FormatError> {
    bench.image("image", 20 << 20);
    let device = bench.device("image");
    if version == "luks1" {
        let options = with!(luks1_options(); hash: hash, key_len: 64);
        luks1::format(&device, options, &secret(PASSPHRASE)).map(drop)
    } else {
        let options = with!(luks2_options(); hash: hash, kdf: cheap(KdfKind::Pbkdf2));
        luks2::format(&device, options, &secret(PASSPHRASE)).map(drop)
    }
}

#[test]
fn every_hash_of_cryptsetup_is_read_and_written() {
    if !support::installed(&cryptsetup()) {
        return;
    }
    let bench = Bench::new();
    let mut common = Vec::new();
    for hash in Hash::ALL {
        for version in ["luks1", "luks2"] {
            let has = cryptsetup_formats(&bench, version, &["--hash", hash.name()]);
            let what = format!("{hash} in {version}");
            if has {
                inlock_opens(&bench, &what);
                common.push(what.clone());
            }
            match inlock_formats(&bench, version, hash) {
                Ok(()) => inlock_opens(&bench, &what),
                Err(error) => assert!(!has, "{what}: {error}"),
            }
            assert_eq!(cryptsetup_opens(&bench), has, "{what}");
        }
    }
    println!("{} hashes and versions that both have: {}", common.len(), common.join(", "));
    // Those of OpenSSL 3, with which Debian builds cryptsetup.
    for hash in ["sha1", "sha224", "sha256", "sha384", "sha512", "sha512-224", "sha512-256", "ripemd160", "whirlpool"] {
        assert!(common.contains(&format!("{hash} in luks1")) && common.contains(&format!("{hash} in luks2")), "{hash}");
    }
    for hash in ["sha3-224", "sha3-256", "sha3-384", "sha3-512", "blake2b-512", "blake2s-256", "sm3"] {
        assert!(common.contains(&format!("{hash} in luks1")) && common.contains(&format!("{hash} in luks2")), "{hash}");
    }
    assert!(common.contains(&"md5 in luks2".to_owned()) && !common.contains(&"md5 in luks1".to_owned()));
}

/// cryptsetup stores names as they were typed.
#[test]
fn hash_opens_by_every_name_that_cryptsetup_stores() {
    if !support::installed(&cryptsetup()) {
        return;
    }
    let bench = Bench::new();
    let names =
        ["SHA256", "sha-1", "sha2-512", "RIPEMD-160", "rmd160", "blake2b512", "BLAKE2s-256", "SHA3-256", "sha-512/256"];
    for name in names {
        for version in ["luks1", "luks2"] {
            assert!(cryptsetup_formats(&bench, version, &["--hash", name]), "{name} in {version}");
            inlock_opens(&bench, name);
            let volume = Volume::load(&bench.device("image")).unwrap();
            let dump = volume.dump("image").to_string();
            let stored = if version == "luks1" { name.to_lowercase() } else { name.to_owned() };
            assert!(dump.contains(&stored), "{name} in {version}: {dump}");
        }
    }
}

#[test]
fn md5_is_too_short_for_luks1() {
    let bench = Bench::new();
    for hash in [Hash::Md5, Hash::Blake2s128] {
        let error = inlock_formats(&bench, "luks1", hash).unwrap_err();
        assert!(matches!(error, FormatError::InvalidOption { option: "hash", .. }), "{error}");
        inlock_formats(&bench, "luks2", hash).unwrap();
        inlock_opens(&bench, "luks2");
    }
}

/// Only newer versions write the notation without a kernel; the table of the volume has it as the header does.
#[test]
fn cipher_of_the_kernel_s_notation_opens_and_keeps_its_name() {
    if !support::installed(&cryptsetup()) {
        return;
    }
    let bench = Bench::new();
    let names = ["capi:xts(aes)-plain64", "capi:cbc(aes)-essiv:sha256", "capi:ctr(aes)-plain64", "capi:cbc(aes)-plain"];
    let mut opened = 0;
    for name in names {
        for version in ["luks1", "luks2"] {
            if !cryptsetup_formats(&bench, version, &["--cipher", name, "--key-size", "256"]) {
                continue;
            }
            inlock_opens(&bench, name);
            keeps_name(&bench, name);
            opened += 1;
        }
    }
    if opened == 0 {
        println!("SKIPPED: this cryptsetup formats no volume with capi: ciphers without device-mapper");
    }
}

/// In a header that no cryptsetup is needed for.
#[test]
fn cipher_of_the_kernel_s_notation_in_segment_and_keyslot_opens() {
    let bench = Bench::new();
    std::fs::write(bench.path("image"), support::luks2_image()).unwrap();
    let device = bench.device("image");
    for name in ["capi:xts(aes)-plain64", "capi:xts(ecb(aes-generic))-plain64", "capi:xts-aes-aesni-plain64"] {
        let Volume::Luks2(mut luks2) = Volume::load(&device).unwrap() else { panic!("it is LUKS2") };
        let mut map = support::map_of(&luks2);
        map["segments"]["0"]["encryption"] = name.into();
        map["keyslots"]["0"]["area"]["encryption"] = name.into();
        luks2.commit(&device, &support::text_of(map)).unwrap();
        inlock_opens(&bench, name);
        keeps_name(&bench, name);
    }
}

fn keeps_name(bench: &Bench, name: &str) {
    let device = bench.device("image");
    let volume = Volume::load(&device).unwrap();
    let unlocked = support::unlock(&device, PASSPHRASE).unwrap();
    let names = volume.cipher_names();
    assert_eq!(names, [Some(name.to_owned())]);
    let mut table = Table::of_volume(&unlocked.segments, &unlocked.key, CryptOptions::default(), "/dev/x", 20 << 20);
    table.set_cipher_names(&names);
    let text = table.to_text(ShowKeys::Yes);
    assert_eq!(text.split(' ').nth(3), Some(name), "{name}");
    assert_eq!(*Table::parse(&text).unwrap().to_text(ShowKeys::Yes), *text);
}
