//! `bench cipher`: every cipher kernel against the limit of its AES instructions, and every kernel of a hash against
//! one stream.

use inlock_cipher::CipherSpec;
use serde_json::{Value, json};

use crate::environment;
use crate::hashes::{self, HashRow};
use crate::kernels::{self, Plan, Row};
use crate::options::Print;

/// Slices of a row of hashes.
const HASH_SLICES: usize = 21;

pub(crate) fn run(as_json: bool, print: &mut Print<'_>) -> anyhow::Result<()> {
    let plan = Plan::full(CipherSpec::AES_XTS_PLAIN64)?;
    if as_json {
        let rows: Vec<Value> = kernels::run(&plan, |_| {})?.iter().map(object).collect();
        let hashes: Vec<Value> = hashes::run(HASH_SLICES, |_| {}).iter().map(hash_object).collect();
        let value = json!({ "processor": environment::cpu_model(), "results": rows, "hashes": hashes });
        return print(&format_args!("{value:#}\n"));
    }
    print(&format_args!("# {}\n", environment::cpu_model()))?;
    print(&"# kernel     cipher            key  direction    unit   request    GB/s  of limit\n")?;
    let mut printed = Ok(());
    kernels::run(&plan, |row| {
        if printed.is_ok() {
            printed = print(&line(row));
        }
    })?;
    printed?;
    print(&"# kernel     hash          message  messages    GB/s  to one stream\n")?;
    let mut printed = Ok(());
    hashes::run(HASH_SLICES, |row| {
        if printed.is_ok() {
            printed = print(&hash_line(row));
        }
    });
    printed
}

fn hash_line(row: &HashRow) -> String {
    format!(
        "{:<12} {:<12} {:>8} {:>9}  {:>6.2}  {:>12.2}x\n",
        row.kernel,
        row.hash.name(),
        row.message_size,
        row.messages,
        row.bytes_per_second / 1e9,
        row.ratio,
    )
}

fn hash_object(row: &HashRow) -> Value {
    json!({
        "kernel": row.kernel,
        "hash": row.hash.name(),
        "message_size": row.message_size,
        "messages": row.messages,
        "bytes_per_second": row.bytes_per_second,
        "ratio_to_one_stream": row.ratio,
    })
}

fn line(row: &Row) -> String {
    format!(
        "{:<12} {:<16} {:>4}  {:<9} {:>7} {:>9}  {:>6.2}  {:>7.1}%\n",
        row.kernel,
        row.cipher.to_string(),
        row.key_bits,
        row.direction.name(),
        row.unit_size,
        row.request_size,
        row.bytes_per_second / 1e9,
        row.share_of_limit * 100.0,
    )
}

fn object(row: &Row) -> Value {
    json!({
        "kernel": row.kernel,
        "cipher": row.cipher.to_string(),
        "key_bits": row.key_bits,
        "direction": row.direction.name(),
        "unit_size": row.unit_size,
        "request_size": row.request_size,
        "bytes_per_second": row.bytes_per_second,
        "limit_bytes_per_second": row.limit_bytes_per_second,
        "share_of_limit": row.share_of_limit,
    })
}
