//! The mark at the end of a data file, which ties it to its sidecar.

use crate::error::{Mismatch, ZonedFileError};
use crate::layout::ZonedLayout;
use crate::records::{self, BLOCK, Identity};
use crate::sidecar::{self, failed};
use inlock_engine::BackingStore;
use inlock_engine::Errno;
use inlock_engine::store::{read_all, write_all};

/// Formats two stores with these zones.
pub(crate) fn format(
    data: &dyn BackingStore,
    sidecar: &dyn BackingStore,
    layout: &ZonedLayout,
    boot: u64,
) -> Result<(), ZonedFileError> {
    layout.check()?;
    let mut identity = Identity::default();
    getrandom::fill(&mut identity).map_err(ZonedFileError::Random)?;
    write_all(data, &records::mark(layout, &identity), layout.len).map_err(failed)?;
    data.sync().map_err(failed)?;
    sidecar::write_new(sidecar, layout, &identity, boot).map_err(failed)
}

/// Whether a data file belongs to its sidecar.
pub(crate) fn check(data: &dyn BackingStore, layout: &ZonedLayout, identity: &Identity) -> Result<(), ZonedFileError> {
    let (len, expected) = (data.geometry().len, records::data_len(layout));
    if len != expected {
        return Err(ZonedFileError::Foreign(Mismatch::Len { len, expected }));
    }
    match read(data).map_err(failed)? {
        None => Err(ZonedFileError::Foreign(Mismatch::Unmarked)),
        Some(of) if of != *identity => Err(ZonedFileError::Foreign(Mismatch::Identity)),
        Some(_) => Ok(()),
    }
}

/// Returns the identity at the end of a data file.
pub(crate) fn read(data: &dyn BackingStore) -> Result<Option<Identity>, Errno> {
    let Some(at) = data.geometry().len.checked_sub(BLOCK) else { return Ok(None) };
    let mut block = vec![0; BLOCK as usize];
    read_all(data, &mut block, at)?;
    Ok(records::read_mark(&block, at))
}
