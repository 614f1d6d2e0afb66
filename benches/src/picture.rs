//! The results as a plot: throughput over the size of a data unit, one line for each implementation.

use inlock_bench::plot::{Axis, Line, LinePlot, standalone};
use serde_json::Value;
use std::error::Error;

/// Request size, key length and direction of the plotted results.
const REQUEST: u64 = 262_144;
const KEY_BITS: u64 = 256;
const DIRECTION: &str = "encrypt";

/// The rows of a line, its label and its look. `{}` stands for the name of the implementation.
struct Style {
    level: &'static str,
    implementation: &'static str,
    label: &'static str,
    color: usize,
    look: &'static str,
}

const fn style(
    level: &'static str,
    implementation: &'static str,
    label: &'static str,
    color: usize,
    look: &'static str,
) -> Style {
    Style { level, implementation, label, color, look }
}

const STYLES: [Style; 10] = [
    style("vaes512", "limit", "limit (AES rounds alone)", 9, "dots"),
    style("vaes512", "inlock vaes512", "Inlock, VAES-512", 0, "bold"),
    style("vaes512", "inlock vaes512, a call a unit", "Inlock, a call a unit", 7, "dash"),
    style("vaes512", "OpenSSL", "{}", 1, ""),
    style("vaes512", "AWS-LC", "{}", 4, ""),
    style("vaes256", "inlock vaes256", "Inlock, VAES-256", 3, ""),
    style("aesni", "inlock aesni", "Inlock, AES-NI", 2, ""),
    style("aesni", "OpenSSL", "{}, AES-NI", 5, "dash"),
    style("vaes512", "inlock portable", "Inlock, portable (aes crate)", 6, ""),
    style("vaes512", "xts-mode", "xts-mode (aes crate)", 8, ""),
];

/// Returns the plot as an SVG file.
pub(crate) fn svg(results: &Value) -> Result<String, Box<dyn Error>> {
    let rows = results["results"].as_array().ok_or("no results")?;
    let lines: Vec<Line> = STYLES.iter().filter_map(|style| line(style, rows)).collect();
    let most = lines.iter().flat_map(|line| &line.points).map(|point| point.1).fold(0.0, f64::max);
    if most == 0.0 {
        return Err("there are no results to plot".into());
    }
    let name = |log2: u32| if log2 < 10 { "512 B".to_owned() } else { format!("{} KiB", 1 << (log2 - 10)) };
    let ticks = (9..=16).map(|log2| (f64::from(1 << log2), name(log2))).collect();
    let plot = LinePlot {
        id: "cipher-speed".to_owned(),
        title: "AES-256-XTS, requests of 256 KiB: throughput over unit size".to_owned(),
        x: Axis::named("size of a data unit", ticks),
        y: Axis::from_zero("GB/s", most),
        lines,
        size: (960.0, 560.0),
        names: 250.0,
    };
    Ok(standalone(&plot.svg()))
}

fn line(style: &Style, rows: &[Value]) -> Option<Line> {
    let mut label = String::new();
    let mut points = Vec::new();
    for row in rows {
        let name = row["implementation"].as_str()?;
        // OpenSSL's name ends with its version.
        let same = name == style.implementation || (style.implementation == "OpenSSL" && name.starts_with("OpenSSL"));
        let wanted = row["level"] == style.level && row["cipher"] == "aes-xts-plain64" && row["direction"] == DIRECTION;
        if same && wanted && row["request_size"] == REQUEST && row["key_bits"] == KEY_BITS {
            label = style.label.replace("{}", name);
            points.push((row["unit_size"].as_f64()?, row["bytes_per_second"].as_f64()? / 1e9));
        }
    }
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    (!points.is_empty()).then_some(Line { label, color: style.color, look: style.look, points })
}
