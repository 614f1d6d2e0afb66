//! Combinations of cipher, mode, IV, data unit and IV offset to compare with dm-crypt.

use anyhow::{Context, Result};
use inlock_cipher::known_specs;
use inlock_cipher::{Cipher, CipherSpec, DataUnitSize, IvMode};

/// Specifications in dm-crypt's notation that are compared in full: each cipher and mode with the IVs in use.
const SPECS: &str = "
    aes-xts-plain aes-xts-plain64 aes-xts-plain64be aes-xts-essiv:sha256 aes-xts-benbi aes-xts-null aes-xts-eboiv
    aes-cbc-plain aes-cbc-plain64 aes-cbc-plain64be aes-cbc-essiv:sha256 aes-cbc-essiv:md5 aes-cbc-benbi aes-cbc-null
    aes-cbc-eboiv aes-cbc-elephant aes-cbc-lmk aes:64-cbc-lmk aes-cbc-tcw
    aes-lrw-benbi aes-lrw-plain64 aes-ctr-plain64 aes-ecb aes:2-xts-plain64 aes:8-cbc-plain64
    serpent-xts-plain64 serpent-cbc-plain64 serpent-cbc-essiv:sha256 serpent-lrw-benbi serpent-ctr-plain64 serpent-ecb
    twofish-xts-plain64 twofish-cbc-plain64 twofish-cbc-essiv:sha256 twofish-lrw-benbi twofish-ctr-plain64 twofish-ecb
    camellia-xts-plain64 camellia-cbc-plain64 camellia-cbc-essiv:sha256 camellia-lrw-benbi camellia-ctr-plain64
    camellia-ecb aria-xts-plain64 aria-cbc-essiv:sha256 sm4-xts-plain64 sm4-cbc-plain64
    des3_ede-cbc-plain des3_ede-cbc-plain64 des3_ede-ecb blowfish-cbc-plain blowfish-cbc-plain64 blowfish-cbc-tcw
    blowfish-ecb cast5-cbc-plain cast5-cbc-plain64 cast5-ecb cast6-xts-plain64 cast6-cbc-plain64 cast6-lrw-benbi cast6-ecb
    aes-cbc-essiv:sha3-256 aes-cbc-essiv:blake2b-256 aes-cbc-essiv:sm3 aes-cbc-essiv:streebog256
    xchacha12,aes-adiantum-plain64 xchacha20,aes-adiantum-plain64 xchacha20,aes-adiantum-plain cipher_null-ecb
    capi:xts(aes)-plain64 capi:cbc(aes)-plain64be capi:cbc(serpent)-plain64 capi:essiv(cbc(aes),sha256)-plain64
    capi:cbc(aes)-essiv:sha256 capi:xts(ecb(aes-generic))-plain64 capi:cbc(aes-generic)-plain64 capi:cbc(aes)-lmk capi:adiantum(xchacha12,aes)-plain64 capi:ecb(cipher_null)-null";

/// An IV offset with which sector numbers exceed 2^32 within the first units, where `plain` wraps.
const IV_OFFSET: u64 = (1 << 32) - 64;

/// One specification with one key, data unit and IV offset.
pub(super) struct Combination {
    pub spec: CipherSpec,
    /// The specification in the table, in either of dm-crypt's notations.
    pub word: String,
    pub key: Vec<u8>,
    pub unit: DataUnitSize,
    /// Whether IVs count data units.
    pub large_iv: bool,
    /// In sectors.
    pub iv_offset: u64,
}

impl Combination {
    /// Returns a name of one word.
    pub(super) fn name(&self) -> String {
        let large = if self.large_iv { "+large" } else { "" };
        format!("{}/{}/{}{large}/{}", self.word, self.key.len() * 8, self.unit.bytes(), self.iv_offset)
    }

    /// Returns dm-crypt's line for `sectors` at `start` of a device, with the ciphertext at `offset` of `device`.
    pub(super) fn line(&self, start: u64, sectors: u64, device: &str, offset: u64) -> String {
        let key: String = self.key.iter().map(|byte| format!("{byte:02x}")).collect();
        let key = if key.is_empty() { "-" } else { &key };
        let mut options = Vec::new();
        if self.unit != DataUnitSize::SECTOR {
            options.push(format!("sector_size:{}", self.unit.bytes()));
        }
        if self.large_iv {
            options.push("iv_large_sectors".to_owned());
        }
        let count = if options.is_empty() { String::new() } else { format!(" {} ", options.len()) };
        let (word, iv_offset) = (&self.word, self.iv_offset);
        format!("{start} {sectors} crypt {word} {key} {iv_offset} {device} {offset}{count}{}", options.join(" "))
    }
}

/// The combinations of one specification. They share a device in the guest, each with a line of its table.
pub(super) struct Group {
    pub combinations: Vec<Combination>,
    /// Length of each combination in bytes.
    pub each: u64,
}

/// Number of values of data unit, IV numbering and IV offset that are combined.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Variants {
    /// Each with each: eight.
    All,
    /// Each pair of values: four.
    Pairs,
}

/// Returns everything to compare. `each`: length of a combination of the list above, in bytes.
pub(super) fn groups(each: u64) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    for word in SPECS.split_whitespace() {
        let spec: CipherSpec = word.parse().with_context(|| format!("the specification {word}"))?;
        groups.push(Group { combinations: variants(spec, word, Variants::All)?, each });
    }
    Ok(groups)
}

/// Returns combinations of all specifications of Inlock that are not in the list above, with `each` bytes per
/// combination. SPDK's IVs are excluded, since dm-crypt does not have them.
pub(super) fn others(each: u64, number: Variants) -> Result<Vec<Group>> {
    let listed: Vec<&str> = SPECS.split_whitespace().collect();
    let mut groups = Vec::new();
    for spec in known_specs() {
        let word = spec.to_string();
        // Linux 6.0 removed BLAKE2s as a hash of its API.
        let is_gone = word.contains("essiv:blake2s");
        if !listed.contains(&word.as_str()) && spec.iv != IvMode::SpdkUpper && !is_gone {
            groups.push(Group { combinations: variants(spec, &word, number)?, each });
        }
    }
    Ok(groups)
}

/// Returns a specification with both data unit sizes, both IV numberings, with and without IV offset, and its keys in
/// turn.
fn variants(spec: CipherSpec, word: &str, number: Variants) -> Result<Vec<Combination>> {
    let lens = key_lens(&spec);
    let mut found = Vec::new();
    for unit in [512, 4096] {
        for large_iv in [false, true] {
            for iv_offset in [0, IV_OFFSET] {
                let is_odd = (unit == 4096) ^ large_iv ^ (iv_offset != 0);
                if is_odd && number == Variants::Pairs {
                    continue;
                }
                let len = lens[found.len() % lens.len()];
                let unit = DataUnitSize::new(unit)?;
                if !spec.can_use_unit(unit) {
                    continue;
                }
                let key = key(word, len);
                found.push(Combination { spec, word: word.to_owned(), key, unit, large_iv, iv_offset });
            }
        }
    }
    Ok(found)
}

/// Returns key lengths to compare: all if there are few, otherwise a short one, the middle and the longest. The
/// kernel's null cipher takes no key.
fn key_lens(spec: &CipherSpec) -> Vec<usize> {
    if spec.cipher == Cipher::Null {
        return vec![0];
    }
    let all = spec.key_lens();
    if all.len() <= 6 {
        return all;
    }
    [16, all[all.len() / 2], all[all.len() - 1]].into_iter().filter(|len| all.contains(len)).collect()
}

/// Returns pseudo-random bytes, the same in every run; the halves of an XTS key differ.
fn key(word: &str, len: usize) -> Vec<u8> {
    let seed = word.bytes().fold(len as u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    inlock_tests::random::Random::new(seed).bytes(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn four_variants_have_every_pair_of_values_of_eight() {
        let spec: CipherSpec = "aes-xts-plain64".parse().unwrap();
        let [all, pairs] = [Variants::All, Variants::Pairs].map(|number| variants(spec, "x", number).unwrap());
        assert_eq!((all.len(), pairs.len()), (8, 4));
        let pairs_of = |found: &[Combination]| -> BTreeSet<String> {
            let values = found.iter().map(|c| (c.unit.sectors(), c.large_iv, c.iv_offset));
            let pairs = |(a, b, c)| [format!("{a} {b} -"), format!("{a} - {c}"), format!("- {b} {c}")];
            values.flat_map(pairs).collect()
        };
        assert_eq!(pairs_of(&pairs), pairs_of(&all));
        assert!(pairs_of(&pairs[1..]) != pairs_of(&all), "one of four is needless");
    }
}
