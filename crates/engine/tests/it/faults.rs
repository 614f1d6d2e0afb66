//! Fail the N-th store operation, for every N: the request that met it fails, and nothing else changes.

use crate::asynchronous::ThreadStore;
use crate::scripted::{self, Ask};
use crate::support::{DATA_OFFSET, Random, device, image_of, independent_plaintext};
use inlock_engine::Errno;
use inlock_engine::fault_injection::{Call, Fault, Injection, Injector, around, inject};
use inlock_engine::store::asynchronous::AsyncStore;
use inlock_engine::store::file::{FileStore, IoMode};
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::store::{BackingStore, Geometry};
use inlock_engine::{BlockingDevice, RequestError};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const FAULTS: [Fault; 6] = [
    Fault::Errno(Errno::IO),
    Fault::Errno(Errno::NOSPC),
    Fault::Errno(Errno::INTR),
    Fault::Errno(Errno::AGAIN),
    Fault::Short,
    Fault::Nothing,
];

/// Completions that only a ring has: a transfer that was made and is reported as failed, and a late one.
const OF_RINGS: [Fault; 3] = [Fault::LateErrno(Errno::IO), Fault::LateErrno(Errno::NOSPC), Fault::Delay(3)];

/// Whether the request goes on as if nothing had happened.
fn is_transient(fault: Fault, call: Call) -> bool {
    match fault {
        // A sync is asked once: it may have taken the error with it.
        Fault::Errno(_) | Fault::LateErrno(_) | Fault::Nothing if call == Call::Sync => fault == Fault::Nothing,
        Fault::Errno(Errno::INTR | Errno::AGAIN) | Fault::Short | Fault::Delay(_) => true,
        Fault::Nothing => call == Call::Discard,
        _ => false,
    }
}

/// Fails one operation, by number, whether it is a plain call or goes through the ring.
struct Nth {
    count: AtomicU64,
    nth: u64,
    fault: Fault,
    struck: Mutex<Option<Call>>,
}

impl Injector for Nth {
    fn decide(&self, call: Call) -> Option<Fault> {
        let strikes = self.count.fetch_add(1, Ordering::Relaxed) + 1 == self.nth;
        if strikes {
            *self.struck.lock().unwrap() = Some(call);
        }
        strikes.then_some(self.fault)
    }
}

/// Place of the ciphertext, and the way to access it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Below {
    Memory,
    /// A real file, through a real ring.
    Uring,
    /// Memory behind a thread that completes operations later, and out of order.
    Async,
}

/// A store whose operations can fail.
struct FaultStore {
    /// First: fields are dropped in this order, and `inner` has the file.
    _injection: Option<Injection>,
    inner: Arc<dyn BackingStore>,
    contents: Box<dyn Fn() -> Vec<u8> + Send + Sync>,
    faults: Arc<Nth>,
}

impl FaultStore {
    fn new(image: Vec<u8>, nth: u64, fault: Fault) -> Self {
        Self::on(Below::Memory, image, nth, fault)
    }

    fn on(below: Below, image: Vec<u8>, nth: u64, fault: Fault) -> Self {
        let faults = Arc::new(Nth { count: AtomicU64::new(0), nth, fault, struck: Mutex::default() });
        if below == Below::Memory {
            let memory = Arc::new(MemoryStore::new(image));
            let contents = Arc::clone(&memory);
            return Self { inner: memory, contents: Box::new(move || contents.contents()), faults, _injection: None };
        }
        if below == Below::Async {
            let store = Arc::new(ThreadStore::new(image, Arc::clone(&faults) as _));
            let contents = Arc::clone(&store);
            return Self { inner: store, contents: Box::new(move || contents.contents()), faults, _injection: None };
        }
        let named = crate::support::file_in_memory();
        std::fs::write(named.path(), image).unwrap();
        let file = File::options().read(true).write(true).open(named.path()).unwrap();
        let inner = Arc::new(FileStore::new(file, IoMode::Uring).unwrap());
        let injection = inject(inner.file().as_fd(), Arc::clone(&faults) as _);
        let contents = Box::new(move || std::fs::read(named.path()).unwrap());
        Self { inner, contents, faults, _injection: Some(injection) }
    }

    fn struck(&self) -> Option<Call> {
        *self.faults.struck.lock().unwrap()
    }
}

impl BackingStore for FaultStore {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.as_fd()
    }
    fn asynchronous(&self) -> Option<&dyn AsyncStore> {
        self.inner.asynchronous()
    }
    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let len = data.len();
        around(&*self.faults, Call::Read, len, |len| self.inner.read_at(&mut data[..len], offset))
    }
    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        let write = |len: usize| self.inner.write_at(&data[..len], offset);
        around(&*self.faults, Call::Write { durable: false }, data.len(), write)
    }
    fn sync(&self) -> Result<(), Errno> {
        around(&*self.faults, Call::Sync, 0, |_| self.inner.sync().map(|()| 0)).map(|_| ())
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        around(&*self.faults, Call::Discard, 0, |_| self.inner.discard(offset, len).map(|()| 0)).map(|_| ())
    }
}

const LEN: usize = 32 << 10;

fn script(random: &mut Random, below: Below) -> Vec<Ask> {
    let mut asks = Vec::new();
    for _ in 0..24 {
        let (offset, len) = random.range(LEN as u64, 4096);
        let durable = below != Below::Memory && random.below(4) == 0;
        asks.push(match random.below(if below == Below::Memory { 4 } else { 6 }) {
            0 => Ask::Read { offset, len },
            1 => Ask::Zeroes { offset, len },
            4 => Ask::Flush,
            5 => Ask::Discard { offset, len: 1 },
            _ => Ask::Write { offset, data: random.bytes(len as usize), durable },
        });
    }
    asks
}

fn apply(model: &mut [u8], ask: &Ask) {
    match ask {
        Ask::Write { offset, data, .. } => model[*offset as usize..][..data.len()].copy_from_slice(data),
        Ask::Zeroes { offset, len } => model[*offset as usize..][..*len as usize].fill(0),
        _ => {}
    }
}

fn is_durable(ask: &Ask) -> bool {
    matches!(ask, Ask::Flush | Ask::Write { durable: true, .. })
}

/// Whether `answers` and the image that is found are those of a device on which the requests that failed were carried
/// out (`landed`) or were not.
fn agrees(mut model: Vec<u8>, script: &[Ask], answers: &[scripted::Answer], found: &[u8], landed: bool) -> bool {
    let right = script.iter().zip(answers).all(|(ask, answer)| {
        if answer.is_ok() || landed {
            apply(&mut model, ask);
        }
        match (ask, answer) {
            (Ask::Read { offset, len }, Ok(bytes)) => *bytes == model[*offset as usize..][..*len as usize],
            _ => true,
        }
    });
    right && found == model
}

/// One run with one fault; `None` when the script has fewer operations than that.
fn strike(below: Below, unit: u32, seed: u64, nth: u64, fault: Fault, blocking: bool) -> Option<()> {
    let mut random = Random::new(seed);
    let model = random.bytes(LEN);
    let store = Arc::new(FaultStore::on(below, image_of(&model, unit), nth, fault));
    let device = device(Arc::clone(&store) as _, unit);
    let script = script(&mut random, below);
    let mode = if below == Below::Uring { IoMode::Uring } else { IoMode::Auto };
    let answers = if blocking {
        run_blocking(&BlockingDevice::new(Arc::clone(&device)), &script)
    } else {
        scripted::run(&device, mode, 1, script.clone())
    };
    let call = store.struck()?;
    let place = format!("unit {unit} seed {seed} operation {nth}, {call:?}: {fault:?}");
    let first = answers.iter().position(Result::is_err);
    assert_eq!(first.is_none(), is_transient(fault, call), "{place}: {first:?} failed first");
    for (index, error) in answers.iter().enumerate().filter_map(|(i, answer)| Some((i, answer.as_ref().err()?))) {
        let expected = match fault {
            // From then on nothing is durable.
            _ if call == Call::Sync => Errno::IO,
            Fault::Errno(errno) | Fault::LateErrno(errno) => errno,
            _ => Errno::IO,
        };
        assert_eq!(*error, RequestError::Io(expected), "{place}");
        let may_fail = Some(index) == first || call == Call::Sync && is_durable(&script[index]);
        assert!(may_fail, "{place}: request {index} failed as well");
    }
    if let (Some(first), Call::Sync) = (first, call) {
        let later = script.iter().zip(&answers).skip(first);
        assert!(later.filter(|(ask, _)| is_durable(ask)).all(|(_, answer)| answer.is_err()), "{place}: a later flush");
    }
    let found = independent_plaintext(&(store.contents)(), unit);
    let late = matches!(fault, Fault::LateErrno(_));
    // A write whose sync failed has been made, and may be lost.
    let landed = late || call == Call::Sync;
    assert!(
        agrees(model.clone(), &script, &answers, &found, false)
            || landed && agrees(model, &script, &answers, &found, true)
            || landed && later_refusals_change_nothing(&script, &answers, &found, seed),
        "{place}: reads or the image differ from the model"
    );
    Some(())
}

/// As [`agrees`], where the first failed request was carried out and those that were refused after it were not.
fn later_refusals_change_nothing(script: &[Ask], answers: &[scripted::Answer], found: &[u8], seed: u64) -> bool {
    let mut answers = answers.to_vec();
    if let Some(first) = answers.iter_mut().find(|answer| answer.is_err()) {
        *first = Ok(Vec::new());
    }
    agrees(Random::new(seed).bytes(LEN), script, &answers, found, false)
}

pub(crate) fn run_blocking(device: &BlockingDevice, script: &[Ask]) -> Vec<scripted::Answer> {
    let one = |ask: &Ask| match ask {
        Ask::Read { offset, len } => {
            let mut bytes = vec![0; *len as usize];
            device.read_at(&mut bytes, *offset).map(|()| bytes)
        }
        Ask::Write { offset, data, .. } => device.write_at(data, *offset).map(|()| Vec::new()),
        Ask::Zeroes { offset, len } => device.write_zeroes(*offset, *len).map(|()| Vec::new()),
        Ask::Flush => device.flush().map(|()| Vec::new()),
        Ask::Discard { offset, len } | Ask::DurableDiscard { offset, len } => {
            device.discard(*offset, *len).map(|()| Vec::new())
        }
    };
    script.iter().map(one).collect()
}

fn fail_every_operation(below: Below, faults: &[Fault], seeds: u64, blocking: bool) -> usize {
    let mut count = 0;
    for unit in [512, 4096] {
        for seed in 1..=seeds {
            for fault in faults {
                let strikes = |nth: &u64| strike(below, unit, seed, *nth, *fault, blocking).is_some();
                count += (1..).take_while(strikes).count();
            }
        }
    }
    count
}

#[test]
fn every_operation_fails_once() {
    let memory = |blocking| fail_every_operation(Below::Memory, &FAULTS, 8, blocking);
    let faults = memory(false) + memory(true);
    println!("{faults} faults injected, 0 wrong answers");
    assert!(faults >= 3000, "only {faults} faults were injected");
}

#[test]
fn every_operation_of_a_ring_fails_once() {
    let ring = |faults| fail_every_operation(Below::Uring, faults, 2, false);
    let faults = ring(&FAULTS) + ring(&OF_RINGS);
    println!("{faults} faults injected into io_uring, 0 wrong answers");
    assert!(faults >= 1200, "only {faults} faults were injected");
}

/// Late, lost, failing and wrong completions: a store that drops an operation has failed it.
#[test]
fn every_operation_of_an_asynchronous_store_fails_once() {
    let asynchronous = |faults| fail_every_operation(Below::Async, faults, 2, false);
    let faults = asynchronous(&FAULTS) + asynchronous(&OF_RINGS);
    println!("COUNT asynchronous_store_faults {faults}");
    assert!(faults >= 1200, "only {faults} faults were injected");
}

#[test]
fn every_operation_fails_once_with_a_pool() {
    scripted::offloaded(|| {
        let faults = fail_every_operation(Below::Memory, &FAULTS, 3, false);
        println!("{faults} faults injected with a pool, 0 wrong answers");
        assert!(faults >= 500, "only {faults} faults were injected");
    });
}

#[test]
fn every_operation_fails_once_with_a_copy_thread() {
    // One strip a request: a write that fails half-way has a test of its own.
    scripted::carried(LEN, || {
        let faults = fail_every_operation(Below::Memory, &FAULTS, 3, false);
        println!("{faults} faults injected with a copy thread, 0 wrong answers");
        assert!(faults >= 500, "only {faults} faults were injected");
    });
}

/// The negative control: the check does see a neighbour that changed.
#[test]
fn changed_neighbour_is_found() {
    let mut model = Random::new(1).bytes(LEN);
    let mut image = image_of(&model, 512);
    image[DATA_OFFSET + 512] ^= 1;
    assert!(independent_plaintext(&image, 512) != model);
    apply(&mut model, &Ask::Zeroes { offset: 0, len: 1 });
    assert_eq!(model[0], 0);
}

#[test]
fn one_failing_request_does_not_fail_its_neighbours() {
    fail_one_of_many(Below::Memory, Fault::Errno(Errno::IO));
}

#[test]
fn one_failing_request_in_a_ring_does_not_fail_its_neighbours() {
    for fault in [Fault::Errno(Errno::IO), Fault::Nothing] {
        fail_one_of_many(Below::Uring, fault);
    }
}

#[test]
fn one_failing_request_at_an_asynchronous_store_does_not_fail_its_neighbours() {
    for fault in [Fault::Errno(Errno::IO), Fault::Nothing, Fault::Delay(5), Fault::Short, Fault::Errno(Errno::AGAIN)] {
        fail_one_of_many(Below::Async, fault);
    }
}

#[test]
fn late_and_short_completions_of_a_ring_among_others_fail_nothing() {
    for fault in [Fault::Delay(1), Fault::Delay(9), Fault::Short, Fault::Errno(Errno::AGAIN)] {
        fail_one_of_many(Below::Uring, fault);
    }
}

fn fail_one_of_many(below: Below, fault: Fault) {
    let mode = if below == Below::Uring { IoMode::Uring } else { IoMode::Auto };
    for nth in 1..40 {
        let store = Arc::new(FaultStore::on(below, vec![0; DATA_OFFSET + LEN], nth, fault));
        let device = device(Arc::clone(&store) as _, 512);
        let write = |i: u64| Ask::Write { offset: i * 300, data: vec![i as u8; 300], durable: false };
        let answers = scripted::run(&device, mode, 16, (0..100).map(write).collect());
        let failed = answers.iter().filter(|a| a.is_err()).count();
        let call = store.struck().unwrap();
        assert_eq!(failed, usize::from(!is_transient(fault, call)), "operation {nth}, {call:?}: {fault:?}");
        let plain = independent_plaintext(&(store.contents)(), 512);
        for (i, answer) in answers.iter().enumerate() {
            let now = &plain[i * 300..][..300];
            assert_eq!(answer.is_ok(), now.iter().all(|b| *b == i as u8), "operation {nth} write {i}: {fault:?}");
        }
    }
}

#[test]
fn one_failing_request_does_not_fail_its_neighbours_with_a_pool() {
    scripted::offloaded(one_failing_request_does_not_fail_its_neighbours);
}

#[test]
fn one_failing_request_does_not_fail_its_neighbours_with_a_copy_thread() {
    scripted::carried(LEN, one_failing_request_does_not_fail_its_neighbours);
}

/// A failed write leaves whole data units, old or new, and changes none outside its range.
#[test]
fn copied_write_that_fails_half_way_leaves_whole_units() {
    for failing in 0..10 {
        let before = Random::new(7).bytes(LEN);
        // The two edges are read first.
        let store = Arc::new(FaultStore::new(image_of(&before, 512), 3 + failing, Fault::Errno(Errno::IO)));
        let device = device(Arc::clone(&store) as _, 512);
        let data = vec![9; 7 * 1024];
        let write = Ask::Write { offset: 700, data: data.clone(), durable: false };
        let mut answers = Vec::new();
        scripted::carried(1024, || answers = scripted::run(&device, IoMode::Auto, 1, vec![write]));
        // From the unit that byte 512 begins: strips of 1024 bytes to byte 8192.
        let strips = (8192usize - 512).div_ceil(1024) as u64;
        let failed = failing < strips;
        assert_eq!(answers[0].is_err(), failed, "strip {failing}");
        let end = if failed { 512 + failing as usize * 1024 } else { LEN };
        let mut expected = before;
        let new = 700..(700 + data.len()).min(end.max(700));
        let len = new.len();
        expected[new].copy_from_slice(&data[..len]);
        assert!(independent_plaintext(&(store.contents)(), 512) == expected, "strip {failing}");
    }
}

#[test]
fn after_a_failed_flush_no_flush_succeeds() {
    let store = Arc::new(FaultStore::new(vec![0; DATA_OFFSET + LEN], 2, Fault::Errno(Errno::IO)));
    let device = device(Arc::clone(&store) as _, 512);
    let write = |durable| Ask::Write { offset: 0, data: vec![7; 512], durable };
    let script = vec![write(false), Ask::Flush, Ask::Flush, write(false), write(true), Ask::Flush];
    let answers = scripted::run(&device, IoMode::Auto, 1, script);
    let ended_well: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(ended_well, [true, false, false, true, false, false]);
    let blocking = BlockingDevice::new(device);
    assert_eq!(blocking.flush(), Err(RequestError::Io(Errno::IO)));
}
