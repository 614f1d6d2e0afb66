//! Zoned files against the table of kernel, dm-crypt and volumes: `tests/table/zones.txt`. `xtask/src/zones/cases.rs`
//! describes the steps, `tests/vm/zoned.sh` the shapes.

use super::*;

const TABLE: &str = include_str!("../../../../../tests/table/zones.txt");
const MIB: u64 = 1 << 20;

/// Shapes: name, number of conventional zones, capacity, limits of open and active zones, block length.
const SHAPES: [(&str, u32, u64, u32, u32, u32); 4] = [
    ("mixed", 2, MIB, 4, 6, 4096),
    ("plain", 0, 2 * MIB, 0, 0, 4096),
    ("sectors", 2, MIB, 4, 6, 512),
    ("narrow", 2, MIB, 1, 2, 4096),
];

/// Cases about the layers between a caller and a device: descriptors, alignment in memory, plugs.
const OF_THE_KERNEL: &[&str] = &[
    "report-none",
    "read-half-a-block",
    // A device has both halves in flight before one fails; a store gets the second after the first.
    "write-across-zones-at-the-end",
    // Writes of zeroes by the device itself.
    "zeroout-at-the-pointer",
    "zeroout-ahead",
];

struct Bench {
    file: ZonedFile,
    zones: Vec<Zone>,
    capacity: u64,
    /// The bytes written to each sector, if known.
    written: std::collections::HashMap<u64, u8>,
}

fn name(errno: Errno) -> String {
    let names = [
        (Errno::IO, "EIO"),
        (Errno::INVAL, "EINVAL"),
        (Errno::NOSPC, "ENOSPC"),
        (Errno::OPNOTSUPP, "EOPNOTSUPP"),
        (Errno::TOOMANYREFS, "ETOOMANYREFS"),
        (Errno::OVERFLOW, "EOVERFLOW"),
    ];
    names.iter().find(|(known, _)| *known == errno).map_or_else(|| format!("{errno:?}"), |(_, name)| (*name).to_owned())
}

fn is_usable(zone: &Zone) -> bool {
    !matches!(zone.condition, ZoneCondition::NotWritePointer | ZoneCondition::ReadOnly | ZoneCondition::Offline)
}

impl Bench {
    fn new(
        (_, conventional, capacity, max_open, max_active, write_granularity): (&str, u32, u64, u32, u32, u32),
    ) -> Self {
        let all = ZonedLayout::new(14 * 2 * MIB, 2 * MIB);
        let layout = ZonedLayout { capacity, conventional, max_open, max_active, write_granularity, ..all };
        let file = in_memory(&layout);
        file.retire(12, ZoneCondition::ReadOnly).unwrap();
        file.retire(13, ZoneCondition::Offline).unwrap();
        let mut bench = Self { file, zones: Vec::new(), capacity, written: Default::default() };
        bench.zones = bench.report();
        bench
    }

    fn report(&self) -> Vec<Zone> {
        let mut zones = vec![Zone::UNKNOWN; 14];
        assert_eq!(self.file.report(0, &mut zones), Ok(14));
        zones
    }

    /// Runs the steps and returns the result. `None`: the file lacks an object that they name.
    fn case(&mut self, fill: u8, steps: &str) -> Option<String> {
        for zone in self.report().iter().filter(|zone| is_usable(zone)) {
            self.file.manage(ZoneAction::Reset, zone.start, zone.len).unwrap();
        }
        self.written.clear();
        let results: Option<Vec<String>> =
            (fill..).zip(steps.split(';')).map(|(fill, step)| self.step(fill, step)).collect();
        Some(format!("{} |{}", results?.join(" "), self.state()))
    }

    fn step(&mut self, fill: u8, step: &str) -> Option<String> {
        let mut words = step.split_whitespace();
        let verb = words.next().unwrap();
        let numbers: Vec<u64> = words.map(|word| self.sum(word)).collect::<Option<_>>()?;
        let (place, len) = (numbers.first().copied().unwrap_or(0), numbers.get(1).copied().unwrap_or(0));
        let done = match verb {
            "zones" => return Some(self.file.limits().zones.to_string()),
            "zone-len" => return Some((self.file.limits().zone_len / 512).to_string()),
            "report" => {
                let mut zones = vec![Zone::UNKNOWN; (len / BLOCK) as usize];
                return Some(self.file.report(place, &mut zones).unwrap().to_string());
            }
            "write" => self.write(place, len, fill),
            "read" => {
                let mut bytes = vec![0; len as usize];
                let read = read_all(&self.file, &mut bytes, place);
                let known = |(number, sector): (u64, &[u8])| {
                    self.written.get(&number).is_none_or(|fill| sector.iter().all(|byte| byte == fill))
                };
                assert!(read.is_err() || (place / 512..).zip(bytes.chunks(512)).all(known), "{step}");
                read
            }
            "flush" => self.file.sync(),
            "discard" => self.file.discard(place, len),
            "open" => self.file.manage(ZoneAction::Open, place, len),
            "close" => self.file.manage(ZoneAction::Close, place, len),
            "finish" => self.file.manage(ZoneAction::Finish, place, len),
            "reset" => {
                self.written.clear();
                self.file.manage(ZoneAction::Reset, place, len)
            }
            _ => panic!("no step is called {verb}"),
        };
        Some(done.map_or_else(name, |()| "ok".to_owned()))
    }

    fn write(&mut self, place: u64, len: u64, fill: u8) -> Result<(), Errno> {
        write_all(&self.file, &vec![fill; len as usize], place)?;
        self.written.extend((place / 512..(place + len) / 512).map(|sector| (sector, fill)));
        Ok(())
    }

    fn state(&self) -> String {
        let (mut state, mut implicit, mut closed) = (String::new(), 0, 0);
        for (number, zone) in self.report().iter().filter(|zone| is_usable(zone)).enumerate() {
            let at = zone.write_pointer.map_or(0, |pointer| pointer - zone.start);
            let rest = if at.is_multiple_of(BLOCK) { String::new() } else { format!("+{}B", at % BLOCK) };
            let blocks = format!("{}{rest}", at / BLOCK);
            match zone.condition {
                ZoneCondition::Empty => {}
                ZoneCondition::Full => state += &format!(" s{number}:fu"),
                ZoneCondition::ExplicitOpen => state += &format!(" s{number}:oe+{blocks}"),
                _ => state += &format!(" s{number}:{blocks}"),
            }
            implicit += u32::from(zone.condition == ZoneCondition::ImplicitOpen);
            closed += u32::from(zone.condition == ZoneCondition::Closed);
        }
        if implicit + closed > 0 {
            state += &format!(" oi{implicit} cl{closed}");
        }
        state
    }

    fn sum(&self, word: &str) -> Option<u64> {
        let sum = word.replace('-', "+-").split('+').try_fold(0, |sum: u64, part| match part.strip_prefix('-') {
            Some(term) => Some(sum.wrapping_sub(self.term(term)?)),
            None => Some(sum.wrapping_add(self.term(part)?)),
        });
        // No file has a position before its first byte.
        sum.filter(|sum| i64::try_from(*sum).is_ok())
    }

    fn term(&self, term: &str) -> Option<u64> {
        let split = term.find(|c: char| c.is_ascii_digit()).unwrap_or(term.len());
        let (name, rest) = term.split_at(split);
        let digits = rest.trim_end_matches(['B', 'z']);
        let number: u64 = if digits.is_empty() { 0 } else { digits.parse().unwrap() };
        let nth =
            |fits: &dyn Fn(&&Zone) -> bool| self.zones.iter().filter(fits).nth(number as usize).map(|zone| zone.start);
        match (name, &rest[digits.len()..]) {
            ("", "B") => Some(number),
            ("", "z") => Some(number * 2 * MIB),
            ("", "") => Some(number * BLOCK),
            ("cap", "") => Some(self.capacity),
            ("end", "") => Some(28 * MIB),
            ("s", "") => nth(&|zone| is_usable(zone)),
            ("c", "") => nth(&|zone| zone.condition == ZoneCondition::NotWritePointer),
            ("ro", "") => nth(&|zone| zone.condition == ZoneCondition::ReadOnly),
            ("of", "") => nth(&|zone| zone.condition == ZoneCondition::Offline),
            _ => panic!("there is no '{term}'"),
        }
    }
}

/// Returns name, steps and expected result of the rows for a file of `shape`.
fn rows(shape: &str) -> Vec<[&'static str; 3]> {
    let mut rows: Vec<[&str; 3]> = Vec::new();
    for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let fields: Vec<&str> = line.split('\t').collect();
        match fields[..] {
            // Lines behind a row are for other shapes than the first, or for one device. That of a file comes last.
            ["", place, result] if place == shape || place.strip_prefix(shape) == Some("/file") => {
                rows.last_mut().expect("a row comes first")[2] = result;
            }
            ["", _, _] => {}
            [name, steps, result] => rows.push([name, steps, result]),
            _ => panic!("not understood: {line}"),
        }
    }
    rows
}

#[test]
fn zoned_file_matches_kernel_device() {
    for shape in SHAPES {
        let mut bench = Bench::new(shape);
        let (mut compared, mut different) = (0, Vec::new());
        for [name, steps, expected] in rows(shape.0) {
            if OF_THE_KERNEL.contains(&name) || steps.contains("r:") {
                continue;
            }
            let got = bench.case(compared % 200 + 1, steps).unwrap_or("absent".to_owned());
            compared += 1;
            // Each of them is right: requests of one ioctl reach a device in no order.
            if !expected.split(" or ").any(|expected| got == expected) {
                different.push(format!("{name}: {got}, not {expected}"));
            }
        }
        assert!(different.is_empty(), "{}: {different:#?}", shape.0);
        assert!(compared >= 100, "only {compared} cases were compared");
    }
}
