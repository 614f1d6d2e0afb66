//! Requests whose copy and cipher work a carrier does: handed over here, and taken on from here when it is done.

use super::{Frontend, Step, Worker};
use crate::buffer::Buffer;
use crate::carrier::{Carrier, Delivery, Load, STRIP};
use crate::crypt_mapping::MappedRange;
use crate::device::Device;
use crate::request::{Operation, RequestError};
use std::io;
use std::sync::Arc;

/// A carrier, where one of the device's stores has use for it. One that cannot be started is done without.
pub(super) fn carrier_for(device: &Device) -> Option<Carrier> {
    let wanted = device.stores().iter().any(|store| store.carried_from().is_some());
    if wanted { Carrier::start(STRIP).ok() } else { None }
}

impl<F: Frontend> Worker<F>
where
    F::Message: 'static,
{
    /// The same worker, which has transfers of at least `from` bytes carried in strips of `strip` bytes whatever its stores
    /// say: for tests and measurements.
    pub fn with_carrier(mut self, from: usize, strip: usize) -> io::Result<Self> {
        self.carrier = Some(Carrier::start(strip)?);
        self.carried_from = Some(from);
        Ok(self)
    }

    /// Gives the aligned range of a read, or of a write whose edges are filled in, to the carrier. `Some`: it goes the usual way.
    pub(super) fn carry(&mut self, index: u32, mapped: &MappedRange, buffer: Buffer) -> Option<Buffer> {
        let (Some(carrier), Some(target)) = (&self.carrier, &self.target) else { return Some(buffer) };
        let store = &self.device.stores()[mapped.store as usize];
        let operation = self.in_flight[index as usize].as_ref().map(|f| f.operation)?;
        // Durable writes go by the ring, which knows what their errors mean.
        let long = self.carried_from.or(store.carried_from()).is_some_and(|from| mapped.aligned_len >= from)
            && !operation.durable();
        if !long || self.offload.as_ref().is_some_and(|pool| pool.wants(operation, target, mapped)) {
            return Some(buffer);
        }
        let writes = operation != Operation::Read;
        let (target, store) = (Arc::clone(target), Arc::clone(store));
        let load =
            Load { target, store, mapped: *mapped, buffer, writes, to: Arc::clone(&self.carried), token: index.into() };
        if let Err(load) = carrier.post(load) {
            return Some(load.buffer);
        }
        self.flight(index).step = Step::Carried;
        None
    }

    /// The carrier has done its work.
    pub(super) fn delivered(&mut self, index: u32, delivery: Delivery) {
        let flight = self.flight(index);
        flight.carried(delivery.calls, delivery.cipher);
        flight.buffer = Some(delivery.buffer);
        self.finish(index, delivery.result.map_err(RequestError::Io));
    }
}
