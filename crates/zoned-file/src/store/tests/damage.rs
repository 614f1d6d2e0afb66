//! Damaged sidecars of every kind are refused.

use super::*;
use records::Identity;

/// Returns data and sidecar of a file that was used and closed.
fn used() -> (Vec<u8>, Vec<u8>) {
    let (data, sidecar) = stores(&layout());
    let file = ZonedFile::over(data.clone(), sidecar.clone(), 1).unwrap();
    for zone in [2, 3, 5] {
        file.write_at(&[7; 2 * BLOCK as usize], zone * ZONE).unwrap();
    }
    file.sync().unwrap();
    file.manage(ZoneAction::Reset, 3 * ZONE, ZONE).unwrap();
    file.manage(ZoneAction::Open, 4 * ZONE, ZONE).unwrap();
    file.close().unwrap();
    (data.contents(), sidecar.contents())
}

fn open(data: &[u8], sidecar: Vec<u8>, boot: u64) -> Result<ZonedFile, ZonedFileError> {
    let store = |bytes| Arc::new(MemoryStore::new(bytes));
    ZonedFile::over(store(data.to_vec()), store(sidecar), boot)
}

fn zones_of(file: &ZonedFile) -> Vec<Zone> {
    let mut zones = vec![Zone::UNKNOWN; 8];
    assert_eq!(file.report(0, &mut zones), Ok(8));
    zones
}

#[test]
fn every_changed_byte_of_sidecar_is_detected() {
    let (data, sidecar) = used();
    open(&data, sidecar.clone(), 1).unwrap();
    let after_start = zones_of(&open(&data, sidecar.clone(), 2).unwrap());
    let mut random = Random::new(5);
    let mut after_another_start = 0;
    for at in 0..sidecar.len() {
        let mut bad = sidecar.clone();
        bad[at] ^= 1 << random.below(8);
        let refused = matches!(open(&data, bad.clone(), 1), Err(ZonedFileError::Damaged(_)));
        assert!(refused, "byte {at} was changed and not missed");
        // After a reboot one valid session is enough: the last writer does not matter.
        match open(&data, bad, 2) {
            Err(ZonedFileError::Damaged(_)) => after_another_start += 1,
            Err(error) => panic!("byte {at}: {error}"),
            Ok(file) => {
                let session = (0..2).any(|place| at.wrapping_sub(records::session_at(place) as usize) < 32);
                assert!(session && zones_of(&file) == after_start, "byte {at}");
            }
        }
    }
    assert!(after_another_start >= sidecar.len() - 64);
}

#[test]
fn every_other_length_of_file_or_sidecar_is_detected() {
    let (data, sidecar) = used();
    for len in [0, 1, 4095, 4096, 8192, sidecar.len() - 1, sidecar.len() + 1, sidecar.len() * 2] {
        let mut bad = sidecar.clone();
        bad.resize(len, 0);
        let expected = Damage::Len { len: len as u64, expected: if len < 4096 { 20480 } else { sidecar.len() as u64 } };
        let error = open(&data, bad, 1).err();
        assert!(matches!(error, Some(ZonedFileError::Damaged(damage)) if damage == expected), "{len}: {error:?}");
    }
    for len in [0, 4096, data.len() - 1, data.len() - 4096, data.len() + 4096] {
        let mut bad = data.clone();
        bad.resize(len, 0);
        let mismatch = Mismatch::Len { len: len as u64, expected: data.len() as u64 };
        let error = open(&bad, sidecar.clone(), 1).err();
        assert!(matches!(error, Some(ZonedFileError::Foreign(found)) if found == mismatch), "{len}: {error:?}");
    }
}

#[test]
fn sidecar_of_another_file_is_refused() {
    let (data, sidecar) = used();
    let (other_data, other_sidecar) = used();
    let foreign = |error: Option<ZonedFileError>, mismatch| {
        assert!(matches!(error, Some(ZonedFileError::Foreign(found)) if found == mismatch), "{error:?}");
    };
    foreign(open(&other_data, sidecar.clone(), 1).err(), Mismatch::Identity);
    foreign(open(&vec![0; data.len()], sidecar.clone(), 1).err(), Mismatch::Unmarked);
    // A table of another file under the right header.
    let mut mixed = sidecar.clone();
    mixed[8192..].copy_from_slice(&other_sidecar[8192..]);
    assert!(matches!(open(&data, mixed, 1).err(), Some(ZonedFileError::Damaged(Damage::Record { zone: 0, .. }))));
    // A record at the position of another one, a table at the position of another one.
    let mut moved = sidecar.clone();
    moved.copy_within(8192 + 64..8192 + 96, 8192 + 96);
    assert!(matches!(open(&data, moved, 1).err(), Some(ZonedFileError::Damaged(Damage::Record { zone: 3, .. }))));
    let mut moved = sidecar;
    moved.copy_within(8192..12288, 12288);
    assert!(matches!(open(&data, moved, 1).err(), Some(ZonedFileError::Damaged(Damage::Record { .. }))));
}

#[test]
fn impossible_record_with_valid_checksum_is_refused() {
    let (data, sidecar) = used();
    let (layout, identity) = records::read_header(&sidecar[..4096]).unwrap();
    let record = |zone: u32, condition, written, sequence| {
        let mut bad = sidecar.clone();
        for table in records::Table::ALL {
            let place = records::record_at(table, zone, layout.zones());
            let state = State { written, condition, sequence };
            let bytes = records::Record { state, boot: 0 }.encode(&identity, place);
            bad[place as usize..][..records::RECORD].copy_from_slice(&bytes);
        }
        open(&data, bad, 1)
    };
    use ZoneCondition::{Closed, Empty, Full, ImplicitOpen, NotWritePointer};
    record(2, Closed, 4096, 99).unwrap();
    assert!(record(2, Closed, 4096, u64::MAX).is_err());
    for (zone, condition, written) in [
        (0, Empty, 0),
        (0, NotWritePointer, 4096),
        (2, NotWritePointer, 0),
        (2, Empty, 4096),
        (2, Closed, 100),
        (2, ImplicitOpen, 12 * BLOCK),
        (2, Full, 13 * BLOCK),
        (2, Full, u64::MAX),
    ] {
        let error = record(zone, condition, written, 99).err();
        let refused = matches!(error, Some(ZonedFileError::Damaged(Damage::Record { zone: at, .. })) if at == zone);
        assert!(refused, "{zone} {condition:?} {written}: {error:?}");
    }
}

#[test]
fn header_of_any_bytes_never_panics() {
    let (data, sidecar) = used();
    let (good, _) = records::read_header(&sidecar[..4096]).unwrap();
    let mut random = Random::new(8);
    let odd = |random: &mut Random| match random.below(6) {
        0 => random.next(),
        1 => u64::MAX - random.below(3),
        2 => 1 << random.below(64),
        3 => i64::MAX as u64 / 2 + random.below(2),
        _ => random.below(1 << 20),
    };
    let mut refused = 0;
    for _ in 0..20_000 {
        let mut layout = good;
        for _ in 0..1 + random.below(3) {
            let value = odd(&mut random);
            match random.below(7) {
                0 => layout.len = value,
                1 => layout.zone_len = value,
                2 => layout.capacity = value,
                3 => layout.conventional = value as u32,
                4 => layout.max_open = value as u32,
                5 => layout.max_active = value as u32,
                _ => layout.write_granularity = value as u32,
            }
        }
        let mut bad = sidecar.clone();
        bad[..4096].copy_from_slice(&records::header(&layout, &Identity::default()));
        refused += u32::from(open(&data, bad, 1).is_err());
    }
    assert_eq!(refused, 20_000);
    let version = |bytes: &mut [u8]| bytes[4] = 2;
    let mut later = sidecar;
    version(&mut later);
    // Without a valid checksum it is damage, with one it is another version.
    assert!(matches!(open(&data, later, 1).err(), Some(ZonedFileError::Damaged(Damage::Header))));
}
