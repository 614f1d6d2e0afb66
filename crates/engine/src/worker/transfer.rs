//! A read or a write: its states, and the step from one to the next.
//!
//! [`Transfer::step`] takes what has happened and returns what is to be done. It does the cipher work that is done
//! inline; it does no I/O, takes no lock and knows neither ring nor queue, so it is tested without them. A buffer is
//! either in the state, or with the ring, the zone write queue or a helper thread whose event returns it.

use super::account::Account;
use super::action::{Action, Ending, Hold};
use super::path::{Durability, Executor, Order, Path};
use crate::buffer::Buffer;
use crate::cipher_engine::Direction;
use crate::ciphertext::Ciphertext;
use crate::crypt_mapping::CryptMapping;
use crate::errno::Errno;
use crate::events::{Crypted, Event, MergedWrite};
use crate::holes;
use crate::mapping::MappedRange;
use crate::request::RequestError;
use crate::rmw;
use crate::stats::Phase;
use crate::zone_mapping::encrypt_elsewhere;

/// A read or a write of one mapped range.
pub(super) struct Transfer {
    pub(super) kind: Kind,
    pub(super) range: MappedRange,
    pub(super) path: Path,
    pub(super) hold: Hold,
    /// The buffer for edges, which only writes of partial units use.
    pub(super) spare: Option<Buffer>,
    pub(super) state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    /// Writes of data and of zeroes, and appends.
    Write,
    /// A write that a process that died may have carried out, in whole or in part.
    Reissued,
}

/// Where a transfer is.
///
/// | state | event | next |
/// |---|---|---|
/// | `Locking` | `Locked` | read: `Reading` or `Copying`, or finish from a zone's memory; write: `ReadingEdge`, or encrypt; or begin again |
/// | `Deferred` | `Released` | encrypt |
/// | `ReadingEdge` | `Read` | the rest, the other edge, or merge the edges and encrypt |
/// | `Reading` | `Read` | the rest, or decrypt and finish |
/// | `Decrypting`, `Encrypting` | `Crypted`, `Refused` | finish; write |
/// | `Copying` | `Copied`, `Refused` | finish; `Reading`, or encrypt |
/// | `Queued` | `Released`, `Dispatched`, `NotMerged`, `Compared` | `Queued` or `Writing` |
/// | `Queued` | `Merged` | finish: it was written with another write |
/// | `Writing` | `Written` | the rest, `Leaving`, `Syncing`, or finish |
/// | `Leaving` | `Left`, `Reassigned` | `Syncing` or finish; `Writing` elsewhere |
/// | `Syncing` | `Synced` | finish |
///
/// To encrypt is inline, `Encrypting` or `Copying`; then a zone write is `Queued` and any other `Writing`.
#[derive(Debug)]
pub(super) enum State {
    /// Between two states, within [`Transfer::step`].
    Stepping,
    /// Waits for the lock on its data units.
    Locking { data: Buffer },
    /// Waits to begin: in the zone write queue, or for the writes before it to arrive there.
    Deferred { data: Buffer },
    /// Reads an edge, 0 or 1, into the spare buffer.
    ReadingEdge { data: Buffer, edge: usize, done: usize },
    /// Reads the aligned range.
    Reading { done: usize },
    /// With the cipher threads.
    Decrypting,
    /// With the cipher threads.
    Encrypting,
    /// With the copy thread.
    Copying,
    /// Encrypted, in the zone write queue.
    Queued,
    /// Writes the aligned range.
    Writing { done: usize },
    /// Written, and about to leave the zone write queue.
    Leaving { result: Result<(), Errno> },
    /// Waits for a sync of the stores. `error`: why the write has failed.
    Syncing { data: Buffer, error: Option<Errno> },
}

/// Facts that a step depends on.
pub(super) struct StepContext<'a> {
    pub(super) crypt: &'a CryptMapping,
    /// Whether a flush has failed.
    pub(super) has_lost_writes: bool,
}

/// How far a store operation of `wanted` bytes is.
enum Progress {
    /// This many bytes are done: also after an interruption.
    Part(usize),
    Whole,
    Failed(Errno),
}

fn progress(result: Result<usize, Errno>, done: usize, wanted: usize) -> Progress {
    match result {
        Err(Errno::INTR | Errno::AGAIN) => Progress::Part(done),
        Err(error) => Progress::Failed(error),
        // The store ends early, or takes no more: never made up for with zeroes.
        Ok(0) => Progress::Failed(Errno::IO),
        Ok(n) if done + n >= wanted => Progress::Whole,
        Ok(n) => Progress::Part(done + n),
    }
}

/// Reports an event that is not in the table for the state.
#[cold]
fn unexpected(state: &State, event: &Event) -> ! {
    unreachable!("{event:?} in {state:?}")
}

impl Transfer {
    /// Moves on by one event.
    pub(super) fn step(&mut self, event: Event, account: &mut Account, cx: &StepContext<'_>) -> Action {
        match (std::mem::replace(&mut self.state, State::Stepping), event) {
            (State::Locking { data }, Event::Locked) => self.locked(data, account, cx),
            (State::Deferred { data }, Event::Released) => {
                account.lap(Phase::Queue);
                self.encrypt(data, account, cx)
            }
            (State::ReadingEdge { data, edge, done }, Event::Read { buffer, result }) => {
                account.lap(Phase::Store);
                match progress(result, done, self.range.unit_len) {
                    Progress::Part(done) => self.read_edge(data, buffer, edge, done),
                    Progress::Whole => self.edge_read(data, buffer, edge, account, cx),
                    Progress::Failed(error) => {
                        self.spare = Some(buffer);
                        finish(Err(error.into()), data)
                    }
                }
            }
            (State::Reading { done }, Event::Read { buffer, result }) => {
                account.lap(Phase::Store);
                match progress(result, done, self.range.aligned_len) {
                    Progress::Part(done) => self.read(buffer, done),
                    Progress::Whole if self.path.crypt == Executor::Pool => {
                        self.state = State::Decrypting;
                        Action::Crypt { direction: Direction::Decrypt, buffer }
                    }
                    Progress::Whole => self.decrypt(buffer, account, cx),
                    Progress::Failed(error) => finish(Err(error.into()), buffer),
                }
            }
            (State::Writing { done }, Event::Written { data, result }) => {
                account.lap(Phase::Store);
                let result = match progress(result, done, self.range.aligned_len) {
                    Progress::Part(done) => return self.write(data, done),
                    Progress::Whole => Ok(()),
                    Progress::Failed(error) => Err(error),
                };
                if matches!(self.hold, Hold::ZoneWrite(_)) {
                    self.state = State::Leaving { result };
                    return Action::Leave { data, succeeded: result.is_ok() };
                }
                self.written(result, data.into_buffer(), cx)
            }
            (State::Syncing { data, error }, Event::Synced(result)) => {
                finish(error.map_or(result, |error| Err(error.into())), data)
            }
            (state @ (State::Decrypting | State::Encrypting | State::Copying), event) => {
                self.step_on_threads(state, event, account, cx)
            }
            (state @ (State::Queued | State::Leaving { .. }), event) => self.step_in_zone(state, event, account, cx),
            (state, event) => unexpected(&state, &event),
        }
    }

    /// [`Transfer::step`] with the data at the cipher threads or the copy thread.
    fn step_on_threads(&mut self, state: State, event: Event, account: &mut Account, cx: &StepContext<'_>) -> Action {
        match (state, event) {
            (State::Decrypting, Event::Refused(buffer)) => self.decrypt(buffer, account, cx),
            (State::Encrypting, Event::Refused(data)) => self.encrypt_inline(data, account, cx),
            (State::Decrypting | State::Encrypting, Event::Crypted { data, calls }) => {
                account.work.offloaded = true;
                account.ciphered(calls, self.units());
                match data {
                    Crypted::Decrypted(buffer) => finish(Ok(()), buffer),
                    Crypted::Encrypted(data) => self.encrypted(data, cx),
                    Crypted::Poisoned(buffer) => finish(Err(Errno::IO.into()), buffer),
                }
            }
            (State::Copying, Event::Refused(buffer)) if self.kind == Kind::Read => self.read(buffer, 0),
            (State::Copying, Event::Refused(data)) => self.encrypt_inline(data, account, cx),
            (State::Copying, Event::Copied { buffer, result, calls, cipher }) => {
                account.copied(calls, self.units(), cipher);
                finish(result.map_err(RequestError::Io), buffer)
            }
            (state, event) => unexpected(&state, &event),
        }
    }

    /// [`Transfer::step`] with the data in the zone write queue, or about to leave it.
    fn step_in_zone(&mut self, state: State, event: Event, account: &mut Account, cx: &StepContext<'_>) -> Action {
        match (state, event) {
            (State::Queued, Event::Released) => {
                self.state = State::Queued;
                Action::Dispatch
            }
            (State::Queued, Event::Dispatched { data, position }) => {
                account.lap(Phase::Queue);
                match self.reassign(position, data, account, cx) {
                    Ok(data) if self.kind == Kind::Reissued => {
                        self.state = State::Queued;
                        Action::Compare { data }
                    }
                    Ok(data) => {
                        self.state = State::Queued;
                        Action::Merge { data }
                    }
                    Err((error, data)) => finish(Err(error), data.into_buffer()),
                }
            }
            (State::Queued, Event::NotMerged { data }) => self.write(data, 0),
            (State::Queued, Event::Compared { data, present }) => match present {
                Ok(present) if present < self.range.aligned_len => self.write(data, present),
                Ok(_) if self.path.is_fua() => self.sync(data.into_buffer(), None),
                Ok(_) => finish(Ok(()), data.into_buffer()),
                Err(error) => finish(Err(error.into()), data.into_buffer()),
            },
            (State::Queued, Event::Merged(MergedWrite { data, result, since })) => {
                account.lap_until(Phase::Queue, since);
                account.lap(Phase::Store);
                // The worker that wrote it has taken it out of the queue.
                self.hold = Hold::None;
                let lost = || Buffer::new(self.range.aligned_len);
                finish(result.map_err(RequestError::Io), data.map_or_else(lost, Ciphertext::into_buffer))
            }
            (State::Leaving { result }, Event::Left { data, landed }) => {
                self.hold = Hold::None;
                match result {
                    // In the wrong place, say, which tells nothing of other writes. Only the store knows of those.
                    Err(error) if self.path.is_fua() && !landed => self.sync(data.into_buffer(), Some(error)),
                    result => self.written(result, data.into_buffer(), cx),
                }
            }
            (State::Leaving { .. }, Event::Reassigned { data, position }) => {
                match self.reassign(position, data, account, cx) {
                    Ok(data) => self.write(data, 0),
                    Err((error, data)) => finish(Err(error), data.into_buffer()),
                }
            }
            (state, event) => unexpected(&state, &event),
        }
    }

    fn locked(&mut self, mut data: Buffer, account: &mut Account, cx: &StepContext<'_>) -> Action {
        let into = self.range.requested();
        if self.kind == Kind::Read
            && cx.crypt.read_zone(&self.range, |plaintext| data.data_mut()[into].copy_from_slice(plaintext))
        {
            account.lap(Phase::Queue);
            return finish(Ok(()), data);
        }
        // The lock keeps the boundary of a re-encryption where it is.
        if !cx.crypt.is_current(&self.range) {
            return Action::BeginAgain { data };
        }
        account.lap(Phase::Queue);
        match (self.kind, self.path.order) {
            (Kind::Read, _) if self.path.crypt == Executor::Copy => {
                self.state = State::Copying;
                Action::Copy { writes: false, buffer: data }
            }
            (Kind::Read, _) => self.read(data, 0),
            (_, Order::Exclusive) => match self.spare.take() {
                Some(spare) => {
                    let [head, _] = rmw::edges(&self.range);
                    self.read_edge(data, spare, usize::from(head.is_none()), 0)
                }
                None => finish(Err(Errno::INVAL.into()), data),
            },
            _ => self.encrypt(data, account, cx),
        }
    }

    fn read(&mut self, buffer: Buffer, done: usize) -> Action {
        self.state = State::Reading { done };
        let offset = self.range.store_offset + done as u64;
        Action::Read { via: self.path.store, offset, buffer, span: done..self.range.aligned_len }
    }

    fn read_edge(&mut self, data: Buffer, spare: Buffer, edge: usize, done: usize) -> Action {
        let unit = rmw::edges(&self.range)[edge].expect("an edge that exists is read");
        self.state = State::ReadingEdge { data, edge, done };
        let span = unit.spare_offset + done..unit.spare_offset + unit.len;
        Action::Read { via: self.path.edge, offset: unit.store_offset + done as u64, buffer: spare, span }
    }

    fn edge_read(
        &mut self,
        mut data: Buffer,
        mut spare: Buffer,
        edge: usize,
        account: &mut Account,
        cx: &StepContext<'_>,
    ) -> Action {
        let edges = rmw::edges(&self.range);
        if edge == 0 && edges[1].is_some() {
            return self.read_edge(data, spare, 1, 0);
        }
        rmw::merge_edges(cx.crypt, &self.range, spare.data_mut(), data.data_mut());
        self.spare = Some(spare);
        let count = edges.iter().flatten().count();
        account.ciphered(count as u32, if self.range.unit_len > 1 { count } else { 0 });
        self.encrypt(data, account, cx)
    }

    fn decrypt(&mut self, buffer: Buffer, account: &mut Account, cx: &StepContext<'_>) -> Action {
        let buffer = cx.crypt.decrypt(&self.range, Ciphertext::from_store(buffer));
        account.ciphered(1, self.units());
        finish(Ok(()), buffer)
    }

    fn encrypt(&mut self, data: Buffer, account: &mut Account, cx: &StepContext<'_>) -> Action {
        match self.path.crypt {
            Executor::Inline => self.encrypt_inline(data, account, cx),
            Executor::Pool => {
                self.state = State::Encrypting;
                Action::Crypt { direction: Direction::Encrypt, buffer: data }
            }
            Executor::Copy => {
                self.state = State::Copying;
                Action::Copy { writes: true, buffer: data }
            }
        }
    }

    fn encrypt_inline(&mut self, data: Buffer, account: &mut Account, cx: &StepContext<'_>) -> Action {
        let data = cx.crypt.encrypt(&self.range, data);
        account.ciphered(1, self.units());
        self.encrypted(data, cx)
    }

    fn encrypted(&mut self, data: Ciphertext, cx: &StepContext<'_>) -> Action {
        if let Err(error) = holes::check_write(cx.crypt, &self.range, data.bytes()) {
            return finish(Err(error), data.into_buffer());
        }
        if matches!(self.hold, Hold::ZoneWrite(_)) {
            self.state = State::Queued;
            return Action::Queue { data, can_merge: !self.path.is_fua() && self.kind != Kind::Reissued };
        }
        self.write(data, 0)
    }

    fn write(&mut self, data: Ciphertext, done: usize) -> Action {
        self.state = State::Writing { done };
        let offset = self.range.store_offset + done as u64;
        let fua = self.path.durability == Durability::Native;
        Action::Write { via: self.path.store, offset, data, span: done..self.range.aligned_len, fua }
    }

    /// The write has ended. If it was to be durable, what that takes follows.
    fn written(&mut self, result: Result<(), Errno>, data: Buffer, cx: &StepContext<'_>) -> Action {
        match (self.path.durability, result) {
            (Durability::None, result) => finish(result.map_err(RequestError::Io), data),
            (Durability::Sync, Ok(())) => self.sync(data, None),
            (Durability::Sync, Err(error)) => finish(Err(error.into()), data),
            (Durability::Native, Ok(())) if cx.has_lost_writes => finish(Err(Errno::IO.into()), data),
            (Durability::Native, Ok(())) => finish(Ok(()), data),
            // No room for these bytes: whether others are lost as well is known to the store only.
            (Durability::Native, Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG))) => {
                self.sync(data, Some(error))
            }
            // The disk may have failed to empty its cache.
            (Durability::Native, Err(error)) => {
                Action::Finish(Ending { result: Err(error.into()), data: Some(data), lost_writes: true })
            }
        }
    }

    fn sync(&mut self, data: Buffer, error: Option<Errno>) -> Action {
        self.state = State::Syncing { data, error };
        Action::Sync
    }

    /// Encrypts the data again if they are to be written at another position than they were encrypted for.
    fn reassign(
        &mut self,
        position: u64,
        data: Ciphertext,
        account: &mut Account,
        cx: &StepContext<'_>,
    ) -> Result<Ciphertext, (RequestError, Ciphertext)> {
        if self.range.store_offset == position {
            return Ok(data);
        }
        let (elsewhere, data) = encrypt_elsewhere(cx.crypt, &self.range, position, data)?;
        self.range = elsewhere;
        account.ciphered(2, 2 * self.units());
        Ok(data)
    }

    /// Data units in the aligned range; none if they are not encrypted.
    fn units(&self) -> usize {
        if self.range.unit_len > 1 { self.range.aligned_len / self.range.unit_len } else { 0 }
    }
}

fn finish(result: Result<(), RequestError>, data: Buffer) -> Action {
    Action::Finish(Ending::new(result, Some(data)))
}

#[cfg(test)]
mod tests;
