//! Reads and writes of volumes with integrity protection allocate nothing, and need no memory to go on.
//!
//! Several threads use one store at a time. Each has blocks of its own, with borders inside blocks too; what is read is
//! compared with a model. Before the threads are watched, they fill the caches, and each is inside a request while the
//! others are, so that every thread finds memory of an earlier request.

#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../engine/tests/no_alloc/allocator.rs"]
mod allocator;
#[path = "it/support.rs"]
#[allow(dead_code)] // The other program uses all of it.
mod support;

use allocator::Mode as OnAllocation;
use inlock_cipher::{Aead, AeadSpec, DataUnitSize, IvNumbering, Sector, VolumeKey};
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{BackingStore, Errno, Geometry};
use inlock_integrity::{FormatOptions, IntegrityDevice, IntegrityStore, JournalCipher, Mode, Sealing, Stores};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use support::{Numbers, formatted, hash, memory, open_options};

const THREADS: usize = 2;
/// Bytes of each thread; borders lie within blocks.
const SHARE: usize = (5 << 20) + 700;
const MIB: usize = 1 << 20;
const REQUESTS: usize = 4000;

/// Makes threads wait for each other in the middle of their requests.
struct Meeting {
    store: Arc<MemoryStore>,
    is_on: AtomicBool,
    all_inside: Barrier,
}

impl Meeting {
    fn meet(&self) {
        thread_local!(static HAS_MET: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
        if self.is_on.load(Ordering::SeqCst) && !HAS_MET.replace(true) {
            self.all_inside.wait();
        }
    }
}

impl BackingStore for Meeting {
    fn geometry(&self) -> Geometry {
        self.store.geometry()
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.meet();
        self.store.read_at(data, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        self.store.write_at(data, offset)
    }

    fn sync(&self) -> Result<(), Errno> {
        self.store.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.store.discard(offset, len)
    }
}

struct Case {
    name: &'static str,
    mode: Mode,
    format: FormatOptions,
    /// Cipher and integrity of LUKS2, or an internal hash.
    sealed: Option<(&'static str, &'static str)>,
}

impl Case {
    fn sealed(name: &'static str, mode: Mode, unit: usize, cipher: &'static str, integrity: &'static str) -> Self {
        let tag_size = Some(AeadSpec::from_luks2(cipher, integrity).unwrap().metadata_len());
        let format = FormatOptions { tag_size, block_len: unit, ..FormatOptions::default() };
        Self { name, mode, format, sealed: Some((cipher, integrity)) }
    }

    fn hashed(name: &'static str, mode: Mode, unit: usize, tags: &str, more: FormatOptions) -> Self {
        let format = FormatOptions { internal_hash: Some(hash(tags)), block_len: unit, ..more };
        Self { name, mode, format, sealed: None }
    }

    fn store(&self) -> (IntegrityStore, Arc<Meeting>) {
        let len = THREADS * SHARE * 3 / 2 + (8 << 20);
        let format = FormatOptions { journal_sectors: Some(4096), ..self.format.clone() };
        let store = memory(formatted(&format, len, None).0);
        let meeting = Meeting { store, is_on: AtomicBool::new(false), all_inside: Barrier::new(THREADS) };
        let meeting = Arc::new(meeting);
        let device = IntegrityDevice::open(Stores::interleaved(meeting.clone()), open_options(self.mode, &format));
        let device = Arc::new(device.unwrap());
        let Some((cipher, integrity)) = self.sealed else { return (IntegrityStore::new(device).unwrap(), meeting) };
        let spec = AeadSpec::from_luks2(cipher, integrity).unwrap();
        let key = vec![0x35; *spec.key_lens().last().unwrap()];
        let unit = DataUnitSize::new(self.format.block_len as u32).unwrap();
        let aead = Aead::new(&spec, &key, unit, IvNumbering::Sectors, Sector(0)).unwrap();
        let sealing = Sealing::new(aead, &key, spec.metadata_len()).unwrap();
        (IntegrityStore::sealed(device, sealing).unwrap(), meeting)
    }
}

fn cases() -> Vec<Case> {
    let with_mac = FormatOptions { journal_mac: Some(hash("hmac-sha256")), ..FormatOptions::default() };
    let cipher = JournalCipher::new("ctr(aes)", &VolumeKey::new(&[3; 32])).unwrap();
    let encrypted = FormatOptions { journal_cipher: Some(Arc::new(cipher)), ..FormatOptions::default() };
    vec![
        Case::sealed("gcm 4096 J", Mode::Journal, 4096, "aes-gcm-random", "aead"),
        Case::sealed("gcm 4096 D", Mode::Direct, 4096, "aes-gcm-random", "aead"),
        Case::sealed("gcm 512 J", Mode::Journal, 512, "aes-gcm-random", "aead"),
        Case::sealed("ccm 512 D", Mode::Direct, 512, "aes-ccm-random", "aead"),
        Case::sealed("aegis 4096 J", Mode::Journal, 4096, "aegis128-random", "aead"),
        Case::sealed("chacha20 4096 D", Mode::Direct, 4096, "chacha20-random", "poly1305"),
        Case::sealed("hmac-sha256 4096 J", Mode::Journal, 4096, "aes-xts-random", "hmac(sha256)"),
        Case::sealed("hmac-sha512 512 D", Mode::Direct, 512, "aes-xts-random", "hmac(sha512)"),
        Case::hashed("crc32c J", Mode::Journal, 4096, "crc32c", encrypted),
        Case::hashed("hmac-sha256 J with a MAC", Mode::Journal, 512, "hmac-sha256", with_mac),
        Case::hashed("sha256 D", Mode::Direct, 4096, "sha256", FormatOptions::default()),
        Case::hashed("xxhash64 B", Mode::Bitmap, 4096, "xxhash64", FormatOptions::default()),
    ]
}

/// Bytes of one thread, and their model.
struct Share<'a> {
    store: &'a IntegrityStore,
    start: usize,
    model: Vec<u8>,
    bytes: Vec<u8>,
    numbers: Numbers,
}

impl<'a> Share<'a> {
    fn new(store: &'a IntegrityStore, number: usize) -> Self {
        let numbers = Numbers(number as u64 * 77 + 0x9e37_79b9);
        Self { store, start: number * SHARE, model: vec![0; SHARE], bytes: vec![0; SHARE], numbers }
    }

    fn write(&mut self, at: usize, len: usize) {
        let value = self.numbers.below(256) as u8;
        let part = &mut self.model[at..at + len];
        part.iter_mut().enumerate().for_each(|(n, byte)| *byte = value.wrapping_add(n as u8));
        let mut done = 0;
        while done < len {
            done += self.store.write_at(&part[done..], (self.start + at + done) as u64).unwrap();
        }
    }

    fn read(&mut self, at: usize, len: usize) {
        let bytes = &mut self.bytes[..len];
        let mut done = 0;
        while done < len {
            done += self.store.read_at(&mut bytes[done..], (self.start + at + done) as u64).unwrap();
        }
        assert!(*bytes == self.model[at..at + len], "a wrong read at {at}");
    }

    fn step(&mut self) {
        let longest = if self.numbers.below(100) == 0 { MIB } else { 9000 };
        let mut at = self.numbers.below((SHARE - longest) as u64) as usize;
        let mut len = 1 + self.numbers.below(longest as u64) as usize;
        if self.numbers.below(2) == 0 {
            // Whole blocks.
            at = (self.start + at).next_multiple_of(4096) - self.start;
            len = len.next_multiple_of(4096).min((SHARE - at) / 4096 * 4096);
        }
        match self.numbers.below(32) {
            0 => self.store.sync().unwrap(),
            1..=15 => self.read(at, len),
            _ => self.write(at, len),
        }
    }
}

/// Exits the process on a panic, because the other threads would wait at the barrier forever.
fn or_exit(work: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
        std::process::exit(101);
    }
}

/// Returns the number of allocations of the requests.
fn carry_out(case: &Case, on_allocation: OnAllocation, requests: usize) -> u64 {
    let (store, meeting) = case.store();
    let zeroes = vec![0; MIB];
    for at in (0..store.geometry().len).step_by(MIB) {
        let len = MIB.min((store.geometry().len - at) as usize);
        assert_eq!(store.write_at(&zeroes[..len], at), Ok(len));
    }
    store.sync().unwrap();
    let go = Barrier::new(THREADS + 1);
    let allocations = std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (store, go, meeting) = (&store, &go, &meeting);
            let work = move || {
                let mut share = Share::new(store, number);
                meeting.is_on.store(true, Ordering::SeqCst);
                // Partial blocks at both ends, and as long as a request of the store becomes.
                share.read(1, MIB + 1);
                share.write(1, MIB + 1);
                share.write(MIB * 2 + 1, 2 * MIB);
                for at in (0..SHARE - MIB).step_by(MIB / 2) {
                    share.write(at, MIB);
                    share.read(at, MIB);
                }
                go.wait();
                go.wait();
                (0..requests / THREADS).for_each(|_| share.step());
                go.wait();
                go.wait();
            };
            let thread = std::thread::Builder::new().name(format!("inlock-w{number}"));
            thread.spawn_scoped(scope, move || or_exit(work)).unwrap();
        }
        go.wait();
        allocator::watch(on_allocation, THREADS);
        go.wait();
        go.wait();
        let allocations = allocator::unwatch();
        go.wait();
        allocations
    });
    println!("{}, {on_allocation:?}: {requests} requests, {allocations} allocations", case.name);
    let metrics = store.device().metrics();
    assert_eq!(metrics.mismatches, 0);
    assert!(case.mode != Mode::Journal || metrics.commits > 10, "the journal went around");
    allocations
}

/// One test at a time: they all watch the same allocator.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn reads_and_writes_with_tags_allocate_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cases = cases();
    for case in &cases {
        assert_eq!(carry_out(case, OnAllocation::Count, REQUESTS), 0, "{}", case.name);
    }
    println!("COUNT integrity_requests_without_allocation {}", cases.len() * REQUESTS);
}

#[test]
fn without_memory_tags_are_read_and_written() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for case in cases().iter().take(4) {
        assert_eq!(carry_out(case, OnAllocation::Refuse, REQUESTS / 2), 0, "{}", case.name);
    }
}
