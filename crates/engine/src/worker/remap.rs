//! Transfers that were mapped before the device's table was replaced, or the boundary of a re-encryption moved.
//!
//! A frontend maps a request when it begins to receive it, which may be long before the worker starts it. If another
//! table was loaded in between, the worker maps it again. It does the same if the boundary has passed a request that
//! waited for its lock. The new range nearly always has the shape of the old one;
//! otherwise the request is carried out in child requests, each with memory of its own.

use super::action::{Action, Ending};
use super::frontend::Request;
use crate::buffer::{Buffer, BufferPool};
use crate::errno::Errno;
use crate::events::Event;
use crate::mapping::{MappedRange, Mapping};
use crate::request::{Operation, RequestError};
use crate::rmw;

/// Request that is carried out in child requests, one after the other.
pub(super) struct Remapped {
    pub(super) operation: Operation,
    /// Range as mapped by the old table.
    pub(super) whole: MappedRange,
    pub(super) data: Option<Buffer>,
    pub(super) spare: Option<Buffer>,
    /// Number of bytes completed.
    pub(super) done: usize,
}

/// Maps the range again with `mapping`. Returns `None` if its shape has changed.
///
/// # Errors
///
/// The range is no longer within the device; `EIO` for an append, which cannot be split.
pub(super) fn remap(
    mapping: &Mapping,
    old: &MappedRange,
    operation: Operation,
) -> Result<Option<MappedRange>, RequestError> {
    let max_aligned_len = old.aligned_len.max(2 * mapping.unit_len());
    let new = mapping.locate(old.offset, old.len as u64, max_aligned_len)?;
    let shape = |range: &MappedRange| (range.head_len, range.len, range.aligned_len, range.unit_len);
    match operation {
        _ if shape(&new) == shape(old) => Ok(Some(new)),
        Operation::Append { .. } => Err(Errno::IO.into()),
        _ => Ok(None),
    }
}

impl Remapped {
    /// Advances by one event.
    pub(super) fn step(&mut self, event: Event) -> Action {
        let Event::Child { buffer, requested, result } = event else { unreachable!("{event:?} of a remapped request") };
        if result.is_ok() {
            if let (Operation::Read, Some(data)) = (self.operation, &mut self.data) {
                let into = &mut data.data_mut()[self.whole.requested()][self.done..][..requested.len()];
                into.copy_from_slice(&buffer.data()[requested.clone()]);
            }
            self.done += requested.len();
        }
        if result.is_err() || self.done == self.whole.len {
            return Action::Finish(Ending::new(result, self.data.take()));
        }
        Action::Child
    }

    /// Returns the next child request.
    pub(super) fn child(&self, mapping: &Mapping) -> Result<Request, RequestError> {
        let rest = self.whole.requested().start + self.done..self.whole.requested().end;
        let offset = self.whole.offset + self.done as u64;
        let max_aligned_len = BufferPool::LARGEST_PIECE + 2 * mapping.unit_len();
        let range = mapping.locate(offset, rest.len() as u64, max_aligned_len)?;
        let mut buffer = Buffer::new(range.aligned_len);
        if let Some(from) = self.data.as_ref().filter(|_| self.operation.writes_data()) {
            buffer.data_mut()[range.requested()].copy_from_slice(&from.data()[rest][..range.len]);
        }
        let spare = self.operation.modifies().then(|| Buffer::new(rmw::spare_len(&range)));
        let (operation, len) = (self.operation, range.len as u64);
        Ok(Request { id: 0, operation, offset, len, data: Some((range, buffer)), spare })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypt_mapping::CryptMapping;
    use inlock_cipher::{CipherSpec, DataUnitSize, Segment, VolumeKey};

    const LEN: usize = 3 * BufferPool::LARGEST_PIECE;

    #[test]
    fn child_needs_no_longer_buffer_than_any_request() {
        let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::LUKS_MAX);
        let key = VolumeKey::new(&(0..64).collect::<Vec<u8>>());
        for crypt in [CryptMapping::raw(LEN as u64), CryptMapping::new(&[segment], &key, LEN as u64).unwrap()] {
            let whole = crypt.mapping().locate(0, LEN as u64, LEN).unwrap();
            assert_eq!(whole.len, LEN);
            let remapped = Remapped { operation: Operation::Read, whole, data: None, spare: None, done: 1 };
            let child = remapped.child(crypt.mapping()).unwrap();
            assert_eq!(child.offset, 1);
            let edges = 2 * crypt.mapping().unit_len();
            assert_eq!(child.data.unwrap().0.aligned_len, BufferPool::LARGEST_PIECE + edges);
        }
    }

    #[test]
    fn append_of_another_shape_fails() {
        let mapping = CryptMapping::raw(LEN as u64);
        let old = mapping.mapping().locate(0, 4096, LEN).unwrap();
        let other = MappedRange { unit_len: 2 * old.unit_len, ..old };
        let append = Operation::Append { durable: false };
        assert_eq!(remap(mapping.mapping(), &old, append), Ok(Some(old)));
        assert_eq!(remap(mapping.mapping(), &other, append), Err(Errno::IO.into()));
        assert_eq!(remap(mapping.mapping(), &other, Operation::Read), Ok(None));
    }
}
