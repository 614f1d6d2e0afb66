//! Number of appends, or writes, of a trace that are in flight: in one zone, and in all.
//!
//! The trace is the text of `/sys/kernel/tracing/trace` with the events `block_rq_issue` and `block_rq_complete` of one
//! device. Zone appends are marked `ZA`, or `N` if the kernel has no letters for them; other requests with that mark
//! have no sectors.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// Prints the number of requests, and the maximum in flight.
pub(super) fn run(log: &Path, zone_sectors: u64, kind: &str) -> Result<()> {
    let text = std::fs::read_to_string(log).with_context(|| format!("cannot read {}", log.display()))?;
    let wanted = match kind {
        "append" => is_append,
        "write" => is_write,
        _ => bail!("neither append nor write: {kind}"),
    };
    let found = look(&text, zone_sectors, wanted)?;
    ensure!(found.all > 0, "there is none in it");
    println!("{} in one zone, {} in all, of {}", found.of_a_zone, found.at_a_time, found.all);
    Ok(())
}

fn is_append(kind: &str) -> bool {
    kind.starts_with("ZA") || kind.starts_with('N')
}

fn is_write(kind: &str) -> bool {
    kind.trim_start_matches('F').starts_with('W')
}

/// Findings in a trace.
#[derive(Default, PartialEq, Eq, Debug)]
struct Found {
    all: u64,
    at_a_time: u64,
    of_a_zone: u64,
}

fn look(text: &str, zone_sectors: u64, wanted: fn(&str) -> bool) -> Result<Found> {
    let mut found = Found::default();
    let (mut now, mut zones) = (0u64, BTreeMap::<u64, u64>::new());
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        ensure!(!line.contains("LOST"), "the trace is not whole: {line}");
        let issued = line.split_once(" block_rq_issue: ").map(|(_, event)| (true, event));
        let event = issued.or_else(|| line.split_once(" block_rq_complete: ").map(|(_, event)| (false, event)));
        let Some((begins, event)) = event else { continue };
        let words: Vec<&str> = event.split_whitespace().collect();
        let plus = words.iter().position(|word| *word == "+").with_context(|| format!("cannot parse: {line}"))?;
        let number = |word: Option<&&str>| word.and_then(|word| word.parse::<u64>().ok());
        let numbers = number(words.get(plus - 1)).zip(number(words.get(plus + 1)));
        let (sector, sectors) = numbers.with_context(|| format!("cannot parse: {line}"))?;
        if sectors == 0 || !wanted(words.get(1).copied().unwrap_or_default()) {
            continue;
        }
        let in_zone = zones.entry(sector / zone_sectors).or_default();
        if begins {
            (now, *in_zone) = (now + 1, *in_zone + 1);
            found.all += 1;
            (found.at_a_time, found.of_a_zone) = (found.at_a_time.max(now), found.of_a_zone.max(*in_zone));
        } else {
            // A request from before the trace may complete in it.
            (now, *in_zone) = (now.saturating_sub(1), in_zone.saturating_sub(1));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(events: &[&str], wanted: fn(&str) -> bool) -> Found {
        let lines: Vec<String> = events
            .iter()
            .map(|event| format!("  kworker/u8:1-30  [001] .....  7: block_rq_{event} none,0,0 [0]"))
            .collect();
        look(&lines.join("\n"), 1024, wanted).unwrap()
    }

    #[test]
    fn request_between_issue_and_completion_is_in_flight() {
        let events = [
            "issue: 252,0 NS 4096 () 1024 + 8",
            "issue: 252,0 ZAS 4096 () 1024 + 8",
            "issue: 252,0 NS 4096 () 2048 + 8",
            "complete: 252,0 NS () 1032 + 8",
            "issue: 252,0 NS 4096 () 1024 + 8",
            "issue: 252,0 N 0 () 1024 + 0",
            "issue: 252,0 FWS 4096 () 1040 + 8",
            "complete: 252,0 NS () 1024 + 8",
        ];
        assert_eq!(found(&events, is_append), Found { all: 4, at_a_time: 3, of_a_zone: 2 });
        assert_eq!(found(&events, is_write), Found { all: 1, at_a_time: 1, of_a_zone: 1 });
    }

    #[test]
    fn trace_with_losses_is_none() {
        assert!(look("CPU:1 [LOST 12 EVENTS]\n", 1024, is_append).is_err());
    }
}
