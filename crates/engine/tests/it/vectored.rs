//! Vectored calls: the bytes, errors and counters of contiguous ones, wherever the memory is cut.

use crate::stacked::segment;
use crate::support::{Random, key, with};
use inlock_cipher::{CipherSpec, Sector, VolumeKey};
use inlock_engine::store::file::{FileStore, IoMode};
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::store::{BackingStore, Geometry, StoreProfile, gathered, write_all_vectored};
use inlock_engine::{Access, BlockingDevice, Content, Device, Errno, RequestError, Target};
use std::io::{Cursor, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Ciphers with kernels of each kind, and none.
const SPECS: [&str; 7] = [
    "aes-xts-plain64",
    "aes-cbc-essiv:sha256",
    "aes-cbc-eboiv",
    "aes-lrw-benbi",
    "serpent-cbc-plain64",
    "xchacha12,aes-adiantum-plain64",
    "linear",
];

/// Returns the lengths of pieces with ascending `cuts`.
fn lens(cuts: &[usize], total: usize) -> Vec<usize> {
    let ends = cuts.iter().copied().chain([total]);
    ends.scan(0, |before, end| Some(end - std::mem::replace(before, end))).collect()
}

fn cut<'a>(mut data: &'a [u8], lens: &[usize]) -> Vec<IoSlice<'a>> {
    let piece = |len: &usize| data.split_off(..*len).map(IoSlice::new).expect("as long as the pieces");
    lens.iter().map(piece).collect()
}

fn cut_mut<'a>(mut data: &'a mut [u8], lens: &[usize]) -> Vec<IoSliceMut<'a>> {
    let piece = |len: &usize| data.split_off_mut(..*len).map(IoSliceMut::new).expect("as long as the pieces");
    lens.iter().map(piece).collect()
}

/// Returns ascending positions up to `total`, in a few places or many.
fn random_cuts(random: &mut Random, total: usize) -> Vec<usize> {
    let count = [3, 20, 400][random.below(3) as usize];
    let mut cuts: Vec<usize> = (0..count).map(|_| random.below(total as u64 + 1) as usize).collect();
    // Some empty pieces, and some at the ends.
    cuts.extend([0, 0, total, cuts[0]].iter().take(random.below(5) as usize));
    cuts.sort_unstable();
    cuts
}

/// A store whose files are opened for direct I/O: the memory of calls has to be aligned.
struct Aligned(MemoryStore);

impl BackingStore for Aligned {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn profile(&self) -> StoreProfile {
        with!(self.0.profile(); memory_alignment: 512)
    }
    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        if data.as_ptr().addr().is_multiple_of(512) { self.0.read_at(data, offset) } else { Err(Errno::INVAL) }
    }
    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        if data.as_ptr().addr().is_multiple_of(512) { self.0.write_at(data, offset) } else { Err(Errno::INVAL) }
    }
    fn sync(&self) -> Result<(), Errno> {
        Ok(())
    }
    fn discard(&self, _offset: u64, _len: u64) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }
}

/// A device with one cipher, and what contiguous calls do on it.
struct Case {
    name: String,
    store: Arc<Aligned>,
    volume: BlockingDevice,
    /// The store before each write.
    before: Vec<u8>,
    offset: u64,
    data: Vec<u8>,
    /// The store after a write of `data` at `offset`.
    written: Vec<u8>,
}

impl Case {
    fn new(spec: &str, unit: u32, offset: u64, len: usize) -> Self {
        let mut random = Random::new(7);
        let cipher = (spec != "linear").then(|| spec.parse::<CipherSpec>().unwrap());
        let store_len = 8 * unit as usize + 1024;
        let segment = with!(
            segment(0, (store_len as u64 - 1024) / 512, 2, unit);
            cipher: cipher,
            iv_offset: Sector(8 * 9),
        );
        let key = VolumeKey::new(&random.bytes(cipher.map_or(0, |spec| *spec.key_lens().iter().max().unwrap())));
        let before = random.bytes(store_len);
        let store = Arc::new(Aligned(MemoryStore::new(before.clone())));
        let device = Device::new(&[segment], &key, Arc::clone(&store) as _, Access::default()).unwrap();
        let volume = BlockingDevice::with_calls(Arc::new(device), 1);
        let data = random.bytes(len);
        volume.write_at(&data, offset).unwrap();
        let written = store.0.contents();
        let name = format!("{spec}, units of {unit}, {len} bytes at {offset}");
        Self { name, store, volume, before, offset, data, written }
    }

    fn compare(&self, cuts: &[usize]) {
        let lens = lens(cuts, self.data.len());
        self.store.0.write_at(&self.before, 0).unwrap();
        self.volume.write_vectored_at(&cut(&self.data, &lens), self.offset).unwrap();
        assert!(self.store.0.contents() == self.written, "{}, written in {lens:?}", self.name);
        let mut read = vec![0x77; self.data.len()];
        self.volume.read_vectored_at(&mut cut_mut(&mut read, &lens), self.offset).unwrap();
        assert!(read == self.data, "{}, read in {lens:?}", self.name);
    }
}

/// Whole data units, and ranges with parts of units at one or both ends.
#[test]
fn vectored_calls_equal_contiguous_ones_for_every_cut() {
    let mut compared = 0;
    for (unit, offset, len) in [(512, 1024, 1536), (512, 612, 1300), (4096, 4096, 8192), (4096, 0, 5000)] {
        for spec in SPECS {
            let case = Case::new(spec, unit, offset, len);
            for first in 0..=len {
                case.compare(&[first]);
                // The second cut: next to the first, near the ends of units and of the data, and anywhere.
                let units = [unit as usize, 2 * unit as usize];
                let near = units.iter().flat_map(|end| [end - 1, *end, end + 1]);
                let anywhere = first + (first * 0x9e37 + 5) % (len - first + 1);
                let all = near.chain([first, first + 1, first + 16, len - 1, len, anywhere]);
                for second in all.filter(|second| (first..=len).contains(second)) {
                    // More in small units, where calls are short.
                    if unit == 512 && first % 3 == 0 || second == anywhere && first % 4 == 0 {
                        case.compare(&[first, second]);
                        compared += 1;
                    }
                }
                compared += 1;
            }
            case.compare(&[0, 0, len, len]);
        }
    }
    println!("COUNT cuts_of_vectored_calls {compared}");
}

/// Crypt, linear, zero and crypt again, with requests over their borders and over pieces of 1 MiB.
#[test]
fn vectored_calls_of_any_length_equal_contiguous_ones() {
    const MIB: u64 = 1 << 20;
    let mut start = 0;
    let segments = [(4096, 4096 + 24), (512, 37), (512, 4096), (4096, 4096 + 8)].map(|(unit, sectors)| {
        start += sectors;
        segment(start - sectors, sectors, 8 + start - sectors, unit)
    });
    let key = key();
    let content = [Content::Crypt(&key), Content::Linear, Content::Zero, Content::Crypt(&key)];
    let lines: Vec<Target<'_>> =
        segments.iter().zip(content).map(|(segment, content)| Target { segment, content, store: 0 }).collect();
    let mut random = Random::new(23);
    let before = random.bytes((start as usize + 8) * 512);
    let [one, other] = [(); 2].map(|()| {
        let store = Arc::new(MemoryStore::new(before.clone()));
        let device = Device::stacked(&lines, vec![Arc::clone(&store) as _], Access::default()).unwrap();
        (store, BlockingDevice::new(Arc::new(device)))
    });
    for step in 0..60 {
        let offset = random.below(start * 512 - 3 * MIB) & if step % 2 == 0 { !4095 } else { !0 };
        let len = (1 + random.below(3 * MIB)) as usize & if step % 3 == 0 { !511 } else { !0 };
        let lens = lens(&random_cuts(&mut random, len), len);
        let data = random.bytes(len);
        one.1.write_at(&data, offset).unwrap();
        other.1.write_vectored_at(&cut(&data, &lens), offset).unwrap();
        let (mut expected, mut read) = (vec![0; len], vec![0x77; len]);
        one.1.read_at(&mut expected, offset).unwrap();
        other.1.read_vectored_at(&mut cut_mut(&mut read, &lens), offset).unwrap();
        assert!(read == expected, "step {step}");
    }
    assert!(one.0.contents() == other.0.contents());
    let [one, other] = [one, other].map(|(_, volume)| volume.device().stats().snapshot());
    let counters = |s: &inlock_engine::stats::Snapshot| {
        [s.reads, s.writes, s.bytes_read, s.bytes_written, s.cipher_calls, s.cipher_units, s.errors]
    };
    assert_eq!(counters(&one), counters(&other), "pieces are not counted as requests or cipher calls");
}

/// The kernel checks the memory of direct I/O; a file system may have none.
#[test]
fn vectored_calls_of_a_file_equal_contiguous_ones() {
    let file = crate::support::file_in_memory();
    file.as_file().set_len((1 << 20) + crate::support::DATA_OFFSET as u64).unwrap();
    let store = Arc::new(FileStore::new(file.reopen().unwrap(), IoMode::Auto).unwrap());
    let volume = BlockingDevice::new(crate::support::device(store, 4096));
    let mut random = Random::new(3);
    for _ in 0..100 {
        let (offset, len) = random.range(volume.len(), 4096);
        let (data, len) = (random.bytes(len as usize), len as usize);
        let lens = lens(&random_cuts(&mut random, len), len);
        volume.write_vectored_at(&cut(&data, &lens), offset).unwrap();
        let mut read = vec![0; len];
        volume.read_at(&mut read, offset).unwrap();
        assert!(read == data);
        read.fill(0);
        volume.read_vectored_at(&mut cut_mut(&mut read, &lens), offset).unwrap();
        assert!(read == data);
    }
}

#[test]
fn vectored_calls_fail_as_contiguous_ones() {
    let store = Arc::new(MemoryStore::new(vec![0x11; 16 * 512]));
    let (whole, broken) = (segment(0, 8, 0, 512), segment(8, 8, 8, 512));
    let key = key();
    let lines = [
        Target { segment: &whole, content: Content::Crypt(&key), store: 0 },
        Target { segment: &broken, content: Content::Error, store: 0 },
    ];
    let volume = |read_only| {
        let access = Access { read_only, allow_discards: false };
        let device = Device::stacked(&lines, vec![Arc::clone(&store) as _], access).unwrap();
        BlockingDevice::new(Arc::new(device))
    };
    let check = |volume: &BlockingDevice, offset: u64, len: usize| {
        let lens = lens(&[len / 3, len / 3, len / 2], len);
        let data = vec![0x22; len];
        let written = volume.write_at(&data, offset);
        assert_eq!(volume.write_vectored_at(&cut(&data, &lens), offset), written, "{len} bytes at {offset}");
        let (mut one, mut other) = (data.clone(), data);
        let read = volume.read_at(&mut one, offset);
        assert_eq!(volume.read_vectored_at(&mut cut_mut(&mut other, &lens), offset), read, "{len} bytes at {offset}");
        assert_eq!(one, other, "{len} bytes at {offset}");
        (written.err(), read.err())
    };
    let beyond = Some(RequestError::OutOfRange);
    let both = (beyond, beyond);
    assert_eq!(check(&volume(false), 8192, 0), (None, None));
    assert_eq!(check(&volume(false), 8193, 0), both);
    assert_eq!(check(&volume(false), 8000, 193), both);
    assert_eq!(check(&volume(false), u64::MAX, 512), both);
    assert_eq!(check(&volume(true), 0, 512), (Some(RequestError::ReadOnly), None));
    assert_eq!(store.contents(), [0x11; 16 * 512], "nothing was written");
    let failed = Some(RequestError::Io(Errno::IO));
    assert_eq!(check(&volume(false), 4096, 512), (failed, failed));
    assert_eq!(check(&volume(false), 3584, 1024), (failed, failed));
    // A number of bytes that is no multiple of the data unit.
    assert_eq!(check(&volume(false), 0, 700), (None, None));
}

/// A cursor takes pieces as one of the standard library does: bytes behind the end are left out.
#[test]
fn cursor_takes_pieces_as_the_standard_librarys() {
    const LEN: u64 = 64 << 10;
    let store = Arc::new(MemoryStore::new(vec![0; crate::support::DATA_OFFSET + LEN as usize]));
    let mut ours = BlockingDevice::new(crate::support::device(Arc::clone(&store) as _, 4096)).cursor();
    let mut bytes = vec![0; LEN as usize];
    ours.read_exact(&mut bytes).unwrap();
    let mut theirs = Cursor::new(&mut bytes[..]);
    let mut random = Random::new(5);
    for step in 0..500 {
        let (offset, len) = (random.below(LEN + 10), 1 + random.below(20_000) as usize);
        let lens = lens(&random_cuts(&mut random, len), len);
        assert_eq!(ours.seek(SeekFrom::Start(offset)).unwrap(), theirs.seek(SeekFrom::Start(offset)).unwrap());
        if step % 2 == 0 {
            let data = random.bytes(len);
            match theirs.write_vectored(&cut(&data, &lens)).unwrap() {
                0 => assert!(ours.write_vectored(&cut(&data, &lens)).is_err(), "step {step}"),
                written => assert_eq!(ours.write_vectored(&cut(&data, &lens)).unwrap(), written, "step {step}"),
            }
        } else {
            let (mut got, mut wanted) = (vec![0x77; len], vec![0x77; len]);
            let read = ours.read_vectored(&mut cut_mut(&mut got, &lens)).unwrap();
            assert_eq!(read, theirs.read_vectored(&mut cut_mut(&mut wanted, &lens)).unwrap(), "step {step}");
            assert!(got == wanted, "step {step}");
        }
        assert_eq!(ours.stream_position().unwrap(), theirs.stream_position().unwrap(), "step {step}");
    }
}

/// A store that writes a few bytes at a time, and is interrupted between them.
struct Reluctant {
    inner: MemoryStore,
    calls: AtomicUsize,
}

impl BackingStore for Reluctant {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.inner.read_at(data, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        self.write_vectored_at(&[IoSlice::new(data)], offset)
    }

    fn write_vectored_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<usize, Errno> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if call % 3 == 1 {
            return Err(Errno::INTR);
        }
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_vec()).take(1 + call % 11).collect();
        self.inner.write_at(&bytes, offset)
    }

    fn sync(&self) -> Result<(), Errno> {
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.inner.discard(offset, len)
    }
}

#[test]
fn parts_are_gathered_up_to_a_length() {
    let parts = [&b"one"[..], b"", b"two", b"three"].map(IoSlice::new);
    for most in 0..20 {
        assert_eq!(gathered(&parts, most), &b"onetwothree"[..most.min(11)]);
    }
}

#[test]
fn all_parts_are_written_to_a_store_that_takes_few_bytes_at_a_time() {
    let mut random = Random::new(17);
    for round in 0..100 {
        let total = random.below(200) as usize;
        let data = random.bytes(total);
        let mut cuts: Vec<usize> = (0..random.below(8)).map(|_| random.below(total as u64 + 1) as usize).collect();
        cuts.sort_unstable();
        let store = Reluctant { inner: MemoryStore::new(vec![0; 300]), calls: AtomicUsize::new(round) };
        write_all_vectored(&store, &mut cut(&data, &lens(&cuts, total)), 40).unwrap();
        let written = store.inner.contents();
        assert!(written[40..40 + total] == data, "round {round}");
        assert!(written[..40].iter().chain(&written[40 + total..]).all(|byte| *byte == 0), "round {round}");
    }
    // The end of the store.
    let store = MemoryStore::new(vec![0; 100]);
    let data = [1; 60];
    assert!(write_all_vectored(&store, &mut [IoSlice::new(&data), IoSlice::new(&data)], 0).is_err());
}
