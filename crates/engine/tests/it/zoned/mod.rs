//! Zoned storage: the order of writes, appends, orders to zones, against a model and against trouble.

mod again;
mod appends;
mod memory;
mod model;
mod queue;
mod resize;
mod rig;
mod team;
mod trouble;

use crate::support::with;
use inlock_cipher::{CipherSpec, DataUnitSize, Sector, Segment};

/// Zones in front of the data.
const DATA_ZONES: u32 = 1;

/// All zones behind the first, in units of so many bytes.
fn segment(zone_len: u64, unit: u32) -> Segment {
    with!(
        Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::new(unit).expect("tests use valid units"));
        data_offset: Sector(u64::from(DATA_ZONES) * zone_len / 512),
        iv_offset: Sector(8),
    )
}
