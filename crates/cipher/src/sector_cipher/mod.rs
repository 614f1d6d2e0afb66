//! The interface between requests and ciphers: many data units per call.

mod aes_cbc;
mod aes_ctr;
mod aes_lrw;
mod aes_xts;
mod any_mode;
mod in_turn;
mod layers;
mod null;

use crate::aes::AesKernel;
use crate::in_out::check_data_len;
use crate::isa::WideKernel;
use crate::iv::{IvGenerator, IvKeys};
use crate::modes::new_chain;
use crate::scatter::MIN_RUN;
use crate::spec::{ChainMode, Cipher, CipherSpec, IvMode};
use crate::{CipherError, DataUnitSize, InOut, IvNumber, IvNumbering, ScatterList};
#[cfg(test)]
pub(crate) use aes_ctr::new as new_aes_ctr;
#[cfg(test)]
pub(crate) use aes_lrw::new as new_aes_lrw;
#[cfg(test)]
pub(crate) use aes_xts::new as new_aes_xts;
use any_mode::AnyMode;
use in_turn::KeysInTurn;
use layers::{Elephant, Layered, Lmk, Tcw};
use null::Null;

/// A length-preserving cipher over runs of whole data units.
///
/// The length of `data` is a positive multiple of [`SectorCipher::unit`]. `first` is the IV number of the first unit.
/// The numbers of the next units grow by the step of the cipher's [`IvNumbering`] and wrap at 2^64.
pub trait SectorCipher: Send + Sync {
    /// Returns the size of a data unit.
    fn unit(&self) -> DataUnitSize;
    /// Returns the difference of the IV numbers of consecutive units.
    fn step(&self) -> u64;
    /// Encrypts every unit of `data`.
    ///
    /// # Panics
    ///
    /// Panics before it writes a byte if the data is not a positive number of whole units.
    fn encrypt(&self, first: IvNumber, data: InOut<'_>);
    /// Decrypts every unit of `data`.
    ///
    /// # Panics
    ///
    /// As [`SectorCipher::encrypt`].
    fn decrypt(&self, first: IvNumber, data: InOut<'_>);
    /// Encrypts every unit of `data`, whose length is not trusted.
    ///
    /// # Errors
    ///
    /// Fails before it writes a byte if the data is not a positive number of whole units.
    fn try_encrypt(&self, first: IvNumber, data: InOut<'_>) -> Result<(), CipherError> {
        check_data_len(self.unit(), data.len())?;
        self.encrypt(first, data);
        Ok(())
    }
    /// Decrypts every unit of `data`, whose length is not trusted.
    ///
    /// # Errors
    ///
    /// As [`SectorCipher::try_encrypt`].
    fn try_decrypt(&self, first: IvNumber, data: InOut<'_>) -> Result<(), CipherError> {
        check_data_len(self.unit(), data.len())?;
        self.decrypt(first, data);
        Ok(())
    }
    /// Encrypts every unit of data in several pieces, in which a unit may begin and end anywhere.
    ///
    /// # Panics
    ///
    /// Panics before it writes a byte if the data is not a positive number of whole units, or source and destination
    /// differ in length.
    fn encrypt_scattered(&self, first: IvNumber, data: ScatterList<'_, '_>) {
        self.try_encrypt_scattered(first, data).expect("whole data units");
    }
    /// Decrypts every unit of data in several pieces.
    ///
    /// # Panics
    ///
    /// As [`SectorCipher::encrypt_scattered`].
    fn decrypt_scattered(&self, first: IvNumber, data: ScatterList<'_, '_>) {
        self.try_decrypt_scattered(first, data).expect("whole data units");
    }
    /// Encrypts every unit of data in several pieces, whose lengths are not trusted.
    ///
    /// # Errors
    ///
    /// Fails before it writes a byte if the data is not a positive number of whole units, or source and destination
    /// differ in length.
    fn try_encrypt_scattered(&self, first: IvNumber, data: ScatterList<'_, '_>) -> Result<(), CipherError> {
        data.check(self.unit())?;
        let encrypt = |before, run: InOut<'_>| self.encrypt(first.after(before, self.step()), run);
        data.for_each_run(self.unit(), self.min_encrypted_run(), encrypt);
        Ok(())
    }
    /// Decrypts every unit of data in several pieces, whose lengths are not trusted.
    ///
    /// # Errors
    ///
    /// As [`SectorCipher::try_encrypt_scattered`].
    fn try_decrypt_scattered(&self, first: IvNumber, data: ScatterList<'_, '_>) -> Result<(), CipherError> {
        data.check(self.unit())?;
        let decrypt = |before, run: InOut<'_>| self.decrypt(first.after(before, self.step()), run);
        data.for_each_run(self.unit(), self.min_decrypted_run(), decrypt);
        Ok(())
    }
    /// Returns the length in bytes of the shortest run of data units between other pieces that is encrypted by a call
    /// of its own into contiguous memory. Shorter ones are copied there, and encrypted with their neighbours.
    fn min_encrypted_run(&self) -> usize {
        MIN_RUN
    }
    /// Returns the same for decryption from contiguous memory.
    fn min_decrypted_run(&self) -> usize {
        MIN_RUN
    }
    /// Returns the name of the kernel: `vaes512`, `vaes256` or `aesni` of AES, `avx512` or `avx2` of other ciphers,
    /// `portable`, or `none` for the null cipher.
    fn kernel(&self) -> &'static str {
        AesKernel::Portable.name()
    }
}

/// Makes the cipher of `spec` under `key`, on the fastest kernel that this CPU has and `INLOCK_CPU` allows.
///
/// # Errors
///
/// Fails if the specification is invalid or does not accept the key's length or the unit, or if `INLOCK_CPU` has an
/// unknown value.
pub fn new_sector_cipher(
    spec: &CipherSpec,
    key: &[u8],
    unit: DataUnitSize,
    numbering: IvNumbering,
) -> Result<Box<dyn SectorCipher>, CipherError> {
    new_sector_cipher_on(AesKernel::best()?, spec, key, unit, numbering)
}

/// Makes the cipher of `spec` under `key` on `kernel`, as one of [`AesKernel::available`]: for tests and benchmarks.
///
/// # Errors
///
/// As [`new_sector_cipher`], except for `INLOCK_CPU`.
pub fn new_sector_cipher_on(
    kernel: AesKernel,
    spec: &CipherSpec,
    key: &[u8],
    unit: DataUnitSize,
    numbering: IvNumbering,
) -> Result<Box<dyn SectorCipher>, CipherError> {
    spec.check().map_err(|_| CipherError::Unsupported(*spec))?;
    if !spec.can_use_unit(unit) {
        return Err(CipherError::Unit { spec: *spec, unit });
    }
    let parts = spec.key_parts(key.len()).ok_or(CipherError::KeyLength { spec: *spec, len: key.len() })?;
    let (data, extra) = key.split_at(key.len() - parts.extra);
    let first = &data[..parts.each];
    let one = |at: usize| {
        let own = &data[at * parts.each..][..parts.each];
        with_one_key(kernel, spec, &IvKeys { own, first, extra }, unit, numbering)
    };
    let cipher: Box<dyn SectorCipher> = match spec.keys.get() {
        1 => one(0)?,
        count => Box::new(KeysInTurn::new((0..count).map(one).collect::<Result<_, _>>()?, unit, numbering)),
    };
    let step = numbering.step(unit);
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
    numbering: IvNumbering,
) -> Result<Box<dyn SectorCipher>, CipherError> {
    let ivs = || IvGenerator::new(spec, keys, unit, numbering, kernel);
    Ok(match (spec.cipher, spec.mode) {
        (Cipher::Null, _) => Box::new(Null { unit, step: numbering.step(unit) }),
        (Cipher::Aes, ChainMode::Xts) => aes_xts::new(kernel, keys.own, unit, ivs()),
        (Cipher::Aes, ChainMode::Cbc) => aes_cbc::new(kernel, keys.own, unit, ivs()),
        (Cipher::Aes, ChainMode::Lrw) => aes_lrw::new(kernel, keys.own, unit, ivs()),
        (Cipher::Aes, ChainMode::Ctr) => aes_ctr::new(kernel, keys.own, unit, ivs()),
        (cipher, mode) => {
            let chain = new_chain(kernel, cipher, mode, keys.own).ok_or(CipherError::Unsupported(*spec))?;
            let has_wide_kernel = matches!(cipher, Cipher::Serpent | Cipher::Adiantum { .. });
            let name = if has_wide_kernel { WideKernel::name_at_level(kernel) } else { AesKernel::Portable.name() };
            Box::new(AnyMode::new(chain, unit, ivs()).on(name))
        }
    })
}
