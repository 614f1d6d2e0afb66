//! The ciphers before and after a re-encryption.

use inlock_cipher::{
    CipherError, CipherSpec, DataUnitSize, InOut, IvNumber, IvNumbering, SECTOR_SIZE, SectorCipher, VolumeKey,
    new_sector_cipher,
};
use inlock_volume::luks2::reencryption::{Reencryption, ReencryptionKeys, Side};

/// The ciphers of both sides, which change data in place. Positions are bytes of the volume, at data units of both.
pub(super) struct Ciphers {
    old: SideCipher,
    new: SideCipher,
}

/// The cipher of a side, `None` for plaintext.
struct SideCipher {
    /// IV number of the first sector.
    iv_tweak: u64,
    cipher: Option<Box<dyn SectorCipher>>,
}

impl SideCipher {
    fn new(
        spec: Option<&CipherSpec>,
        key: Option<&VolumeKey>,
        unit: DataUnitSize,
        iv_tweak: u64,
    ) -> Result<Self, CipherError> {
        // The keys were verified against the digests of the sides.
        let make = |(spec, key): (_, &VolumeKey)| new_sector_cipher(spec, key.as_bytes(), unit, IvNumbering::Sectors);
        Ok(Self { iv_tweak, cipher: spec.zip(key).map(make).transpose()? })
    }

    fn of(side: &Side, key: Option<&VolumeKey>) -> Result<Self, CipherError> {
        Self::new(side.cipher.as_ref(), key, side.unit, side.iv_tweak)
    }

    fn iv_number(&self, at: u64) -> IvNumber {
        IvNumber(self.iv_tweak.wrapping_add(at / SECTOR_SIZE))
    }

    fn encrypt(&self, at: u64, data: &mut [u8]) {
        if let Some(cipher) = &self.cipher {
            cipher.encrypt(self.iv_number(at), InOut::InPlace(data));
        }
    }

    fn decrypt(&self, at: u64, data: &mut [u8]) {
        if let Some(cipher) = &self.cipher {
            cipher.decrypt(self.iv_number(at), InOut::InPlace(data));
        }
    }
}

impl Ciphers {
    pub(super) fn new(state: &Reencryption, keys: &ReencryptionKeys) -> Result<Self, CipherError> {
        // With a kept key, there is one.
        let new = keys.new.as_ref().or(keys.old.as_ref());
        Ok(Self { old: SideCipher::of(&state.old, keys.old.as_ref())?, new: SideCipher::of(&state.new, new)? })
    }

    /// Returns those of volumes with sectors of 512 bytes, whose IVs count from 0. `None`: plaintext.
    pub(super) fn of_sectors(
        old: Option<(&CipherSpec, &VolumeKey)>,
        new: Option<(&CipherSpec, &VolumeKey)>,
    ) -> Result<Self, CipherError> {
        let side = |side: Option<(&CipherSpec, &VolumeKey)>| {
            let (spec, key) = side.unzip();
            SideCipher::new(spec, key, DataUnitSize::SECTOR, 0)
        };
        Ok(Self { old: side(old)?, new: side(new)? })
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
