//! Plots as SVG: lines over an axis, and stacked bars. For the page of `inlock bench` and the pictures of the guide.
//!
//! Colours are classes, so that one style sheet ([`STYLE`]) makes them readable in light and in dark. Every plot has a
//! title and a table with the same content, every point and bar has a name.

use std::fmt::Write as _;

/// Style sheet of all plots; `s0` to `s9` and `f0` to `f9` are the colours of the series.
pub const STYLE: &str = "\
.plot{--paper:#fff;--ink:#1f2430;--soft:#5b6472;--grid:#e4e7ec;--s0:#c1121f;--s1:#1d4ed8;--s2:#15803d;--s3:#b45309;\
--s4:#7c3aed;--s5:#0e7490;--s6:#64748b;--s7:#be185d;--s8:#8a8f98;--s9:#444b57;\
font-family:system-ui,'DejaVu Sans',Verdana,sans-serif;font-size:13px}\n\
@media (prefers-color-scheme:dark){.plot{--paper:#14171c;--ink:#e8eaed;--soft:#a7afba;--grid:#2c323b;--s0:#ff7b7b;\
--s1:#86a9ff;--s2:#63d292;--s3:#f2a65a;--s4:#bd9cff;--s5:#5cc9de;--s6:#a3adbb;--s7:#f58cc0;--s8:#8f98a5;--s9:#c5ccd6}}\n\
.plot text{fill:var(--ink)}.plot .soft{fill:var(--soft)}.plot .head{font-size:15px;font-weight:600}\
.plot .paper{fill:var(--paper)}.plot .grid{stroke:var(--grid);stroke-width:1}.plot .axis{stroke:var(--soft);stroke-width:1}\
.plot .line{fill:none;stroke-width:2.5;stroke-linejoin:round}.plot .dash{stroke-dasharray:7 5;stroke-width:2}\
.plot .dots{stroke-dasharray:2 4;stroke-width:2}.plot .bold{stroke-width:4}.plot .lead{fill:none;stroke-width:1}\n\
.plot .s0{stroke:var(--s0)}.plot .s1{stroke:var(--s1)}.plot .s2{stroke:var(--s2)}.plot .s3{stroke:var(--s3)}\
.plot .s4{stroke:var(--s4)}.plot .s5{stroke:var(--s5)}.plot .s6{stroke:var(--s6)}.plot .s7{stroke:var(--s7)}\
.plot .s8{stroke:var(--s8)}.plot .s9{stroke:var(--s9)}\n\
.plot .f0{fill:var(--s0)}.plot .f1{fill:var(--s1)}.plot .f2{fill:var(--s2)}.plot .f3{fill:var(--s3)}.plot .f4{fill:var(--s4)}\
.plot .f5{fill:var(--s5)}.plot .f6{fill:var(--s6)}.plot .f7{fill:var(--s7)}.plot .f8{fill:var(--s8)}.plot .f9{fill:var(--s9)}\n";

/// Scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences have equal distances.
    Linear,
    /// Equal ratios have equal distances.
    Log,
}

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Quantity and unit.
    pub label: String,
    /// Scale.
    pub scale: Scale,
    /// Marked values with their names.
    pub ticks: Vec<(f64, String)>,
    /// Value at the low end.
    pub low: f64,
    /// Value at the high end.
    pub high: f64,
}

impl Axis {
    /// Returns a linear axis from zero to at least `most`.
    pub fn from_zero(label: &str, most: f64) -> Self {
        let step = nice_step(most / 5.0);
        let count = (most / step).ceil().max(1.0);
        // As many digits as the step has: 2.5 has one.
        let digits = (0..6).find(|digits| (step * 10f64.powi(*digits)).fract() < 1e-6).unwrap_or(0) as usize;
        let ticks = (0..=count as u32).map(|at| f64::from(at) * step);
        Self {
            label: label.to_owned(),
            scale: Scale::Linear,
            ticks: ticks.map(|value| (value, format!("{value:.digits$}"))).collect(),
            low: 0.0,
            high: count * step,
        }
    }

    /// Returns a logarithmic axis with these ticks.
    pub fn named(label: &str, ticks: Vec<(f64, String)>) -> Self {
        let low = ticks.first().map_or(1.0, |tick| tick.0);
        let high = ticks.last().map_or(2.0, |tick| tick.0);
        Self { label: label.to_owned(), scale: Scale::Log, ticks, low, high }
    }

    /// Returns a logarithmic axis over the powers of ten around these values.
    pub fn decades(label: &str, least: f64, most: f64, name: impl Fn(f64) -> String) -> Self {
        let (low, high) = (least.max(1e-12).log10().floor() as i32, most.max(1e-12).log10().ceil() as i32);
        let high = high.max(low + 1);
        let ticks = (low..=high).map(|power| 10f64.powi(power)).map(|value| (value, name(value))).collect();
        Self { label: label.to_owned(), scale: Scale::Log, ticks, low: 10f64.powi(low), high: 10f64.powi(high) }
    }

    /// Returns the position of a value: 0 at the low end, 1 at the high one.
    fn share(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        }
    }
}

/// Returns the next of 1, 2, 2.5, 5 and 10 times a power of ten.
fn nice_step(least: f64) -> f64 {
    if least <= 0.0 || !least.is_finite() {
        return 1.0;
    }
    let power = 10f64.powf(least.log10().floor());
    let times = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|times| times * power >= least * 0.999);
    times.unwrap_or(10.0) * power
}

/// A line with its name at its right end.
#[derive(Clone, Debug)]
pub struct Line {
    /// Name.
    pub label: String,
    /// Colour, 0 to 9.
    pub color: usize,
    /// `""`, or further classes: `dash`, `dots`, `bold`.
    pub look: &'static str,
    /// Points in ascending order of x.
    pub points: Vec<(f64, f64)>,
}

/// Lines over an axis.
#[derive(Clone, Debug)]
pub struct LinePlot {
    /// Unique on its page.
    pub id: String,
    /// Title.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Lines.
    pub lines: Vec<Line>,
    /// Width and height.
    pub size: (f64, f64),
    /// Width of the names on the right.
    pub names: f64,
}

/// The least distance between two names.
const NAME_STEP: f64 = 17.0;

impl LinePlot {
    /// Returns the plot as an `svg` element.
    pub fn svg(&self) -> String {
        let (width, height) = self.size;
        let area = Area { left: 62.0, top: 44.0, right: width - self.names, bottom: height - 52.0 };
        let mut text = open(&self.id, &self.title, self.size);
        self.axes(&mut text, &area);
        for line in &self.lines {
            self.curve(&mut text, &area, line);
        }
        self.names(&mut text, &area);
        text + "</svg>\n"
    }

    fn place(&self, area: &Area, point: (f64, f64)) -> (f64, f64) {
        let x = area.left + self.x.share(point.0) * (area.right - area.left);
        let y = area.bottom - self.y.share(point.1).clamp(0.0, 1.0) * (area.bottom - area.top);
        (x, y)
    }

    fn axes(&self, text: &mut String, area: &Area) {
        let Area { left, top, right, bottom } = *area;
        for (value, name) in &self.y.ticks {
            let (_, y) = self.place(area, (self.x.low, *value));
            let class = if *value == self.y.low { "axis" } else { "grid" };
            push(
                text,
                format_args!("<line class=\"{class}\" x1=\"{left}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>"),
            );
            let (x, y, name) = (left - 8.0, y + 4.5, escaped(name));
            push(text, format_args!("<text class=\"soft\" x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{name}</text>"));
        }
        for (value, name) in &self.x.ticks {
            let (x, _) = self.place(area, (*value, self.y.low));
            push(text, format_args!("<line class=\"grid\" x1=\"{x:.1}\" y1=\"{top}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>"));
            let (y, name) = (bottom + 19.0, escaped(name));
            push(
                text,
                format_args!("<text class=\"soft\" x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{name}</text>"),
            );
        }
        let (x, y, name) = (f64::midpoint(left, right), bottom + 40.0, escaped(&self.x.label));
        push(text, format_args!("<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{name}</text>"));
        let (y, name) = (f64::midpoint(top, bottom), escaped(&self.y.label));
        push(
            text,
            format_args!("<text transform=\"translate(15 {y}) rotate(-90)\" text-anchor=\"middle\">{name}</text>"),
        );
    }

    fn curve(&self, text: &mut String, area: &Area, line: &Line) {
        let places: Vec<(f64, f64)> = line.points.iter().map(|point| self.place(area, *point)).collect();
        let points: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let (color, look) = (line.color, line.look);
        push(text, format_args!("<polyline class=\"line s{color} {look}\" points=\"{}\"/>", points.join(" ")));
        for ((x, y), point) in places.iter().zip(&line.points) {
            let name = format!("{}, {}: {}", line.label, self.x_name(point.0), short(point.1));
            push(
                text,
                format_args!(
                    "<circle class=\"f{color}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"><title>{}</title></circle>",
                    escaped(&name)
                ),
            );
        }
    }

    /// Writes the name of each line at its end. Names that would overlap are moved apart.
    fn names(&self, text: &mut String, area: &Area) {
        let end = |line: &Line| line.points.last().map_or(area.bottom, |point| self.place(area, *point).1);
        let mut ends: Vec<(f64, &Line)> = self.lines.iter().map(|line| (end(line), line)).collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut places: Vec<f64> = ends.iter().map(|end| end.0).collect();
        spread(&mut places, NAME_STEP, area.top, area.bottom);
        for ((end, line), place) in ends.iter().zip(places) {
            let (from, to) = (area.right + 4.0, area.right + 18.0);
            let color = line.color;
            push(
                text,
                format_args!(
                    "<line class=\"lead s{color}\" x1=\"{from}\" y1=\"{end:.1}\" x2=\"{to}\" y2=\"{place:.1}\"/>"
                ),
            );
            let (x, y, name) = (to + 4.0, place + 4.5, escaped(&line.label));
            push(text, format_args!("<text style=\"fill:var(--s{color})\" x=\"{x}\" y=\"{y:.1}\">{name}</text>"));
        }
    }

    fn x_name(&self, value: f64) -> String {
        let tick = self.x.ticks.iter().find(|tick| tick.0 == value);
        tick.map_or_else(|| short(value), |tick| tick.1.clone())
    }

    /// Returns the content as rows of a table, the first with the headings.
    pub fn table(&self) -> Vec<Vec<String>> {
        let mut values: Vec<f64> = self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let mut head = vec![format!("{} \u{2192}", self.y.label)];
        head.extend(values.iter().map(|value| self.x_name(*value)));
        let row = |line: &Line| {
            let at = |value: &f64| line.points.iter().find(|point| point.0 == *value);
            let cells = values.iter().map(|value| at(value).map_or_else(String::new, |point| short(point.1)));
            std::iter::once(line.label.clone()).chain(cells).collect()
        };
        std::iter::once(head).chain(self.lines.iter().map(row)).collect()
    }
}

struct Area {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

/// Moves places apart until they are `step` from each other, between two ends.
fn spread(places: &mut [f64], step: f64, low: f64, high: f64) {
    for _ in 0..400 {
        for at in 1..places.len() {
            let lack = step - (places[at] - places[at - 1]);
            if lack > 0.0 {
                places[at - 1] -= lack / 2.0;
                places[at] += lack / 2.0;
            }
        }
        // If there is no room for all names, some are beyond the ends.
        if places.len() as f64 * step < high - low {
            places.iter_mut().for_each(|place| *place = place.clamp(low, high));
        }
    }
}

/// One bar, in parts.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Name.
    pub label: String,
    /// Values, one for each part of the plot.
    pub parts: Vec<f64>,
    /// Text after the sum.
    pub note: String,
    /// Colour, if the plot has only one part.
    pub color: usize,
}

/// Horizontal bars.
#[derive(Clone, Debug)]
pub struct BarPlot {
    /// Unique on its page.
    pub id: String,
    /// Title.
    pub title: String,
    /// Unit of the values.
    pub unit: String,
    /// Names and colours of the parts; a single part needs no name.
    pub parts: Vec<(String, usize)>,
    /// Bars.
    pub bars: Vec<Bar>,
    /// Width.
    pub width: f64,
    /// Widths of the names on the left and of the notes on the right.
    pub names: (f64, f64),
}

const BAR_STEP: f64 = 27.0;
const BAR_HEIGHT: f64 = 17.0;

impl BarPlot {
    /// Returns the plot as an `svg` element.
    pub fn svg(&self) -> String {
        let legend = if self.parts.len() > 1 { 22.0 } else { 0.0 };
        let area = Area {
            left: self.names.0,
            top: 38.0 + legend,
            right: self.width - self.names.1,
            bottom: 38.0 + legend + BAR_STEP * self.bars.len() as f64,
        };
        let mut text = open(&self.id, &self.title, (self.width, area.bottom + 46.0));
        if self.parts.len() > 1 {
            self.legend(&mut text);
        }
        let sum = |bar: &Bar| bar.parts.iter().sum::<f64>();
        let axis = Axis::from_zero(&self.unit, self.bars.iter().map(sum).fold(0.0, f64::max));
        let x = |value: f64| area.left + axis.share(value) * (area.right - area.left);
        for (value, name) in &axis.ticks {
            let (x, top, bottom) = (x(*value), area.top, area.bottom);
            let class = if *value == 0.0 { "axis" } else { "grid" };
            push(
                &mut text,
                format_args!("<line class=\"{class}\" x1=\"{x:.1}\" y1=\"{top}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>"),
            );
            let y = bottom + 17.0;
            push(
                &mut text,
                format_args!("<text class=\"soft\" x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{name}</text>"),
            );
        }
        let (middle, y, name) = (f64::midpoint(area.left, area.right), area.bottom + 37.0, escaped(&self.unit));
        push(&mut text, format_args!("<text x=\"{middle:.1}\" y=\"{y}\" text-anchor=\"middle\">{name}</text>"));
        for (at, bar) in self.bars.iter().enumerate() {
            let top = area.top + BAR_STEP * at as f64 + (BAR_STEP - BAR_HEIGHT) / 2.0;
            let (left, base, label) = (area.left - 8.0, top + BAR_HEIGHT - 4.0, escaped(&bar.label));
            push(&mut text, format_args!("<text x=\"{left}\" y=\"{base:.1}\" text-anchor=\"end\">{label}</text>"));
            let mut from = 0.0;
            for (part, value) in bar.parts.iter().enumerate() {
                let color = if self.parts.len() > 1 { self.parts[part].1 } else { bar.color };
                let (left, right) = (x(from), x(from + value));
                let name = escaped(&format!("{} {}: {} {}", bar.label, self.parts[part].0, short(*value), self.unit));
                push(
                    &mut text,
                    format_args!(
                        "<rect class=\"f{color}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BAR_HEIGHT}\">\
                         <title>{name}</title></rect>",
                        (right - left).max(0.5)
                    ),
                );
                from += value;
            }
            let (x, note) = (x(from) + 7.0, escaped(&bar.note));
            let gap = if note.is_empty() { "" } else { " \u{b7} " };
            push(
                &mut text,
                format_args!(
                    "<text x=\"{x:.1}\" y=\"{base:.1}\">{}<tspan class=\"soft\">{gap}{note}</tspan></text>",
                    short(from)
                ),
            );
        }
        text + "</svg>\n"
    }

    fn legend(&self, text: &mut String) {
        let mut x = self.names.0;
        for (name, color) in &self.parts {
            push(text, format_args!("<rect class=\"f{color}\" x=\"{x}\" y=\"36\" width=\"12\" height=\"12\"/>"));
            push(text, format_args!("<text x=\"{}\" y=\"46\">{}</text>", x + 17.0, escaped(name)));
            x += 40.0 + 7.2 * name.chars().count() as f64;
        }
    }

    /// Returns the content as rows of a table, the first with the headings.
    pub fn table(&self) -> Vec<Vec<String>> {
        let mut head = vec![String::new()];
        if self.parts.len() > 1 {
            head.extend(self.parts.iter().map(|(name, _)| name.clone()));
        }
        head.extend([self.unit.clone(), String::new()]);
        let row = |bar: &Bar| {
            let mut cells = vec![bar.label.clone()];
            if self.parts.len() > 1 {
                cells.extend(bar.parts.iter().map(|part| short(*part)));
            }
            cells.extend([short(bar.parts.iter().sum()), bar.note.clone()]);
            cells
        };
        std::iter::once(head).chain(self.bars.iter().map(row)).collect()
    }
}

fn open(id: &str, title: &str, (width, height): (f64, f64)) -> String {
    let title = escaped(title);
    format!(
        "<svg class=\"plot\" id=\"{id}\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-labelledby=\"{id}-title\">\n\
         <title id=\"{id}-title\">{title}</title>\n\
         <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n<text class=\"head\" x=\"12\" y=\"22\">{title}</text>\n"
    )
}

fn push(text: &mut String, piece: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{piece}");
}

/// Makes an SVG file of an `svg` element.
pub fn standalone(svg: &str) -> String {
    let opened = svg.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1);
    opened.replacen(">\n", &format!(">\n<style>\n{STYLE}</style>\n"), 1)
}

/// Returns a number with three significant digits.
pub fn short(value: f64) -> String {
    match value.abs() {
        x if x >= 99.95 => format!("{value:.0}"),
        x if x >= 9.995 => format!("{value:.1}"),
        0.0 => "0".to_owned(),
        x if x >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Escapes text for HTML and SVG.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(label: &str, points: &[(f64, f64)]) -> Line {
        Line { label: label.to_owned(), color: 0, look: "", points: points.to_vec() }
    }

    fn plot(lines: Vec<Line>) -> LinePlot {
        LinePlot {
            id: "p".to_owned(),
            title: "A <title>".to_owned(),
            x: Axis::named("size", vec![(1.0, "one".to_owned()), (4.0, "four".to_owned())]),
            y: Axis::from_zero("GB/s", 9.3),
            lines,
            size: (480.0, 300.0),
            names: 120.0,
        }
    }

    #[test]
    fn axis_of_any_range_has_round_ticks() {
        let names = |axis: &Axis| axis.ticks.iter().map(|tick| tick.1.clone()).collect::<Vec<_>>();
        assert_eq!(names(&Axis::from_zero("", 9.3)), ["0", "2", "4", "6", "8", "10"]);
        assert_eq!(names(&Axis::from_zero("", 0.42)), ["0.0", "0.1", "0.2", "0.3", "0.4", "0.5"]);
        assert_eq!(names(&Axis::from_zero("", 12.0))[1..3], ["2.5", "5.0"]);
        assert_eq!(names(&Axis::from_zero("", 0.0)), ["0", "1"]);
        let decades = Axis::decades("", 3.0, 250.0, |value| format!("{value}"));
        assert_eq!(names(&decades), ["1", "10", "100", "1000"]);
        assert!((decades.share(10.0) - 1.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn names_at_the_same_height_are_spread() {
        let mut places = [50.0, 50.0, 51.0];
        spread(&mut places, 10.0, 0.0, 100.0);
        assert!(places.windows(2).all(|two| two[1] - two[0] > 9.9), "{places:?}");
        let mut places = [99.0, 100.0];
        spread(&mut places, 10.0, 0.0, 100.0);
        assert!(places[1] <= 100.1 && places[1] - places[0] > 9.0, "{places:?}");
    }

    #[test]
    fn line_plot_has_names_and_a_table() {
        let plot = plot(vec![line("a & b", &[(1.0, 2.0), (4.0, 9.3)]), line("c", &[(4.0, 1.0)])]);
        let svg = plot.svg();
        assert!(svg.contains("A &lt;title&gt;") && svg.contains("a &amp; b, four: 9.30"), "{svg}");
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (2, 3));
        assert_eq!(plot.table()[1..], [["a & b", "2.00", "9.30"], ["c", "", "1.00"]]);
        assert!(standalone(&svg).contains("<style>"));
    }

    #[test]
    fn bars_have_the_lengths_of_their_parts() {
        let bar = Bar { label: "x".to_owned(), parts: vec![1.0, 3.0], note: String::new(), color: 0 };
        let plot = BarPlot {
            id: "b".to_owned(),
            title: "t".to_owned(),
            unit: "ns".to_owned(),
            parts: vec![("one".to_owned(), 1), ("two".to_owned(), 2)],
            bars: vec![bar],
            width: 400.0,
            names: (100.0, 100.0),
        };
        let svg = plot.svg();
        assert!(svg.contains("width=\"50.0\"") && svg.contains("width=\"150.0\""), "{svg}");
        assert_eq!(plot.table()[1], ["x", "1.00", "3.00", "4.00", ""]);
    }
}
