//! `table`: prints what dm-crypt would get for a volume, as `dmsetup table` would: with zeroes for the key unless it is asked for.

use inlock_cipher::IvMode;
use inlock_volume::table::{CryptLine, ShowKeys, TableLine, Target};
use serde_json::{Value, json};
use std::fmt::Write;
use zeroize::Zeroizing;

use crate::args::{Kind, SourceArgs};
use crate::exit::{self, Problem, say};
use crate::source::{self, Keys};

pub(crate) fn run(source: &SourceArgs, showkeys: bool, json: bool) -> anyhow::Result<()> {
    if let Kind::Plain(plain) = &source.kind
        && plain.cipher.iv == IvMode::SpdkUpper
    {
        // Any IV mode that could be printed instead would read the volume as noise, and write noise to it.
        return Err(Problem::refused(
            "No table can describe a volume with SPDK's tweak.",
            "the Linux kernel has no IV mode for it; `inlock open --spdk-tweak` makes the volume a device",
        ));
    }
    let opened = source::open(source, false, Keys::Asked { stdin_taken: false })?;
    let files = opened.files();
    let table = opened.table();
    for file in files {
        say(&format!(
            "inlock: warning: {file} is a file; the Linux kernel needs a block device, such as a loop device"
        ));
    }
    for (number, line) in table.lines().iter().enumerate() {
        if let Some(why) = refusal(line) {
            say(&format!("inlock: warning: line {}: the Linux kernel would refuse it: {why}", number + 1));
        }
    }
    let keys = if showkeys { ShowKeys::Yes } else { ShowKeys::No };
    if !json {
        return exit::print(&**table.to_text(keys));
    }
    let lines: Vec<Value> = table.lines().iter().map(|line| describe(line, keys)).collect();
    let text = Zeroizing::new(format!("{:#}\n", json!({ "sectors": table.sectors(), "lines": lines })));
    exit::print(&**text)
}

fn refusal(line: &TableLine) -> Option<String> {
    match &line.target {
        Target::Crypt(crypt) => crypt.kernel_refuses().map(|why| why.to_string()),
        _ => None,
    }
}

fn describe(line: &TableLine, keys: ShowKeys) -> Value {
    let (start, sectors) = (line.start, line.sectors);
    match &line.target {
        Target::Crypt(crypt) => {
            let key = match keys {
                ShowKeys::Yes => json!(*hex(crypt)),
                ShowKeys::No => Value::Null,
            };
            json!({
                "start": start, "sectors": sectors, "target": "crypt",
                "cipher": crypt.cipher.to_string(), "key": key, "key_bits": crypt.key.len() * 8,
                "iv_offset": crypt.iv_offset.0, "device": crypt.device, "offset": crypt.offset.0,
                "sector_size": crypt.unit.bytes(), "iv_large_sectors": crypt.large_iv,
                "flags": crypt.options.names(), "kernel_refuses": refusal(line),
            })
        }
        Target::Linear { device, offset } => {
            json!({ "start": start, "sectors": sectors, "target": "linear", "device": device, "offset": offset })
        }
        Target::Zero => json!({ "start": start, "sectors": sectors, "target": "zero" }),
        Target::Error => json!({ "start": start, "sectors": sectors, "target": "error" }),
    }
}

fn hex(crypt: &CryptLine) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(2 * crypt.key.len()));
    for byte in crypt.key.as_bytes() {
        // A string takes whatever it is given.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
