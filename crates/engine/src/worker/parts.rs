//! Requests that were located before the device's table was replaced.
//!
//! A front end locates a request when it begins to receive it, which may be long before the worker starts it. If another
//! table was loaded in between, the worker locates it once more. Nearly always the new place has the shape of the old one;
//! where it has not, the request is carried out in parts, each with memory of its own.

use super::{Finished, FrontEnd, Request, Step, Worker};
use crate::buffer::{Buffer, BufferPool};
use crate::request::{Operation, RequestError};
use crate::target::Extent;
use crate::unaligned;
use rustix::io::Errno;
use std::sync::Arc;

impl<F: FrontEnd> Worker<F>
where
    F::Message: 'static,
{
    /// Finds the place of a request that was located before the table was replaced. Where the new table needs other room
    /// than the request brought, or cuts it, it is carried out in parts with memory of their own.
    pub(super) fn relocate(&mut self, index: u32, old: &Extent) -> Result<(), RequestError> {
        let longest = old.cover_len.max(2 * self.layout.granule());
        let new = self.layout.locate(old.offset, old.len as u64, longest)?;
        let shape = |e: &Extent| (e.skip, e.len, e.cover_len, e.granule);
        let flight = self.flight(index);
        if shape(&new) == shape(old) {
            flight.extent = Some(new);
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
        let layout = Arc::clone(&self.layout);
        let flight = self.flight(index);
        let whole = flight.extent.expect("only requests that move data go in parts");
        let rest = whole.requested().start + flight.progress..whole.requested().end;
        let offset = whole.offset + flight.progress as u64;
        let extent = layout.locate(offset, rest.len() as u64, BufferPool::LARGEST_PIECE + 2 * layout.granule())?;
        let mut buffer = Buffer::new(extent.cover_len);
        if let Some(from) = flight.buffer.as_ref().filter(|_| flight.operation.writes_data()) {
            buffer.data_mut()[extent.requested()].copy_from_slice(&from.data()[rest][..extent.len]);
        }
        let (id, operation, len) = (flight.id, flight.operation, extent.len as u64);
        let spare = operation.modifies().then(|| Buffer::new(unaligned::spare_len(&extent)));
        let part = Request { id, operation, offset, len, data: Some((extent, buffer)), spare };
        self.start_part(part, Some(index));
        Ok(())
    }

    pub(super) fn part_finished(&mut self, index: u32, part: Finished) {
        if part.result.is_err() {
            return self.finish(index, part.result);
        }
        let flight = self.flight(index);
        let whole = flight.extent.expect("only requests that move data go in parts");
        let (extent, from) = part.data.expect("a part gives its buffer back");
        if let (Operation::Read, Some(into)) = (flight.operation, &mut flight.buffer) {
            into.data_mut()[whole.requested()][flight.progress..][..extent.len]
                .copy_from_slice(&from.data()[extent.requested()]);
        }
        flight.progress += extent.len;
        if flight.progress == whole.len {
            self.finish(index, Ok(()));
        } else if let Err(error) = self.next_part(index) {
            self.finish(index, Err(error));
        }
    }
}
