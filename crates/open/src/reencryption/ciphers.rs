//! The ciphers before and after a re-encryption.

use inlock_cipher::{CipherError, InOut, IvNumber, IvNumbering, SectorCipher, VolumeKey, new_sector_cipher};
use inlock_volume::luks2::reencryption::{Reencryption, ReencryptionKeys, Side};

/// The ciphers of both sides, which change data in place. Positions are bytes of the volume, at data units of both.
pub(super) struct Ciphers {
    old: SideCipher,
    new: SideCipher,
}

/// The cipher of a side, `None` for plaintext.
struct SideCipher {
    side: Side,
    cipher: Option<Box<dyn SectorCipher>>,
}

impl SideCipher {
    fn new(side: &Side, key: Option<&VolumeKey>) -> Result<Self, CipherError> {
        // The keys were verified against the digests of the sides.
        let make =
            |(spec, key): (_, &VolumeKey)| new_sector_cipher(spec, key.as_bytes(), side.unit, IvNumbering::Sectors);
        Ok(Self { side: side.clone(), cipher: side.cipher.as_ref().zip(key).map(make).transpose()? })
    }

    fn encrypt(&self, at: u64, data: &mut [u8]) {
        if let Some(cipher) = &self.cipher {
            cipher.encrypt(IvNumber(self.side.iv_number(at)), InOut::InPlace(data));
        }
    }

    fn decrypt(&self, at: u64, data: &mut [u8]) {
        if let Some(cipher) = &self.cipher {
            cipher.decrypt(IvNumber(self.side.iv_number(at)), InOut::InPlace(data));
        }
    }
}

impl Ciphers {
    pub(super) fn new(state: &Reencryption, keys: &ReencryptionKeys) -> Result<Self, CipherError> {
        // With a kept key, there is one.
        let new = keys.new.as_ref().or(keys.old.as_ref());
        Ok(Self { old: SideCipher::new(&state.old, keys.old.as_ref())?, new: SideCipher::new(&state.new, new)? })
    }

    /// Turns old data into new.
    pub(super) fn renew(&self, at: u64, data: &mut [u8]) {
        self.renew_keeping(at, data, None);
    }

    /// Turns old data into new, and puts the plaintext into `kept`, which is as long.
    pub(super) fn renew_keeping(&self, at: u64, data: &mut [u8], kept: Option<&mut [u8]>) {
        self.old.decrypt(at, data);
        if let Some(kept) = kept {
            kept.copy_from_slice(data);
        }
        self.new.encrypt(at, data);
    }

    /// Turns new data into old.
    pub(super) fn restore(&self, at: u64, data: &mut [u8]) {
        self.new.decrypt(at, data);
        self.old.encrypt(at, data);
    }
}
