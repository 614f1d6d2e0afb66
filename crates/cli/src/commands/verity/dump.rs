//! `verity dump`: prints the superblock, in the form of veritysetup.

use std::fmt::Write as _;
use std::path::Path;

use inlock_engine::store::file::IoMode;
use inlock_verity::{Fec, Layout, Superblock};
use serde_json::json;
use uuid::Uuid;

use crate::host::context;
use crate::ui::print::print;
use inlock_open::device::{Device, OpenMode};
use inlock_open::path_text;
use inlock_open::verity::{FecOptions, cannot_use, hex, store};

pub(super) fn run(path: &Path, offset: u64, fec: Option<&FecOptions>, as_json: bool) -> anyhow::Result<()> {
    let device = Device::open(context(), path, OpenMode::Read)?;
    let store = store(&device, IoMode::Sync, true)?;
    let superblock = Superblock::read(&*store, offset).map_err(cannot_use(&device.path))?;
    let layout = superblock.layout().map_err(|error| cannot_use(&device.path)(error.into()))?;
    let tree_offset = Superblock::tree_offset(offset, superblock.parameters.hash_block_len)?;
    let fec = fec.map(|fec| described_fec(fec, &device, &layout, tree_offset)).transpose()?;
    if as_json {
        let parameters = &superblock.parameters;
        let fec = fec.as_ref().map(|(fec, _)| (fec.parameters().roots, fec.parameters().blocks, fec.parity_len()));
        let mut value = json!({
            "device": path_text::text_of(path),
            "uuid": Uuid::from_bytes(superblock.uuid).hyphenated().to_string(),
            "hash_type": parameters.hash_type.number(),
            "data_blocks": parameters.data_blocks,
            "data_block_size": parameters.data_block_len,
            "hash_blocks": layout.tree_blocks(),
            "hash_block_size": parameters.hash_block_len,
            "hash": superblock.hash_name,
            "salt": hex(&parameters.salt),
        });
        if let Some((roots, blocks, len)) = fec {
            value["fec"] = json!({ "roots": roots, "blocks": blocks, "parity_bytes": len });
        }
        return print(format_args!("{value:#}\n"));
    }
    print(description(path, Some(&superblock), &layout, fec.as_ref(), &superblock.hash_name, offset)?)
}

/// Returns the error correction of a hash device, and whether the parity is on it. The parity is not read.
fn described_fec(args: &FecOptions, hash: &Device, layout: &Layout, tree_offset: u64) -> anyhow::Result<(Fec, bool)> {
    let device = Device::open(context(), &args.device, OpenMode::Read)?;
    let is_on_hash = device.identity() == hash.identity();
    let parameters = args.parameters(layout, tree_offset, hash.len, is_on_hash)?;
    let fec = Fec::new(store(&device, IoMode::Sync, true)?, parameters, layout);
    Ok((fec.map_err(|error| cannot_use(&device.path)(error.into()))?, is_on_hash))
}

/// Returns the lines about a device; `superblock`: unless it has none; `fec` with whether the parity is on the hash
/// device.
pub(super) fn description(
    path: &Path,
    superblock: Option<&Superblock>,
    layout: &Layout,
    fec: Option<&(Fec, bool)>,
    hash_name: &str,
    offset: u64,
) -> anyhow::Result<String> {
    let parameters = layout.parameters();
    let uuid = superblock.map(|superblock| Uuid::from_bytes(superblock.uuid).hyphenated().to_string());
    let mut text = String::new();
    writeln!(text, "VERITY header information for {}", path_text::shown(path))?;
    writeln!(text, "UUID:            \t{}", uuid.unwrap_or_default())?;
    writeln!(text, "Hash type:       \t{}", parameters.hash_type.number())?;
    writeln!(text, "Data blocks:     \t{}", parameters.data_blocks)?;
    writeln!(text, "Data block size: \t{}", parameters.data_block_len)?;
    writeln!(text, "Hash blocks:     \t{}", layout.tree_blocks())?;
    writeln!(text, "Hash block size: \t{}", parameters.hash_block_len)?;
    writeln!(text, "Hash algorithm:  \t{hash_name}")?;
    if let Some((fec, _)) = fec {
        writeln!(text, "FEC RS roots:   \t{}", fec.parameters().roots)?;
        writeln!(text, "FEC blocks:     \t{}", fec.parity_len() / u64::from(parameters.data_block_len))?;
    }
    let salt = if parameters.salt.is_empty() { "-".to_owned() } else { hex(&parameters.salt) };
    writeln!(text, "Salt:            \t{salt}")?;
    if offset == 0 {
        let start = superblock.map_or(Ok(0), |_| Superblock::tree_offset(offset, parameters.hash_block_len))?;
        // As veritysetup adds them up, without what may be between.
        let parity = fec.filter(|(_, is_on_hash)| *is_on_hash).map_or(0, |(fec, _)| fec.parity_len());
        writeln!(text, "Hash device size: \t{} [bytes]", start + layout.tree_len() + parity)?;
    }
    if let Some((fec, _)) = fec.filter(|(fec, _)| fec.parameters().offset == 0) {
        writeln!(text, "FEC device size: \t{} [bytes]", fec.parity_len())?;
    }
    Ok(text)
}
