//! The results as one self-contained HTML page: thresholds, plots with a table under each, the environment.

use crate::compare::LOADS;
use crate::plot::{Axis, Bar, BarPlot, Line, LinePlot, STYLE, escaped};
use crate::results::{Measurement, Results};
use crate::tables::{heading, size_text};
use crate::{cpu, latency, path};

const PANEL: f64 = 520.0;

const PAGE_STYLE: &str = "\
:root{color-scheme:light dark;--paper:#fff;--ink:#1f2430;--soft:#5b6472;--edge:#d9dde3;--good:#15803d;--bad:#b91c1c}\n\
@media (prefers-color-scheme:dark){:root{--paper:#14171c;--ink:#e8eaed;--soft:#a7afba;--edge:#343b45;--good:#63d292;--bad:#ff7b7b}}\n\
body{background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,'DejaVu Sans',Verdana,sans-serif;margin:0 auto;\
max-width:1120px;padding:1.5rem}\n\
h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.2rem;margin:2.4rem 0 .3rem}p{margin:.3rem 0 .8rem;max-width:75ch}\n\
.soft{color:var(--soft)}.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:1.2rem}\n\
figure{border:1px solid var(--edge);border-radius:6px;margin:0;padding:.4rem;overflow:auto;align-self:start}\n\
svg.plot{display:block;height:auto;width:100%}\n\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}th,td{border-bottom:1px solid var(--edge);\
padding:.22rem .7rem;text-align:right;vertical-align:top}\n\
th:first-child,td:first-child{padding-left:0;text-align:left}th{font-weight:600}.facts td{text-align:left}\n\
summary{color:var(--soft);cursor:pointer;font-size:.85rem;padding:.2rem .4rem}details table{font-size:.85rem;margin:.3rem .4rem}\n\
.yes{color:var(--good);font-weight:600}.NO{color:var(--bad);font-weight:600}\n";

/// Returns the page.
pub(crate) fn html(results: &Results, environment: &[(String, String)]) -> String {
    let fact = |name: &str| environment.iter().find(|(n, _)| n == name).map_or("", |(_, value)| value.as_str());
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Inlock benchmarks, {}</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n<style>\n{PAGE_STYLE}{STYLE}</style>\n</head>\n<body>\n\
         <h1>Inlock benchmarks</h1>\n<p class=\"soft\">{}, {} CPUs, Linux {}, {}</p>\n",
        escaped(fact("date")),
        escaped(fact("processor")),
        escaped(fact("usable processors")),
        escaped(fact("kernel")),
        escaped(fact("date")),
    );
    text += &thresholds(results);
    text += &compare_sections(results);
    text += &path_sections(results);
    text += &latency_sections(results);
    text += "<section><h2>Environment</h2>\n<table class=\"facts\">\n";
    for (name, value) in environment {
        text += &format!("<tr><th>{}</th><td>{}</td></tr>\n", escaped(heading(name)), escaped(value));
    }
    text += "</table>\n";
    if !results.notes.is_empty() {
        text += "<h2>How it was measured</h2>\n<ul>\n";
        results.notes.iter().for_each(|note| text += &format!("<li>{}</li>\n", escaped(note)));
        text += "</ul>\n";
    }
    text + "</section>\n</body>\n</html>\n"
}

fn thresholds(results: &Results) -> String {
    if results.thresholds.is_empty() {
        return String::new();
    }
    let (met, all) = (results.verdict().met, results.thresholds.len());
    let mut text = format!("<section><h2>Thresholds</h2>\n<p>{met} of {all} met.</p>\n<table>\n");
    text += "<tr><th>ratio</th><th>threshold</th><th>measured</th><th>met</th></tr>\n";
    for threshold in &results.thresholds {
        text += &format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"{}\">{}</td></tr>\n",
            escaped(&threshold.what),
            threshold.limit_text(),
            threshold.ratio_text(),
            threshold.met_text().replace(' ', "-"),
            threshold.met_text()
        );
    }
    text + "</table></section>\n"
}

/// Returns a section with its plots side by side; nothing if there is no plot.
fn section(title: &str, words: &str, panels: &[String]) -> String {
    if panels.is_empty() {
        return String::new();
    }
    format!("<section><h2>{title}</h2>\n<p>{words}</p>\n<div class=\"panels\">\n{}</div></section>\n", panels.concat())
}

fn panel(svg: &str, table: &[Vec<String>]) -> String {
    let mut text = format!("<figure>\n{svg}<details><summary>the same as a table</summary>\n<table>\n");
    for (at, row) in table.iter().enumerate() {
        let tag = if at == 0 { "th" } else { "td" };
        let cells: Vec<String> = row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        text += &format!("<tr>{}</tr>\n", cells.concat());
    }
    text + "</table></details></figure>\n"
}

/// Colours of the cases: encrypted red, raw blue, null cipher green. Offloaded cases are dashed.
fn color(case: &str) -> usize {
    match case {
        "Inlock LUKS2" | "Inlock no-poll" => 0,
        _ if case.starts_with("aes") => 0,
        _ if case.starts_with("raw") || case == "Inlock raw" => 1,
        _ if case.starts_with("null") => 2,
        _ if case.ends_with(" luks") => 3,
        "null server" => 8,
        _ => 6,
    }
}

fn look(case: &str) -> &'static str {
    if case.contains("offloaded") || case.contains("two CPUs") { "dash" } else { "" }
}

fn most(lines: &[Line]) -> f64 {
    lines.iter().flat_map(|line| &line.points).map(|point| point.1).fold(0.0, f64::max)
}

/// Returns one line for each case of `rows`, in their order.
fn lines<'a>(rows: &[&'a Measurement], point: impl Fn(&'a Measurement) -> (f64, f64)) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        let point = point(row);
        match lines.iter_mut().find(|line| line.label == row.case) {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                label: row.case.clone(),
                color: color(&row.case),
                look: look(&row.case),
                points: vec![point],
            }),
        }
    }
    lines
}

fn path_sections(results: &Results) -> String {
    let of = |write: bool| {
        let operation = path::operation(write);
        let wanted = move |f: &&Measurement| {
            f.measure == "operations" && f.operation == operation && f.case != path::ALONE && f.case != path::UNCOUNTED
        };
        results.of("path").filter(wanted)
    };
    let (mut sizes, mut depths) = (Vec::new(), Vec::new());
    for write in [false, true] {
        let (operation, id) = (path::operation(write), if write { "write" } else { "read" });
        let rows: Vec<&Measurement> = of(write).filter(|f| f.queue_depth == 4).collect();
        if rows.is_empty() {
            continue;
        }
        let lines_of = lines(&rows, |f| (f.block_size as f64, f.value * f.block_size as f64 / f64::from(1 << 30)));
        let ticks = path::BLOCKS.iter().map(|block| (*block as f64, size_text(*block as u64))).collect();
        let plot = LinePlot {
            id: format!("size-{id}"),
            title: format!("{operation}, depth 4"),
            x: Axis::named("bytes a request", ticks),
            y: Axis::from_zero("GiB/s", most(&lines_of)),
            lines: lines_of,
            size: (PANEL, 320.0),
            names: 150.0,
        };
        sizes.push(panel(&plot.svg(), &plot.table()));
        let rows: Vec<&Measurement> = of(write).filter(|f| f.block_size == 4 << 10).collect();
        let lines_of = lines(&rows, |f| (f.queue_depth as f64, f.value / 1e3));
        let ticks = path::DEPTHS.iter().map(|depth| (*depth as f64, depth.to_string())).collect();
        let plot = LinePlot {
            id: format!("depth-{id}"),
            title: format!("4 KiB {operation}"),
            x: Axis::named("queue depth", ticks),
            y: Axis::from_zero("thousand IOPS", most(&lines_of)),
            lines: lines_of,
            size: (PANEL, 320.0),
            names: 150.0,
        };
        depths.push(panel(&plot.svg(), &plot.table()));
    }
    let through = "I/O path: one worker, no client, tmpfs. The distance of the null cipher to raw is the overhead of the path, \
                   the distance of the encrypted line that of path and cipher.";
    let over = "Requests of 4 KiB. One turn of the worker serves all requests in flight.";
    let cpu = "CPU time of one request over NBD: the frontend (protocol, sockets, the worker), the cipher, the store.";
    section("Throughput over request size", through, &sizes)
        + &section("IOPS over queue depth", over, &depths)
        + &section("CPU time of a request", cpu, &cpu_panels(results))
}

/// The colours of the parts of [`cpu::PARTS`].
const PART_COLORS: [usize; 3] = [5, 0, 1];

fn cpu_panels(results: &Results) -> Vec<String> {
    let parts: Vec<(String, usize)> =
        cpu::PARTS.iter().zip(PART_COLORS).map(|(name, color)| (heading(name).to_owned(), color)).collect();
    let mut panels = Vec::new();
    for block in path::BLOCKS {
        let rows: Vec<&Measurement> =
            results.of("path").filter(|f| f.block_size == block as u64 && cpu::PARTS.contains(&f.measure)).collect();
        let mut bars: Vec<Bar> = Vec::new();
        for row in &rows {
            let label = format!("{}, {}", row.case, row.operation.trim_start_matches("random "));
            let at = match bars.iter().position(|bar| bar.label == label) {
                Some(at) => at,
                None => {
                    bars.push(Bar { label, parts: vec![0.0; 3], note: String::new(), color: 0 });
                    bars.len() - 1
                }
            };
            if let Some(part) = cpu::PARTS.iter().position(|name| row.measure == *name) {
                bars[at].parts[part] = row.value / 1e3;
            }
        }
        if bars.is_empty() {
            continue;
        }
        let plot = BarPlot {
            id: format!("cpu-{block}"),
            title: format!("{} requests over NBD, depth {}", size_text(block as u64), cpu::DEPTH),
            unit: "\u{b5}s a request".to_owned(),
            parts: parts.clone(),
            bars,
            width: PANEL,
            names: (150.0, 60.0),
        };
        panels.push(panel(&plot.svg(), &plot.table()));
    }
    panels
}

fn nanos_name(nanos: f64) -> String {
    match nanos {
        x if x >= 1e9 => format!("{} s", x / 1e9),
        x if x >= 1e6 => format!("{} ms", x / 1e6),
        x if x >= 1e3 => format!("{} \u{b5}s", x / 1e3),
        x => format!("{x} ns"),
    }
}

fn latency_sections(results: &Results) -> String {
    let in_process = "AES-256-XTS in process, one worker. Busy: as many other threads as CPUs compute all the time. An \
                      offloaded request waits until the scheduler runs the other thread.";
    let over_nbd = "AES-256-XTS over NBD with one request in flight, client and server on one CPU or (dashed) on two. The \
                    null server answers without touching data.";
    section("Latency", in_process, &latency_panels(results, false))
        + &section("Latency over NBD", over_nbd, &latency_panels(results, true))
}

fn latency_panels(results: &Results, over_nbd: bool) -> Vec<String> {
    let mut panels = Vec::new();
    for write in [false, true] {
        for depth in latency::DEPTHS {
            let operation = if over_nbd { latency::over_nbd_name(write) } else { path::operation(write).to_owned() };
            let wanted = |f: &&Measurement| f.operation == operation && f.queue_depth == depth;
            let rows: Vec<&Measurement> = results.of("latency").filter(wanted).collect();
            if rows.is_empty() {
                continue;
            }
            // The percentiles are at equal distances.
            let rank = |name: &str| latency::PERCENTILES.iter().position(|(n, _)| *n == name).unwrap_or(0);
            let mut lines_of = lines(&rows, |f| (2f64.powi(rank(f.measure) as i32), f.value));
            for line in &mut lines_of {
                line.color = match (line.label.contains("busy"), line.label.contains("offloaded")) {
                    _ if line.label.contains("null") => 8,
                    _ if line.label.contains("polling") => 5,
                    (false, false) => 1,
                    (false, true) => 5,
                    (true, false) => 0,
                    (true, true) => 3,
                };
                line.label = line.label.replacen("aes-xts ", "", 1);
            }
            let least = lines_of.iter().flat_map(|line| &line.points).map(|point| point.1).fold(f64::MAX, f64::min);
            let ticks = latency::PERCENTILES.iter().map(|(name, _)| (2f64.powi(rank(name) as i32), (*name).to_owned()));
            let plot = LinePlot {
                id: format!(
                    "latency{}-{}-{depth}",
                    if over_nbd { "-nbd" } else { "" },
                    if write { "write" } else { "read" }
                ),
                title: format!("4 KiB {operation}, depth {depth}"),
                x: Axis::named("percentile", ticks.collect()),
                y: Axis::decades("completion latency, ns", least, most(&lines_of), nanos_name),
                lines: lines_of,
                size: (PANEL, 320.0),
                names: if over_nbd { 200.0 } else { 150.0 },
            };
            panels.push(panel(&plot.svg(), &plot.table()));
        }
    }
    panels
}

fn compare_sections(results: &Results) -> String {
    let mut panels = [Vec::new(), Vec::new(), Vec::new()];
    for load in LOADS {
        let operation = load.operation();
        let wanted = |f: &&Measurement| {
            f.operation == operation && f.block_size == load.block as u64 && f.queue_depth == load.depth
        };
        for (measure, unit, scale, section) in [
            ("operations", "thousand IOPS", 1e-3, 0),
            ("throughput", "GiB/s", 1.0 / 1024.0, 0),
            (load.placed_measures()[0], "\u{b5}s", 1e-3, 1),
            ("processor time", "CPU seconds per GiB", 1.0, 2),
        ] {
            let rows: Vec<&Measurement> =
                results.of("compare").filter(wanted).filter(|f| f.measure == measure).collect();
            if rows.is_empty() {
                continue;
            }
            let own = rows.iter().find(|f| f.case == "Inlock LUKS2").map(|f| f.value);
            let bar = |row: &&Measurement| Bar {
                label: row.case.clone(),
                parts: vec![row.value * scale],
                note: own
                    .filter(|_| row.case != "Inlock LUKS2")
                    .map_or_else(String::new, |own| format!("\u{d7}{:.2}", row.value / own)),
                color: color(&row.case),
            };
            let plot = BarPlot {
                id: format!("{}-{}", measure.replace([' ', ','], "-"), load.name().replace([' ', ','], "-")),
                title: load.name(),
                unit: unit.to_owned(),
                parts: vec![(String::new(), 0)],
                bars: rows.iter().map(bar).collect(),
                width: PANEL,
                names: (110.0, 135.0),
            };
            panels[section].push(panel(&plot.svg(), &plot.table()));
        }
    }
    let beside = "NBD servers over a unix socket, one connection, interleaved. Longer is faster; \
                  \u{d7} is the ratio to Inlock LUKS2. Red and brown \
                  encrypt, blue and grey do not. The null server answers without touching data: it shows \
                  the limit of the client.";
    let time = "Median completion latency at queue depth 1, with client and server on one CPU, and each on its own. \
                Shorter is faster.";
    let work = "CPU time of the server, user and system, per GiB of data. Shorter is better.";
    section("Throughput of NBD servers", beside, &panels[0])
        + &section("Latency of NBD servers", time, &panels[1])
        + &section("CPU time of NBD servers", work, &panels[2])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(
        bench: &'static str,
        case: &str,
        operation: &str,
        block: u64,
        depth: usize,
        measure: &'static str,
    ) -> Measurement {
        Measurement {
            bench,
            case: case.to_owned(),
            operation: operation.to_owned(),
            block_size: block,
            queue_depth: depth,
            measure,
            value: 1000.0,
            unit: "",
            compared: None,
        }
    }

    #[test]
    fn page_of_all_benches_has_plots_with_tables() {
        let mut measurements = Vec::new();
        for operation in ["random read", "random write"] {
            for block in path::BLOCKS {
                measurements.extend(
                    path::DEPTHS.map(|depth| measurement("path", "raw", operation, block as u64, depth, "operations")),
                );
                measurements
                    .extend(cpu::PARTS.map(|part| measurement("path", "raw", operation, block as u64, 4, part)));
            }
            for depth in latency::DEPTHS {
                measurements.extend(
                    latency::PERCENTILES
                        .map(|(name, _)| measurement("latency", "aes-xts inline, idle", operation, 4096, depth, name)),
                );
            }
        }
        let (nbd, case) = (latency::over_nbd_name(false), "polling, two CPUs");
        measurements.extend(latency::PERCENTILES.map(|(name, _)| measurement("latency", case, &nbd, 4096, 1, name)));
        measurements.push(measurement("compare", "Inlock LUKS2", "random read", 4096, 16, "operations"));
        measurements.push(measurement("compare", "nbdkit file", "random read", 4096, 1, "median latency, one CPU"));
        measurements.push(measurement("compare", "nbdkit file", "sequential read", 1 << 20, 4, "processor time"));
        let results = Results { measurements, ..Results::default() };
        let page = html(&results, &[("date".to_owned(), "<today>".to_owned())]);
        let plots = page.matches("<svg ").count();
        assert_eq!(plots, 2 + 2 + 3 + 4 + 1 + 3, "{page}");
        assert_eq!(page.matches("<details>").count(), plots);
        assert!(page.contains("&lt;today&gt;") && !page.contains("http"), "{page}");
        assert_eq!(page.matches("<section>").count(), page.matches("</section>").count());
    }

    #[test]
    fn page_without_results_has_no_plot() {
        let page = html(&Results::default(), &[]);
        assert!(!page.contains("<svg") && page.contains("Environment"), "{page}");
    }
}
