//! Writes to a sequential zone that go to the store together.
//!
//! A drive has one write of a zone at a time. While it has one, others are encrypted and queue up behind; when it is the
//! turn of the first of them, those behind it that are ready go with it, as one write of several buffers. So small appends to
//! one zone are as many a second as the drive takes bytes, and not as it takes turns.

use super::{FrontEnd, Step, Worker};
use crate::buffer::{Buffer, BufferPool};
use crate::device::Device;
use crate::ring::{self, Completion, MAX_PARTS, Part, Returned, Ring};
use crate::stats::Phase;
use crate::store;
use crate::target::Ciphertext;
use crate::zoned::order::TicketId;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;

/// How many such writes a worker has under way at a time, in different zones. Those beyond go one by one.
const MAX_GATHERED: usize = 16;

/// Room for them, for a device that has zones.
pub(super) fn room(device: &Device, ring: &mut Ring) -> Vec<Vec<Part>> {
    let count = if device.zones().is_some() { MAX_GATHERED } else { 0 };
    ring.reserve_parts(count);
    (0..count).map(|_| Vec::with_capacity(MAX_PARTS)).collect()
}

impl<F: FrontEnd> Worker<F>
where
    F::Message: 'static,
{
    /// Writes what it is the turn of, and with it what is behind it and ready, be it this worker's or another's.
    pub(super) fn write_gathered(&mut self, index: u32, ticket: TicketId, data: Ciphertext) {
        let device = Arc::clone(&self.device);
        let zones = device.zones().expect("tickets are those of zones");
        let Some(mut parts) = self.gathers.pop() else { return self.write_now(index, data) };
        let longest = (zones.limits().longest_write as usize).min(BufferPool::LARGEST_PIECE);
        match zones.gather(ticket, data, longest, &mut parts) {
            Some(data) => {
                self.gathers.push(parts);
                self.write_now(index, data);
            }
            None => self.submit_parts(index, parts),
        }
    }

    /// Writes these, from where the first is not written; `index` is any number, since its completion names no request.
    fn submit_parts(&mut self, index: u32, parts: Vec<Part>) {
        let first = &parts[0];
        let position = self.device.zones().map_or(0, |zones| zones.position(ticket_of(first)));
        let offset = position + first.range.start as u64;
        self.submit(index, ZONED, ring::Operation::WriteParts { offset, parts });
    }

    /// Writes that went together have ended. What is there is done. The first of the rest goes on alone, so that an error is its
    /// own; the others wait for their turns again.
    pub(super) fn gathered_written(&mut self, mut parts: Vec<Part>, result: Result<usize, Errno>) {
        let device = Arc::clone(&self.device);
        let zones = device.zones().expect("only writes in order go together");
        let (mut left, mut whole) = (result.unwrap_or(0), 0);
        while let Some(part) = parts.get(whole).filter(|part| part.range.len() <= left) {
            (left, whole) = (left - part.range.len(), whole + 1);
        }
        let failed = result.err().map(|error| (error, touched(&device, &parts))).filter(|(_, touched)| *touched > 0);
        let ended = failed.map_or(whole + 1, |(_, touched)| touched);
        parts.drain(ended.min(parts.len())..).for_each(|part| zones.wait_again(part));
        if let Some((error, _)) = failed {
            while let Some(part) = parts.pop() {
                self.part_ended(part, Err(error));
            }
            return self.gathers.push(parts);
        }
        let rest = if parts.len() > whole { parts.pop() } else { None };
        parts.drain(..).for_each(|part| self.part_ended(part, Ok(())));
        match rest {
            Some(mut part) if part.range.start + left > 0 => {
                part.range.start += left;
                parts.push(part);
                return self.submit_parts(0, parts);
            }
            Some(part) => self.turns.extend(zones.go_alone(part, &self.queued).map(|token| token as u32)),
            None => {}
        }
        self.gathers.push(parts);
    }

    fn part_ended(&mut self, part: Part, result: Result<(), Errno>) {
        let device = Arc::clone(&self.device);
        let zones = device.zones().expect("only writes in order go together");
        let (mine, next) = zones.part_ended(part, result, Some(&self.queued));
        if let Some((token, data)) = mine {
            self.part_written(token as u32, data, result);
        }
        self.turns.extend(next.map(|token| token as u32));
    }

    /// A write of this worker's has ended, which went with others.
    pub(super) fn part_written(&mut self, index: u32, data: Ciphertext, result: Result<(), Errno>) {
        let flight = self.flight(index);
        flight.lap(Phase::Store);
        (flight.ticket, flight.buffer) = (None, Some(data.into_buffer()));
        self.last_step(index, Step::Write, result);
    }
}

impl<F: FrontEnd> Worker<F> {
    /// A worker that ends says to others what has become of their writes.
    pub(super) fn give_parts_back(&mut self, ended: VecDeque<Completion>) {
        let device = Arc::clone(&self.device);
        let Some(zones) = device.zones() else { return };
        let unseen = self.completions.drain(..).chain(self.executed.drain(..)).chain(ended);
        for Completion { result, returned, .. } in unseen {
            let Returned::Parts(mut parts) = returned else { continue };
            let mut left = result.unwrap_or(0);
            let is_whole = |part: &Part| {
                let whole = part.range.len() <= left;
                left = if whole { left - part.range.len() } else { 0 };
                whole
            };
            let whole = parts.iter().map(is_whole).take_while(|whole| *whole).count();
            let rest = parts.drain(whole..).rev().collect::<Vec<_>>();
            let ended = parts.into_iter().map(|part| (part, Ok(())));
            for (part, result) in ended.chain(rest.into_iter().map(|part| (part, Err(Errno::IO)))) {
                let ticket = ticket_of(&part);
                let mut flights = self.in_flight.iter_mut().flatten();
                if let Some(flight) = flights.find(|flight| flight.ticket == Some(ticket)) {
                    flight.ticket = None;
                }
                let _ = zones.part_ended(part, result, Some(&self.queued));
            }
        }
    }
}

/// The device's only store, where it has zones.
const ZONED: u32 = 0;

fn ticket_of(part: &Part) -> TicketId {
    TicketId::of(part.token.0)
}

/// How many parts of a write that failed the store has something of: as little is known of those as of any write that fails on
/// its way. Blocks: it is rare.
fn touched(device: &Device, parts: &[Part]) -> usize {
    let Some(zones) = device.zones() else { return 0 };
    let first = &parts[0];
    if first.range.start > 0 {
        return 1;
    }
    let start = zones.position(ticket_of(first));
    // A store that does not answer now says so to the first.
    let pointer = zones.ask_again(start).unwrap_or(start);
    let len = (pointer.saturating_sub(start) as usize).min(first.range.len());
    let mut stored = Buffer::new(first.range.len());
    let read = store::read_all(&*device.stores()[ZONED as usize], &mut stored.data_mut()[..len], start);
    if read.is_ok() && stored.data()[..len] != first.data.bytes()[..len] {
        // Somebody else's.
        return 0;
    }
    let starts = parts.iter().scan(start, |end, part| Some(std::mem::replace(end, *end + part.range.len() as u64)));
    starts.take_while(|start| *start < pointer).count()
}

#[cfg(test)]
mod tests {
    use super::super::front_end::Message;
    use super::super::{Context, Finished, Flow};
    use super::*;
    use crate::device::Access;
    use crate::ring::{Token, Wait};
    use crate::store::file::IoMode;
    use crate::store::memory::MemoryStore;
    use crate::store::zoned_file::{ZonedFile, ZonedLayout};
    use crate::target::Ciphertext;
    use crate::zoned::order::{Admission, Manner, Waiter};
    use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};

    struct Nobody;

    impl FrontEnd for Nobody {
        type Message = ();
        fn on_message(&mut self, _cx: &mut Context<'_>, (): ()) {}
        fn on_completion(&mut self, _cx: &mut Context<'_>, _done: Completion) {}
        fn on_finished(&mut self, _cx: &mut Context<'_>, _done: Finished) {}
        fn end_turn(&mut self, _cx: &mut Context<'_>) -> (Flow, Wait) {
            (Flow::Stop, Wait::No)
        }
    }

    fn device() -> Arc<Device> {
        let layout = ZonedLayout { write_granularity: 512, ..ZonedLayout::new(4 << 20, 1 << 20) };
        let memory = |len: u64| Arc::new(MemoryStore::new(vec![0; len as usize]));
        let (data, sidecar) = (memory(ZonedFile::data_len(&layout)), memory(ZonedFile::sidecar_len(&layout)));
        ZonedFile::format(&*data, &*sidecar, &layout).unwrap();
        let store = Arc::new(ZonedFile::over(data, sidecar, 1).unwrap());
        let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::new(512).unwrap());
        let key = VolumeKey::new(&(0..64).collect::<Vec<u8>>());
        Arc::new(Device::new(&[segment], &key, store, Access::default()).unwrap())
    }

    #[test]
    fn a_worker_that_ends_says_what_has_become_of_others_writes() {
        let device = device();
        let zones = device.zones().unwrap();
        let worker =
            || Worker::new(Arc::clone(&device), Ring::new(IoMode::Sync).unwrap(), BufferPool::new(&[]), Nobody);
        let (mut ending, other) = (worker(), worker());
        let data = || Ciphertext::encrypted(Buffer::new(4096));
        let mut first = None;
        for n in 0..4 {
            // By turns: 0 and 2 are the one's, 1 and 3 the other's.
            let owner = if n % 2 == 0 { &ending } else { &other };
            let waiter = Waiter::Message(Arc::clone(&owner.queued), n);
            let admitted = zones.admit(0, 4096, Manner::Append, false, waiter).unwrap();
            let Admission::Placed(ticket, position) = admitted else { panic!("an append is placed") };
            let its_turn = zones.ready(ticket, position, data(), true);
            assert_eq!(its_turn.is_some(), n == 0);
            first = first.or(its_turn.map(|data| (ticket, data)));
        }
        let (ticket, data) = first.expect("the first goes at once");
        let mut parts = Vec::new();
        assert!(zones.gather(ticket, data, 1 << 20, &mut parts).is_none());
        assert_eq!(parts.len(), 4);
        // Two have landed, and half of the third.
        let landed = 2 * 4096 + 2048;
        assert_eq!(device.stores()[0].write_at(&vec![0; landed], 0, false), Ok(landed));
        let ended = Completion { token: Token(0), result: Ok(landed), returned: Returned::Parts(parts) };
        ending.give_parts_back(VecDeque::from([ended]));
        let told = |message| match message {
            Some(Message::Written(token, _, result)) => (token, result),
            _ => panic!("nothing is said of a write"),
        };
        assert_eq!(told(other.mailbox.next()), (1, Ok(())));
        assert_eq!(told(other.mailbox.next()), (3, Err(Errno::IO)));
        assert!(other.mailbox.next().is_none());
        drop(ending);
        // Nobody waits for what was there.
        let blocking = crate::BlockingDevice::new(Arc::clone(&device));
        assert_eq!(blocking.append(0, &[1; 4096]).map_err(|error| error.errno()), Ok(landed as u64));
    }
}
