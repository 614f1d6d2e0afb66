//! Start of a request: its checks, and the choice of its path.

use super::account::Account;
use super::action::{Action, Hold};
use super::discard::Discard;
use super::path::{self, Facts, Order, Path};
use super::remap::{Remapped, remap};
use super::state::{Body, Origin};
use super::stores::StoreAccess;
use super::transfer::{Kind, State, Transfer};
use super::zone_writes::ZonePlace;
use super::{Frontend, Request, Worker};
use crate::buffer::Buffer;
use crate::errno::Errno;
use crate::events::{Event, RequestId};
use crate::freeze::FreezeState;
use crate::mapping::MappedRange;
use crate::request::{Operation, RequestError};
use crate::stats::Work;
use inlock_cipher::TargetType;

/// Beginning of a request whose body is in the table.
enum Begin {
    /// With this action.
    Action(Action),
    /// With an event that has happened already.
    Event(Event),
    /// It has nothing to do.
    Ended,
}

impl<F: Frontend> Worker<F> {
    /// Starts a request, takes its memory, and advances it until it waits.
    pub(super) fn start(&mut self, request: &mut Request, origin: Origin) {
        if self.volume.state == FreezeState::Ended {
            return self.finished.push_back(request.end(Err(Errno::SHUTDOWN.into())));
        }
        let moved = request.data.as_ref().map_or(request.len, |(range, _)| range.len as u64);
        // A child request is counted with its parent.
        let timing = match origin {
            Origin::Frontend(_) => self.shard.recorder().accept(request.operation, moved),
            Origin::Parent(_) => None,
        };
        let work = Work { len: moved, ..Work::default() };
        let id = self.table.insert(origin, Account { operation: request.operation, timing, work });
        let begin = self.begin(id, request, matches!(origin, Origin::Parent(_)));
        if let Some(event) = self.begun(id, request, begin) {
            self.advance(id, event);
        }
    }

    /// Performs what a beginning asks for. Returns the event if it has happened already.
    fn begun(&mut self, id: RequestId, request: &mut Request, begin: Result<Begin, RequestError>) -> Option<Event> {
        let result = match begin {
            Ok(Begin::Event(event)) => return Some(event),
            Ok(Begin::Action(action)) => return self.perform(id, action),
            Ok(Begin::Ended) => Ok(()),
            Err(error) => Err(error),
        };
        self.report(id, result, request.data.take(), request.spare.take());
        None
    }

    /// Begins a transfer again that the boundary of a re-encryption has passed while it waited for its lock.
    pub(super) fn begin_again(&mut self, id: RequestId, data: Buffer) -> Option<Event> {
        let operation = self.table.get(id)?.account.operation;
        let transfer = self.table.transfer(id)?;
        let (range, spare) = (transfer.range, transfer.spare.take());
        let hold = std::mem::replace(&mut transfer.hold, Hold::None);
        self.release(hold);
        let (offset, len) = (range.offset, range.len as u64);
        let mut request = Request { id: 0, operation, offset, len, data: Some((range, data)), spare };
        let begin = self.begin_transfer(id, &mut request, false);
        self.begun(id, &mut request, begin)
    }

    /// Starts the next child of the remapped request `parent`. Its end comes as an [`Event::Child`].
    pub(super) fn start_child(&mut self, parent: RequestId) -> Option<Event> {
        let Some(Body::Remapped(remapped)) = self.table.get(parent).map(|request| &request.body) else { return None };
        match remapped.child(&self.volume.mapping) {
            Ok(mut request) => {
                self.start(&mut request, Origin::Parent(parent));
                None
            }
            Err(error) => Some(Event::Child { buffer: Buffer::new(0), requested: 0..0, result: Err(error) }),
        }
    }

    /// Checks a request, and puts its body into the table. The memory stays with `request` if it fails, or has nothing
    /// to do.
    fn begin(&mut self, id: RequestId, request: &mut Request, is_child: bool) -> Result<Begin, RequestError> {
        let (operation, offset, len) = (request.operation, request.offset, request.len);
        let access = self.volume.device.access();
        if operation.modifies() && access.read_only {
            return Err(RequestError::ReadOnly);
        }
        let is_discard = matches!(operation, Operation::Discard { .. } | Operation::Deallocate { .. });
        if is_discard && !access.allow_discards {
            return Err(RequestError::Unsupported);
        }
        if operation == Operation::Flush || operation.durable() {
            self.volume.device.check_flush()?;
        }
        match operation {
            Operation::Flush => Ok(Begin::Action(Action::Sync)),
            Operation::Zones(action) => {
                let (mgmt, is_head) = self.enqueue_mgmt(id, action, offset, len)?;
                self.table.set_body(id, Body::ZoneMgmt(mgmt));
                Ok(if is_head { Begin::Event(Event::Released) } else { Begin::Action(Action::Wait) })
            }
            // The frontend asked the mapping before, but the table may have been replaced since.
            Operation::Deallocate { .. } if !self.volume.mapping.can_zero_fast(offset, len) => {
                Err(RequestError::Unsupported)
            }
            Operation::Discard { durable } | Operation::Deallocate { durable } => {
                self.begin_discard(id, (offset, len), durable)
            }
            Operation::Prefetch => self.prefetch(offset, len).map(|()| Begin::Ended),
            Operation::Read
            | Operation::Write { .. }
            | Operation::WriteReissued { .. }
            | Operation::Append { .. }
            | Operation::WriteZeroes { .. } => self.begin_transfer(id, request, is_child),
        }
    }

    fn begin_discard(&mut self, id: RequestId, (offset, len): (u64, u64), fua: bool) -> Result<Begin, RequestError> {
        let place = self.volume.mapping.place(offset, len)?;
        if self.volume.device.is_sequential(&place)? {
            return Err(RequestError::Unsupported);
        }
        let mut discard = Discard::new(offset, len, fua);
        let action = discard.start(&self.volume.mapping);
        self.table.set_body(id, Body::Discard(discard));
        Ok(Begin::Action(action))
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<(), RequestError> {
        let place = self.volume.mapping.place(offset, len)?;
        if place.kind.is_stored() {
            self.volume.device.stores()[place.store as usize].prefetch(place.store_offset, place.len);
        }
        Ok(())
    }

    fn begin_transfer(&mut self, id: RequestId, request: &mut Request, is_child: bool) -> Result<Begin, RequestError> {
        let operation = request.operation;
        let (range, data) = request.data.as_mut().ok_or(Errno::INVAL)?;
        if !self.volume.mapping.is_current(range) {
            match remap(&self.volume.mapping, range, operation)? {
                Some(remapped) => *range = remapped,
                None => return Ok(self.begin_remapped(id, request)),
            }
        }
        let place = match operation {
            Operation::Read => ZonePlace::Free,
            _ => self.enqueue(id, operation, range, is_child)?,
        };
        let (hold, is_deferred) = match place {
            ZonePlace::Free => (Hold::None, false),
            ZonePlace::Queued(hold, placed) => {
                *range = placed;
                (hold, false)
            }
            ZonePlace::Deferred(hold) => (hold, true),
        };
        let in_zone = hold != Hold::None;
        match range.kind {
            TargetType::Zero => {
                if operation == Operation::Read {
                    data.data_mut()[range.requested()].fill(0);
                }
                return Ok(Begin::Ended);
            }
            TargetType::Error => return Err(Errno::IO.into()),
            TargetType::Crypt | TargetType::Linear => {}
        }
        if matches!(operation, Operation::WriteZeroes { .. }) {
            data.data_mut()[range.requested()].fill(0);
        }
        let kind = match operation {
            Operation::Read => Kind::Read,
            Operation::WriteReissued { .. } => Kind::Reissued,
            _ => Kind::Write,
        };
        let facts = self.facts(operation, range, in_zone);
        let path = Path::of(kind != Kind::Read, operation.durable(), range, &facts);
        let (range, data) = request.data.take().ok_or(Errno::INVAL)?;
        let state = if in_zone { State::Deferred { data } } else { State::Locking { data } };
        let spare = request.spare.take();
        self.table.set_body(id, Body::Transfer(Transfer { kind, range, path, hold, spare, state }));
        Ok(match path.order {
            Order::None => Begin::Event(Event::Locked),
            Order::ZoneQueue if is_deferred => Begin::Action(Action::Wait),
            Order::ZoneQueue => Begin::Event(Event::Released),
            Order::AllShared | Order::Shared | Order::Exclusive => Begin::Action(Action::Lock),
        })
    }

    /// Begins a transfer whose shape another table, or the boundary of a re-encryption, has changed.
    fn begin_remapped(&mut self, id: RequestId, request: &mut Request) -> Begin {
        if let Some((whole, data)) = request.data.take() {
            let (operation, spare) = (request.operation, request.spare.take());
            self.table.set_body(id, Body::Remapped(Remapped { operation, whole, data: Some(data), spare, done: 0 }));
        }
        Begin::Action(Action::Child)
    }

    fn facts(&self, operation: Operation, range: &MappedRange, in_zone: bool) -> Facts {
        let profile = self.volume.device.stores()[range.store as usize].profile();
        let pool = self.helpers.crypt.as_ref().zip(self.volume.crypt.as_deref());
        let access = self.volume.access[range.store as usize];
        Facts {
            inline_max_len: match access {
                StoreAccess::Inline => None,
                // Other calls would block the worker.
                StoreAccess::Ring(_) | StoreAccess::Async => {
                    Some(path::inline_max_len(&profile, operation.writes_data()))
                }
            },
            copy_min_len: match (access, &self.helpers.copy) {
                // It has threads of its own.
                (StoreAccess::Async, _) | (_, None) => None,
                // The copy thread does not look for false holes.
                _ if self.volume.mapping.has_zero_holes_in(range) => None,
                (_, Some(_)) => self.helpers.copy_min_len.or(path::copy_min_len(&profile)),
            },
            has_native_fua: profile.has_native_fua,
            in_zone,
            pool_wanted: pool.is_some_and(|(pool, crypt)| pool.is_for(operation, crypt, range))
                || self.volume.crypt.as_deref().is_some_and(|crypt| crypt.engine_for(range).is_some()),
            needs_lock: self.volume.mapping.needs_lock(range),
        }
    }
}
