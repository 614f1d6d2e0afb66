//! Zoned storage: the order of writes, appends, orders to zones, against a model and against trouble.

mod again;
mod appends;
mod memory;
mod model;
mod queue;
mod rig;
mod team;
mod trouble;

use inlock_cipher::{CipherSpec, DataUnitSize, Sector, Segment};

/// Zones in front of the data.
const DATA_ZONES: u32 = 1;

/// All zones behind the first, in units of so many bytes.
fn segment(zone_len: u64, unit: u32) -> Segment {
    Segment {
        start: Sector(0),
        sectors: None,
        data_offset: Sector(u64::from(DATA_ZONES) * zone_len / 512),
        iv_offset: Sector(8),
        unit: DataUnitSize::new(unit).expect("tests use valid units"),
        large_iv: false,
        cipher: Some(CipherSpec::AES_XTS_PLAIN64),
    }
}
