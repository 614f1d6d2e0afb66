//! Runs fio with its nbd engine and reads its report.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::wire::Load;

/// Results of one run of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub bytes: f64,
    pub bytes_per_second: f64,
    /// Completion latency in nanoseconds.
    pub median_latency: f64,
    /// Share of the time that the client used its CPU, if known.
    pub busy: Option<f64>,
}

/// Whether fio is installed with its nbd engine.
pub(crate) fn is_installed() -> bool {
    let found = Command::new("fio").arg("--enghelp=nbd").stdin(Stdio::null()).stderr(Stdio::null()).output();
    found.is_ok_and(|output| output.status.success() && String::from_utf8_lossy(&output.stdout).contains("uri"))
}

/// Runs a load over one connection to the server on `socket`.
pub(crate) fn run(socket: &Path, load: Load, size: u64) -> anyhow::Result<Sample> {
    let output = Command::new("fio")
        .args(arguments(socket, load, size))
        .stdin(Stdio::null())
        .output()
        .context("cannot run fio")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("fio failed on {}: {}{text}", socket.display(), String::from_utf8_lossy(&output.stderr));
    }
    parse(&text, load.write).with_context(|| format!("on {}", socket.display()))
}

fn parse(text: &str, write: bool) -> anyhow::Result<Sample> {
    let json = text.find('{').map_or("", |start| &text[start..]);
    let value: Value = serde_json::from_str(json).context("fio's report is not JSON")?;
    let job = &value["jobs"][0];
    match job["error"].as_i64() {
        Some(0) => {}
        Some(error) => bail!("fio reports error {error}"),
        None => bail!("fio's report has no error field"),
    }
    let side = &job[if write { "write" } else { "read" }];
    Ok(Sample {
        bytes: side["io_bytes"].as_f64().context("fio's report has no byte count")?,
        bytes_per_second: side["bw_bytes"].as_f64().context("fio's report has no bandwidth")?,
        median_latency: side["lat_ns"]["percentile"]["50.000000"]
            .as_f64()
            .or_else(|| side["clat_ns"]["percentile"]["50.000000"].as_f64())
            .context("fio's report has no median")?,
        busy: job["usr_cpu"].as_f64().zip(job["sys_cpu"].as_f64()).map(|(user, system)| (user + system) / 100.0),
    })
}

/// Arguments of fio; the record repeats them.
pub(crate) fn arguments(socket: &Path, load: Load, size: u64) -> Vec<String> {
    let rw = match (load.random, load.write) {
        (true, false) => "randread",
        (true, true) => "randwrite",
        (false, false) => "read",
        (false, true) => "write",
    };
    vec![
        format!("--name={rw}"),
        "--ioengine=nbd".into(),
        format!("--uri=nbd+unix:///?socket={}", socket.display()),
        format!("--rw={rw}"),
        format!("--bs={}", load.block),
        format!("--iodepth={}", load.depth),
        format!("--size={size}"),
        "--time_based".into(),
        format!("--runtime={}ms", load.time.as_millis()),
        "--randrepeat=1".into(),
        "--lat_percentiles=1".into(),
        "--output-format=json".into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_of_a_report_with_an_error_fails() {
        let report = |error: i64| {
            format!(
                "fio: a warning\n{{\"jobs\": [{{\"error\": {error}, \"usr_cpu\": 30.0, \"sys_cpu\": 62.5, \
                 \"read\": {{\"io_bytes\": 8192, \"bw_bytes\": 4096, \
                 \"lat_ns\": {{\"percentile\": {{\"50.000000\": 77}}}}}}}}]}}"
            )
        };
        let found = parse(&report(0), false).unwrap();
        assert_eq!((found.bytes, found.bytes_per_second, found.median_latency), (8192.0, 4096.0, 77.0));
        assert_eq!(found.busy, Some(0.925));
        assert!(parse(&report(5), false).is_err());
        assert!(parse(&report(0), true).is_err(), "the other side has no figures");
        assert!(parse("nothing", false).is_err());
    }
}
