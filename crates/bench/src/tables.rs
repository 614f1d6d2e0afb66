//! Results as Markdown tables, a column for each case.

use crate::results::{Measurement, Results, Threshold};

/// Tables of the measurements, one for each run of rows with the same cases; then the thresholds and the notes.
pub(crate) fn text(results: &Results) -> String {
    let rows = rows(&results.measurements);
    let groups = rows.chunk_by(|a, b| a.bench == b.bench && a.cases().eq(b.cases()));
    let mut text: String = groups.map(group).collect();
    text += &thresholds(&results.thresholds);
    for note in &results.notes {
        text += &format!("note: {note}\n");
    }
    text
}

/// Returns the table of thresholds; nothing if there is none.
fn thresholds(thresholds: &[Threshold]) -> String {
    if thresholds.is_empty() {
        return String::new();
    }
    let rows = thresholds.iter().map(|threshold| {
        vec![threshold.what.clone(), threshold.limit_text(), threshold.ratio_text(), threshold.met_text().into()]
    });
    table(&["ratio", "threshold", "measured", "met"], 1, rows) + "\n"
}

/// Returns a key of the JSON as tables and pages show it.
pub(crate) fn heading(key: &str) -> &str {
    match key {
        "processor" => "CPU",
        "usable processors" => "CPUs",
        "processor flags" => "CPU flags",
        "processor time" => "CPU time",
        "front end" => "frontend",
        other => other,
    }
}

/// Measurements of one load and measure, one for each case.
struct Row<'a> {
    bench: &'static str,
    label: String,
    measurements: Vec<&'a Measurement>,
}

impl Row<'_> {
    fn cases(&self) -> impl Iterator<Item = &str> {
        self.measurements.iter().map(|measurement| measurement.case.as_str())
    }
}

fn rows(measurements: &[Measurement]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for measurement in measurements {
        let Measurement { bench, operation, queue_depth, measure, unit, .. } = measurement;
        let size = size_text(measurement.block_size);
        let label = format!("{size} {operation}, depth {queue_depth}: {}, {unit}", heading(measure));
        match rows.iter_mut().find(|row| row.bench == *bench && row.label == label) {
            Some(row) => row.measurements.push(measurement),
            None => rows.push(Row { bench, label, measurements: vec![measurement] }),
        }
    }
    rows
}

fn group(rows: &[Row<'_>]) -> String {
    let mut bases: Vec<&str> = Vec::new();
    for (base, _) in rows.iter().flat_map(|row| &row.measurements).filter_map(|cell| cell.compared.as_ref()) {
        if !bases.contains(&base.as_str()) {
            bases.push(base);
        }
    }
    let cell = |measurement: &&Measurement| match &measurement.compared {
        Some((_, ratio)) => format!("{} ({ratio:.2})", number_text(measurement.value)),
        None => number_text(measurement.value),
    };
    let cells =
        rows.iter().map(|row| std::iter::once(row.label.clone()).chain(row.measurements.iter().map(cell)).collect());
    let heads: Vec<&str> = std::iter::once(rows[0].bench).chain(rows[0].cases()).collect();
    let mut text = table(&heads, 1, cells);
    if !bases.is_empty() {
        text += &format!("\nIn brackets: the ratio to {}.\n", bases.join(" or "));
    }
    text + "\n"
}

/// Returns a Markdown table with aligned columns: the first `left` to the left, the others to the right.
pub(crate) fn table(heads: &[&str], left: usize, rows: impl Iterator<Item = Vec<String>>) -> String {
    let rows: Vec<Vec<String>> = rows.collect();
    let mut widths: Vec<usize> = heads.iter().map(|head| head.chars().count().max(3)).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: Vec<String>| {
        let mut line = String::from("|");
        for (at, cell) in cells.iter().enumerate() {
            let width = widths[at];
            line += &if at < left { format!(" {cell:<width$} |") } else { format!(" {cell:>width$} |") };
        }
        line + "\n"
    };
    let mut text = line(heads.iter().map(|head| (*head).to_owned()).collect());
    text.push('|');
    for (at, width) in widths.iter().enumerate() {
        text += &if at < left { "-".repeat(width + 2) } else { "-".repeat(width + 1) + ":" };
        text.push('|');
    }
    text.push('\n');
    rows.into_iter().for_each(|row| text += &line(row));
    text
}

/// Formats a size as `4 KiB` or `1 MiB`.
pub(crate) fn size_text(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

/// Returns a number with about three significant digits.
pub(crate) fn number_text(value: f64) -> String {
    match value.abs() {
        x if x >= 100.0 => format!("{value:.0}"),
        x if x >= 10.0 => format!("{value:.1}"),
        x if x >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_are_in_the_words_of_the_documentation() {
        let environment = crate::environment::describe(std::path::Path::new("/"), &[]);
        let keys = environment.iter().map(|(name, _)| name.as_str()).chain(crate::cpu::PARTS);
        let headings: Vec<&str> = keys.map(heading).collect();
        assert!(headings.contains(&"CPUs") && headings.contains(&"frontend"), "{headings:?}");
        assert!(headings.iter().all(|name| !name.contains("processor") && !name.contains("front ")), "{headings:?}");
    }

    #[test]
    fn table_of_a_compared_measurement_has_its_ratio() {
        let measurement = Measurement {
            bench: "path",
            case: "null inline".to_owned(),
            operation: "random read".to_owned(),
            block_size: 4096,
            queue_depth: 1,
            measure: "operations",
            value: 5.0,
            unit: "1/s",
            compared: Some(("raw".to_owned(), 0.5)),
        };
        let text = text(&Results { measurements: vec![measurement], ..Results::default() });
        assert!(text.contains("| 4 KiB random read, depth 1: operations, 1/s | 5.00 (0.50) |"), "{text}");
        assert!(text.contains("the ratio to raw."), "{text}");
    }

    #[test]
    fn sizes_and_numbers_are_short() {
        assert_eq!([size_text(512), size_text(4096), size_text(1 << 20)], ["512 B", "4 KiB", "1 MiB"]);
        assert_eq!(
            [number_text(123456.7), number_text(12.34), number_text(1.234), number_text(0.1234)],
            ["123457", "12.3", "1.23", "0.123"]
        );
    }
}
