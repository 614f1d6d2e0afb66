//! Reads of a device: every range, bad blocks, the bound of the cache.

use crate::support::{Device, failing, memory, noise, parameters, read, recording};
use inlock_cipher::Hash;
use inlock_engine::{BackingStore, Errno, StoreProfile};
use inlock_testing::{Call, ScriptedStore, Verdict};
use inlock_verity::{Area, Fec, FecParameters, OnCorruption, OpenOptions, Stores, VerityError, VerityStore};
use std::sync::{Arc, Mutex};

#[test]
fn reads_of_any_range_return_the_data() {
    for (hash, data_len, hash_len) in [(Hash::Sha256, 512, 512), (Hash::Sha1, 4096, 512), (Hash::Sha512, 1024, 4096)] {
        let device = Device::new(&parameters(hash, data_len, hash_len, 600));
        let len = device.data.len();
        for cache_len in [0, 64 << 10] {
            let store = device.open(OpenOptions { cache_len, ..OpenOptions::default() }).unwrap();
            let ranges = noise(7, 400);
            for range in ranges.as_chunks::<8>().0 {
                let at = u32::from_le_bytes(range[..4].try_into().unwrap()) as usize % len;
                let count = u32::from_le_bytes(range[4..].try_into().unwrap()) as usize % 200_000;
                let expected = &device.data[at..(at + count).min(len)];
                assert!(read(&store, at as u64, count).unwrap() == expected, "{count} bytes from {at}");
            }
            assert!(read(&store, 0, len + 1000).unwrap() == device.data);
            assert_eq!(store.read_at(&mut [0; 10], len as u64), Ok(0));
        }
    }
}

#[test]
fn device_is_read_only() {
    let store = Device::new(&parameters(Hash::Sha256, 512, 512, 9)).open(OpenOptions::default()).unwrap();
    assert!(store.geometry().read_only && store.geometry().len == 9 * 512);
    assert_eq!((store.write_at(&[0], 0), store.discard(0, 512)), (Err(Errno::ROFS), Err(Errno::ROFS)));
    assert_eq!(store.sync(), Ok(()));
}

#[test]
fn bad_block_of_data_fails_alone_and_is_reported_once() {
    let mut device = Device::new(&parameters(Hash::Sha256, 4096, 4096, 300));
    device.data[17 * 4096 + 5] ^= 1;
    device.data[299 * 4096] ^= 0x80;
    let (options, reports) = recording();
    let store = device.open(options).unwrap();
    let mut failed = Vec::new();
    for _ in 0..2 {
        failed.clear();
        for block in 0..300u64 {
            match read(&store, block * 4096, 4096) {
                Ok(data) => assert!(data == device.data[block as usize * 4096..][..4096]),
                Err(error) => {
                    assert_eq!(error, Errno::IO);
                    failed.push(block);
                }
            }
        }
    }
    assert_eq!(failed, [17, 299]);
    // A long read returns what precedes the bad block, and reads of its neighbours work.
    let mut long = vec![0xaa; 64 * 4096];
    assert_eq!(store.read_at(&mut long, 0), Ok(17 * 4096));
    assert!(long[17 * 4096..] == [0; 47 * 4096], "bytes that were not verified are not in the buffer");
    assert_eq!(store.read_at(&mut long, 17 * 4096), Err(Errno::IO));
    assert!(long[..4096] == [0; 4096]);
    assert_eq!(store.read_at(&mut long, 17 * 4096 + 4000), Err(Errno::IO));
    assert_eq!(read(&store, 16 * 4096 + 1, 4095).unwrap(), device.data[16 * 4096 + 1..17 * 4096]);
    assert_eq!(store.read_at(&mut long[..100], 17 * 4096 - 50), Ok(50));
    assert_eq!(store.snapshot().corrupted, 6);
    let reports: Vec<_> = reports.lock().unwrap().iter().map(|bad| (bad.area, bad.block, bad.position)).collect();
    assert_eq!(reports, [(Area::Data, 17, 17 * 4096), (Area::Data, 299, 299 * 4096)]);
}

/// A bad block of the tree fails the blocks below it, and no other.
#[test]
fn bad_block_of_the_tree_fails_what_it_covers() {
    let mut device = Device::new(&parameters(Hash::Sha256, 512, 512, 1000));
    let level = device.layout.levels()[0];
    // Digests of blocks 48 to 63.
    let at = (level.start_block as usize + 3) * 512;
    device.tree[at + 511] ^= 4;
    let (options, reports) = recording();
    let store = device.open(options).unwrap();
    let failed: Vec<u64> = (0..1000).filter(|block| read(&store, block * 512, 512).is_err()).collect();
    assert_eq!(failed, (48..64).collect::<Vec<u64>>());
    let reports = reports.lock().unwrap();
    assert_eq!((reports.len(), reports[0].area, reports[0].block), (1, Area::Level(0), 3));
    assert_eq!(reports[0].position, at as u64);
    assert_eq!(reports[0].to_string(), format!("hash block 3 of level 0 at position {at} does not match its digest"));
}

#[test]
fn wrong_root_hash_opens_nothing() {
    let mut device = Device::new(&parameters(Hash::Sha256, 512, 512, 1000));
    device.root[31] ^= 1;
    for error in [device.open(OpenOptions::default()).err().unwrap(), device.verify().unwrap_err()] {
        let VerityError::Corrupt(corruption) = error else { panic!("{error}") };
        assert!(corruption.is_root && corruption.area == Area::Level(2) && corruption.block == 0);
        assert_eq!(corruption.to_string(), "hash block 0 of level 2 at position 0 does not match the root hash");
    }
    device.root.pop();
    assert!(device.open(OpenOptions::default()).is_err() && device.verify().is_err());
}

#[test]
fn ignored_corruption_is_reported_and_returned() {
    let mut device = Device::new(&parameters(Hash::Sha256, 512, 512, 100));
    device.data[512 * 40] ^= 1;
    let second = (device.layout.levels()[0].start_block as usize + 1) * 512;
    device.tree[second] ^= 1;
    let (mut options, reports) = recording();
    options.ignore_corruption = true;
    let store = device.open(options).unwrap();
    assert!(read(&store, 0, 100 * 512).unwrap() == device.data);
    let mut reports: Vec<_> = reports.lock().unwrap().iter().map(|bad| (bad.area, bad.block)).collect();
    reports.sort_unstable();
    // No block whose digest is in the bad one is verified.
    let blocks: Vec<_> = (16..32).chain([40]).map(|block| (Area::Data, block)).chain([(Area::Level(0), 1)]).collect();
    assert_eq!(reports, blocks);
}

/// Blocks of data and of the tree that were changed together, up to a level whose block is found to be bad.
#[test]
fn blocks_below_an_ignored_bad_block_are_never_taken_for_verified() {
    let device = Device::new(&parameters(Hash::Sha256, 512, 512, 1000));
    // A device of other data has another tree; its blocks agree with each other, not with the root hash.
    let other = Device::new(&parameters(Hash::Sha256, 512, 512, 1001));
    assert_eq!(device.layout.levels().len(), 3);
    let mut forged = Device { data: other.data[..1000 * 512].to_vec(), tree: device.tree.clone(), ..device };
    for (level, mine) in forged.layout.levels().iter().enumerate().take(2) {
        let from = other.layout.levels()[level].start_block as usize;
        forged.tree[mine.start_block as usize * 512..][..512].copy_from_slice(&other.tree[from * 512..][..512]);
    }
    let (mut options, reports) = recording();
    options.ignore_corruption = true;
    let store = forged.open(options).unwrap();
    for round in 1..4 {
        // The first block of level 1 covers 256 blocks; of these, the forged block of level 0 has 16.
        assert!(read(&store, 0, 512 * 16).unwrap() == forged.data[..512 * 16]);
        let bad: Vec<_> = reports.lock().unwrap().iter().map(|bad| (bad.area, bad.block)).collect();
        let expected: Vec<_> = [(Area::Level(1), 0)].into_iter().chain((0..16).map(|n| (Area::Data, n))).collect();
        assert_eq!(bad, expected, "each once, in round {round}");
        assert!(reports.lock().unwrap().iter().all(|bad| bad.is_below_corrupted == (bad.area == Area::Data)));
        let (corrupted, blocks) = (store.snapshot().corrupted, round * 16);
        assert!(corrupted > blocks, "{corrupted}: every read of {blocks} blocks and of the bad one is counted");
    }
}

#[test]
fn zero_blocks_read_as_zeroes_if_they_are_not_verified() {
    let mut device = Device::new(&parameters(Hash::Sha256, 512, 512, 40));
    device.data[512 * 3..512 * 5].fill(0);
    let stores = device.stores();
    let tree = crate::support::memory(device.tree.clone());
    let stores = inlock_verity::Stores::new(stores.data, tree.clone(), 0);
    device.root = inlock_verity::create(&stores, &device.layout, 1).unwrap();
    device.tree = tree.contents();
    device.data[512 * 3 + 9] = 1;
    device.data[512 * 6] ^= 1;
    let store = device.open(OpenOptions::default()).unwrap();
    assert_eq!(read(&store, 512 * 3, 512), Err(Errno::IO));
    let store = device.open(OpenOptions { ignore_zero_blocks: true, ..OpenOptions::default() }).unwrap();
    assert_eq!(read(&store, 512 * 3, 1024).unwrap(), [0; 1024]);
    assert_eq!(read(&store, 512 * 6, 512), Err(Errno::IO));
}

/// Reads that need more blocks of the tree than are cached verify them again; with room for all of them they are
/// verified once.
#[test]
fn cached_blocks_are_verified_once() {
    let device = Device::new(&parameters(Hash::Sha256, 512, 512, 4096));
    let hash_blocks = |cache_len| {
        let store = device.open(OpenOptions { cache_len, ..OpenOptions::default() }).unwrap();
        for _ in 0..3 {
            for block in 0..4096 {
                assert!(read(&store, block * 512, 512).is_ok());
            }
        }
        assert_eq!(store.snapshot().data_blocks, 3 * 4096);
        store.snapshot().hash_blocks
    };
    assert_eq!(hash_blocks(1 << 20), device.layout.tree_blocks());
    assert!(hash_blocks(0) > 2 * device.layout.tree_blocks());
}

#[test]
fn threads_read_the_same_device() {
    let device = Device::new(&parameters(Hash::Sha256, 512, 512, 4096));
    let store = device.open(OpenOptions { cache_len: 8 << 10, ..OpenOptions::default() }).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (store, device) = (&store, &device);
            scope.spawn(move || {
                for step in 0..500 {
                    let at = (step * 7919 + thread * 104_729) % (4096 * 512);
                    let len = 5000.min(device.data.len() - at);
                    assert!(read(store, at as u64, len).unwrap() == device.data[at..at + len]);
                }
            });
        }
    });
}

#[test]
fn first_1024_bad_blocks_are_reported_and_some_reads_of_others() {
    let mut device = Device::new(&parameters(Hash::Sha256, 512, 4096, 1030));
    device.data.iter_mut().for_each(|byte| *byte ^= 1);
    let reports = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&reports);
    let on_corruption: OnCorruption = Box::new(move |bad, count| into.lock().unwrap().push((bad.block, count)));
    let options = OpenOptions { ignore_corruption: true, on_corruption: Some(on_corruption), ..OpenOptions::default() };
    let store = device.open(options).unwrap();
    let all = || assert!(read(&store, 0, device.data.len()).unwrap() == device.data);
    all();
    let mut expected: Vec<_> = (0..1024).map(|block| (block, None)).collect();
    expected.extend([(1024, Some(1025)), (1025, Some(1026)), (1027, Some(1028))]);
    assert_eq!(*reports.lock().unwrap(), expected);
    assert_eq!(store.snapshot().corrupted, 1030);
    all();
    // The eighth read of the six blocks that are not remembered.
    expected.push((1025, Some(1030 + 1026)));
    assert_eq!(*reports.lock().unwrap(), expected);
}

/// Reads of memory are calls, but not if a block may have to be rebuilt; data are prefetched where they are.
#[test]
fn profile_and_prefetch_are_those_of_the_data() {
    let device = Device::new(&parameters(Hash::Sha256, 512, 512, 40));
    let prefetched = Arc::new(Mutex::new(Vec::new()));
    let in_memory = |bytes: &[u8]| {
        let mut profile = StoreProfile::default();
        profile.in_memory = true;
        let prefetched = Arc::clone(&prefetched);
        let script = move |call: Call<'_>| {
            if let Call::Prefetch { offset, len } = call {
                prefetched.lock().unwrap().push((offset, len));
            }
            Verdict::Pass
        };
        Arc::new(ScriptedStore::new(memory(bytes.to_vec()), script).with_profile(profile))
    };
    let slow = || failing(&device.data, |_| Ok(()));
    let open = |data, tree, fec| {
        let options = OpenOptions { fec, ..OpenOptions::default() };
        VerityStore::open(&Stores::new(data, tree, 0), &device.layout, &device.root, options).unwrap()
    };
    let data = in_memory(&device.data);
    let store = open(data.clone(), in_memory(&device.tree), None);
    store.prefetch(1024, 777);
    assert_eq!(*prefetched.lock().unwrap(), [(1024, 777)]);
    assert!(store.profile().in_memory && store.fec().is_none());
    assert_eq!(OpenOptions::default().cache_len, 32 << 20);
    assert!(!open(slow(), in_memory(&device.tree), None).profile().in_memory);
    let parameters = FecParameters { roots: 2, blocks: 40 + device.layout.tree_blocks(), offset: 0 };
    let fec = Fec::new(memory(vec![0; 1 << 20]), parameters, &device.layout).unwrap();
    let store = open(data, in_memory(&device.tree), Some(fec));
    assert!(!store.profile().in_memory);
    assert_eq!(store.fec().map(Fec::parameters), Some(&parameters));
}

#[test]
fn read_behind_the_end_or_of_nothing_returns_no_bytes() {
    let device = Device::new(&parameters(Hash::Sha256, 512, 512, 10));
    let store = device.open(OpenOptions::default()).unwrap();
    for offset in [5120, 5121, 10_000, u64::MAX] {
        assert_eq!(store.read_at(&mut [0; 512], offset), Ok(0), "{offset}");
    }
    assert_eq!((store.read_at(&mut [], 0), store.read_at(&mut [0; 1000], 5000)), (Ok(0), Ok(120)));
}
