//! The options of plain volumes; cipher and length of the key also of new LUKS volumes.

use std::fmt::Display;

use inlock_cipher::{ChainMode, CipherSpec, DataUnitSize, IvMode, Sector};
use inlock_volume::plain::{Plain, PlainHash};

use super::{ConfigError, Fault, OpenConfig, Result};

/// Returns the cipher of this name.
pub fn cipher(name: Option<&str>) -> Result<CipherSpec> {
    let parse = |text: &str| text.parse().map_err(|error| Fault::UnknownCipher(text.to_owned(), error).of("cipher"));
    name.map_or(Ok(CipherSpec::AES_XTS_PLAIN64), parse)
}

/// Returns the number of bytes of a key; none is as long as one that is too long for this machine.
pub fn key_bytes(bits: impl Into<u64>) -> Result<usize> {
    let bits = bits.into();
    if !bits.is_multiple_of(8) {
        return Err(Fault::KeyBits.of("key-size"));
    }
    Ok(usize::try_from(bits / 8).unwrap_or(usize::MAX))
}

/// Returns the number of bytes of the key of a cipher. The default of 256 bits is doubled for XTS in LUKS, as in
/// cryptsetup.
pub fn key_len(bits: Option<u32>, cipher: CipherSpec, double_for_xts: bool) -> Result<usize> {
    let bits = match bits {
        Some(bits) => bits,
        None if double_for_xts && cipher.mode == ChainMode::Xts => 512,
        None => 256,
    };
    let len = key_bytes(bits)?;
    if cipher.can_use_key_len(len) { Ok(len) } else { Err(ConfigError::key_len(cipher, bits, cipher.key_lens())) }
}

impl ConfigError {
    /// Returns the error of a key of `bits` for a cipher that takes keys of these lengths in bytes.
    pub fn key_len(cipher: impl Display, bits: u32, takes: Vec<usize>) -> Self {
        Fault::KeyLen { cipher: cipher.to_string(), bits, takes }.of("key-size")
    }
}

impl OpenConfig {
    /// Returns the parameters of a plain volume.
    pub(super) fn plain(&self) -> Result<Plain> {
        let mut cipher = cipher(self.cipher.as_deref())?;
        if self.spdk_tweak {
            if cipher != CipherSpec::AES_XTS_PLAIN64 {
                return Err(Fault::NeedsCipher("aes-xts-plain64").of("spdk-tweak"));
            }
            cipher.iv = IvMode::SpdkUpper;
        }
        let unit = self.sector_size.map_or(Ok(DataUnitSize::SECTOR), DataUnitSize::new);
        let unit = unit.map_err(|error| Fault::SectorSize(error).of("sector-size"))?;
        if self.iv_large_sectors && unit == DataUnitSize::SECTOR {
            return Err(Fault::Needs("sector-size above 512").of("iv-large-sectors"));
        }
        let hash = self.hash.as_deref().unwrap_or("sha256");
        let mut plain = Plain::default();
        plain.size = self.plain_size()?;
        plain.cipher = cipher;
        plain.key_len = key_len(self.key_size, cipher, false)?;
        plain.hash = hash.parse::<PlainHash>().map_err(|_| Fault::UnknownHash(hash.to_owned()).of("hash"))?;
        plain.offset = Sector(self.offset.unwrap_or(0));
        plain.skip = Sector(self.skip.unwrap_or(0));
        plain.unit = unit;
        plain.large_iv = self.iv_large_sectors;
        Ok(plain)
    }

    /// Returns the number of sectors, if it is given.
    fn plain_size(&self) -> Result<Option<u64>> {
        let fits = |sectors: Option<u64>| sectors.is_none_or(|n| Sector(n).to_bytes().is_some());
        let option = if self.size.is_some() { "size" } else { "device-size" };
        if !fits(self.offset) || !fits(self.size) {
            return Err(Fault::TooLong.of(if fits(self.offset) { "size" } else { "offset" }));
        }
        if self.size.is_some() && self.device_size.is_some() {
            return Err(Fault::Combined("device-size", "size").of("device-size"));
        }
        if self.device_size.is_some_and(|bytes| !bytes.is_multiple_of(512)) {
            return Err(Fault::PartOfSector.of("device-size"));
        }
        match self.size.or(self.device_size.map(|bytes| bytes / 512)) {
            Some(0) => Err(Fault::NoSectors.of(option)),
            size => Ok(size),
        }
    }
}
