//! `bench cipher`: every cipher kernel against the limit of its AES instructions.

use inlock_cipher::CipherSpec;
use serde_json::{Value, json};

use crate::environment;
use crate::kernels::{self, Plan, Row};
use crate::options::Print;

pub(crate) fn run(as_json: bool, print: &mut Print<'_>) -> anyhow::Result<()> {
    let plan = Plan::full(CipherSpec::AES_XTS_PLAIN64)?;
    if as_json {
        let rows: Vec<Value> = kernels::run(&plan, |_| {})?.iter().map(object).collect();
        return print(&format_args!("{:#}\n", json!({ "processor": environment::cpu_model(), "results": rows })));
    }
    print(&format_args!("# {}\n", environment::cpu_model()))?;
    print(&"# kernel     cipher            key  direction    unit   request    GB/s  of limit\n")?;
    let mut printed = Ok(());
    kernels::run(&plan, |row| {
        if printed.is_ok() {
            printed = print(&line(row));
        }
    })?;
    printed
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
