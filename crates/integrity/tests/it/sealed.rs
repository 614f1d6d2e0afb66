//! A volume sealed by an AEAD, as LUKS2 with `--integrity` has it.

use crate::support::{Numbers, formatted, memory};
use inlock_cipher::{Aead, AeadIv, AeadSpec, DataUnitSize, IvNumbering, Sector, known_aead_specs};
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{BackingStore, Errno};
use inlock_integrity::{Fill, FormatOptions, IntegrityDevice, IntegrityStore, Mode, OpenOptions, Sealing, Stores};
use std::ops::ControlFlow;
use std::sync::Arc;

fn aead(spec: &AeadSpec, unit: u32, seed: u8) -> Sealing {
    with_tags_of(spec.metadata_len(), spec, unit, seed)
}

pub(crate) fn with_tags_of(tag_size: usize, spec: &AeadSpec, unit: u32, seed: u8) -> Sealing {
    let len = *spec.key_lens().last().unwrap();
    let key: Vec<u8> = (0..len).map(|at| seed ^ (at as u8).wrapping_mul(29)).collect();
    let aead = Aead::new(spec, &key, DataUnitSize::new(unit).unwrap(), IvNumbering::Sectors, Sector(0)).unwrap();
    Sealing::new(aead, &key, tag_size).unwrap()
}

pub(crate) fn gcm() -> AeadSpec {
    AeadSpec::from_luks2("aes-gcm-random", "aead").unwrap()
}

fn image(spec: &AeadSpec, unit: u32, len: usize) -> Arc<MemoryStore> {
    let options = FormatOptions {
        tag_size: Some(spec.metadata_len()),
        block_len: unit as usize,
        journal_sectors: Some(128),
        interleave_sectors: 64,
        ..FormatOptions::default()
    };
    memory(formatted(&options, len, None).0)
}

fn open(image: &Arc<MemoryStore>, mode: Mode, aead: Sealing) -> IntegrityStore {
    let device = IntegrityDevice::open(Stores::interleaved(image.clone()), OpenOptions::new(mode)).unwrap();
    IntegrityStore::sealed(Arc::new(device), aead).unwrap()
}

fn write_all(store: &IntegrityStore, mut data: &[u8], mut offset: u64) {
    while !data.is_empty() {
        let count = store.write_at(data, offset).unwrap();
        data = &data[count..];
        offset += count as u64;
    }
}

fn read_all(store: &IntegrityStore, len: usize, offset: u64) -> Result<Vec<u8>, Errno> {
    let mut data = vec![0xcc; len];
    let mut done = 0;
    while done < len {
        done += store.read_at(&mut data[done..], offset + done as u64)?;
    }
    Ok(data)
}

fn wipe(store: &IntegrityStore) -> usize {
    let len = store.geometry().len as usize;
    write_all(store, &vec![0; len], 0);
    len
}

#[test]
fn random_steps_match_a_model() {
    let specs = known_aead_specs().into_iter().filter(|spec| spec.iv() == AeadIv::Random);
    let mut steps = 0;
    for (spec, mode) in specs.flat_map(|spec| [(spec, Mode::Journal), (spec, Mode::Direct)]) {
        let unit = if steps % 2 == 0 { 512 } else { 4096 };
        let image = image(&spec, unit, 1 << 20);
        let mut store = open(&image, mode, aead(&spec, unit, 1));
        let mut model = vec![0; wipe(&store)];
        let mut numbers = Numbers(0x1234_5678 + steps);
        for _ in 0..60 {
            let offset = numbers.below(model.len() as u64) as usize;
            let len = 1 + numbers.below((model.len() - offset).min(40_000) as u64) as usize;
            match numbers.below(8) {
                0 => store.sync().unwrap(),
                1 => {
                    store.sync().unwrap();
                    store.device().close().unwrap();
                    store = open(&image, mode, aead(&spec, unit, 1));
                }
                2..5 => assert!(read_all(&store, len, offset as u64).unwrap() == model[offset..offset + len]),
                _ => {
                    model[offset..offset + len].fill(numbers.below(256) as u8);
                    write_all(&store, &model[offset..offset + len], offset as u64);
                }
            }
            steps += 1;
        }
        assert!(read_all(&store, model.len(), 0).unwrap() == model, "{spec} {mode:?}");
        assert_eq!(store.device().metrics().mismatches, 0);
    }
    assert!(steps > 1000);
}

/// A write as long as a section of the journal does not go through the section that short writes share.
#[test]
fn long_write_makes_a_section_of_its_own() {
    let format = FormatOptions { tag_size: Some(28), journal_sectors: Some(1024), ..FormatOptions::default() };
    let image = memory(formatted(&format, 4 << 20, None).0);
    let store = open(&image, Mode::Journal, aead(&gcm(), 512, 1));
    let section = store.device().layout().journal.entries * 512;
    let used = || store.device().metrics().journal_sections_used;
    write_all(&store, &vec![2; section], section as u64);
    assert_eq!(used(), 1, "it has its place at once");
    write_all(&store, &vec![1; section - 512], 0);
    write_all(&store, &[1; 512], section as u64 - 512);
    assert_eq!(used(), 1, "the shared one has none before another is begun");
    assert!(read_all(&store, section, section as u64).unwrap().iter().all(|byte| *byte == 2));
    // The shared one has another block.
    store.device().close().unwrap();
    let first_entry = |number| {
        let at = store.device().layout().section_at(number) as usize;
        u64::from_le_bytes(image.contents()[at..at + 8].try_into().unwrap())
    };
    write_all(&store, &[3; 512], 0);
    write_all(&store, &vec![4; section], section as u64);
    store.sync().unwrap();
    let newest = store.device().newest_section().unwrap();
    let sections = [newest - 1, newest].map(first_entry);
    assert_eq!(sections, [section as u64 / 512, 0], "it comes first");
}

/// Returns the numbers of the units that cannot be read; checks that the others have `model`.
fn unreadable(store: &IntegrityStore, model: &[u8], unit: usize) -> Vec<usize> {
    let readable = |at: &usize| match read_all(store, unit, (at * unit) as u64) {
        Ok(data) => {
            assert!(data == model[at * unit..(at + 1) * unit], "unit {at} has other bytes");
            true
        }
        Err(error) => {
            assert_eq!(error, Errno::ILSEQ);
            false
        }
    };
    (0..model.len() / unit).filter(|at| !readable(at)).collect()
}

/// Each bit of data and tuples matters, and for its own unit only.
#[test]
fn changed_byte_fails_its_unit_and_no_other() {
    const UNIT: usize = 512;
    let spec = gcm();
    let image = image(&spec, UNIT as u32, 160 << 10);
    let store = open(&image, Mode::Direct, aead(&spec, UNIT as u32, 1));
    let len = wipe(&store);
    let model: Vec<u8> = (0..len).map(|at| (at / UNIT) as u8).collect();
    write_all(&store, &model, 0);
    store.sync().unwrap();
    store.device().close().unwrap();
    let (layout, tuple_len) = (store.device().layout(), spec.metadata_len());
    let bytes = image.contents();
    let mut judged = 0;
    for block in (0..layout.blocks()).step_by(7) {
        let (data, _) = layout.data_position(block);
        let (tuple, _) = layout.tag_position(block);
        for at in (data..data + UNIT as u64).step_by(61).chain(tuple..tuple + tuple_len as u64) {
            let mut changed = bytes.clone();
            changed[at as usize] ^= 1 << (at % 8);
            let store = open(&memory(changed), Mode::Direct, aead(&spec, UNIT as u32, 1));
            assert_eq!(unreadable(&store, &model, UNIT), [block as usize], "byte {at}");
            assert_eq!(store.device().metrics().mismatches, 1);
            judged += 1;
        }
    }
    assert!(judged > 200, "{judged}");
}

#[test]
fn swapped_units_and_tuples_are_detected() {
    const UNIT: usize = 4096;
    let spec = AeadSpec::from_luks2("aes-xts-random", "hmac(sha256)").unwrap();
    let image = image(&spec, UNIT as u32, 1 << 20);
    let store = open(&image, Mode::Direct, aead(&spec, UNIT as u32, 1));
    // Equal plaintext: only position and IV tell the units apart.
    let model = vec![0; wipe(&store)];
    store.sync().unwrap();
    store.device().close().unwrap();
    let layout = store.device().layout();
    let places = |block| {
        let data = layout.data_position(block).0 as usize;
        let tuple = layout.tag_position(block).0 as usize;
        (data..data + UNIT, tuple..tuple + spec.metadata_len())
    };
    let ((data_a, tuple_a), (data_b, tuple_b)) = (places(3), places(9));
    for (swaps_data, swaps_tuples) in [(true, false), (false, true), (true, true)] {
        let mut bytes = image.contents();
        let mut swap = |a: &std::ops::Range<usize>, b: &std::ops::Range<usize>| {
            let old = bytes[a.clone()].to_vec();
            bytes.copy_within(b.clone(), a.start);
            bytes[b.clone()].copy_from_slice(&old);
        };
        if swaps_data {
            swap(&data_a, &data_b);
        }
        if swaps_tuples {
            swap(&tuple_a, &tuple_b);
        }
        let store = open(&memory(bytes), Mode::Direct, aead(&spec, UNIT as u32, 1));
        assert_eq!(unreadable(&store, &model, UNIT), [3, 9], "data {swaps_data}, tuples {swaps_tuples}");
    }
}

#[test]
fn bytes_before_a_bad_unit_are_read_and_the_rest_is_an_error() {
    const UNIT: usize = 4096;
    let spec = gcm();
    let image = image(&spec, UNIT as u32, 1 << 20);
    let store = open(&image, Mode::Direct, aead(&spec, UNIT as u32, 1));
    let mut data = vec![0xcc; 8 * UNIT];
    assert_eq!(store.read_at(&mut data, 0), Err(Errno::ILSEQ), "nothing was written yet");
    write_all(&store, &vec![7; 5 * UNIT], 0);
    assert_eq!(store.read_at(&mut data, 0), Ok(5 * UNIT));
    assert_eq!(store.read_at(&mut data, UNIT as u64 + 100), Ok(4 * UNIT - 100));
    assert!(data[..4 * UNIT - 100].iter().all(|byte| *byte == 7));
    assert_eq!(store.read_at(&mut data, 5 * UNIT as u64 + 1), Err(Errno::ILSEQ));
    // A unit that cannot be verified cannot be completed either.
    assert_eq!(store.write_at(&[1; 10], 5 * UNIT as u64), Err(Errno::ILSEQ));
    assert_eq!(store.write_at(&[1; UNIT], 5 * UNIT as u64), Ok(UNIT));
    assert_eq!(read_all(&store, 6 * UNIT, 0).unwrap()[5 * UNIT..], [1; UNIT]);
}

#[test]
fn interrupted_wipe_is_continued_and_keeps_what_can_be_read() {
    const UNIT: usize = 4096;
    let spec = gcm();
    let image = image(&spec, UNIT as u32, 13 << 20);
    let store = open(&image, Mode::Direct, aead(&spec, UNIT as u32, 1));
    let len = store.geometry().len as usize;
    // The wipe stopped within the fourth chunk; behind it the volume was used nevertheless.
    write_all(&store, &vec![0; 3 * (1 << 20) + 5 * UNIT], 0);
    let used = 6 * (1 << 20) + 7 * UNIT;
    write_all(&store, &vec![9; 3 * UNIT], used as u64);
    store.sync().unwrap();
    let mut seen = Vec::new();
    let first = store.fill_unreadable(Fill::Zeroes, 2, |sector| {
        seen.push(sector);
        if sector < 4 * 2048 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert_eq!(first.unwrap().blocks, ((1 << 20) / UNIT - 5) as u64);
    assert_eq!((first.unwrap().reached, seen), (4 * 2048, vec![2 * 2048, 4 * 2048]));
    let second = store.fill_unreadable(Fill::Zeroes, 2, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((second.reached, second.blocks), (len as u64 / 512, ((len - 4 * (1 << 20)) / UNIT - 3) as u64));
    assert_eq!(
        store.fill_unreadable(Fill::Zeroes, 2, |_| ControlFlow::Continue(())).unwrap().blocks,
        0,
        "nothing is left"
    );
    let mut model = vec![0; len];
    model[used..used + 3 * UNIT].fill(9);
    assert!(unreadable(&store, &model, UNIT).is_empty());
}

#[test]
fn wipe_is_continued_wherever_it_stopped() {
    const UNIT: usize = 4096;
    let spec = gcm();
    let image = image(&spec, UNIT as u32, 9 << 20);
    let empty = image.contents();
    let len = open(&image, Mode::Direct, aead(&spec, UNIT as u32, 1)).geometry().len as usize;
    for stopped in (0..=len).step_by(1 << 20).chain([UNIT, len - UNIT, len]) {
        let store = open(&memory(empty.clone()), Mode::Direct, aead(&spec, UNIT as u32, 1));
        write_all(&store, &vec![0; stopped], 0);
        let filled = store.fill_unreadable(Fill::Zeroes, 2, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(filled.blocks as usize, (len - stopped) / UNIT, "stopped at {stopped}");
        assert!(unreadable(&store, &vec![0; len], UNIT).is_empty(), "stopped at {stopped}");
    }
}

/// A step of four threads that is cut off leaves any of its chunks wiped, and not those before these.
#[test]
fn wipe_is_continued_from_anywhere_in_a_step_that_was_cut_off() {
    const UNIT: usize = 4096;
    const MIB: usize = 1 << 20;
    let spec = gcm();
    let image = image(&spec, UNIT as u32, 9 << 20);
    let empty = image.contents();
    let len = open(&image, Mode::Direct, aead(&spec, UNIT as u32, 1)).geometry().len as usize;
    for (wiped, durable) in (0..16).map(|durable| (2, durable)).chain([(0, 0b1010), (3, 0b1000)]) {
        let store = open(&memory(empty.clone()), Mode::Direct, aead(&spec, UNIT as u32, 1));
        write_all(&store, &vec![0; wiped * MIB], 0);
        let chunks = (0..4).filter(|chunk| durable & 1 << chunk != 0);
        chunks.for_each(|chunk| write_all(&store, &vec![0; MIB], ((wiped + chunk) * MIB) as u64));
        store.fill_unreadable(Fill::Zeroes, 2, |_| ControlFlow::Continue(())).unwrap();
        assert!(unreadable(&store, &vec![0; len], UNIT).is_empty(), "{durable:04b} behind {wiped} MiB");
    }
}

#[test]
fn another_key_reads_nothing() {
    let spec = gcm();
    let image = image(&spec, 512, 1 << 20);
    let store = open(&image, Mode::Journal, aead(&spec, 512, 1));
    let len = wipe(&store);
    store.sync().unwrap();
    store.device().close().unwrap();
    let other = open(&image, Mode::Journal, aead(&spec, 512, 2));
    assert_eq!(unreadable(&other, &vec![0; len], 512).len(), len / 512);
}

#[test]
fn cipher_that_does_not_fit_the_device_is_refused() {
    let spec = gcm();
    let image = image(&spec, 512, 1 << 20);
    let device =
        || Arc::new(IntegrityDevice::open(Stores::interleaved(image.clone()), OpenOptions::new(Mode::Direct)).unwrap());
    let refused = |aead| IntegrityStore::sealed(device(), aead).err();
    assert_eq!(refused(aead(&spec, 4096, 1)), Some(Errno::INVAL), "units of another length");
    let longer = AeadSpec::from_luks2("aes-xts-random", "hmac(sha512)").unwrap();
    assert_eq!(refused(aead(&longer, 512, 1)), Some(Errno::INVAL), "tuples are longer than the tags");
    assert!(IntegrityStore::new(device()).is_err(), "the tags are not internal");
    // The bytes of a tag that the tuple does not use are zero.
    assert!(refused(aead(&AeadSpec::from_luks2("aegis128-random", "aead").unwrap(), 512, 1)).is_some());
    let shorter = AeadSpec::from_luks2("aes-ccm-random", "aead").unwrap();
    assert!(refused(aead(&shorter, 512, 1)).is_some());
    assert!(refused(with_tags_of(spec.metadata_len(), &shorter, 512, 1)).is_none());
}

#[test]
fn key_is_set_again_after_it_was_wiped() {
    let image = image(&gcm(), 512, 1 << 20);
    let store = open(&image, Mode::Journal, aead(&gcm(), 512, 1));
    write_all(&store, &[7; 1024], 0);
    store.wipe_key();
    assert_eq!(store.read_at(&mut [0; 512], 0), Err(Errno::SHUTDOWN));
    assert_eq!(store.write_at(&[1; 512], 0), Err(Errno::SHUTDOWN));
    assert_eq!(store.set_sealing(aead(&gcm(), 4096, 1)), Err(Errno::INVAL), "other blocks");
    assert_eq!(store.set_sealing(with_tags_of(40, &gcm(), 512, 1)), Err(Errno::INVAL), "other tags");
    assert_eq!(store.read_at(&mut [0; 512], 0), Err(Errno::SHUTDOWN));
    store.set_sealing(aead(&gcm(), 512, 1)).unwrap();
    assert_eq!(read_all(&store, 1024, 0), Ok(vec![7; 1024]));
}
