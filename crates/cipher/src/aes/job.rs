//! Arguments of one kernel call.
//!
//! A kernel's entry point is safe to call and trusts the pointers of its job. So only the constructors here set the
//! fields, from slices whose lengths they check, and the job borrows those slices while it exists. The borrows are
//! [`PhantomData`]: a mutable reference in the job would assert unique access to the bytes that the pointers refer to.

use super::schedule::{GcmKeys, Schedule, XtsKeys};
use crate::block_cipher::Block;
use crate::{DataUnitSize, InOut};
use std::marker::PhantomData;

/// Whole data units in memory, read at `src` and written at `dst`, which are equal or do not overlap.
struct Units<'a> {
    src: *const u8,
    dst: *mut u8,
    count: usize,
    unit_len: usize,
    _data: PhantomData<InOut<'a>>,
}

impl<'a> Units<'a> {
    /// Panics if `data` is not a positive number of whole units.
    #[inline(always)]
    fn new(unit: DataUnitSize, data: InOut<'a>) -> Self {
        let count = data.assert_whole_units(unit);
        let (src, dst) = data.into_ptrs();
        Self { src, dst, count, unit_len: unit.bytes(), _data: PhantomData }
    }
}

/// Adds the accessors of a job's units.
macro_rules! accessors_of_units {
    () => {
        /// Returns the start of the data to read: [`Self::units`] times [`Self::unit_len`] bytes.
        #[inline(always)]
        pub(crate) fn src(&self) -> *const u8 {
            self.units.src
        }

        /// Returns the start of the data to write: equal to [`Self::src`], or without overlap.
        #[inline(always)]
        pub(crate) fn dst(&self) -> *mut u8 {
            self.units.dst
        }

        /// Returns the number of units, at least 1.
        #[inline(always)]
        pub(crate) fn units(&self) -> usize {
            self.units.count
        }

        /// Returns the length of a unit in bytes, a multiple of 512.
        #[inline(always)]
        pub(crate) fn unit_len(&self) -> usize {
            self.units.unit_len
        }
    };
}

/// Maximum number of units whose IVs a kernel takes at a time.
pub(crate) const MAX_BATCH: usize = 64;

/// Source of the IVs of a CBC job.
pub(crate) trait IvSource {
    /// Writes the IVs of the units from number `unit` on, at most [`MAX_BATCH`].
    fn fill(&self, unit: usize, ivs: &mut [Block]);
}

/// One call of an XTS kernel: up to [`MAX_BATCH`] units.
pub(crate) struct XtsJob<'a> {
    keys: &'a XtsKeys,
    ivs: &'a mut [Block],
    units: Units<'a>,
}

/// Number of IVs behind those of the units: up to a vector, and one that is read ahead and not used.
pub(crate) const IV_MARGIN: usize = 4;

impl<'a> XtsJob<'a> {
    /// Makes a job for `data`. `fill` writes the IVs of its units, rounded up to whole vectors, to the start of `ivs`.
    ///
    /// # Panics
    ///
    /// If `data` is not a positive number of whole units, or `ivs` has no room for [`IV_MARGIN`] more.
    #[inline(always)]
    pub(crate) fn new(
        keys: &'a XtsKeys,
        unit: DataUnitSize,
        ivs: &'a mut [Block],
        data: InOut<'a>,
        fill: impl FnOnce(&mut [Block]),
    ) -> Self {
        let units = Units::new(unit, data);
        assert!(units.count + IV_MARGIN <= ivs.len());
        fill(&mut ivs[..units.count.next_multiple_of(IV_MARGIN)]);
        Self { keys, ivs, units }
    }

    accessors_of_units!();

    /// Schedules of both halves of the key.
    #[inline(always)]
    pub(crate) fn keys(&self) -> &'a XtsKeys {
        self.keys
    }

    /// Returns the IVs of the units, rounded up to whole vectors, with space for [`IV_MARGIN`] more than there are
    /// units. The kernel turns them into tweaks.
    #[inline(always)]
    pub(crate) fn ivs(&mut self) -> &mut [Block] {
        self.ivs
    }
}

/// One call of an LRW or a CTR kernel, with its keys.
pub(crate) struct BlockJob<'a, K> {
    keys: &'a K,
    ivs: &'a [Block],
    units: Units<'a>,
}

impl<'a, K> BlockJob<'a, K> {
    /// Makes a job for `data`, whose IVs are the numbers of the units' first blocks, big-endian.
    ///
    /// # Panics
    ///
    /// If `data` is not a positive number of whole units, or there are fewer IVs.
    pub(crate) fn new(keys: &'a K, unit: DataUnitSize, ivs: &'a [Block], data: InOut<'a>) -> Self {
        let units = Units::new(unit, data);
        assert!(ivs.len() >= units.count, "fewer IVs than units");
        Self { keys, ivs, units }
    }

    accessors_of_units!();

    /// Returns the keys.
    #[inline(always)]
    pub(crate) fn keys(&self) -> &'a K {
        self.keys
    }

    /// Returns the IVs, at least one for each unit.
    #[inline(always)]
    pub(crate) fn ivs(&self) -> &'a [Block] {
        self.ivs
    }
}

/// One call of a CBC kernel.
pub(crate) struct CbcJob<'a> {
    keys: &'a Schedule,
    ivs: &'a dyn IvSource,
    units: Units<'a>,
}

impl<'a> CbcJob<'a> {
    /// # Panics
    /// If `data` is not a positive number of whole units.
    pub(crate) fn new(keys: &'a Schedule, ivs: &'a dyn IvSource, unit: DataUnitSize, data: InOut<'a>) -> Self {
        Self { keys, ivs, units: Units::new(unit, data) }
    }

    accessors_of_units!();

    /// Returns the key's schedule.
    #[inline(always)]
    pub(crate) fn keys(&self) -> &'a Schedule {
        self.keys
    }

    /// Writes the IVs of the units from number `unit` on.
    #[inline(always)]
    pub(crate) fn fill_ivs(&self, unit: usize, ivs: &mut [Block]) {
        self.ivs.fill(unit, ivs);
    }
}

/// The additional data of a unit, padded with zeroes: sector and IV.
pub(crate) type AdditionalBlocks = [Block; 2];

/// One call of a GCM kernel.
pub(crate) struct GcmJob<'a> {
    keys: &'a GcmKeys,
    counters: &'a [Block],
    additional_data: &'a [AdditionalBlocks],
    masks: &'a mut [Block],
    units: Units<'a>,
}

impl<'a> GcmJob<'a> {
    /// Makes a job for `data`. `counters` are the units' counter blocks with the number 1, which `masks` has as well,
    /// and room for [`IV_MARGIN`] more.
    ///
    /// # Panics
    ///
    /// If `data` is not a positive number of whole units, or there are fewer blocks than units.
    pub(crate) fn new(
        keys: &'a GcmKeys,
        unit: DataUnitSize,
        (counters, additional_data, masks): (&'a [Block], &'a [AdditionalBlocks], &'a mut [Block]),
        data: InOut<'a>,
    ) -> Self {
        let units = Units::new(unit, data);
        assert!(counters.len() >= units.count && additional_data.len() >= units.count);
        assert!(masks.len() >= units.count.next_multiple_of(IV_MARGIN), "no room for the masks");
        Self { keys, counters, additional_data, masks, units }
    }

    accessors_of_units!();

    /// Returns the expanded key.
    #[inline(always)]
    pub(crate) fn keys(&self) -> &'a GcmKeys {
        self.keys
    }

    /// Returns counters, additional data and masks: at least one of each for each unit, masks for whole vectors.
    #[inline(always)]
    pub(crate) fn blocks(&mut self) -> (&'a [Block], &'a [AdditionalBlocks], &mut [Block]) {
        (self.counters, self.additional_data, self.masks)
    }
}

/// One call of the AEGIS-128 kernel.
pub(crate) struct AegisJob<'a> {
    key: &'a Block,
    ivs: &'a [Block],
    additional_data: &'a [AdditionalBlocks],
    tags: &'a mut [Block],
    units: Units<'a>,
}

impl<'a> AegisJob<'a> {
    /// Makes a job for `data`, whose tags are written to `tags`.
    ///
    /// # Panics
    ///
    /// If `data` is not a positive number of whole units, or there are fewer blocks than units.
    pub(crate) fn new(
        key: &'a Block,
        unit: DataUnitSize,
        (ivs, additional_data, tags): (&'a [Block], &'a [AdditionalBlocks], &'a mut [Block]),
        data: InOut<'a>,
    ) -> Self {
        let units = Units::new(unit, data);
        assert!(ivs.len().min(additional_data.len()).min(tags.len()) >= units.count, "fewer blocks than units");
        Self { key, ivs, additional_data, tags, units }
    }

    accessors_of_units!();

    /// Returns key, IVs, additional data and tags: at least one of each for each unit.
    #[inline(always)]
    pub(crate) fn blocks(&mut self) -> (&'a Block, &'a [Block], &'a [AdditionalBlocks], &mut [Block]) {
        (self.key, self.ivs, self.additional_data, self.tags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    static KEYS: XtsKeys = XtsKeys { data: Schedule::EMPTY, tweak: Schedule::EMPTY };

    struct NoIvs;

    impl IvSource for NoIvs {
        fn fill(&self, _: usize, _: &mut [Block]) {}
    }

    fn job<'a>(ivs: &'a mut [Block], data: InOut<'a>) -> XtsJob<'a> {
        XtsJob::new(&KEYS, DataUnitSize::SECTOR, ivs, data, |_| ())
    }

    /// Accesses the pointers like a kernel, for Miri to check.
    #[allow(unsafe_code)]
    fn add_one(src: *const u8, dst: *mut u8, len: usize) {
        for at in 0..len {
            // SAFETY: a job's pointers are valid for its units.
            unsafe { dst.add(at).write(src.add(at).read() + 1) };
        }
    }

    #[test]
    fn pointers_of_a_moved_job_reach_every_unit() {
        let schedule = Schedule::EMPTY;
        let (mut ivs, mut bytes, mut copy) = ([[0; 16]; 8], [5; 1024], [0; 1024]);
        let xts = Box::new(job(&mut ivs, InOut::InPlace(&mut bytes)));
        assert_eq!((xts.units(), xts.unit_len()), (2, 512));
        add_one(xts.src(), xts.dst(), 1024);
        let xts = Box::new(job(&mut ivs, InOut::copy(&bytes, &mut copy)));
        add_one(xts.src(), xts.dst(), 1024);
        let cbc = CbcJob::new(&schedule, &NoIvs, DataUnitSize::SECTOR, InOut::InPlace(&mut copy));
        let cbc = Box::new(cbc);
        add_one(cbc.src(), cbc.dst(), 1024);
        assert_eq!((bytes, copy), ([6; 1024], [8; 1024]));
    }

    #[test]
    fn job_of_data_that_does_not_fit_panics() {
        fn panics(data: InOut<'_>, room: usize) -> bool {
            let mut ivs = vec![[0; 16]; room];
            catch_unwind(AssertUnwindSafe(|| job(&mut ivs, data).units())).is_err()
        }
        assert!(!panics(InOut::InPlace(&mut [0; 1024]), 2 + IV_MARGIN));
        assert!(panics(InOut::InPlace(&mut [0; 1024]), 1 + IV_MARGIN), "no room for the IVs");
        assert!(panics(InOut::InPlace(&mut []), 8), "no unit");
        assert!(panics(InOut::InPlace(&mut [0; 1000]), 8), "part of a unit");
        assert!(panics(InOut::Copy { src: &[0; 1024], dst: &mut [0; 512] }, 8), "source longer than destination");
        assert!(panics(InOut::Copy { src: &[0; 512], dst: &mut [0; 1024] }, 8), "destination longer than source");
    }
}
