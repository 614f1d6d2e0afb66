//! Reissued writes after a crash: present data is compared and is no error, and the rest is written.

use super::memory::Shape;
use super::rig::{Kind, Rig};
use super::team::Ask;
use super::trouble::Fault;
use super::{DATA_ZONES, rig};
use crate::support::Random;
use inlock_engine::Errno;
use inlock_engine::RequestError;
use inlock_engine::zoned::{ZoneAction, ZoneCondition};

const SHAPE: Shape = Shape {
    zone_len: 1 << 20,
    capacity: 768 << 10,
    zones: DATA_ZONES + 3,
    conventional: 2,
    max_open: 0,
    max_active: 0,
    granularity: 512,
};
/// The first sequential zone.
const ZONE: u64 = SHAPE.zone_len;
const BLOCK: u64 = 4096;

fn data(name: u64, blocks: u64) -> Vec<u8> {
    Random::new(name + 1).bytes((blocks * BLOCK) as usize)
}

fn again(offset: u64, data: Vec<u8>, durable: bool) -> Ask {
    Ask::Again { offset, data, durable }
}

const EIO: RequestError = RequestError::Io(Errno::IO);

#[test]
fn reissued_write_compares_present_data_and_writes_the_rest() {
    for kind in [Kind::Memory, Kind::File] {
        for durable in [false, true] {
            // How much of the two blocks is there, in units of 512 bytes.
            for landed in 0..=16 {
                let rig = Rig::new(kind, SHAPE, 512, 2);
                let new = data(1, 2);
                rig.outsider().write_at(&data(0, 1), ZONE).unwrap();
                if landed > 0 {
                    rig.outsider().write_at(&new[..landed * 512], ZONE + BLOCK).unwrap();
                }
                let answer = rig.team.ask(0, again(ZONE + BLOCK, new.clone(), durable));
                assert!(answer.is_ok(), "{landed} units had landed: {answer:?}");
                assert!(rig.plain(2, 3 * BLOCK)[BLOCK as usize..] == new, "{landed} units had landed");
                assert_eq!(rig.report()[1].write_pointer, Some(ZONE + 3 * BLOCK));
                // And it goes on from there.
                assert!(rig.team.ask(1, again(ZONE + BLOCK, new, durable)).is_ok(), "once more");
                assert_eq!(rig.blocking.append(ZONE, &data(2, 1)).unwrap(), ZONE + 3 * BLOCK);
            }
        }
    }
}

#[test]
fn reissued_write_of_other_data_is_refused_as_by_the_drive() {
    for landed in [1, 5, 16] {
        let rig = Rig::new(Kind::File, SHAPE, 512, 1);
        let (there, new) = (data(1, 2), data(2, 2));
        rig.outsider().write_at(&there[..landed * 512], ZONE).unwrap();
        assert_eq!(rig.team.ask(0, again(ZONE, new.clone(), true)), Err(EIO));
        // One unit that differs is enough.
        let mut last = there.clone();
        last[landed * 512 - 1] ^= 1;
        assert_eq!(rig.team.ask(0, again(ZONE, last, false)), Err(EIO));
        assert!(rig.plain(2, landed as u64 * 512) == there[..landed * 512], "nothing has changed");
        // A flush is none the worse for it.
        assert!(rig.team.ask(0, Ask::Flush).is_ok());
        assert!(rig.team.ask(0, again(ZONE, there, true)).is_ok());
    }
}

#[test]
fn reissued_write_beyond_the_pointer_is_refused() {
    let rig = Rig::new(Kind::Memory, SHAPE, 512, 2);
    assert_eq!(rig.team.ask(0, again(ZONE + BLOCK, data(1, 1), false)), Err(EIO));
    for name in 1..3 {
        assert!(rig.team.ask(0, again(BLOCK, data(name, 1), true)).is_ok());
        let partial = Ask::Again { offset: BLOCK + 7, data: vec![name as u8; 100], durable: false };
        assert!(rig.team.ask(1, partial).is_ok());
        let mut expected = data(name, 1);
        expected[7..107].fill(name as u8);
        assert!(rig.plain(1, 2 * BLOCK)[BLOCK as usize..] == expected);
    }
    rig.retire(2, ZoneCondition::Offline);
    assert_eq!(rig.team.ask(0, again(ZONE, data(1, 1), false)), Err(EIO));
}

/// A queue of writes was cut off somewhere; the kernel asks for all of them again, in any order, of any worker.
#[test]
fn reissued_queue_is_carried_out_in_any_order() {
    for kind in [Kind::Memory, Kind::File] {
        for cut in 0..=24 {
            let rig = Rig::new(kind, SHAPE, 512, 3);
            let writes: Vec<_> = (0..12u64).map(|n| (ZONE + n * BLOCK, data(n, 1))).collect();
            let all: Vec<u8> = writes.iter().flat_map(|(_, data)| data.clone()).collect();
            // Half blocks, so that every second one is torn.
            let landed = cut * BLOCK as usize / 2;
            if landed > 0 {
                rig.outsider().write_at(&all[..landed], ZONE).unwrap();
            }
            let mut random = Random::new(cut as u64 + 5);
            let mut asks: Vec<_> = writes.iter().map(|(at, data)| again(*at, data.clone(), false)).collect();
            for index in (1..asks.len()).rev() {
                asks.swap(index, random.below(index as u64 + 1) as usize);
            }
            for answer in rig.at_once(&asks, || ()) {
                assert!(answer.is_ok(), "{kind:?} cut off after {landed} bytes: {answer:?}");
            }
            assert!(rig.plain(2, 12 * BLOCK) == all, "cut off after {landed} bytes");
            assert_eq!(rig.report()[1].write_pointer, Some(ZONE + 12 * BLOCK));
        }
    }
}

/// A durable write in the wrong place says nothing of what was written before; one whose flush failed does.
#[test]
fn only_a_write_that_landed_and_was_not_flushed_ends_flushing() {
    let write = |offset, durable| Ask::Write { offset, data: data(1, 1), durable };
    let append = |durable| Ask::Append { zone: ZONE, data: data(1, 1), durable };
    let rig = Rig::new(Kind::File, SHAPE, 512, 1);
    assert!(rig.team.ask(0, write(ZONE, true)).is_ok());
    assert_eq!(rig.team.ask(0, write(ZONE, true)), Err(EIO));
    assert_eq!(rig.team.ask(0, write(ZONE + 5 * BLOCK, true)), Err(EIO));
    rig.trouble.fail_once(1, rig::Fault::Torn(Errno::IO));
    assert_eq!(rig.team.ask(0, append(true)), Err(EIO));
    assert!(rig.team.ask(0, Ask::Flush).is_ok());
    assert!(rig.team.ask(0, append(true)).is_ok());
    rig.trouble.fail_once(1, Fault::After(Errno::IO));
    assert_eq!(rig.team.ask(0, append(true)), Err(EIO));
    assert_eq!(rig.team.ask(0, Ask::Flush), Err(EIO));
    assert_eq!(rig.team.ask(0, append(true)), Err(EIO));
    rig.blocking.manage_zones(ZoneAction::Reset, ZONE, SHAPE.zone_len).unwrap();
    assert!(rig.team.ask(0, write(ZONE, false)).is_ok(), "what promises nothing goes on");
}
