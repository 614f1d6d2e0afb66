//! The memory of a command as it ends, and what must not be in it: keys, key material and passphrases.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use inlock_cipher::{CipherSpec, DataUnitSize, InOut, IvNumber, IvNumbering, new_sector_cipher};
use inlock_tests::memory_search::Needles;
use inlock_volume::luks2::metadata::{KeyslotKdf, KeyslotKind};
use inlock_volume::{FileDevice, Hash, Kdf, KdfLimits, Secret, UnlockOptions, Volume};

use super::{Ended, have, run};

/// Length of a needle. A key has several.
const PIECE: usize = 16;
const STRIPES: usize = 4000;

/// A command that ended under `traced.py`.
pub(crate) struct Traced {
    pub(crate) ended: Ended,
    at_exit: Vec<u8>,
    at_calls: Vec<Vec<u8>>,
}

/// Runs `inlock` and copies its memory as it exits, and as it begins each of the first system calls of these names.
/// `None`: skipped.
pub(crate) fn trace(calls: &str, words: &[&str], input: &[u8]) -> Option<Traced> {
    if !have("python3") {
        return None;
    }
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root looks into a process that is not dumpable");
        return None;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut command = Command::new("python3");
    command.args(tracer(dir.path(), calls)).args(words);
    let ended = run(&mut command, input);
    Some(Traced::read(dir.path(), ended))
}

/// Arguments of Python to trace `inlock`; its own arguments follow.
pub(crate) fn tracer(dir: &Path, calls: &str) -> [String; 4] {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/traced.py");
    [script, dir.to_str().expect("UTF-8"), calls, env!("CARGO_BIN_EXE_inlock")].map(str::to_owned)
}

impl Traced {
    /// Reads what `traced.py` left in `dir`.
    pub(crate) fn read(dir: &Path, ended: Ended) -> Self {
        let at_exit = fs::read(dir.join("exit")).unwrap_or_else(|error| panic!("no memory: {error}: {ended:?}"));
        assert!(at_exit.len() > 100_000, "{} bytes of memory", at_exit.len());
        let calls = (0..).map_while(|number| fs::read(dir.join(format!("call-{number}"))).ok());
        Self { ended, at_exit, at_calls: calls.collect() }
    }

    /// Returns which secrets are in memory at the exit.
    pub(crate) fn at_exit(&self, secrets: &Secrets) -> BTreeSet<String> {
        secrets.found_in(&self.at_exit)
    }

    /// Returns which secrets were in memory at any of the calls.
    pub(crate) fn at_calls(&self, secrets: &Secrets) -> BTreeSet<String> {
        self.at_calls.iter().flat_map(|memory| secrets.found_in(memory)).collect()
    }
}

/// Bytes that must not be in memory, with names.
#[derive(Clone, Default)]
pub(crate) struct Secrets(BTreeMap<[u8; PIECE], String>);

impl Secrets {
    /// Adds pieces of a secret, and of its hexadecimal forms.
    pub(crate) fn add(&mut self, name: &str, secret: &[u8]) {
        let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let spaced: String = secret.iter().map(|byte| format!("{byte:02x} ")).collect();
        self.add_pieces(name, secret);
        self.add_pieces(&format!("{name} in hexadecimal"), hex.as_bytes());
        self.add_pieces(&format!("{name} as dumped"), spaced.as_bytes());
    }

    /// Adds pieces of a secret in this form only.
    pub(crate) fn add_pieces(&mut self, name: &str, secret: &[u8]) {
        for piece in secret.chunks_exact(PIECE) {
            self.0.insert(piece.try_into().expect("its length"), name.to_owned());
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    fn found_in(&self, memory: &[u8]) -> BTreeSet<String> {
        let names: Vec<&String> = self.0.values().collect();
        let found = Needles::new(self.0.keys().map(|piece| &piece[..])).find(memory);
        found.into_iter().map(|number| names[number].clone()).collect()
    }

    /// Adds the passphrases, the volume key, and of every keyslot that one of them opens: the key of its area, and
    /// parts of its split key material.
    pub(crate) fn add_volume(&mut self, image: &str, passphrases: &[&str]) {
        let device = FileDevice::new(File::open(image).expect("readable"));
        let volume = Volume::load(&device).expect("a header");
        for passphrase in passphrases {
            self.add_pieces("passphrase", passphrase.as_bytes());
            let secret = Secret::new(passphrase.as_bytes().to_vec());
            if let Ok(unlocked) = volume.unlock(&device, &secret, &UnlockOptions::default()) {
                self.add("volume key", unlocked.key.as_bytes());
            }
            for slot in keyslots(&volume, image) {
                self.add_keyslot(&slot, image, passphrase);
            }
        }
    }

    fn add_keyslot(&mut self, slot: &Keyslot, image: &str, passphrase: &str) {
        let mut area_key = vec![0; slot.area_key_len];
        let derived = slot.kdf.derive(passphrase.as_bytes(), &slot.salt, &mut area_key, &KdfLimits::default());
        derived.expect("cheap");
        self.add("area key", &area_key);
        let sector = DataUnitSize::SECTOR;
        let cipher = new_sector_cipher(&slot.cipher, &area_key, sector, IvNumbering::Sectors).expect("a cipher");
        let len = slot.key_len * STRIPES;
        let mut material = vec![0; len.next_multiple_of(512)];
        File::open(image).and_then(|image| image.read_exact_at(&mut material, slot.offset as u64)).expect("readable");
        cipher.decrypt(IvNumber(0), InOut::InPlace(&mut material));
        // Of some stripes; buffers that are not wiped have all of them.
        for part in [0, (len / 2) & !511, (len - 64) & !511] {
            self.add_pieces("key material", &material[part..part + 64]);
        }
    }
}

/// An active keyslot.
struct Keyslot {
    kdf: Kdf,
    salt: Vec<u8>,
    area_key_len: usize,
    cipher: CipherSpec,
    offset: usize,
    key_len: usize,
}

fn keyslots(volume: &Volume, image: &str) -> Vec<Keyslot> {
    match volume {
        Volume::Luks2(luks2) => luks2
            .metadata()
            .keyslots
            .values()
            .map(|keyslot| {
                let KeyslotKind::Luks2(kind) = &keyslot.kind else { panic!("{keyslot:?}") };
                assert_eq!(kind.stripes, STRIPES as i64);
                Keyslot {
                    kdf: match &kind.kdf {
                        KeyslotKdf::Pbkdf2 { hash, iterations } => {
                            Kdf::Pbkdf2 { hash: hash_named(hash), iterations: *iterations }
                        }
                        KeyslotKdf::Argon2i(cost) => Kdf::Argon2i(*cost),
                        KeyslotKdf::Argon2id(cost) => Kdf::Argon2id(*cost),
                        other => panic!("{other:?}"),
                    },
                    salt: kind.salt.clone(),
                    area_key_len: kind.area_key_len as usize,
                    cipher: kind.area_cipher.parse().expect("a cipher"),
                    offset: keyslot.area_offset as usize,
                    key_len: keyslot.key_len as usize,
                }
            })
            .collect(),
        Volume::Luks1(luks1) => {
            let mut header = [0; 592];
            File::open(image).and_then(|image| image.read_exact_at(&mut header, 0)).expect("readable");
            luks1_keyslots(&header, &luks1.cipher())
        }
        other => panic!("{other:?}"),
    }
}

fn hash_named(name: &str) -> Hash {
    name.parse().expect("a hash")
}

/// Reads the active keyslots of a LUKS1 header.
fn luks1_keyslots(image: &[u8], cipher: &str) -> Vec<Keyslot> {
    let number = |at: usize| u32::from_be_bytes(image[at..at + 4].try_into().expect("four bytes"));
    let hash = String::from_utf8_lossy(&image[72..104]).trim_end_matches('\0').to_owned();
    let key_len = number(108) as usize;
    let active = (0..8).map(|slot| 208 + 48 * slot).filter(|at| number(*at) == 0x00AC_71F3);
    active
        .map(|at| Keyslot {
            kdf: Kdf::Pbkdf2 { hash: hash_named(&hash), iterations: number(at + 4) },
            salt: image[at + 8..at + 40].to_vec(),
            area_key_len: key_len,
            cipher: cipher.parse().expect("a cipher"),
            offset: number(at + 40) as usize * 512,
            key_len,
        })
        .collect()
}
