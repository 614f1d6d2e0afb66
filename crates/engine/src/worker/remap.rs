//! Requests that were located before the device's table was replaced.
//!
//! A frontend locates a request when it begins to receive it, which may be long before the worker starts it. If another
//! table was loaded in between, the worker locates it once more. Nearly always the new place has the shape of the old one;
//! where it has not, the request is carried out in parts, each with memory of its own.

use super::{Finished, Frontend, Request, Step, Worker};
use crate::buffer::{Buffer, BufferPool};
use crate::crypt_mapping::MappedRange;
use crate::request::{Operation, RequestError};
use crate::rmw;
use rustix::io::Errno;
use std::sync::Arc;

impl<F: Frontend> Worker<F>
where
    F::Message: 'static,
{
    /// Finds the place of a request that was located before the table was replaced. Where the new table needs other room
    /// than the request brought, or cuts it, it is carried out in parts with memory of their own.
    pub(super) fn relocate(&mut self, index: u32, old: &MappedRange) -> Result<(), RequestError> {
        let longest = old.aligned_len.max(2 * self.mapping.unit_len());
        let new = self.mapping.locate(old.offset, old.len as u64, longest)?;
        let shape = |e: &MappedRange| (e.head_len, e.len, e.aligned_len, e.unit_len);
        let flight = self.flight(index);
        if shape(&new) == shape(old) {
            flight.mapped = Some(new);
            return self.begin(index);
        }
        if matches!(flight.operation, Operation::Append { .. }) {
            // It lands in one piece or not at all.
            return Err(RequestError::Io(Errno::IO));
        }
        flight.step = Step::Parts;
        flight.progress = 0;
        self.next_part(index)
    }

    fn next_part(&mut self, index: u32) -> Result<(), RequestError> {
        let mapping = Arc::clone(&self.mapping);
        let flight = self.flight(index);
        let whole = flight.mapped.expect("only requests that move data go in parts");
        let rest = whole.requested().start + flight.progress..whole.requested().end;
        let offset = whole.offset + flight.progress as u64;
        let mapped = mapping.locate(offset, rest.len() as u64, BufferPool::LARGEST_PIECE + 2 * mapping.unit_len())?;
        let mut buffer = Buffer::new(mapped.aligned_len);
        if let Some(from) = flight.buffer.as_ref().filter(|_| flight.operation.writes_data()) {
            buffer.data_mut()[mapped.requested()].copy_from_slice(&from.data()[rest][..mapped.len]);
        }
        let (id, operation, len) = (flight.id, flight.operation, mapped.len as u64);
        let spare = operation.modifies().then(|| Buffer::new(rmw::spare_len(&mapped)));
        let part = Request { id, operation, offset, len, data: Some((mapped, buffer)), spare };
        self.start_part(part, Some(index));
        Ok(())
    }

    pub(super) fn part_finished(&mut self, index: u32, part: Finished) {
        if part.result.is_err() {
            return self.finish(index, part.result);
        }
        let flight = self.flight(index);
        let whole = flight.mapped.expect("only requests that move data go in parts");
        let (mapped, from) = part.data.expect("a part gives its buffer back");
        if let (Operation::Read, Some(into)) = (flight.operation, &mut flight.buffer) {
            into.data_mut()[whole.requested()][flight.progress..][..mapped.len]
                .copy_from_slice(&from.data()[mapped.requested()]);
        }
        flight.progress += mapped.len;
        if flight.progress == whole.len {
            self.finish(index, Ok(()));
        } else if let Err(error) = self.next_part(index) {
            self.finish(index, Err(error));
        }
    }
}
