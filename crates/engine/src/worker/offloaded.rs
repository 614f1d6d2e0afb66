//! Requests whose cipher work the pool does: handed over here, and taken on from here when it is done.

use super::{Frontend, Step, Worker};
use crate::buffer::Buffer;
use crate::crypt_mapping::MappedRange;
use crate::offload::{Data, Direction, Done, Offload};
use crate::request::RequestError;
use rustix::io::Errno;
use std::sync::Arc;

impl<F: Frontend> Worker<F>
where
    F::Message: 'static,
{
    /// The same worker, which gives `pool` the cipher work that its policy wants there.
    #[must_use]
    pub fn with_offload(mut self, pool: Option<Arc<Offload>>) -> Self {
        self.offload = pool;
        self
    }

    /// The buffer, if its cipher work is to be done here and now. `None`: the pool has it.
    pub(super) fn keep(
        &mut self,
        index: u32,
        mapped: &MappedRange,
        direction: Direction,
        buffer: Buffer,
    ) -> Option<Buffer> {
        let (Some(pool), Some(target)) = (&self.offload, &self.target) else { return Some(buffer) };
        let operation = self.in_flight[index as usize].as_ref().map(|f| f.operation)?;
        if !pool.wants(operation, target, mapped) {
            return Some(buffer);
        }
        if let Err(buffer) = pool.post(target, mapped, direction, buffer, &self.ciphered, index.into()) {
            return Some(buffer);
        }
        self.flight(index).step = Step::Cipher;
        None
    }

    /// The pool has done its work.
    pub(super) fn ciphered(&mut self, index: u32, done: Done) {
        let flight = self.flight(index);
        let len = flight.mapped.map_or(0, |e| e.aligned_len);
        flight.work.offloaded = true;
        flight.ciphered(done.calls, len);
        match done.data {
            Data::Encrypted(data) => self.write_whole(index, data),
            Data::Decrypted(buffer) => {
                flight.buffer = Some(buffer);
                self.finish(index, Ok(()));
            }
            Data::Poisoned(buffer) => {
                flight.buffer = Some(buffer);
                self.finish(index, Err(RequestError::Io(Errno::IO)));
            }
        }
    }
}
