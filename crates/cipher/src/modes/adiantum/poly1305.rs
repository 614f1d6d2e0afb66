//! Poly1305 (Bernstein, 2005) as a hash: no nonce is added at the end, and messages are whole blocks of 16 bytes.
//!
//! Adiantum hashes three to a hundred blocks at a time with a fixed key, and setting up the `poly1305` crate's state
//! takes longer than that. So this is the plain algorithm on 64-bit words. Constant time.

/// A clamped key.
pub(super) struct Key([u64; 2]);

impl Key {
    /// To be filled by [`Key::set`] in place.
    pub(super) const EMPTY: Self = Self([0; 2]);

    /// Sets the key from 16 bytes, of which some bits are ignored.
    pub(super) fn set(&mut self, bytes: &[u8]) {
        const USED: [u64; 2] = [0x0fff_fffc_0fff_ffff, 0x0fff_fffc_0fff_fffc];
        for ((word, bytes), used) in self.0.iter_mut().zip(bytes.as_chunks().0).zip(USED) {
            *word = u64::from_le_bytes(*bytes) & used;
        }
    }

    /// Returns the hash of `blocks`, modulo 2^128.
    #[inline]
    pub(super) fn hash(&self, blocks: impl Iterator<Item = [u8; 16]>) -> u128 {
        // Wrapping operations, though nothing overflows: a check would branch on the secret.
        let wide = |a: u64, b: u64| u128::from(a).wrapping_mul(u128::from(b));
        let sum = |parts: &[u128]| parts.iter().fold(0, |sum: u128, part| sum.wrapping_add(*part));
        let Self([r0, r1]) = *self;
        // 2^130 is 5 modulo the prime, and r1 is a multiple of 4, so 2^128 * r1 is r1 * 5/4.
        let folded = r1.wrapping_add(r1 >> 2);
        let (mut low, mut top) = (0u128, 0u64);
        for block in blocks {
            let (added, carry) = low.overflowing_add(u128::from_le_bytes(block));
            let (h0, h1) = (added as u64, (added >> 64) as u64);
            let h2 = top.wrapping_add(1).wrapping_add(u64::from(carry));
            let first = sum(&[wide(h0, r0), wide(h1, folded)]);
            let second = sum(&[wide(h0, r1), wide(h1, r0), wide(h2, folded), first >> 64]);
            let third = h2.wrapping_mul(r0).wrapping_add((second >> 64) as u64);
            let product = u128::from(first as u64) | second << 64;
            let (reduced, carry) = product.overflowing_add(u128::from((third >> 2).wrapping_add(third & !3)));
            (low, top) = (reduced, (third & 3).wrapping_add(u64::from(carry)));
        }
        // Modulo 2^130 - 5: if adding five carries over 2^130, the sum is kept.
        let (more, carry) = low.overflowing_add(5);
        let over = (top.wrapping_add(u64::from(carry)) >> 2).wrapping_neg();
        let mask = u128::from(over) | u128::from(over) << 64;
        (more & mask) | (low & !mask)
    }
}
