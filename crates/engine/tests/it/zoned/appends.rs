//! Appends: many of one zone at a time, the effect of a failed one on others, and pointers moved by another user.

use super::DATA_ZONES;
use super::memory::Shape;
use super::rig::{FAULTS, Kind, Rig};
use super::team::{Answer, Ask};
use super::trouble::{Fault, Trouble};
use crate::support::Random;
use inlock_engine::Errno;
use inlock_engine::RequestError;
use inlock_engine::ring::MAX_WRITE_SEGMENTS;
use inlock_engine::zoned::{ZoneAction, ZoneCondition};
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

/// One store operation of many fails, for every one of them: what the store may have of it fails, one that is part of
/// several is tried again alone, and the others move up.
#[test]
fn failed_append_moves_the_others_and_fails_none_of_them() {
    let (mut failed, mut moved, mut several) = (0, 0, 0);
    let cases = FAULTS.into_iter().flat_map(|fault| (1..=12).map(move |nth| (fault, nth)));
    for (name, (fault, nth)) in cases.enumerate() {
        for (workers, together) in [(2, false), (1, true), (3, true)] {
            // At most four go to the store at once.
            let troubled = |store: Trouble| store.logged(64).in_pieces_of(8 * BLOCK as u32);
            let rig = Rig::with(Kind::Memory, SHAPE, 512, workers, !together, troubled);
            let asks: Vec<_> = (0..48).map(|n| append(0, named(n + 100 * name as u64, 2))).collect();
            let prepare = || rig.trouble.fail_once(nth, fault);
            let answers = if together {
                rig.behind_another(0, &asks, prepare)
            } else {
                // The zone is known, so that every fault meets a write.
                rig.blocking.append(0, &named(0, 1)).unwrap();
                rig.at_once(&asks, prepare)
            };
            let place = format!("{fault:?}, operation {nth}, {workers} workers, together: {together}");
            assert_eq!(rig.trouble.struck(), [fault], "{place}");
            // The first write is not among those that are counted.
            let requests = rig.trouble.arrivals()[nth as usize].requests;
            several += usize::from(requests > 1);
            let (fail, left) = match fault {
                Fault::Torn(_) => (requests.div_ceil(2), requests as u64 * BLOCK),
                Fault::After(_) => (requests, 2 * requests as u64 * BLOCK),
                _ => (usize::from(requests == 1 && !fault.is_transient()), 0),
            };
            let errors: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
            assert_eq!(errors.len(), fail, "{place}, {requests} at once: {errors:?}");
            assert!(errors.iter().all(|error| **error == RequestError::Io(fault.errno())), "{place}: {errors:?}");
            failed += errors.len();
            let mut all = with_data(&asks, &answers);
            all.sort_unstable_by_key(|(offset, _)| *offset);
            // What a torn one left behind is between two others.
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
    println!("{several} times it was a write of several");
    assert!(failed > 200 && moved > 200 && several > 180);
}

/// Waiting writes are merged, up to the longest write of the store.
#[test]
fn waiting_writes_are_merged() {
    for (longest, most) in [(2 * BLOCK, 2), (5 * BLOCK, 5), (1 << 20, MAX_WRITE_SEGMENTS)] {
        let rig = Rig::with(Kind::Memory, SHAPE, 512, 1, false, |store| store.logged(512).in_pieces_of(longest as u32));
        let mut asks: Vec<_> = (0..70).map(|n| append(0, named(n, 1))).collect();
        // One that has to be on stable storage goes alone.
        asks.push(Ask::Append { zone: 0, data: named(100, 1), durable: true });
        // As long as what goes at once, or longer.
        asks.push(append(0, named(101, 5)));
        let at = |n: u64| (71 + 1 + 5 + n) * BLOCK;
        asks.extend((0..30).map(|n| Ask::Write { offset: at(n), data: named(n + 200, 1), durable: false }));
        // Not where the one before ends: it goes alone, fails alone, and others follow.
        asks.push(Ask::Write { offset: at(60), data: named(300, 1), durable: false });
        asks.push(append(0, named(301, 1)));
        let answers = rig.behind_another(0, &asks, || ());
        let failed: Vec<_> = (0..).zip(&answers).filter(|(_, answer)| answer.is_err()).map(|(n, _)| n).collect();
        assert_eq!(failed, [102]);
        assert_eq!(check_dense(&rig, 0, &mut with_data(&asks, &answers), BLOCK), at(31));
        let arrivals = rig.trouble.arrivals();
        let gathered: Vec<_> = arrivals.iter().filter(|arrival| arrival.requests > 1).collect();
        assert!(gathered.iter().all(|arrival| arrival.len <= longest), "{arrivals:?}");
        assert_eq!(gathered.iter().map(|arrival| arrival.requests).max(), Some(most));
        assert_eq!(arrivals.iter().map(|arrival| arrival.requests).sum::<usize>(), asks.len() + 1);
        let durable = arrivals.iter().find(|arrival| arrival.at == Some(71 * BLOCK));
        assert_eq!(durable.map(|arrival| arrival.requests), Some(1));
    }
}

/// A zone's capacity ends among them: those that fit are written.
#[test]
fn merged_write_ends_with_the_zone() {
    let shape = Shape { capacity: 10 * BLOCK, zone_len: 16 * BLOCK, ..SHAPE };
    let rig = Rig::with(Kind::Memory, shape, 512, 1, false, |store| store.logged(64));
    let write = |n: u64| Ask::Write { offset: n * BLOCK, data: named(n, 1), durable: false };
    let asks: Vec<_> = (1..13).map(write).collect();
    let answers = rig.behind_another(0, &asks, || ());
    let ended: Vec<_> = answers.iter().map(|answer| answer.is_ok()).collect();
    assert_eq!(ended, [[true; 9].as_slice(), &[false; 3]].concat());
    assert_eq!(rig.report()[0].condition, ZoneCondition::Full);
}

/// A merged write finds that another user has written to its zone: it is reassigned as a whole.
#[test]
fn appends_that_go_together_find_the_zone_written() {
    for nth in 1..=6 {
        let rig =
            Rig::with(Kind::Memory, SHAPE, 512, 1, false, |store| store.logged(64).in_pieces_of(8 * BLOCK as u32));
        let asks: Vec<_> = (0..48).map(|n| append(0, named(n, 1))).collect();
        let answers = rig.behind_another(0, &asks, || rig.trouble.fail_once(nth, Fault::Taken));
        let taken = rig.trouble.arrivals()[nth as usize];
        assert_eq!(taken.requests, 8);
        let mut all = with_data(&asks, &answers);
        assert_eq!(all.len(), 48, "{answers:?}");
        all.sort_unstable_by_key(|(offset, _)| *offset);
        let before = all.iter().filter(|(at, _)| *at < taken.at.unwrap()).count();
        check_dense(&rig, 0, &mut all[..before], BLOCK);
        check_dense(&rig, 0, &mut all[before..], taken.at.unwrap() + taken.len);
    }
}

fn with_data(asks: &[Ask], answers: &[Answer]) -> Vec<(u64, Vec<u8>)> {
    let ended_well = asks.iter().zip(answers).filter_map(|(ask, answer)| Some((answer.as_ref().ok()?, ask.data()?)));
    ended_well.map(|(done, data)| (done.offset, data.to_vec())).collect()
}

/// Plain writes behind one that fails do not move: they fail as they would at the drive, and those before are as they
/// were.
#[test]
fn writes_behind_a_failed_one_fail_and_appends_among_them_do_not() {
    // One by one: a failed write of several is tried again.
    let rig = Rig::with(Kind::Memory, SHAPE, 512, 1, true, |store| store.in_pieces_of(BLOCK as u32));
    rig.blocking.append(0, &named(9, 1)).unwrap();
    let write = |n: u64| Ask::Write { offset: n * BLOCK, data: named(n, 1), durable: false };
    let asks = vec![write(1), write(2), write(3), append(0, named(4, 1)), write(5), append(0, named(6, 1))];
    let answers = rig.at_once(&asks, || rig.trouble.fail_once(3, Fault::Before(Errno::NOSPC)));
    let results: Vec<_> = answers.iter().map(|a| a.as_ref().map(|d| d.offset).map_err(|e| e.errno())).collect();
    // The third is where the store fails; the append behind it takes its place, and so the fifth is ahead of the
    // pointer.
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

/// As where its ring or its frontend fails: what it had in the queues does not keep others waiting.
#[test]
fn ending_worker_leaves_the_queues_to_the_others() {
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
