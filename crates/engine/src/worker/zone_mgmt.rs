//! A zone management operation in flight.

use super::action::{Action, Ending};
use crate::events::Event;
use crate::request::RequestError;
use crate::zone_queue::ZoneMgmtId;

/// A zone management operation.
pub(super) struct ZoneMgmt {
    pub(super) id: ZoneMgmtId,
    /// Whether it has left the zone write queues for the thread that carries it out.
    pub(super) is_posted: bool,
}

impl ZoneMgmt {
    /// Advances by one event.
    pub(super) fn step(&mut self, event: Event) -> Action {
        match event {
            Event::Released => {
                self.is_posted = true;
                Action::ZoneMgmt
            }
            Event::ZonesManaged(result) => Action::Finish(Ending::new(result.map_err(RequestError::Io), None)),
            event => unreachable!("{event:?} of zone management"),
        }
    }
}
