//! Results of a run: measurements and the thresholds for them, as text and JSON.
//!
//! A measurement is one flat row with its unit and its ratio to one other case of the same run. A ratio is the median
//! of the rounds' ratios: a slow round slows both sides of its ratio.

use std::fmt;

use serde_json::{Value, json};

/// One measured value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measurement {
    /// `path`, `latency` or `compare`.
    pub bench: &'static str,
    /// Measured case.
    pub case: String,
    /// `random read`, `sequential write` and so on.
    pub operation: String,
    /// Bytes of a request.
    pub block_size: u64,
    /// Requests in flight.
    pub queue_depth: usize,
    /// Measured quantity.
    pub measure: &'static str,
    /// The value, in `unit`.
    pub value: f64,
    /// Unit of the value.
    pub unit: &'static str,
    /// Another case of this run, and this value divided by that one's.
    pub compared: Option<(String, f64)>,
}

impl Measurement {
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
            "figure": self.value,
            "unit": self.unit,
            "compared_with": with,
            "ratio": ratio,
        })
    }
}

/// Side of its limit on which a value has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sense {
    AtLeast,
    AtMost,
}

/// A limit for a ratio of the run.
#[derive(Clone, Debug)]
pub(crate) struct Threshold {
    /// Names of both sides of the ratio.
    pub what: String,
    /// The ratio; `None`: not measured.
    pub ratio: Option<f64>,
    pub sense: Sense,
    pub limit: f64,
}

impl Threshold {
    pub(crate) fn at_least(what: impl Into<String>, ratio: Option<f64>, limit: f64) -> Self {
        Self { what: what.into(), ratio, sense: Sense::AtLeast, limit }
    }

    pub(crate) fn at_most(what: impl Into<String>, ratio: Option<f64>, limit: f64) -> Self {
        Self { what: what.into(), ratio, sense: Sense::AtMost, limit }
    }

    /// Whether the threshold is met; `None`: not measured.
    pub(crate) fn met(&self) -> Option<bool> {
        self.ratio.map(|ratio| match self.sense {
            Sense::AtLeast => ratio >= self.limit,
            Sense::AtMost => ratio <= self.limit,
        })
    }

    /// Returns a text such as `>= 0.95`.
    pub(crate) fn limit_text(&self) -> String {
        let sign = if self.sense == Sense::AtLeast { "\u{2265}" } else { "\u{2264}" };
        format!("{sign} {:.2}", self.limit)
    }

    /// Returns a text such as `0.991`, or a dash.
    pub(crate) fn ratio_text(&self) -> String {
        self.ratio.map_or_else(|| "\u{2013}".to_owned(), |ratio| format!("{ratio:.3}"))
    }

    /// Returns `yes`, `NO` or `not measured`.
    pub(crate) fn met_text(&self) -> &'static str {
        match self.met() {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "not measured",
        }
    }

    fn json(&self) -> Value {
        let sense = if self.sense == Sense::AtLeast { ">=" } else { "<=" };
        json!({ "bar": self.what, "figure": self.ratio, "sense": sense, "limit": self.limit, "met": self.met() })
    }
}

/// Number of thresholds that a run met and missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// Thresholds met.
    pub met: usize,
    /// Thresholds missed.
    pub missed: usize,
    /// Thresholds whose ratio was not measured.
    pub skipped: usize,
}

impl Verdict {
    /// Whether every threshold was measured and met.
    pub fn is_met(&self) -> bool {
        self.missed == 0 && self.skipped == 0
    }

    /// Whether every threshold that was measured was met.
    pub fn is_met_if_measured(&self) -> bool {
        self.missed == 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { met, missed, skipped } = *self;
        write!(f, "{met} of {} thresholds met, {missed} missed, {skipped} skipped", met + missed + skipped)
    }
}

/// All results of a run.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub measurements: Vec<Measurement>,
    pub thresholds: Vec<Threshold>,
    /// How it was measured; what could not be, and why.
    pub notes: Vec<String>,
}

impl Results {
    /// Returns the results and the environment as JSON.
    pub(crate) fn json(&self, environment: &[(String, String)]) -> Value {
        let environment: serde_json::Map<String, Value> =
            environment.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        json!({
            "environment": environment,
            "results": self.measurements.iter().map(Measurement::json).collect::<Vec<_>>(),
            "bars": self.thresholds.iter().map(Threshold::json).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }

    /// Measurements of one bench.
    pub(crate) fn of<'a>(&'a self, bench: &'a str) -> impl Iterator<Item = &'a Measurement> {
        self.measurements.iter().filter(move |measurement| measurement.bench == bench)
    }

    /// Counts the thresholds.
    pub(crate) fn verdict(&self) -> Verdict {
        let count = |met| self.thresholds.iter().filter(|threshold| threshold.met() == met).count();
        Verdict { met: count(Some(true)), missed: count(Some(false)), skipped: count(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_counts_met_missed_and_skipped_thresholds() {
        let verdict = |ratios: &[Option<f64>]| {
            let thresholds = ratios.iter().map(|ratio| Threshold::at_least("x", *ratio, 1.0)).collect();
            Results { thresholds, ..Results::default() }.verdict()
        };
        assert!(verdict(&[Some(1.0), Some(2.0)]).is_met());
        let skipped = verdict(&[Some(1.0), None]);
        assert_eq!(skipped.to_string(), "1 of 2 thresholds met, 0 missed, 1 skipped");
        assert!(!skipped.is_met() && skipped.is_met_if_measured());
        let missed = verdict(&[Some(0.5), None]);
        assert_eq!(missed, Verdict { met: 0, missed: 1, skipped: 1 });
        assert!(!missed.is_met() && !missed.is_met_if_measured());
    }

    #[test]
    fn threshold_is_met_on_the_right_side_of_its_limit() {
        let met = |threshold: Threshold| (threshold.met(), threshold.met_text());
        assert_eq!(met(Threshold::at_least("x", Some(0.96), 0.95)), (Some(true), "yes"));
        assert_eq!(met(Threshold::at_least("x", Some(0.94), 0.95)), (Some(false), "NO"));
        assert_eq!(met(Threshold::at_most("x", Some(0.96), 0.95)), (Some(false), "NO"));
        assert_eq!(met(Threshold::at_most("x", None, 0.95)), (None, "not measured"));
    }

    #[test]
    fn json_row_is_flat_and_names_the_compared_case() {
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
        let row = measurement.json();
        assert!(row.as_object().is_some_and(|row| row.values().all(|value| !value.is_object() && !value.is_array())));
        assert_eq!((&row["compared_with"], &row["ratio"]), (&json!("raw"), &json!(0.5)));
    }
}
