//! A LUKS header without integrity protection before the superblock of a dm-integrity volume.
//!
//! The header has no signature, and one without `integrity` still opens with the right passphrase: everything read is
//! noise, and everything written lacks its tags. This finds a header that alone was changed; an attacker can clear the
//! superblock, too, which only a policy with the cipher detects.

use crate::error::{Error, ErrorKind, Result, ResultExt as _};
use std::path::Path;

use inlock_engine::BackingStore;
use inlock_engine::store::file::IoMode;
use inlock_engine::store::{read_all, write_all};
use inlock_integrity::{SUPERBLOCK_LEN, Superblock};
use inlock_volume::{HeaderPolicy, Volume};

use super::device::Device;

/// A segment without integrity protection whose start is not data that can be read.
#[derive(Clone, Copy)]
pub enum Start {
    /// A superblock of dm-integrity is at this byte.
    Superblock(u64),
    /// The superblock may be at this byte, which cannot be read.
    ///
    /// Such a sector hides a superblock, but who can make a sector unreadable can clear it, too: refusing it would
    /// lose all data behind a bad sector, and detect no attacker.
    Unreadable(u64),
}

/// Refuses a volume without integrity protection one of whose segments starts with a superblock of dm-integrity, unless
/// the policy allows it. Called before a passphrase is asked for.
pub fn check(volume: &Volume, data: &Device, policy: &HeaderPolicy) -> Result<()> {
    if policy.allow_integrity_superblock {
        return Ok(());
    }
    match found(volume, data)? {
        None => Ok(()),
        Some(Start::Superblock(offset)) => Err(refused(&data.path, offset)),
        Some(Start::Unreadable(offset)) => {
            data.context().warn(format_args!("{}: {}", data.path.display(), unreadable(offset)));
            Ok(())
        }
    }
}

/// Says that the start of a segment cannot be read.
pub fn unreadable(offset: u64) -> String {
    format!("the start of the data, at byte {offset}, cannot be read")
}

/// Returns a segment without integrity protection that starts with a superblock of dm-integrity; if none does, one
/// whose start cannot be read.
pub fn found(volume: &Volume, data: &Device) -> Result<Option<Start>> {
    // What cannot be used is refused by others, who say why.
    let (Ok(None), Ok(segments)) = (volume.authenticated(), volume.segments()) else { return Ok(None) };
    let store = data.store(IoMode::Sync, true, false);
    let store = store.with_context(|| format!("cannot use {}", data.path.display()))?;
    let mut bad = None;
    for offset in segments.iter().filter_map(|segment| segment.data_offset.to_bytes()) {
        match is_superblock(&*store, offset) {
            Ok(true) => return Ok(Some(Start::Superblock(offset))),
            Ok(false) => {}
            Err(_) => bad = bad.or(Some(Start::Unreadable(offset))),
        }
    }
    Ok(bad)
}

/// Clears a superblock of dm-integrity at the start of the data of a new volume, also one that cannot be read.
pub fn clear(data: &Device, offset: u64) -> Result<()> {
    let clear = || -> std::io::Result<()> {
        let store = data.store(IoMode::Sync, false, false)?;
        if is_superblock(&*store, offset).unwrap_or(true) {
            // A short volume may end within it.
            let len = store.geometry().len.saturating_sub(offset).min(SUPERBLOCK_LEN as u64);
            write_all(&*store, &[0; SUPERBLOCK_LEN][..len as usize], offset).and_then(|()| store.sync())?;
        }
        Ok(())
    };
    clear().with_context(|| format!("cannot clear the superblock of dm-integrity on {}", data.path.display()))
}

fn is_superblock(store: &dyn BackingStore, offset: u64) -> std::io::Result<bool> {
    let mut start = [0; 512];
    if offset.checked_add(start.len() as u64).is_none_or(|end| end > store.geometry().len) {
        return Ok(false);
    }
    read_all(store, &mut start, offset)?;
    Ok(Superblock::is_present(&start))
}

fn refused(path: &Path, offset: u64) -> Error {
    Error::new(
        ErrorKind::RemovedIntegrity,
        format!(
            "Device {} has a superblock of dm-integrity at byte {offset}, but its LUKS header has no integrity \
             protection.",
            path.display()
        ),
    )
}
