//! When the pool is asked, and what happens when it cannot be.

use crate::scripted::offload_options;
use crate::scripted::{self, Ask};
use crate::support::{DATA_OFFSET, Random, device, independent_plaintext};
use inlock_engine::OffloadError;
use inlock_engine::store::file::IoMode;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{Device, Offload, OffloadOptions, OffloadPolicy};
use std::sync::Arc;

const LEN: usize = 512 << 10;

fn run(device: &Arc<Device>, policy: OffloadPolicy, depth: usize, script: Vec<Ask>) -> Option<Arc<Offload>> {
    let pool = Offload::start(device, &offload_options(policy, 2)).unwrap();
    for answer in scripted::run_with(device, IoMode::Auto, depth, script, pool.clone()) {
        answer.unwrap();
    }
    pool
}

fn new_device() -> (Arc<MemoryStore>, Arc<Device>) {
    let store = Arc::new(MemoryStore::new(vec![0; DATA_OFFSET + LEN]));
    (Arc::clone(&store), device(store, 4096))
}

#[test]
fn offload_policy_selects_requests() {
    let script = || {
        vec![
            Ask::Write { offset: 0, data: vec![1; 8192], durable: false },
            Ask::Zeroes { offset: 8192, len: 4096 },
            Ask::Read { offset: 0, len: 8192 },
            Ask::Read { offset: 5, len: 10 },
            Ask::Read { offset: 1, len: 20_000 },
            Ask::Flush,
        ]
    };
    // An AES request this short is over before another thread wakes up.
    let cases = [("none", 0), ("reads", 3), ("writes", 2), ("both", 5), ("auto", 0)];
    for (name, offloaded) in cases {
        let policy: OffloadPolicy = name.parse().unwrap();
        assert_eq!(policy.to_string(), name);
        let (_, device) = new_device();
        let pool = run(&device, policy, 4, script());
        assert_eq!(pool.is_none(), policy == OffloadPolicy::None);
        let s = device.stats().snapshot();
        assert_eq!((s.offloaded, s.inline), (offloaded, 5 - offloaded), "{name}");
    }
    assert!("sometimes".parse::<OffloadPolicy>().is_err());
}

#[test]
fn offloaded_request_is_split_at_unit_boundaries() {
    let (store, device) = new_device();
    let data = Random::new(5).bytes(200_000);
    let write = Ask::Write { offset: 0, data: data.clone(), durable: false };
    run(&device, OffloadPolicy::Both, 1, vec![write]);
    let s = device.stats().snapshot();
    // One call for the edge unit, which is read first, and one for each of two threads.
    assert_eq!((s.offloaded, s.cipher_calls, s.cipher_units), (1, 3, 1 + 49));
    assert!(independent_plaintext(&store.contents(), 4096)[..200_000] == data);
}

#[test]
fn where_the_pool_takes_nothing_the_worker_does_the_work() {
    let script = || -> Vec<Ask> {
        (0..2000).map(|i| Ask::Write { offset: i % 128 * 4096, data: vec![i as u8; 4096], durable: false }).collect()
    };
    let (store, device) = new_device();
    let options = offload_options(OffloadPolicy::Both, 1);
    let pool = Offload::start(&device, &options).unwrap();
    pool.as_ref().unwrap().close();
    for answer in scripted::run_with(&device, IoMode::Auto, 1, script(), pool) {
        answer.unwrap();
    }
    assert_eq!(device.stats().snapshot().inline, 2000);
    let plain = independent_plaintext(&store.contents(), 4096);
    assert!((0..128).all(|n| plain[n * 4096] == (1920 + n - if n >= 80 { 128 } else { 0 }) as u8));
}

#[test]
fn offload_pool_without_threads_is_refused() {
    let (_, device) = new_device();
    for threads in [0, OffloadOptions::MAX_THREADS + 1] {
        let options = offload_options(OffloadPolicy::Reads, threads);
        let refused = Offload::start(&device, &options).unwrap_err();
        assert!(matches!(refused, OffloadError::Threads { given } if given == threads));
        assert_eq!(refused.to_string(), format!("a cipher pool has 1 to 256 threads, not {threads}"));
    }
}
