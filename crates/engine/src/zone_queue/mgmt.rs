//! Zone management operations: each is a write in the queue of every zone that it concerns.

use super::table::{Action, NONE, QueuedKind, QueuedWrite, Waiter};
use super::{ZoneMgmtId, ZoneWriteQueues};
use crate::errno::Errno;
use crate::zoned::{Zone, ZoneAction};
use std::ops::Range;
use std::panic::AssertUnwindSafe;

impl ZoneWriteQueues {
    /// Puts a zone management operation on these ranges of the store into the queues of all its zones. Returns whether
    /// it is the head of all; if not, the owner is informed when it is.
    pub(crate) fn enqueue_mgmt(
        &self,
        action: ZoneAction,
        ranges: Vec<Range<u64>>,
        waiter: Waiter,
    ) -> (ZoneMgmtId, bool) {
        let mut table = self.table();
        let free = table.actions.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            table.actions.push(None);
            table.actions.len() - 1
        });
        let zones = ranges.iter().flat_map(|range| self.zones_of(range.start, range.end - range.start));
        let mut entries = Vec::new();
        for zone in zones {
            let kind = QueuedKind::Action(number as u32, action);
            entries.push(table.add(QueuedWrite { ready: true, ..QueuedWrite::new(zone as u32, 0, 0, kind, None) }));
        }
        let (missing, all) = (entries.len(), entries.clone());
        table.actions[number] = Some(Action { action, ranges, entries, missing, waiter });
        for index in all {
            let zone = table.entries[index as usize].zone as usize;
            table.link(index);
            let start = self.start_of(zone);
            let state = &mut table.zones[zone];
            state.pointer = state.after(action, start);
            if table.zones[zone].head == index {
                table.entries[index as usize].granted = true;
                table.action(number).missing -= 1;
            }
        }
        let now = table.action(number).missing == 0;
        (ZoneMgmtId(number as u32), now)
    }

    /// Enqueues as [`ZoneWriteQueues::enqueue_mgmt`] does, and blocks until the operation is the head of all queues.
    pub(crate) fn enqueue_mgmt_blocking(&self, action: ZoneAction, ranges: Vec<Range<u64>>) -> ZoneMgmtId {
        let (id, now) = self.enqueue_mgmt(action, ranges, Waiter::Thread);
        if !now {
            self.wait(|table| table.actions[id.0 as usize].as_ref().is_none_or(|action| action.missing == 0));
        }
        id
    }

    /// Carries out an operation that is the head of its queues, and dispatches the writes behind it. Blocks.
    pub(crate) fn carry_out(&self, id: ZoneMgmtId) -> Result<(), Errno> {
        let (action, ranges) = {
            let mut table = self.table();
            let order = table.action(id.0 as usize);
            (order.action, order.ranges.clone())
        };
        // A panic of the store would leave the zones waiting forever. A failure is reported.
        let managed = std::panic::catch_unwind(AssertUnwindSafe(|| self.manage(action, &ranges)));
        self.leave_mgmt(id);
        managed.unwrap_or(Err(Errno::IO))
    }

    /// Removes an operation that has ended or is given up from the queues.
    pub(crate) fn leave_mgmt(&self, id: ZoneMgmtId) {
        let mut table = self.table();
        let order = table.actions[id.0 as usize].take().expect("an order stays until it was carried out");
        for index in order.entries {
            let zone = table.entries[index as usize].zone as usize;
            table.zones[zone].known = false;
            table.unlink(index);
            if table.zones[zone].head != NONE {
                // If the store does not answer now, the next write fails.
                let _ = self.ask(&mut table, zone);
                self.replace(&mut table, zone);
                table.go(zone, None);
            }
        }
        self.end(table);
    }

    fn manage(&self, action: ZoneAction, ranges: &[Range<u64>]) -> Result<(), Errno> {
        let store = self.zoned();
        if action != ZoneAction::ResetAll {
            return ranges.iter().try_for_each(|range| store.manage(action, range.start, range.end - range.start));
        }
        let len: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        if len == self.store.geometry().len {
            return store.manage(action, 0, len);
        }
        // Reset only the zones of this device, not others of the store.
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let mut zones = [Zone::UNKNOWN; 64];
                let count = store.report(at, &mut zones)?;
                for zone in zones[..count].iter().filter(|zone| zone.start < range.end && zone.can_be_reset()) {
                    store.manage(ZoneAction::Reset, zone.start, zone.len)?;
                }
                at = zones[..count].last().map_or(range.end, |zone| zone.start + zone.len);
            }
        }
        Ok(())
    }
}
