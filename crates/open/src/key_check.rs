//! Recognizing the right key after it was wiped.
//!
//! A LUKS header's digest confirms a key, but the header may have been replaced meanwhile, and a plain volume confirms
//! nothing. A wrong key would turn every later write into noise. So zeroes are encrypted with the first key, and a key
//! that encrypts them to other bytes is refused.
//!
//! A [`KeyFingerprint`] does the same for a volume whose process has died. It is stored in a file, so it is a salted
//! hash: a reader can try keys with it, but trying them with the volume itself takes less work.

use crate::error::{Result, ResultExt as _};
use inlock_cipher::{CipherError, InOut, IvNumber, new_sector_cipher};
use inlock_volume::table::{TableLine, Target};
use inlock_volume::{Hash, Kdf, KdfError, KdfLimits, Segment, Table, VolumeKey};
use serde::{Deserialize, Serialize};

use crate::verity::hex;

/// Bytes kept of each data unit.
const KEPT: usize = 16;

/// Number of encrypted data units: each uses another one of a volume's up to 64 keys.
const UNITS: u64 = 64;

/// Iterations of a fingerprint: at least ten times those of a LUKS header's digest.
const ITERATIONS: u32 = 10_000;

/// Zeroes, encrypted with a key, or a hash of the key of an AEAD, whose IVs are random.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyCheck {
    content: CheckedContent,
    /// The ciphertext or the hash.
    bytes: Vec<u8>,
}

/// Use of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CheckedContent {
    Segments(Vec<Segment>),
    Authenticated,
    /// The lines of a table have a key each: no single key is accepted.
    Table,
    /// The old and the new side of a volume in re-encryption have a key each. The number of bytes of the old one.
    Sides(usize),
}

/// A salted hash of a [`KeyCheck`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyFingerprint {
    salt: String,
    hash: String,
}

impl KeyCheck {
    /// Encrypts zeroes in `segments` with `key`.
    pub fn new(segments: &[Segment], key: &VolumeKey) -> Result<Self, CipherError> {
        let mut bytes = Vec::new();
        for segment in segments {
            encrypt_zeroes(segment, key, &mut bytes)?;
        }
        Ok(Self { content: CheckedContent::Segments(segments.to_vec()), bytes })
    }

    /// Hashes the random key of a volume with integrity protection.
    pub fn of_authenticated(key: &VolumeKey) -> Result<Self, KdfError> {
        let mut bytes = vec![0; 32];
        derive(key.as_bytes(), b"volume key", &mut bytes)?;
        Ok(Self { content: CheckedContent::Authenticated, bytes })
    }

    /// Encrypts zeroes with the keys of a table. For [`KeyCheck::fingerprint`] only: no single key is accepted.
    pub fn of_table(table: &Table) -> Result<Self, CipherError> {
        let mut bytes = Vec::new();
        for line in table.lines() {
            if let TableLine { target: Target::Crypt(crypt), .. } = line {
                encrypt_zeroes(&line.segment(), &crypt.key, &mut bytes)?;
            }
        }
        Ok(Self { content: CheckedContent::Table, bytes })
    }

    /// Encrypts zeroes in the old and in the new side of a volume in re-encryption, with the key of each. For
    /// [`KeyFingerprint::is_of`] only: no single key is accepted.
    pub fn of_sides(sides: [(&Segment, Option<&VolumeKey>); 2]) -> Result<Self, CipherError> {
        let (mut bytes, mut ends) = (Vec::new(), [0; 2]);
        for ((segment, key), end) in sides.iter().zip(&mut ends) {
            key.map_or(Ok(()), |key| encrypt_zeroes(segment, key, &mut bytes))?;
            *end = bytes.len();
        }
        Ok(Self { content: CheckedContent::Sides(ends[0]), bytes })
    }

    /// Whether it is of a volume in re-encryption.
    pub fn is_of_sides(&self) -> bool {
        matches!(self.content, CheckedContent::Sides(_))
    }

    /// Whether it is of a single key, which [`KeyCheck::is_made_with`] recognizes.
    pub fn is_of_one_key(&self) -> bool {
        !matches!(self.content, CheckedContent::Table | CheckedContent::Sides(_))
    }

    /// Whether `key` is the one of this check.
    pub fn is_made_with(&self, key: &VolumeKey) -> bool {
        match &self.content {
            CheckedContent::Segments(segments) => Self::new(segments, key).is_ok_and(|other| other == *self),
            CheckedContent::Authenticated => Self::of_authenticated(key).is_ok_and(|other| other == *self),
            CheckedContent::Table | CheckedContent::Sides(_) => false,
        }
    }

    /// Returns a hash that may be stored.
    pub fn fingerprint(&self) -> Result<KeyFingerprint> {
        let mut salt = [0; 32];
        getrandom::fill(&mut salt).context("no random bytes")?;
        let salt = hex(&salt);
        Ok(KeyFingerprint { hash: hash(&self.bytes, &salt)?, salt })
    }
}

/// Returns the hash of a fingerprint.
fn hash(bytes: &[u8], salt: &str) -> Result<String, KdfError> {
    let mut hash = [0; 32];
    derive(bytes, salt.as_bytes(), &mut hash)?;
    Ok(hex(&hash))
}

impl KeyFingerprint {
    /// Whether `check` was made with the same key; of a volume in re-encryption, with one of its keys or both.
    pub fn is_of(&self, check: &KeyCheck) -> bool {
        let is_of = |bytes: &[u8]| hash(bytes, &self.salt).is_ok_and(|hash| hash == self.hash);
        match check.content {
            CheckedContent::Sides(end) => {
                let (old, new) = check.bytes.split_at(end);
                // Plaintext has no key to be recognized by.
                [&check.bytes, old, new].into_iter().any(|bytes| !bytes.is_empty() && is_of(bytes))
            }
            _ => is_of(&check.bytes),
        }
    }
}

fn derive(secret: &[u8], salt: &[u8], hash: &mut [u8]) -> Result<(), KdfError> {
    let kdf = Kdf::Pbkdf2 { hash: Hash::Sha256, iterations: ITERATIONS };
    kdf.derive(secret, salt, hash, &KdfLimits::default())
}

/// Appends zeroes of a segment, encrypted with `key`.
fn encrypt_zeroes(segment: &Segment, key: &VolumeKey, ciphertext: &mut Vec<u8>) -> Result<(), CipherError> {
    let Some(spec) = &segment.cipher else { return Ok(()) };
    let cipher = new_sector_cipher(spec, key.as_bytes(), segment.unit, segment.large_iv.into())?;
    let step = if segment.large_iv { 1 } else { segment.unit.sectors() };
    let mut unit = vec![0; segment.unit.bytes()];
    for number in 0..UNITS {
        unit.fill(0);
        cipher.encrypt(IvNumber(number * step), InOut::InPlace(&mut unit));
        ciphertext.extend_from_slice(&unit[..KEPT]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlock_cipher::DataUnitSize;

    fn segment(spec: &str, unit: u32) -> Segment {
        Segment::whole(Some(spec.parse().unwrap()), DataUnitSize::new(unit).unwrap())
    }

    #[test]
    fn wrong_key_is_refused() {
        for (spec, len) in [("aes-xts-plain64", 64), ("aes-cbc-essiv:sha256", 32), ("aes-cbc-plain", 16)] {
            for unit in [512, 4096] {
                let mut key = VolumeKey::new(&(0..len).collect::<Vec<u8>>());
                let check = KeyCheck::new(&[segment(spec, unit)], &key).unwrap();
                assert!(check.is_made_with(&key));
                // Either half of an XTS key counts.
                for place in [0, usize::from(len) - 1] {
                    key.as_mut_bytes()[place] ^= 1;
                    assert!(!check.is_made_with(&key), "{spec}, byte {place}");
                    key.as_mut_bytes()[place] ^= 1;
                }
                assert!(!check.is_made_with(&VolumeKey::zeroed(7)), "a key of another length");
                assert!(check.is_made_with(&key));
            }
        }
    }

    #[test]
    fn fingerprint_accepts_its_key_or_table_only() {
        let spec = [segment("aes-xts-plain64", 512)];
        let check = |byte| KeyCheck::new(&spec, &VolumeKey::new(&[byte, 1].repeat(16))).unwrap();
        let fingerprint = check(0).fingerprint().unwrap();
        assert!(fingerprint.is_of(&check(0)) && !fingerprint.is_of(&check(2)));
        assert_ne!(fingerprint, check(0).fingerprint().unwrap(), "two volumes with one key have the same fingerprint");
        let table = |last: &str| {
            let line =
                |start: u32, last: &str| format!("{start} 8 crypt aes-cbc-plain {}{last} 0 7:0 0\n", "5a".repeat(15));
            KeyCheck::of_table(&Table::parse(&(line(0, "00") + &line(8, last))).unwrap()).unwrap()
        };
        let fingerprint = table("11").fingerprint().unwrap();
        assert!(fingerprint.is_of(&table("11")) && !fingerprint.is_of(&table("12")));
        assert!(!table("11").is_made_with(&VolumeKey::zeroed(0)));
    }

    #[test]
    fn fingerprint_accepts_a_volume_that_is_re_encrypted_from_or_to_its_key() {
        let (old, new) = (segment("aes-xts-plain64", 512), segment("aes-cbc-essiv:sha256", 4096));
        let key = |byte| VolumeKey::new(&[byte, 1].repeat(16));
        let one = |segment: &Segment, byte| KeyCheck::new(&[*segment], &key(byte)).unwrap().fingerprint().unwrap();
        let (first, second) = (key(0), key(2));
        let both = KeyCheck::of_sides([(&old, Some(&first)), (&new, Some(&second))]).unwrap();
        assert!(both.is_of_sides() && !both.is_of_one_key() && !both.is_made_with(&first));
        assert!(both.fingerprint().unwrap().is_of(&both));
        for (segment, byte, is_it) in [(&old, 0, true), (&new, 2, true), (&old, 2, false), (&new, 0, false)] {
            assert_eq!(one(segment, byte).is_of(&both), is_it);
        }
        let plaintext = Segment::whole(None, DataUnitSize::SECTOR);
        for (half, is_old) in
            [([(&old, Some(&first)), (&plaintext, None)], true), ([(&plaintext, None), (&new, Some(&second))], false)]
        {
            let half = KeyCheck::of_sides(half).unwrap();
            assert_eq!((one(&old, 0).is_of(&half), one(&new, 2).is_of(&half)), (is_old, !is_old));
            let nothing = KeyCheck::new(&[plaintext], &first).unwrap().fingerprint().unwrap();
            assert!(!nothing.is_of(&half));
        }
    }

    #[test]
    fn unencrypted_segment_accepts_empty_key() {
        let raw = Segment::whole(None, DataUnitSize::SECTOR);
        assert!(KeyCheck::new(&[raw], &VolumeKey::zeroed(0)).unwrap().is_made_with(&VolumeKey::zeroed(0)));
    }
}
