//! The one interface between a request and a cipher: many data units a call.

use crate::spec::{ChainMode, Cipher, CipherSpec, IvMode};
use crate::{DataUnitSize, InOut, IvNumber};
use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use sha2::{Digest, Sha256};

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
}

/// Makes the cipher for `spec` under `key`. `large_iv`: the IV number grows by 1 a unit, not by the unit's sectors.
pub fn new_sector_cipher(
    spec: &CipherSpec,
    key: &[u8],
    unit: DataUnitSize,
    large_iv: bool,
) -> Result<Box<dyn SectorCipher>, CipherError> {
    todo_reference::new(spec, key, unit, large_iv)
}

/// Stand-in until the kernels land.
mod todo_reference {
    use super::*;

    enum Block {
        A128(aes::Aes128),
        A192(aes::Aes192),
        A256(aes::Aes256),
    }
    impl Block {
        fn new(key: &[u8]) -> Option<Self> {
            Some(match key.len() {
                16 => Self::A128(aes::Aes128::new_from_slice(key).ok()?),
                24 => Self::A192(aes::Aes192::new_from_slice(key).ok()?),
                32 => Self::A256(aes::Aes256::new_from_slice(key).ok()?),
                _ => return None,
            })
        }
        fn enc(&self, b: &mut [u8; 16]) {
            let block: &mut Array<u8, _> = b.into();
            match self {
                Self::A128(c) => c.encrypt_block(block),
                Self::A192(c) => c.encrypt_block(block),
                Self::A256(c) => c.encrypt_block(block),
            }
        }
        fn dec(&self, b: &mut [u8; 16]) {
            let block: &mut Array<u8, _> = b.into();
            match self {
                Self::A128(c) => c.decrypt_block(block),
                Self::A192(c) => c.decrypt_block(block),
                Self::A256(c) => c.decrypt_block(block),
            }
        }
    }

    struct Reference {
        spec: CipherSpec,
        unit: DataUnitSize,
        step: u64,
        data: Option<Block>,
        tweak: Option<Block>,
    }

    pub(super) fn new(
        spec: &CipherSpec,
        key: &[u8],
        unit: DataUnitSize,
        large_iv: bool,
    ) -> Result<Box<dyn SectorCipher>, CipherError> {
        if !spec.key_lens().contains(&key.len()) {
            return Err(CipherError::KeyLength { spec: *spec, len: key.len() });
        }
        let step = if large_iv { 1 } else { unit.sectors() };
        let (data, tweak) = match (spec.cipher, spec.mode, spec.iv) {
            (Cipher::Null, ..) => (None, None),
            (_, ChainMode::Xts, _) => (Block::new(&key[..key.len() / 2]), Block::new(&key[key.len() / 2..])),
            (_, _, IvMode::Essiv(_)) => (Block::new(key), Block::new(&Sha256::digest(key))),
            _ => (Block::new(key), None),
        };
        Ok(Box::new(Reference { spec: *spec, unit, step, data, tweak }))
    }

    impl Reference {
        fn each(&self, first: IvNumber, data: InOut<'_>, encrypt: bool) {
            assert!(!data.is_empty() && data.len().is_multiple_of(self.unit.bytes()));
            let data = data.into_in_place();
            let Some(cipher) = &self.data else { return };
            let mut number = first.0;
            for unit in data.chunks_exact_mut(self.unit.bytes()) {
                let mut iv = [0u8; 16];
                match self.spec.iv {
                    IvMode::Null => {}
                    IvMode::Plain => iv[..4].copy_from_slice(&(number as u32).to_le_bytes()),
                    _ => iv[..8].copy_from_slice(&number.to_le_bytes()),
                }
                if let Some(t) = &self.tweak {
                    t.enc(&mut iv);
                }
                for block in unit.as_chunks_mut::<16>().0 {
                    let before = *block;
                    let xor = |b: &mut [u8; 16], iv: &[u8; 16]| b.iter_mut().zip(iv).for_each(|(b, i)| *b ^= i);
                    if self.spec.mode == ChainMode::Xts {
                        xor(block, &iv);
                        if encrypt { cipher.enc(block) } else { cipher.dec(block) }
                        xor(block, &iv);
                        let n = u128::from_le_bytes(iv);
                        iv = ((n << 1) ^ ((n >> 127) * 0x87)).to_le_bytes();
                    } else if encrypt {
                        xor(block, &iv);
                        cipher.enc(block);
                        iv = *block;
                    } else {
                        cipher.dec(block);
                        xor(block, &iv);
                        iv = before;
                    }
                }
                number = number.wrapping_add(self.step);
            }
        }
    }

    impl SectorCipher for Reference {
        fn unit(&self) -> DataUnitSize {
            self.unit
        }
        fn encrypt(&self, first: IvNumber, data: InOut<'_>) {
            self.each(first, data, true);
        }
        fn decrypt(&self, first: IvNumber, data: InOut<'_>) {
            self.each(first, data, false);
        }
    }
}
