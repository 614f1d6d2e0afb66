//! `table`: prints the device-mapper table of a volume like `dmsetup table`, with a zero key unless `--showkeys` is
//! given.

use inlock_cipher::IvMode;
use inlock_volume::VolumeKey;
use inlock_volume::table::{
    AnyTable, IntegrityLine, IntegrityTable, SealedLine, ShowKeys, TableLine, Target, VerityTable,
};
use serde_json::{Value, json};
use std::fmt::Write;
use zeroize::{Zeroize, Zeroizing};

use crate::args::action::{Action, KEY, PLAIN, POLICY, Prepared, REMOTE, SOURCE, THREAD_FLAGS, TOKENS, UNLOCK};
use crate::args::source::source_args;
use crate::error::CliError;
use crate::host::context;
use crate::ui::print::{print, warn};
use inlock_open::open;
use inlock_open::source::{OpenOptions, VolumeType};
use inlock_open::verity_table;

pub(crate) const ACTION: Action = Action {
    name: "table",
    aliases: &[],
    arguments: &[SOURCE],
    options: &[
        KEY,
        UNLOCK,
        REMOTE,
        TOKENS,
        PLAIN,
        POLICY,
        THREAD_FLAGS,
        &["table", "allow-discards", "integrity-no-journal", "showkeys", "json"],
    ],
    about: "print the device-mapper table of a volume",
    prepare: |options, mut arguments| {
        let source = source_args(&options, arguments.path()?)?;
        Ok(Prepared::new(move || run(&source, options.showkeys, options.json)))
    },
};

fn run(source: &OpenOptions, showkeys: bool, json: bool) -> anyhow::Result<()> {
    if let VolumeType::Plain(plain) = &source.volume_type
        && plain.cipher.iv == IvMode::SpdkUpper
    {
        // With any other IV mode, reads and writes of the volume would be noise.
        return Err(CliError::refused(
            "A table cannot describe a volume with SPDK's tweak: the Linux kernel has no IV mode for it.",
            "use `inlock open --spdk-tweak` to attach the volume",
        ));
    }
    let (table, files) = match &source.volume_type {
        // As given: its devices may be needed to open it.
        VolumeType::Table(table) if table.is_stack() => (table.take()?, Vec::new()),
        _ => {
            let unlocked = open(context(), source, false, None)?;
            let files = unlocked.files();
            let name = unlocked.info.uuid.as_ref().map_or_else(|| "volume".to_owned(), |uuid| format!("luks-{uuid}"));
            (unlocked.table(&name)?, files)
        }
    };
    for file in files {
        warn(format_args!("{file} is a file; the Linux kernel needs a block device, such as a loop device"));
    }
    if let AnyTable::Lines(table) = &table {
        for (number, line) in table.lines().iter().enumerate() {
            if let Some(why) = refusal(line) {
                warn(format_args!("line {}: the Linux kernel would refuse it: {why}", number + 1));
            }
        }
    }
    print_table(&table, if showkeys { ShowKeys::Yes } else { ShowKeys::No }, json)
}

/// Prints a table, as lines or as JSON.
pub(super) fn print_table(table: &AnyTable, keys: ShowKeys, json: bool) -> anyhow::Result<()> {
    if !json {
        return print(&**table.to_text(keys));
    }
    let (lines, sectors): (Vec<Value>, u64) = match table {
        AnyTable::Lines(table) => (table.lines().iter().map(|line| describe(line, keys)).collect(), table.sectors()),
        AnyTable::Integrity(table) => (describe_integrity(table, keys), table.sectors),
        AnyTable::Verity(table) => describe_verity(table, keys),
    };
    let mut shown = json!({ "sectors": sectors });
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
            let key = shown_key(&crypt.key, keys);
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

/// Describes the two devices of a volume with integrity protection. Keys of hashes are left out.
fn describe_integrity(table: &IntegrityTable, keys: ShowKeys) -> Vec<Value> {
    let IntegrityTable { integrity, sealed, .. } = table;
    let IntegrityLine { name, device, offset, tag_size, mode, options, .. } = integrity;
    let algorithm =
        |named: &Option<_>| named.as_ref().map(|named: &inlock_volume::table::KeyedName| named.name.clone());
    let below = json!({
        "name": name, "start": 0, "sectors": table.sectors, "target": "integrity", "device": device, "offset": offset,
        "tag_size": tag_size, "mode": mode.letter().to_string(), "meta_device": options.meta_device,
        "block_size": options.block_size.unwrap_or(512), "internal_hash": algorithm(&options.internal_hash),
        "journal_mac": algorithm(&options.journal_mac), "journal_crypt": algorithm(&options.journal_crypt),
        "allow_discards": options.allow_discards, "recalculate": options.recalculate,
    });
    let above = sealed.as_ref().map(|SealedLine { name: own, segment, key, options, .. }| {
        let mut line = json!({
            "name": own, "start": 0, "sectors": table.sectors, "target": "crypt", "cipher": segment.spec.to_string(),
            "key": null, "key_bits": key.len() * 8, "iv_offset": segment.iv_offset.0,
            "device": format!("/dev/mapper/{}", name.as_deref().unwrap_or_default()), "offset": 0,
            "sector_size": segment.unit.bytes(), "integrity": segment.spec.metadata_len(),
            "integrity_key_size": segment.spec.mac_key_len(), "flags": options.names(),
        });
        line["key"] = shown_key(key, keys);
        line
    });
    std::iter::once(below).chain(above).collect()
}

/// Describes the devices of a stack with a hash tree, and returns the length of the topmost.
fn describe_verity(table: &VerityTable, keys: ShowKeys) -> (Vec<Value>, u64) {
    let mut lines = Vec::new();
    for device in table.below.iter().chain(&table.above) {
        if table.above.as_ref().is_some_and(|above| std::ptr::eq(above, device)) {
            lines.push(verity_table::describe(table));
        }
        for line in device.table.lines() {
            let mut described = describe(line, keys);
            described["name"] = json!(device.name);
            lines.push(described);
        }
    }
    match &table.above {
        Some(above) => (lines, above.table.sectors()),
        None => {
            lines.push(verity_table::describe(table));
            (lines, table.sectors)
        }
    }
}

fn shown_key(key: &VolumeKey, keys: ShowKeys) -> Value {
    match keys {
        ShowKeys::Yes => json!(*hex(key)),
        ShowKeys::No => Value::Null,
    }
}

fn hex(key: &VolumeKey) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(2 * key.len()));
    for byte in key.as_bytes() {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
