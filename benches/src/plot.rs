//! The results as a picture: throughput over the size of a data unit, one line for each implementation.

use serde_json::Value;
use std::error::Error;
use std::fmt::Write;

/// Bytes a request, key length and direction of the figures that are drawn.
const REQUEST: u64 = 262_144;
const KEY_BITS: u64 = 256;
const DIRECTION: &str = "encrypt";

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 560.0;
/// The area of the lines: left, top, right, bottom.
const AREA: (f64, f64, f64, f64) = (70.0, 70.0, 680.0, 490.0);
/// The least distance between two labels.
const LABEL_STEP: f64 = 20.0;

/// Which rows make a line, what it is called, and how it looks. `{}` stands for the implementation's name.
struct Style {
    level: &'static str,
    implementation: &'static str,
    label: &'static str,
    color: &'static str,
    stroke: &'static str,
}

const fn style(
    level: &'static str,
    implementation: &'static str,
    label: &'static str,
    color: &'static str,
    stroke: &'static str,
) -> Style {
    Style { level, implementation, label, color, stroke }
}

const SOLID: &str = "stroke-width=\"2.5\"";
const DASHED: &str = "stroke-width=\"2\" stroke-dasharray=\"7 5\"";

const STYLES: [Style; 10] = [
    style("vaes512", "limit", "limit (AES rounds alone)", "#444444", "stroke-width=\"2\" stroke-dasharray=\"2 4\""),
    style("vaes512", "inlock vaes512", "Inlock, VAES-512", "#c1121f", "stroke-width=\"4\""),
    style("vaes512", "inlock vaes512, a call a unit", "Inlock, a call a unit", "#e07a5f", DASHED),
    style("vaes512", "OpenSSL", "{}", "#1d4ed8", SOLID),
    style("vaes512", "AWS-LC", "{}", "#7c3aed", SOLID),
    style("vaes256", "inlock vaes256", "Inlock, VAES-256", "#b45309", SOLID),
    style("aesni", "inlock aesni", "Inlock, AES-NI", "#15803d", SOLID),
    style("aesni", "OpenSSL", "{}, AES-NI", "#0891b2", DASHED),
    style("vaes512", "inlock portable", "Inlock, portable (aes crate)", "#64748b", SOLID),
    style("vaes512", "xts-mode", "xts-mode (aes crate)", "#a3a3a3", SOLID),
];

struct Line<'a> {
    style: &'a Style,
    label: String,
    /// Bytes in a unit, and GB/s.
    points: Vec<(f64, f64)>,
}

/// The picture, as SVG.
pub(crate) fn svg(results: &Value) -> Result<String, Box<dyn Error>> {
    let rows = results["results"].as_array().ok_or("no results")?;
    let lines: Vec<Line<'_>> = STYLES.iter().filter_map(|style| line(style, rows)).collect();
    let most = lines.iter().flat_map(|line| &line.points).map(|point| point.1).fold(0.0, f64::max);
    if most == 0.0 {
        return Err("there is nothing to draw".into());
    }
    let top = (most / 5.0).ceil() * 5.0;
    let mut text = String::new();
    writeln!(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"14\">"
    )?;
    writeln!(text, "<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>")?;
    writeln!(
        text,
        "<text x=\"{}\" y=\"34\" font-size=\"19\" font-weight=\"bold\">AES-256-XTS, requests of 256 KiB: throughput over unit \
         size</text>",
        AREA.0
    )?;
    axes(&mut text, top)?;
    curves(&mut text, &lines, top)?;
    text.push_str("</svg>\n");
    Ok(text)
}

fn line<'a>(style: &'a Style, rows: &[Value]) -> Option<Line<'a>> {
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
    (!points.is_empty()).then_some(Line { style, label, points })
}

fn x(unit: f64) -> f64 {
    AREA.0 + (unit.log2() - 9.0) / 7.0 * (AREA.2 - AREA.0)
}

fn y(rate: f64, top: f64) -> f64 {
    AREA.3 - rate / top * (AREA.3 - AREA.1)
}

fn axes(text: &mut String, top: f64) -> std::fmt::Result {
    let (left, upper, right, lower) = AREA;
    let mut rate = 0.0;
    while rate <= top {
        let at = y(rate, top);
        let color = if rate == 0.0 { "#333333" } else { "#e2e2e2" };
        writeln!(text, "<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"{color}\"/>")?;
        writeln!(text, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{rate}</text>", left - 9.0, at + 5.0)?;
        rate += 5.0;
    }
    for log2 in 9..=16 {
        let at = x(f64::from(1 << log2));
        let name = if log2 < 10 { "512 B".to_owned() } else { format!("{} KiB", 1 << (log2 - 10)) };
        writeln!(text, "<line x1=\"{at:.1}\" y1=\"{upper}\" x2=\"{at:.1}\" y2=\"{lower}\" stroke=\"#f0f0f0\"/>")?;
        writeln!(text, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{name}</text>", lower + 23.0)?;
    }
    let middle = (left + right) / 2.0;
    writeln!(text, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">size of a data unit</text>", lower + 50.0)?;
    let (at, middle) = (24.0, (upper + lower) / 2.0);
    writeln!(text, "<text transform=\"translate({at} {middle}) rotate(-90)\" text-anchor=\"middle\">GB/s</text>")
}

/// The lines, and each one's label at its right end; labels that would overlap are moved apart.
fn curves(text: &mut String, lines: &[Line<'_>], top: f64) -> std::fmt::Result {
    let mut ends: Vec<(f64, &Line<'_>)> = Vec::new();
    for line in lines {
        let points: Vec<String> =
            line.points.iter().map(|(unit, rate)| format!("{:.1},{:.1}", x(*unit), y(*rate, top))).collect();
        let Style { color, stroke, .. } = line.style;
        writeln!(text, "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" {stroke}/>", points.join(" "))?;
        let last = line.points.last().map_or(0.0, |point| point.1);
        ends.push((y(last, top), line));
    }
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut places: Vec<f64> = ends.iter().map(|end| end.0).collect();
    for _ in 0..200 {
        for at in 1..places.len() {
            let lack = LABEL_STEP - (places[at] - places[at - 1]);
            if lack > 0.0 {
                places[at - 1] -= lack / 2.0;
                places[at] += lack / 2.0;
            }
        }
    }
    for ((end, line), place) in ends.iter().zip(places) {
        let Style { color, .. } = line.style;
        let (from, to) = (AREA.2 + 3.0, AREA.2 + 24.0);
        writeln!(text, "<line x1=\"{from}\" y1=\"{end:.1}\" x2=\"{to}\" y2=\"{place:.1}\" stroke=\"{color}\"/>")?;
        let (x, y) = (to + 5.0, place + 5.0);
        writeln!(text, "<text x=\"{x}\" y=\"{y:.1}\" fill=\"{color}\">{}</text>", line.label)?;
    }
    Ok(())
}
