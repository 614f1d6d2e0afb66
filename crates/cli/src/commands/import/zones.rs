//! Writing an image onto zones: every sequential zone in order from its write pointer, or not at all.
//!
//! A zone takes the image's bytes where its write pointer is at their place; otherwise nothing is written to it, as a drive
//! would have it. Zeroes behind a zone's last other byte are not written: the zone keeps its room, and an image that
//! `export` made gives every zone its write pointer back.

use anyhow::Context;
use inlock_engine::blocking::BlockingDevice;
use inlock_engine::zoned::{Zone, ZoneCondition, ZoneKind};
use inlock_engine::{RequestError, zoned};
use rustix::io::Errno;

use crate::copy::is_zero;
use crate::exit::Problem;
use crate::zones;

/// Takes the bytes of an image in order, as far as a zone goes at a time.
pub(super) struct ZoneWriter<'a> {
    device: &'a BlockingDevice,
    zones: Vec<Zone>,
    granularity: usize,
    /// The start of the zone that is being filled, and up to where it was written.
    filling: Option<(u64, u64)>,
}

impl<'a> ZoneWriter<'a> {
    /// For the `len` bytes from `start` on, of which `sure` are known to come. `None`: the device has no zones.
    pub(super) fn new(device: &'a BlockingDevice, start: u64, len: u64, sure: u64) -> anyhow::Result<Option<Self>> {
        let Some(zoned::ZoneLimits { write_granularity, .. }) = device.device().zone_limits() else { return Ok(None) };
        let writer = Self {
            device,
            zones: zones::report(device.device(), start, start + len)?,
            granularity: write_granularity as usize,
            filling: None,
        };
        if !start.is_multiple_of(write_granularity.into()) && writer.zone(start).is_ok_and(is_sequential) {
            return Err(Problem::refused(
                format!("Byte {start} is not a multiple of the {write_granularity} bytes that zones are written by."),
                "--range begins at such a one",
            ));
        }
        // As far as one can know, before the first byte is written.
        for zone in writer.zones.iter().filter(|zone| zone.start < start + sure) {
            check(zone, start.max(zone.start))?;
        }
        Ok(Some(writer))
    }

    fn zone(&self, at: u64) -> anyhow::Result<&Zone> {
        zones::at(&self.zones, at).with_context(|| format!("no zone holds byte {at}"))
    }

    /// How many bytes from `at` on lie in one zone.
    pub(super) fn room(&self, at: u64) -> anyhow::Result<u64> {
        self.zone(at).map(|zone| zone.start + zone.len - at)
    }

    /// Writes `bytes`, which lie in one zone, at `at`. Where they are no whole number of blocks, the image ends, and there
    /// is room for the rest of the last block, which becomes zeroes.
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
            return Err(Problem::refused(
                format!(
                    "The image has bytes other than zero up to byte {end}, and the zone at byte {} can be written up to \
                     byte {capacity}; the bytes before {at} were written.",
                    zone.start
                ),
                "it was made for zones of another capacity",
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

/// Refuses a zone that does not take bytes at `at` as its next ones.
fn check(zone: &Zone, at: u64) -> anyhow::Result<()> {
    if !is_sequential(zone) {
        return Ok(());
    }
    let Zone { start, condition, write_pointer, .. } = *zone;
    match write_pointer {
        Some(pointer) if pointer == at => Ok(()),
        // Nothing but zeroes may come, which are not written.
        Some(pointer) if at >= start + zone.capacity && pointer >= start + zone.capacity => Ok(()),
        Some(pointer) => Err(Problem::refused(
            format!(
                "The zone at byte {start} of the volume is written up to byte {pointer}, and the image would go on at byte {at}."
            ),
            "open the volume with --via ublk and reset its zones (blkzone reset), or name another --range",
        )),
        None => {
            let state = if condition == ZoneCondition::Offline { "offline" } else { "read-only" };
            Err(Problem::refused(
                format!("The zone at byte {start} of the volume is {state}."),
                "--range leaves it out",
            ))
        }
    }
}

fn failed(error: RequestError, at: u64) -> anyhow::Error {
    let full = matches!(error, RequestError::Io(Errno::OVERFLOW | Errno::TOOMANYREFS));
    let error = anyhow::Error::from(error).context(format!("cannot write at {at}"));
    if !full {
        return error;
    }
    error.context(Problem::Refused {
        message: "Too many zones would be in use".to_owned(),
        hint: "the image leaves more zones half full than the drive can have",
    })
}
