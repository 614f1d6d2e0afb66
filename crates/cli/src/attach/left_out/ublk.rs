//! `inlock_frontend::ublk::device`, left out.

use std::io;
use std::path::Path;
use std::sync::Arc;

use inlock_engine::{Device, RequestError};

/// Used only by builds with the feature.
#[derive(Default)]
#[expect(dead_code, reason = "no device is made with these options")]
pub(crate) struct UblkOptions {
    pub queues: u16,
    pub device_cookie: u64,
    pub unused: (),
}

#[derive(Debug, thiserror::Error)]
#[expect(dead_code, reason = "only a device fails in the other ways")]
pub(crate) enum UblkError {
    #[error("inlock was built without the feature 'ublk'")]
    NoUblk,
    #[error("{0}")]
    NotPermitted(io::Error),
    #[error("{len}, {zone_len}")]
    PartOfZone { len: u64, zone_len: u64 },
    #[error("no zones")]
    NoZones,
    #[error("{0}")]
    ZoneUnit(usize),
    #[error("{0}")]
    Report(RequestError),
    #[error("{0}")]
    Log(io::Error),
    #[error("its length cannot change")]
    CannotResize,
}

pub(crate) enum UblkDevice {}

pub(crate) fn is_available() -> bool {
    false
}

/// Finds no device: only a build with the feature can take over or remove one.
pub(crate) fn number_of(_node: &Path) -> Option<u32> {
    None
}

pub(crate) fn is_awaiting_recovery(_number: u32, _device_cookie: u64) -> bool {
    false
}

pub(crate) fn find_abandoned(_device_cookie: u64) -> Option<u32> {
    None
}

pub(crate) fn remove(_number: u32, _device_cookie: u64) -> Result<(), UblkError> {
    Err(UblkError::NoUblk)
}

impl UblkDevice {
    pub(crate) fn start(_: &Arc<Device>, _: &UblkOptions, _log: Option<&Path>) -> Result<Self, UblkError> {
        Err(UblkError::NoUblk)
    }

    pub(crate) fn recover(
        _: &Arc<Device>,
        _number: u32,
        _device_cookie: u64,
        _log: Option<&Path>,
    ) -> Result<Self, UblkError> {
        Err(UblkError::NoUblk)
    }

    pub(crate) fn node(&self) -> &Path {
        match *self {}
    }

    pub(crate) fn is_healthy(&self) -> bool {
        match *self {}
    }

    pub(crate) fn update_len(&self) -> Result<(), UblkError> {
        match *self {}
    }

    pub(crate) fn stop(&mut self) -> Result<(), UblkError> {
        match *self {}
    }
}
