//! Checks the order of writes in a trace: in each zone every write starts at the end of the previous one, and stays
//! within the zone.
//!
//! The trace is the text of `/sys/kernel/tracing/trace` with the block layer's events of one device. Zone actions are
//! marked `N`; after one a zone may start over. io_uring first submits a write without waiting; one that is longer than
//! the device's requests is refused, and repeated by a thread of io_uring's. Both are in the trace.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Number of faults to print.
const NAMED: usize = 3;

/// Reads the trace, prints the number of writes, and fails if one is out of order or there is none.
pub(super) fn run(log: &Path, event: &str, zone_sectors: u64, free_sectors: u64) -> Result<()> {
    let text = std::fs::read_to_string(log).with_context(|| format!("cannot read {}", log.display()))?;
    let found = look(&text, event, zone_sectors, free_sectors)?;
    println!("{} writes in {} zones, {} reset", found.writes, found.next.len(), found.restarts);
    ensure!(found.faults.is_empty(), "{} out of order: {}", found.faults.len(), found.faults_named());
    ensure!(found.writes > 0, "there is no write in it");
    Ok(())
}

/// Findings in a trace.
#[derive(Default)]
struct Found {
    writes: u64,
    restarts: u64,
    /// Required start of the next write of a zone.
    next: BTreeMap<u64, u64>,
    /// Start of the last one, and its sectors.
    last: BTreeMap<u64, (u64, u64)>,
    /// Zones that may start over.
    fresh: BTreeSet<u64>,
    faults: Vec<String>,
}

impl Found {
    fn faults_named(&self) -> String {
        self.faults[..self.faults.len().min(NAMED)].join("; ")
    }

    fn write(&mut self, sector: u64, sectors: u64, zone_sectors: u64, turned_away: bool) {
        let zone = sector / zone_sectors;
        if self.last.insert(zone, (sector, sectors)) == Some((sector, sectors)) && turned_away {
            return;
        }
        let expected = self.next.get(&zone).copied();
        let anew = sector == zone * zone_sectors && self.fresh.contains(&zone);
        self.writes += 1;
        if sector + sectors > (zone + 1) * zone_sectors {
            self.faults.push(format!("{sectors} sectors at {sector} cross the end of zone {zone}"));
        } else if expected.is_some_and(|expected| expected != sector) && !anew {
            self.faults.push(format!("zone {zone}: {sector}, not {}", expected.unwrap_or_default()));
        } else if anew && expected.is_some_and(|expected| expected != sector) {
            self.restarts += 1;
        }
        self.fresh.remove(&zone);
        self.next.insert(zone, sector + sectors);
    }
}

/// Checks the events called `event`; sectors below `free_sectors` may be written in any order.
fn look(text: &str, event: &str, zone_sectors: u64, free_sectors: u64) -> Result<Found> {
    let mut found = Found::default();
    let mark = format!(" {event}: ");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        ensure!(!line.contains("LOST"), "the trace is not whole: {line}");
        let Some((_, event)) = line.split_once(&mark) else { continue };
        let words: Vec<&str> = event.split_whitespace().collect();
        let plus = words.iter().position(|word| *word == "+").with_context(|| format!("cannot parse: {line}"))?;
        let number = |word: Option<&&str>| word.and_then(|word| word.parse::<u64>().ok());
        let (sector, sectors) = (number(words.get(plus - 1)), number(words.get(plus + 1)));
        let (sector, sectors) = sector.zip(sectors).with_context(|| format!("cannot parse: {line}"))?;
        let kind = words.get(1).copied().unwrap_or_default();
        if kind.contains('N') {
            // A reset of all zones has no position.
            let zones: Vec<u64> = found.next.keys().copied().collect();
            let all = sectors == 0 && sector == 0;
            found.fresh.extend(zones.into_iter().filter(|z| all || *z == sector / zone_sectors));
        } else if kind.contains('W') && sectors > 0 && sector >= free_sectors {
            found.write(sector, sectors, zone_sectors, event.contains("[iou-wrk-"));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(events: &[&str]) -> (u64, usize) {
        let events: Vec<_> = events.iter().map(|event| ("fio", *event)).collect();
        faults_of(&events)
    }

    fn faults_of(events: &[(&str, &str)]) -> (u64, usize) {
        let lines: Vec<String> = events
            .iter()
            .map(|(task, event)| {
                format!("   <...>-12  [001] .....  7: block_rq_issue: 252,0 {event} none,0,0 [{task}]")
            })
            .collect();
        let found = look(&lines.join("\n"), "block_rq_issue", 1024, 1024).unwrap();
        (found.writes, found.faults.len())
    }

    #[test]
    fn write_order_is_checked_per_zone() {
        assert_eq!(faults(&["WS 8 () 1024 + 8", "WS 8 () 2048 + 8", "WS 8 () 1032 + 8", "RS 8 () 0 + 8"]), (3, 0));
        assert_eq!(faults(&["WS 8 () 1024 + 8", "WS 8 () 1040 + 8", "WS 8 () 1032 + 8"]), (3, 2));
        // A repeated write is out of order, too.
        assert_eq!(faults(&["WS 8 () 1024 + 8", "WS 8 () 1024 + 8"]), (2, 1));
        // Sectors before the sequential zones are unordered.
        assert_eq!(faults(&["WS 8 () 512 + 8", "WS 8 () 0 + 8"]), (0, 0));
    }

    #[test]
    fn retried_write_is_not_out_of_order() {
        let (first, again) = (("inlock-queue-0", "WS 1024 + 8"), ("iou-wrk-171", "WS 1024 + 8"));
        assert_eq!(faults_of(&[first, again, ("inlock-queue-0", "WS 1032 + 8")]), (2, 0));
        assert_eq!(faults_of(&[first, first]), (2, 1), "twice by the same");
        assert_eq!(faults_of(&[first, ("inlock-queue-0", "WS 1032 + 8"), again]), (3, 1), "too late");
    }

    #[test]
    fn zone_restarts_only_after_reset() {
        assert_eq!(faults(&["WS 8 () 1024 + 8", "N 0 () 1024 + 0", "WS 8 () 1024 + 8"]), (2, 0));
        assert_eq!(faults(&["WS 8 () 1024 + 8", "N 0 () 0 + 0", "WS 8 () 1024 + 8"]), (2, 0));
        assert_eq!(faults(&["WS 8 () 1024 + 8", "N 0 () 2048 + 0", "WS 8 () 1024 + 8"]), (2, 1));
        assert_eq!(faults(&["WS 8 () 1024 + 8", "N 0 () 1024 + 0", "WS 8 () 1040 + 8"]), (2, 1));
    }

    #[test]
    fn no_write_crosses_a_zones_end() {
        assert_eq!(faults(&["WS 8 () 2040 + 8"]), (1, 0));
        assert_eq!(faults(&["WS 8 () 2040 + 16"]), (1, 1));
    }

    #[test]
    fn trace_with_losses_is_none() {
        assert!(look("CPU:1 [LOST 12 EVENTS]\n", "block_rq_issue", 1024, 0).is_err());
    }
}
