//! Loading.
use super::Luks2;
use crate::error::LoadError;
use crate::header_device::HeaderDevice;
pub(super) fn load(_: &dyn HeaderDevice) -> Result<Luks2, LoadError> { Err(LoadError::NotLuks) }
