//! Weak keys.

use super::combine::KeyParts;
use super::{ChainMode, CipherSpec};

impl CipherSpec {
    /// Whether `key`, or one of several keys in it, is an XTS key with two equal halves, which weakens XTS. The time
    /// does not depend on where the halves differ.
    pub fn has_equal_halves(&self, key: &[u8]) -> bool {
        let parts = self.key_parts(key.len()).filter(|parts| self.mode == ChainMode::Xts && parts.each > 0);
        let Some(KeyParts { each, extra }) = parts else { return false };
        let equal = |own: &[u8]| {
            let (data, tweak) = own.split_at(own.len() / 2);
            let difference = data.iter().zip(tweak).fold(0, |all, (a, b)| all | (a ^ b));
            std::hint::black_box(difference) == 0
        };
        key[..key.len() - extra].chunks_exact(each).any(equal)
    }
}
