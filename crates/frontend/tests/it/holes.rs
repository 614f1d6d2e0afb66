//! Holes that read as zeroes: what TRIM, WRITE_ZEROES and block status make of them.

use crate::client::*;
use crate::support::*;
use inlock_cipher::{CipherSpec, DataUnitSize, Sector, Segment, VolumeKey};
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{Access, BlockingDevice, Content, CryptMapping, Device, Target};
use std::num::NonZeroU64;
use std::sync::Arc;

const HOLE: u64 = 256 << 10;
const LEN: u64 = 16 * HOLE;

/// A device of 16 holes behind the first of its store.
fn served(allow_discards: bool) -> (Arc<MemoryStore>, Served) {
    let hole_len = NonZeroU64::new(HOLE).expect("not zero");
    let store = Arc::new(MemoryStore::new(vec![0; (HOLE + LEN) as usize]).with_exact_holes(hole_len));
    let served = Served::new(device_on(&store, HOLE, allow_discards), rings()[0], 1);
    (store, served)
}

/// A segment whose data begins `data_offset` bytes into the store.
fn segment_at(data_offset: u64) -> Segment {
    let unit = DataUnitSize::new(4096).expect("a valid unit");
    with!(Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), unit); data_offset: Sector(data_offset / 512))
}

fn key() -> VolumeKey {
    VolumeKey::new(&[9; 64])
}

fn device_on(store: &Arc<MemoryStore>, data_offset: u64, allow_discards: bool) -> Arc<Device> {
    let access = Access { read_only: false, allow_discards };
    let device = Device::new(&[segment_at(data_offset)], &key(), Arc::clone(store) as _, access);
    Arc::new(device.and_then(Device::with_zero_holes).expect("the store has exact holes"))
}

/// Returns first hole and number of holes of each discard since the last call.
fn discards(store: &MemoryStore) -> Vec<(u64, u64)> {
    let whole = |(offset, len): (u64, u64)| {
        assert!(offset.is_multiple_of(HOLE) && len.is_multiple_of(HOLE) && len > 0, "{offset}+{len}");
        (offset / HOLE, len / HOLE)
    };
    store.take_discards().into_iter().map(whole).collect()
}

/// First hole and number of holes of each discard.
type Discards = &'static [(u64, u64)];

/// Zeroed ranges, and the holes that they deallocate, the first of the device being 1.
const ZEROED: [(u64, u64, Discards); 6] = [
    (0, HOLE, &[(1, 1)]),
    (HOLE - 1, 3 * HOLE, &[(2, 2)]),
    (5 * HOLE + 4096, HOLE, &[]),
    (6 * HOLE - 4096, 2 * HOLE + 8192, &[(7, 2)]),
    (9 * HOLE + 7, 11, &[]),
    (10 * HOLE, LEN - 10 * HOLE, &[(11, 6)]),
];

/// TRIM leaves what is no whole hole.
#[test]
fn zeroed_ranges_are_holes_where_whole_and_zeroes_elsewhere() {
    let (store, served) = served(true);
    let mut client = Client::open(served.path(), Mode::Extended);
    for (kind, flags) in [(WRITE_ZEROES, 0), (WRITE_ZEROES, FUA), (TRIM, 0), (TRIM, FUA)] {
        for (offset, len, holes) in ZEROED {
            let mut model = pattern(offset + 3, LEN);
            assert_eq!(client.write(0, 0, &model), 0);
            assert_eq!(client.call(kind, flags, offset, len).error, 0);
            match kind {
                TRIM => holes.iter().for_each(|(first, count)| {
                    model[((first - 1) * HOLE) as usize..][..(count * HOLE) as usize].fill(0);
                }),
                _ => model[offset as usize..(offset + len) as usize].fill(0),
            }
            assert_eq!(discards(&store), holes, "command {kind} of {offset}+{len}");
            assert!(client.read(0, LEN) == model, "command {kind} of {offset}+{len}");
            let extents = client.call(BLOCK_STATUS, 0, 0, LEN).extents;
            let zero: u64 = extents.iter().filter(|extent| extent.1 == 3).map(|extent| extent.0).sum();
            assert_eq!(zero, holes.iter().map(|holes| holes.1 * HOLE).sum::<u64>(), "{extents:?}");
            assert!(extents.iter().all(|extent| matches!(extent.1, 0 | 3)), "{extents:?}");
        }
    }
    client.disconnect();
}

#[test]
fn fast_zero_is_for_whole_holes() {
    let (store, served) = served(true);
    let mut client = Client::open(served.path(), Mode::Extended);
    let model = pattern(1, LEN);
    assert_eq!(client.write(0, 0, &model), 0);
    for (flags, offset, len) in
        [(FAST_ZERO, 0, HOLE + 1), (FAST_ZERO, 4096, HOLE), (FAST_ZERO, 0, 4096), (FAST_ZERO | NO_HOLE, 0, HOLE)]
    {
        assert_eq!(client.call(WRITE_ZEROES, flags, offset, len).error, errno::NOTSUP, "{flags}: {offset}+{len}");
    }
    assert!(client.read(0, LEN) == model, "a refused command changes nothing");
    assert!(discards(&store).is_empty());
    assert_eq!(client.call(WRITE_ZEROES, FAST_ZERO, HOLE, 2 * HOLE).error, 0);
    assert!(client.read(HOLE, 2 * HOLE).iter().all(|byte| *byte == 0));
    assert_eq!(discards(&store), [(2, 2)]);
    assert_eq!(client.call(WRITE_ZEROES, NO_HOLE, 0, HOLE).error, 0);
    assert!(client.read(0, HOLE).iter().all(|byte| *byte == 0));
    assert_eq!(discards(&store), [], "no hole was to be left");
    client.disconnect();
}

/// Holes show which parts of a volume are in use.
#[test]
fn zeroes_leave_no_hole_unless_discards_are_allowed() {
    let (store, served) = served(false);
    let mut client = Client::open(served.path(), Mode::Extended);
    assert_eq!(client.write(0, 0, &pattern(1, LEN)), 0);
    assert_eq!(client.call(WRITE_ZEROES, FAST_ZERO, 0, HOLE).error, errno::NOTSUP);
    assert_eq!(client.call(WRITE_ZEROES, 0, 0, LEN).error, 0);
    assert!(client.read(0, LEN).iter().all(|byte| *byte == 0));
    assert!(discards(&store).is_empty());
    client.disconnect();
}

/// Sends a write-zeroes of whole holes to a suspended device, changes the device, and resumes it. Returns the reply.
fn zeroed_across(served: &Served, flags: u16, (offset, len): (u64, u64), change: impl FnOnce(&Device)) -> u32 {
    let mut client = Client::open(served.path(), Mode::Extended);
    served.device.suspend().expect("memory does not fail");
    let zeroes = client.send(WRITE_ZEROES, flags, offset, len);
    // Of a later request, so the one before has begun.
    assert_eq!(client.call(BLOCK_STATUS, 0, 0, HOLE).error, 0);
    change(&served.device);
    served.device.resume().expect("it has its key");
    let error = client.wait(zeroes).error;
    client.disconnect();
    error
}

/// Holes of the old table are no whole holes of the new one.
#[test]
fn zeroes_that_wait_while_the_table_is_replaced_are_zeroes_in_the_new_one() {
    for (flags, len) in [(0, HOLE), (0, 4 * HOLE), (FUA, 4 * HOLE)] {
        let (store, served) = served(true);
        BlockingDevice::new(Arc::clone(&served.device)).write_at(&pattern(1, LEN), 0).expect("memory does not fail");
        // What a device with the new table reads.
        let moved = HOLE - 4096;
        let mut model = vec![0; (LEN + 4096) as usize];
        let other = BlockingDevice::new(device_on(&store, moved, false));
        other.read_at(&mut model, 0).expect("memory does not fail");
        let range = (2 * HOLE, len);
        let error = zeroed_across(&served, flags, range, |device| {
            let table = CryptMapping::new(&[segment_at(moved)], &key(), HOLE + LEN).expect("a table");
            device.reload(table).expect("it is longer");
        });
        assert_eq!(error, 0);
        model[range.0 as usize..(range.0 + range.1) as usize].fill(0);
        assert!(served.plaintext() == model, "{flags} {len}");
    }
}

#[test]
fn zeroes_that_wait_while_discards_are_forbidden_are_written() {
    for flags in [0, FUA] {
        let (store, served) = served(true);
        let mut model = pattern(1, LEN);
        BlockingDevice::new(Arc::clone(&served.device)).write_at(&model, 0).expect("memory does not fail");
        assert_eq!(zeroed_across(&served, flags, (HOLE, 3 * HOLE), |device| device.allow_discards(false)), 0);
        model[HOLE as usize..4 * HOLE as usize].fill(0);
        assert!(served.plaintext() == model, "{flags}");
        assert!(discards(&store).is_empty());
    }
    // Writing would not be fast.
    let (_, served) = served(true);
    let error = zeroed_across(&served, FAST_ZERO, (0, HOLE), |device| device.allow_discards(false));
    assert_eq!(error, errno::NOTSUP);
}

/// Units count from the start of their segment: a long trim is cut between two of them.
#[test]
fn long_trim_of_a_segment_on_an_odd_sector_leaves_no_unit_out() {
    const UNITS: u64 = (130 * MIB) / 4096;
    let unit = DataUnitSize::new(4096).expect("a valid unit");
    let lines = [(None, 0, 3), (Some(CipherSpec::AES_XTS_PLAIN64), 3, UNITS * 8)];
    let segments = lines.map(
        |(cipher, start, sectors)| with!(Segment::whole(cipher, unit); start: Sector(start), sectors: Some(sectors)),
    );
    let key = key();
    let targets = [(Content::Zero, &segments[0]), (Content::Crypt(&key), &segments[1])];
    let targets = targets.map(|(content, segment)| Target { segment, content, store: 0 });
    let hole_len = NonZeroU64::new(4096).expect("not zero");
    let store = Arc::new(MemoryStore::new(vec![0; (UNITS * 4096) as usize]).with_exact_holes(hole_len));
    let device = Device::stacked(&targets, vec![Arc::clone(&store) as _], READ_WRITE_DISCARD).expect("it fits");
    let len = device.len();
    let served = Served::new(Arc::new(device), rings()[0], 1);
    let mut client = Client::open(served.path(), Mode::Extended);
    assert_eq!(client.call(TRIM, 0, 0, len).error, 0);
    let mut at = 0;
    for (offset, len) in store.take_discards() {
        assert_eq!(offset, at, "a part was left out");
        at += len;
    }
    assert_eq!(at, UNITS * 4096);
    client.disconnect();
}
