//! Pseudo-random numbers, the same in every run with the same seed (splitmix64).

/// A generator. The seed is its whole state.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns a generator that yields the same numbers for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    /// Returns one of the entries.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// Returns `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            out.extend_from_slice(&self.number().to_le_bytes());
        }
        out.truncate(len);
        out
    }
}
