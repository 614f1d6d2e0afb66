//! A worker at the gate of its device: it looks when something has changed, and says when it has nothing in flight.

use super::{FrontEnd, Worker};
use crate::gate::{SCRUB_TURN, View};
use inlock_cipher::scrub_stack;

impl<F: FrontEnd> Worker<F>
where
    F::Message: 'static,
{
    /// The device was suspended, or goes on.
    pub(super) fn look(&mut self) {
        let View { epoch, passage, layout, target } = self.device.gate().look(self.seat);
        (self.epoch, self.passage, self.layout) = (epoch, passage, layout);
        if target.is_some() {
            self.target = target;
        }
        self.drain();
    }

    /// Says that nothing is in flight as soon as it is so.
    pub(super) fn rest(&mut self) {
        if self.in_flight.len() == self.free.len() && self.target.take().is_some() {
            scrub_stack::<SCRUB_TURN>();
            self.device.gate().quiet(self.seat);
        }
    }
}
