//! Zones of a ublk device: zone management, reports, and what a process knows after it has recovered the device.
//!
//! The queues of a device share [`Known`]. A write is known to be reissued by its position, an append by its bytes
//! ([`super::appends`]). Each queue logs what it completes, for the next process.

use super::appends::UnackedAppends;
use super::completion_log::{CompletedUpTo, CompletionLog};
use super::driver::IoDescriptor;
use super::driver::operation::{APPEND, CLOSE, FINISH, OPEN, RESET, RESET_ALL, WRITE};
use inlock_engine::ring::Ring;
use inlock_engine::zoned::{Zone, ZoneAction};
use inlock_engine::{BlockingDevice, Device, RequestError};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// `struct blk_zone` of `include/uapi/linux/blkzoned.h`.
const ZONE_LEN: usize = 64;

/// Zones that one report of the device fills.
const ZONES_AT_A_TIME: usize = 64;

/// Zones of the device, as one queue knows them.
pub(super) struct Zoning {
    known: Known,
    /// Ranges of the writes and appends that were completed in this turn.
    written: Vec<Range<u64>>,
    /// Whether there is an append among them.
    has_append: bool,
}

/// Facts that the queues of a device share.
#[derive(Clone)]
pub(super) struct Known {
    zone_len: u64,
    /// Write pointers at the time of the recovery: reissued writes begin below them.
    pointers: Option<Arc<[u64]>>,
    unacked: Option<Arc<UnackedAppends>>,
    log: Option<Arc<CompletionLog>>,
}

/// Failure to make [`Known`].
pub(super) enum ZoningError {
    /// The zones cannot be reported.
    Report(RequestError),
    /// The completion log cannot be created.
    Log(io::Error),
}

impl Known {
    /// Facts about a new device with this cookie. The completion log is created at `log`.
    pub(super) fn new(
        device: &Device,
        zone_len: u64,
        device_cookie: u64,
        log: Option<&Path>,
    ) -> Result<Self, ZoningError> {
        let log = create_log(log, device_cookie, zone_len, CompletedUpTo::written(&zones_of(device)?))?;
        Ok(Self { zone_len, pointers: None, unacked: None, log })
    }

    /// Facts about a device that is recovered; at most `max_len` bytes were in flight.
    pub(super) fn recover(
        device: &Arc<Device>,
        zone_len: u64,
        device_cookie: u64,
        log: Option<&Path>,
        max_len: u64,
    ) -> Result<Self, ZoningError> {
        let zones = zones_of(device)?;
        let pointers: Vec<u64> = zones.iter().map(|zone| zone.write_pointer.unwrap_or(0)).collect();
        let logged = log.and_then(|path| CompletionLog::read(path, device_cookie, zones.len()));
        let completed = logged.unwrap_or_else(|| CompletedUpTo::written(&zones));
        let blocking = BlockingDevice::with_calls(Arc::clone(device), 1);
        let unacked = UnackedAppends::find(&blocking, &zones, &completed, max_len).map_err(ZoningError::Report)?;
        let log = create_log(log, device_cookie, zone_len, completed)?;
        Ok(Self { zone_len, pointers: Some(pointers.into()), unacked: Some(Arc::new(unacked)), log })
    }
}

fn zones_of(device: &Device) -> Result<Vec<Zone>, ZoningError> {
    let mut all = Vec::new();
    let mut zones = [Zone::UNKNOWN; ZONES_AT_A_TIME];
    let mut at = 0;
    while at < device.len() {
        let count = device.report_zones(at, &mut zones).map_err(ZoningError::Report)?;
        let Some(last) = zones[..count].last() else { break };
        at = last.start + last.len;
        all.extend_from_slice(&zones[..count]);
    }
    Ok(all)
}

fn create_log(
    path: Option<&Path>,
    device_cookie: u64,
    zone_len: u64,
    completed: CompletedUpTo,
) -> Result<Option<Arc<CompletionLog>>, ZoningError> {
    let log = path.map(|path| CompletionLog::create(path, device_cookie, zone_len, completed)).transpose();
    Ok(log.map_err(ZoningError::Log)?.map(Arc::new))
}

impl Zoning {
    /// Zones for a queue with `depth` tags.
    pub(super) fn new(known: Known, depth: u16) -> Self {
        Self { known, written: Vec::with_capacity(depth.into()), has_append: false }
    }

    /// Returns offset and length of the range of `action` on a device of `len` bytes, for which the driver names the
    /// zone at `offset`.
    pub(super) fn range(&self, action: ZoneAction, offset: u64, len: u64) -> (u64, u64) {
        if action == ZoneAction::ResetAll { (0, len) } else { (offset, self.known.zone_len) }
    }

    /// Whether a write at `offset` may have been carried out before. The driver does not mark the requests that it
    /// reissues.
    pub(super) fn is_reissued(&self, offset: u64) -> bool {
        let Some(pointers) = &self.known.pointers else { return false };
        let zone = usize::try_from(offset / self.known.zone_len).ok();
        zone.and_then(|zone| pointers.get(zone)).is_some_and(|pointer| offset < *pointer)
    }

    /// Returns the position at which an append of these bytes to the zone that starts at `zone` was carried out before
    /// without a completion, once.
    pub(super) fn take_unacked(&self, zone: u64, bytes: &[u8]) -> Option<u64> {
        self.known.unacked.as_ref()?.take(zone, bytes)
    }

    /// Takes note of a request that is about to be completed; an append was written at `position`.
    pub(super) fn note(&mut self, request: &IoDescriptor, position: u64, device: &Device) {
        let IoDescriptor { operation, offset, len, .. } = *request;
        let (offset, len) = match operation {
            WRITE => return self.written.push(offset..offset + len),
            APPEND => {
                self.has_append = true;
                return self.written.push(position..position + len);
            }
            RESET | FINISH => (offset, self.known.zone_len),
            RESET_ALL => (0, device.len()),
            _ => return,
        };
        if let Some(unacked) = &self.known.unacked {
            unacked.forget(offset, len);
        }
        if let Some(log) = &self.known.log {
            let end = if operation == FINISH { len } else { 0 };
            log.set_ends(offset, len, |start| start + end);
        }
    }

    /// Logs what this turn has noted; the completions are queued in `ring`.
    pub(super) fn end_turn(&mut self, ring: &mut Ring) {
        if std::mem::take(&mut self.has_append) {
            // Completed first: an append that is logged and not completed when the process dies would be carried out
            // twice.
            ring.submit_now();
        }
        let written = self.written.drain(..);
        if let Some(log) = self.known.log.as_ref().filter(|_| written.len() > 0) {
            log.add_writes(written);
        }
    }
}

/// Returns the zone management action of one of the driver's operations.
pub(super) fn action(operation: u8) -> Option<ZoneAction> {
    Some(match operation {
        OPEN => ZoneAction::Open,
        CLOSE => ZoneAction::Close,
        FINISH => ZoneAction::Finish,
        RESET => ZoneAction::Reset,
        RESET_ALL => ZoneAction::ResetAll,
        _ => return None,
    })
}

/// Fills `into` with descriptors of zones from the one that contains byte `offset`: `count` of them, or as many as
/// there are and `into` has room for. Returns the bytes of all of them. Blocks.
pub(super) fn report<'a>(
    device: &Device,
    offset: u64,
    count: u64,
    into: &'a mut [u8],
) -> Result<&'a [u8], RequestError> {
    let wanted = usize::try_from(count).unwrap_or(usize::MAX).min(into.len() / ZONE_LEN);
    let bytes = &mut into[..wanted * ZONE_LEN];
    let mut zones = [Zone::UNKNOWN; ZONES_AT_A_TIME];
    let (mut at, mut done) = (offset, 0);
    while done < wanted && at < device.len() {
        let most = zones.len().min(wanted - done);
        let reported = device.report_zones(at, &mut zones[..most])?;
        let Some(last) = zones[..reported].last() else { break };
        at = last.start + last.len;
        for zone in &zones[..reported] {
            bytes[done * ZONE_LEN..][..ZONE_LEN].copy_from_slice(&encode(zone));
            done += 1;
        }
    }
    // A zone without a length ends the report.
    bytes[done * ZONE_LEN..].fill(0);
    Ok(bytes)
}

/// Returns a zone as the kernel describes it.
fn encode(zone: &Zone) -> [u8; ZONE_LEN] {
    let mut bytes = [0; ZONE_LEN];
    let pointer = zone.write_pointer.map_or(u64::MAX, |pointer| pointer / 512);
    for (at, value) in [(0, zone.start / 512), (8, zone.len / 512), (16, pointer), (32, zone.capacity / 512)] {
        bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
    bytes[24..26].copy_from_slice(&[zone.kind.number(), zone.condition.number()]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlock_engine::zoned::{ZoneCondition, ZoneKind};

    #[test]
    fn zone_descriptor_is_in_sectors() {
        let mut zone = Zone::new(8 << 20, 4 << 20);
        zone.capacity = 3 << 20;
        zone.write_pointer = Some((8 << 20) + 4096);
        zone.kind = ZoneKind::SequentialRequired;
        zone.condition = ZoneCondition::Closed;
        let bytes = encode(&zone);
        let number = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!([0, 8, 16, 32].map(number), [16384, 8192, 16392, 6144]);
        assert_eq!((bytes[24], bytes[25]), (2, 4));
        zone.write_pointer = None;
        zone.condition = ZoneCondition::Offline;
        let bytes = encode(&zone);
        assert_eq!((&bytes[16..24], bytes[25]), (&[0xff; 8][..], 15));
    }

    #[test]
    fn write_below_pointer_may_be_reissued() {
        let pointers = Some([0, 4096 + 512, 8192].into());
        let known = Known { zone_len: 4096, pointers, unacked: None, log: None };
        let zoning = Zoning::new(known.clone(), 1);
        let found = [0, 4096, 4608, 8191, 8192, 12288].map(|offset| zoning.is_reissued(offset));
        assert_eq!(found, [false, true, false, false, false, false]);
        assert!(!Zoning::new(Known { pointers: None, ..known }, 1).is_reissued(4096));
    }
}
