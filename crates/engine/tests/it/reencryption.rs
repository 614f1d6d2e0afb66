//! Clients of a device that is re-encrypted while they use it: workers with many requests at a time, and threads. What
//! each reads agrees with its model, at any time.

use crate::faults::run_blocking;
use crate::scripted::{self, Ask};
use crate::support::with;
use crate::support::{Random, file_in_memory};
use inlock_cipher::{CipherSpec, DataUnitSize, Sector, Segment, VolumeKey};
use inlock_engine::buffer::{BufferClass, BufferPool};
use inlock_engine::request::Operation;
use inlock_engine::ring::{Completion, Ring, Wait};
use inlock_engine::rmw;
use inlock_engine::store::file::{FileStore, IoMode};
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::worker::{Context, CopyOptions, Finished, Flow, Frontend, Request, Worker};
use inlock_engine::{
    Access, BackingStore, BlockingDevice, Content, CryptMapping, Device, MoveDirection, Offload, OffloadPolicy,
    RequestError, Sides, Target,
};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};

const LEN: u64 = 192 << 10;
/// Bytes that become new at a time.
const ZONE: u64 = 16 << 10;
/// Clients of the workers, and those with a thread each. Neighbours share a data unit.
const OF_WORKERS: [&[u64]; 2] = [&[0, 2, 4, 6], &[3, 7, 8, 10]];
const OF_THREADS: [u64; 3] = [1, 5, 9];
/// Bytes of each client.
const SHARE: u64 = LEN / 11;

#[derive(Clone, Copy, Debug)]
struct Case {
    /// Bytes in a data unit of the old side and the new one; 1: unencrypted.
    units: [u32; 2],
    direction: MoveDirection,
    /// Bytes between old and new place: towards the end of the store if the re-encryption goes backward, otherwise
    /// towards its start.
    shift: u64,
    seed: u64,
}

impl Case {
    fn keys() -> [VolumeKey; 2] {
        [0x31, 0xc4].map(|mask| VolumeKey::new(&(0..64).map(|byte| byte ^ mask).collect::<Vec<u8>>()))
    }

    fn segments(&self) -> [Segment; 2] {
        let at = if self.direction == MoveDirection::Forward { [self.shift, 0] } else { [0, self.shift] };
        [0, 1].map(|side| {
            let (unit, cipher) =
                (self.units[side].max(512), (self.units[side] > 1).then_some(CipherSpec::AES_XTS_PLAIN64));
            with!(
                Segment::whole(cipher, DataUnitSize::new(unit).unwrap());
                sectors: Some(LEN / 512),
                data_offset: Sector((1536 + at[side]) / 512),
                iv_offset: Sector(8 * side as u64),
            )
        })
    }

    /// Returns a device of one side alone, on the same store.
    fn alone(&self, side: usize, store: &Arc<dyn BackingStore>) -> Device {
        let access = Access { read_only: false, allow_discards: true };
        Device::new(&[self.segments()[side]], &Self::keys()[side], Arc::clone(store), access).unwrap()
    }

    /// Puts the mapping of the re-encryption in force, from its start.
    fn begin(&self, device: &Device) {
        let (segments, keys) = (self.segments(), Self::keys());
        let [old, new] = [0, 1].map(|side| {
            let content = if self.units[side] > 1 { Content::Crypt(&keys[side]) } else { Content::Linear };
            Target { segment: &segments[side], content, store: 0 }
        });
        let boundary = if self.direction == MoveDirection::Forward { 0 } else { LEN };
        let sides = Sides { old, new, direction: self.direction, boundary, len: LEN };
        let lens = [device.stores()[0].geometry().len];
        device.reload(CryptMapping::moving(&sides, &lens).unwrap()).unwrap();
    }
}

/// Number of requests that the clients have completed, for which the re-encryption waits, and whether that is over.
#[derive(Default)]
struct Progress {
    state: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl Progress {
    fn note(&self) {
        self.state.lock().unwrap().0 += 1;
        self.changed.notify_all();
    }

    /// Waits for `more` requests, or for a failure.
    fn wait_for_more(&self, more: u64) {
        let state = self.state.lock().unwrap();
        let goal = state.0 + more;
        drop(self.changed.wait_while(state, |(count, is_over)| *count < goal && !*is_over).unwrap());
    }

    fn stop(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }

    fn is_over(&self) -> bool {
        self.state.lock().unwrap().1
    }
}

/// Lets the others end when its thread does.
struct StopOnDrop<'a>(&'a Progress);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A client: its bytes as it knows them, and what it asks next.
struct Client {
    name: String,
    base: u64,
    model: Vec<u8>,
    random: Random,
    /// Bytes that a discard has left undefined; the next read tells what they are.
    unknown: Range<usize>,
    /// Whether it has asked for the last time.
    is_last: bool,
    progress: Arc<Progress>,
}

impl Client {
    fn new(number: u64, case: &Case, content: &[u8], progress: &Arc<Progress>) -> Self {
        let base = number * SHARE;
        Self {
            name: format!("{case:?} client {number}"),
            base,
            model: content[base as usize..(base + SHARE) as usize].to_vec(),
            random: Random::new(case.seed * 100 + number),
            unknown: 0..0,
            is_last: false,
            progress: Arc::clone(progress),
        }
    }

    /// Returns the next request.
    fn next(&mut self) -> Ask {
        self.is_last = self.unknown.is_empty() && self.progress.is_over();
        if self.is_last || !self.unknown.is_empty() {
            return Ask::Read { offset: self.base, len: SHARE };
        }
        let unit = [512, 4096][self.random.below(2) as usize];
        let (offset, len) = self.random.range(SHARE, unit);
        let (start, end) = (self.base + offset, self.base + offset + len);
        // Of whole data units, if it has any.
        let whole = start.next_multiple_of(unit)..end / unit * unit;
        let is_whole = self.random.below(2) == 0 && !whole.is_empty();
        let (at, len) = if is_whole { (whole.start, whole.end - whole.start) } else { (start, len) };
        match self.random.below(12) {
            0..=4 => Ask::Read { offset: at, len },
            5..=8 => Ask::Write { offset: at, data: self.random.bytes(len as usize), durable: false },
            9 => Ask::Zeroes { offset: at, len },
            10 => Ask::Write { offset: at, data: self.random.bytes(len as usize), durable: true },
            _ => Ask::Discard { offset: at, len },
        }
    }

    /// Takes the answer to a request, or to a part of it.
    fn answered(&mut self, ask: &Ask, answer: scripted::Answer) {
        let within = |offset: u64, len: usize| (offset - self.base) as usize..(offset - self.base) as usize + len;
        match ask {
            // Not every file system can.
            Ask::Discard { offset, len } => {
                assert!(matches!(answer, Ok(_) | Err(RequestError::Unsupported)), "{}: {answer:?}", self.name);
                self.unknown = within(*offset, *len as usize);
            }
            Ask::Read { offset, .. } => {
                let bytes = answer.unwrap_or_else(|error| panic!("{}: {error}", self.name));
                for (at, byte) in within(*offset, bytes.len()).zip(bytes) {
                    if self.unknown.contains(&at) {
                        self.model[at] = byte;
                    }
                    let place = self.base + at as u64;
                    assert!(self.model[at] == byte, "{}: byte {place} of {ask:?}", self.name);
                }
            }
            Ask::Write { offset, data, .. } => {
                answer.unwrap_or_else(|error| panic!("{}: {error}", self.name));
                let range = within(*offset, data.len());
                self.model[range].copy_from_slice(data);
            }
            Ask::Zeroes { offset, len } => {
                answer.unwrap_or_else(|error| panic!("{}: {error}", self.name));
                let range = within(*offset, *len as usize);
                self.model[range].fill(0);
            }
            _ => unreachable!("not asked"),
        }
    }

    /// Takes note that all of a request has ended.
    fn ended(&mut self, ask: &Ask) {
        if matches!(ask, Ask::Read { offset, len } if (*offset, *len) == (self.base, SHARE)) {
            self.unknown = 0..0;
        }
        self.progress.note();
    }
}

/// Works as a client on a thread. Returns its bytes.
fn run_thread(mut client: Client, device: &BlockingDevice) -> Vec<u8> {
    loop {
        let asks = [client.next()];
        let answer = run_blocking(device, &asks).remove(0);
        client.answered(&asks[0], answer);
        client.ended(&asks[0]);
        if client.is_last {
            return client.model;
        }
    }
}

/// A client of a worker, with the request that it carries out, possibly in parts.
struct Slot {
    client: Client,
    ask: Option<Ask>,
    done: u64,
    /// The part in flight; its length is 0 if none is.
    part: Ask,
    /// Mapped already, and kept back for a turn.
    held: Option<Request>,
    is_over: bool,
}

struct Front(Vec<Slot>);

const NOTHING: Ask = Ask::Flush;

fn range_of(ask: &Ask) -> (u64, u64) {
    match ask {
        Ask::Read { offset, len } | Ask::Zeroes { offset, len } | Ask::Discard { offset, len } => (*offset, *len),
        Ask::Write { offset, data, .. } => (*offset, data.len() as u64),
        _ => (0, 0),
    }
}

impl Slot {
    /// Maps the next part of the request.
    fn begin_part(&mut self, id: u64, cx: &mut Context<'_>) -> Request {
        let ask = self.ask.get_or_insert_with(|| self.client.next());
        let (offset, rest) = (range_of(ask).0 + self.done, range_of(ask).1 - self.done);
        if let Ask::Discard { .. } = ask {
            self.part = ask.clone();
            let operation = Operation::Discard { durable: false };
            return Request { id, operation, offset, len: rest, data: None, spare: None };
        }
        let range = cx.mapping.locate(offset, rest, 1 << 20).unwrap();
        let len = range.len as u64;
        let mut buffer = cx.pool.take(range.aligned_len, range.aligned_len).expect("large enough");
        // What was in a buffer before must never reach the store.
        buffer.data_mut().fill(0xdd);
        let operation;
        (operation, self.part) = match ask {
            Ask::Read { .. } => (Operation::Read, Ask::Read { offset, len }),
            Ask::Zeroes { .. } => (Operation::WriteZeroes { durable: false }, Ask::Zeroes { offset, len }),
            Ask::Write { data, durable, .. } => {
                let data = data[self.done as usize..][..range.len].to_vec();
                buffer.data_mut()[range.requested()].copy_from_slice(&data);
                (Operation::Write { durable: *durable }, Ask::Write { offset, data, durable: *durable })
            }
            _ => unreachable!("not asked"),
        };
        let spare_len = if operation.modifies() { rmw::spare_len(&range) } else { 0 };
        let spare = (spare_len > 0).then(|| cx.pool.take(spare_len, spare_len).expect("large enough"));
        Request { id, operation, offset, len, data: Some((range, buffer)), spare }
    }

    fn end_part(&mut self, answer: scripted::Answer) {
        let part = std::mem::replace(&mut self.part, NOTHING);
        self.client.answered(&part, answer);
        self.done += range_of(&part).1;
        if let Some(ask) = self.ask.take_if(|ask| range_of(ask).1 == self.done) {
            self.client.ended(&ask);
            (self.done, self.is_over) = (0, self.client.is_last);
        }
    }
}

impl Frontend for Front {
    type Message = ();

    fn on_message(&mut self, _cx: &mut Context<'_>, (): ()) {}
    fn on_completion(&mut self, _cx: &mut Context<'_>, _done: Completion) {}

    fn on_finished(&mut self, cx: &mut Context<'_>, done: Finished) {
        let mut bytes = Vec::new();
        if let Some((range, buffer)) = done.data {
            bytes = buffer.data()[range.requested()].to_vec();
            cx.pool.give(buffer);
        }
        done.spare.into_iter().for_each(|spare| cx.pool.give(spare));
        self.0[done.id as usize].end_part(done.result.map(|()| bytes));
    }

    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait) {
        let mut wait = Wait::Forever;
        for (id, slot) in self.0.iter_mut().enumerate() {
            if let Some(request) = slot.held.take() {
                cx.requests.push_back(request);
            } else if !slot.is_over && range_of(&slot.part).1 == 0 {
                let request = slot.begin_part(id as u64, cx);
                if slot.client.random.below(3) == 0 {
                    slot.held = Some(request);
                    wait = Wait::No;
                } else {
                    cx.requests.push_back(request);
                }
            }
        }
        (if self.0.iter().all(|slot| slot.is_over) { Flow::Stop } else { Flow::Continue }, wait)
    }
}

/// Works as several clients on a worker. Returns their bytes.
fn run_worker(clients: Vec<Client>, device: &Arc<Device>, mode: IoMode, seed: u64) -> Vec<Vec<u8>> {
    let slot = |client| Slot { client, ask: None, done: 0, part: NOTHING, held: None, is_over: false };
    let front = Front(clients.into_iter().map(slot).collect());
    let capacity = SHARE as usize + 2 * device.unit_len();
    let pool = BufferPool::new(&[BufferClass { capacity, count: 2 * front.0.len() }]);
    // All of the cipher work inline, on a pool, or with the copy thread where the store is not called inline.
    let offload = Offload::start(device, &scripted::offload_options(OffloadPolicy::Both, 2)).unwrap();
    let mut worker = Worker::new(Arc::clone(device), Ring::new(mode).unwrap(), pool, front);
    match seed % 3 {
        0 => worker = worker.with_offload(offload),
        1 => worker = worker.with_copy_thread(&with!(CopyOptions::default(); min_len: 1, chunk_len: 4096)).unwrap(),
        _ => {}
    }
    worker.run().unwrap();
    assert_eq!(worker.pool().outstanding(), 0, "every buffer comes back");
    worker.front_mut().0.drain(..).map(|slot| slot.client.model).collect()
}

/// Re-encrypts the device zone by zone, by way of garbage.
fn re_encrypt(case: &Case, device: &Device, progress: &Progress) {
    let _stop = StopOnDrop(progress);
    let store = &device.stores()[0];
    let [old, new] = [0, 1].map(|side| BlockingDevice::with_calls(Arc::new(case.alone(side, store)), 1));
    let mut random = Random::new(case.seed);
    let old_at = case.segments()[0].data_offset.0 * 512;
    loop {
        let boundary = device.boundary().unwrap();
        let is_forward = case.direction == MoveDirection::Forward;
        let rest = if is_forward { LEN - boundary } else { boundary };
        if rest == 0 {
            break;
        }
        progress.wait_for_more(4);
        let len = rest.min((1 + random.below(ZONE / 4096)) * 4096);
        let zone = if is_forward { boundary..boundary + len } else { boundary - len..boundary };
        let lock = device.lock_zone(zone.clone()).unwrap();
        let mut plain = vec![0; len as usize];
        old.read_at(&mut plain, zone.start).unwrap();
        if random.below(2) == 0 {
            lock.serve_reads(Arc::new(plain.clone()));
        }
        inlock_engine::store::write_all(&**store, &vec![0xee; len as usize], old_at + zone.start).unwrap();
        // Those who do not use the zone go on.
        progress.wait_for_more(6);
        new.write_at(&plain, zone.start).unwrap();
        device.sync_blocking().unwrap();
        lock.move_boundary();
    }
    progress.wait_for_more(20);
}

fn check(case: &Case, store: Arc<dyn BackingStore>, mode: IoMode) {
    let content = Random::new(case.seed).bytes(LEN as usize);
    let device = Arc::new(case.alone(0, &store));
    BlockingDevice::new(Arc::clone(&device)).write_at(&content, 0).unwrap();
    case.begin(&device);
    let progress = Arc::new(Progress::default());
    let client = |number: &u64| Client::new(*number, case, &content, &progress);
    let blocking = BlockingDevice::with_calls(Arc::clone(&device), 2);
    let mut expected = content.clone();
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for numbers in OF_WORKERS {
            let (clients, device, progress) = (numbers.iter().map(client).collect(), &device, &progress);
            running.push((
                numbers.to_vec(),
                scope.spawn(move || {
                    let _stop = StopOnDrop(progress);
                    run_worker(clients, device, mode, case.seed)
                }),
            ));
        }
        for number in OF_THREADS {
            let (client, blocking, progress) = (client(&number), &blocking, &progress);
            running.push((
                vec![number],
                scope.spawn(move || {
                    let _stop = StopOnDrop(progress);
                    vec![run_thread(client, blocking)]
                }),
            ));
        }
        re_encrypt(case, &device, &progress);
        for (numbers, thread) in running {
            for (number, bytes) in numbers.into_iter().zip(thread.join().unwrap()) {
                expected[(number * SHARE) as usize..][..SHARE as usize].copy_from_slice(&bytes);
            }
        }
    });
    let new = Arc::new(case.alone(1, &store));
    for device in [&device, &new] {
        let mut bytes = vec![0; LEN as usize];
        BlockingDevice::new(Arc::clone(device)).read_at(&mut bytes, 0).unwrap();
        assert!(bytes == expected, "{case:?}: after its end");
    }
}

fn cases(seed: u64) -> Vec<Case> {
    let units = [[512, 4096], [4096, 512], [1, 4096], [1, 512], [4096, 1], [512, 512]];
    let mut cases = Vec::new();
    for direction in [MoveDirection::Forward, MoveDirection::Backward] {
        for units in units {
            for shift in [0, ZONE] {
                cases.push(Case { units, direction, shift, seed: seed + cases.len() as u64 });
            }
        }
    }
    cases
}

const STORE_LEN: u64 = 1536 + LEN + ZONE;

#[test]
fn clients_read_what_they_wrote_while_a_store_in_memory_is_re_encrypted() {
    for case in cases(100) {
        check(&case, Arc::new(MemoryStore::new(vec![0; STORE_LEN as usize])), IoMode::Auto);
    }
}

#[test]
fn clients_read_what_they_wrote_while_a_file_is_re_encrypted() {
    for case in cases(200).into_iter().chain(cases(301)) {
        let mode = [IoMode::Uring, IoMode::Sync, IoMode::Auto][(case.seed / 3 % 3) as usize];
        let file = file_in_memory();
        file.as_file().set_len(STORE_LEN).unwrap();
        let store = FileStore::new(file.as_file().try_clone().unwrap(), mode).unwrap();
        check(&case, Arc::new(store), mode);
    }
}
