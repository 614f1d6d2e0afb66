//! The one interface between a request and a cipher: many data units a call.

use crate::iv::{IvGenerator, IvKeys};
use crate::layers::{Layered, elephant::Elephant, in_turn::KeysInTurn, lmk::Lmk, tcw::Tcw};
use crate::modes::{AnyMode, new_chain};
use crate::null::Null;
use crate::spec::{ChainMode, Cipher, CipherSpec, IvMode};
use crate::xts::XtsKernel;
use crate::{DataUnitSize, InOut, IvNumber, cbc, xts};

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
        XtsKernel::Portable.name()
    }
}

/// A key or a specification that no cipher can be made from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CipherError {
    /// The specification does not take a key of this length.
    #[error("{spec} does not take a key of {} bits", len * 8)]
    KeyLength {
        /// The specification.
        spec: CipherSpec,
        /// Length of the key, in bytes.
        len: usize,
    },
    /// The specification combines parts that do not go together.
    #[error("{0} is not supported")]
    Unsupported(CipherSpec),
    /// The specification is defined for other data units.
    #[error("{spec} takes data units of 512 bytes only, not {}", unit.bytes())]
    Unit {
        /// The specification.
        spec: CipherSpec,
        /// Size of a data unit.
        unit: DataUnitSize,
    },
    /// The environment variable `INLOCK_CPU` has a value that names no instruction set.
    #[error("INLOCK_CPU is '{value}', not one of portable, aesni, vaes256, vaes512")]
    UnknownCpuLimit {
        /// What it said (its first 64 characters).
        value: String,
    },
    /// The data of a call is not a positive number of whole data units.
    #[error("{len} bytes are not a positive number of data units of {} bytes", unit.bytes())]
    DataLength {
        /// Length of the data, in bytes.
        len: usize,
        /// Size of a data unit.
        unit: DataUnitSize,
    },
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
    new_sector_cipher_on(XtsKernel::best()?, spec, key, unit, large_iv)
}

/// As [`new_sector_cipher`], on a kernel of the caller's choice: for tests and benchmarks.
pub fn new_sector_cipher_on(
    kernel: XtsKernel,
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
    kernel: XtsKernel,
    spec: &CipherSpec,
    keys: &IvKeys<'_>,
    unit: DataUnitSize,
    large_iv: bool,
) -> Result<Box<dyn SectorCipher>, CipherError> {
    let ivs = || IvGenerator::new(spec, keys, unit, large_iv, kernel);
    Ok(match (spec.cipher, spec.mode) {
        (Cipher::Null, _) => Box::new(Null { unit }),
        (Cipher::Aes, ChainMode::Xts) => xts::new(kernel, keys.own, unit, ivs()),
        (Cipher::Aes, ChainMode::Cbc) => cbc::new(kernel, keys.own, unit, ivs()),
        (cipher, mode) => {
            let chain = new_chain(cipher, mode, keys.own).ok_or(CipherError::Unsupported(*spec))?;
            Box::new(AnyMode::new(chain, unit, ivs()))
        }
    })
}

/// Checks data that comes from outside before it is given to a cipher, whose own answer to a wrong length is a panic.
pub fn check_data_len(unit: DataUnitSize, len: usize) -> Result<(), CipherError> {
    if len == 0 || !len.is_multiple_of(unit.bytes()) {
        return Err(CipherError::DataLength { len, unit });
    }
    Ok(())
}

/// The assertion that every cipher makes once a call. Gives back the number of units.
pub(crate) fn assert_whole_units(unit: DataUnitSize, data: &InOut<'_>) -> usize {
    let len = data.len();
    assert!(len != 0 && len & (unit.bytes() - 1) == 0, "the data of a cipher call is not whole data units");
    if let InOut::Copy { src, dst } = data {
        // Both variants' fields are public: kernels trust the lengths.
        assert_eq!(src.len(), dst.len(), "source and destination differ in length");
    }
    len >> unit.log2()
}
