//! Metrics of a running volume as OpenMetrics text, over just enough HTTP for a scraper.
//!
//! A connection takes one request, GET or HEAD of `/metrics`; all others get their HTTP status. The thread of the
//! control socket ([`super::server`]) serves it with the same limits.

use std::collections::BTreeMap;
use std::fmt::Write;

use inlock_engine::stats::Snapshot;
use inlock_volume::Printable;

use super::engine::EngineCounters;
use super::info::VolumeStatus;
use super::integrity::IntegrityCounters;
use super::metrics::phases;

/// Maximum length of a request, in bytes.
pub const REQUEST_MAX: usize = 8192;

/// Upper bounds of the buckets, in nanoseconds.
const BOUNDS: [u64; 22] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// Returns the response to a request; `None`: the request is incomplete. `text` makes the metrics.
pub fn answer(request: &[u8], text: impl FnOnce() -> String) -> Option<Vec<u8>> {
    let end = request.windows(4).position(|four| four == b"\r\n\r\n");
    let Some(end) = end else {
        return (request.len() >= REQUEST_MAX).then(|| response("431 Request Header Fields Too Large", "", false));
    };
    let line = request[..end].split(|byte| *byte == b'\r').next().unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = words[..] else { return Some(response("400 Bad Request", "", false)) };
    if !version.starts_with(b"HTTP/1.") {
        return Some(response("505 HTTP Version Not Supported", "", false));
    }
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    Some(match method {
        b"GET" | b"HEAD" if path == b"/metrics" => response("200 OK", &text(), method == b"HEAD"),
        b"GET" | b"HEAD" => response("404 Not Found", "", false),
        _ => response("405 Method Not Allowed", "", false),
    })
}

fn response(status: &str, body: &str, head: bool) -> Vec<u8> {
    let kind = if status.starts_with("200") {
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    } else {
        "text/plain; charset=utf-8"
    };
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let len = body.len();
    let body = if head { "" } else { body };
    let headers = format!("Content-Type: {kind}\r\nContent-Length: {len}\r\n{allow}Connection: close\r\n");
    format!("HTTP/1.1 {status}\r\n{headers}\r\n{body}").into_bytes()
}

/// Returns the metrics of volumes in OpenMetrics 1.0 text format.
pub fn text<'a>(volumes: impl IntoIterator<Item = (&'a VolumeStatus, &'a Snapshot)>) -> String {
    let mut text = Text::default();
    for (status, snapshot) in volumes {
        text.volume(status, snapshot, true);
    }
    text.finish()
}

/// Metrics, of one volume after the other: the samples of a family must not be apart.
#[derive(Default)]
pub struct Text {
    /// By the order in which they came up.
    families: Vec<Family>,
    /// Index of each family.
    index: BTreeMap<String, usize>,
    /// Index of the family of the next samples.
    current: usize,
    /// Label of the volume whose samples are added.
    volume: String,
}

/// A family: its metadata, then its samples.
struct Family(String);

impl Text {
    /// Starts with the samples of a volume.
    pub fn begin(&mut self, volume: &str) {
        self.volume = quoted(volume);
    }

    /// Adds an open volume. Without `all`, the histograms of phases that no request had are left out.
    pub fn volume(&mut self, status: &VolumeStatus, snapshot: &Snapshot, all: bool) {
        let info = &status.info;
        self.begin(&info.name);
        let cipher = info.segments.iter().find_map(|segment| segment.cipher.clone()).unwrap_or_default();
        self.family("inlock_volume", "info", "", "The volume.");
        let labels = [("type", &*info.kind), ("cipher", &cipher), ("via", &info.via), ("offload", &info.offload)];
        self.sample("inlock_volume_info", &labels, "1");
        let size = status.sectors.saturating_mul(512).to_string();
        self.gauge("inlock_size_bytes", "bytes", "Length of the volume.", &size);
        let help = "Time when the volume was opened, since 1970.";
        self.gauge("inlock_start_time_seconds", "seconds", help, &info.started.to_string());
        self.gauge("inlock_suspended", "", "Whether I/O is suspended.", if status.suspended { "1" } else { "0" });
        self.counters(snapshot);
        if let Some(engine) = &status.engine_counters {
            self.engine(engine);
        }
        if let Some(integrity) = &status.integrity {
            self.integrity(&integrity.counters);
        }
        if let Some(verity) = &status.verity {
            let blocks = [("corrupted", verity.corrupted), ("rebuilt", verity.repaired)];
            let help = "Reads of blocks that did not match their digests.";
            self.counter("inlock_verity_bad_blocks", "", help, "kind", &blocks);
        }
        self.latencies(snapshot, all);
    }

    fn counters(&mut self, snapshot: &Snapshot) {
        let operations = [
            ("read", snapshot.reads),
            ("write", snapshot.writes),
            ("write_zeroes", snapshot.write_zeroes),
            ("flush", snapshot.flushes),
            ("discard", snapshot.discards),
            ("prefetch", snapshot.prefetches),
            ("zone_append", snapshot.appends),
            ("zone_action", snapshot.zone_actions),
        ];
        self.counter("inlock_io_operations", "", "Requests that succeeded.", "op", &operations);
        self.counter("inlock_io_errors", "", "Requests that failed.", "", &[("", snapshot.errors)]);
        let help = "Requests that were refused: not allowed, out of range, or malformed.";
        self.counter("inlock_refused_requests", "", help, "", &[("", snapshot.refused)]);
        let errors = [("", snapshot.store_errors)];
        let help = "Requests that failed with an error of the underlying device.";
        self.counter("inlock_store_errors", "", help, "", &errors);
        let bytes = [("read", snapshot.bytes_read), ("write", snapshot.bytes_written)];
        self.counter("inlock_io_bytes", "bytes", "Bytes read and written.", "op", &bytes);
        let places = [("inline", snapshot.inline), ("offloaded", snapshot.offloaded)];
        self.counter("inlock_crypt_requests", "", "Requests by the place of their cipher work.", "place", &places);
        self.counter("inlock_cipher_calls", "", "Cipher calls.", "", &[("", snapshot.cipher_calls)]);
        let units = [("", snapshot.cipher_units)];
        self.counter("inlock_cipher_units", "", "Data units encrypted or decrypted.", "", &units);
    }

    fn latencies(&mut self, snapshot: &Snapshot, all: bool) {
        let name = "inlock_io_latency_seconds";
        self.family(name, "histogram", "seconds", "Latency of requests, in total and by phase.");
        for (phase, histogram) in phases(snapshot).into_iter().filter(|(_, histogram)| all || histogram.count() > 0) {
            for bound in BOUNDS {
                let labels = [("phase", phase), ("le", &*seconds(bound))];
                self.sample("inlock_io_latency_seconds_bucket", &labels, &histogram.count_up_to(bound).to_string());
            }
            let count = histogram.count().to_string();
            self.sample("inlock_io_latency_seconds_bucket", &[("phase", phase), ("le", "+Inf")], &count);
            self.sample("inlock_io_latency_seconds_sum", &[("phase", phase)], &seconds(histogram.sum()));
            self.sample("inlock_io_latency_seconds_count", &[("phase", phase)], &count);
        }
    }

    /// Returns the text.
    pub fn finish(self) -> String {
        let mut out: String = self.families.into_iter().map(|family| family.0).collect();
        out.push_str("# EOF\n");
        out
    }

    /// Has the next samples belong to a family.
    pub fn family(&mut self, name: &str, kind: &str, unit: &str, help: &str) {
        if let Some(index) = self.index.get(name) {
            self.current = *index;
            return;
        }
        let mut metadata = format!("# TYPE {name} {kind}\n");
        if !unit.is_empty() {
            let _ = writeln!(metadata, "# UNIT {name} {unit}");
        }
        let _ = writeln!(metadata, "# HELP {name} {help}");
        self.current = self.families.len();
        self.index.insert(name.to_owned(), self.current);
        self.families.push(Family(metadata));
    }

    /// Adds a sample to the family.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: &str) {
        let Some(Family(out)) = self.families.get_mut(self.current) else { return };
        let _ = write!(out, "{name}{{volume=\"{}\"", self.volume);
        for (label, value) in labels {
            let _ = write!(out, ",{label}=\"{}\"", quoted(value));
        }
        let _ = writeln!(out, "}} {value}");
    }

    /// Adds a gauge.
    pub fn gauge(&mut self, name: &str, unit: &str, help: &str, value: &str) {
        self.family(name, "gauge", unit, help);
        self.sample(name, &[], value);
    }

    /// Adds the families of a cipher engine.
    fn engine(&mut self, counters: &EngineCounters) {
        let EngineCounters { keys, accepted, refused, fell_back, failed } = counters;
        let outcomes = [("accepted", *accepted), ("refused", *refused), ("fell_back", *fell_back), ("failed", *failed)];
        self.counter("inlock_engine_requests", "", "Requests for the cipher engine.", "outcome", &outcomes);
        self.gauge("inlock_engine_keys", "", "Keys in the cipher engine.", &keys.to_string());
    }

    /// Adds the families of a dm-integrity volume.
    fn integrity(&mut self, counters: &IntegrityCounters) {
        let mismatches = [("", counters.mismatches)];
        self.counter("inlock_integrity_mismatches", "", "Blocks that did not match their tags.", "", &mismatches);
        let commits = [("", counters.commits)];
        self.counter("inlock_integrity_journal_commits", "", "Commits of the journal.", "", &commits);
        let bytes = [("clients", counters.client_bytes), ("devices", counters.stored_bytes)];
        let help = "Bytes written by clients, and to the devices for them.";
        self.counter("inlock_integrity_written_bytes", "bytes", help, "place", &bytes);
        if let Some(ratio) = counters.write_amplification() {
            let name = "inlock_integrity_write_amplification";
            let help = "Bytes written to the devices for each byte that clients wrote.";
            self.gauge(name, "", help, &format!("{ratio:.4}"));
        }
    }

    /// Adds a family of counters. A family without a label has one counter.
    pub fn counter(&mut self, name: &str, unit: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        self.family(name, "counter", unit, help);
        for (value, count) in values {
            let labels = [(label, *value)];
            let labels = if label.is_empty() { &[][..] } else { &labels[..] };
            self.sample(&format!("{name}_total"), labels, &count.to_string());
        }
    }
}

/// Converts nanoseconds to seconds exactly, as a decimal number.
pub fn seconds(ns: u64) -> String {
    let fraction = format!("{:09}", ns % 1_000_000_000);
    let digits = fraction.trim_end_matches('0');
    format!("{}.{}", ns / 1_000_000_000, if digits.is_empty() { "0" } else { digits })
}

fn quoted(value: &str) -> String {
    let value = Printable::with_layout(value).to_string();
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::info::tests::full_status;

    fn status_of(request: &str) -> Option<String> {
        let answer = answer(request.as_bytes(), || "body".to_owned())?;
        let text = String::from_utf8(answer).unwrap();
        Some(text.split_once("\r\n").unwrap().0.strip_prefix("HTTP/1.1 ").unwrap().to_owned())
    }

    #[test]
    fn request_other_than_get_metrics_is_refused() {
        for (request, status) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "200 OK"),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", "200 OK"),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", "200 OK"),
            ("GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("GET /metrics/../x HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            ("GET /metrics HTTP/2\r\n\r\n", "505 HTTP Version Not Supported"),
            ("GET /metrics\r\n\r\n", "400 Bad Request"),
            ("\r\n\r\n", "400 Bad Request"),
            ("{\"command\":\"status\"}\n\r\n\r\n", "400 Bad Request"),
        ] {
            assert_eq!(status_of(request).as_deref(), Some(status), "{request:?}");
        }
        assert_eq!(status_of("GET /metrics HTTP/1.1\r\nHost"), None);
        assert!(status_of(&"x".repeat(REQUEST_MAX)).unwrap().starts_with("431"));
    }

    #[test]
    fn head_has_length_of_body_without_body() {
        let get = answer(b"GET /metrics HTTP/1.1\r\n\r\n", || "four".to_owned()).unwrap();
        let head = answer(b"HEAD /metrics HTTP/1.1\r\n\r\n", || "four".to_owned()).unwrap();
        assert_eq!(get, [&head[..], b"four"].concat());
        assert!(String::from_utf8(head).unwrap().contains("Content-Length: 4\r\n"));
    }

    #[test]
    fn text_has_the_samples_of_all_that_the_volume_has() {
        let (status, snapshot) = (full_status(), Snapshot::default());
        let text = text([(&status, &snapshot)]);
        for line in [
            "inlock_volume_info{volume=\"data\",type=\"LUKS2\",cipher=\"aes-xts-plain64\",via=\"ublk\",offload=\"none\"} 1",
            "# UNIT inlock_size_bytes bytes",
            "inlock_size_bytes{volume=\"data\"} 4096",
            "inlock_suspended{volume=\"data\"} 0",
            "inlock_io_operations_total{volume=\"data\",op=\"zone_action\"} 0",
            "inlock_store_errors_total{volume=\"data\"} 0",
            "inlock_io_bytes_total{volume=\"data\",op=\"write\"} 0",
            "inlock_cipher_calls_total{volume=\"data\"} 0",
            "inlock_cipher_units_total{volume=\"data\"} 0",
            "inlock_engine_requests_total{volume=\"data\",outcome=\"accepted\"} 2",
            "inlock_engine_keys{volume=\"data\"} 1",
            "inlock_integrity_mismatches_total{volume=\"data\"} 3",
            "inlock_integrity_journal_commits_total{volume=\"data\"} 9",
            "inlock_integrity_written_bytes_total{volume=\"data\",place=\"devices\"} 8192",
            "inlock_integrity_write_amplification{volume=\"data\"} 2.0000",
            "inlock_verity_bad_blocks_total{volume=\"data\",kind=\"corrupted\"} 5",
            "inlock_io_latency_seconds_count{volume=\"data\",phase=\"cipher\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert!(text.ends_with("\n# EOF\n"));
        let mut few = Text::default();
        few.volume(&status, &snapshot, false);
        let few = few.finish();
        assert!(few.contains("# TYPE inlock_io_latency_seconds histogram") && !few.contains("phase="), "{few}");
    }

    #[test]
    fn seconds_are_exact() {
        let shown = [0, 1, 1_000, 1_500_000_000, 10_000_000_000].map(seconds);
        assert_eq!(shown, ["0.0", "0.000000001", "0.000001", "1.5", "10.0"]);
        assert_eq!(quoted("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
