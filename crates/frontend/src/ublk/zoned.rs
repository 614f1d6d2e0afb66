//! One queue of a ublk device with zones, as front end of a worker.
//!
//! The driver copies nothing here. A write's bytes are read from the device's control side when the request comes, a read's
//! are written there before it is answered: calls of this thread that are no more than the copy. What the block layer asks
//! lies within one zone, so within one segment, and is whole data units. Where the bytes of an append have landed goes with
//! the answer.

use super::appends::{Answered, Landed, written};
use super::driver::operation::{APPEND, CLOSE, FINISH, FLUSH, OPEN, READ, REPORT, RESET, RESET_ALL, WRITE};
use super::driver::{Described, Descriptions, Info};
use super::queue::{bytes_done, number_of, resident};
use inlock_engine::request::Operation;
use inlock_engine::ring::{Completion, FileId, Operation as RingOperation, Token, UblkBytes, UblkCommand, Wait};
use inlock_engine::worker::{Context, Finished, Flow, FrontEnd, Request};
use inlock_engine::zoned::{Zone, ZoneAction};
use inlock_engine::{BlockingDevice, Buffer, Device, RequestError};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// `struct blk_zone` of `include/uapi/linux/blkzoned.h`.
const ZONE_LEN: usize = 64;

/// Zones that the device is asked for at a time.
const ZONES_AT_A_TIME: usize = 64;

/// The front end.
pub(super) struct ZonedQueue {
    file: FileId,
    /// The control side again.
    control: OwnedFd,
    number: u16,
    descriptions: Descriptions,
    places: Vec<Place>,
    zoning: Zoning,
    longest: u32,
    /// Up to where this turn's writes and appends have got, and whether there was an append.
    ends: Vec<u64>,
    appended: bool,
    /// Places that wait for requests have been handed to the driver.
    begun: bool,
    /// Places that the driver will not use any more.
    ended: usize,
}

/// What the queues of a device know of its zones.
#[derive(Clone)]
pub(super) struct Zoning {
    zone_len: u64,
    /// Where the write pointers were when the device was taken back: writes that come again begin below.
    again: Option<Arc<[u64]>>,
    /// The same of appends.
    landed: Option<Arc<Landed>>,
    answered: Option<Arc<Answered>>,
}

/// What [`Zoning`] needs cannot be found out or kept.
pub(super) enum ZoningError {
    Report(RequestError),
    Keep(io::Error),
}

struct Place {
    /// `None`: with the worker.
    buffer: Option<Buffer>,
    request: Described,
    /// Where an append has landed, in sectors.
    landed: u64,
}

impl Zoning {
    /// Of a new device with this mark. How far it has come is kept in the file `kept`.
    pub(super) fn new(device: &Device, zone_len: u64, mark: u64, kept: Option<&Path>) -> Result<Self, ZoningError> {
        let ends: Vec<u64> = zones_of(device)?.iter().map(written).collect();
        let answered = keep(kept, mark, zone_len, &ends)?;
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
        let ends = left.unwrap_or_else(|| zones.iter().map(written).collect());
        let landed = Landed::find(&BlockingDevice::new(Arc::clone(device)), &zones, &ends, most);
        let landed = Some(Arc::new(landed.map_err(ZoningError::Report)?));
        let answered = keep(kept, mark, zone_len, &ends)?;
        Ok(Self { zone_len, again: Some(pointers.into()), landed, answered })
    }

    /// Whether a write at `offset` may have been carried out before. Which request comes again the driver does not say.
    fn comes_again(&self, offset: u64) -> bool {
        let Some(pointers) = &self.again else { return false };
        let zone = usize::try_from(offset / self.zone_len).ok();
        zone.and_then(|zone| pointers.get(zone)).is_some_and(|pointer| offset < *pointer)
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

fn keep(path: Option<&Path>, mark: u64, zone_len: u64, ends: &[u64]) -> Result<Option<Arc<Answered>>, ZoningError> {
    let answered = path.map(|path| Answered::create(path, mark, zone_len, ends)).transpose();
    Ok(answered.map_err(ZoningError::Keep)?.map(Arc::new))
}

impl ZonedQueue {
    /// The queue `number` of the device that `info` is about, with its descriptions, and its control side twice.
    pub(super) fn new(
        file: FileId,
        control: OwnedFd,
        number: u16,
        descriptions: Descriptions,
        info: &Info,
        zoning: Zoning,
    ) -> Self {
        let request = Described { operation: FLUSH, durable: false, offset: 0, len: 0 };
        let place = |_| Place { buffer: Some(resident(info.longest as usize)), request, landed: 0 };
        let places = (0..info.depth).map(place).collect();
        Self {
            file,
            control,
            number,
            descriptions,
            places,
            zoning,
            longest: info.longest,
            ends: Vec::with_capacity(info.depth.into()),
            appended: false,
            begun: false,
            ended: 0,
        }
    }

    /// Tells the driver how the last request in a place ended, and lets it put another there.
    fn answer(&mut self, cx: &mut Context<'_>, tag: u16, result: Option<Result<u64, RequestError>>) {
        let place = &self.places[usize::from(tag)];
        let position = if result.is_some() && place.request.operation == APPEND { place.landed } else { 0 };
        let answer = result.map(|result| result.map_or_else(|error| -number_of(error), bytes_done));
        let command = UblkCommand { queue: self.number, tag, answer, bytes: UblkBytes::Fetched(position) };
        cx.ring.submit(self.file, RingOperation::Ublk(command), Token(tag.into()));
    }

    /// Begins the request in a place. An error is its answer.
    fn begin(&mut self, cx: &mut Context<'_>, tag: u16) -> Result<(), RequestError> {
        let request = self.places[usize::from(tag)].request;
        let Described { operation, durable, offset, len } = request;
        let action = |action, offset, len| (Operation::Zones(action), offset, len);
        let (operation, offset, len) = match operation {
            READ => return self.move_data(cx, tag, Operation::Read),
            WRITE if self.zoning.comes_again(offset) => {
                return self.move_data(cx, tag, Operation::WriteAgain { durable });
            }
            WRITE => return self.move_data(cx, tag, Operation::Write { durable }),
            APPEND => return self.move_data(cx, tag, Operation::Append { durable }),
            REPORT => {
                self.report(cx, tag, len / 512)?;
                self.answer(cx, tag, Some(Ok(self.longest.into())));
                return Ok(());
            }
            FLUSH => (Operation::Flush, offset, 0),
            OPEN => action(ZoneAction::Open, offset, self.zoning.zone_len),
            CLOSE => action(ZoneAction::Close, offset, self.zoning.zone_len),
            FINISH => action(ZoneAction::Finish, offset, self.zoning.zone_len),
            RESET => action(ZoneAction::Reset, offset, self.zoning.zone_len),
            RESET_ALL => action(ZoneAction::ResetAll, 0, cx.layout.len()),
            _ => return Err(RequestError::Unsupported),
        };
        cx.requests.push_back(Request { id: tag.into(), operation, offset, len, data: None, spare: None });
        Ok(())
    }

    fn move_data(&mut self, cx: &mut Context<'_>, tag: u16, operation: Operation) -> Result<(), RequestError> {
        let place = &mut self.places[usize::from(tag)];
        let Described { offset, len, .. } = place.request;
        let room = place.buffer.as_ref().map_or(0, Buffer::capacity);
        let extent = cx.layout.locate(offset, len, room)?;
        if extent.len as u64 != len || extent.is_partial() {
            return Err(RequestError::Unsupported);
        }
        let mut buffer = place.buffer.take().expect("a place has its buffer when a request comes");
        if operation != Operation::Read {
            let into = &mut buffer.data_mut()[extent.requested()];
            if let Err(error) = fetch(&self.control, self.number, tag, into) {
                place.buffer = Some(buffer);
                return Err(error.into());
            }
            let landed = self.zoning.landed.as_ref().filter(|_| matches!(operation, Operation::Append { .. }));
            if let Some(at) = landed.and_then(|landed| landed.take(offset, into)) {
                place.buffer = Some(buffer);
                place.landed = at / 512;
                self.note(cx, tag);
                self.answer(cx, tag, Some(Ok(len)));
                return Ok(());
            }
        }
        let data = Some((extent, buffer));
        cx.requests.push_back(Request { id: tag.into(), operation, offset, len, data, spare: None });
        Ok(())
    }

    /// Takes note of what the answer to a request promises, before it is given.
    fn note(&mut self, cx: &Context<'_>, tag: u16) {
        let Place { request: Described { operation, offset, len, .. }, landed, .. } = self.places[usize::from(tag)];
        let (offset, len) = match operation {
            WRITE | APPEND => {
                self.ends.push(landed * 512 + len);
                self.appended |= operation == APPEND;
                return;
            }
            RESET | FINISH => (offset, self.zoning.zone_len),
            RESET_ALL => (0, cx.device.len()),
            _ => return,
        };
        if let Some(landed) = &self.zoning.landed {
            landed.forget(offset, len);
        }
        if let Some(answered) = &self.zoning.answered {
            let end = if operation == FINISH { len } else { 0 };
            answered.changed(offset, len, |start| start + end);
        }
    }

    /// Answers with `count` zones, or as many as there are.
    fn report(&mut self, cx: &Context<'_>, tag: u16, count: u64) -> Result<(), RequestError> {
        let place = &mut self.places[usize::from(tag)];
        let buffer = place.buffer.as_mut().expect("a place has its buffer when a request comes");
        let wanted = usize::try_from(count).unwrap_or(usize::MAX).min(buffer.capacity() / ZONE_LEN);
        let bytes = &mut buffer.data_mut()[..wanted * ZONE_LEN];
        let mut zones = [Zone::UNKNOWN; ZONES_AT_A_TIME];
        let (mut at, mut done) = (place.request.offset, 0);
        while done < wanted && at < cx.device.len() {
            let most = zones.len().min(wanted - done);
            let reported = cx.device.report_zones(at, &mut zones[..most])?;
            let Some(last) = zones[..reported].last() else { break };
            at = last.start + last.len;
            for zone in &zones[..reported] {
                bytes[done * ZONE_LEN..][..ZONE_LEN].copy_from_slice(&encode(zone));
                done += 1;
            }
        }
        // One without a length is the end.
        bytes[done * ZONE_LEN..].fill(0);
        Ok(hand_over(&self.control, self.number, tag, bytes)?)
    }
}

impl FrontEnd for ZonedQueue {
    type Message = ();

    fn buffers(&mut self) -> Vec<&mut Buffer> {
        self.places.iter_mut().filter_map(|place| place.buffer.as_mut()).collect()
    }

    fn on_message(&mut self, _cx: &mut Context<'_>, (): ()) {}

    fn on_completion(&mut self, cx: &mut Context<'_>, done: Completion) {
        let tag = done.token.0 as u16;
        if done.result != Ok(0) {
            // The device ends, or the driver refuses to go on: either way there will be no request here.
            self.ended += 1;
            return;
        }
        let place = &mut self.places[usize::from(tag)];
        place.request = self.descriptions.request(tag);
        place.landed = place.request.offset / 512;
        if let Err(error) = self.begin(cx, tag) {
            self.answer(cx, tag, Some(Err(error)));
        }
    }

    fn on_finished(&mut self, cx: &mut Context<'_>, done: Finished) {
        let tag = done.id as u16;
        let place = &mut self.places[usize::from(tag)];
        let Described { operation, len, .. } = place.request;
        let mut result = done.result.map(|()| if matches!(operation, READ | WRITE | APPEND) { len } else { 0 });
        if let Some((extent, buffer)) = done.data {
            place.landed = extent.offset / 512;
            if operation == READ && result.is_ok() {
                let handed = hand_over(&self.control, self.number, tag, &buffer.data()[extent.requested()]);
                result = handed.map(|()| len).map_err(RequestError::Io);
            }
            place.buffer = Some(buffer);
        }
        if result.is_ok() {
            self.note(cx, tag);
        }
        self.answer(cx, tag, Some(result));
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait) {
        if !self.begun {
            self.begun = true;
            for tag in 0..self.places.len() as u16 {
                self.answer(cx, tag, None);
            }
            return (Flow::Continue, Wait::No);
        }
        if std::mem::take(&mut self.appended) {
            // Answered first, or an append would be carried out twice that is noted here and not answered when the process
            // dies.
            cx.ring.kick();
        }
        for end in self.ends.drain(..) {
            if let Some(answered) = &self.zoning.answered {
                answered.wrote(end);
            }
        }
        if self.ended == self.places.len() { (Flow::Stop, Wait::No) } else { (Flow::Continue, Wait::Forever) }
    }
}

/// Where the bytes of the request in a place are, on the control side.
fn position(queue: u16, tag: u16, at: usize) -> u64 {
    (1 << 31) + (u64::from(queue) << 41) + (u64::from(tag) << 25) + at as u64
}

/// Reads the bytes of a request that writes.
fn fetch(control: &OwnedFd, queue: u16, tag: u16, into: &mut [u8]) -> Result<(), Errno> {
    whole(into.len(), |at| rustix::io::pread(control, &mut into[at..], position(queue, tag, at)))
}

/// Writes the bytes of a request that reads.
fn hand_over(control: &OwnedFd, queue: u16, tag: u16, from: &[u8]) -> Result<(), Errno> {
    whole(from.len(), |at| rustix::io::pwrite(control, &from[at..], position(queue, tag, at)))
}

fn whole(len: usize, mut step: impl FnMut(usize) -> Result<usize, Errno>) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        match step(done) {
            Ok(0) => return Err(Errno::IO),
            Ok(more) => done += more,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
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
    fn places_lie_apart_on_the_control_side() {
        assert_eq!(position(0, 0, 0), 0x8000_0000);
        assert_eq!(position(3, 5, 7), 0x8000_0000 + (3 << 41) + (5 << 25) + 7);
    }

    #[test]
    fn copies_go_on_until_they_are_whole() {
        let mut steps = [Ok(3), Err(Errno::INTR), Ok(7)].into_iter();
        assert_eq!(whole(10, |_| steps.next().unwrap()), Ok(()));
        assert_eq!(whole(10, |at| if at == 0 { Ok(4) } else { Ok(0) }), Err(Errno::IO));
        assert_eq!(whole(10, |_| Err(Errno::INVAL)), Err(Errno::INVAL));
    }

    #[test]
    fn only_writes_below_the_pointers_may_have_come_before() {
        let zoning = Zoning { zone_len: 4096, again: Some([0, 4096 + 512, 8192].into()), landed: None, answered: None };
        let found = [0, 4096, 4608, 8191, 8192, 12288].map(|offset| zoning.comes_again(offset));
        assert_eq!(found, [false, true, false, false, false, false]);
        assert!(!Zoning { again: None, ..zoning }.comes_again(4096));
    }
}
