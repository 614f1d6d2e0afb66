//! The engine over a kernel of the tests, and what the kernel of this machine refuses.

mod kernel;
mod pipeline;
#[allow(dead_code, reason = "the engine's tests use more of it")]
#[path = "../../../engine/tests/it/scripted.rs"]
mod scripted;

use crate::{AfAlg, AfAlgError};
use inlock_cipher::{
    CipherSpec, DataUnitSize, InOut, IvNumber, IvNumbering, Sector, Segment, VolumeKey, new_sector_cipher,
};
use inlock_engine::store::file::IoMode;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{Access, Device, Direction, Errno, RequestError};
use kernel::{Api, Kernel};
use scripted::{Ask, run_with};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const THREADS: usize = 2;

fn engine(kernel: &Arc<Kernel>) -> AfAlg {
    AfAlg::over(Box::new(Api(Arc::clone(kernel))), THREADS).unwrap()
}

fn spec(text: &str) -> CipherSpec {
    text.parse().unwrap()
}

fn unit(bytes: u32) -> DataUnitSize {
    DataUnitSize::new(bytes).unwrap()
}

fn key(len: usize) -> VolumeKey {
    VolumeKey::new(&(0..len).map(|at| (at * 3 + 1) as u8).collect::<Vec<u8>>())
}

/// Returns the error of a key that the engine does not open.
fn refusal(kernel: &Arc<Kernel>, cipher: &str, key_len: usize) -> AfAlgError {
    let numbering = IvNumbering::Sectors;
    engine(kernel).check(&spec(cipher), key(key_len).as_bytes(), unit(512), numbering).unwrap_err()
}

/// Every cipher of the engine, with the length of its key.
const CIPHERS: [(&str, usize); 9] = [
    ("aes-xts-plain64", 64),
    ("aes-xts-plain", 64),
    ("aes-xts-plain64be", 64),
    ("aes-xts-essiv:sha256", 64),
    ("aes-cbc-plain", 32),
    ("aes-cbc-plain64", 32),
    ("aes-cbc-essiv:sha256", 32),
    ("aes-cbc-benbi", 32),
    ("aes-cbc-null", 32),
];

#[test]
fn data_units_are_those_of_the_software_in_every_number() {
    let engine = engine(&Arc::default());
    let mut compared = 0;
    for (cipher, key_len) in CIPHERS {
        for (bytes, numbering) in [
            (512, IvNumbering::Sectors),
            (4096, IvNumbering::Sectors),
            (4096, IvNumbering::DataUnits),
            (65536, IvNumbering::Sectors),
        ] {
            let (key, unit) = (key(key_len), unit(bytes));
            let opened = engine.open(&spec(cipher), key.as_bytes(), unit, numbering).unwrap();
            let software = new_sector_cipher(&spec(cipher), key.as_bytes(), unit, numbering).unwrap();
            let most = if bytes == 512 { 130 } else { 2 };
            for first in [0, 7, u64::from(u32::MAX) - 1, u64::MAX - 1].map(IvNumber) {
                for units in [1, 2, 3, 63, 64, 65, 130].into_iter().filter(|units| *units <= most) {
                    let plain: Vec<u8> = (0..units * unit.bytes()).map(|at| (at % 251) as u8).collect();
                    let mut expected = plain.clone();
                    software.encrypt(first, InOut::InPlace(&mut expected));
                    let mut data = plain.clone();
                    assert_eq!(opened.process(1, Direction::Encrypt, first, &mut data), data.len());
                    assert!(data == expected, "{cipher}, {units} units of {bytes} bytes from {first:?}");
                    assert_eq!(opened.process(0, Direction::Decrypt, first, &mut data), data.len());
                    assert!(data == plain, "{cipher}, {units} units of {bytes} bytes from {first:?}");
                    compared += 1;
                }
            }
        }
    }
    println!("COUNT afalg_requests_compared {compared}");
}

#[test]
fn cipher_or_key_that_the_kernel_lacks_is_named() {
    let kernel = Arc::default();
    let message = |cipher, key_len| refusal(&kernel, cipher, key_len).to_string();
    assert_eq!(message("serpent-xts-plain64", 64), "the engine has no cipher serpent-xts-plain64");
    assert_eq!(message("aes-lrw-plain64", 32), "the engine has no cipher aes-lrw-plain64");
    assert_eq!(message("aes:64-cbc-lmk", 1024), "the engine has no cipher aes:64-cbc-lmk");
    assert_eq!(message("aes-cbc-tcw", 64), "the engine has no cipher aes-cbc-tcw");
    assert_eq!(message("aes-cbc-eboiv", 32), "the engine has no cipher aes-cbc-eboiv");
    assert_eq!(message("aes-xts-plain64", 32), "the kernel's xts(aes) does not take a key of 256 bits");
    assert_eq!(kernel.sockets.load(Ordering::SeqCst), 0);
}

#[test]
fn kernel_that_fails_or_has_wrong_results_is_refused() {
    let kernel: Arc<Kernel> = Arc::default();
    kernel.halves_ivs.store(true, Ordering::SeqCst);
    assert_eq!(refusal(&kernel, "aes-xts-plain64", 64).to_string(), "the kernel's xts(aes) gives wrong results");
    assert_eq!(refusal(&kernel, "aes-cbc-essiv:sha256", 32).to_string(), "the kernel's cbc(aes) gives wrong results");
    kernel.halves_ivs.store(false, Ordering::SeqCst);
    kernel.has_no_sessions.store(true, Ordering::SeqCst);
    assert_eq!(refusal(&kernel, "aes-xts-plain64", 64).to_string(), "the kernel's xts(aes) fails");
    kernel.has_no_sessions.store(false, Ordering::SeqCst);
    kernel.fails_every.store(8, Ordering::SeqCst);
    assert_eq!(refusal(&kernel, "aes-xts-plain64", 64).to_string(), "the kernel's xts(aes) fails");
    assert_eq!(kernel.sockets.load(Ordering::SeqCst), 0);
}

#[test]
fn units_that_the_kernel_fails_are_unchanged_and_their_session_is_closed() {
    let kernel: Arc<Kernel> = Arc::default();
    let key = key(64);
    let opened = engine(&kernel).open(&spec("aes-xts-plain64"), key.as_bytes(), unit(512), IvNumbering::Sectors);
    let opened = opened.unwrap();
    let plain = vec![0x5a; 80 * 512];
    let mut expected = plain.clone();
    opened.process_rest(Direction::Encrypt, IvNumber(5), 0, &mut expected);
    for fails in 1..=80 {
        kernel.operations.store(0, Ordering::SeqCst);
        kernel.fails_every.store(fails, Ordering::SeqCst);
        let mut data = plain.clone();
        let done = opened.process(0, Direction::Encrypt, IvNumber(5), &mut data);
        assert_eq!(done as u64, (fails - 1) * 512);
        assert!(data[..done] == expected[..done] && data[done..] == plain[done..]);
        assert_eq!(kernel.sockets.load(Ordering::SeqCst), 1, "of the key alone");
        opened.process_rest(Direction::Encrypt, IvNumber(5), done, &mut data);
        assert!(data == expected, "after {} units", fails - 1);
    }
    kernel.fails_every.store(0, Ordering::SeqCst);
    kernel.has_no_sessions.store(true, Ordering::SeqCst);
    assert_eq!(opened.process(0, Direction::Encrypt, IvNumber(5), &mut plain.clone()), 0);
    drop(opened);
    assert_eq!(kernel.sockets.load(Ordering::SeqCst), 0);
}

/// Length of the device.
const LEN: usize = 1 << 20;

/// Makes a device with the engine for requests of at least 8 KiB.
fn device(kernel: &Arc<Kernel>) -> (Arc<Device>, Arc<MemoryStore>) {
    let mut segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), unit(4096));
    segment.iv_offset = Sector(616);
    let store = Arc::new(MemoryStore::new(vec![0; LEN]));
    let device = Device::new(&[segment], &key(64), Arc::clone(&store) as _, Access::default()).unwrap();
    let device = device.with_engine(Arc::new(engine(kernel)), 8192, &[&key(64)]).unwrap();
    (Arc::new(device), store)
}

/// Decrypts what is in the store.
fn plaintext(store: &MemoryStore) -> Vec<u8> {
    let software = new_sector_cipher(&CipherSpec::AES_XTS_PLAIN64, key(64).as_bytes(), unit(4096), false.into());
    let mut data = store.contents();
    software.unwrap().decrypt(IvNumber(616), InOut::InPlace(&mut data));
    data
}

/// Returns the byte that fills the write of this number.
fn byte(at: usize) -> u8 {
    (at % 251) as u8 + 1
}

fn writes(len: usize) -> Vec<Ask> {
    let data = |at: usize| vec![byte(at); len];
    (0..LEN / len).map(|at| Ask::Write { offset: (at * len) as u64, data: data(at), durable: false }).collect()
}

#[test]
fn requests_of_a_failing_kernel_are_right_and_suspending_closes_its_sockets() {
    let kernel: Arc<Kernel> = Arc::default();
    let (device, store) = device(&kernel);
    kernel.fails_every.store(7, Ordering::SeqCst);
    for len in [4096, 8192, 65536] {
        let answers = run_with(&device, IoMode::Auto, 8, writes(len), None);
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        let expected: Vec<u8> = (0..LEN / len).flat_map(|at| vec![byte(at); len]).collect();
        assert!(plaintext(&store) == expected);
        let reads = (0..16).map(|at| Ask::Read { offset: at * 65536 + 100, len: 65000 }).collect();
        let answers = run_with(&device, IoMode::Auto, 8, reads, None);
        for (at, answer) in answers.into_iter().enumerate() {
            assert!(answer.unwrap() == expected[at * 65536 + 100..][..65000]);
        }
    }
    let stats = device.engine_stats().unwrap();
    assert!(stats.fell_back > 0 && stats.accepted > stats.fell_back, "{stats:?}");
    // 48 reads, 128 writes of 8 KiB, and 16 of 64 KiB; none of 4 KiB.
    assert_eq!((stats.accepted + stats.refused, stats.failed, stats.keys), (48 + 128 + 16, 0, 1));
    assert!(kernel.most_sockets.load(Ordering::SeqCst) <= 1 + THREADS);
    device.suspend().unwrap();
    device.wipe_key().unwrap();
    assert_eq!((kernel.sockets.load(Ordering::SeqCst), device.engine_stats().unwrap().keys), (0, 0));
    kernel.fails_every.store(0, Ordering::SeqCst);
    device.set_key(&key(64)).unwrap();
    device.resume().unwrap();
    assert_eq!(device.engine_stats().unwrap().keys, 1);
    run_with(&device, IoMode::Auto, 8, writes(65536), None);
    assert!(device.engine_stats().unwrap().accepted > stats.accepted);
}

#[test]
fn jobs_beyond_the_queue_are_refused_and_done_inline() {
    let kernel: Arc<Kernel> = Arc::default();
    let (device, store) = device(&kernel);
    kernel.runs.set_closed(true);
    let opens = Arc::clone(&kernel);
    let watched = Arc::clone(&device);
    let opener = std::thread::spawn(move || {
        while watched.engine_stats().unwrap().refused == 0 {
            std::thread::yield_now();
        }
        opens.runs.set_closed(false);
    });
    let answers = run_with(&device, IoMode::Auto, 16, writes(65536), None);
    opener.join().unwrap();
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    let stats = device.engine_stats().unwrap();
    assert_eq!((stats.accepted + stats.refused, stats.failed), (16, 0), "{stats:?}");
    assert!(plaintext(&store).chunks(65536).enumerate().all(|(at, unit)| unit.iter().all(|b| *b == byte(at))));
}

#[test]
fn job_that_panics_fails_and_the_next_one_is_right() {
    let kernel: Arc<Kernel> = Arc::default();
    let (device, _store) = device(&kernel);
    kernel.panics.store(true, Ordering::SeqCst);
    for _ in 0..2 * THREADS {
        let answers = run_with(&device, IoMode::Auto, 1, writes(LEN / 4)[..1].to_vec(), None);
        assert_eq!(answers, [Err(RequestError::Io(Errno::IO))]);
    }
    kernel.panics.store(false, Ordering::SeqCst);
    let answers = run_with(&device, IoMode::Auto, 1, writes(LEN / 4), None);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(device.engine_stats().unwrap().failed, 2 * THREADS as u64);
    device.suspend().unwrap();
    device.wipe_key().unwrap();
    assert_eq!(kernel.sockets.load(Ordering::SeqCst), 0);
}

#[test]
fn engine_of_this_machine_agrees_or_names_what_the_kernel_lacks() {
    let engine = match AfAlg::start() {
        Ok(engine) => engine,
        Err(error) => return assert_eq!(error.to_string(), "the kernel has no AF_ALG sockets"),
    };
    for (cipher, key_len) in CIPHERS {
        let opened = engine.check(&spec(cipher), key(key_len).as_bytes(), unit(4096), IvNumbering::Sectors);
        match opened {
            Ok(()) | Err(AfAlgError::Algorithm(_)) => {}
            Err(error) => panic!("{cipher}: {error}"),
        }
    }
}
