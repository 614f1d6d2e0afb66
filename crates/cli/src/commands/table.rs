//! `table`: prints the device-mapper table of a volume like `dmsetup table`, with a zero key unless `--showkeys` is
//! given.

use inlock_cipher::IvMode;
use inlock_volume::table::{CryptLine, ShowKeys, TableLine, Target};
use serde_json::{Value, json};
use std::fmt::Write;
use zeroize::{Zeroize, Zeroizing};

use crate::args::action::{Action, KEY, PLAIN, POLICY, Prepared, SOURCE, THREAD_FLAGS, TOKENS, UNLOCK};
use crate::args::source::source_args;
use crate::error::CliError;
use crate::ui::print::{print, warn};
use crate::volume::open::{KeySource, open};
use crate::volume::source::{SourceArgs, VolumeType};

pub(crate) const ACTION: Action = Action {
    name: "table",
    aliases: &[],
    arguments: &[SOURCE],
    options: &[KEY, UNLOCK, TOKENS, PLAIN, POLICY, THREAD_FLAGS, &["table", "allow-discards", "showkeys", "json"]],
    about: "print the device-mapper table of a volume",
    prepare: |options, mut arguments| {
        let source = source_args(&options, arguments.path()?)?;
        Ok(Prepared::new(move || run(&source, options.showkeys, options.json)))
    },
};

fn run(source: &SourceArgs, showkeys: bool, json: bool) -> anyhow::Result<()> {
    if let VolumeType::Plain(plain) = &source.volume_type
        && plain.cipher.iv == IvMode::SpdkUpper
    {
        // With any other IV mode, reads and writes of the volume would be noise.
        return Err(CliError::refused(
            "A table cannot describe a volume with SPDK's tweak: the Linux kernel has no IV mode for it.",
            "use `inlock open --spdk-tweak` to attach the volume",
        ));
    }
    let unlocked = open(source, false, KeySource::User { stdin_taken: false })?;
    let files = unlocked.files();
    let table = unlocked.table()?;
    for file in files {
        warn(format_args!("{file} is a file; the Linux kernel needs a block device, such as a loop device"));
    }
    for (number, line) in table.lines().iter().enumerate() {
        if let Some(why) = refusal(line) {
            warn(format_args!("line {}: the Linux kernel would refuse it: {why}", number + 1));
        }
    }
    let keys = if showkeys { ShowKeys::Yes } else { ShowKeys::No };
    if !json {
        return print(&**table.to_text(keys));
    }
    let lines: Vec<Value> = table.lines().iter().map(|line| describe(line, keys)).collect();
    let mut shown = json!({ "sectors": table.sectors() });
    // Assigned, not named in `json!`, which would copy the keys.
    shown["lines"] = Value::Array(lines);
    // Of its full length from the start: a string that grows leaves copies of the keys behind.
    let mut len = Len(0);
    let _ = write!(len, "{shown:#}");
    let mut text = Zeroizing::new(String::with_capacity(len.0 + 1));
    let _ = writeln!(text, "{shown:#}");
    shown["lines"].as_array_mut().into_iter().flatten().for_each(wipe_key);
    print(&**text)
}

/// Counts the bytes of a text.
struct Len(usize);

impl Write for Len {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

fn wipe_key(line: &mut Value) {
    if let Some(Value::String(key)) = line.get_mut("key") {
        key.zeroize();
    }
}

fn refusal(line: &TableLine) -> Option<String> {
    match &line.target {
        Target::Crypt(crypt) => crypt.kernel_refuses().map(|why| why.to_string()),
        _ => None,
    }
}

fn describe(table_line: &TableLine, keys: ShowKeys) -> Value {
    let (start, sectors) = (table_line.start, table_line.sectors);
    match &table_line.target {
        Target::Crypt(crypt) => {
            let key = match keys {
                ShowKeys::Yes => json!(*hex(crypt)),
                ShowKeys::No => Value::Null,
            };
            let mut line = json!({
                "start": start, "sectors": sectors, "target": "crypt",
                "cipher": crypt.cipher_name, "key": null, "key_bits": crypt.key.len() * 8,
                "iv_offset": crypt.iv_offset.0, "device": crypt.device, "offset": crypt.offset.0,
                "sector_size": crypt.unit.bytes(), "iv_large_sectors": crypt.large_iv,
                "flags": crypt.options.names(), "kernel_refuses": refusal(table_line),
            });
            line["key"] = key;
            line
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
        let _ = write!(text, "{byte:02x}");
    }
    text
}
