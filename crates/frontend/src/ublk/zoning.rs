//! What concerns the zones of a ublk device: orders to them, their report, and what is known again after a process has died.
//!
//! The queues of a device share what is known when they begin. Which writes come again their place says, which appends
//! [`super::appends`]. Each queue takes note of what it answers, for the next process.

use super::answered::{Answered, Reach};
use super::appends::Landed;
use super::driver::Described;
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

/// Zones that the device is asked for at a time.
const ZONES_AT_A_TIME: usize = 64;

/// What a queue knows of its device's zones.
pub(super) struct Zoning {
    known: Known,
    /// Where this turn's writes and appends have got, and whether there was an append.
    wrote: Vec<Range<u64>>,
    appended: bool,
}

/// What all queues of a device know.
#[derive(Clone)]
pub(super) struct Known {
    zone_len: u64,
    /// Where the write pointers were when the device was taken back: writes that come again begin below.
    again: Option<Arc<[u64]>>,
    /// The same of appends.
    landed: Option<Arc<Landed>>,
    answered: Option<Arc<Answered>>,
}

/// What [`Known`] needs cannot be found out or kept.
pub(super) enum ZoningError {
    Report(RequestError),
    Keep(io::Error),
}

impl Known {
    /// Of a new device with this mark. How far it has come is kept in the file `kept`.
    pub(super) fn new(device: &Device, zone_len: u64, mark: u64, kept: Option<&Path>) -> Result<Self, ZoningError> {
        let answered = keep(kept, mark, zone_len, Reach::whole(&zones_of(device)?))?;
        Ok(Self { zone_len, again: None, landed: None, answered })
    }

    /// Of one that is taken back; `most` bytes were under way at most.
    pub(super) fn taken_back(
        device: &Arc<Device>,
        zone_len: u64,
        mark: u64,
        kept: Option<&Path>,
        most: u64,
    ) -> Result<Self, ZoningError> {
        let zones = zones_of(device)?;
        let pointers: Vec<u64> = zones.iter().map(|zone| zone.write_pointer.unwrap_or(0)).collect();
        let left = kept.and_then(|path| Answered::left(path, mark, zones.len()));
        let reach = left.unwrap_or_else(|| Reach::whole(&zones));
        let landed = Landed::find(&BlockingDevice::with_calls(Arc::clone(device), 1), &zones, &reach, most);
        let landed = Some(Arc::new(landed.map_err(ZoningError::Report)?));
        let answered = keep(kept, mark, zone_len, reach)?;
        Ok(Self { zone_len, again: Some(pointers.into()), landed, answered })
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

fn keep(path: Option<&Path>, mark: u64, zone_len: u64, reach: Reach) -> Result<Option<Arc<Answered>>, ZoningError> {
    let answered = path.map(|path| Answered::create(path, mark, zone_len, reach)).transpose();
    Ok(answered.map_err(ZoningError::Keep)?.map(Arc::new))
}

impl Zoning {
    /// Of a queue with `depth` places.
    pub(super) fn new(known: Known, depth: u16) -> Self {
        Self { known, wrote: Vec::with_capacity(depth.into()), appended: false }
    }

    /// The range that `action` means, of a device of `len` bytes, where the driver names the zone at `offset`.
    pub(super) fn range(&self, action: ZoneAction, offset: u64, len: u64) -> (u64, u64) {
        if action == ZoneAction::ResetAll { (0, len) } else { (offset, self.known.zone_len) }
    }

    /// Whether a write at `offset` may have been carried out before. Which request comes again the driver does not say.
    pub(super) fn comes_again(&self, offset: u64) -> bool {
        let Some(pointers) = &self.known.again else { return false };
        let zone = usize::try_from(offset / self.known.zone_len).ok();
        zone.and_then(|zone| pointers.get(zone)).is_some_and(|pointer| offset < *pointer)
    }

    /// Where an append of these bytes to the zone that starts at `zone` has landed before, unanswered.
    pub(super) fn has_landed(&self, zone: u64, bytes: &[u8]) -> Option<u64> {
        self.known.landed.as_ref()?.take(zone, bytes)
    }

    /// Takes note of what the answer to a request promises, before it is given; an append has landed at `landed`.
    pub(super) fn note(&mut self, request: &Described, landed: u64, device: &Device) {
        let Described { operation, offset, len, .. } = *request;
        let (offset, len) = match operation {
            WRITE => return self.wrote.push(offset..offset + len),
            APPEND => {
                self.appended = true;
                return self.wrote.push(landed..landed + len);
            }
            RESET | FINISH => (offset, self.known.zone_len),
            RESET_ALL => (0, device.len()),
            _ => return,
        };
        if let Some(landed) = &self.known.landed {
            landed.forget(offset, len);
        }
        if let Some(answered) = &self.known.answered {
            let end = if operation == FINISH { len } else { 0 };
            answered.changed(offset, len, |start| start + end);
        }
    }

    /// Keeps what this turn has noted; its answers are in `ring`.
    pub(super) fn end_turn(&mut self, ring: &mut Ring) {
        if std::mem::take(&mut self.appended) {
            // Answered first, or an append would be carried out twice that is noted here and not answered when the process
            // dies.
            ring.submit_now();
        }
        let wrote = self.wrote.drain(..);
        if let Some(answered) = self.known.answered.as_ref().filter(|_| wrote.len() > 0) {
            answered.wrote(wrote);
        }
    }
}

/// The order that an operation of the driver's is to zones.
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

/// Describes the zones from the one that holds byte `offset` on: `count` of them, or as many as there are and `into` has room
/// for. The bytes that were described in.
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
    // One without a length is the end.
    bytes[done * ZONE_LEN..].fill(0);
    Ok(bytes)
}

/// A zone as the kernel describes it.
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
    fn zones_are_described_in_sectors() {
        let zone = Zone {
            start: 8 << 20,
            len: 4 << 20,
            capacity: 3 << 20,
            write_pointer: Some((8 << 20) + 4096),
            kind: ZoneKind::SequentialRequired,
            condition: ZoneCondition::Closed,
        };
        let bytes = encode(&zone);
        let number = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!([0, 8, 16, 32].map(number), [16384, 8192, 16392, 6144]);
        assert_eq!((bytes[24], bytes[25]), (2, 4));
        let bytes = encode(&Zone { write_pointer: None, condition: ZoneCondition::Offline, ..zone });
        assert_eq!((&bytes[16..24], bytes[25]), (&[0xff; 8][..], 15));
    }

    #[test]
    fn only_writes_below_the_pointers_may_have_come_before() {
        let again = Some([0, 4096 + 512, 8192].into());
        let known = Known { zone_len: 4096, again, landed: None, answered: None };
        let zoning = Zoning::new(known.clone(), 1);
        let found = [0, 4096, 4608, 8191, 8192, 12288].map(|offset| zoning.comes_again(offset));
        assert_eq!(found, [false, true, false, false, false, false]);
        assert!(!Zoning::new(Known { again: None, ..known }, 1).comes_again(4096));
    }
}
