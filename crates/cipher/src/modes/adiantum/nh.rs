//! NH (Black and others, "UMAC: Fast and Secure Message Authentication", 1999) in Adiantum's size: 32-bit words two
//! apart, four passes.
//!
//! The portable loop is shaped for vector registers of four words, which the compiler fills on every CPU: a pass adds,
//! multiplies two pairs to 64 bits each, and adds again.

/// Maximum number of 16-byte blocks in one hash.
pub(super) const MOST_BLOCKS: usize = 64;
const PASSES: usize = 4;
/// Each pass starts one block later in the key.
const KEY_BLOCKS: usize = MOST_BLOCKS + PASSES - 1;
/// Length of a key in bytes.
pub(super) const KEY_LEN: usize = KEY_BLOCKS * 16;

/// A key, as words.
pub(super) struct Key([[u32; 4]; KEY_BLOCKS]);

impl Key {
    /// To be filled by [`Key::set`] in place.
    pub(super) const EMPTY: Self = Self([[0; 4]; KEY_BLOCKS]);

    /// Sets the key from [`KEY_LEN`] bytes.
    pub(super) fn set(&mut self, bytes: &[u8]) {
        for (block, bytes) in self.0.iter_mut().zip(bytes.as_chunks().0) {
            *block = words(bytes);
        }
    }

    /// Returns the sums of the two products of each pass over at most [`MOST_BLOCKS`] blocks, on any CPU.
    #[inline]
    pub(super) fn sums(&self, blocks: &[[u8; 16]]) -> [[u64; 2]; PASSES] {
        let mut sums = [[0u64; 2]; PASSES];
        for (block, keys) in blocks.iter().zip(self.0.windows(PASSES)) {
            let block = words(block);
            for (sum, key) in sums.iter_mut().zip(keys) {
                let [a, b, c, d]: [u32; 4] = std::array::from_fn(|at| block[at].wrapping_add(key[at]));
                sum[0] = sum[0].wrapping_add(u64::from(a) * u64::from(c));
                sum[1] = sum[1].wrapping_add(u64::from(b) * u64::from(d));
            }
        }
        sums
    }

    /// Returns the start of the key's words.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn as_ptr(&self) -> *const u32 {
        self.0.as_ptr().cast()
    }
}

/// Returns the hash of sums, two blocks, each little-endian.
#[inline(always)]
pub(super) fn hash(sums: [[u64; 2]; PASSES]) -> [[u8; 16]; 2] {
    let [first, second, third, fourth] = sums.map(|[even, odd]| u128::from(even.wrapping_add(odd)));
    [first | second << 64, third | fourth << 64].map(u128::to_le_bytes)
}

#[inline(always)]
fn words(block: &[u8; 16]) -> [u32; 4] {
    let words = block.as_chunks().0;
    std::array::from_fn(|at| u32::from_le_bytes(words[at]))
}
