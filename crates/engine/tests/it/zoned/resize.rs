//! The length of a device on a zoned store.

use super::memory::{MemoryZones, Shape};
use super::segment;
use crate::support::key;
use inlock_engine::{Access, ControlError, Device, TargetError};
use std::sync::Arc;

const ZONE: u64 = 1 << 20;
const SHAPE: Shape =
    Shape { zone_len: ZONE, capacity: ZONE, zones: 6, conventional: 0, max_open: 0, max_active: 0, granularity: 4096 };

#[test]
fn device_on_zones_gets_length_of_whole_zones_only() {
    let store = Arc::new(MemoryZones::new(SHAPE));
    let device = Device::new(&[segment(ZONE, 4096)], &key(), store, Access::default()).unwrap();
    assert_eq!(device.len(), 5 * ZONE);
    for wrong in [4096, ZONE - 4096, 3 * ZONE + 4096] {
        let refused = device.set_len(wrong);
        assert!(matches!(refused, Err(ControlError::Target(TargetError::CutsZone { .. }))), "{wrong}: {refused:?}");
        assert_eq!(device.len(), 5 * ZONE);
    }
    assert!(matches!(device.set_len(6 * ZONE), Err(ControlError::Target(TargetError::BeyondStore { .. }))));
    assert_eq!(device.set_len(3 * ZONE).unwrap(), 3 * ZONE);
    assert_eq!(device.zone_limits().unwrap().zones, 3);
    assert_eq!(device.set_len(5 * ZONE).unwrap(), 5 * ZONE);
}
