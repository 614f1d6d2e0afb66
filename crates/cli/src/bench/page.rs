//! The results as one page that needs nothing but itself: plots, a table under each, the bars, the environment.

use super::compare::LOADS;
use super::figures::{Figure, Results, size_text};
use super::plot::{Axis, Bar, BarPlot, Line, LinePlot, STYLE, escaped};
use super::{cpu, latency, path};

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

/// The whole page.
pub(crate) fn html(results: &Results, environment: &[(String, String)]) -> String {
    let fact = |name: &str| environment.iter().find(|(n, _)| n == name).map_or("", |(_, value)| value.as_str());
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Inlock benchmarks, {}</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n<style>\n{PAGE_STYLE}{STYLE}</style>\n</head>\n<body>\n\
         <h1>Inlock benchmarks</h1>\n<p class=\"soft\">{}, {} processors, Linux {}, {}</p>\n",
        escaped(fact("date")),
        escaped(fact("processor")),
        escaped(fact("usable processors")),
        escaped(fact("kernel")),
        escaped(fact("date")),
    );
    text += &bars(results);
    text += &compare_sections(results);
    text += &path_sections(results);
    text += &latency_section(results);
    text += "<section><h2>Environment</h2>\n<table class=\"facts\">\n";
    for (name, value) in environment {
        text += &format!("<tr><th>{}</th><td>{}</td></tr>\n", escaped(name), escaped(value));
    }
    text += "</table>\n";
    if !results.notes.is_empty() {
        text += "<h2>How it was measured</h2>\n<ul>\n";
        results.notes.iter().for_each(|note| text += &format!("<li>{}</li>\n", escaped(note)));
        text += "</ul>\n";
    }
    text + "</section>\n</body>\n</html>\n"
}

fn bars(results: &Results) -> String {
    if results.bars.is_empty() {
        return String::new();
    }
    let met = results.bars.iter().filter(|bar| bar.met() == Some(true)).count();
    let mut text = format!("<section><h2>Bars</h2>\n<p>{met} of {} are met.</p>\n<table>\n", results.bars.len());
    text += "<tr><th>what</th><th>bar</th><th>figure</th><th>met</th></tr>\n";
    for bar in &results.bars {
        text += &format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"{}\">{}</td></tr>\n",
            escaped(&bar.what),
            bar.limit_text(),
            bar.figure_text(),
            bar.verdict().replace(' ', "-"),
            bar.verdict()
        );
    }
    text + "</table></section>\n"
}

/// A section with its plots side by side; nothing where there is no plot.
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

/// Colours of the cases: encrypted red, raw blue, nothing done in between green; offloaded ones are dashed.
fn color(case: &str) -> usize {
    match case {
        _ if case.starts_with("aes") || case == "Inlock LUKS2" => 0,
        _ if case.starts_with("raw") || case == "Inlock raw" => 1,
        _ if case.starts_with("null") => 2,
        _ if case.ends_with(" luks") => 3,
        "does nothing" => 8,
        _ => 6,
    }
}

fn look(case: &str) -> &'static str {
    if case.contains("offloaded") { "dash" } else { "" }
}

fn most(lines: &[Line]) -> f64 {
    lines.iter().flat_map(|line| &line.points).map(|point| point.1).fold(0.0, f64::max)
}

/// One line for each case among `figures`, in their order.
fn lines<'a>(figures: &[&'a Figure], point: impl Fn(&'a Figure) -> (f64, f64)) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for figure in figures {
        let point = point(figure);
        match lines.iter_mut().find(|line| line.label == figure.case) {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                label: figure.case.clone(),
                color: color(&figure.case),
                look: look(&figure.case),
                points: vec![point],
            }),
        }
    }
    lines
}

fn path_sections(results: &Results) -> String {
    let of = |write: bool| {
        let operation = path::operation(write);
        let wanted = move |f: &&Figure| {
            f.measure == "operations" && f.operation == operation && f.case != path::ALONE && f.case != path::UNCOUNTED
        };
        results.of("path").filter(wanted)
    };
    let (mut sizes, mut depths) = (Vec::new(), Vec::new());
    for write in [false, true] {
        let (operation, id) = (path::operation(write), if write { "write" } else { "read" });
        let figures: Vec<&Figure> = of(write).filter(|f| f.queue_depth == 4).collect();
        if figures.is_empty() {
            continue;
        }
        let lines_of = lines(&figures, |f| (f.block_size as f64, f.figure * f.block_size as f64 / f64::from(1 << 30)));
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
        let figures: Vec<&Figure> = of(write).filter(|f| f.block_size == 4 << 10).collect();
        let lines_of = lines(&figures, |f| (f.queue_depth as f64, f.figure / 1e3));
        let ticks = path::DEPTHS.iter().map(|depth| (*depth as f64, depth.to_string())).collect();
        let plot = LinePlot {
            id: format!("depth-{id}"),
            title: format!("4 KiB {operation}"),
            x: Axis::named("requests under way at a time", ticks),
            y: Axis::from_zero("thousand operations a second", most(&lines_of)),
            lines: lines_of,
            size: (PANEL, 320.0),
            names: 150.0,
        };
        depths.push(panel(&plot.svg(), &plot.table()));
    }
    let through = "The way of a request through one worker, without a client, on a file in memory. A null cipher that costs \
                   nothing lies on the raw line; encrypted, the distance to it is the cipher's own time.";
    let over = "Requests of 4 KiB. A turn of the worker is paid once for all requests that are under way.";
    let cpu = "Where the processor time of one request over NBD goes: the front end (protocol, sockets, the worker), the \
               cipher, the store.";
    section("Throughput over request size", through, &sizes)
        + &section("Operations over queue depth", over, &depths)
        + &section("Processor time of a request", cpu, &cpu_panels(results))
}

/// The colours of the parts of [`cpu::PARTS`].
const PART_COLORS: [usize; 3] = [5, 0, 1];

fn cpu_panels(results: &Results) -> Vec<String> {
    let parts: Vec<(String, usize)> =
        cpu::PARTS.iter().zip(PART_COLORS).map(|(name, color)| ((*name).to_owned(), color)).collect();
    let mut panels = Vec::new();
    for block in path::BLOCKS {
        let figures: Vec<&Figure> =
            results.of("path").filter(|f| f.block_size == block as u64 && cpu::PARTS.contains(&f.measure)).collect();
        let mut bars: Vec<Bar> = Vec::new();
        for figure in &figures {
            let label = format!("{}, {}", figure.case, figure.operation.trim_start_matches("random "));
            let at = match bars.iter().position(|bar| bar.label == label) {
                Some(at) => at,
                None => {
                    bars.push(Bar { label, parts: vec![0.0; 3], note: String::new(), color: 0 });
                    bars.len() - 1
                }
            };
            if let Some(part) = cpu::PARTS.iter().position(|name| figure.measure == *name) {
                bars[at].parts[part] = figure.figure / 1e3;
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

fn latency_section(results: &Results) -> String {
    let mut panels = Vec::new();
    for write in [false, true] {
        for depth in latency::DEPTHS {
            let operation = path::operation(write);
            let wanted = |f: &&Figure| f.operation == operation && f.queue_depth == depth;
            let figures: Vec<&Figure> = results.of("latency").filter(wanted).collect();
            if figures.is_empty() {
                continue;
            }
            // The percentiles stand at equal distances.
            let rank = |name: &str| latency::PERCENTILES.iter().position(|(n, _)| *n == name).unwrap_or(0);
            let mut lines_of = lines(&figures, |f| (2f64.powi(rank(f.measure) as i32), f.figure));
            for line in &mut lines_of {
                line.color = match (line.label.contains("busy"), line.label.contains("offloaded")) {
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
                id: format!("latency-{}-{depth}", if write { "write" } else { "read" }),
                title: format!("4 KiB {operation}, depth {depth}"),
                x: Axis::named("share of requests that took no longer", ticks.collect()),
                y: Axis::decades("from asking to the answer, ns", least, most(&lines_of), nanos_name),
                lines: lines_of,
                size: (PANEL, 320.0),
                names: 150.0,
            };
            panels.push(panel(&plot.svg(), &plot.table()));
        }
    }
    let words = "AES-256-XTS in process, one worker. Busy: as many other threads as processors do nothing but compute. A \
                 request that is handed to another thread waits until that thread has its turn.";
    section("Latency", words, &panels)
}

fn compare_sections(results: &Results) -> String {
    let mut panels = [Vec::new(), Vec::new(), Vec::new()];
    for load in LOADS {
        let operation = load.operation();
        let wanted =
            |f: &&Figure| f.operation == operation && f.block_size == load.block as u64 && f.queue_depth == load.depth;
        for (measure, unit, scale, section) in [
            ("operations", "thousand operations a second", 1e-3, 0),
            ("throughput", "GiB/s", 1.0 / 1024.0, 0),
            ("median latency", "\u{b5}s", 1e-3, 1),
            ("processor time", "processor seconds for each GiB", 1.0, 2),
        ] {
            let figures: Vec<&Figure> = results.of("compare").filter(wanted).filter(|f| f.measure == measure).collect();
            if figures.is_empty() {
                continue;
            }
            let own = figures.iter().find(|f| f.case == "Inlock LUKS2").map(|f| f.figure);
            let bar = |figure: &&Figure| Bar {
                label: figure.case.clone(),
                parts: vec![figure.figure * scale],
                note: own
                    .filter(|_| figure.case != "Inlock LUKS2")
                    .map_or_else(String::new, |own| format!("\u{d7}{:.2}", figure.figure / own)),
                color: color(&figure.case),
            };
            let plot = BarPlot {
                id: format!("{}-{}", measure.replace(' ', "-"), load.name().replace([' ', ','], "-")),
                title: load.name(),
                unit: unit.to_owned(),
                parts: vec![(String::new(), 0)],
                bars: figures.iter().map(bar).collect(),
                width: PANEL,
                names: (110.0, 110.0),
            };
            panels[section].push(panel(&plot.svg(), &plot.table()));
        }
    }
    let beside = "NBD servers over a unix socket, one connection, one after the other in turns. Longer is faster; \
                  \u{d7} is the factor to Inlock LUKS2. Red and brown \
                  encrypt, blue and grey do not. \u{201c}Does nothing\u{201d} answers without touching data: it shows \
                  what the client can do.";
    let time = "Median time from asking to the answer, one request at a time. Shorter is faster.";
    let work = "What the server itself takes, user and system, for each GiB that is moved. Shorter is better.";
    section("Throughput beside other servers", beside, &panels[0])
        + &section("Latency beside other servers", time, &panels[1])
        + &section("Processor time beside other servers", work, &panels[2])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(
        bench: &'static str,
        case: &str,
        operation: &str,
        block: u64,
        depth: usize,
        measure: &'static str,
    ) -> Figure {
        Figure {
            bench,
            case: case.to_owned(),
            operation: operation.to_owned(),
            block_size: block,
            queue_depth: depth,
            measure,
            figure: 1000.0,
            unit: "",
            compared: None,
        }
    }

    #[test]
    fn a_page_has_a_plot_and_a_table_for_everything_that_was_measured() {
        let mut figures = Vec::new();
        for operation in ["random read", "random write"] {
            for block in path::BLOCKS {
                figures.extend(
                    path::DEPTHS.map(|depth| figure("path", "raw", operation, block as u64, depth, "operations")),
                );
                figures.extend(cpu::PARTS.map(|part| figure("path", "raw", operation, block as u64, 4, part)));
            }
            for depth in latency::DEPTHS {
                figures.extend(
                    latency::PERCENTILES
                        .map(|(name, _)| figure("latency", "aes-xts inline, idle", operation, 4096, depth, name)),
                );
            }
        }
        figures.push(figure("compare", "Inlock LUKS2", "random read", 4096, 16, "operations"));
        figures.push(figure("compare", "nbdkit file", "random read", 4096, 1, "median latency"));
        figures.push(figure("compare", "nbdkit file", "sequential read", 1 << 20, 4, "processor time"));
        let results = Results { figures, ..Results::default() };
        let page = html(&results, &[("date".to_owned(), "<today>".to_owned())]);
        let plots = page.matches("<svg ").count();
        assert_eq!(plots, 2 + 2 + 3 + 4 + 3, "{page}");
        assert_eq!(page.matches("<details>").count(), plots);
        assert!(page.contains("&lt;today&gt;") && !page.contains("http"), "{page}");
        assert_eq!(page.matches("<section>").count(), page.matches("</section>").count());
    }

    #[test]
    fn what_was_not_measured_has_no_section() {
        let page = html(&Results::default(), &[]);
        assert!(!page.contains("<svg") && page.contains("Environment"), "{page}");
    }
}
