//! Appends: many of one zone at a time, what a failed one costs the others, and pointers that somebody else has moved.

use super::memory::Shape;
use super::rig::{FAULTS, Kind, Rig};
use super::team::{Answer, Ask};
use super::{DATA_ZONES, rig};
use crate::support::Random;
use inlock_engine::RequestError;
use inlock_engine::zoned::{ZoneAction, ZoneCondition};
use rustix::io::Errno;
use std::collections::HashSet;

const SHAPE: Shape = Shape {
    zone_len: 4 << 20,
    capacity: 4 << 20,
    zones: DATA_ZONES + 3,
    conventional: 1,
    max_open: 0,
    max_active: 0,
    granularity: 4096,
};
const BLOCK: u64 = 4096;

fn append(zone: u64, data: Vec<u8>) -> Ask {
    Ask::Append { zone: zone * SHAPE.zone_len, data, durable: false }
}

/// Bytes that name their append, a block at a time.
fn named(name: u64, blocks: u64) -> Vec<u8> {
    Random::new(name + 1).bytes((blocks * BLOCK) as usize)
}

/// Where the appends of a zone that ended well have landed: side by side, each as it was given.
fn check_dense(rig: &Rig, zone: u64, landed: &mut [(u64, Vec<u8>)], from: u64) -> u64 {
    landed.sort_unstable_by_key(|(offset, _)| *offset);
    let mut end = zone * SHAPE.zone_len + from;
    let plain = rig.plain(zone as usize + DATA_ZONES as usize, SHAPE.capacity);
    for (offset, data) in landed.iter() {
        assert_eq!(*offset, end, "an append does not begin where the one before it ends");
        let at = (offset - zone * SHAPE.zone_len) as usize;
        assert!(plain[at..at + data.len()] == **data, "an append reads as something else");
        end += data.len() as u64;
    }
    end - zone * SHAPE.zone_len
}

#[test]
fn many_appends_to_one_zone_land_side_by_side() {
    let rig = Rig::with(Kind::Memory, SHAPE, 512, 4, true, |store| store.delayed(16, 5));
    let mut random = Random::new(2);
    let asks: Vec<_> = (0..100).map(|name| append(0, named(name, 1 + random.below(4)))).collect();
    let threads = 4;
    let mut landed = Vec::new();
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..threads)
            .map(|caller| {
                let blocking = &rig.blocking;
                scope.spawn(move || {
                    let one = |n: u64| {
                        let data = named(1000 + caller * 100 + n, 1);
                        (blocking.append(0, &data).unwrap(), data)
                    };
                    (0..40).map(one).collect::<Vec<_>>()
                })
            })
            .collect();
        rig.team.post_all(&asks);
        let answers = rig.team.answers(asks.len());
        landed.extend(
            asks.iter().zip(answers).map(|(ask, answer)| (answer.unwrap().offset, ask.data().unwrap().to_vec())),
        );
        callers.into_iter().for_each(|caller| landed.extend(caller.join().unwrap()));
    });
    assert_eq!(landed.len(), 260);
    let end = check_dense(&rig, 0, &mut landed, 0);
    assert_eq!(rig.report()[0].write_pointer, Some(end));
}

/// One store operation of many fails, for every one of them: what it belongs to fails, and the others move up.
#[test]
fn a_failed_append_moves_the_others_and_fails_none_of_them() {
    let (mut failed, mut moved) = (0, 0);
    for (number, fault) in FAULTS.into_iter().enumerate() {
        for nth in 1..=12 {
            let rig = Rig::with(Kind::Memory, SHAPE, 512, 2, true, |store| store);
            // The zone is known, so that every fault meets a write.
            rig.blocking.append(0, &named(0, 1)).unwrap();
            let asks: Vec<_> = (0..24).map(|n| append(0, named(n + 100 * number as u64, 2))).collect();
            let answers = rig.at_once(&asks, || rig.trouble.fail_once(nth, fault));
            let place = format!("{fault:?}, operation {nth}");
            assert_eq!(rig.trouble.struck(), [fault], "{place}");
            let errors: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
            let expected = if fault.is_transient() { vec![] } else { vec![RequestError::Io(fault.errno())] };
            assert_eq!(errors, expected.iter().collect::<Vec<_>>(), "{place}");
            failed += errors.len();
            let mut all = with_data(&asks, &answers);
            all.sort_unstable_by_key(|(offset, _)| *offset);
            // What a torn one left behind is between two others.
            let left = match fault {
                rig::Fault::Torn(_) => BLOCK,
                rig::Fault::After(_) => 2 * BLOCK,
                _ => 0,
            };
            let total = BLOCK + all.len() as u64 * 2 * BLOCK + left;
            assert_eq!(rig.report()[0].write_pointer, Some(total), "{place}");
            let gap = all.iter().zip(1..).filter(|((offset, _), n)| *offset != (2 * n - 1) * BLOCK).count();
            moved += gap;
            let split = all.len() - gap;
            check_dense(&rig, 0, &mut all[..split], BLOCK);
            check_dense(&rig, 0, &mut all[split..], BLOCK + split as u64 * 2 * BLOCK + left);
        }
    }
    println!("{failed} appends failed, {moved} others landed elsewhere than without the failure, 0 failed with them");
    assert!(failed > 50 && moved > 50);
}

fn with_data(asks: &[Ask], answers: &[Answer]) -> Vec<(u64, Vec<u8>)> {
    let ended_well = asks.iter().zip(answers).filter_map(|(ask, answer)| Some((answer.as_ref().ok()?, ask.data()?)));
    ended_well.map(|(done, data)| (done.offset, data.to_vec())).collect()
}

/// Plain writes behind one that fails do not move: they fail as they would at the drive, and those before are as they were.
#[test]
fn writes_behind_a_failed_one_fail_and_appends_among_them_do_not() {
    let rig = Rig::with(Kind::Memory, SHAPE, 512, 1, true, |store| store);
    rig.blocking.append(0, &named(9, 1)).unwrap();
    let write = |n: u64| Ask::Write { offset: n * BLOCK, data: named(n, 1), durable: false };
    let asks = vec![write(1), write(2), write(3), append(0, named(4, 1)), write(5), append(0, named(6, 1))];
    let answers = rig.at_once(&asks, || rig.trouble.fail_once(3, rig::Fault::Before(Errno::NOSPC)));
    let results: Vec<_> = answers.iter().map(|a| a.as_ref().map(|d| d.offset).map_err(|e| e.errno())).collect();
    // The third is where the store fails; the append behind it takes its place, and so the fifth is ahead of the pointer.
    let expected = [Ok(BLOCK), Ok(2 * BLOCK), Err(Errno::NOSPC), Ok(3 * BLOCK), Err(Errno::IO), Ok(4 * BLOCK)];
    assert_eq!(results, expected);
    let mut landed = vec![(3 * BLOCK, named(4, 1)), (4 * BLOCK, named(6, 1))];
    assert_eq!(check_dense(&rig, 0, &mut landed, 3 * BLOCK), 5 * BLOCK);
}

#[test]
fn appends_find_the_pointer_where_somebody_else_has_moved_it() {
    for kind in [Kind::Memory, Kind::File] {
        let rig = Rig::with(kind, SHAPE, 512, 2, true, |store| store);
        rig.blocking.append(0, &named(1, 1)).unwrap();
        let other = rig.outsider();
        // Farther than an append is long: nothing of that can be ours.
        other.append(0, &named(2, 8)).unwrap();
        let asks: Vec<_> = (0..16).map(|n| append(0, named(10 + n, 2))).collect();
        let answers = rig.at_once(&asks, || ());
        let mut landed = with_data(&asks, &answers);
        assert_eq!(landed.len(), 16, "{answers:?}");
        let end = check_dense(&rig, 0, &mut landed, 9 * BLOCK);
        // As far as the append is long: it may have landed, so it fails, and the next one knows.
        other.append(0, &named(3, 1)).unwrap();
        let refused = rig.team.ask(0, append(0, named(4, 1)));
        assert_eq!(refused, Err(RequestError::Io(Errno::IO)));
        assert_eq!(rig.team.ask(1, append(0, named(5, 1))).unwrap().offset, end + BLOCK);
        // Back: emptied.
        other.manage_zones(ZoneAction::Reset, 0, SHAPE.zone_len).unwrap();
        assert_eq!(rig.team.ask(0, append(0, named(6, 2))).unwrap().offset, 0);
        // To the end: there is no room.
        other.manage_zones(ZoneAction::Finish, 0, SHAPE.zone_len).unwrap();
        assert_eq!(rig.team.ask(0, append(0, named(7, 1))), Err(RequestError::Io(Errno::IO)));
        assert_eq!(rig.team.ask(0, append(0, named(7, 1))), Err(RequestError::Io(Errno::IO)));
        // And emptied when there was none.
        other.manage_zones(ZoneAction::Reset, 0, SHAPE.zone_len).unwrap();
        assert_eq!(rig.blocking.append(0, &named(8, 1)).unwrap(), 0);
        assert!(rig.plain(DATA_ZONES as usize, BLOCK) == named(8, 1), "{kind:?}");
    }
}

/// Orders come after what was submitted before, and before what comes after, on one worker.
#[test]
fn orders_keep_their_place_among_writes() {
    let rig = Rig::with(Kind::File, SHAPE, 512, 1, true, |store| store.delayed(4, 8));
    for round in 0..20 {
        let write = |n: u64| Ask::Write { offset: n * BLOCK, data: named(n + round, 1), durable: false };
        let reset = Ask::Zones { action: ZoneAction::Reset, offset: 0, len: SHAPE.zone_len };
        let finish = Ask::Zones { action: ZoneAction::Finish, offset: 0, len: SHAPE.zone_len };
        let asks =
            vec![write(0), append(0, named(1, 3)), write(4), reset.clone(), write(0), append(0, named(2, 1)), finish];
        let answers = rig.at_once(&asks, || ());
        assert!(answers.iter().all(Result::is_ok), "round {round}: {answers:?}");
        assert_eq!(rig.report()[0].condition, ZoneCondition::Full);
        assert_eq!((answers[1].as_ref().unwrap().offset, answers[5].as_ref().unwrap().offset), (BLOCK, BLOCK));
        let found = rig.plain(DATA_ZONES as usize, 3 * BLOCK);
        assert!(found[..BLOCK as usize] == named(round, 1) && found[BLOCK as usize..][..BLOCK as usize] == named(2, 1));
        rig.team.ask(0, reset).unwrap();
    }
}

/// More threads than a blocking device has memory for, all in one zone, where each waits for the one before.
#[test]
fn more_callers_than_there_is_memory_for_get_through() {
    let rig = Rig::with(Kind::Memory, SHAPE, 512, 1, false, |store| store.delayed(3, 6));
    let landed: Vec<_> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..80)
            .map(|name| {
                let blocking = &rig.blocking;
                scope.spawn(move || (0..4).map(|_| blocking.append(0, &named(name, 1)).unwrap()).collect::<Vec<_>>())
            })
            .collect();
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    });
    let positions: HashSet<_> = landed.iter().collect();
    assert_eq!((positions.len(), landed.iter().max()), (320, Some(&(319 * BLOCK))));
}

/// As where its ring or its front end fails: what it had in the queues does not keep others waiting.
#[test]
fn a_worker_that_ends_leaves_the_queues_to_the_others() {
    let rig = Rig::with(Kind::Memory, SHAPE, 512, 1, false, |store| store.delayed(2, 4));
    for round in 0..20 {
        let hasty = super::team::Team::start(&rig.device, 1, None);
        for n in 0..30 {
            hasty.post(0, n, append(0, named(n + round, 1)));
        }
        // One that waits for a write that never comes.
        let ahead = Ask::Write { offset: SHAPE.zone_len + 64 * BLOCK, data: named(1, 1), durable: false };
        hasty.post(0, 99, ahead);
        hasty.abandon();
        let offset = rig.team.ask(0, append(0, named(7, 1))).unwrap().offset;
        assert_eq!(rig.report()[0].write_pointer, Some(offset + BLOCK), "round {round}");
        rig.blocking.manage_zones(ZoneAction::Reset, 0, SHAPE.zone_len).unwrap();
    }
}
