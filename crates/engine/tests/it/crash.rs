//! Power cuts: every state the disk may be left in holds what a flush or a FUA write covered.
//!
//! The store logs writes and flushes. A state after a cut is: everything before the last flush that ended, and any
//! subset of the later writes, each torn at 512 bytes. It is read by an implementation that is not ours. XTS lets every
//! block of 16 bytes be its old or its new self, so each block must show the value it had at the last acknowledged
//! flush, or one that was written since.

use crate::scripted::{self, Ask};
use crate::support::{DATA_OFFSET, Random, device, image_of, independent_plaintext};
use inlock_engine::store::file::IoMode;
use inlock_engine::store::memory::MemoryStore;
use inlock_testing::Log;
use std::sync::Arc;

/// A step of the store. The mark: the client has received the completion of the script's next request.
type Step = inlock_testing::Step<()>;

const LEN: usize = 16 << 10;

struct History {
    before: Vec<u8>,
    image: Vec<u8>,
    script: Vec<Ask>,
    log: Vec<Step>,
}

fn record(seed: u64, unit: u32, swallow_flushes: bool) -> History {
    let mut random = Random::new(seed);
    let before = random.bytes(LEN);
    let image = image_of(&before, unit);
    let mut script = Vec::new();
    for _ in 0..40 {
        let (offset, len) = random.range(LEN as u64, unit.into());
        let len = len.min(3 * u64::from(unit));
        script.push(match random.below(6) {
            0 => Ask::Flush,
            1 => Ask::Zeroes { offset, len },
            kind => Ask::Write { offset, data: random.bytes(len as usize), durable: kind == 2 },
        });
    }
    let log = Log::default();
    let store = log.store(Arc::new(MemoryStore::new(image.clone())), swallow_flushes);
    let device = device(Arc::new(store), unit);
    let acks = log.clone();
    let watch = move |_| acks.mark(());
    for answer in scripted::run_watched(&device, IoMode::Auto, 1, script.clone(), Box::new(watch)) {
        answer.unwrap();
    }
    let log = log.steps().clone();
    History { before, image, script, log }
}

impl History {
    /// The image after a cut at `cut`: what was flushed, and a random part of the rest.
    fn state(&self, cut: usize, random: &mut Random) -> Vec<u8> {
        let mut image = self.image.clone();
        let flushed = self.log[..cut].iter().rposition(|e| matches!(e, Step::Sync)).map_or(0, |i| i + 1);
        for (index, event) in self.log[..cut].iter().enumerate() {
            let Step::Write { at, data } = event else { continue };
            let certain = index < flushed;
            for (sector, bytes) in data.chunks(512).enumerate() {
                if certain || random.below(2) == 0 {
                    let at = at + sector * 512;
                    image[at..at + bytes.len()].copy_from_slice(bytes);
                }
            }
        }
        image
    }

    /// Returns the blocks of `plain` that show neither the last promised data nor data written since.
    fn violations(&self, cut: usize, plain: &[u8]) -> usize {
        let mut current = self.before.clone();
        let mut allowed: Vec<Vec<u128>> = blocks(&current).map(|b| vec![b]).collect();
        let is_ack = |e: &&Step| matches!(e, Step::Mark(()));
        let acknowledged = self.log[..cut].iter().filter(is_ack).count();
        // One request at a time: they are acknowledged in the script's order.
        for ask in &self.script[..acknowledged] {
            if matches!(ask, Ask::Flush) {
                allowed = blocks(&current).map(|b| vec![b]).collect();
            }
            let durable = matches!(ask, Ask::Write { durable: true, .. });
            write(&mut current, &mut allowed, ask, durable);
        }
        // The request in flight at the cut may have changed its range, or not.
        if let Some(ask) = self.script.get(acknowledged) {
            write(&mut current, &mut allowed, ask, false);
        }
        blocks(plain).zip(&allowed).filter(|(found, values)| !values.contains(found)).count()
    }
}

fn blocks(bytes: &[u8]) -> impl Iterator<Item = u128> {
    bytes.as_chunks::<16>().0.iter().map(|b| u128::from_ne_bytes(*b))
}

fn write(current: &mut [u8], allowed: &mut [Vec<u128>], ask: &Ask, durable: bool) {
    let zeroes;
    let (offset, data) = match ask {
        Ask::Write { offset, data, .. } => (*offset as usize, data),
        Ask::Zeroes { offset, len } => {
            zeroes = vec![0; *len as usize];
            (*offset as usize, &zeroes)
        }
        _ => return,
    };
    current[offset..offset + data.len()].copy_from_slice(data);
    let (first, last) = (offset / 16, (offset + data.len() - 1) / 16);
    for (block, value) in (first..=last).zip(blocks(&current[first * 16..(last + 1) * 16])) {
        if durable {
            allowed[block].clear();
        }
        allowed[block].push(value);
    }
}

fn cuts(seeds: std::ops::Range<u64>, swallow_flushes: bool) -> (usize, usize) {
    let (mut states, mut violations) = (0, 0);
    for seed in seeds {
        for unit in [512, 4096] {
            let history = record(seed, unit, swallow_flushes);
            let mut random = Random::new(seed ^ 0xc0ffee);
            for cut in 0..=history.log.len() {
                let plain = independent_plaintext(&history.state(cut, &mut random), unit);
                violations += history.violations(cut, &plain);
                states += 1;
            }
        }
    }
    (states, violations)
}

#[test]
fn flushed_and_fua_writes_survive_a_power_cut() {
    let (states, violations) = cuts(1..24, false);
    println!("{states} states, {violations} violations");
    assert_eq!(violations, 0, "of {states} states");
    assert!(states >= 2000, "only {states} states were rebuilt");
}

#[test]
fn flushed_writes_survive_a_power_cut_with_a_pool() {
    scripted::offloaded(|| {
        let (states, violations) = cuts(1..6, false);
        println!("{states} states with a pool, {violations} violations");
        assert!(states >= 400 && violations == 0, "{violations} violations in {states} states");
    });
}

/// The negative control: a store that swallows flushes must be caught.
#[test]
fn swallowed_flush_is_found() {
    let (states, violations) = cuts(1..4, true);
    assert!(violations > 0, "{states} states of a store that loses writes passed");
    // And the test data itself is fine: the image starts where the data area does.
    assert_eq!(image_of(&[0; LEN], 512).len(), DATA_OFFSET + LEN);
}

#[test]
fn flushed_writes_survive_a_power_cut_with_a_copy_thread() {
    scripted::carried(1024, || {
        let (states, violations) = cuts(1..6, false);
        println!("{states} states with a copy thread, {violations} violations");
        assert!(states >= 400 && violations == 0, "{violations} violations in {states} states");
    });
}
