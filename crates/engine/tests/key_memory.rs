//! Looks through this process's memory for a volume's key while it is suspended. Alone in its program, so that no other
//! test's keys lie about.

// Helpers outside test functions may fail a test as well as the functions themselves.
#![allow(missing_docs, clippy::unwrap_used)]

use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};
use inlock_engine::buffer::{BufferClass, BufferPool};
use inlock_engine::request::Operation;
use inlock_engine::ring::{Completion, Ring, Wait};
use inlock_engine::store::{file::IoMode, memory::MemoryStore};
use inlock_engine::worker::{Context, CopyOptions, Finished, Flow, Frontend, Request, Worker};
use inlock_engine::{Access, BlockingDevice, Device};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, mpsc};

/// Mask of the needles, which are only kept masked, so that the search does not find the needles themselves.
const MASK: u8 = 0xa5;

fn key_byte(at: usize) -> u8 {
    let mixed = (at as u32 + 1).wrapping_mul(0x9e37_79b9);
    (mixed >> 16) as u8 ^ (mixed >> 5) as u8
}

fn key() -> VolumeKey {
    let mut key = VolumeKey::zeroed(64);
    key.as_mut_bytes().iter_mut().enumerate().for_each(|(at, byte)| *byte = key_byte(at));
    key
}

fn times_two(x: u8) -> u8 {
    (x << 1) ^ if x & 0x80 != 0 { 0x1b } else { 0 }
}

fn times(a: u8, b: u8) -> u8 {
    (0..8).fold((0, a), |(sum, power), bit| (sum ^ if b >> bit & 1 == 1 { power } else { 0 }, times_two(power))).0
}

/// The S-box of FIPS 197, section 5.1.1.
fn substitute(x: u8) -> u8 {
    let inverse = (0..254).fold(1, |product, _| times(product, x));
    (0..5).fold(0, |sum, turn| sum ^ inverse.rotate_left(turn)) ^ 0x63
}

/// The key schedule of AES-256 (FIPS 197, section 5.2) in disguise, a word at a time: sixteen of its bytes never stand
/// side by side undisguised.
fn masked_schedule(half: usize) -> Vec<u8> {
    let mut masked: Vec<u8> = (0..32).map(|at| key_byte(32 * half + at) ^ MASK).collect();
    let mut round = 1;
    for word in 8..60 {
        let byte = |at: usize| masked[4 * (word - 1) + at % 4] ^ MASK;
        let mut new = match word % 8 {
            0 => {
                let turned = [1, 2, 3, 4].map(|at| substitute(byte(at)));
                let new = [turned[0] ^ round, turned[1], turned[2], turned[3]];
                round = times_two(round);
                new
            }
            4 => [0, 1, 2, 3].map(|at| substitute(byte(at))),
            _ => [0, 1, 2, 3].map(byte),
        };
        new.iter_mut().enumerate().for_each(|(at, byte)| *byte ^= masked[4 * (word - 8) + at] ^ MASK);
        masked.extend(new.map(|byte| byte ^ MASK));
    }
    masked
}

/// The volume key and every round key, 16 bytes each.
fn needles() -> Vec<Vec<u8>> {
    (0..2).flat_map(|half| masked_schedule(half).chunks(16).map(<[u8]>::to_vec).collect::<Vec<_>>()).collect()
}

/// A run of this process's memory that can be read.
struct Region {
    start: u64,
    end: u64,
    /// Kept out of core dumps and forks: where keys belong.
    protected: bool,
    stack: bool,
}

fn regions() -> Vec<Region> {
    let mut found: Vec<Region> = Vec::new();
    for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
            found.last_mut().unwrap().protected = has("dd") && has("wf");
        } else if let Some((range, rest)) = line.split_once(' ')
            && let Some((start, end)) = range.split_once('-')
            && let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
        {
            let readable = rest.starts_with("rw");
            let end = if readable { end } else { start };
            found.push(Region { start, end, protected: false, stack: rest.ends_with("[stack]") });
        }
    }
    found
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    /// Which needles, on protected pages and elsewhere.
    protected: BTreeSet<usize>,
    elsewhere: BTreeSet<usize>,
    /// Protected pages that hold anything.
    pages: usize,
}

/// Searches all memory of this process for the needles. Skips `window`, into which it reads them.
fn search(needles: &[Vec<u8>], window: &mut [u8]) -> Found {
    let own = window.as_ptr().addr() as u64..window.as_ptr().addr() as u64 + window.len() as u64;
    let memory = File::open("/proc/self/mem").unwrap();
    let mut found = Found::default();
    let mut first = vec![Vec::new(); 256];
    needles.iter().enumerate().for_each(|(at, needle)| first[usize::from(needle[0] ^ MASK)].push(at));
    let zeroes = vec![0; window.len()];
    for region in regions().iter().filter(|r| r.start < r.end && !r.stack) {
        let mut at = region.start;
        while at < region.end {
            let len = (region.end - at).min(window.len() as u64) as usize;
            let overlaps = at < own.end && own.start < at + len as u64;
            let read = memory.read_at(&mut window[..len], at).unwrap_or(0);
            let there = &window[..read];
            if read > 0 && *there != zeroes[..read] && !overlaps {
                found.pages += usize::from(region.protected);
                let hits = if region.protected { &mut found.protected } else { &mut found.elsewhere };
                for (offset, byte) in there.iter().enumerate() {
                    let same = |at: &&usize| there[offset..].iter().zip(&needles[**at]).all(|(a, b)| a ^ MASK == *b);
                    let whole = there.len() - offset >= 16;
                    hits.extend(first[usize::from(*byte)].iter().filter(|at| whole && same(at)));
                }
            }
            // The windows overlap, so that nothing is missed between two of them.
            at += if len == window.len() { len as u64 - 16 } else { len as u64 };
        }
    }
    window.fill(0);
    found
}

/// Writes once, then waits to be told to stop.
struct Idle {
    asked: bool,
    stop: bool,
    wrote: mpsc::Sender<()>,
}

impl Frontend for Idle {
    type Message = ();

    fn on_message(&mut self, _cx: &mut Context<'_>, (): ()) {
        self.stop = true;
    }
    fn on_completion(&mut self, _cx: &mut Context<'_>, _done: Completion) {}
    fn on_finished(&mut self, _cx: &mut Context<'_>, done: Finished) {
        done.result.unwrap();
        self.wrote.send(()).unwrap();
    }
    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait) {
        if !std::mem::replace(&mut self.asked, true) {
            let mapped = cx.mapping.locate(0, 4096, usize::MAX / 2).unwrap();
            let data = Some((mapped, cx.pool.take(4096, 4096).unwrap()));
            let operation = Operation::Write { durable: false };
            cx.requests.push_back(Request { id: 0, operation, offset: 0, len: 4096, data, spare: None });
        }
        (if self.stop { Flow::Stop } else { Flow::Continue }, Wait::Forever)
    }
}

fn open() -> Device {
    let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::SECTOR);
    Device::new(&[segment], &key(), Arc::new(MemoryStore::new(vec![0; 1 << 20])), Access::default()).unwrap()
}

#[test]
fn key_is_gone_from_memory_while_suspended() {
    let device = Arc::new(open());
    let (tell, mailbox) = mpsc::channel();
    let (wrote, written) = mpsc::channel();
    // One does its cipher work itself, one has a thread for it.
    let workers = [false, true].map(|carries| {
        let (device, tell, wrote) = (Arc::clone(&device), tell.clone(), wrote.clone());
        std::thread::spawn(move || {
            let pool = BufferPool::new(&[BufferClass { capacity: 8192, count: 1 }]);
            let front = Idle { asked: false, stop: false, wrote };
            let mut worker = Worker::new(device, Ring::new(IoMode::Auto).unwrap(), pool, front);
            if carries {
                let mut options = CopyOptions::default();
                (options.min_len, options.chunk_len) = (1, 4096);
                worker = worker.with_copy_thread(&options).unwrap();
            }
            tell.send(worker.mailbox()).unwrap();
            worker.run().unwrap();
        })
    });
    let mailboxes = [mailbox.recv().unwrap(), mailbox.recv().unwrap()];
    (0..2).for_each(|_| written.recv().unwrap());
    let blocking = BlockingDevice::new(Arc::clone(&device));
    blocking.write_at(&[7; 5000], 300).unwrap();
    let needles = needles();
    let mut window = vec![0; 256 << 10];

    let open = search(&needles, &mut window);
    assert!(open.pages > 0, "keys have pages of their own");
    // The portable kernel keeps its schedule in another form, which only the pages show.
    let kernel = inlock_cipher::AesKernel::best().unwrap().name();
    let round_keys: BTreeSet<usize> = (0..needles.len()).collect();
    if kernel != "portable" {
        assert_eq!(open.protected, round_keys, "the search finds every round key of both halves: {kernel}");
    }
    device.suspend().unwrap();
    let suspended = search(&needles, &mut window);
    assert_eq!(
        (&suspended.protected, suspended.pages),
        (&open.protected, open.pages),
        "suspending alone keeps the key"
    );

    device.wipe_key().unwrap();
    let wiped = search(&needles, &mut window);
    assert_eq!((wiped.protected.len(), wiped.pages), (0, 0), "{wiped:?}");
    // An unoptimised build passes every vector register through the stack, where copies of the key may remain.
    if !cfg!(debug_assertions) {
        assert!(wiped.elsewhere.is_empty(), "{wiped:?}");
    }

    device.set_key(&key()).unwrap();
    device.resume().unwrap();
    let mut bytes = [0; 5000];
    blocking.read_at(&mut bytes, 300).unwrap();
    assert_eq!(bytes, [7; 5000]);
    let again = search(&needles, &mut window);
    assert_eq!((&again.protected, again.pages), (&open.protected, open.pages));
    mailboxes.iter().for_each(|mailbox| mailbox.post(()));
    workers.into_iter().for_each(|worker| worker.join().unwrap());
}
