//! Behaviour of a zoned file, case by case.

use super::*;
use ZoneCondition::{Closed, Empty, ExplicitOpen, Full, ImplicitOpen, NotWritePointer, Offline, ReadOnly};

fn write(file: &ZonedFile, offset: u64, blocks: u64, fill: u8) -> Result<usize, Errno> {
    file.write_at(&vec![fill; (blocks * BLOCK) as usize], offset)
}

fn read(file: &ZonedFile, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0xaa; len as usize];
    read_all(file, &mut bytes, offset).unwrap();
    bytes
}

fn act(file: &ZonedFile, action: ZoneAction, number: u64) -> Result<(), Errno> {
    let Zone { start, len, .. } = zone(file, number);
    file.manage(action, start, len)
}

#[test]
fn report_of_new_zoned_file_matches_layout() {
    let file = in_memory(&layout());
    let mut zones = vec![zone(&file, 0); 10];
    assert_eq!(file.report(0, &mut zones), Ok(8));
    for (number, zone) in zones[..8].iter().enumerate() {
        let start = number as u64 * ZONE;
        let conventional = number < 2;
        assert_eq!((zone.start, zone.len), (start, if number == 7 { 4 * BLOCK } else { ZONE }));
        let capacity = if conventional { ZONE } else { 12 * BLOCK };
        assert_eq!(zone.capacity, if number == 7 { 4 * BLOCK } else { capacity });
        assert_eq!(zone.write_pointer, (!conventional).then_some(start));
        assert_eq!(zone.kind == ZoneKind::Conventional, conventional);
        assert_eq!(zone.condition, if conventional { NotWritePointer } else { Empty });
    }
    assert_eq!(file.report(ZONE + 5, &mut zones[..2]), Ok(2));
    assert_eq!((zones[0].start, zones[1].start), (ZONE, 2 * ZONE));
    assert_eq!(file.report(7 * ZONE + 4 * BLOCK, &mut zones), Ok(0));
}

#[test]
fn write_off_the_write_pointer_is_refused() {
    let file = in_memory(&layout());
    let start = 2 * ZONE;
    assert_eq!(write(&file, start + BLOCK, 1, 1), Err(Errno::IO));
    assert_eq!(write(&file, start, 2, 1), Ok(8192));
    assert_eq!(state(&file, 2), (ImplicitOpen, 8192));
    for wrong in [start, start + BLOCK, start + 3 * BLOCK] {
        assert_eq!(write(&file, wrong, 1, 9), Err(Errno::IO));
    }
    assert_eq!(file.write_at(&[9; 512], start + 8192), Err(Errno::INVAL));
    assert_eq!(file.write_at(&[9; 4096], start + 512), Err(Errno::INVAL));
    // A write beyond the capacity writes nothing.
    assert_eq!(write(&file, start + 2 * BLOCK, 11, 9), Err(Errno::IO));
    assert_eq!(state(&file, 2), (ImplicitOpen, 8192));
    assert_eq!(write(&file, start + 2 * BLOCK, 10, 2), Ok(40960));
    assert_eq!(state(&file, 2), (Full, ZONE));
    assert_eq!(write(&file, start + 12 * BLOCK, 1, 9), Err(Errno::IO));
    let bytes = read(&file, start, ZONE);
    let expected = [(1, 2 * BLOCK), (2, 10 * BLOCK), (0, 4 * BLOCK)];
    let expected: Vec<u8> = expected.iter().flat_map(|(fill, len)| vec![*fill; *len as usize]).collect();
    assert!(bytes == expected);
    assert_eq!(write(&file, 7 * ZONE + 4 * BLOCK, 1, 1), Err(Errno::NOSPC));
}

#[test]
fn conventional_zone_accepts_writes_anywhere() {
    let file = in_memory(&layout());
    assert_eq!(file.write_at(&[7; 100], ZONE - 50), Ok(100));
    assert_eq!(read(&file, ZONE - 51, 102), [&[0][..], &[7; 100], &[0]].concat());
    for action in [ZoneAction::Open, ZoneAction::Close, ZoneAction::Finish, ZoneAction::Reset] {
        assert_eq!(act(&file, action, 1), Err(Errno::IO));
    }
    assert_eq!(file.discard(ZONE - 50, 100), Ok(()));
    assert_eq!(read(&file, ZONE - 50, 100), [0; 100]);
    assert_eq!(file.discard(2 * ZONE - BLOCK, 2 * BLOCK), Err(Errno::OPNOTSUPP));
    // A write ends where the sequential zones begin.
    assert_eq!(write(&file, 2 * ZONE - BLOCK, 2, 3), Ok(4096));
    assert_eq!(state(&file, 2), (Empty, 0));
}

#[test]
fn zone_management_changes_zone_condition() {
    use ZoneAction::{Close, Finish, Open, Reset};
    let ok = |condition, blocks| Ok((condition, blocks * BLOCK));
    for (before, blocks, action, after) in [
        (Empty, 0, Open, ok(ExplicitOpen, 0)),
        (Empty, 0, Close, Err(Errno::IO)),
        (Empty, 0, Finish, ok(Full, 16)),
        (Empty, 0, Reset, ok(Empty, 0)),
        (ImplicitOpen, 3, Open, ok(ExplicitOpen, 3)),
        (ImplicitOpen, 3, Close, ok(Closed, 3)),
        (ImplicitOpen, 3, Finish, ok(Full, 16)),
        (ImplicitOpen, 3, Reset, ok(Empty, 0)),
        (ExplicitOpen, 3, Open, ok(ExplicitOpen, 3)),
        (ExplicitOpen, 3, Close, ok(Closed, 3)),
        (ExplicitOpen, 0, Close, ok(Empty, 0)),
        (ExplicitOpen, 3, Finish, ok(Full, 16)),
        (ExplicitOpen, 3, Reset, ok(Empty, 0)),
        (Closed, 3, Open, ok(ExplicitOpen, 3)),
        (Closed, 3, Close, ok(Closed, 3)),
        (Closed, 3, Finish, ok(Full, 16)),
        (Closed, 3, Reset, ok(Empty, 0)),
        (Full, 12, Open, Err(Errno::IO)),
        (Full, 12, Close, Err(Errno::IO)),
        (Full, 12, Finish, ok(Full, 16)),
        (Full, 12, Reset, ok(Empty, 0)),
        (ReadOnly, 3, Open, Err(Errno::IO)),
        (ReadOnly, 3, Close, Err(Errno::IO)),
        (ReadOnly, 3, Finish, Err(Errno::IO)),
        (ReadOnly, 3, Reset, Err(Errno::IO)),
        (Offline, 3, Open, Err(Errno::IO)),
        (Offline, 3, Close, Err(Errno::IO)),
        (Offline, 3, Finish, Err(Errno::IO)),
        (Offline, 3, Reset, Err(Errno::IO)),
    ] {
        let file = in_memory(&layout());
        if blocks > 0 {
            write(&file, 3 * ZONE, blocks, 5).unwrap();
        }
        match before {
            ExplicitOpen => act(&file, Open, 3).unwrap(),
            Closed => act(&file, Close, 3).unwrap(),
            ReadOnly | Offline => file.retire(3, before).unwrap(),
            _ => {}
        }
        let was = state(&file, 3);
        assert_eq!(was.0, before);
        let result = act(&file, action, 3);
        match after {
            Err(error) => assert_eq!((result, state(&file, 3)), (Err(error), was), "{before:?} {action:?}"),
            Ok(after) => assert_eq!((result, state(&file, 3)), (Ok(()), after), "{before:?} {action:?}"),
        }
        if after == ok(Empty, 0) && blocks > 0 {
            assert_eq!(read(&file, 3 * ZONE, ZONE), [0; ZONE as usize]);
        }
    }
}

#[test]
fn finished_zone_reads_zeroes_after_written_data() {
    let file = in_memory(&layout());
    write(&file, 2 * ZONE, 2, 8).unwrap();
    act(&file, ZoneAction::Finish, 2).unwrap();
    assert_eq!(read(&file, 2 * ZONE, 2 * BLOCK), [8; 8192]);
    assert_eq!(read(&file, 2 * ZONE + 2 * BLOCK, 14 * BLOCK), [0; 14 * 4096]);
}

#[test]
fn read_only_and_offline_zones_refuse_writes() {
    let file = in_memory(&layout());
    for (number, condition) in [(2, ReadOnly), (3, Offline)] {
        write(&file, number * ZONE, 1, 4).unwrap();
        file.retire(number as u32, condition).unwrap();
        assert_eq!(zone(&file, number).write_pointer, None);
        assert_eq!(write(&file, number * ZONE + BLOCK, 1, 4), Err(Errno::IO));
    }
    assert_eq!(read(&file, 2 * ZONE, 2 * BLOCK), [[4; 4096], [0; 4096]].concat());
    assert_eq!(file.read_at(&mut [0; 512], 3 * ZONE), Err(Errno::IO));
    assert_eq!(file.manage(ZoneAction::ResetAll, 0, 0), Ok(()));
    assert_eq!((state(&file, 2).0, state(&file, 3).0), (ReadOnly, Offline));
    assert_eq!(file.retire(0, ReadOnly), Err(Errno::INVAL));
    assert_eq!(file.retire(3, Full), Err(Errno::INVAL));
    assert_eq!(file.retire(8, ReadOnly), Err(Errno::INVAL));
}

#[test]
fn zone_management_of_partial_zones_is_refused() {
    let file = in_memory(&layout());
    let end = 7 * ZONE + 4 * BLOCK;
    for (offset, len) in [(2 * ZONE, 0), (2 * ZONE + BLOCK, ZONE), (2 * ZONE, BLOCK), (end, ZONE), (7 * ZONE, ZONE)] {
        assert_eq!(file.manage(ZoneAction::Open, offset, len), Err(Errno::INVAL), "{offset} {len}");
    }
    assert_eq!(file.manage(ZoneAction::Open, u64::MAX - ZONE + 1, ZONE), Err(Errno::INVAL));
    assert_eq!(file.manage(ZoneAction::Open, 6 * ZONE, end - 6 * ZONE), Ok(()));
    assert_eq!((state(&file, 6).0, state(&file, 7).0), (ExplicitOpen, ExplicitOpen));
    // A zone that refuses does not prevent others from changing.
    assert_eq!(file.manage(ZoneAction::Close, 5 * ZONE, end - 5 * ZONE), Err(Errno::IO));
    assert_eq!((state(&file, 6).0, state(&file, 7).0), (Empty, Empty));
    write(&file, 6 * ZONE, 1, 1).unwrap();
    assert_eq!(file.manage(ZoneAction::Reset, ZONE, end - ZONE), Err(Errno::IO));
    assert_eq!(state(&file, 6), (Empty, 0));
    write(&file, 6 * ZONE, 1, 1).unwrap();
    assert_eq!(file.manage(ZoneAction::Reset, 0, end), Ok(()));
    assert_eq!(state(&file, 6), (Empty, 0));
}

#[test]
fn implicitly_open_zone_is_closed_at_open_zone_limit() {
    let file = in_memory(&ZonedLayout { max_open: 2, ..layout() });
    for number in [2, 3, 4] {
        write(&file, number * ZONE, 1, 1).unwrap();
    }
    assert_eq!([2, 3, 4].map(|number| state(&file, number).0), [Closed, ImplicitOpen, ImplicitOpen]);
    // Zones are closed in turn; an explicitly open one is never closed.
    write(&file, 2 * ZONE + BLOCK, 1, 1).unwrap();
    assert_eq!([2, 3, 4].map(|number| state(&file, number).0), [ImplicitOpen, Closed, ImplicitOpen]);
    act(&file, ZoneAction::Open, 4).unwrap();
    act(&file, ZoneAction::Open, 5).unwrap();
    assert_eq!([2, 3, 4, 5].map(|number| state(&file, number).0), [Closed, Closed, ExplicitOpen, ExplicitOpen]);
    for action in [ZoneAction::Open, ZoneAction::Finish] {
        assert_eq!(act(&file, action, 6), Err(Errno::TOOMANYREFS));
        assert_eq!(act(&file, action, 2), Err(Errno::TOOMANYREFS));
    }
    assert_eq!(write(&file, 6 * ZONE, 1, 1), Err(Errno::TOOMANYREFS));
    assert_eq!((state(&file, 6), state(&file, 2)), ((Empty, 0), (Closed, 2 * BLOCK)));
    act(&file, ZoneAction::Close, 5).unwrap();
    assert_eq!(write(&file, 6 * ZONE, 1, 1), Ok(4096));
}

#[test]
fn closed_zones_count_as_active() {
    let file = in_memory(&ZonedLayout { max_open: 1, max_active: 2, ..layout() });
    write(&file, 2 * ZONE, 1, 1).unwrap();
    write(&file, 3 * ZONE, 1, 1).unwrap();
    assert_eq!(write(&file, 4 * ZONE, 1, 1), Err(Errno::OVERFLOW));
    assert_eq!(act(&file, ZoneAction::Open, 4), Err(Errno::OVERFLOW));
    // An active zone only needs to be open.
    write(&file, 2 * ZONE + BLOCK, 1, 1).unwrap();
    assert_eq!((state(&file, 2).0, state(&file, 3).0), (ImplicitOpen, Closed));
    act(&file, ZoneAction::Finish, 3).unwrap();
    assert_eq!(state(&file, 2).0, Closed);
    write(&file, 4 * ZONE, 12, 1).unwrap();
    assert_eq!(state(&file, 4).0, Full);
    write(&file, 5 * ZONE, 1, 1).unwrap();
}
