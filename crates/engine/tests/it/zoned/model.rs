//! A device on zoned storage agrees with a model of the standard, step by step, while store operations fail.
//!
//! Each step is one request, through one of two workers or by a blocking call: the answer, its position and its error
//! number are compared, then the report of all zones, and every so often all that was acknowledged. After a step that
//! met a fault, the zones are as before it or as after it, or hold the beginning of what was written.

use super::DATA_ZONES;
use super::memory::{Shape, Zones};
use super::rig::{FAULTS, Kind, Rig};
use super::team::{Answer, Ask, Done};
use super::trouble::Fault;
use crate::support::Random;
use inlock_engine::Errno;
use inlock_engine::RequestError;
use inlock_engine::zoned::{Zone, ZoneAction, ZoneCondition, ZoneKind};
use std::sync::Arc;

const SHAPE: Shape = Shape {
    zone_len: 64 << 10,
    capacity: 48 << 10,
    zones: 13,
    conventional: 3,
    max_open: 3,
    max_active: 5,
    granularity: 4096,
};

/// Expected state of the device, in positions of the store.
#[derive(Clone)]
struct Model {
    zones: Zones,
    unit: u64,
    /// Shared with the model before a step, except for the zones that the step changes.
    plain: Vec<Arc<Vec<u8>>>,
    /// How much of a zone the device believes to be written, since it last asked or wrote.
    belief: Vec<Option<u64>>,
}

impl Model {
    fn new(shape: Shape, unit: u32) -> Self {
        let empty = Arc::new(vec![0; shape.zone_len as usize]);
        let plain = vec![empty; shape.zones as usize];
        Self { zones: Zones::new(shape), unit: unit.into(), plain, belief: vec![None; shape.zones as usize] }
    }

    fn shape(&self) -> Shape {
        self.zones.shape
    }

    fn is_sequential(&self, zone: usize) -> bool {
        zone >= self.shape().conventional as usize
    }

    /// Returns the reported number of written bytes: all of them for a zone without a write pointer.
    fn reported(&self, zone: usize) -> u64 {
        let Zone { start, capacity, write_pointer, .. } = self.zones.report(zone);
        write_pointer.map_or(capacity, |pointer| (pointer - start).min(capacity))
    }

    fn believed(&mut self, zone: usize) -> u64 {
        let reported = self.reported(zone);
        *self.belief[zone].get_or_insert(reported)
    }

    /// Writes at the pointer of a zone, or not.
    fn write_at(&mut self, position: u64, data: &[u8]) -> Result<(), Errno> {
        let zone = self.zones.zone_at(position);
        let written = self.zones.begin(position, data.len() as u64);
        if written.is_ok() {
            self.zones.end(position, data.len() as u64);
            self.put(position, data);
        }
        self.belief[zone] = Some(self.reported(zone));
        written
    }

    fn put(&mut self, position: u64, data: &[u8]) {
        let zone_len = self.shape().zone_len;
        let (mut at, mut rest) = (position, data);
        while !rest.is_empty() {
            let (zone, within) = (self.zones.zone_at(at), (at % zone_len) as usize);
            let (part, others) = rest.split_at(rest.len().min(zone_len as usize - within));
            Arc::make_mut(&mut self.plain[zone])[within..within + part.len()].copy_from_slice(part);
            (at, rest) = (at + part.len() as u64, others);
        }
    }

    /// Returns the device's answer if no fault occurs. `at`: position in the store.
    fn ask(&mut self, ask: &Ask) -> Answer {
        let (offset, len) = ask.range();
        let shift = u64::from(DATA_ZONES) * self.shape().zone_len;
        let all = self.shape().len() - shift;
        let at = offset + shift;
        let io = |errno| RequestError::Io(errno);
        if !matches!(ask, Ask::Flush | Ask::Zones { .. }) && (offset + len > all || len == 0) {
            return Err(RequestError::OutOfRange);
        }
        let done = Done { offset, bytes: Vec::new() };
        let zones = self.zones.zone_at(at)..self.zones.zone_at(at + len.max(1) - 1) + 1;
        let sequential = zones.clone().any(|zone| self.is_sequential(zone));
        let partial = !offset.is_multiple_of(self.unit) || !len.is_multiple_of(self.unit);
        match ask {
            Ask::Flush => Ok(Done::default()),
            Ask::Discard { .. } => {
                self.believed(zones.start);
                Err(RequestError::Unsupported)
            }
            Ask::Zones { action, .. } => self.manage(*action, offset, len).map(|()| done),
            Ask::Read { .. } if zones.clone().any(|zone| self.zones.condition(zone) == ZoneCondition::Offline) => {
                Err(io(Errno::IO))
            }
            Ask::Read { .. } => Ok(Done { offset, bytes: self.read(at, len) }),
            Ask::Append { data, .. } => {
                if sequential && partial {
                    return Err(io(Errno::INVAL));
                }
                let to = self.append(zones.start, at, data).map_err(io)?;
                Ok(Done { offset: to - shift, bytes: Vec::new() })
            }
            Ask::Write { .. } | Ask::Zeroes { .. } | Ask::Again { .. } => {
                let zeroes = vec![0; len as usize];
                let data = if let Ask::Write { data, .. } | Ask::Again { data, .. } = ask { data } else { &zeroes };
                if !sequential {
                    self.put(at, data);
                    return Ok(done);
                }
                zones.clone().for_each(|zone| _ = self.believed(zone));
                if partial || zones.len() > 1 {
                    return Err(io(if partial { Errno::INVAL } else { Errno::IO }));
                }
                let written =
                    if matches!(ask, Ask::Again { .. }) { self.again(at, data) } else { self.write_at(at, data) };
                written.map(|()| done).map_err(io)
            }
        }
    }

    fn read(&self, at: u64, len: u64) -> Vec<u8> {
        let zone_len = self.shape().zone_len;
        (at..at + len).map(|at| self.plain[self.zones.zone_at(at)][(at % zone_len) as usize]).collect()
    }

    fn append(&mut self, zone: usize, at: u64, data: &[u8]) -> Result<u64, Errno> {
        let Shape { zone_len, capacity, .. } = self.shape();
        let (start, len) = (zone as u64 * zone_len, data.len() as u64);
        let mut believed = self.believed(zone);
        if !self.is_sequential(zone) || at != start {
            return Err(Errno::IO);
        }
        if believed + len > capacity {
            believed = self.reported(zone);
            self.belief[zone] = Some(believed);
        }
        if believed + len > capacity {
            return Err(Errno::IO);
        }
        let Err(error) = self.write_at(start + believed, data) else { return Ok(start + believed) };
        let found = self.reported(zone);
        if (believed..=believed + len).contains(&found) || found + len > capacity {
            return Err(error);
        }
        self.write_at(start + found, data).map(|()| start + found)
    }

    fn again(&mut self, at: u64, data: &[u8]) -> Result<(), Errno> {
        let zone = self.zones.zone_at(at);
        let within = at - zone as u64 * self.shape().zone_len;
        let there = self.believed(zone).saturating_sub(within).min(data.len() as u64);
        if there > 0 && self.zones.condition(zone) == ZoneCondition::Offline {
            // It leaves the queue, and the zone is asked for again.
            return Err(Errno::IO);
        }
        let stored = self.zones.written(zone) >= within + there;
        let same = stored && self.plain[zone][within as usize..][..there as usize] == data[..there as usize];
        if !same || there < data.len() as u64 {
            let skip = if same { there } else { 0 };
            return self.write_at(at + skip, &data[skip as usize..]);
        }
        self.belief[zone] = Some(self.reported(zone));
        Ok(())
    }

    fn manage(&mut self, action: ZoneAction, offset: u64, len: u64) -> Result<(), RequestError> {
        let Shape { zone_len, zones, .. } = self.shape();
        let shift = u64::from(DATA_ZONES) * zone_len;
        let all = u64::from(zones) * zone_len - shift;
        let every = action == ZoneAction::ResetAll;
        let (offset, len) = if every { (0, all) } else { (offset, len) };
        if offset + len > all {
            return Err(RequestError::OutOfRange);
        }
        if !offset.is_multiple_of(zone_len) || !len.is_multiple_of(zone_len) || len == 0 {
            return Err(RequestError::Io(Errno::INVAL));
        }
        let range = self.zones.zone_at(offset + shift)..self.zones.zone_at(offset + shift + len);
        range.clone().for_each(|zone| self.belief[zone] = None);
        if every {
            range.for_each(|zone| _ = self.zones.act(ZoneAction::Reset, zone));
            return Ok(());
        }
        self.zones.manage(action, offset + shift, len).map_err(RequestError::Io)
    }

    /// As the device reports them.
    fn reports(&self) -> Vec<Zone> {
        let shift = u64::from(DATA_ZONES) * self.shape().zone_len;
        let shifted = |mut zone: Zone| {
            zone.start -= shift;
            zone.write_pointer = zone.write_pointer.map(|pointer| pointer - shift);
            zone
        };
        (DATA_ZONES as usize..self.shape().zones as usize).map(|zone| shifted(self.zones.report(zone))).collect()
    }
}

/// A random request, mostly one that makes sense.
fn draw(model: &Model, random: &mut Random) -> Ask {
    let Shape { zone_len, zones, conventional, granularity, .. } = model.shape();
    let (shift, granularity) = (u64::from(DATA_ZONES) * zone_len, u64::from(granularity));
    let devices = u64::from(zones - DATA_ZONES);
    let first = u64::from(conventional);
    let zone = first + random.below(u64::from(zones) - first);
    let start = zone * zone_len - shift;
    let pointer = start + model.zones.written(zone as usize);
    let len = (1 + random.below(4)) * granularity;
    let data = random.bytes(len as usize);
    let durable = false;
    match random.below(32) {
        0..8 => Ask::Append { zone: start, data, durable },
        8..15 => Ask::Write { offset: pointer, data, durable },
        15 => Ask::Zeroes { offset: pointer, len },
        16 => Ask::Write { offset: start + random.below(16) * granularity, data, durable },
        17 => Ask::Write { offset: pointer + random.below(2) * model.unit / 2, data: random.bytes(700), durable },
        18 => Ask::Write { offset: start - granularity, data: random.bytes(3 * granularity as usize), durable },
        19 => match random.below(4) {
            0 => Ask::Append { zone: start + granularity, data, durable },
            1 => Ask::Append { zone: random.below(first - 1) * zone_len, data, durable },
            2 => Ask::Append { zone: start, data: random.bytes(100), durable },
            _ => Ask::Append { zone: devices * zone_len, data, durable },
        },
        20 | 21 => {
            let (offset, len) = random.range((first - u64::from(DATA_ZONES)) * zone_len, model.unit);
            let len = len.min(zone_len);
            match random.below(3) {
                0 => Ask::Zeroes { offset, len },
                _ => Ask::Write { offset, data: random.bytes(len as usize), durable },
            }
        }
        22..25 => {
            let (offset, len) = random.range(devices * zone_len, model.unit);
            Ask::Read { offset, len: len.min(zone_len) }
        }
        25 => again(model, random, zone as usize),
        26 => Ask::Discard { offset: start, len: zone_len },
        27 if random.below(8) == 0 => Ask::Zones { action: ZoneAction::ResetAll, offset: 0, len: 0 },
        27 => Ask::Flush,
        _ => {
            let actions = [ZoneAction::Open, ZoneAction::Close, ZoneAction::Finish, ZoneAction::Reset];
            let action = actions[random.below(4) as usize];
            let (offset, len) = match random.below(12) {
                0 => (start + granularity, zone_len),
                1 => (start, zone_len + granularity),
                2 => (random.below(devices) * zone_len, 2 * zone_len),
                3 => (random.below(devices) * zone_len, zone_len),
                _ => (start, zone_len),
            };
            Ask::Zones { action, offset, len }
        }
    }
}

/// A write that was carried out before, or in part, or was not, or another one.
fn again(model: &Model, random: &mut Random, zone: usize) -> Ask {
    let granularity = u64::from(model.shape().granularity);
    let written = model.zones.written(zone);
    let from = written.saturating_sub(random.below(4) * granularity);
    let len = (1 + random.below(4)) * granularity;
    let mut data = random.bytes(len as usize);
    if random.below(4) > 0 {
        let there = (written - from).min(len) as usize;
        data[..there].copy_from_slice(&model.plain[zone][from as usize..][..there]);
    }
    let start = zone as u64 * model.shape().zone_len - u64::from(DATA_ZONES) * model.shape().zone_len;
    Ask::Again { offset: start + from, data, durable: false }
}

/// Whether answers agree, a read as far as it is known what there is to read.
fn agree(model: &Model, ask: &Ask, found: &Answer, expected: &Answer) -> bool {
    let (Ask::Read { offset, .. }, Ok(found), Ok(expected)) = (ask, found, expected) else {
        let position = |answer: &Answer| answer.as_ref().map(|done| done.offset).map_err(|error| *error);
        return match ask {
            Ask::Append { .. } => position(found) == position(expected),
            _ => position(found).map(drop) == position(expected).map(drop),
        };
    };
    let zone_len = model.shape().zone_len;
    let known = |at: &u64| {
        let at = at + u64::from(DATA_ZONES) * zone_len;
        let zone = model.zones.zone_at(at);
        !model.is_sequential(zone) || at % zone_len < model.zones.written(zone)
    };
    found.bytes.len() == expected.bytes.len()
        && (*offset..).zip(found.bytes.iter().zip(&expected.bytes)).all(|(at, (a, b))| a == b || !known(&at))
}

/// After a step that met a fault: what it left behind is one of the things it may leave behind.
fn complete_write(before: Model, after: Model, ask: &Ask, rig: &Rig) -> Model {
    let (zones, shape) = (rig.inner_report(), before.shape());
    let shift = u64::from(DATA_ZONES) * shape.zone_len;
    let (offset, len) = ask.range();
    let target = before.zones.zone_at(offset + shift);
    let touched = touched(&before, ask);
    let changed = |zone: usize| zones[zone] != before.zones.report(zone);
    let mut model = if (0..zones.len()).any(changed) { after.clone() } else { before.clone() };
    model.plain.clone_from(&before.plain);
    for (zone, found) in zones.iter().enumerate() {
        let (was, would_be) = (before.zones.report(zone), after.zones.report(zone));
        let data = match ask {
            Ask::Write { data, .. } | Ask::Again { data, .. } | Ask::Append { data, .. } => data.clone(),
            Ask::Zeroes { .. } => vec![0; len as usize],
            _ => Vec::new(),
        };
        if zone == target && !data.is_empty() && found.kind == ZoneKind::SequentialRequired {
            let from = before.zones.written(zone);
            let to = if *found == was { from } else { found.write_pointer.map_or(from, |at| at - found.start) };
            let to = to.min(shape.capacity);
            let begin = if matches!(ask, Ask::Append { .. }) { from } else { (offset + shift) % shape.zone_len };
            assert!(
                from == to || (begin..=from).contains(&begin) && to <= begin + data.len() as u64,
                "{ask:?}: {found:?}"
            );
            let new = if from == to { &[] } else { &data[(from - begin) as usize..][..(to - from) as usize] };
            model.zones.take_over(zone, found);
            model.zones.set_written(zone, to);
            model.put(found.start + from, new);
        } else {
            assert!(*found == was || *found == would_be, "{ask:?}: {found:?} was {was:?}, would be {would_be:?}");
            let state = if *found == was { &before } else { &after };
            model.zones.copy(zone, &state.zones);
        }
        model.belief[zone] = if touched.contains(&zone) { None } else { before.belief[zone] };
        if found.kind == ZoneKind::Conventional && zone >= DATA_ZONES as usize {
            let now = rig.plain(zone, shape.zone_len);
            for (at, unit) in now.chunks_exact(model.unit as usize).enumerate() {
                let range = at * model.unit as usize..(at + 1) * model.unit as usize;
                let known = *unit == before.plain[zone][range.clone()] || *unit == after.plain[zone][range];
                assert!(known, "{ask:?}: a unit of zone {zone} is neither old nor new");
            }
            model.plain[zone] = Arc::new(now);
        }
    }
    model
}

/// The zones of the store that a request may ask for.
fn touched(model: &Model, ask: &Ask) -> std::ops::Range<usize> {
    let (offset, len) = ask.range();
    let shift = u64::from(DATA_ZONES) * model.shape().zone_len;
    match ask {
        Ask::Zones { action: ZoneAction::ResetAll, .. } => DATA_ZONES as usize..model.shape().zones as usize,
        Ask::Read { .. } | Ask::Flush => 0..0,
        _ => model.zones.zone_at(offset + shift)..model.zones.zone_at(offset + shift + len.max(1) - 1) + 1,
    }
}

struct Run {
    rig: Rig,
    model: Model,
    random: Random,
    /// Zones of which it is known what the device believes.
    sure: Vec<bool>,
}

impl Run {
    fn new(kind: Kind, unit: u32, seed: u64) -> Self {
        let rig = Rig::new(kind, SHAPE, unit, 2);
        let mut model = Model::new(SHAPE, unit);
        let conventional = u64::from(SHAPE.conventional - DATA_ZONES) * SHAPE.zone_len;
        rig.blocking.write_zeroes(0, conventional).unwrap();
        (0..SHAPE.zones as usize).for_each(|zone| model.belief[zone] = None);
        Self { rig, model, random: Random::new(seed), sure: vec![true; SHAPE.zones as usize] }
    }

    fn step(&mut self) -> Option<Fault> {
        let ask = draw(&self.model, &mut self.random);
        let before = self.model.clone();
        let expected = self.model.ask(&ask);
        let through = self.random.below(3) as usize;
        self.rig.trouble.pause(matches!(ask, Ask::Flush));
        let found = match through {
            2 if !matches!(ask, Ask::Again { .. }) => ask.call(&self.rig.blocking),
            _ => self.rig.team.ask(through % 2, ask.clone()),
        };
        self.rig.trouble.pause(true);
        let struck = self.rig.trouble.struck();
        let fault = struck.iter().find(|fault| !fault.is_transient()).copied();
        let same = agree(&self.model, &ask, &found, &expected);
        match fault {
            None => assert!(
                same,
                "{ask:?} through {through}: {found:?}, not {expected:?}; met {struck:?}; believed {:?} of {:?}",
                before.belief,
                before.reports(),
            ),
            Some(_) if found.is_ok() => assert!(same, "{ask:?} through {through}: {found:?}, not {expected:?}"),
            Some(_) => {
                let error = found.as_ref().unwrap_err().errno();
                let known = struck.iter().any(|fault| fault.errno() == error) || error == Errno::IO || same;
                assert!(known, "{ask:?} through {through}: {error}; met {struck:?}");
                let after = std::mem::replace(&mut self.model, before.clone());
                self.model = complete_write(before, after, &ask, &self.rig);
            }
        }
        self.note_what_is_sure(&ask, fault.is_some());
        let found = self.rig.report();
        assert_eq!(found, self.model.reports(), "after {ask:?} through {through}; met {struck:?}");
        fault
    }

    /// After an error, or where a request is refused early, the device may have asked for a zone or not.
    fn note_what_is_sure(&mut self, ask: &Ask, failed: bool) {
        let (_, len) = ask.range();
        let zones = touched(&self.model, ask);
        let writes = matches!(ask, Ask::Write { .. } | Ask::Zeroes { .. } | Ask::Again { .. } | Ask::Append { .. });
        if failed || writes {
            let refused = matches!(ask, Ask::Append { .. }) && !len.is_multiple_of(self.model.unit);
            let sure = !failed && zones.len() == 1 && !refused;
            let known = self.sure.iter_mut().enumerate().filter(|(zone, _)| zones.contains(zone));
            known.for_each(|(_, known)| *known = sure);
        }
    }

    /// Lets another user write to the store.
    fn elsewhere(&mut self) {
        let first = u64::from(SHAPE.conventional);
        let zone = first + self.random.below(u64::from(SHAPE.zones) - first);
        if !self.sure[zone as usize] {
            return;
        }
        let believed = self.model.belief[zone as usize];
        let start = (zone - u64::from(DATA_ZONES)) * SHAPE.zone_len;
        let other = self.rig.outsider();
        let ask = match self.random.below(4) {
            0 => Ask::Zones { action: ZoneAction::Reset, offset: start, len: SHAPE.zone_len },
            _ => Ask::Append { zone: start, data: self.random.bytes(4096), durable: false },
        };
        self.model.belief[zone as usize] = None;
        let (found, expected) = (ask.call(&other), self.model.ask(&ask));
        assert!(agree(&self.model, &ask, &found, &expected), "elsewhere {ask:?}: {found:?}, not {expected:?}");
        self.model.belief[zone as usize] = believed;
    }

    /// All that was acknowledged is there.
    fn check_content(&self) {
        for zone in DATA_ZONES as usize..SHAPE.zones as usize {
            if self.model.zones.condition(zone) == ZoneCondition::Offline {
                continue;
            }
            let sequential = self.model.is_sequential(zone);
            let len = if sequential { self.model.zones.written(zone) } else { SHAPE.zone_len };
            assert!(
                self.rig.plain(zone, len) == self.model.plain[zone][..len as usize],
                "zone {zone} holds something else"
            );
        }
    }

    /// So many steps; how many faults they met.
    fn run(&mut self, steps: usize, every: u64) -> usize {
        self.rig.trouble.fail(every, &FAULTS);
        self.rig.trouble.pause(true);
        let mut faults = 0;
        for step in 0..steps {
            self.rig.trouble.pause(false);
            faults += usize::from(self.step().is_some());
            if self.random.below(40) == 0 {
                self.elsewhere();
            }
            if self.random.below(200) == 0 {
                self.rig.suspend(self.random.below(2) == 0);
            }
            let retired = match step {
                _ if step == steps / 2 => Some((5, ZoneCondition::ReadOnly)),
                _ if step == steps * 3 / 4 => Some((7, ZoneCondition::Offline)),
                _ => None,
            };
            if let Some((zone, condition)) = retired {
                self.rig.retire(zone, condition);
                self.model.zones.retire(zone, condition);
            }
            if step % 250 == 0 || step + 1 == steps {
                self.check_content();
            }
        }
        faults
    }
}

const UNITS: [u32; 2] = [512, 4096];

fn random_steps(kind: Kind) {
    let (calm, troubled, most) = if cfg!(debug_assertions) { (400, 50, 20) } else { (10_000, 1000, 40) };
    let (mut steps, mut faults) = (0, 0);
    for unit in UNITS {
        let met = Run::new(kind, unit, u64::from(unit)).run(calm, 0);
        assert_eq!(met, 0);
        steps += calm;
        for every in 1..=most {
            faults += Run::new(kind, unit, every + 100).run(troubled, every);
            steps += troubled;
        }
    }
    println!("{steps} steps on {kind:?}, {faults} of them met faults, 0 wrong answers");
    assert!(faults > steps / 20);
}

/// `cargo test --release -p inlock-engine --test it zoned::model` goes 100,000 steps on each store.
#[test]
fn random_steps_on_the_reference() {
    random_steps(Kind::Memory);
}

#[test]
fn random_steps_on_a_zoned_file() {
    random_steps(Kind::File);
}
