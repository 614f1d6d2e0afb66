//! `integrity dump`: prints the superblock, in the form of integritysetup 2.8.

use std::fmt::Write as _;
use std::path::Path;

use inlock_engine::store::file::IoMode;
use inlock_integrity::{Flags, Superblock};
use serde_json::json;

use crate::host::context;
use crate::ui::print::print;
use inlock_open::device::{Device, OpenMode};
use inlock_open::integrity::{cannot_use, stores};
use inlock_open::path_text;

/// Names of the flags, in the order of integritysetup.
const FLAGS: [(Flags, &str); 6] = [
    (Flags::JOURNAL_MAC, "have_journal_mac"),
    (Flags::RECALCULATING, "recalculating"),
    (Flags::DIRTY_BITMAP, "dirty_bitmap"),
    (Flags::FIXED_PADDING, "fix_padding"),
    (Flags::FIXED_HMAC, "fix_hmac"),
    (Flags::INLINE, "inline"),
];

pub(super) fn run(path: &Path, as_json: bool) -> anyhow::Result<()> {
    let device = Device::open(context(), path, OpenMode::Read)?;
    let stores = stores(&device, None, IoMode::Sync, true)?;
    let (superblock, _) = Superblock::read(&stores).map_err(cannot_use(path))?;
    let flags: Vec<_> = FLAGS.iter().filter(|(flag, _)| superblock.flags.has(*flag)).map(|(_, name)| *name).collect();
    let salt: String = superblock.salt.iter().map(|byte| format!("{byte:02x}")).collect();
    let has_salt = superblock.hash_salt().is_some();
    let recalculating = superblock.flags.has(Flags::RECALCULATING);
    if as_json {
        let value = json!({
            "device": path_text::text_of(path),
            "superblock_version": superblock.version,
            "log2_interleave_sectors": superblock.log2_interleave_sectors,
            "integrity_tag_size": superblock.tag_size,
            "journal_sections": superblock.journal_sections,
            "provided_data_sectors": superblock.provided_data_sectors,
            "sector_size": superblock.block_len(),
            "recalc_sector": recalculating.then_some(superblock.recalc_sector),
            "log2_blocks_per_bitmap": superblock.log2_blocks_per_bitmap_bit,
            "flags": flags,
            "salt": has_salt.then_some(salt),
        });
        return print(format_args!("{value:#}\n"));
    }
    let mut text = String::new();
    let data_sectors = superblock.provided_data_sectors;
    writeln!(text, "INTEGRITY header information for {}.", path_text::shown(path))?;
    writeln!(text, "version: {}", superblock.version)?;
    writeln!(text, "tag size: {} [bytes]", superblock.tag_size)?;
    writeln!(text, "sector size: {} [bytes]", superblock.block_len())?;
    writeln!(text, "data size: {data_sectors} [512-byte units] ({} [bytes])", u128::from(data_sectors) * 512)?;
    if recalculating {
        writeln!(text, "recalculate sector: {}", superblock.recalc_sector)?;
    }
    writeln!(text, "journal sections: {}", superblock.journal_sections)?;
    writeln!(text, "log2 interleave sectors: {}", superblock.log2_interleave_sectors)?;
    writeln!(text, "log2 blocks per bitmap: {}", superblock.log2_blocks_per_bitmap_bit)?;
    writeln!(text, "flags: {}", flags.iter().map(|flag| format!("{flag} ")).collect::<String>())?;
    if has_salt {
        writeln!(text, "salt: {salt}")?;
    }
    print(text)
}
