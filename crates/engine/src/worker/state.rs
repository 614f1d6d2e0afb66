//! Requests in flight and their table.

use super::account::Account;
use super::action::Hold;
use super::discard::Discard;
use super::remap::Remapped;
use super::transfer::Transfer;
use super::zone_mgmt::ZoneMgmt;
use crate::events::RequestId;

/// A request in flight.
pub(super) struct InFlight {
    pub(super) origin: Origin,
    pub(super) account: Account,
    pub(super) body: Body,
}

/// Origin of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The frontend, which knows it by this number.
    Frontend(u64),
    /// A request that was remapped, and is carried out in child requests.
    Parent(RequestId),
}

/// State of a request, with its current buffers and positions.
#[allow(clippy::large_enum_variant)] // Most requests are transfers, and a table of boxes would allocate.
pub(super) enum Body {
    Transfer(Transfer),
    Discard(Discard),
    Flush,
    ZoneMgmt(ZoneMgmt),
    Remapped(Remapped),
}

/// Requests in flight. A slot is reused under another generation.
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

struct Slot {
    generation: u32,
    request: Option<InFlight>,
}

impl Table {
    /// Returns a table with memory for `capacity` requests.
    pub(super) fn new(capacity: usize) -> Self {
        Self { slots: Vec::with_capacity(capacity), free: Vec::with_capacity(capacity) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adds a request without a body ([`Table::set_body`]).
    pub(super) fn insert(&mut self, origin: Origin, account: Account) -> RequestId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, request: None });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.request = Some(InFlight { origin, account, body: Body::Flush });
        RequestId { index, generation: slot.generation }
    }

    pub(super) fn set_body(&mut self, id: RequestId, body: Body) {
        if let Some(request) = self.get(id) {
            request.body = body;
        }
    }

    /// Returns the request, if it has not ended.
    pub(super) fn get(&mut self, id: RequestId) -> Option<&mut InFlight> {
        let slot = self.slots.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation)?;
        slot.request.as_mut()
    }

    /// Returns the transfer, if it has not ended.
    pub(super) fn transfer(&mut self, id: RequestId) -> Option<&mut Transfer> {
        match &mut self.get(id)?.body {
            Body::Transfer(transfer) => Some(transfer),
            _ => None,
        }
    }

    /// Returns what a request holds, if it has not ended, and can hold anything.
    pub(super) fn hold(&mut self, id: RequestId) -> Option<&mut Hold> {
        match &mut self.get(id)?.body {
            Body::Transfer(transfer) => Some(&mut transfer.hold),
            Body::Discard(discard) => Some(&mut discard.hold),
            _ => None,
        }
    }

    pub(super) fn remove(&mut self, id: RequestId) {
        let Some(slot) = self.slots.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation) else {
            return;
        };
        slot.request = None;
        slot.generation = (slot.generation + 1) & RequestId::GENERATIONS;
        self.free.push(id.index);
    }

    /// Returns every request in flight.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (RequestId, &mut InFlight)> {
        self.slots.iter_mut().enumerate().filter_map(|(index, slot)| {
            let id = RequestId { index: index as u32, generation: slot.generation };
            slot.request.as_mut().map(|request| (id, request))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Operation;
    use crate::stats::Work;

    #[test]
    fn number_of_an_ended_request_means_no_later_one() {
        let mut table = Table::new(1);
        let insert = |table: &mut Table| {
            let account = Account { operation: Operation::Flush, timing: None, work: Work::default() };
            table.insert(Origin::Frontend(0), account)
        };
        let first = insert(&mut table);
        assert!(table.get(first).is_some());
        table.remove(first);
        let second = insert(&mut table);
        assert_eq!(second.index, first.index);
        assert!(table.get(first).is_none());
        table.remove(first);
        assert!(table.get(second).is_some(), "an ended request ends no other");
    }
}
