//! One fio run over its nbd engine, and the one number taken from it.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// A load: how it is called in the tables, and what fio is told.
pub(crate) struct Load {
    pub name: &'static str,
    pub rw: &'static str,
    pub block: &'static str,
    pub depth: u32,
    /// Whether the table shows operations a second (small blocks) or bytes a second.
    pub counts_operations: bool,
}

/// The three loads of the speed bar.
pub(crate) const LOADS: [Load; 3] = [
    Load { name: "4 KiB random read, depth 16", rw: "randread", block: "4k", depth: 16, counts_operations: true },
    Load { name: "1 MiB read, depth 4", rw: "read", block: "1m", depth: 4, counts_operations: false },
    Load { name: "1 MiB write, depth 4", rw: "write", block: "1m", depth: 4, counts_operations: false },
];

/// Bytes a second of a load over one connection to the server on `socket`.
pub(crate) fn bytes_a_second(socket: &Path, load: &Load, size_mib: u64, seconds: u32) -> Result<f64> {
    let output = Command::new("fio")
        .args(arguments(socket, load, size_mib, seconds))
        .stdin(Stdio::null())
        .output()
        .context("cannot run fio")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("fio failed on {}: {}{text}", socket.display(), String::from_utf8_lossy(&output.stderr));
    }
    let json = text.find('{').map_or("", |start| &text[start..]);
    let value: Value = serde_json::from_str(json).context("fio's report is not JSON")?;
    let job = &value["jobs"][0];
    let errors = job["error"].as_i64().context("fio's report has no error field")?;
    if errors != 0 {
        bail!("fio reports error {errors} on {}", socket.display());
    }
    let side = if load.rw.contains("write") { "write" } else { "read" };
    job[side]["bw_bytes"].as_f64().context("fio's report has no bandwidth")
}

/// What fio is called with; the record repeats it.
pub(crate) fn arguments(socket: &Path, load: &Load, size_mib: u64, seconds: u32) -> Vec<String> {
    vec![
        format!("--name={}", load.rw),
        "--ioengine=nbd".into(),
        format!("--uri=nbd+unix:///?socket={}", socket.display()),
        format!("--rw={}", load.rw),
        format!("--bs={}", load.block),
        format!("--iodepth={}", load.depth),
        format!("--size={size_mib}m"),
        "--time_based".into(),
        format!("--runtime={seconds}"),
        "--randrepeat=1".into(),
        "--output-format=json".into(),
    ]
}
