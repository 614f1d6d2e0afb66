//! Other lengths of a volume.

use crate::support::{fill, formatted, hash, memory, open_options};
use inlock_integrity::{FormatOptions, IntegrityDevice, Mode, OpenOptions, ReadError, Stores, resize};
use inlock_testing::{Log, Step};
use std::ops::ControlFlow;
use std::sync::Arc;

const LEN: usize = 1 << 20;

fn options(block_len: usize) -> FormatOptions {
    FormatOptions {
        internal_hash: Some(hash("hmac-sha256")),
        journal_mac: Some(hash("hmac-sha256")),
        block_len,
        interleave_sectors: 256,
        ..FormatOptions::default()
    }
}

/// Returns the stores of a volume on longer devices than those that it was made on.
fn grown(format: &FormatOptions, meta: Option<usize>, mode: Mode) -> (Stores, u64) {
    let (mut data, meta) = formatted(format, LEN, meta);
    data.resize(2 * LEN, 0);
    let stores = Stores { data: memory(data), meta: meta.map(|meta| memory(meta) as _), start: 0 };
    let device = IntegrityDevice::open(stores.clone(), open_options(mode, format)).unwrap();
    let blocks = device.layout().blocks();
    for block in 0..blocks {
        let sector = block * device.layout().sectors_per_block();
        device.write(sector, &fill(block, 3, format.block_len), &[]).unwrap();
    }
    match mode {
        // The last writes are in the journal only.
        Mode::Journal => device.flush().unwrap(),
        _ => device.close().unwrap(),
    }
    (stores, blocks)
}

#[test]
fn grown_volume_keeps_its_blocks_and_has_new_ones() {
    for (block_len, meta, mode) in
        [(512, None, Mode::Journal), (4096, Some(LEN), Mode::Journal), (4096, None, Mode::Bitmap)]
    {
        let format = options(block_len);
        let (stores, blocks) = grown(&format, meta, mode);
        let open = open_options(mode, &format);
        let (before, superblock) = resize(&stores, &open, None).unwrap();
        let per_block = block_len as u64 / 512;
        assert_eq!(before, blocks * per_block);
        assert!(superblock.provided_data_sectors > before * 19 / 10, "{superblock:?}");
        let device = IntegrityDevice::open(stores.clone(), open_options(Mode::Direct, &format)).unwrap();
        let mut data = vec![0; block_len];
        for block in 0..blocks {
            device.read(block * per_block, &mut data, &mut []).unwrap();
            assert!(data == fill(block, 3, block_len), "{block_len} {block}");
        }
        assert_eq!(device.read(before, &mut data, &mut []), Err(ReadError::Mismatch(vec![before])));
        let end = device.wipe(before, 2, |_, _, _| Ok(()), |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(end, superblock.provided_data_sectors);
        device.read(end - per_block, &mut data, &mut []).unwrap();
        device.read(before - per_block, &mut data, &mut []).unwrap();
        device.close().unwrap();
        let (_, smaller) = resize(&stores, &open, Some(8)).unwrap();
        assert_eq!(smaller.provided_data_sectors, 8);
        IntegrityDevice::open(stores, open).unwrap().read(0, &mut data, &mut []).unwrap();
    }
}

#[test]
fn impossible_length_is_refused_unchanged() {
    let format = options(4096);
    let (data, _) = formatted(&format, LEN, None);
    let store = memory(data.clone());
    let stores = Stores::interleaved(store.clone());
    let refused = |sectors| resize(&stores, &open_options(Mode::Journal, &format), sectors).unwrap_err().to_string();
    for sectors in [0, 7, 9, LEN as u64 / 512, u64::MAX] {
        assert!(refused(Some(sectors)).starts_with("option size: "), "{sectors}");
    }
    let unkeyed = FormatOptions { journal_mac: None, ..format.clone() };
    let error = resize(&stores, &open_options(Mode::Journal, &unkeyed), None).unwrap_err().to_string();
    assert!(error.contains("journal-integrity"), "{error}");
    assert!(store.contents() == data);
    let device = IntegrityDevice::open(stores.clone(), open_options(Mode::Bitmap, &format)).unwrap();
    device.write(0, &[1; 4096], &[]).unwrap();
    drop(device);
    let before = store.contents();
    assert!(refused(None).contains("integrity-legacy-recalculate"));
    let legacy = OpenOptions { legacy_recalculate: true, ..open_options(Mode::Journal, &format) };
    assert!(resize(&stores, &legacy, None).unwrap_err().to_string().contains("still to be computed"));
    assert!(store.contents() == before);
}

/// A power cut after the return leaves only what was synced.
#[test]
fn new_length_is_durable() {
    let format = options(512);
    let (data, _) = formatted(&format, LEN, None);
    let log = Log::<()>::default();
    let stores = Stores::interleaved(Arc::new(log.store(memory(data.clone()), false)));
    resize(&stores, &open_options(Mode::Journal, &format), Some(64)).unwrap();
    let mut synced = data;
    let steps = log.steps();
    let end = steps.iter().rposition(|step| *step == Step::Sync).unwrap();
    for step in &steps[..end] {
        if let Step::Write { at, data } = step {
            synced[*at..][..data.len()].copy_from_slice(data);
        }
    }
    let device = IntegrityDevice::open(Stores::interleaved(memory(synced)), open_options(Mode::Direct, &format));
    assert_eq!(device.unwrap().layout().provided_data_sectors, 64);
}

/// With a metadata device the tags may have less room than the data.
#[test]
fn volume_grows_as_far_as_its_tags_do() {
    let format = FormatOptions { tag_size: Some(255), ..options(512) };
    let (stores, blocks) = grown(&format, Some(LEN * 3 / 4), Mode::Direct);
    let (before, superblock) = resize(&stores, &open_options(Mode::Direct, &format), None).unwrap();
    assert_eq!(before, blocks);
    let most = superblock.provided_data_sectors;
    assert!((before + 8..2 * LEN as u64 / 512).contains(&most), "{most}");
    assert!(resize(&stores, &open_options(Mode::Direct, &format), Some(most + 8)).is_err());
}
