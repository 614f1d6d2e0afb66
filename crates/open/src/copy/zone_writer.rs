//! Writing an image to zones: each sequential zone in order from its write pointer, or not at all.
//!
//! The image is written to a zone if the write pointer is at its position, as a drive requires. Zeroes behind the last
//! other byte of a zone are not written: the zone keeps its free space, and an image made by `export` restores the
//! write pointers.

use inlock_engine::BlockingDevice;
use inlock_engine::Errno;
use inlock_engine::zoned::{Zone, ZoneCondition, ZoneKind};
use inlock_engine::{RequestError, zoned};

use super::is_zero;
use crate::error::{Error, ErrorKind, Result};
use crate::zones;

/// Writes an image in order, at most one zone at a time.
pub(super) struct ZoneWriter<'a> {
    device: &'a BlockingDevice,
    zones: Vec<Zone>,
    granularity: usize,
    /// Start of the current zone, and the end of the data in it.
    filling: Option<(u64, u64)>,
}

impl<'a> ZoneWriter<'a> {
    /// Checks the zones of the `len` bytes from `start`, of which at least `sure` will be written. `None`: the device
    /// has no zones.
    pub(super) fn new(device: &'a BlockingDevice, start: u64, len: u64, sure: u64) -> Result<Option<Self>> {
        let Some(zoned::ZoneLimits { write_granularity, .. }) = device.device().zone_limits() else { return Ok(None) };
        let writer = Self {
            device,
            zones: zones::report(device.device(), start, start + len)?,
            granularity: write_granularity as usize,
            filling: None,
        };
        if !start.is_multiple_of(write_granularity.into()) && writer.zone(start).is_ok_and(is_sequential) {
            let text = format!("Byte {start} is not a multiple of the write granularity of {write_granularity} bytes.");
            return Err(Error::new(ErrorKind::ZoneGranularity, text));
        }
        // Checked before the first byte is written, as far as the length is known.
        for zone in writer.zones.iter().filter(|zone| zone.start < start + sure) {
            check(zone, start.max(zone.start))?;
        }
        Ok(Some(writer))
    }

    fn zone(&self, at: u64) -> Result<&Zone> {
        let none = || Error::new(ErrorKind::Failed, format!("no zone contains byte {at}"));
        zones::at(&self.zones, at).ok_or_else(none)
    }

    /// Returns the number of bytes from `at` to the end of its zone.
    pub(super) fn room(&self, at: u64) -> Result<u64> {
        self.zone(at).map(|zone| zone.start + zone.len - at)
    }

    /// Writes the first `len` bytes of `buffer`, which are in one zone, at `at`. At the end of the image the last block
    /// is padded with zeroes; the buffer is long enough.
    pub(super) fn write(&mut self, buffer: &mut [u8], len: usize, at: u64) -> Result<()> {
        let zone = *self.zone(at)?;
        if !is_sequential(&zone) {
            return self.device.write_at(&buffer[..len], at).map_err(|error| failed(error, at));
        }
        let written = match self.filling {
            Some((start, written)) if start == zone.start => written,
            _ => {
                check(&zone, at)?;
                at
            }
        };
        self.filling = Some((zone.start, written));
        let blocks = len.next_multiple_of(self.granularity);
        buffer[len..blocks].fill(0);
        let full = |block: &[u8]| !is_zero(block);
        let Some(last) = buffer[..blocks].chunks(self.granularity).rposition(full) else { return Ok(()) };
        let bytes = &buffer[..(last + 1) * self.granularity];
        let end = at + bytes.len() as u64;
        let capacity = zone.start + zone.capacity;
        if end > capacity {
            let text = format!(
                "The image has data up to byte {end}, but the capacity of the zone at byte {} ends at byte {capacity}; \
                 the bytes before {at} were written.",
                zone.start
            );
            return Err(Error::new(ErrorKind::ZoneCapacity, text));
        }
        if written < at {
            self.device.write_zeroes(written, at - written).map_err(|error| failed(error, written))?;
        }
        self.device.write_at(bytes, at).map_err(|error| failed(error, at))?;
        self.filling = Some((zone.start, end));
        Ok(())
    }
}

fn is_sequential(zone: &Zone) -> bool {
    zone.kind == ZoneKind::SequentialRequired
}

/// Refuses a zone whose write pointer is not at `at`.
fn check(zone: &Zone, at: u64) -> Result<()> {
    if !is_sequential(zone) {
        return Ok(());
    }
    let Zone { start, condition, write_pointer, .. } = *zone;
    match write_pointer {
        Some(pointer) if pointer == at => Ok(()),
        // Only zeroes may follow, which are not written.
        Some(pointer) if at >= start + zone.capacity && pointer >= start + zone.capacity => Ok(()),
        Some(pointer) => {
            let text = format!("Zone {start}: write pointer {pointer}, but data is for {at}.");
            Err(Error::new(ErrorKind::ZonePointer, text))
        }
        None => {
            let state = if condition == ZoneCondition::Offline { "offline" } else { "read-only" };
            Err(Error::new(ErrorKind::ZoneState, format!("Zone {start} is {state}.")))
        }
    }
}

fn failed(error: RequestError, at: u64) -> Error {
    let full = matches!(error, RequestError::Io(Errno::OVERFLOW | Errno::TOOMANYREFS));
    let error = Error::with_source(ErrorKind::Failed, format!("cannot write at {at}"), error);
    if !full {
        return error;
    }
    Error::with_source(ErrorKind::TooManyZones, "Too many zones would be active", error)
}
