//! Both copies of a header, encoded. Every copy is written here.
//!
//! The content of a binary header is in its first sector. A sector is written whole or not at all, so a copy whose
//! first sector is written last is never seen in part.

use super::HEADER;
use super::binary_header::{BLOCK_LEN, BinaryHeader, Copy};
use super::validate;
use crate::byte_text::bytes_of_text;
use crate::error::CommitError;
use crate::header_device::HeaderDevice;
use crate::pbkdf::{RandomError, fill_random};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::io;

const SECTOR: usize = 512;

/// Both copies of a header with their JSON areas, encoded.
#[derive(Debug)]
pub(crate) struct Copies<'a> {
    hdr_size: u64,
    primary: Cow<'a, [u8]>,
    secondary: Cow<'a, [u8]>,
}

impl Copies<'static> {
    /// Checks and encodes a new header.
    pub(crate) fn new(header: &BinaryHeader, map: &Map<String, Value>) -> Result<Self, CommitError> {
        validate::check(HEADER, header, map)?;
        let area = json_area(header, map).map_err(|(needed, area)| CommitError::MetadataTooLarge { needed, area })?;
        Ok(Self::encode(header, &area)?)
    }

    /// Encodes both copies, each with a new salt.
    pub(super) fn encode(header: &BinaryHeader, json_area: &[u8]) -> Result<Self, RandomError> {
        let encode = |copy| {
            let mut salt = [0; 64];
            fill_random(&mut salt)?;
            let mut bytes = header.encode(copy, &salt, json_area).to_vec();
            bytes.extend_from_slice(json_area);
            Ok(Cow::Owned(bytes))
        };
        Ok(Self { hdr_size: header.hdr_size, primary: encode(Copy::Primary)?, secondary: encode(Copy::Secondary)? })
    }
}

impl<'a> Copies<'a> {
    /// Takes the copies at the start of a device's `bytes`.
    pub(crate) fn at_start_of(bytes: &'a [u8], hdr_size: u64) -> Self {
        let (primary, rest) = bytes.split_at(hdr_size as usize);
        let secondary = &rest[..hdr_size as usize];
        Self { hdr_size, primary: primary.into(), secondary: secondary.into() }
    }

    /// Writes one copy durably, while the other one is valid.
    pub(crate) fn write(&self, device: &dyn HeaderDevice, copy: Copy) -> io::Result<()> {
        self.write_volatile(device, copy)?;
        device.sync()
    }

    /// Writes one copy, while the other one is valid. The next flush makes it durable.
    pub(super) fn write_volatile(&self, device: &dyn HeaderDevice, copy: Copy) -> io::Result<()> {
        let (bytes, offset) = self.of(copy);
        device.write_all_at(bytes, offset)
    }

    /// Writes both copies to a device without a header. Everything that was written before is durable before the device
    /// has one.
    pub(crate) fn create(&self, device: &dyn HeaderDevice) -> io::Result<()> {
        let copies = [Copy::Primary, Copy::Secondary].map(|copy| self.of(copy));
        for (bytes, offset) in copies {
            device.write_all_at(&bytes[SECTOR..], offset + SECTOR as u64)?;
        }
        device.sync()?;
        for (bytes, offset) in copies {
            device.write_all_at(&bytes[..SECTOR], offset)?;
            device.sync()?;
        }
        Ok(())
    }

    /// Writes both copies over a LUKS1 header, which is valid until the first sector of the first copy is written. From
    /// then on the second copy is valid, until the rest of the first is written.
    pub(crate) fn replace_luks1(&self, device: &dyn HeaderDevice) -> io::Result<()> {
        self.write(device, Copy::Secondary)?;
        for range in [BLOCK_LEN..self.primary.len(), 0..SECTOR, SECTOR..BLOCK_LEN] {
            device.write_all_at(&self.primary[range.clone()], range.start as u64)?;
            device.sync()?;
        }
        Ok(())
    }

    /// Returns the bytes of a copy and their offset.
    fn of(&self, copy: Copy) -> (&[u8], u64) {
        match copy {
            Copy::Primary => (&self.primary, 0),
            Copy::Secondary => (&self.secondary, self.hdr_size),
        }
    }
}

/// Returns the JSON area with the text of `map`. Fails with the length of the text with its zero byte, and the length
/// of the area.
pub(super) fn json_area(header: &BinaryHeader, map: &Map<String, Value>) -> Result<Vec<u8>, (u64, u64)> {
    let text = serde_json::to_string(map).expect("a tree with string keys always becomes text");
    let mut area = bytes_of_text(&text).into_owned();
    let len = header.hdr_size as usize - BLOCK_LEN;
    if area.len() >= len {
        return Err((area.len() as u64 + 1, len as u64));
    }
    area.resize(len, 0);
    Ok(area)
}
