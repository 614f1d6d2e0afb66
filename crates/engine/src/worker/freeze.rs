//! A worker's reaction to its device being frozen: it reads the changed state, and reports when it has nothing in
//! flight.

use super::{Frontend, Worker};
use crate::crypt_mapping::TURN_STACK;
use crate::freeze::{FreezeState, View};
use inlock_cipher::scrub_stack;

impl<F: Frontend> Worker<F> {
    /// Handles a change of the freeze state.
    pub(super) fn update_freeze(&mut self) {
        let View { epoch, freeze_state, mapping, target } = self.volume.device.freeze().view(self.volume.worker_id);
        (self.volume.epoch, self.volume.state, self.volume.mapping) = (epoch, freeze_state, mapping);
        if target.is_some() {
            self.volume.crypt = target;
        }
        if freeze_state != FreezeState::Running {
            self.take_back_deferred();
        }
        self.run_queue();
    }

    /// Drops the keys as soon as nothing is in flight: no request of its own, and no merged write of another worker's.
    pub(super) fn drop_keys_if_idle(&mut self) {
        if self.table.is_empty() && !self.has_merged() && self.volume.crypt.take().is_some() {
            scrub_stack::<TURN_STACK>();
            self.volume.device.freeze().set_idle(self.volume.worker_id);
        }
    }
}
