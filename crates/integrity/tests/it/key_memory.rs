//! Keys in memory: the states of HMACs and the keys of AEADs are gone when a device is, from the heap and from the
//! stacks of its threads.

use crate::support::{formatted, memory, open_options};
use inlock_cipher::{Aead, DataUnitSize, IvNumbering, Sector, known_aead_specs};
use inlock_engine::store::BackingStore;
use inlock_integrity::{
    FormatOptions, IntegrityDevice, IntegrityStore, JournalWriter, Mode, Sealing, Stores, TagAlgorithm, TagHash,
};
use inlock_tests::memory_search::Inverted;
use std::sync::{Arc, mpsc};

/// Returns the beginning of the state of the HMAC after the block of the key: with it tags can be made.
fn state_of(algorithm: TagAlgorithm, key: [u8; 32]) -> Inverted {
    let mut block = [0x36; 128];
    block.iter_mut().zip(key).for_each(|(pad, key)| *pad ^= key);
    let short = [*block.first_chunk::<64>().unwrap()];
    let state = match algorithm {
        TagAlgorithm::HmacSha1 => {
            let mut state = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
            sha1::block_api::compress(&mut state, &short);
            state[..4].iter().flat_map(|word| word.to_ne_bytes()).collect()
        }
        TagAlgorithm::HmacSha256 => {
            let mut state = [
                0x6a09_e667,
                0xbb67_ae85,
                0x3c6e_f372,
                0xa54f_f53a,
                0x510e_527f,
                0x9b05_688c,
                0x1f83_d9ab,
                0x5be0_cd19,
            ];
            sha2::block_api::compress256(&mut state, &short);
            state[..4].iter().flat_map(|word| word.to_ne_bytes()).collect()
        }
        _ => {
            let mut state = [
                0x6a09_e667_f3bc_c908,
                0xbb67_ae85_84ca_a73b,
                0x3c6e_f372_fe94_f82b,
                0xa54f_f53a_5f1d_36f1_u64,
                0x510e_527f_ade6_82d1,
                0x9b05_688c_2b3e_6c1f,
                0x1f83_d9ab_fb41_bd6b,
                0x5be0_cd19_137e_2179,
            ];
            sha2::block_api::compress512(&mut state, &[block]);
            state[..2].iter().flat_map(|word| word.to_ne_bytes()).collect()
        }
    };
    Inverted::new(state)
}

/// As [`state_of`], without copies on the stack.
fn secret_of(algorithm: TagAlgorithm, key: [u8; 32]) -> Inverted {
    let state = state_of(algorithm, key);
    inlock_cipher::scrub_stack::<{ 64 << 10 }>();
    state
}

#[test]
fn states_of_hmacs_are_wiped_with_the_device() {
    let hashes = [TagAlgorithm::HmacSha1, TagAlgorithm::HmacSha256, TagAlgorithm::HmacSha512];
    let modes = [Mode::Journal, Mode::Bitmap, Mode::Direct];
    for (algorithm, mode) in hashes.into_iter().flat_map(|hash| modes.map(|mode| (hash, mode))) {
        // Other rows have other states.
        let key = std::array::from_fn(|at| (at as u8) ^ 0x9b ^ (algorithm as u8) << 5 ^ (mode as u8) << 3);
        let mac_key = key.map(|byte: u8| byte.wrapping_add(77));
        let secrets = [secret_of(algorithm, key), secret_of(TagAlgorithm::HmacSha256, mac_key)];
        let is_found = || secrets.iter().map(|secret| secret.is_in_own_memory().unwrap()).collect::<Vec<_>>();
        assert_eq!(is_found(), [false, false], "control: {algorithm} {mode:?}");
        let (at_work, opened) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let (at_rest, closed) = mpsc::channel();
        let (leave, left) = mpsc::channel::<()>();
        let has_journal = mode == Mode::Journal;
        // A thread that goes on after the device is gone, as the one that serves other volumes does.
        let thread = std::thread::spawn(move || {
            let internal_hash = Some(Arc::new(TagHash::new(algorithm, &key).unwrap()));
            let mut options = FormatOptions { internal_hash, ..FormatOptions::default() };
            options.journal_mac =
                has_journal.then(|| Arc::new(TagHash::new(TagAlgorithm::HmacSha256, &mac_key).unwrap()));
            let (bytes, _) = formatted(&options, 4 << 20, None);
            let stores = Stores { data: memory(bytes), meta: None, start: 0 };
            let device = Arc::new(IntegrityDevice::open(stores, open_options(mode, &options)).unwrap());
            drop(options);
            let writer = JournalWriter::start(Arc::clone(&device)).unwrap();
            let store = IntegrityStore::new(Arc::clone(&device)).unwrap();
            for at in (0..2 << 20).step_by(128 << 10) {
                assert!(store.write_at(&vec![7; 128 << 10], at).unwrap() > 0);
            }
            store.sync().unwrap();
            assert!(store.read_at(&mut [0; 5000], 300).unwrap() > 0);
            device.maintain().unwrap();
            at_work.send(()).unwrap();
            ended.recv().unwrap();
            device.close().unwrap();
            drop((writer, store, device));
            at_rest.send(()).unwrap();
            left.recv().unwrap();
        });
        opened.recv().unwrap();
        assert_eq!(is_found(), [true, has_journal], "control: {algorithm} {mode:?}");
        end.send(()).unwrap();
        closed.recv().unwrap();
        assert_eq!(is_found(), [false, false], "{algorithm} {mode:?}: states are left");
        leave.send(()).unwrap();
        thread.join().unwrap();
    }
}

/// A thread that has read or written, and waits for the next request, keeps nothing of the key of an AEAD.
#[test]
fn key_of_an_aead_is_not_left_by_threads_that_used_it() {
    // One of each cipher and MAC.
    let specs = known_aead_specs().into_iter().filter(|spec| spec.to_string().ends_with("-random"));
    for (row, spec) in specs.enumerate() {
        for writes in [false, true] {
            let len = *spec.key_lens().last().unwrap();
            let key_at = move |at: usize| (at as u8).wrapping_mul(91) ^ (row as u8) << 2 ^ u8::from(writes) ^ 0x6c;
            // Of all keys the first 16 bytes are used as they are.
            let secret = Inverted::new((0..16).map(key_at).collect());
            inlock_cipher::scrub_stack::<{ 64 << 10 }>();
            assert!(!secret.is_in_own_memory().unwrap(), "control: {spec}");
            let options = FormatOptions { tag_size: Some(spec.metadata_len()), ..FormatOptions::default() };
            let stores = Stores { data: memory(formatted(&options, 4 << 20, None).0), meta: None, start: 0 };
            let device = IntegrityDevice::open(stores, open_options(Mode::Direct, &options)).unwrap();
            let key = zeroize::Zeroizing::new((0..len).map(key_at).collect::<Vec<u8>>());
            let unit = DataUnitSize::new(512).unwrap();
            let aead = Aead::new(&spec, &key, unit, IvNumbering::Sectors, Sector(0)).unwrap();
            let sealing = Sealing::new(aead, &key, spec.metadata_len()).unwrap();
            let store = Arc::new(IntegrityStore::sealed(Arc::new(device), sealing).unwrap());
            store.write_at(&[7; 64 << 10], 0).unwrap();
            drop(key);
            inlock_cipher::scrub_stack::<{ 256 << 10 }>();
            let ((tell, at_rest), (leave, left)) = (mpsc::channel(), mpsc::channel::<()>());
            let used = Arc::clone(&store);
            let thread = std::thread::spawn(move || {
                match writes {
                    true => used.write_at(&[8; 64 << 10], 0).unwrap(),
                    false => used.read_at(&mut [0; 64 << 10], 0).unwrap(),
                };
                tell.send(()).unwrap();
                left.recv().unwrap();
            });
            at_rest.recv().unwrap();
            assert!(secret.is_in_own_memory().unwrap(), "control: {spec}");
            store.wipe_key();
            assert!(!secret.is_in_own_memory().unwrap(), "{spec}, {writes}: the key is left");
            leave.send(()).unwrap();
            thread.join().unwrap();
        }
    }
}
