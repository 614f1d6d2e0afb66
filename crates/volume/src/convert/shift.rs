//! Moving all keyslot areas of a LUKS1 header by one distance.
//!
//! An area that overlaps its new place is copied to the area of a free keyslot first, which then holds the key while
//! the own area is written. So the key opens at any time, through one of both. Without a free keyslot the area is moved
//! in place, and a power cut loses that keyslot; the others are moved before or after it.

use super::ConvertError;
use crate::checked_device::CheckedDevice;
use crate::header_device::HeaderDevice;
use crate::luks1::{Luks1, RawHeader, disable};
use std::ops::Range;
use zeroize::Zeroizing;

/// Direction and distance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shift {
    pub(super) distance: u64,
    pub(super) is_up: bool,
}

impl Shift {
    fn target(self, start: u64) -> u64 {
        if self.is_up { start.saturating_add(self.distance) } else { start.saturating_sub(self.distance) }
    }
}

/// Moves the areas of all keyslots of which `is_done` does not say that they are moved.
pub(super) fn shift(
    luks1: &mut Luks1,
    device: &CheckedDevice<'_>,
    shift: Shift,
    is_done: impl Fn(u32, u64) -> bool,
) -> Result<(), ConvertError> {
    let mut order: Vec<(u64, u32)> = (0..8).map(|number| (luks1.area(number).start, number)).collect();
    order.sort_unstable();
    if shift.is_up {
        // Each area moves to where the one above it was.
        order.reverse();
    }
    for (start, number) in order {
        if is_done(number, start) {
            continue;
        }
        let target = shift.target(start);
        if !luks1.active_keyslots().contains(&number) {
            change(luks1, device, |raw| set_offset(raw, number, target))?;
            continue;
        }
        move_active(luks1, device, number, target)?;
    }
    Ok(())
}

/// Returns the free keyslot that holds keys while they are moved.
pub(super) fn spare(luks1: &Luks1) -> Option<u32> {
    let active = luks1.active_keyslots();
    (0..8).find(|number| !active.contains(number))
}

fn move_active(luks1: &mut Luks1, device: &CheckedDevice<'_>, number: u32, target: u64) -> Result<(), ConvertError> {
    let own = luks1.area(number);
    let len = own.end - own.start;
    let overlaps = own.start < target + len && target < own.end;
    let Some(spare) = spare(luks1).filter(|_| overlaps) else {
        copy(device, &own, target)?;
        return change(luks1, device, |raw| set_offset(raw, number, target));
    };
    let aside = luks1.area(spare);
    copy(device, &own, aside.start)?;
    change(luks1, device, |raw| take_over(raw, number, spare))?;
    change(luks1, device, |raw| disable_flag(raw, number))?;
    copy(device, &aside, target)?;
    change(luks1, device, |raw| set_offset(raw, number, target))?;
    change(luks1, device, |raw| take_over(raw, spare, number))?;
    Ok(luks1.change_header(device, false, |raw| disable(&mut raw.keyslots[spare as usize]))?)
}

/// Copies key material, durably.
fn copy(device: &CheckedDevice<'_>, from: &Range<u64>, to: u64) -> Result<(), ConvertError> {
    let mut material = Zeroizing::new(vec![0; (from.end - from.start) as usize]);
    device.read_exact_at(&mut material, from.start)?;
    device.write_all_at(&material, to)?;
    Ok(device.sync()?)
}

fn change(
    luks1: &mut Luks1,
    device: &CheckedDevice<'_>,
    change: impl FnOnce(&mut RawHeader),
) -> Result<(), ConvertError> {
    Ok(luks1.change_header(device, true, change)?)
}

fn set_offset(raw: &mut RawHeader, number: u32, start: u64) {
    raw.keyslots[number as usize].offset = ((start / 512) as u32).into();
}

/// Enables keyslot `to` with iterations and salt of `from`, which is enabled.
fn take_over(raw: &mut RawHeader, from: u32, to: u32) {
    let source = raw.keyslots[from as usize];
    let target = &mut raw.keyslots[to as usize];
    (target.active, target.iterations, target.salt) = (source.active, source.iterations, source.salt);
}

/// Disables a keyslot whose salt is needed to enable it again.
fn disable_flag(raw: &mut RawHeader, number: u32) {
    raw.keyslots[number as usize].active = crate::luks1::KEYSLOT_DISABLED.into();
}
