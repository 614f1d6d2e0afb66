//! The anti-forensic splitter: a key spread over many stripes, so that wiping any part of them destroys it.
//!
//! LUKS1 on-disk format, section 2.4; LUKS2 uses the same under the name `luks1`.

use crate::pbkdf::Hash;
use inlock_cipher::Diffusion;
use zeroize::Zeroizing;

/// Puts the key back together from `stripes` stripes. `material` is at least `key.len() * stripes` bytes.
pub(crate) fn merge(material: &[u8], key: &mut [u8], hash: Hash) {
    let len = key.len();
    assert!(len > 0 && material.len() >= len && material.len().is_multiple_of(len), "whole stripes");
    let (last, others) = {
        let (others, last) = material.split_at(material.len() - len);
        (last, others)
    };
    key.fill(0);
    let mut diffusion = Diffusion::new(hash);
    for stripe in others.chunks_exact(len) {
        xor(key, stripe);
        diffusion.apply(key);
    }
    xor(key, last);
}

/// Splits `key` into stripes. `material` is a whole number of stripes, filled with random bytes by the caller; the last
/// stripe is overwritten.
pub(crate) fn split(key: &[u8], material: &mut [u8], hash: Hash) {
    let len = key.len();
    assert!(len > 0 && material.len() >= len && material.len().is_multiple_of(len), "whole stripes");
    let (others, last) = material.split_at_mut(material.len() - len);
    let mut state = Zeroizing::new(vec![0; len]);
    let mut diffusion = Diffusion::new(hash);
    for stripe in others.chunks_exact(len) {
        xor(&mut state, stripe);
        diffusion.apply(&mut state);
    }
    last.copy_from_slice(key);
    xor(last, &state);
}

fn xor(into: &mut [u8], with: &[u8]) {
    into.iter_mut().zip(with).for_each(|(a, b)| *a ^= b);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_undoes_split_for_every_hash_and_odd_lengths() {
        for hash in Hash::ALL {
            for len in [1, 16, 20, 32, 33, 64, 65] {
                for stripes in [1, 2, 7, 4000] {
                    let key: Vec<u8> = (0..len as u8).map(|n| n.wrapping_mul(37) ^ 0x5a).collect();
                    let mut material: Vec<u8> = (0..len * stripes).map(|n| ((n * 131) >> 3) as u8).collect();
                    split(&key, &mut material, hash);
                    let mut back = vec![0; len];
                    merge(&material, &mut back, hash);
                    assert_eq!(back, key, "{hash} len {len} stripes {stripes}");
                    material[0] ^= 1;
                    merge(&material, &mut back, hash);
                    // A digest of a few bytes, truncated to as few, may collide by chance.
                    assert!(back != key || len < 16, "{hash} len {len} stripes {stripes}: one flipped bit must matter");
                }
            }
        }
    }
}
