//! What a benchmark found: figures, the bars they are held against, and both as text and JSON.
//!
//! A figure stands in one flat row, with its unit and its ratio to one other case of the same run. A ratio is the median of
//! the rounds' ratios: what slows a round down slows both sides of it.

use serde_json::{Value, json};

/// One measured figure.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    /// `path`, `latency` or `compare`.
    pub bench: &'static str,
    /// What was measured.
    pub case: String,
    /// `random read`, `sequential write` and so on.
    pub operation: String,
    /// Bytes a request.
    pub block_size: u64,
    /// Requests under way at a time.
    pub queue_depth: usize,
    /// What is counted.
    pub measure: &'static str,
    /// The figure.
    pub figure: f64,
    /// Its unit.
    pub unit: &'static str,
    /// Another case of this run, and this figure divided by that one's.
    pub compared: Option<(String, f64)>,
}

impl Figure {
    fn json(&self) -> Value {
        let (with, ratio) = match &self.compared {
            Some((with, ratio)) => (json!(with), json!(ratio)),
            None => (Value::Null, Value::Null),
        };
        json!({
            "bench": self.bench,
            "case": self.case,
            "operation": self.operation,
            "block_size": self.block_size,
            "queue_depth": self.queue_depth,
            "measure": self.measure,
            "figure": self.figure,
            "unit": self.unit,
            "compared_with": with,
            "ratio": ratio,
        })
    }
}

/// Which side of its limit a figure has to be on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sense {
    AtLeast,
    AtMost,
}

/// A figure that this project promises itself.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    /// What is compared.
    pub what: String,
    /// The ratio; `None`: not measured.
    pub figure: Option<f64>,
    pub sense: Sense,
    pub limit: f64,
}

impl Bar {
    pub(crate) fn at_least(what: impl Into<String>, figure: Option<f64>, limit: f64) -> Self {
        Self { what: what.into(), figure, sense: Sense::AtLeast, limit }
    }

    pub(crate) fn at_most(what: impl Into<String>, figure: Option<f64>, limit: f64) -> Self {
        Self { what: what.into(), figure, sense: Sense::AtMost, limit }
    }

    /// Whether it is met; `None`: not measured.
    pub(crate) fn met(&self) -> Option<bool> {
        self.figure.map(|figure| match self.sense {
            Sense::AtLeast => figure >= self.limit,
            Sense::AtMost => figure <= self.limit,
        })
    }

    /// `>= 0.95`.
    pub(crate) fn limit_text(&self) -> String {
        let sign = if self.sense == Sense::AtLeast { "\u{2265}" } else { "\u{2264}" };
        format!("{sign} {:.2}", self.limit)
    }

    /// `0.991`, or a dash.
    pub(crate) fn figure_text(&self) -> String {
        self.figure.map_or_else(|| "\u{2013}".to_owned(), |figure| format!("{figure:.3}"))
    }

    /// `yes`, `NO` or `not measured`.
    pub(crate) fn verdict(&self) -> &'static str {
        match self.met() {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "not measured",
        }
    }

    fn json(&self) -> Value {
        let sense = if self.sense == Sense::AtLeast { ">=" } else { "<=" };
        json!({ "bar": self.what, "figure": self.figure, "sense": sense, "limit": self.limit, "met": self.met() })
    }
}

/// Everything a run found.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub figures: Vec<Figure>,
    pub bars: Vec<Bar>,
    /// What could not be measured, and why; how something was measured.
    pub notes: Vec<String>,
}

impl Results {
    /// As JSON, with the environment.
    pub(crate) fn json(&self, environment: &[(String, String)]) -> Value {
        let environment: serde_json::Map<String, Value> =
            environment.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        json!({
            "environment": environment,
            "results": self.figures.iter().map(Figure::json).collect::<Vec<_>>(),
            "bars": self.bars.iter().map(Bar::json).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }

    /// The figures of one bench that pass a filter.
    pub(crate) fn of<'a>(&'a self, bench: &'a str) -> impl Iterator<Item = &'a Figure> {
        self.figures.iter().filter(move |figure| figure.bench == bench)
    }

    /// Tables of the figures, a column for each case; then the bars and the notes.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let rows = rows(&self.figures);
        for group in rows.chunk_by(|a, b| a.bench == b.bench && a.cases().eq(b.cases())) {
            text += &group_text(group);
        }
        text += &self.bars_text();
        for note in &self.notes {
            text += &format!("note: {note}\n");
        }
        text
    }

    /// How many bars are met, missed and not measured, and whether that will do.
    pub(crate) fn verdict(&self, allow_missing: bool) -> (String, bool) {
        let count = |met| self.bars.iter().filter(|bar| bar.met() == met).count();
        let (met, missed, missing) = (count(Some(true)), count(Some(false)), count(None));
        let text = format!("of {} bars {met} are met, {missed} missed, {missing} not measured", self.bars.len());
        (text, missed == 0 && (missing == 0 || allow_missing))
    }

    /// The table of bars, or nothing where there is none.
    pub(crate) fn bars_text(&self) -> String {
        if self.bars.is_empty() {
            return String::new();
        }
        let rows = self
            .bars
            .iter()
            .map(|bar| vec![bar.what.clone(), bar.limit_text(), bar.figure_text(), bar.verdict().into()]);
        table(&["what", "bar", "figure", "met"], 1, rows) + "\n"
    }
}

/// The figures of one load and measure, a case each.
struct Row<'a> {
    bench: &'static str,
    label: String,
    figures: Vec<&'a Figure>,
}

impl Row<'_> {
    fn cases(&self) -> impl Iterator<Item = &str> {
        self.figures.iter().map(|figure| figure.case.as_str())
    }
}

fn rows(figures: &[Figure]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for figure in figures {
        let Figure { bench, operation, queue_depth, measure, unit, .. } = figure;
        let size = size_text(figure.block_size);
        let label = format!("{size} {operation}, depth {queue_depth}: {measure}, {unit}");
        match rows.iter_mut().find(|row| row.bench == *bench && row.label == label) {
            Some(row) => row.figures.push(figure),
            None => rows.push(Row { bench, label, figures: vec![figure] }),
        }
    }
    rows
}

fn group_text(rows: &[Row<'_>]) -> String {
    let mut bases: Vec<&str> = Vec::new();
    for (base, _) in rows.iter().flat_map(|row| &row.figures).filter_map(|figure| figure.compared.as_ref()) {
        if !bases.contains(&base.as_str()) {
            bases.push(base);
        }
    }
    let cell = |figure: &&Figure| match &figure.compared {
        Some((_, ratio)) => format!("{} ({ratio:.2})", number_text(figure.figure)),
        None => number_text(figure.figure),
    };
    let cells = rows.iter().map(|row| std::iter::once(row.label.clone()).chain(row.figures.iter().map(cell)).collect());
    let heads: Vec<&str> = std::iter::once(rows[0].bench).chain(rows[0].cases()).collect();
    let mut text = table(&heads, 1, cells);
    if !bases.is_empty() {
        text += &format!("\nIn brackets: the ratio to {}.\n", bases.join(" or "));
    }
    text + "\n"
}

/// A Markdown table with its columns aligned: the first `left` to the left, the others to the right.
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

/// `4 KiB`, `1 MiB`.
pub(crate) fn size_text(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

/// A figure with as many digits as it deserves.
pub(crate) fn number_text(figure: f64) -> String {
    match figure.abs() {
        x if x >= 100.0 => format!("{figure:.0}"),
        x if x >= 10.0 => format!("{figure:.1}"),
        x if x >= 1.0 => format!("{figure:.2}"),
        _ => format!("{figure:.3}"),
    }
}

/// The middle of `values`; of two middles the mean. NaN where there is none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[len / 2],
        len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
    }
}

/// The median of the rounds' ratios. `None` where a side was not measured.
pub(crate) fn ratio(over: &[f64], under: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = over.iter().zip(under).map(|(over, under)| over / under).collect();
    Some(median(&ratios)).filter(|ratio| ratio.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_ignores_one_bad_round() {
        assert_eq!(median(&[10.0, 11.0, 0.1, 10.5, 90.0]), 10.5);
        assert_eq!(median(&[1.0, 3.0]), 2.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_slow_round_is_slow_on_both_sides() {
        assert_eq!(ratio(&[1.0, 10.0, 1.0], &[2.0, 20.0, 2.0]), Some(0.5));
        assert_eq!(ratio(&[], &[]), None);
    }

    #[test]
    fn bars_that_were_not_measured_do_not_do_unless_they_may_be_missing() {
        let holds = |figures: &[Option<f64>], allow_missing| {
            let bars = figures.iter().map(|figure| Bar::at_least("x", *figure, 1.0)).collect();
            Results { bars, ..Results::default() }.verdict(allow_missing)
        };
        assert!(holds(&[Some(1.0), Some(2.0)], false).1);
        let (text, does) = holds(&[Some(1.0), None], false);
        assert_eq!((text.as_str(), does), ("of 2 bars 1 are met, 0 missed, 1 not measured", false));
        assert!(holds(&[Some(1.0), None], true).1);
        assert!(!holds(&[Some(0.5), None], true).1);
    }

    #[test]
    fn a_bar_says_whether_it_is_met() {
        let met = |bar: Bar| (bar.met(), bar.verdict());
        assert_eq!(met(Bar::at_least("x", Some(0.96), 0.95)), (Some(true), "yes"));
        assert_eq!(met(Bar::at_least("x", Some(0.94), 0.95)), (Some(false), "NO"));
        assert_eq!(met(Bar::at_most("x", Some(0.96), 0.95)), (Some(false), "NO"));
        assert_eq!(met(Bar::at_most("x", None, 0.95)), (None, "not measured"));
    }

    #[test]
    fn a_row_is_flat_and_names_what_it_is_compared_with() {
        let figure = Figure {
            bench: "path",
            case: "null inline".to_owned(),
            operation: "random read".to_owned(),
            block_size: 4096,
            queue_depth: 1,
            measure: "operations",
            figure: 5.0,
            unit: "1/s",
            compared: Some(("raw".to_owned(), 0.5)),
        };
        let row = figure.json();
        assert!(row.as_object().is_some_and(|row| row.values().all(|value| !value.is_object() && !value.is_array())));
        assert_eq!((&row["compared_with"], &row["ratio"]), (&json!("raw"), &json!(0.5)));
        let results = Results { figures: vec![figure], ..Results::default() };
        let text = results.text();
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
