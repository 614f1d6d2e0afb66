//! The units of a call that failed their verification.

use super::Aead;

/// Units of one call that failed their verification, by their index in it. Without an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "units may have failed their verification"]
pub struct BadUnits {
    /// A bit for each unit.
    bits: [u64; Aead::MAX_UNITS / 64],
}

impl Default for BadUnits {
    fn default() -> Self {
        Self { bits: [0; Aead::MAX_UNITS / 64] }
    }
}

impl BadUnits {
    /// Adds the units of which `failed` has a bit, the lowest of which stands for unit `first`, a multiple of 64.
    pub(super) fn add(&mut self, first: usize, failed: u64) {
        debug_assert!(first.is_multiple_of(64));
        self.bits[first / 64] |= failed;
    }

    /// Whether every unit was verified.
    pub fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// Returns the number of units that failed.
    pub fn len(&self) -> usize {
        self.bits.iter().map(|bits| bits.count_ones() as usize).sum()
    }

    /// Returns the index of the first unit that failed.
    pub fn first(&self) -> Option<usize> {
        self.iter().next()
    }

    /// Whether unit `index` failed.
    pub fn contains(&self, index: usize) -> bool {
        self.bits.get(index / 64).is_some_and(|bits| (bits >> (index % 64)) & 1 == 1)
    }

    /// Returns the indices of the units that failed, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.bits.iter().enumerate().flat_map(|(word, &bits)| {
            let rest = |bits: &u64| Some(bits & (bits - 1)).filter(|rest| *rest != 0);
            let left = std::iter::successors(Some(bits).filter(|bits| *bits != 0), rest);
            left.map(move |bits| word * 64 + bits.trailing_zeros() as usize)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_listed_in_order() {
        let mut bad = BadUnits::default();
        assert!(bad.is_empty() && bad.first().is_none() && bad.iter().next().is_none());
        bad.add(1984, 1 << 63 | 1);
        bad.add(64, 0b110);
        assert_eq!(bad.iter().collect::<Vec<_>>(), [65, 66, 1984, 2047]);
        assert_eq!((bad.len(), bad.first(), bad.is_empty()), (4, Some(65), false));
        assert!(bad.contains(66) && !bad.contains(64) && !bad.contains(5000));
    }
}
