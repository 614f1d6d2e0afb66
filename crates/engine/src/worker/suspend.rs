//! A worker at the freeze of its device: it looks when something has changed, and says when it has nothing in flight.

use super::{Frontend, InFlight, Request, Worker};
use crate::freeze::{FreezeState, SCRUB_TURN, View};
use inlock_cipher::scrub_stack;

impl<F: Frontend> Worker<F>
where
    F::Message: 'static,
{
    /// The device was suspended, or goes on.
    pub(super) fn look(&mut self) {
        let View { epoch, freeze_state, mapping, target } = self.device.freeze().view(self.worker_id);
        (self.epoch, self.freeze_state, self.mapping) = (epoch, freeze_state, mapping);
        if target.is_some() {
            self.target = target;
        }
        if freeze_state != FreezeState::Running {
            self.take_back_deferred();
        }
        self.drain();
    }

    /// Has a request that has done nothing yet wait again.
    pub(super) fn put_back(&mut self, index: u32) {
        let flight = self.in_flight[index as usize].take().expect("a request stays in the table until it is finished");
        self.free.push(index);
        let InFlight { id, operation, offset, len, mapped, buffer, spare, .. } = flight;
        self.requests.push_front(Request { id, operation, offset, len, data: mapped.zip(buffer), spare });
    }

    /// Says that nothing is in flight as soon as it is so, of its own requests and of others' that go with them.
    pub(super) fn rest(&mut self) {
        let idle = self.in_flight.len() == self.free.len() && !self.has_gathered();
        if idle && self.target.take().is_some() {
            scrub_stack::<SCRUB_TURN>();
            self.device.freeze().set_idle(self.worker_id);
        }
    }
}
