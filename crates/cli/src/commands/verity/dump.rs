//! `verity dump`: prints the superblock, in the form of veritysetup.

use std::fmt::Write as _;
use std::path::Path;

use inlock_engine::store::file::IoMode;
use inlock_verity::{Layout, Superblock};
use serde_json::json;
use uuid::Uuid;

use crate::ui::print::print;
use crate::volume::device::{Device, OpenMode};
use crate::volume::verity::{cannot_use, hex, store};

pub(super) fn run(path: &Path, offset: u64, as_json: bool) -> anyhow::Result<()> {
    let device = Device::open(path, OpenMode::Read)?;
    let store = store(&device, IoMode::Sync, true)?;
    let superblock = Superblock::read(&*store, offset).map_err(cannot_use(&device.path))?;
    let layout = superblock.layout().map_err(|error| cannot_use(&device.path)(error.into()))?;
    if as_json {
        let parameters = &superblock.parameters;
        let value = json!({
            "device": path,
            "uuid": Uuid::from_bytes(superblock.uuid).hyphenated().to_string(),
            "hash_type": parameters.hash_type.number(),
            "data_blocks": parameters.data_blocks,
            "data_block_size": parameters.data_block_len,
            "hash_blocks": layout.tree_blocks(),
            "hash_block_size": parameters.hash_block_len,
            "hash": superblock.hash_name,
            "salt": hex(&parameters.salt),
        });
        return print(format_args!("{value:#}\n"));
    }
    print(description(path, Some(&superblock), &layout, &superblock.hash_name, offset)?)
}

/// Returns the lines about a device; `superblock`: unless it has none.
pub(super) fn description(
    path: &Path,
    superblock: Option<&Superblock>,
    layout: &Layout,
    hash_name: &str,
    offset: u64,
) -> anyhow::Result<String> {
    let parameters = layout.parameters();
    let uuid = superblock.map(|superblock| Uuid::from_bytes(superblock.uuid).hyphenated().to_string());
    let mut text = String::new();
    writeln!(text, "VERITY header information for {}", path.display())?;
    writeln!(text, "UUID:            \t{}", uuid.unwrap_or_default())?;
    writeln!(text, "Hash type:       \t{}", parameters.hash_type.number())?;
    writeln!(text, "Data blocks:     \t{}", parameters.data_blocks)?;
    writeln!(text, "Data block size: \t{}", parameters.data_block_len)?;
    writeln!(text, "Hash blocks:     \t{}", layout.tree_blocks())?;
    writeln!(text, "Hash block size: \t{}", parameters.hash_block_len)?;
    writeln!(text, "Hash algorithm:  \t{hash_name}")?;
    let salt = if parameters.salt.is_empty() { "-".to_owned() } else { hex(&parameters.salt) };
    writeln!(text, "Salt:            \t{salt}")?;
    if superblock.is_some() && offset == 0 {
        let start = Superblock::tree_offset(offset, parameters.hash_block_len)?;
        writeln!(text, "Hash device size: \t{} [bytes]", start + layout.tree_len())?;
    } else if offset == 0 {
        writeln!(text, "Hash device size: \t{} [bytes]", layout.tree_len())?;
    }
    Ok(text)
}
