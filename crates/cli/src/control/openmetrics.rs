//! Metrics of a running volume as OpenMetrics text, over just enough HTTP for a scraper.
//!
//! A connection takes one request, GET or HEAD of `/metrics`; all others get their HTTP status. The thread of the
//! control socket ([`super::server`]) serves it with the same limits.

use std::fmt::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use inlock_engine::stats::Snapshot;

use super::engine::EngineCounters;
use super::info::VolumeStatus;
use super::integrity::IntegrityCounters;
use super::metrics::phases;
use crate::error::CliError;
use crate::system::socket;
use crate::values::{Listen, resolve};

/// Maximum length of a request, in bytes.
pub(crate) const REQUEST_MAX: usize = 8192;

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

/// A listening socket for scrapers. Its path is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    pub socket: OwnedFd,
    /// Address as on the command line, with the actual port.
    pub address: String,
    path: Option<PathBuf>,
}

impl Listener {
    /// Listens, on loopback addresses only unless `insecure`.
    pub(crate) fn bind(at: &Listen, insecure: bool) -> anyhow::Result<Self> {
        match at {
            Listen::Unix(path) => Self::bind_unix(&std::path::absolute(path)?),
            Listen::Tcp { host, port } => {
                let address = resolve(host, *port)?;
                check_tcp(address, insecure)?;
                let listener = TcpListener::bind(address).map_err(|error| match error.kind() {
                    std::io::ErrorKind::AddrInUse => CliError::AddressInUse { address: address.to_string() }.into(),
                    _ => anyhow::Error::from(error).context(format!("cannot listen on {address}")),
                })?;
                listener.set_nonblocking(true)?;
                let address = format!("tcp:{}", listener.local_addr()?);
                Ok(Self { socket: listener.into(), address, path: None })
            }
        }
    }

    fn bind_unix(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        if let Ok(found) = std::fs::symlink_metadata(path) {
            let dead = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
            if !found.file_type().is_socket() || !socket::connect(path).is_err_and(dead) {
                return Err(CliError::AddressInUse { address: shown.to_string() }.into());
            }
        }
        let listener = socket::listen(path).with_context(|| format!("cannot listen on {shown}"))?;
        Ok(Self { socket: listener.into(), address: format!("unix:{shown}"), path: Some(path.to_owned()) })
    }
}

/// Refuses an address that is not loopback. Metrics tell when and how much a volume is used, and nothing of its
/// contents: users of this machine may read them.
fn check_tcp(address: SocketAddr, insecure: bool) -> anyhow::Result<()> {
    if address.ip().is_loopback() || insecure {
        return Ok(());
    }
    Err(CliError::refused(
        format!("Address {address} is not loopback, and metrics are unencrypted."),
        "use tcp:localhost:PORT or unix:PATH, or allow it with --insecure",
    ))
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Returns the response to a request; `None`: the request is incomplete. `text` makes the metrics.
pub(crate) fn answer(request: &[u8], text: impl FnOnce() -> String) -> Option<Vec<u8>> {
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

/// Returns the metrics in OpenMetrics 1.0 text format.
pub(crate) fn text(status: &VolumeStatus, snapshot: &Snapshot) -> String {
    let info = &status.info;
    let mut text = Text { out: String::new(), volume: quoted(&info.name) };
    let cipher = info.segments.iter().find_map(|segment| segment.cipher.clone()).unwrap_or_default();
    text.family("inlock_volume", "info", "", "The volume.");
    let labels = [("type", &*info.kind), ("cipher", &cipher), ("via", &info.via), ("offload", &info.offload)];
    text.sample("inlock_volume_info", &labels, "1");
    text.family("inlock_size_bytes", "gauge", "bytes", "Length of the volume.");
    text.sample("inlock_size_bytes", &[], &status.sectors.saturating_mul(512).to_string());
    text.family("inlock_start_time_seconds", "gauge", "seconds", "Time when the volume was opened, since 1970.");
    text.sample("inlock_start_time_seconds", &[], &info.started.to_string());
    text.family("inlock_suspended", "gauge", "", "Whether I/O is suspended.");
    text.sample("inlock_suspended", &[], if status.suspended { "1" } else { "0" });

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
    text.counter("inlock_io_operations", "", "Requests that succeeded.", "op", &operations);
    text.counter("inlock_io_errors", "", "Requests that failed.", "", &[("", snapshot.errors)]);
    let errors = [("", snapshot.store_errors)];
    text.counter(
        "inlock_store_errors",
        "",
        "Requests that failed with an error of the underlying device.",
        "",
        &errors,
    );
    let bytes = [("read", snapshot.bytes_read), ("write", snapshot.bytes_written)];
    text.counter("inlock_io_bytes", "bytes", "Bytes read and written.", "op", &bytes);
    let places = [("inline", snapshot.inline), ("offloaded", snapshot.offloaded)];
    text.counter("inlock_crypt_requests", "", "Requests by the place of their cipher work.", "place", &places);
    text.counter("inlock_cipher_calls", "", "Cipher calls.", "", &[("", snapshot.cipher_calls)]);
    text.counter("inlock_cipher_units", "", "Data units encrypted or decrypted.", "", &[("", snapshot.cipher_units)]);

    if let Some(engine) = &status.engine_counters {
        text.engine(engine);
    }
    if let Some(integrity) = &status.integrity {
        text.integrity(&integrity.counters);
    }
    text.family("inlock_io_latency_seconds", "histogram", "seconds", "Latency of requests, in total and by phase.");
    for (phase, histogram) in phases(snapshot) {
        for bound in BOUNDS {
            let labels = [("phase", phase), ("le", &*seconds(bound))];
            text.sample("inlock_io_latency_seconds_bucket", &labels, &histogram.count_up_to(bound).to_string());
        }
        let count = histogram.count().to_string();
        text.sample("inlock_io_latency_seconds_bucket", &[("phase", phase), ("le", "+Inf")], &count);
        text.sample("inlock_io_latency_seconds_sum", &[("phase", phase)], &seconds(histogram.sum()));
        text.sample("inlock_io_latency_seconds_count", &[("phase", phase)], &count);
    }
    text.out + "# EOF\n"
}

struct Text {
    out: String,
    volume: String,
}

impl Text {
    fn family(&mut self, name: &str, kind: &str, unit: &str, help: &str) {
        let _ = writeln!(self.out, "# TYPE {name} {kind}");
        if !unit.is_empty() {
            let _ = writeln!(self.out, "# UNIT {name} {unit}");
        }
        let _ = writeln!(self.out, "# HELP {name} {help}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: &str) {
        let _ = write!(self.out, "{name}{{volume=\"{}\"", self.volume);
        for (label, value) in labels {
            let _ = write!(self.out, ",{label}=\"{}\"", quoted(value));
        }
        let _ = writeln!(self.out, "}} {value}");
    }

    /// Adds the families of a cipher engine.
    fn engine(&mut self, counters: &EngineCounters) {
        let EngineCounters { keys, accepted, refused, fell_back, failed } = counters;
        let outcomes = [("accepted", *accepted), ("refused", *refused), ("fell_back", *fell_back), ("failed", *failed)];
        self.counter("inlock_engine_requests", "", "Requests for the cipher engine.", "outcome", &outcomes);
        self.family("inlock_engine_keys", "gauge", "", "Keys in the cipher engine.");
        self.sample("inlock_engine_keys", &[], &keys.to_string());
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
            self.family(name, "gauge", "", "Bytes written to the devices for each byte that clients wrote.");
            self.sample(name, &[], &format!("{ratio:.4}"));
        }
    }

    /// Adds a family of counters. A family without a label has one counter.
    fn counter(&mut self, name: &str, unit: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        self.family(name, "counter", unit, help);
        for (value, count) in values {
            let labels = [(label, *value)];
            let labels = if label.is_empty() { &[][..] } else { &labels[..] };
            self.sample(&format!("{name}_total"), labels, &count.to_string());
        }
    }
}

/// Converts nanoseconds to seconds exactly, as a decimal number.
fn seconds(ns: u64) -> String {
    let fraction = format!("{:09}", ns % 1_000_000_000);
    let digits = fraction.trim_end_matches('0');
    format!("{}.{}", ns / 1_000_000_000, if digits.is_empty() { "0" } else { digits })
}

fn quoted(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn seconds_are_exact() {
        let shown = [0, 1, 1_000, 1_500_000_000, 10_000_000_000].map(seconds);
        assert_eq!(shown, ["0.0", "0.000000001", "0.000001", "1.5", "10.0"]);
        assert_eq!(quoted("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
