//! Start of a request: its checks, and the choice of its path.

use super::account::Account;
use super::action::{Action, Hold};
use super::discard::Discard;
use super::path::{self, Facts, Path};
use super::remap::{Remapped, remap};
use super::state::{Body, InFlight, Origin};
use super::transfer::{Kind, State, Transfer};
use super::zone_writes::ZonePlace;
use super::{Finished, Frontend, Request, Worker};
use crate::buffer::Buffer;
use crate::events::{Event, RequestId};
use crate::freeze::FreezeState;
use crate::mapping::{self, MappedRange};
use crate::request::{Operation, RequestError};
use crate::stats::Work;
use rustix::io::Errno;

/// Memory that a request returns if it fails at the start.
struct Memory {
    data: Option<(MappedRange, Buffer)>,
    spare: Option<Buffer>,
}

/// Beginning of a request.
enum Begin {
    /// With this action.
    Action(Body, Action),
    /// With an event that has happened already.
    Event(Body, Event),
    /// It has ended.
    Ended(Result<(), RequestError>, Memory),
}

impl<F: Frontend> Worker<F> {
    /// Starts a request and advances it until it waits.
    pub(super) fn start(&mut self, request: Request, origin: Origin) {
        let Request { id, operation, offset, len, data, spare } = request;
        if self.volume.state == FreezeState::Ended {
            let result = Err(Errno::SHUTDOWN.into());
            return self.finished.push_back(Finished { id, result, data, spare });
        }
        let moved = data.as_ref().map_or(len, |(range, _)| range.len as u64);
        // A child request is counted with its parent.
        let timing = match origin {
            Origin::Frontend(_) => self.shard.recorder().accept(operation, moved),
            Origin::Parent(_) => None,
        };
        let account = Account { operation, timing, work: Work { len: moved, ..Work::default() } };
        let id = self.table.insert(InFlight { origin, account, body: Body::Flush });
        let memory = Memory { data, spare };
        let begin = self.begin(id, operation, (offset, len), memory, matches!(origin, Origin::Parent(_)));
        let (body, event) = match begin {
            Begin::Ended(result, memory) => return self.end_at_start(id, result, memory),
            Begin::Action(body, action) => (body, Err(action)),
            Begin::Event(body, event) => (body, Ok(event)),
        };
        if let Some(request) = self.table.get(id) {
            request.body = body;
        }
        match event {
            Ok(event) => self.advance(id, event),
            Err(action) => {
                if let Some(event) = self.perform(id, action) {
                    self.advance(id, event);
                }
            }
        }
    }

    /// Starts the next child of the remapped request `parent`. Its end comes as an [`Event::Child`].
    pub(super) fn start_child(&mut self, parent: RequestId) -> Option<Event> {
        let Some(Body::Remapped(remapped)) = self.table.get(parent).map(|request| &request.body) else { return None };
        match remapped.child(&self.volume.mapping) {
            Ok(request) => {
                self.start(request, Origin::Parent(parent));
                None
            }
            Err(error) => Some(Event::Child { buffer: Buffer::new(0), requested: 0..0, result: Err(error) }),
        }
    }

    fn begin(
        &mut self,
        id: RequestId,
        operation: Operation,
        (offset, len): (u64, u64),
        memory: Memory,
        is_child: bool,
    ) -> Begin {
        let access = self.volume.device.access();
        if operation.modifies() && access.read_only {
            return Begin::Ended(Err(RequestError::ReadOnly), memory);
        }
        if (operation == Operation::Flush || operation.durable())
            && let Err(error) = self.volume.device.check_flush()
        {
            return Begin::Ended(Err(error), memory);
        }
        let begun = match operation {
            Operation::Flush => Ok(Begin::Action(Body::Flush, Action::Sync)),
            Operation::Zones(action) => self.enqueue_mgmt(id, action, offset, len).map(|(mgmt, is_head)| {
                let body = Body::ZoneMgmt(mgmt);
                if is_head { Begin::Event(body, Event::Released) } else { Begin::Action(body, Action::Wait) }
            }),
            Operation::Discard { durable } if access.allow_discards => self.begin_discard(offset, len, durable),
            Operation::Discard { .. } => Err(RequestError::Unsupported),
            Operation::Prefetch => self.prefetch(offset, len).map(|()| Begin::Ended(Ok(()), Memory::NONE)),
            Operation::Read
            | Operation::Write { .. }
            | Operation::WriteReissued { .. }
            | Operation::Append { .. }
            | Operation::WriteZeroes { .. } => return self.begin_transfer(id, operation, memory, is_child),
        };
        match begun {
            Ok(Begin::Ended(result, _)) => Begin::Ended(result, memory),
            Ok(begun) => begun,
            Err(error) => Begin::Ended(Err(error), memory),
        }
    }

    fn begin_discard(&mut self, offset: u64, len: u64, fua: bool) -> Result<Begin, RequestError> {
        let place = self.volume.mapping.place(offset, len)?;
        if self.volume.device.is_sequential(&place)? {
            return Err(RequestError::Unsupported);
        }
        let mut discard = Discard { next: offset, end: offset + len, fua, asked: 0 };
        let action = discard.start(&self.volume.mapping);
        Ok(Begin::Action(Body::Discard(discard), action))
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<(), RequestError> {
        let place = self.volume.mapping.place(offset, len)?;
        if matches!(place.kind, mapping::Kind::Crypt | mapping::Kind::Linear) {
            self.volume.device.stores()[place.store as usize].prefetch(place.store_offset, place.len);
        }
        Ok(())
    }

    fn begin_transfer(&mut self, id: RequestId, operation: Operation, memory: Memory, is_child: bool) -> Begin {
        let Memory { data: Some((range, mut data)), spare } = memory else {
            return Begin::Ended(Err(Errno::INVAL.into()), memory);
        };
        let back = |range, data, spare| Memory { data: Some((range, data)), spare };
        let range = if range.generation == self.volume.mapping.generation {
            range
        } else {
            match remap(&self.volume.mapping, &range, operation) {
                Ok(Some(remapped)) => remapped,
                Ok(None) => {
                    let remapped = Remapped { operation, whole: range, data: Some(data), spare, done: 0 };
                    return Begin::Action(Body::Remapped(remapped), Action::Child);
                }
                Err(error) => return Begin::Ended(Err(error), back(range, data, spare)),
            }
        };
        let is_zeroes = matches!(operation, Operation::WriteZeroes { .. });
        let place = match operation {
            Operation::Read => Ok(ZonePlace::Free),
            _ => self.enqueue(id, operation, &range, is_child),
        };
        let (hold, range, is_deferred) = match place {
            Ok(ZonePlace::Free) => (Hold::None, range, false),
            Ok(ZonePlace::Queued(hold, range)) => (hold, range, false),
            Ok(ZonePlace::Deferred(hold)) => (hold, range, true),
            Err(error) => return Begin::Ended(Err(error), back(range, data, spare)),
        };
        let in_zone = hold != Hold::None;
        match range.kind {
            _ if in_zone => {}
            mapping::Kind::Crypt | mapping::Kind::Linear => {}
            mapping::Kind::Zero => {
                if operation == Operation::Read {
                    data.data_mut()[range.requested()].fill(0);
                }
                return Begin::Ended(Ok(()), back(range, data, spare));
            }
            mapping::Kind::Error => return Begin::Ended(Err(Errno::IO.into()), back(range, data, spare)),
        }
        if is_zeroes {
            data.data_mut()[range.requested()].fill(0);
        }
        let kind = match operation {
            Operation::Read => Kind::Read,
            Operation::WriteReissued { .. } => Kind::Reissued,
            _ => Kind::Write,
        };
        let path = Path::of(kind != Kind::Read, operation.durable(), &range, &self.facts(operation, &range, in_zone));
        let state = if in_zone { State::Deferred { data } } else { State::Locking { data } };
        let transfer = Transfer { kind, fua: operation.durable(), range, path, hold, spare, state };
        if in_zone && !is_deferred {
            return Begin::Event(Body::Transfer(transfer), Event::Released);
        }
        let action = transfer.start();
        Begin::Action(Body::Transfer(transfer), action)
    }

    fn facts(&self, operation: Operation, range: &MappedRange, in_zone: bool) -> Facts {
        let profile = self.volume.device.stores()[range.store as usize].profile();
        let has_file = self.volume.files[range.store as usize].is_some();
        let pool = self.helpers.crypt.as_ref().zip(self.volume.crypt.as_deref());
        Facts {
            inline_max_len: has_file.then(|| path::inline_max_len(&profile)),
            copy_min_len: self
                .helpers
                .copy
                .as_ref()
                .and_then(|_| self.helpers.copy_min_len.or(path::copy_min_len(&profile))),
            has_native_fua: profile.has_native_fua,
            in_zone,
            pool_wanted: pool.is_some_and(|(pool, crypt)| pool.wants(operation, crypt, range)),
        }
    }

    /// Ends a request that has not begun.
    fn end_at_start(&mut self, id: RequestId, result: Result<(), RequestError>, memory: Memory) {
        let Some(request) = self.table.remove(id) else { return };
        let Memory { data, spare } = memory;
        self.report(request.origin, request.account, Finished { id: 0, result, data, spare });
    }
}

impl Memory {
    const NONE: Self = Self { data: None, spare: None };
}
