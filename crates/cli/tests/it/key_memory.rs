//! Keys and passphrases in the memory of the command: gone when it ends, for each action that handles them.
//!
//! `traced.py` stops the process as it exits, when it has nothing more to do, and copies its memory. The keys, the
//! keys of keyslot areas and the split key material are computed from the image and searched for in the copy.

use std::cell::Cell;
use std::fs;
use std::process::Command;

use crate::harness::traced::{Secrets, Traced, trace};
use crate::harness::{Dir, FAST, FAST1, call, call_with};
use inlock_tests::report::count;

/// Long enough for the search.
const OLD: &str = "the old passphrase of 34 characters";
const NEW: &str = "a new passphrase of as many as that";

/// Runs actions, and counts the searched memories.
#[derive(Default)]
struct Searches {
    number: Cell<usize>,
}

impl Drop for Searches {
    fn drop(&mut self) {
        count("memories_searched_for_keys", self.number.get());
    }
}

impl Searches {
    /// Runs an action that handles the keys of `image`, and searches its memory at the end for these keys, as they are
    /// before and after it. `None`: skipped.
    fn search(&self, words: &[&str], input: &str, image: &str, passphrases: &[&str]) -> Option<Traced> {
        let mut secrets = Secrets::default();
        if crate::harness::call(["isLuks", image]).code == 0 {
            secrets.add_volume(image, passphrases);
        }
        // A write of a keyslot has the keys in memory.
        let traced = trace("fsync,fdatasync", words, input.as_bytes())?;
        secrets.add_volume(image, passphrases);
        assert!(secrets.len() > 20);
        let left = traced.at_exit(&secrets);
        assert!(left.is_empty(), "inlock {words:?} ends with {left:?} in memory: {:?}", traced.ended);
        self.number.set(self.number.get() + 1);
        println!("{words:?}: {} needles, at system calls: {:?}", secrets.len(), traced.at_calls(&secrets));
        Some(traced)
    }

    /// As [`Searches::search`], for an action that succeeds.
    fn works(&self, words: &[&str], input: &str, image: &str, passphrases: &[&str]) -> Option<Traced> {
        let traced = self.search(words, input, image, passphrases)?;
        assert_eq!(traced.ended.code, 0, "{:?}", traced.ended);
        Some(traced)
    }
}

const PBKDF2: [&str; 4] = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];

/// Key derivations of keyslots: LUKS1, LUKS2 with each function.
fn formats() -> [Vec<&'static str>; 3] {
    [FAST1.to_vec(), PBKDF2.to_vec(), FAST.to_vec()]
}

#[test]
fn search_finds_what_is_left_in_memory() {
    let dir = Dir::new();
    let image = dir.image("image", 24);
    let mut secrets = Secrets::default();
    secrets.add("name", b"a name that is searched for");
    let words = ["isLuks", &image, "--label", "a name that is searched for"];
    let Some(traced) = trace("", &words, b"") else { return };
    assert_eq!(traced.at_exit(&secrets).len(), 1, "{:?}", traced.ended);
}

#[test]
fn formatting_leaves_no_key_in_memory() {
    let dir = Dir::new();
    let searches = Searches::default();
    let key = dir.file("key", OLD.as_bytes());
    for kdf in formats() {
        let image = dir.image("image", 24);
        let words = [&["luksFormat", "-q", &image][..], &kdf].concat();
        let Some(traced) = searches.works(&words, OLD, &image, &[OLD]) else { return };
        let mut secrets = Secrets::default();
        secrets.add_volume(&image, &[OLD]);
        // Control: the needles are what the command works with.
        assert!(traced.at_calls(&secrets).contains("volume key"), "{:?}", traced.at_calls(&secrets));
        searches.works(&[&words[..], &[&key]].concat(), "", &image, &[OLD]);
    }
}

#[test]
fn unlocking_leaves_no_key_in_memory() {
    let dir = Dir::new();
    let searches = Searches::default();
    let (key, plain) = (dir.file("key", OLD.as_bytes()), dir.name("plain"));
    for kdf in formats() {
        let image = dir.image("image", 24);
        call_with(OLD.as_bytes(), [&["luksFormat", "-q", &image][..], &kdf].concat()).works();
        let both = [OLD, NEW];
        let test = ["open", "--test-passphrase", &image];
        if searches.works(&test, OLD, &image, &both).is_none() {
            return;
        }
        searches.works(&[&test[..], &["--key-file", &key]].concat(), "", &image, &both);
        let wrong = searches.search(&test, NEW, &image, &both).expect("as before");
        assert_eq!(wrong.ended.code, 2);
        searches.works(&["export", "-q", &image, &plain], OLD, &image, &both);
        searches.works(&["import", &plain, &image], OLD, &image, &both);
        searches.works(&["serve", &image, "--run", "true"], OLD, &image, &both);
        searches.works(&["table", &image], OLD, &image, &both);
        searches.works(&["table", &image, "--showkeys"], OLD, &image, &both);
        searches.works(&["table", &image, "--showkeys", "--json"], OLD, &image, &both);
    }
}

/// Threads try keyslots at the same time, and the one that opens stops the others.
#[test]
fn trying_several_keyslots_leaves_no_key_in_memory() {
    let dir = Dir::new();
    let searches = Searches::default();
    let (old, new) = (dir.file("old", OLD.as_bytes()), dir.file("new", NEW.as_bytes()));
    // A hash with a kernel for several blocks, and one without.
    for hash in ["sha256", "sha512"] {
        for kdf in [&FAST1[..], &PBKDF2] {
            let image = volume(&dir, &[kdf, &["--hash", hash]].concat());
            let add = ["luksAddKey", "-q", &image, "--key-file", &old, "--pbkdf-force-iterations", "20000"];
            let luks2 = if kdf == PBKDF2 { &["--pbkdf", "pbkdf2", "--hash", hash][..] } else { &[] };
            for number in ["2", "3", "4", "5"] {
                call([&add[..], luks2, &["--new-key-slot", number, &new]].concat()).works();
            }
            let test = ["open", "--test-passphrase", &image];
            for passphrase in [OLD, NEW] {
                if searches.works(&test, passphrase, &image, &[OLD, NEW]).is_none() {
                    return;
                }
            }
            let wrong = searches.search(&test, "the passphrase of no keyslot", &image, &[OLD, NEW]);
            assert_eq!(wrong.expect("as before").ended.code, 2);
        }
    }
}

/// Creates a volume with the passphrase [`OLD`].
fn volume(dir: &Dir, kdf: &[&str]) -> String {
    let image = dir.image("image", 24);
    call_with(OLD.as_bytes(), [&["luksFormat", "-q", &image][..], kdf].concat()).works();
    image
}

#[test]
fn editing_keyslots_leaves_no_key_in_memory() {
    let dir = Dir::new();
    let searches = Searches::default();
    let (old, new) = (dir.file("old", OLD.as_bytes()), dir.file("new", NEW.as_bytes()));
    let both = [OLD, NEW];
    for kdf in formats() {
        let is_luks2 = kdf != FAST1;
        let image = volume(&dir, &kdf);
        // The options of a new keyslot; --type is for luksFormat.
        let kdf = if is_luks2 { kdf } else { FAST1[2..].to_vec() };
        let with_kdf = |action: &'static str| [&["-q", action, &*image][..], &kdf].concat();
        let works = |words: &[&str], input: &str| searches.works(words, input, &image, &both);
        let lines = format!("{OLD}\n{NEW}\n");
        let Some(traced) = works(&with_kdf("luksAddKey"), &lines) else { return };
        let mut secrets = Secrets::default();
        secrets.add_volume(&image, &both);
        // Control, as for luksFormat.
        assert!(traced.at_calls(&secrets).contains("volume key"), "{:?}", traced.at_calls(&secrets));
        works(&[&with_kdf("luksAddKey")[..], &["-S", "4", "--key-file", &old, &new]].concat(), "");
        let key = dir.name(&format!("key-{}", kdf.len()));
        let dump = ["luksDump", "-q", &image, "--dump-volume-key"];
        works(&[&dump[..], &["--volume-key-file", &key]].concat(), OLD);
        works(&dump, OLD);
        works(&["open", "--test-passphrase", &image, "--volume-key-file", &key], "");
        works(&[&with_kdf("luksAddKey")[..], &["--volume-key-file", &key]].concat(), NEW);
        works(&["luksKillSlot", &image, "4", "--key-file", &old], "");
        works(&["luksRemoveKey", &image], NEW);
        works(&with_kdf("luksChangeKey"), &lines);
        if is_luks2 {
            works(&with_kdf("luksConvertKey"), NEW);
            works(&[&with_kdf("luksAddKey")[..], &["--unbound", "-s", "256", "-S", "7"]].concat(), OLD);
            works(&["luksDump", "-q", &image, "--unbound", "-S", "7"], OLD);
        }
        let wrong = searches.search(&["luksRemoveKey", &image], "no passphrase of any keyslot here", &image, &both);
        assert_eq!(wrong.expect("as before").ended.code, 2);
        works(&["luksErase", "-q", &image], "");
    }
}

#[test]
fn settings_leave_no_key_in_memory() {
    let dir = Dir::new();
    let searches = Searches::default();
    for kdf in [&FAST1[..], &PBKDF2] {
        let image = volume(&dir, kdf);
        let works = |words: &[&str]| searches.works(words, "", &image, &[OLD]);
        if works(&["luksDump", &image]).is_none() {
            return;
        }
        works(&["luksUUID", "-q", &image, "--uuid", "12345678-1234-1234-1234-123456789abc"]);
        if kdf == PBKDF2 {
            works(&["config", &image, "--label", "name", "--priority", "prefer", "-S", "0"]);
        }
    }
}

#[test]
fn served_volume_leaves_no_key_in_memory() {
    let dir = Dir::new();
    let searches = Searches::default();
    let (inlock, name) = (env!("CARGO_BIN_EXE_inlock"), format!("memory-{}", std::process::id()));
    // In files: the script is an argument of the command, and stays in its memory.
    let (old, new) = (dir.file("old", OLD.as_bytes()), dir.file("new", NEW.as_bytes()));
    for kdf in formats() {
        let image = volume(&dir, &kdf);
        let script = format!(
            "{inlock} suspend {name} && {inlock} resume {name} < {new}; {inlock} resume {name} < {old} && \
             {inlock} refresh {name} < {old} && {inlock} status {name}"
        );
        let words = ["serve", "--name", &name, &image, "--run", &script];
        let Some(traced) = searches.works(&words, OLD, &image, &[OLD, NEW]) else { return };
        assert!(traced.ended.text().contains(&name), "{:?}", traced.ended);
    }
}

#[test]
fn recovery_leaves_no_key_in_memory() {
    let dir = Dir::new();
    let searches = Searches::default();
    // LUKS1 has no other data units than those of 512 bytes.
    let luks2 = [&PBKDF2[..], &["--sector-size", "512"]].concat();
    for (backup, kdf) in [("backup-1", &FAST1[..]), ("backup-2", &luks2)] {
        let (image, backup) = (volume(&dir, kdf), dir.name(backup));
        let works = |words: &[&str]| searches.works(words, "", &image, &[OLD]);
        if works(&["luksHeaderBackup", &image, "--header-backup-file", &backup]).is_none() {
            return;
        }
        let restore = ["luksHeaderRestore", "-q", &image, "--header-backup-file", &backup];
        // Over the header itself, another one, and none.
        works(&restore);
        call_with(NEW.as_bytes(), [&["luksFormat", "-q", &image][..], kdf].concat()).works();
        let other = fs::read(&image).expect("readable");
        works(&restore);
        fs::write(&image, vec![0; other.len()]).expect("writable");
        works(&restore);
        works(&["doctor", &image]);
        // Stripes of a keyslot that is not used; the second copy of the header.
        let mut damaged = fs::read(&image).expect("readable");
        if kdf == FAST1 {
            damaged[208 + 5 * 48 + 44..][..4].fill(0)
        } else {
            damaged[16384 + 5000] ^= 1
        }
        fs::write(&image, damaged).expect("writable");
        let repaired = searches.search(&["repair", "-q", &image], "", &image, &[OLD]).expect("as before");
        assert!(repaired.ended.code == 0 && !repaired.ended.err.is_empty(), "{:?}", repaired.ended);
        let other = if kdf == FAST1 { "luks2" } else { "luks1" };
        works(&["convert", "-q", "--type", other, &image]);
        call_with(OLD.as_bytes(), ["open", "--test-passphrase", &image]).works();
    }
}

#[test]
fn unlocking_by_token_leaves_no_key_pin_or_passphrase_in_memory() {
    const PIN: &str = "a PIN that is as long as needed to be found";
    let dir = Dir::new();
    let searches = Searches::default();
    let image = volume(&dir, &FAST);
    let token = r#"{"type":"pin","keyslots":["0"]}"#;
    call_with(token.as_bytes(), ["token", "import", &image]).works();
    let helpers = dir.name("helpers");
    // Another process writes the helper, so that no child of this one has it open for writing when it runs.
    let script = format!(
        "umask 022; mkdir {helpers}; cat > {helpers}/pin << 'END'\n#!/bin/sh\n\
         [ -n \"$INLOCK_TOKEN_PIN_FD\" ] || exit 2\nread -r pin <&\"$INLOCK_TOKEN_PIN_FD\"\n\
         [ \"$pin\" = '{PIN}' ] || exit 2\nprintf '{OLD}'\nEND\n\
         chmod 755 {helpers}/pin"
    );
    crate::harness::run(Command::new("sh").args(["-c", &script]), b"").works();
    let open = ["open", "--test-passphrase", &image, "--token-id", "0", "--external-tokens-path", &helpers];
    let secrets = [OLD, PIN];
    let Some(traced) = searches.works(&open, &format!("{PIN}\n"), &image, &secrets) else { return };
    assert!(traced.ended.err.is_empty(), "{:?}", traced.ended);
    let only = [&open[..], &["--token-only"]].concat();
    let wrong = format!("{NEW}\n");
    let refused = searches.search(&only, &wrong, &image, &[OLD, PIN, NEW]).expect("as before");
    assert!(refused.ended.code != 0, "{:?}", refused.ended);
    // Control: the search finds a PIN that is an argument.
    let mut pin = Secrets::default();
    pin.add_pieces("PIN", PIN.as_bytes());
    let traced = trace("", &["isLuks", &image, "--label", PIN], b"").expect("as before");
    assert!(!traced.at_exit(&pin).is_empty(), "{:?}", traced.ended);
}
