//! Fail the N-th store operation, for every N: the request that met it fails, and nothing else changes.

use crate::scripted::{self, Ask};
use crate::support::{DATA_OFFSET, Random, device, image_of, independent_plaintext};
use inlock_engine::store::file::IoMode;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::store::{BackingStore, Geometry};
use inlock_engine::{BlockingDevice, RequestError};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Errno(Errno),
    /// Only the first half is transferred.
    Short,
    /// Nothing is transferred, as at the end of a file.
    Nothing,
}

const FAULTS: [Fault; 6] = [
    Fault::Errno(Errno::IO),
    Fault::Errno(Errno::NOSPC),
    Fault::Errno(Errno::INTR),
    Fault::Errno(Errno::AGAIN),
    Fault::Short,
    Fault::Nothing,
];

impl Fault {
    /// Whether the request goes on as if nothing had been.
    fn is_transient(self) -> bool {
        matches!(self, Self::Errno(Errno::INTR | Errno::AGAIN) | Self::Short)
    }
}

/// Fails one operation, by number.
struct FaultStore {
    inner: MemoryStore,
    count: AtomicU64,
    nth: u64,
    fault: Fault,
}

impl FaultStore {
    fn new(image: Vec<u8>, nth: u64, fault: Fault) -> Self {
        Self { inner: MemoryStore::new(image), count: AtomicU64::new(0), nth, fault }
    }

    fn strikes(&self) -> bool {
        self.count.fetch_add(1, Ordering::Relaxed) + 1 == self.nth
    }

    fn transfer(&self, len: usize, call: impl FnOnce(usize) -> Result<usize, Errno>) -> Result<usize, Errno> {
        match self.fault {
            _ if !self.strikes() => call(len),
            Fault::Errno(errno) => Err(errno),
            Fault::Short => call(len.div_ceil(2)),
            Fault::Nothing => Ok(0),
        }
    }
}

impl BackingStore for FaultStore {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.transfer(data.len(), |len| self.inner.read_at(&mut data[..len], offset))
    }
    fn write_at(&self, data: &[u8], offset: u64, durable: bool) -> Result<usize, Errno> {
        self.transfer(data.len(), |len| self.inner.write_at(&data[..len], offset, durable))
    }
    fn sync(&self) -> Result<(), Errno> {
        self.transfer(0, |_| Ok(0)).map(|_| ())
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.transfer(0, |_| self.inner.discard(offset, len).map(|()| 0)).map(|_| ())
    }
}

const LEN: usize = 32 << 10;

fn script(random: &mut Random) -> Vec<Ask> {
    let mut asks = Vec::new();
    for _ in 0..24 {
        let (offset, len) = random.range(LEN as u64, 4096);
        asks.push(match random.below(4) {
            0 => Ask::Read { offset, len },
            1 => Ask::Zeroes { offset, len },
            _ => Ask::Write { offset, data: random.bytes(len as usize), durable: false },
        });
    }
    asks
}

/// Carries out `ask` on the model if it succeeded. A write that failed has changed nothing: the store refused it.
fn apply(model: &mut [u8], ask: &Ask, succeeded: bool) {
    match ask {
        Ask::Write { offset, data, .. } if succeeded => {
            model[*offset as usize..][..data.len()].copy_from_slice(data);
        }
        Ask::Zeroes { offset, len } if succeeded => model[*offset as usize..][..*len as usize].fill(0),
        _ => {}
    }
}

/// One run with one fault; `None` when the script has fewer operations than that.
fn strike(unit: u32, seed: u64, nth: u64, fault: Fault, blocking: bool) -> Option<()> {
    let mut random = Random::new(seed);
    let mut model = random.bytes(LEN);
    let store = Arc::new(FaultStore::new(image_of(&model, unit), nth, fault));
    let device = device(Arc::clone(&store) as _, unit);
    let script = script(&mut random);
    let answers = if blocking {
        run_blocking(&BlockingDevice::new(Arc::clone(&device)), &script)
    } else {
        scripted::run(&device, IoMode::Auto, 1, script.clone())
    };
    if store.count.load(Ordering::Relaxed) < nth {
        return None;
    }
    let place = format!("unit {unit} seed {seed} operation {nth} {fault:?}");
    let failed = answers.iter().filter(|a| a.is_err()).count();
    assert_eq!(failed, usize::from(!fault.is_transient()), "{place}: requests that failed");
    for (ask, answer) in script.iter().zip(&answers) {
        match answer {
            Ok(bytes) => {
                apply(&mut model, ask, true);
                if let Ask::Read { offset, len } = ask {
                    assert!(*bytes == model[*offset as usize..][..*len as usize], "{place}: a wrong read");
                }
            }
            Err(error) => {
                let expected = if let Fault::Errno(errno) = fault { errno } else { Errno::IO };
                assert_eq!(*error, RequestError::Io(expected), "{place}");
            }
        }
    }
    let found = independent_plaintext(&store.inner.contents(), unit);
    assert!(found == model, "{place}: the image differs from the model");
    Some(())
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
        Ask::Discard { offset, len } => device.discard(*offset, *len).map(|()| Vec::new()),
    };
    script.iter().map(one).collect()
}

fn fail_every_operation(seeds: u64, blocking: bool) -> usize {
    let mut faults = 0;
    for unit in [512, 4096] {
        for seed in 1..=seeds {
            for fault in FAULTS {
                faults += (1..).take_while(|nth| strike(unit, seed, *nth, fault, blocking).is_some()).count();
            }
        }
    }
    faults
}

#[test]
fn every_operation_fails_once() {
    let faults = fail_every_operation(8, false) + fail_every_operation(8, true);
    println!("{faults} faults injected, 0 wrong answers");
    assert!(faults >= 3000, "only {faults} faults were injected");
}

#[test]
fn every_operation_fails_once_with_a_pool() {
    scripted::offloaded(|| {
        let faults = fail_every_operation(3, false);
        println!("{faults} faults injected with a pool, 0 wrong answers");
        assert!(faults >= 500, "only {faults} faults were injected");
    });
}

#[test]
fn every_operation_fails_once_with_a_carrier() {
    // One strip a request: a write that fails half-way has a test of its own.
    scripted::carried(LEN, || {
        let faults = fail_every_operation(3, false);
        println!("{faults} faults injected with a carrier, 0 wrong answers");
        assert!(faults >= 500, "only {faults} faults were injected");
    });
}

/// The negative control: the check does see a neighbour that changed.
#[test]
fn a_changed_neighbour_is_seen() {
    let mut model = Random::new(1).bytes(LEN);
    let mut image = image_of(&model, 512);
    image[DATA_OFFSET + 512] ^= 1;
    assert!(independent_plaintext(&image, 512) != model);
    apply(&mut model, &Ask::Zeroes { offset: 0, len: 1 }, true);
    assert_eq!(model[0], 0);
}

#[test]
fn one_failing_request_does_not_fail_its_neighbours() {
    for nth in 1..40 {
        let store = Arc::new(FaultStore::new(vec![0; DATA_OFFSET + LEN], nth, Fault::Errno(Errno::IO)));
        let device = device(Arc::clone(&store) as _, 512);
        let write = |i: u64| Ask::Write { offset: i * 300, data: vec![i as u8; 300], durable: false };
        let answers = scripted::run(&device, IoMode::Auto, 16, (0..100).map(write).collect());
        assert_eq!(answers.iter().filter(|a| a.is_err()).count(), 1, "operation {nth}");
        let plain = independent_plaintext(&store.inner.contents(), 512);
        for (i, answer) in answers.iter().enumerate() {
            let now = &plain[i * 300..][..300];
            assert_eq!(answer.is_ok(), now.iter().all(|b| *b == i as u8), "operation {nth} write {i}");
        }
    }
}

#[test]
fn one_failing_request_does_not_fail_its_neighbours_with_a_pool() {
    scripted::offloaded(one_failing_request_does_not_fail_its_neighbours);
}

#[test]
fn one_failing_request_does_not_fail_its_neighbours_with_a_carrier() {
    scripted::carried(LEN, one_failing_request_does_not_fail_its_neighbours);
}

/// What a failed write leaves behind is whole data units, old or new, and none outside of it.
#[test]
fn a_carried_write_that_fails_half_way_leaves_whole_units() {
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
        assert!(independent_plaintext(&store.inner.contents(), 512) == expected, "strip {failing}");
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
