//! The sidecar of a zoned file.

use std::sync::Arc;

use inlock_engine::store::BackingStore;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::zoned::{Zone, ZoneAction, ZoneKind, ZonedStore};
use inlock_zoned_file::{ZonedFile, ZonedLayout};

const BLOCK: usize = 4096;
const ZONE: u64 = 4 * BLOCK as u64;
/// The identity of the file, which is random for a new file.
const IDENTITY: [u8; 16] = *b"always this file";
/// Maximum length of a file whose header is changed.
const LEN_MAX: u64 = 1 << 20;
/// Length of a record of a zone, and of a session. See `docs/formats/zoned-file.md`.
const RECORD: usize = 32;

/// Opens a changed sidecar. The bits of the first byte choose: 1, the checksums are corrected; 2, the files get the
/// length in the header; 4, the system has rebooted; 8, the rest replaces the sidecar. Otherwise the rest are edits of
/// a valid sidecar: an offset in two bytes, and a byte.
pub fn zoned_sidecar(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else { return };
    let mut sidecar = good_sidecar();
    if choice & 8 != 0 {
        let len = rest.len().min(sidecar.len());
        sidecar[..len].copy_from_slice(&rest[..len]);
    } else {
        for edit in rest.chunks_exact(3) {
            let at = usize::from(u16::from_le_bytes([edit[0], edit[1]]));
            if let Some(byte) = sidecar.get_mut(at) {
                *byte = edit[2];
            }
        }
    }
    let mut len = layout().len;
    if choice & 2 != 0 {
        len = u64_at(&sidecar, 32);
        let zone_len = u64_at(&sidecar, 40);
        if len > LEN_MAX || zone_len == 0 || len / zone_len > 64 {
            return;
        }
        let table = (len.div_ceil(zone_len) as usize * RECORD).next_multiple_of(BLOCK);
        sidecar.resize(2 * BLOCK + 3 * table, 0);
    }
    if choice & 1 != 0 {
        seal_all(&mut sidecar);
    }
    let identity = sidecar[16..32].try_into().expect("sixteen bytes");
    let boot = if choice & 4 == 0 { 0 } else { 9 };
    exercise(mark(len, identity), sidecar, boot);
}

fn layout() -> ZonedLayout {
    let len = 5 * ZONE + BLOCK as u64;
    ZonedLayout {
        capacity: 3 * BLOCK as u64,
        conventional: 1,
        max_open: 2,
        max_active: 3,
        ..ZonedLayout::new(len, ZONE)
    }
}

/// Returns a new sidecar with the fixed identity.
fn good_sidecar() -> Vec<u8> {
    let store = |len: u64| MemoryStore::new(vec![0; len as usize]);
    let (data, sidecar) = (store(ZonedFile::data_len(&layout())), store(ZonedFile::sidecar_len(&layout())));
    ZonedFile::format(&data, &sidecar, &layout()).expect("a new file");
    let mut bytes = sidecar.contents();
    bytes[16..32].copy_from_slice(&IDENTITY);
    seal_all(&mut bytes);
    bytes
}

/// Returns a data file of the sidecar: the mark is in its last block.
fn mark(len: u64, identity: [u8; 16]) -> Vec<u8> {
    let mut data = vec![0; len as usize + BLOCK];
    let mark = &mut data[len as usize..];
    mark[8..16].copy_from_slice(b"INLKZDAT");
    mark[16..32].copy_from_slice(&identity);
    seal(&identity, len, mark);
    data
}

/// Opens the file, reports every zone, writes where writing is allowed, and finds the same state after reopening.
fn exercise(data: Vec<u8>, sidecar: Vec<u8>, boot: u64) {
    let (data, sidecar) = (Arc::new(MemoryStore::new(data)), Arc::new(MemoryStore::new(sidecar)));
    let open = || ZonedFile::over(Arc::clone(&data) as _, Arc::clone(&sidecar) as _, boot);
    let file = match open() {
        Ok(file) => file,
        Err(error) => return assert!(!error.to_string().is_empty(), "an error without a reason"),
    };
    let zones = report(&file);
    for zone in &zones {
        if let Some(at) = zone.write_pointer.filter(|_| zone.kind == ZoneKind::SequentialRequired) {
            // A write beyond the capacity or the limit of open zones is refused.
            let _ = file.write_at(&[7; BLOCK], at);
            let _ = file.manage(ZoneAction::Close, zone.start, zone.len);
        }
        let _ = file.read_at(&mut [0; BLOCK], zone.start);
    }
    let before = report(&file);
    let closed = file.close();
    let again = open();
    if closed.is_ok() {
        let after = report(&again.unwrap_or_else(|error| panic!("what was closed in order does not open: {error}")));
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(before.write_pointer, after.write_pointer, "{before:?} was closed, and now there is {after:?}");
        }
    }
}

fn report(file: &ZonedFile) -> Vec<Zone> {
    let limits = ZonedStore::limits(file);
    let mut zones = vec![Zone::UNKNOWN; limits.zones as usize];
    assert_eq!(file.report(0, &mut zones), Ok(zones.len()));
    for (number, zone) in zones.iter().enumerate() {
        assert_eq!(zone.start, number as u64 * limits.zone_len);
        let pointer = zone.write_pointer.unwrap_or(zone.start);
        assert!((zone.start..=zone.start + zone.len).contains(&pointer), "the pointer is outside of {zone:?}");
    }
    zones
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Stores the checksum of the piece at `place` of the sidecar in its first four bytes.
fn seal(identity: &[u8; 16], place: u64, piece: &mut [u8]) {
    let sum = crc32c::crc32c_append(crc32c::crc32c(identity), &place.to_le_bytes());
    let sum = crc32c::crc32c_append(sum, &piece[4..]);
    piece[..4].copy_from_slice(&sum.to_le_bytes());
}

/// Corrects the checksums of the header, of two sessions, and of every record of the three tables.
fn seal_all(sidecar: &mut [u8]) {
    let identity = sidecar[16..32].try_into().expect("sixteen bytes");
    seal(&identity, 0, &mut sidecar[..BLOCK]);
    for at in [BLOCK, BLOCK + 512] {
        seal(&identity, at as u64, &mut sidecar[at..at + RECORD]);
    }
    let zones = u64_at(sidecar, 32).div_ceil(u64_at(sidecar, 40).max(1)) as usize;
    let table = (sidecar.len() - 2 * BLOCK) / 3;
    for at in (0..3).flat_map(|n| (0..zones.min(table / RECORD)).map(move |zone| 2 * BLOCK + n * table + zone * RECORD))
    {
        seal(&identity, at as u64, &mut sidecar[at..at + RECORD]);
    }
}
