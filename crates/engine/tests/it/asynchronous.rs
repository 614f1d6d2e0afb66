//! Asynchronous stores: one in memory behind a thread, and what becomes of operations that it holds, drops or lies
//! about.

use crate::scripted::{self, Ask};
use crate::support::{DATA_OFFSET, Random, device, image_of, independent_plaintext};
use inlock_engine::fault_injection::{Call, Fault, Injector, around};
use inlock_engine::store::StoreOperation;
use inlock_engine::store::asynchronous::{self, AsyncStore, Pending};
use inlock_engine::store::file::IoMode;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::store::{BackingStore, Geometry, StoreProfile};
use inlock_engine::{BlockingDevice, Errno, RequestError};
use inlock_tests::wait::eventually;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Memory behind a thread, whose late completions overtake each other.
pub(crate) struct ThreadStore {
    memory: Arc<MemoryStore>,
    sender: Mutex<Option<Sender<Pending>>>,
    aborted: Arc<AtomicBool>,
    held: Arc<AtomicUsize>,
}

impl ThreadStore {
    pub(crate) fn new(image: Vec<u8>, faults: Arc<dyn Injector>) -> Self {
        Self::over(MemoryStore::new(image), faults)
    }

    /// Puts this memory behind a thread.
    pub(crate) fn over(memory: MemoryStore, faults: Arc<dyn Injector>) -> Self {
        let memory = Arc::new(memory);
        let (sender, receiver) = channel();
        let (aborted, held) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let state = StoreThread {
            memory: Arc::clone(&memory),
            faults,
            aborted: Arc::clone(&aborted),
            held: Arc::clone(&held),
            late: Vec::new(),
            dropped: false,
        };
        std::thread::spawn(move || state.run(&receiver));
        Self { memory, sender: Mutex::new(Some(sender)), aborted, held }
    }

    pub(crate) fn contents(&self) -> Vec<u8> {
        self.memory.contents()
    }

    /// Waits until the store holds `count` operations back.
    fn wait_until_held(&self, count: usize) {
        eventually("operations are held", || self.held.load(Ordering::Acquire), |held| *held >= count);
    }
}

impl AsyncStore for ThreadStore {
    fn start(&self, pending: Pending) {
        if let Some(sender) = &*self.sender.lock().unwrap() {
            // An operation that finds no thread is dropped, and so fails.
            let _ = sender.send(pending);
        }
    }
    fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
    }
}

impl BackingStore for ThreadStore {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    fn profile(&self) -> StoreProfile {
        self.memory.profile()
    }
    fn asynchronous(&self) -> Option<&dyn AsyncStore> {
        Some(self)
    }
    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        asynchronous::read_at(self, data, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        asynchronous::write_at(self, data, offset, false)
    }
    fn sync(&self) -> Result<(), Errno> {
        asynchronous::sync(self)
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        asynchronous::discard(self, offset, len)
    }
}

/// The thread's state.
struct StoreThread {
    memory: Arc<MemoryStore>,
    faults: Arc<dyn Injector>,
    aborted: Arc<AtomicBool>,
    held: Arc<AtomicUsize>,
    /// Completions held back.
    late: Vec<(Pending, Result<usize, Errno>)>,
    /// Whether the next `EIO` is a dropped operation.
    dropped: bool,
}

impl StoreThread {
    fn run(mut self, receiver: &Receiver<Pending>) {
        loop {
            match receiver.recv_timeout(Duration::from_millis(1)) {
                Ok(pending) => self.take(pending),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.aborted.load(Ordering::Acquire) {
                self.late.drain(..).for_each(|(pending, _)| pending.complete(Err(Errno::IO)));
            }
        }
    }

    fn take(&mut self, mut pending: Pending) {
        if self.aborted.load(Ordering::Acquire) {
            return pending.complete(Err(Errno::IO));
        }
        let fault = Remembered(Arc::clone(&self.faults), Mutex::new(None));
        let result = self.carry_out(pending.operation_mut(), &fault);
        match fault.1.into_inner().unwrap() {
            // A completion that never comes.
            Some(Fault::Errno(Errno::IO)) => {
                self.dropped = !self.dropped;
                if self.dropped { drop(pending) } else { pending.complete(result) }
            }
            Some(Fault::Delay(u32::MAX)) => {
                self.late.push((pending, result));
                self.held.fetch_add(1, Ordering::Release);
            }
            Some(Fault::Delay(ms)) => {
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(ms.into()));
                    pending.complete(result);
                });
            }
            _ => pending.complete(result),
        }
    }

    fn carry_out(&self, operation: &mut StoreOperation, faults: &dyn Injector) -> Result<usize, Errno> {
        match operation {
            StoreOperation::Read { offset, buffer, range } => around(faults, Call::Read, range.len(), |len| {
                self.memory.read_at(&mut buffer.data_mut()[range.clone()][..len], *offset)
            }),
            StoreOperation::Write { offset, data, range, durable } => {
                around(faults, Call::Write { durable: *durable }, range.len(), |len| {
                    self.memory.write_at(&data.bytes()[range.clone()][..len], *offset)
                })
            }
            StoreOperation::Sync => around(faults, Call::Sync, 0, |_| Ok(0)),
            StoreOperation::Discard { offset, len } => {
                around(faults, Call::Discard, 0, |_| self.memory.discard(*offset, *len).map(|()| 0))
            }
            other => unreachable!("{other:?}"),
        }
    }
}

/// Remembers the decision of an injector.
struct Remembered(Arc<dyn Injector>, Mutex<Option<Fault>>);

impl Injector for Remembered {
    fn decide(&self, call: Call) -> Option<Fault> {
        let fault = self.0.decide(call);
        *self.1.lock().unwrap() = fault;
        fault
    }
}

pub(crate) const LEN: usize = 256 << 10;

fn script(random: &mut Random, count: usize) -> Vec<Ask> {
    let mut ask = |_| {
        let (offset, len) = random.range(LEN as u64, 4096);
        match random.below(8) {
            0..=2 => Ask::Read { offset, len },
            3 => Ask::Flush,
            4 => Ask::Zeroes { offset, len },
            _ => Ask::Write { offset, data: random.bytes(len as usize), durable: random.below(3) == 0 },
        }
    };
    (0..count).map(&mut ask).collect()
}

/// The worker and callers that block get the bytes of the model.
#[test]
fn asynchronous_store_agrees_with_the_model() {
    for (seed, unit) in [(1, 512), (2, 4096), (3, 512), (4, 4096)] {
        let mut random = Random::new(seed);
        let model = random.bytes(LEN);
        let late = |_: Call| Some(Fault::Delay(1));
        let none = |_: Call| None;
        let faults: Arc<dyn Injector> = if seed % 2 == 0 { Arc::new(late) } else { Arc::new(none) };
        let store = Arc::new(ThreadStore::new(image_of(&model, unit), faults));
        agrees_with_model(Arc::clone(&store) as _, unit, &mut random, model, || store.contents());
    }
}

/// Runs a random script through one worker, and compares answers and ciphertext with a model of the content; then
/// writes and reads as a caller that blocks.
pub(crate) fn agrees_with_model(
    store: Arc<dyn BackingStore>,
    unit: u32,
    random: &mut Random,
    mut model: Vec<u8>,
    contents: impl Fn() -> Vec<u8>,
) {
    let device = device(store, unit);
    let script = script(random, 60);
    let answers = scripted::run(&device, IoMode::Auto, 1, script.clone());
    for (ask, answer) in script.iter().zip(answers) {
        let answer = answer.unwrap();
        match ask {
            Ask::Read { offset, len } => assert!(answer == model[*offset as usize..][..*len as usize], "{ask:?}"),
            Ask::Write { offset, data, .. } => model[*offset as usize..][..data.len()].copy_from_slice(data),
            Ask::Zeroes { offset, len } => model[*offset as usize..][..*len as usize].fill(0),
            _ => {}
        }
    }
    assert!(independent_plaintext(&contents(), unit) == model, "data units of {unit}");
    let blocking = BlockingDevice::new(device);
    let data = random.bytes(10_000);
    blocking.write_at(&data, 333).unwrap();
    blocking.flush().unwrap();
    let mut found = vec![0; data.len()];
    blocking.read_at(&mut found, 333).unwrap();
    assert!(found == data);
}

/// Operations that a store holds for ever end with EIO when it is aborted, and so do later ones.
#[test]
fn aborted_store_fails_what_waits_and_what_comes() {
    let hold = |call: Call| matches!(call, Call::Write { .. }).then_some(Fault::Delay(u32::MAX));
    let store = Arc::new(ThreadStore::new(vec![0; DATA_OFFSET + LEN], Arc::new(hold)));
    let device = device(Arc::clone(&store) as _, 512);
    let write = |i: u64| Ask::Write { offset: i * 4096, data: vec![7; 4096], durable: false };
    let aborting = {
        let store = Arc::clone(&store);
        std::thread::spawn(move || {
            store.wait_until_held(8);
            store.abort();
        })
    };
    let answers = scripted::run(&device, IoMode::Auto, 8, (0..16).map(write).collect());
    aborting.join().unwrap();
    assert_eq!(answers.len(), 16);
    assert!(answers.iter().all(|answer| *answer == Err(RequestError::Io(Errno::IO))), "{answers:?}");
    assert_eq!(BlockingDevice::new(device).flush(), Err(RequestError::Io(Errno::IO)));
}

/// A store that claims to have transferred more than was asked for has failed.
#[test]
fn count_beyond_the_request_is_an_error() {
    struct Boastful(MemoryStore);
    impl AsyncStore for Boastful {
        fn start(&self, pending: Pending) {
            let count = pending.operation().transfer_len() + 1;
            pending.complete(Ok(count));
        }
        fn abort(&self) {}
    }
    impl BackingStore for Boastful {
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }
        fn asynchronous(&self) -> Option<&dyn AsyncStore> {
            Some(self)
        }
        fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
            asynchronous::read_at(self, data, offset)
        }
        fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
            asynchronous::write_at(self, data, offset, false)
        }
        fn sync(&self) -> Result<(), Errno> {
            asynchronous::sync(self)
        }
        fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
            asynchronous::discard(self, offset, len)
        }
    }
    let store = Arc::new(Boastful(MemoryStore::new(vec![0; DATA_OFFSET + LEN])));
    let device = device(Arc::clone(&store) as _, 512);
    let script = vec![
        Ask::Read { offset: 0, len: 512 },
        Ask::Write { offset: 0, data: vec![1; 512], durable: false },
        Ask::Write { offset: 1, data: vec![1; 5], durable: false },
        Ask::Flush,
    ];
    let answers = scripted::run(&device, IoMode::Auto, 1, script);
    assert!(answers.iter().all(|answer| *answer == Err(RequestError::Io(Errno::IO))), "{answers:?}");
    assert_eq!(store.read_at(&mut [0; 512], 0), Err(Errno::IO));
}

/// A worker that ends waits for the operations at the store: no write of its own reaches it later.
#[test]
fn worker_that_ends_waits_for_its_operations() {
    let slow = |call: Call| matches!(call, Call::Write { .. }).then_some(Fault::Delay(30));
    let store = Arc::new(ThreadStore::new(vec![0; DATA_OFFSET + LEN], Arc::new(slow)));
    let device = device(Arc::clone(&store) as _, 512);
    let script = vec![Ask::Write { offset: 0, data: vec![1; 512], durable: false }];
    scripted::run_and_drop_early(&device, script);
    let before = store.contents();
    std::thread::sleep(Duration::from_millis(60));
    assert!(store.contents() == before);
    // Nothing holds the lock on its units any longer.
    BlockingDevice::new(device).write_at(&[2; 100], 7).unwrap();
}
