//! Knowing the right key again after it was wiped.
//!
//! A LUKS header's digest confirms a key, but the header may have been replaced meanwhile, and a plain volume confirms
//! nothing. A wrong key would turn every later write into noise. So while the first key is there, zeroes are encrypted with it,
//! and a key that encrypts them to something else is not the one.
//!
//! A [`Stamp`] says the same of a volume whose process has died. It stands in a file, so it is a salted hash: whoever reads it
//! can try keys, which the volume itself offers as well, and for less work.

use std::fs::File;
use std::io::Read;

use inlock_cipher::{CipherError, InOut, IvNumber, new_sector_cipher};
use inlock_volume::table::{TableLine, Target};
use inlock_volume::{Hash, Kdf, KdfError, KdfLimits, Segment, Table, VolumeKey};
use serde::{Deserialize, Serialize};

/// Bytes that are kept of each data unit.
const KEPT: usize = 16;

/// Data units that are encrypted: each under another one of a volume's up to 64 keys.
const UNITS: u64 = 64;

/// The work of a stamp: ten times that of the digest of a LUKS header at the least.
const ITERATIONS: u32 = 10_000;

/// What a key made of zeroes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyCheck {
    /// Of a table, whose lines have a key each: none, so that no key is the one.
    segments: Vec<Segment>,
    answers: Vec<u8>,
}

/// A salted hash of what a key made of zeroes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    salt: String,
    hash: String,
}

impl KeyCheck {
    /// What `key` makes of zeroes in `segments`.
    pub(crate) fn new(segments: &[Segment], key: &VolumeKey) -> Result<Self, CipherError> {
        let mut answers = Vec::new();
        for segment in segments {
            answer(segment, key, &mut answers)?;
        }
        Ok(Self { segments: segments.to_vec(), answers })
    }

    /// What the keys of a table make of zeroes. It is for [`KeyCheck::stamp`] only: no single key is accepted.
    pub(crate) fn of_table(table: &Table) -> Result<Self, CipherError> {
        let mut answers = Vec::new();
        for line in table.lines() {
            if let TableLine { target: Target::Crypt(crypt), .. } = line {
                answer(&line.segment(), &crypt.key, &mut answers)?;
            }
        }
        Ok(Self { segments: Vec::new(), answers })
    }

    /// Whether `key` is the one that this was made with.
    pub(crate) fn accepts(&self, key: &VolumeKey) -> bool {
        Self::new(&self.segments, key).is_ok_and(|other| other == *self)
    }

    /// What may be written down of it.
    pub(crate) fn stamp(&self) -> anyhow::Result<Stamp> {
        let mut salt = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut salt)?;
        let salt = hex(&salt);
        Ok(Stamp { hash: self.hash(&salt)?, salt })
    }

    fn hash(&self, salt: &str) -> Result<String, KdfError> {
        let mut hash = [0; 32];
        let kdf = Kdf::Pbkdf2 { hash: Hash::Sha256, iterations: ITERATIONS };
        kdf.derive(&self.answers, salt.as_bytes(), &mut hash, &KdfLimits::default())?;
        Ok(hex(&hash))
    }
}

impl Stamp {
    /// Whether `check` is of the key that this was made of.
    pub(crate) fn accepts(&self, check: &KeyCheck) -> bool {
        check.hash(&self.salt).is_ok_and(|hash| hash == self.hash)
    }
}

/// Adds what `key` makes of zeroes in a segment.
fn answer(segment: &Segment, key: &VolumeKey, answers: &mut Vec<u8>) -> Result<(), CipherError> {
    let Some(spec) = &segment.cipher else { return Ok(()) };
    let cipher = new_sector_cipher(spec, key.as_bytes(), segment.unit, segment.large_iv.into())?;
    let step = if segment.large_iv { 1 } else { segment.unit.sectors() };
    let mut unit = vec![0; segment.unit.bytes()];
    for number in 0..UNITS {
        unit.fill(0);
        cipher.encrypt(IvNumber(number * step), InOut::InPlace(&mut unit));
        answers.extend_from_slice(&unit[..KEPT]);
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlock_cipher::DataUnitSize;

    fn segment(spec: &str, unit: u32) -> Segment {
        Segment::whole(Some(spec.parse().unwrap()), DataUnitSize::new(unit).unwrap())
    }

    #[test]
    fn only_the_same_key_is_accepted() {
        for (spec, len) in [("aes-xts-plain64", 64), ("aes-cbc-essiv:sha256", 32), ("aes-cbc-plain", 16)] {
            for unit in [512, 4096] {
                let mut key = VolumeKey::new(&(0..len).collect::<Vec<u8>>());
                let check = KeyCheck::new(&[segment(spec, unit)], &key).unwrap();
                assert!(check.accepts(&key));
                // Either half of an XTS key counts.
                for place in [0, usize::from(len) - 1] {
                    key.as_mut_bytes()[place] ^= 1;
                    assert!(!check.accepts(&key), "{spec}, byte {place}");
                    key.as_mut_bytes()[place] ^= 1;
                }
                assert!(!check.accepts(&VolumeKey::zeroed(7)), "a key of another length");
                assert!(check.accepts(&key));
            }
        }
    }

    #[test]
    fn a_stamp_knows_the_key_and_the_keys_of_a_table_again() {
        let spec = [segment("aes-xts-plain64", 512)];
        let check = |byte| KeyCheck::new(&spec, &VolumeKey::new(&[byte, 1].repeat(16))).unwrap();
        let stamp = check(0).stamp().unwrap();
        assert!(stamp.accepts(&check(0)) && !stamp.accepts(&check(2)));
        assert_ne!(stamp, check(0).stamp().unwrap(), "one can tell that two volumes have one key");
        let table = |last: &str| {
            let line =
                |start: u32, last: &str| format!("{start} 8 crypt aes-cbc-plain {}{last} 0 7:0 0\n", "5a".repeat(15));
            KeyCheck::of_table(&Table::parse(&(line(0, "00") + &line(8, last))).unwrap()).unwrap()
        };
        let stamp = table("11").stamp().unwrap();
        assert!(stamp.accepts(&table("11")) && !stamp.accepts(&table("12")));
        assert!(!table("11").accepts(&VolumeKey::zeroed(0)));
    }

    #[test]
    fn what_is_not_encrypted_needs_no_key() {
        let raw = Segment { cipher: None, ..segment("aes-xts-plain64", 512) };
        assert!(KeyCheck::new(&[raw], &VolumeKey::zeroed(0)).unwrap().accepts(&VolumeKey::zeroed(0)));
    }
}
