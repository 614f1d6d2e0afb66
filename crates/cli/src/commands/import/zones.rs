//! Writing an image to zones: each sequential zone in order from its write pointer, or not at all.
//!
//! The image is written to a zone if the write pointer is at its position, as a drive requires. Zeroes behind the last
//! other byte of a zone are not written: the zone keeps its free space, and an image made by `export` restores the
//! write pointers.

use anyhow::Context;
use inlock_engine::BlockingDevice;
use inlock_engine::Errno;
use inlock_engine::zoned::{Zone, ZoneCondition, ZoneKind};
use inlock_engine::{RequestError, zoned};

use super::super::copy::is_zero;
use crate::error::CliError;
use inlock_open::zones;

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
    pub(super) fn new(device: &'a BlockingDevice, start: u64, len: u64, sure: u64) -> anyhow::Result<Option<Self>> {
        let Some(zoned::ZoneLimits { write_granularity, .. }) = device.device().zone_limits() else { return Ok(None) };
        let writer = Self {
            device,
            zones: zones::report(device.device(), start, start + len)?,
            granularity: write_granularity as usize,
            filling: None,
        };
        if !start.is_multiple_of(write_granularity.into()) && writer.zone(start).is_ok_and(is_sequential) {
            return Err(CliError::refused(
                format!("Byte {start} is not a multiple of the write granularity of {write_granularity} bytes."),
                "use a --range that starts at a multiple",
            ));
        }
        // Checked before the first byte is written, as far as the length is known.
        for zone in writer.zones.iter().filter(|zone| zone.start < start + sure) {
            check(zone, start.max(zone.start))?;
        }
        Ok(Some(writer))
    }

    fn zone(&self, at: u64) -> anyhow::Result<&Zone> {
        zones::at(&self.zones, at).with_context(|| format!("no zone contains byte {at}"))
    }

    /// Returns the number of bytes from `at` to the end of its zone.
    pub(super) fn room(&self, at: u64) -> anyhow::Result<u64> {
        self.zone(at).map(|zone| zone.start + zone.len - at)
    }

    /// Writes the first `len` bytes of `buffer`, which are in one zone, at `at`. At the end of the image the last block
    /// is padded with zeroes; the buffer is long enough.
    pub(super) fn write(&mut self, buffer: &mut [u8], len: usize, at: u64) -> anyhow::Result<()> {
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
            return Err(CliError::refused(
                format!(
                    "The image has data up to byte {end}, but the capacity of the zone at byte {} ends at byte \
                     {capacity}; the bytes before {at} were written.",
                    zone.start
                ),
                "use an image for zones of this capacity",
            ));
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
fn check(zone: &Zone, at: u64) -> anyhow::Result<()> {
    if !is_sequential(zone) {
        return Ok(());
    }
    let Zone { start, condition, write_pointer, .. } = *zone;
    match write_pointer {
        Some(pointer) if pointer == at => Ok(()),
        // Only zeroes may follow, which are not written.
        Some(pointer) if at >= start + zone.capacity && pointer >= start + zone.capacity => Ok(()),
        Some(pointer) => Err(CliError::refused(
            format!("Zone {start}: write pointer {pointer}, but data is for {at}."),
            "open the volume with --via ublk and reset its zones (blkzone reset), or use another --range",
        )),
        None => {
            let state = if condition == ZoneCondition::Offline { "offline" } else { "read-only" };
            Err(CliError::refused(format!("Zone {start} is {state}."), "use a --range without it"))
        }
    }
}

fn failed(error: RequestError, at: u64) -> anyhow::Error {
    let full = matches!(error, RequestError::Io(Errno::OVERFLOW | Errno::TOOMANYREFS));
    let error = anyhow::Error::from(error).context(format!("cannot write at {at}"));
    if !full {
        return error;
    }
    error.context(CliError::Refused {
        message: "Too many zones would be active".to_owned(),
        hint: "use an image that leaves fewer zones partly written",
    })
}
