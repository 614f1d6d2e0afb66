//! Blocks that are marked as never written: they read as zeroes, and a mark needs the key.

use crate::support::{Numbers, hash, memory, open_options};
use inlock_cipher::{Aead, AeadSpec, DataUnitSize, IvNumbering, Sector};
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{BackingStore, Errno};
use inlock_integrity::{
    Fill, FormatOptions, IntegrityDevice, IntegrityError, IntegrityStore, Marks, Mode, OpenOptions, Sealing, Stores,
    format,
};
use std::ops::ControlFlow;
use std::sync::Arc;

const LEN: usize = 3 << 20;

/// A kind of volumes, on a device full of older data.
struct Kind {
    format: FormatOptions,
    sealed: Option<(AeadSpec, Vec<u8>)>,
}

impl Kind {
    fn internal(name: &str, block_len: usize) -> Self {
        let format = FormatOptions { internal_hash: Some(hash(name)), ..Self::options(block_len) };
        Self { format, sealed: None }
    }

    fn sealed(cipher: &str, integrity: &str, block_len: usize, seed: u8) -> Self {
        let spec = AeadSpec::from_luks2(cipher, integrity).unwrap();
        let format = FormatOptions { tag_size: Some(spec.metadata_len()), ..Self::options(block_len) };
        let key = vec![seed; *spec.key_lens().last().unwrap()];
        Self { format, sealed: Some((spec, key)) }
    }

    fn options(block_len: usize) -> FormatOptions {
        let (journal_sectors, interleave_sectors) = (Some(128), 64);
        let sectors_per_bit = 64;
        let overwrite = true;
        FormatOptions {
            block_len,
            journal_sectors,
            interleave_sectors,
            sectors_per_bit,
            overwrite,
            ..FormatOptions::default()
        }
    }

    fn all() -> Vec<Self> {
        vec![
            Self::internal("hmac-sha256", 512),
            Self::internal("hmac-sha1", 4096),
            Self::internal("hmac-sha512", 1024),
            Self::sealed("aes-gcm-random", "aead", 4096, 1),
            Self::sealed("aegis128-random", "aead", 512, 1),
            Self::sealed("chacha20-random", "poly1305", 4096, 1),
            Self::sealed("aes-xts-random", "hmac(sha512)", 512, 1),
            Self::sealed("aes-xts-plain64", "hmac(sha256)", 4096, 1),
        ]
    }

    /// Formats a device, and marks blocks until `stop`.
    fn image(&self, stop: ControlFlow<()>) -> Arc<MemoryStore> {
        let mut numbers = Numbers(77);
        let image = memory((0..LEN).map(|_| numbers.below(256) as u8).collect());
        format(&Stores::interleaved(image.clone()), &self.format).unwrap();
        let store = self.open(&image, Mode::Direct);
        let sealing = self.sealing();
        let marks = sealing.as_ref().and_then(Sealing::marks);
        store.device().mark_never_written(0, 2, marks, |_| stop).unwrap();
        store.device().close().unwrap();
        image
    }

    fn sealing(&self) -> Option<Sealing> {
        let (spec, key) = self.sealed.as_ref()?;
        let unit = DataUnitSize::new(self.format.block_len as u32).unwrap();
        let aead = Aead::new(spec, key, unit, IvNumbering::Sectors, Sector(0)).unwrap();
        Some(Sealing::new(aead, key, spec.metadata_len()).unwrap())
    }

    fn open(&self, image: &Arc<MemoryStore>, mode: Mode) -> IntegrityStore {
        self.open_with(image, open_options(mode, &self.format))
    }

    fn open_with(&self, image: &Arc<MemoryStore>, options: OpenOptions) -> IntegrityStore {
        let device = Arc::new(IntegrityDevice::open(Stores::interleaved(image.clone()), options).unwrap());
        match self.sealing() {
            Some(sealing) => IntegrityStore::sealed(device, sealing).unwrap(),
            None => IntegrityStore::new(device).unwrap(),
        }
    }

    fn modes(&self) -> &'static [Mode] {
        if self.sealed.is_some() {
            &[Mode::Journal, Mode::Direct]
        } else {
            &[Mode::Journal, Mode::Direct, Mode::Bitmap]
        }
    }
}

fn read(store: &IntegrityStore, len: usize, offset: usize) -> Result<Vec<u8>, Errno> {
    let (mut data, mut done) = (vec![0xcc; len], 0);
    while done < len {
        done += store.read_at(&mut data[done..], (offset + done) as u64)?;
    }
    Ok(data)
}

fn write(store: &IntegrityStore, data: &[u8], offset: usize) {
    let mut done = 0;
    while done < data.len() {
        done += store.write_at(&data[done..], (offset + done) as u64).unwrap();
    }
}

/// Returns the blocks that cannot be read, and the first bytes of the others.
fn survey(store: &IntegrityStore) -> (Vec<usize>, Vec<u8>) {
    let block_len = store.device().layout().block_len();
    let (mut bad, mut bytes) = (Vec::new(), Vec::new());
    for block in 0..store.geometry().len as usize / block_len {
        match read(store, block_len, block * block_len) {
            Ok(data) => {
                assert!(data.iter().all(|byte| *byte == data[0]));
                bytes.push(data[0]);
            }
            Err(error) => {
                assert_eq!(error, Errno::ILSEQ);
                bad.push(block);
            }
        }
    }
    (bad, bytes)
}

#[test]
fn marked_blocks_read_as_zeroes_until_they_are_written() {
    for kind in Kind::all() {
        let image = kind.image(ControlFlow::Continue(()));
        for mode in kind.modes() {
            let image = memory(image.contents());
            let mut store = kind.open(&image, *mode);
            let mut model = vec![0; store.geometry().len as usize];
            let mut numbers = Numbers(0x5eed);
            for step in 0..80 {
                let offset = numbers.below(model.len() as u64) as usize;
                let len = 1 + numbers.below((model.len() - offset).min(30_000) as u64) as usize;
                if step % 20 == 19 {
                    store.device().close().unwrap();
                    assert_eq!(store.device().metrics().mismatches, 0);
                    store = kind.open(&image, *mode);
                } else if numbers.below(2) == 0 {
                    let data: Vec<u8> = (0..len).map(|_| numbers.below(256) as u8).collect();
                    write(&store, &data, offset);
                    model[offset..offset + len].copy_from_slice(&data);
                } else {
                    assert!(read(&store, len, offset).unwrap() == model[offset..offset + len]);
                }
            }
            assert!(read(&store, model.len(), 0).unwrap() == model);
            assert_eq!(store.device().metrics().mismatches, 0);
        }
    }
}

#[test]
fn changed_or_moved_mark_fails_its_block() {
    for kind in Kind::all() {
        let image = kind.image(ControlFlow::Continue(()));
        let store = kind.open(&image, Mode::Direct);
        let layout = store.device().layout();
        let (one, other) = (layout.tag_position(3).0, layout.tag_position(5).0);
        let whole = image.contents();
        let mark = |at: u64| whole[at as usize..][..layout.journal.tag_size].to_vec();
        let fails = |changed: &[(u64, Vec<u8>)], bad: &[usize], what: &str| {
            let image = memory(whole.clone());
            for (at, bytes) in changed {
                image.write_at(bytes, *at).unwrap();
            }
            let store = kind.open(&image, Mode::Direct);
            let block_len = layout.block_len();
            for block in 0..8 {
                let expected = if bad.contains(&block) { Err(Errno::ILSEQ) } else { Ok(vec![0; block_len]) };
                assert!(read(&store, block_len, block * block_len) == expected, "{what}, block {block}");
            }
        };
        for at in 0..layout.journal.tag_size {
            let mut changed = mark(one);
            changed[at] ^= 1 << (at % 8);
            fails(&[(one, changed)], &[3], "a byte of the mark");
        }
        fails(&[(one, mark(other)), (other, mark(one))], &[3, 5], "two marks swapped");
        fails(&[(one, vec![0; layout.journal.tag_size])], &[3], "no mark");
    }
}

#[test]
fn mark_of_another_key_or_salt_is_none() {
    let kind = Kind::sealed("aes-gcm-random", "aead", 4096, 1);
    let other = Kind::sealed("aes-gcm-random", "aead", 4096, 2);
    let (bad, good) = survey(&other.open(&kind.image(ControlFlow::Continue(())), Mode::Direct));
    assert!(bad.len() > 100 && good.is_empty());

    let kind = Kind::internal("hmac-sha256", 4096);
    let image = kind.image(ControlFlow::Continue(()));
    // The same key: the new volume has a salt of its own.
    format(&Stores::interleaved(image.clone()), &kind.format).unwrap();
    let (bad, good) = survey(&kind.open(&image, Mode::Direct));
    assert!(bad.len() > 100 && good.is_empty());
}

/// Neither superblock nor header has a key: an attacker may make blocks longer, so that a mark and blocks that were
/// written are one block.
#[test]
fn mark_of_a_shorter_block_is_none() {
    let kind = Kind::internal("hmac-sha256", 512);
    let image = kind.image(ControlFlow::Continue(()));
    let store = kind.open(&image, Mode::Direct);
    let mark_at = |layout: inlock_integrity::Layout, block| layout.tag_position(block).0;
    let mut mark = [0; 32];
    image.read_at(&mut mark, mark_at(store.device().layout(), 8)).unwrap();
    write(&store, &[7; 7 * 512], 9 * 512);
    store.device().close().unwrap();
    // The longer blocks' volume of the same salt.
    let longer = Kind::internal("hmac-sha256", 4096);
    let salt = Some(store.device().superblock().salt);
    format(&Stores::interleaved(image.clone()), &FormatOptions { salt, ..longer.format.clone() }).unwrap();
    let store = longer.open(&image, Mode::Direct);
    image.write_at(&mark, mark_at(store.device().layout(), 1)).unwrap();
    let store = longer.open(&image, Mode::Direct);
    assert_eq!(read(&store, 4096, 4096), Err(Errno::ILSEQ));
}

#[test]
fn recalculation_after_a_power_cut_keeps_marks_and_one_of_all_data_does_not() {
    let kind = Kind::internal("hmac-sha256", 4096);
    let image = kind.image(ControlFlow::Continue(()));
    let store = kind.open(&image, Mode::Direct);
    let blocks = store.geometry().len as usize / 4096;
    write(&store, &[7; 4096], 9 * 4096);
    store.device().close().unwrap();
    let expected: Vec<u8> = (0..blocks).map(|block| if block == 9 { 7 } else { 0 }).collect();

    let all = memory(image.contents());
    let mut options = open_options(Mode::Direct, &kind.format);
    (options.recalculate, options.legacy_recalculate) = (true, true);
    let store = kind.open_with(&all, options);
    let present = |store: &IntegrityStore| {
        for block in 0..blocks {
            let at = store.device().layout().data_position(block as u64).0 as usize;
            assert!(read(store, 4096, block * 4096).unwrap() == all.contents()[at..at + 4096], "block {block}");
        }
    };
    present(&store);
    while !store.device().recalculate_step().unwrap() {}
    present(&store);

    // After a power cut the regions of the bitmap are computed again.
    let store = kind.open(&image, Mode::Bitmap);
    write(&store, &[8; 4096], 20 * 4096);
    store.sync().unwrap();
    let after_power_cut = memory(image.contents());
    let mut options = open_options(Mode::Bitmap, &kind.format);
    options.legacy_recalculate = true;
    let store = kind.open_with(&after_power_cut, options);
    assert!(!store.device().recalculate_step().unwrap(), "nothing to be computed");
    while !store.device().recalculate_step().unwrap() {}
    let mut expected = expected;
    expected[20] = 8;
    assert_eq!(survey(&store), (vec![], expected));
}

#[test]
fn interrupted_marking_is_continued() {
    for kind in [Kind::internal("hmac-sha256", 4096), Kind::sealed("aes-gcm-random", "aead", 4096, 1)] {
        let image = kind.image(ControlFlow::Continue(()));
        let whole = image.contents();
        let store = kind.open(&image, Mode::Direct);
        let layout = store.device().layout();
        // The marks of the later part are not there.
        let blocks = layout.provided_data_sectors / layout.sectors_per_block();
        for block in blocks / 2..blocks {
            let at = layout.tag_position(block).0;
            image.write_at(&vec![3; layout.journal.tag_size], at).unwrap();
        }
        let store = kind.open(&image, Mode::Direct);
        let filled = store.fill_unreadable(Fill::Marks, 2, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(filled.blocks, blocks - blocks / 2);
        store.device().close().unwrap();
        assert!(image.contents() == whole, "marks are the same ones, and data are as they were");
    }
}

#[test]
fn volume_whose_tags_protect_nothing_has_no_marks() {
    let mark = |name: &str, tag_size| {
        let mut kind = Kind::internal(name, 512);
        kind.format.tag_size = tag_size;
        let image = memory(vec![0; LEN]);
        format(&Stores::interleaved(image.clone()), &kind.format).unwrap();
        let store = kind.open(&image, Mode::Direct);
        let marked = store.device().mark_never_written(0, 1, None, |_| ControlFlow::Continue(()));
        let marks = Marks::of_hash(hash(name), None, tag_size.unwrap_or(hash(name).len()), 512);
        assert_eq!(marked.is_ok(), marks.is_ok());
        marks.map(drop)
    };
    let reason = |result: Result<(), IntegrityError>| result.unwrap_err().to_string();
    assert!(reason(mark("crc32c", None)).contains("have no key"));
    assert!(reason(mark("sha256", None)).contains("have no key"));
    assert!(reason(mark("hmac-sha256", Some(15))).contains("less than 16 bytes"));
    assert!(mark("hmac-sha256", Some(16)).is_ok());
    // Longer tags than the hash: the rest is zero.
    assert!(mark("hmac-sha1", Some(24)).is_ok());

    let kind = Kind::sealed("aes-gcm-random", "aead", 4096, 1);
    let store = kind.open(&kind.image(ControlFlow::Continue(())), Mode::Direct);
    let foreign = Marks::of_volume_key(&[1; 32], 32, 4096).unwrap();
    for marks in [None, Some(&foreign)] {
        let marked = store.device().mark_never_written(0, 1, marks, |_| ControlFlow::Continue(()));
        assert_eq!(marked, Err(Errno::INVAL), "no marks of this length");
    }
    let journal = kind.open(&kind.image(ControlFlow::Continue(())), Mode::Journal);
    let sealing = kind.sealing().unwrap();
    let marked = journal.device().mark_never_written(0, 1, sealing.marks(), |_| ControlFlow::Continue(()));
    assert_eq!(marked, Err(Errno::INVAL), "the journal may have newer blocks");
}
