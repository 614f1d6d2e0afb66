//! Knowing the right key again after it was wiped.
//!
//! A LUKS header's digest confirms a key, but the header may have been replaced meanwhile, and a plain volume confirms
//! nothing. A wrong key would turn every later write into noise. So while the first key is there, zeroes are encrypted with it,
//! and a key that encrypts them to something else is not the one.

use inlock_cipher::{CipherError, InOut, IvNumber, new_sector_cipher};
use inlock_volume::{Segment, VolumeKey};

/// Bytes that are kept of each data unit.
const KEPT: usize = 16;

/// Data units that are encrypted: each under another one of a volume's up to 64 keys.
const UNITS: u64 = 64;

/// What a key made of zeroes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyCheck {
    segments: Vec<Segment>,
    answers: Vec<u8>,
}

impl KeyCheck {
    /// What `key` makes of zeroes in `segments`.
    pub(crate) fn new(segments: &[Segment], key: &VolumeKey) -> Result<Self, CipherError> {
        let mut answers = Vec::new();
        for segment in segments {
            let Some(spec) = &segment.cipher else { continue };
            let cipher = new_sector_cipher(spec, key.as_bytes(), segment.unit, segment.large_iv)?;
            let step = if segment.large_iv { 1 } else { segment.unit.sectors() };
            let mut unit = vec![0; segment.unit.bytes()];
            for number in 0..UNITS {
                unit.fill(0);
                cipher.encrypt(IvNumber(number * step), InOut::InPlace(&mut unit));
                answers.extend_from_slice(&unit[..KEPT]);
            }
        }
        Ok(Self { segments: segments.to_vec(), answers })
    }

    /// Whether `key` is the one that this was made with.
    pub(crate) fn accepts(&self, key: &VolumeKey) -> bool {
        Self::new(&self.segments, key).is_ok_and(|other| other == *self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlock_cipher::{DataUnitSize, Sector};

    fn segment(spec: &str, unit: u32) -> Segment {
        Segment {
            start: Sector(0),
            sectors: None,
            data_offset: Sector(0),
            iv_offset: Sector(0),
            unit: DataUnitSize::new(unit).unwrap(),
            large_iv: false,
            cipher: Some(spec.parse().unwrap()),
        }
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
    fn what_is_not_encrypted_needs_no_key() {
        let raw = Segment { cipher: None, ..segment("aes-xts-plain64", 512) };
        assert!(KeyCheck::new(&[raw], &VolumeKey::zeroed(0)).unwrap().accepts(&VolumeKey::zeroed(0)));
    }
}
