//! Valid combinations of the parts of a specification, and the part of a key for each. The rules are the Linux
//! kernel's, which also accepts some that do not decrypt to the original data.

use super::{ChainMode, Cipher, CipherSpec, InvalidCipherSpec, IvMode, KeyCount};
use crate::Hash;

/// Parts of a key: `keys` times `each` bytes for the ciphers, then `extra` bytes for the IV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyParts {
    /// Bytes of each cipher's key.
    pub each: usize,
    /// Bytes after the ciphers' keys: the seed of `lmk`, seed and whitening of `tcw`, the second key of `elephant`.
    pub extra: usize,
}

impl CipherSpec {
    /// Checks that the parts fit together.
    ///
    /// # Errors
    ///
    /// Fails with the first part that does not fit the others.
    pub fn check(&self) -> Result<(), InvalidCipherSpec> {
        self.check_mode()?;
        self.check_iv()?;
        if self.iv == IvMode::Elephant && self.key_lens().is_empty() {
            let count = self.keys.get().to_string();
            return Err(InvalidCipherSpec::new(
                "key count",
                &count,
                "fewer: elephant's halves of a key have 32 bytes at most",
            ));
        }
        Ok(())
    }

    fn check_mode(&self) -> Result<(), InvalidCipherSpec> {
        let wide = self.mode == ChainMode::Adiantum;
        let expected = match self.cipher {
            Cipher::Adiantum { rounds: 12 | 20 } if wide => return Ok(()),
            Cipher::Adiantum { .. } => "adiantum, the only mode of its cipher",
            Cipher::Null if self.mode == ChainMode::Ecb => return Ok(()),
            Cipher::Null => "ecb, the only mode of the null cipher",
            _ if wide => "a mode of block ciphers: xts, cbc, ecb, ctr or lrw",
            cipher if cipher.block_len() != 16 && matches!(self.mode, ChainMode::Xts | ChainMode::Lrw) => {
                "cbc, ecb or ctr: the cipher's blocks have 8 bytes"
            }
            _ => return Ok(()),
        };
        Err(InvalidCipherSpec::new("mode", self.mode.name(), expected))
    }

    fn check_iv(&self) -> Result<(), InvalidCipherSpec> {
        use ChainMode::{Adiantum, Cbc, Ctr, Ecb, Lrw, Xts};
        let expected = match (self.mode, self.iv) {
            (Ecb, IvMode::Null) | (Adiantum, IvMode::Plain | IvMode::Plain64 | IvMode::Null) => return Ok(()),
            (Ecb, _) => "no IV mode with ecb",
            (Adiantum, _) => "plain, plain64 or null with adiantum",
            (Cbc, IvMode::Lmk) | (Xts, IvMode::SpdkUpper) => return Ok(()),
            (_, IvMode::Lmk) => "another one: lmk goes with cbc only",
            (_, IvMode::SpdkUpper) => "another one: SPDK's goes with xts only",
            (Ctr, IvMode::Eboiv | IvMode::Elephant) => "another one: counter mode encrypts no single block",
            (_, IvMode::Essiv(hash)) if hash.kernel_name().is_none() => {
                return Err(InvalidCipherSpec::new("ESSIV hash", hash.name(), "a hash of the Linux kernel"));
            }
            (_, IvMode::Essiv(hash)) if !self.cipher.key_lens().contains(&hash.len()) => {
                let expected = "a hash as long as one of the cipher's keys";
                let name = hash.kernel_name().unwrap_or(hash.name());
                return Err(InvalidCipherSpec::new("ESSIV hash", name, expected));
            }
            (Xts | Cbc | Ctr | Lrw, _) => return Ok(()),
        };
        Err(InvalidCipherSpec::new("IV mode", self.iv.name(), expected))
    }

    /// Returns the parts of a key of `len` bytes; `None` if the specification accepts no such key.
    pub fn key_parts(&self, len: usize) -> Option<KeyParts> {
        let keys = self.keys.get();
        let extra = match self.iv {
            // loop-AES's second and third version differ in one additional key.
            IvMode::Lmk if !len.is_multiple_of(keys) => Some(len / (keys + 1)).filter(|seed| *seed >= 16)?,
            IvMode::Tcw => self.cipher.block_len() + 16,
            IvMode::Elephant => Some(len / 2).filter(|half| Cipher::Aes.key_lens().contains(half))?,
            _ => 0,
        };
        let data = len.checked_sub(extra)?;
        let each = data / keys;
        let own = match self.mode {
            ChainMode::Xts => Some(each / 2).filter(|_| each.is_multiple_of(2))?,
            ChainMode::Lrw => each.checked_sub(16)?,
            _ => each,
        };
        let seed_fits = self.iv != IvMode::Lmk || extra == 0 || extra == each;
        let fits = data.is_multiple_of(keys) && seed_fits && self.cipher.key_lens().contains(&own);
        fits.then_some(KeyParts { each, extra })
    }

    /// Returns the key lengths in bytes that this specification accepts, ascending.
    pub fn key_lens(&self) -> Vec<usize> {
        let longest = (KeyCount::MAX.get() + 1) * 128;
        (0..=longest).filter(|len| self.can_use_key_len(*len)).collect()
    }
}

/// Returns every valid combination of parts, for tests, comparisons and lists: each cipher, mode and IV mode with one
/// key, ESSIV with every hash that fits, and some with several keys. [`CipherSpec::key_lens`] returns the keys that
/// each accepts.
pub fn known_specs() -> Vec<CipherSpec> {
    let hashes = Hash::ALL.into_iter().map(IvMode::Essiv);
    let ivs = IvMode::ALL.iter().copied().filter(|iv| !matches!(iv, IvMode::Essiv(_))).chain(hashes);
    let ivs: Vec<_> = ivs.collect();
    let mut specs = Vec::new();
    for &cipher in Cipher::ALL {
        for &mode in ChainMode::ALL {
            for &iv in &ivs {
                for count in [1, 2, 64] {
                    // The number of keys does not depend on the cipher: one cipher is enough to test it.
                    let several = cipher == Cipher::Aes && (count == 2 || mode == ChainMode::Cbc) || iv == IvMode::Lmk;
                    let keys = KeyCount::new(count).filter(|keys| *keys == KeyCount::ONE || several);
                    specs.extend(keys.map(|keys| CipherSpec { cipher, mode, iv, keys }));
                }
            }
        }
    }
    specs.retain(|spec| spec.check().is_ok());
    specs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lens(text: &str) -> Vec<usize> {
        text.parse::<CipherSpec>().unwrap().key_lens()
    }

    #[test]
    fn keys_are_as_long_as_their_parts() {
        let rows: [(&str, &[usize]); 15] = [
            ("aes-xts-plain64", &[32, 48, 64]),
            ("aes-cbc-essiv:sha256", &[16, 24, 32]),
            ("aes-lrw-benbi", &[32, 40, 48]),
            ("aes-ctr-plain64", &[16, 24, 32]),
            ("aes-cbc-tcw", &[48, 56, 64]),
            ("blowfish-cbc-tcw", &(28..=80).collect::<Vec<_>>()),
            ("aes-cbc-elephant", &[32, 48, 64]),
            ("aes-xts-elephant", &[64]),
            ("aes-cbc-lmk", &[16, 24, 32]),
            ("aes:2-cbc-lmk", &[32, 48, 64]),
            ("aes:64-cbc-lmk", &[1024, 1040, 1536, 1560, 2048, 2080]),
            ("aes:64-cbc-plain64", &[1024, 1536, 2048]),
            ("des3_ede-cbc-plain", &[24]),
            ("sm4-xts-plain64", &[32]),
            ("xchacha12,aes-adiantum-plain64", &[32]),
        ];
        for (text, expected) in rows {
            assert_eq!(lens(text), expected, "{text}");
        }
    }

    #[test]
    fn every_known_combination_reads_back_and_takes_a_key() {
        let specs = known_specs();
        println!("{} combinations", specs.len());
        assert!(specs.len() >= 300);
        for spec in &specs {
            let text = spec.to_string();
            let read = text.parse();
            if spec.iv == IvMode::SpdkUpper {
                assert!(read.is_err(), "{text} is not dm-crypt's");
            } else {
                assert_eq!(read, Ok(*spec), "{text}");
            }
            let lens = spec.key_lens();
            assert!(!lens.is_empty() && lens.iter().all(|len| *len <= crate::VolumeKey::MAX_LEN), "{text}");
        }
        let unique: std::collections::HashSet<_> = specs.iter().collect();
        assert_eq!(unique.len(), specs.len());
    }
}
