//! The one interface between a request and a cipher: many data units a call.

mod aes_cbc;
mod aes_xts;
mod any_mode;
mod in_turn;
mod layers;
mod null;

use crate::aes::AesKernel;
use crate::iv::{IvGenerator, IvKeys};
use crate::modes::new_chain;
use crate::spec::{ChainMode, Cipher, CipherSpec, IvMode};
use crate::{CipherError, DataUnitSize, InOut, IvNumber};
#[cfg(test)]
pub(crate) use aes_xts::new as new_aes_xts;
use any_mode::AnyMode;
use in_turn::KeysInTurn;
use layers::{Elephant, Layered, Lmk, Tcw};
use null::Null;

/// A length-keeping cipher over runs of whole data units. One call a request; it cannot fail.
///
/// The length of `data` is a positive multiple of [`SectorCipher::unit`]; anything else panics, once a call, before any
/// byte is written. `first` is the IV number of the first unit; each next unit's is larger by the step that the
/// cipher was made with (1, or the unit's sectors where the IV counts sectors), wrapping at 2^64.
pub trait SectorCipher: Send + Sync {
    /// Size of a data unit.
    fn unit(&self) -> DataUnitSize;
    /// Encrypts every unit of `data`.
    fn encrypt(&self, first: IvNumber, data: InOut<'_>);
    /// Decrypts every unit of `data`.
    fn decrypt(&self, first: IvNumber, data: InOut<'_>);
    /// As [`SectorCipher::encrypt`], for lengths that come from outside: an error, before any byte is written, where the data is not a
    /// positive number of whole units.
    fn try_encrypt(&self, first: IvNumber, data: InOut<'_>) -> Result<(), CipherError> {
        check_data_len(self.unit(), data.len())?;
        self.encrypt(first, data);
        Ok(())
    }
    /// As [`SectorCipher::decrypt`], for lengths that come from outside.
    fn try_decrypt(&self, first: IvNumber, data: InOut<'_>) -> Result<(), CipherError> {
        check_data_len(self.unit(), data.len())?;
        self.decrypt(first, data);
        Ok(())
    }
    /// The name of the kernel in use: `vaes512`, `vaes256`, `aesni`, `portable`, or `none` where nothing is encrypted.
    fn kernel(&self) -> &'static str {
        AesKernel::Portable.name()
    }
}

/// Makes the cipher for `spec` under `key`. `large_iv`: the IV number grows by 1 a unit, not by the unit's sectors.
///
/// The kernel is the best that this processor has and `INLOCK_CPU` allows.
pub fn new_sector_cipher(
    spec: &CipherSpec,
    key: &[u8],
    unit: DataUnitSize,
    large_iv: bool,
) -> Result<Box<dyn SectorCipher>, CipherError> {
    new_sector_cipher_on(AesKernel::best()?, spec, key, unit, large_iv)
}

/// As [`new_sector_cipher`], on a kernel of the caller's choice: for tests and benchmarks.
pub fn new_sector_cipher_on(
    kernel: AesKernel,
    spec: &CipherSpec,
    key: &[u8],
    unit: DataUnitSize,
    large_iv: bool,
) -> Result<Box<dyn SectorCipher>, CipherError> {
    spec.check().map_err(|_| CipherError::Unsupported(*spec))?;
    if !spec.takes_unit(unit) {
        return Err(CipherError::Unit { spec: *spec, unit });
    }
    let parts = spec.key_parts(key.len()).ok_or(CipherError::KeyLength { spec: *spec, len: key.len() })?;
    let (data, extra) = key.split_at(key.len() - parts.extra);
    let first = &data[..parts.each];
    let one = |at: usize| {
        let own = &data[at * parts.each..][..parts.each];
        with_one_key(kernel, spec, &IvKeys { own, first, extra }, unit, large_iv)
    };
    let cipher: Box<dyn SectorCipher> = match spec.keys.get() {
        1 => one(0)?,
        count => Box::new(KeysInTurn::new((0..count).map(one).collect::<Result<_, _>>()?, unit, large_iv)),
    };
    let step = if large_iv { 1 } else { unit.sectors() };
    let block_len = spec.cipher.block_len();
    Ok(match spec.iv {
        IvMode::Lmk => Box::new(Layered::new(Lmk::new(extra, block_len), cipher, step)),
        IvMode::Tcw => Box::new(Layered::new(Tcw::new(&extra[block_len..]), cipher, step)),
        IvMode::Elephant => Box::new(Layered::new(Elephant::new(extra, unit), cipher, step)),
        _ => cipher,
    })
}

fn with_one_key(
    kernel: AesKernel,
    spec: &CipherSpec,
    keys: &IvKeys<'_>,
    unit: DataUnitSize,
    large_iv: bool,
) -> Result<Box<dyn SectorCipher>, CipherError> {
    let ivs = || IvGenerator::new(spec, keys, unit, large_iv, kernel);
    Ok(match (spec.cipher, spec.mode) {
        (Cipher::Null, _) => Box::new(Null { unit }),
        (Cipher::Aes, ChainMode::Xts) => aes_xts::new(kernel, keys.own, unit, ivs()),
        (Cipher::Aes, ChainMode::Cbc) => aes_cbc::new(kernel, keys.own, unit, ivs()),
        (cipher, mode) => {
            let chain = new_chain(cipher, mode, keys.own).ok_or(CipherError::Unsupported(*spec))?;
            Box::new(AnyMode::new(chain, unit, ivs()))
        }
    })
}

/// Checks data that comes from outside before it is given to a cipher, whose own answer to a wrong length is a panic.
pub(crate) fn check_data_len(unit: DataUnitSize, len: usize) -> Result<(), CipherError> {
    if len == 0 || !len.is_multiple_of(unit.bytes()) {
        return Err(CipherError::DataLength { len, unit });
    }
    Ok(())
}
