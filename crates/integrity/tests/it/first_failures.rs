//! A call of a store fails: the operation fails with its error at once, and makes no further call. What it would have
//! done next could destroy what the failed call was to keep.

use crate::sealed::{gcm, with_tags_of};
use crate::support::{fill, formatted, hash, memory, open_options, tuple};
use inlock_engine::{BackingStore, Errno};
use inlock_integrity::{
    Fill, FormatOptions, FreshnessRecord, IntegrityDevice, IntegrityError, IntegrityStore, Mode, NewBlocks,
    OpenOptions, ReadError, RecordedState, Stores, empties_journal, resize, stored_section, tag_root,
};
use inlock_testing::{ScriptedStore, Verdict};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const LEN: usize = 192 << 10;
const META_LEN: usize = 96 << 10;
/// Error of the failed call: no other comes from the volume itself.
const ERROR: Errno = Errno::NOSPC;

/// An operation after its preparation, which does not fail.
type Operation = Box<dyn FnOnce() -> Result<(), Failure>>;

/// How an operation failed.
#[derive(Debug, PartialEq)]
enum Failure {
    /// With an error of a store.
    Store(Errno),
    Other,
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        Self::Store(error)
    }
}

impl From<IntegrityError> for Failure {
    fn from(error: IntegrityError) -> Self {
        match error {
            IntegrityError::Io { source, .. } => Self::Store(source),
            _ => Self::Other,
        }
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(error) => Self::Store(error),
            ReadError::Mismatch(_) => Self::Other,
        }
    }
}

/// Fails each call of an operation in turn, on one store or two.
fn check(name: &str, image: &[Vec<u8>], prepare: impl Fn(Stores) -> Operation) -> usize {
    for nth in 1.. {
        // Not counted during the preparation.
        let calls = Arc::new(AtomicUsize::new(usize::MAX / 2));
        let store = |bytes: &Vec<u8>| -> Arc<dyn BackingStore> {
            let counted = Arc::clone(&calls);
            Arc::new(ScriptedStore::new(memory(bytes.clone()), move |_| {
                if counted.fetch_add(1, Ordering::SeqCst) + 1 == nth { Verdict::Fail(ERROR) } else { Verdict::Pass }
            }))
        };
        let operation = prepare(Stores { data: store(&image[0]), meta: image.get(1).map(store), start: 0 });
        calls.store(0, Ordering::SeqCst);
        let result = operation();
        let count = calls.load(Ordering::SeqCst);
        if count < nth {
            assert_eq!(result, Ok(()), "{name}: no call failed");
            assert!(nth > 1, "{name} made no call");
            return nth - 1;
        }
        assert_eq!(result, Err(Failure::Store(ERROR)), "{name}: call {nth} failed");
        assert_eq!(count, nth, "{name}: calls after call {nth}, which failed");
    }
    0
}

fn options() -> FormatOptions {
    FormatOptions {
        tag_size: Some(200),
        internal_hash: Some(hash("crc32c")),
        interleave_sectors: 64,
        journal_sectors: Some(64),
        sectors_per_bit: 16,
        salt: Some([5; 16]),
        ..FormatOptions::default()
    }
}

fn images(format: &FormatOptions) -> [Vec<Vec<u8>>; 2] {
    let (data, meta) = formatted(format, LEN / 2, Some(META_LEN));
    [vec![formatted(format, LEN, None).0], vec![data, meta.unwrap()]]
}

fn open_as(stores: Stores, mode: Mode) -> IntegrityDevice {
    let options = OpenOptions { allow_discards: true, ..open_options(mode, &options()) };
    IntegrityDevice::open(stores, options).unwrap()
}

fn write(device: &IntegrityDevice, blocks: std::ops::Range<u64>, value: u8) -> Result<(), Errno> {
    let data: Vec<u8> = blocks.clone().flat_map(|block| fill(block, value, 512)).collect();
    device.write(blocks.start, &data, &[])
}

/// Returns the stores of an image after `work`, and not closed.
fn after(image: &[Vec<u8>], work: impl Fn(Stores)) -> Vec<Vec<u8>> {
    let stores: Vec<_> = image.iter().map(|bytes| memory(bytes.clone())).collect();
    work(Stores { data: stores[0].clone(), meta: stores.get(1).map(|meta| meta.clone() as _), start: 0 });
    stores.iter().map(|store| store.contents()).collect()
}

/// Opens a volume in each state in each mode.
#[test]
fn open_ends_with_the_first_failure() {
    let mut calls = 0;
    for clean in images(&options()) {
        let flushed = after(&clean, |stores| {
            let device = open_as(stores, Mode::Journal);
            write(&device, 0..9, 1).unwrap();
            device.flush().unwrap();
        });
        let dirty = after(&clean, |stores| write(&open_as(stores, Mode::Bitmap), 0..9, 1).unwrap());
        for (name, image) in [("clean", &clean), ("journal", &flushed), ("bitmap", &dirty)] {
            for mode in [Mode::Journal, Mode::Bitmap, Mode::Direct] {
                for (recalculate, read_only) in [(false, false), (true, false), (false, true)] {
                    let options = OpenOptions { recalculate, read_only, ..open_options(mode, &options()) };
                    let name = format!("open in {mode:?} of {name}, {recalculate} {read_only}");
                    calls += check(&name, image, |stores| {
                        let options = options.clone();
                        Box::new(move || Ok(IntegrityDevice::open(stores, options).map(drop)?))
                    });
                }
            }
        }
    }
    println!("COUNT integrity_first_failures_of_opens {calls}");
    assert!(calls > 300, "{calls}");
}

/// Operations of an open device.
#[test]
fn device_ends_an_operation_with_the_first_failure() {
    type Work = fn(&IntegrityDevice) -> Result<(), Failure>;
    const ALL: &[Mode] = &[Mode::Journal, Mode::Bitmap, Mode::Direct];
    let works: [(&str, &[Mode], Work); 6] = [
        ("read", ALL, |device| Ok(device.read(40, &mut [0; 40 * 512], &mut [])?)),
        ("write", &[Mode::Bitmap, Mode::Direct], |device| Ok(write(device, 30..90, 7)?)),
        ("discard", ALL, |device| Ok(device.discard(1, 80)?)),
        ("flush", ALL, |device| Ok(device.flush()?)),
        ("maintain", ALL, |device| Ok(device.maintain()?)),
        ("close", ALL, |device| Ok(device.close()?)),
    ];
    let mut calls = 0;
    for (image, (name, modes, work)) in
        images(&options()).iter().flat_map(|image| works.iter().map(move |work| (image, work)))
    {
        for mode in *modes {
            calls += check(&format!("{name} in {mode:?}"), image, |stores| {
                let image = open_as(stores.clone(), Mode::Direct);
                image.wipe(0, 1, |_, _, _| Ok(()), |_| ControlFlow::Continue(())).unwrap();
                drop(image);
                let device = open_as(stores, *mode);
                write(&device, 0..9, 1).unwrap();
                let work = *work;
                Box::new(move || work(&device))
            });
        }
    }
    println!("COUNT integrity_first_failures_of_devices {calls}");
    assert!(calls > 100, "{calls}");
}

/// A step of a recalculation, of everything and of the regions of a bitmap.
#[test]
fn recalculation_ends_with_the_first_failure() {
    for clean in images(&options()) {
        let dirty = after(&clean, |stores| write(&open_as(stores, Mode::Bitmap), 0..9, 1).unwrap());
        for (image, recalculate) in [(&clean, true), (&dirty, false)] {
            check("a step", image, |stores| {
                let options = OpenOptions { recalculate, ..open_options(Mode::Bitmap, &options()) };
                let device = IntegrityDevice::open(stores, options).unwrap();
                Box::new(move || {
                    while !device.recalculate_step()? {}
                    Ok(())
                })
            });
        }
    }
}

/// Another length of a volume that is open.
#[test]
fn resize_of_an_open_volume_ends_with_the_first_failure() {
    const MODES: &[Mode] = &[Mode::Bitmap, Mode::Direct, Mode::Journal];
    // A call that fails within several sections of a wipe is repeated.
    let lengths =
        [(40, NewBlocks::Wipe, MODES), (120, NewBlocks::Recalculate, MODES), (120, NewBlocks::Wipe, &MODES[..2])];
    let mut calls = 0;
    for (image, (sectors, new, modes)) in
        images(&options()).iter().flat_map(|image| lengths.map(|length| (image, length)))
    {
        for &mode in modes {
            calls += check(&format!("{sectors} sectors, {new:?}, {mode:?}"), image, |stores| {
                resize(&stores, &open_options(Mode::Direct, &options()), Some(80)).unwrap();
                let device = open_as(stores, mode);
                write(&device, 30..40, 1).unwrap();
                Box::new(move || Ok(device.resize(Some(sectors), new).map(drop)?))
            });
        }
    }
    println!("COUNT integrity_first_failures_of_resizes {calls}");
    assert!(calls > 60, "{calls}");
}

/// Operations on a volume that is not open.
#[test]
fn volume_that_is_not_open_is_left_after_the_first_failure() {
    for clean in images(&options()) {
        let journal = || open_options(Mode::Journal, &options());
        let flushed = after(&clean, |stores| {
            let device = open_as(stores, Mode::Journal);
            write(&device, 0..9, 1).unwrap();
            device.flush().unwrap();
        });
        let empty: Vec<_> = clean.iter().map(|bytes| vec![0; bytes.len()]).collect();
        for (image, overwrite) in [(&empty, false), (&clean, true)] {
            check("format", image, |stores| {
                let options = FormatOptions { overwrite, ..options() };
                Box::new(move || Ok(inlock_integrity::format(&stores, &options).map(drop)?))
            });
        }
        check("resize", &flushed, |stores| Box::new(move || Ok(resize(&stores, &journal(), Some(64)).map(drop)?)));
        check("root of the tags", &flushed, |stores| Box::new(move || Ok(tag_root(&stores, &journal()).map(drop)?)));
        check("a section", &flushed, |stores| Box::new(move || Ok(stored_section(&stores, &journal(), 0).map(drop)?)));
        check("whether it is emptied", &flushed, |stores| {
            Box::new(move || Ok(empties_journal(&stores, &journal()).map(drop)?))
        });
        for (state, has_tags) in [(RecordedState::Open, false), (RecordedState::Closed, true)] {
            check("a comparison", &flushed, |stores| {
                let section = stored_section(&stores, &journal(), 0).unwrap().unwrap();
                let tags = has_tags.then(|| tag_root(&stores, &journal()).unwrap());
                let section = Some((section.number, section.digest));
                let record = FreshnessRecord { number: 1, state, volume: [0; 32], header: [1; 32], section, tags };
                Box::new(move || Ok(record.compare(&stores, &journal(), &[1; 32]).map(drop)?))
            });
        }
    }
}

/// Work of one thread of a wipe, and of its continuation.
#[test]
fn wipe_ends_with_the_first_failure() {
    let go_on = |_| ControlFlow::Continue(());
    for image in images(&options()) {
        check("wipe", &image, |stores| {
            let device = open_as(stores, Mode::Direct);
            Box::new(move || Ok(device.wipe(0, 1, |_, _, _| Ok(()), go_on).map(drop)?))
        });
        check("continued wipe", &image, |stores| {
            let store = IntegrityStore::new(Arc::new(open_as(stores, Mode::Direct))).unwrap();
            Box::new(move || Ok(store.fill_unreadable(Fill::Zeroes, 1, go_on).map(drop)?))
        });
    }
    let keyed = FormatOptions { internal_hash: Some(hash("hmac-sha256")), ..options() };
    for image in images(&keyed) {
        check("marks", &image, |stores| {
            let device = IntegrityDevice::open(stores, open_options(Mode::Direct, &keyed)).unwrap();
            Box::new(move || Ok(device.mark_never_written(0, 1, None, go_on).map(drop)?))
        });
    }
}

/// Requests of a store of plaintext: of whole blocks, and of a part of one.
#[test]
fn sealed_store_ends_a_request_with_the_first_failure() {
    let format = FormatOptions { tag_size: Some(28), internal_hash: None, ..options() };
    for (image, mode) in images(&format).iter().flat_map(|image| [(image, Mode::Journal), (image, Mode::Direct)]) {
        for (name, at, len) in [("whole blocks", 512, 4 * 512), ("parts of blocks", 700, 3 * 512)] {
            for writes in [false, true] {
                check(&format!("{name}, {mode:?}, {writes}"), image, |stores| {
                    let device = IntegrityDevice::open(stores, open_options(mode, &format)).unwrap();
                    let store = IntegrityStore::sealed(Arc::new(device), with_tags_of(28, &gcm(), 512, 1)).unwrap();
                    store.write_at(&[3; 16 * 512], 0).unwrap();
                    store.device().close().unwrap();
                    Box::new(move || {
                        match writes {
                            true => drop(store.write_at(&vec![5; len], at)?),
                            false => drop(store.read_at(&mut vec![0; len], at)?),
                        }
                        Ok(store.sync()?)
                    })
                });
            }
        }
    }
}

/// After a failure every write fails, also one of a whole section of the journal.
#[test]
fn no_write_is_taken_after_a_failure() {
    // More than half of the journal stays free, so that nothing but the check fails a write.
    let format = FormatOptions { internal_hash: None, journal_sectors: Some(512), ..options() };
    let calls = Arc::new(AtomicUsize::new(0));
    let image = memory(formatted(&format, 4 * LEN, None).0);
    let counted = Arc::clone(&calls);
    let store = Arc::new(ScriptedStore::new(image, move |_| match counted.load(Ordering::SeqCst) {
        0 => Verdict::Pass,
        _ => Verdict::Fail(ERROR),
    }));
    let device = IntegrityDevice::open(Stores::interleaved(store), open_options(Mode::Journal, &format)).unwrap();
    let entries = device.layout().journal.entries;
    let block = [1; 512];
    device.write(0, &block, &tuple(&block, 200)).unwrap();
    calls.store(1, Ordering::SeqCst);
    assert_eq!(device.flush(), Err(ERROR));
    calls.store(0, Ordering::SeqCst);
    assert_eq!(device.write(0, &block, &tuple(&block, 200)), Err(Errno::IO));
    assert_eq!(device.flush(), Err(Errno::IO));
    let store = IntegrityStore::sealed(Arc::new(device), with_tags_of(200, &gcm(), 512, 1)).unwrap();
    assert_eq!(store.write_at(&vec![2; entries * 512], 0), Err(Errno::IO), "a whole section");
    assert_eq!(store.device().close(), Err(Errno::IO));
}
