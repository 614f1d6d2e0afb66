//! A stretch of a volume under one cipher: what dm-crypt calls a table line.

use crate::{CipherSpec, DataUnitSize, Sector};

/// One stretch of a volume and where and how its ciphertext is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where the stretch starts in the volume.
    pub start: Sector,
    /// How long it is; `None`: to the end of the store.
    pub sectors: Option<u64>,
    /// Where its ciphertext starts in the store.
    pub data_offset: Sector,
    /// Added to the number of every sector before the IV is made (dm-crypt `iv_offset`, LUKS2 `iv_tweak`).
    pub iv_offset: Sector,
    /// Size of a data unit.
    pub unit: DataUnitSize,
    /// Whether the IV counts data units (dm-crypt `iv_large_sectors`) instead of sectors of 512 bytes.
    pub large_iv: bool,
    /// The cipher; `None`: stored as it is (a linear segment, or `--type raw`).
    pub cipher: Option<CipherSpec>,
}

impl Segment {
    /// All of a store, from its first byte to its end, in data units of `unit`; `None`: stored as it is.
    pub const fn whole(cipher: Option<CipherSpec>, unit: DataUnitSize) -> Self {
        let (start, data_offset, iv_offset) = (Sector(0), Sector(0), Sector(0));
        Self { start, sectors: None, data_offset, iv_offset, unit, large_iv: false, cipher }
    }
}
