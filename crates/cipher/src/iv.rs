//! IVs: the block that starts a data unit's chain or, for XTS, is encrypted into its tweak (with dm-crypt's names).
//!
//! A kernel requests the finished IVs of up to [`MAX_BATCH`] units at a time, so no kernel knows an IV mode. A new mode
//! is an arm in [`IvGenerator::fill`] and a row of vectors. An IV of 8 bytes is in the first bytes. IV modes that
//! depend on the data, or change it, are layers around the sector cipher.

use crate::aes::{AesKernel, AesKey, MAX_BATCH};
use crate::block_cipher::{Block, BlockCipher, new_block_cipher};
use crate::locked_box::LockedBox;
use crate::modes::{Chain, new_chain};
use crate::spec::{ChainMode, Cipher, CipherSpec, IvMode};
use crate::{DataUnitSize, Hash, IvNumber, IvNumbering};

/// Makes the IVs of consecutive data units.
pub(crate) struct IvGenerator {
    mode: Mode,
    /// Difference of the IV numbers of consecutive units.
    step: u64,
}

enum Mode {
    Null,
    Plain,
    Plain64,
    /// The shifted number plus `add`, big-endian at the end of an IV of this length.
    BigEndian {
        shift: u32,
        add: u64,
        iv_len: usize,
    },
    Essiv(AesKey),
    EssivOf(Box<dyn BlockCipher>),
    Tcw(LockedBox<Block>),
    Eboiv {
        chain: Box<dyn Chain>,
        unit: DataUnitSize,
        block_len: usize,
    },
    SpdkUpper,
    /// One block for every unit, for vectors whose tweak is not a number.
    #[cfg(test)]
    Fixed(Block),
}

/// IVs of a cipher whose units are encrypted elsewhere, such as by an engine.
pub struct UnitIvs {
    generator: IvGenerator,
}

impl UnitIvs {
    /// Makes the IVs of `spec` under `key`. `None` if the specification is not valid for key and unit, if units use
    /// several keys in turn, or if an IV depends on more than its number and the key.
    pub fn new(spec: &CipherSpec, key: &[u8], unit: DataUnitSize, numbering: IvNumbering) -> Option<Self> {
        let by_number = matches!(
            spec.iv,
            IvMode::Plain | IvMode::Plain64 | IvMode::Plain64Be | IvMode::Essiv(_) | IvMode::Benbi | IvMode::Null
        );
        spec.check().ok()?;
        let parts = spec.key_parts(key.len())?;
        if !by_number || spec.keys.get() != 1 || parts.extra != 0 || !spec.can_use_unit(unit) {
            return None;
        }
        let keys = IvKeys { own: key, first: key, extra: &[] };
        let generator = IvGenerator::new(spec, &keys, unit, numbering, AesKernel::best().ok()?);
        Some(Self { generator })
    }

    /// Fills `ivs` with the IVs of consecutive units, the first of which has the number `first`. IVs of 8 bytes are in
    /// the first bytes.
    pub fn fill(&self, first: IvNumber, ivs: &mut [[u8; 16]]) {
        for (batch, ivs) in ivs.chunks_mut(MAX_BATCH).enumerate() {
            self.generator.fill(self.generator.advance(first.0, batch * MAX_BATCH), ivs);
        }
    }

    /// Returns the number `units` units after `first`.
    pub fn after(&self, first: IvNumber, units: usize) -> IvNumber {
        IvNumber(self.generator.advance(first.0, units))
    }
}

/// Parts of the volume key for the IVs.
pub(crate) struct IvKeys<'a> {
    /// Key of the cipher that the IVs are for. ESSIV hashes it.
    pub(crate) own: &'a [u8],
    /// First of several keys. EBOIV encrypts under it.
    pub(crate) first: &'a [u8],
    /// Bytes after the ciphers' keys; they begin with the seed of `tcw`.
    pub(crate) extra: &'a [u8],
}

impl IvGenerator {
    /// Makes IVs for `spec`, whose parts and key lengths have been checked. AES-ESSIV encrypts with `kernel`.
    pub(crate) fn new(
        spec: &CipherSpec,
        keys: &IvKeys<'_>,
        unit: DataUnitSize,
        numbering: IvNumbering,
        kernel: AesKernel,
    ) -> Self {
        let block_len = spec.cipher.block_len();
        let mode = match spec.iv {
            // The data-dependent part of loop-AES's IV is a layer around the cipher.
            IvMode::Null | IvMode::Lmk => Mode::Null,
            IvMode::Plain => Mode::Plain,
            IvMode::Plain64 => Mode::Plain64,
            IvMode::Plain64Be => Mode::BigEndian { shift: 0, add: 0, iv_len: block_len },
            IvMode::Benbi => {
                // To the kernel, counter mode has blocks of one byte.
                let counted = if spec.mode == ChainMode::Ctr { 1 } else { block_len as u32 };
                Mode::BigEndian { shift: 9 - counted.ilog2(), add: 1, iv_len: block_len }
            }
            IvMode::Essiv(hash) => essiv(spec.cipher, hash, keys.own, kernel),
            IvMode::Tcw => {
                let mut seed = LockedBox::new([0; 16]);
                seed[..block_len].copy_from_slice(&keys.extra[..block_len]);
                Mode::Tcw(seed)
            }
            IvMode::Eboiv | IvMode::Elephant => {
                let chain =
                    new_chain(kernel, spec.cipher, spec.mode, keys.first).expect("the key's length was checked");
                Mode::Eboiv { chain, unit, block_len }
            }
            IvMode::SpdkUpper => Mode::SpdkUpper,
        };
        Self { mode, step: numbering.step(unit) }
    }

    #[cfg(test)]
    pub(crate) fn fixed(iv: Block) -> Self {
        Self { mode: Mode::Fixed(iv), step: 1 }
    }

    /// Returns the difference of the IV numbers of consecutive units.
    pub(crate) fn step(&self) -> u64 {
        self.step
    }

    /// Returns the IV number `units` units after `number`.
    #[inline(always)]
    pub(crate) fn advance(&self, number: u64, units: usize) -> u64 {
        number.wrapping_add(self.step.wrapping_mul(units as u64))
    }

    /// Fills `ivs`, at most [`MAX_BATCH`], with the IVs of consecutive units, the first of which has the number
    /// `number`.
    #[inline(always)]
    pub(crate) fn fill(&self, number: u64, ivs: &mut [Block]) {
        match &self.mode {
            Mode::Plain64 => self.each(number, ivs, |number| u128::from(number).to_le_bytes()),
            Mode::Plain => self.each(number, ivs, |number| u128::from(number as u32).to_le_bytes()),
            Mode::Null => ivs.fill([0; 16]),
            Mode::Essiv(key) => {
                self.each(number, ivs, |number| u128::from(number).to_le_bytes());
                key.encrypt_blocks(ivs);
            }
            _ => self.fill_uncommon(number, ivs),
        }
    }

    fn fill_uncommon(&self, number: u64, ivs: &mut [Block]) {
        let le = |number: u64| u128::from(number).to_le_bytes();
        match &self.mode {
            Mode::BigEndian { shift, add, iv_len } => self.each(number, ivs, |number| {
                let mut iv = [0; 16];
                iv[iv_len - 8..*iv_len].copy_from_slice(&(number << shift).wrapping_add(*add).to_be_bytes());
                iv
            }),
            Mode::EssivOf(cipher) => {
                self.each(number, ivs, le);
                for iv in ivs {
                    cipher.encrypt_blocks(&mut iv[..cipher.block_len()]);
                }
            }
            Mode::Tcw(seed) => {
                let seed = u128::from_le_bytes(**seed);
                self.each(number, ivs, |number| (seed ^ (u128::from(number) << 64 | u128::from(number))).to_le_bytes());
            }
            Mode::Eboiv { chain, unit, block_len } => {
                self.each(number, ivs, |number| le(number.wrapping_mul(unit.bytes() as u64)));
                let mut zeroes = [0; MAX_BATCH * 16];
                let blocks = &mut zeroes[..ivs.len() * block_len];
                chain.encrypt(ivs, blocks, *block_len);
                for (iv, block) in ivs.iter_mut().zip(blocks.chunks_exact(*block_len)) {
                    iv[..*block_len].copy_from_slice(block);
                }
            }
            Mode::SpdkUpper => self.each(number, ivs, |number| (u128::from(number) << 64).to_le_bytes()),
            #[cfg(test)]
            Mode::Fixed(iv) => ivs.fill(*iv),
            Mode::Null | Mode::Plain | Mode::Plain64 | Mode::Essiv(_) => unreachable!("filled by the caller"),
        }
    }

    #[inline(always)]
    fn each(&self, mut number: u64, ivs: &mut [Block], iv_of: impl Fn(u64) -> Block) {
        for iv in ivs {
            *iv = iv_of(number);
            number = number.wrapping_add(self.step);
        }
    }
}

fn essiv(cipher: Cipher, hash: Hash, key: &[u8], kernel: AesKernel) -> Mode {
    let digest = hash.digest(&[key]);
    let digest = &digest[..hash.len()];
    if cipher == Cipher::Aes {
        return Mode::Essiv(AesKey::new(kernel, digest));
    }
    Mode::EssivOf(new_block_cipher(kernel, cipher, digest).expect("the digest's length was checked"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_ivs_of_a_run_are_those_of_single_units() {
        let (key, unit) = ([0x5a; 32], DataUnitSize::LUKS_MAX);
        for text in ["aes-cbc-plain", "aes-cbc-plain64", "aes-cbc-essiv:sha256", "aes-cbc-benbi", "aes-xts-plain64be"] {
            for (numbering, step) in [(IvNumbering::Sectors, 8), (IvNumbering::DataUnits, 1)] {
                let spec = text.parse().unwrap();
                let ivs = UnitIvs::new(&spec, &key, unit, numbering).unwrap();
                for first in [0, u64::from(u32::MAX) - 9, u64::MAX - 9].map(IvNumber) {
                    let mut run = [[0; 16]; 3 * MAX_BATCH + 1];
                    ivs.fill(first, &mut run);
                    for (at, iv) in run.iter().enumerate() {
                        let number = IvNumber(first.0.wrapping_add(at as u64 * step));
                        assert_eq!(ivs.after(first, at), number);
                        let mut single = [[0; 16]];
                        ivs.fill(number, &mut single);
                        assert_eq!(single[0], *iv, "{text}, {at} units after {first:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn unit_ivs_of_data_or_of_several_keys_are_refused() {
        let new = |text: &str, key_len| {
            let spec = text.parse().unwrap();
            UnitIvs::new(&spec, &vec![7; key_len], DataUnitSize::SECTOR, IvNumbering::Sectors).is_some()
        };
        assert!(new("aes-cbc-plain64", 32) && new("aes-xts-plain64", 64));
        for (text, key_len) in [
            ("aes-cbc-plain64", 33),
            ("aes:64-cbc-lmk", 64 * 16),
            ("aes:2-cbc-plain64", 64),
            ("aes-cbc-lmk", 32),
            ("aes-cbc-tcw", 64),
            ("aes-cbc-eboiv", 32),
            ("aes-cbc-elephant", 64),
        ] {
            assert!(!new(text, key_len), "{text} with {key_len} bytes");
        }
    }
}
