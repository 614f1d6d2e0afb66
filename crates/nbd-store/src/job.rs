//! Jobs of the driver: a request of the engine, a query of extents, or a request of the store's own.

use super::replay::Entry;
use inlock_engine::Errno;
use inlock_engine::store::StoreOperation;
use inlock_engine::store::asynchronous::Pending;
use inlock_frontend::nbd::handshake::ReplyStyle;
use inlock_frontend::nbd::protocol::{command, command_flag};
use inlock_frontend::nbd::transmission::Command;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write { durable: bool },
    Flush,
    Discard,
    Extents,
}

/// Receiver of a result.
pub(crate) enum Owner {
    Engine(Pending),
    /// A caller of `block_status`.
    Query(Sender<(u64, u64)>),
    /// The replay of a write.
    Replay(Arc<Entry>),
    /// The store itself, for a flush.
    Store,
}

/// A request, sent again until it has a reply.
pub(crate) struct Job {
    pub(crate) kind: Kind,
    pub(crate) owner: Owner,
    pub(crate) offset: u64,
    /// Length of the current request.
    pub(crate) len: u64,
    /// End of a discard, which may take several requests.
    pub(crate) end: u64,
    /// Place in the order of first sending; 0: not sent yet.
    pub(crate) number: u64,
    /// Acknowledged writes that a flush covers.
    pub(crate) covered: u64,
    pub(crate) deadline: Instant,
    /// A server may still carry it out over a connection that was given up.
    pub(crate) is_doubtful: bool,
}

impl Job {
    pub(crate) fn new(kind: Kind, owner: Owner, offset: u64, len: u64, deadline: Instant) -> Self {
        let end = offset.saturating_add(len);
        Self { kind, owner, offset, len, end, number: 0, covered: 0, deadline, is_doubtful: false }
    }

    /// Returns the job of an operation. `None`: the operation is unknown, and has failed.
    pub(crate) fn of(pending: Pending, deadline: Instant) -> Option<Self> {
        let (kind, offset, len) = match pending.operation() {
            StoreOperation::Read { offset, range, .. } => (Kind::Read, *offset, range.len() as u64),
            StoreOperation::Write { offset, range, durable, .. } => {
                (Kind::Write { durable: *durable }, *offset, range.len() as u64)
            }
            StoreOperation::Sync => (Kind::Flush, 0, 0),
            StoreOperation::Discard { offset, len } => (Kind::Discard, *offset, *len),
            _ => return None,
        };
        Some(Self::new(kind, Owner::Engine(pending), offset, len, deadline))
    }

    /// Returns whether the request is a write.
    pub(crate) fn is_write(&self) -> bool {
        matches!(self.kind, Kind::Write { .. })
    }

    /// Returns whether the request changes bytes of the export.
    pub(crate) fn is_change(&self) -> bool {
        self.is_write() || self.kind == Kind::Discard
    }

    /// Returns whether two ranges share bytes.
    pub(crate) fn is_overlapping(&self, offset: u64, len: u64) -> bool {
        self.offset < offset.saturating_add(len) && offset < self.offset.saturating_add(self.len)
    }

    /// Returns the request as it is sent.
    pub(crate) fn command(&self, cookie: u64, style: ReplyStyle) -> Command {
        let extended = style == ReplyStyle::Extended;
        let (kind, flags) = match self.kind {
            Kind::Read => (command::READ, 0),
            Kind::Write { durable } => {
                let fua = if durable { command_flag::FUA } else { 0 };
                (command::WRITE, fua | if extended { command_flag::PAYLOAD_LEN } else { 0 })
            }
            Kind::Flush => (command::FLUSH, 0),
            Kind::Discard => (command::TRIM, 0),
            Kind::Extents => (command::BLOCK_STATUS, command_flag::REQ_ONE),
        };
        Command::new(kind, flags, cookie, (self.offset, self.len))
    }

    /// Returns the data of a write.
    pub(crate) fn payload(&self) -> &[u8] {
        match &self.owner {
            Owner::Engine(pending) => match pending.operation() {
                StoreOperation::Write { data, range, .. } => &data.bytes()[range.clone()][..self.len as usize],
                _ => &[],
            },
            Owner::Replay(entry) => &entry.data,
            Owner::Query(_) | Owner::Store => &[],
        }
    }

    /// Returns the memory of a read.
    pub(crate) fn buffer(&mut self) -> &mut [u8] {
        match &mut self.owner {
            Owner::Engine(pending) => match pending.operation_mut() {
                StoreOperation::Read { buffer, range, .. } => {
                    &mut buffer.data_mut()[range.clone()][..self.len as usize]
                }
                _ => &mut [],
            },
            _ => &mut [],
        }
    }

    /// Ends the job.
    pub(crate) fn complete(self, result: Result<(), Errno>) {
        let moved = match self.kind {
            Kind::Read | Kind::Write { .. } => self.len as usize,
            _ => 0,
        };
        if let Owner::Engine(pending) = self.owner {
            pending.complete(result.map(|()| moved));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_only_adjoin_do_not_overlap() {
        let job = Job::new(Kind::Read, Owner::Store, 512, 512, Instant::now());
        for (offset, len, expected) in
            [(0, 512, false), (0, 513, true), (1023, 1, true), (1024, 1, false), (600, 1, true), (0, u64::MAX, true)]
        {
            assert_eq!(job.is_overlapping(offset, len), expected, "{len} bytes at {offset}");
        }
    }

    #[test]
    fn change_is_a_write_or_a_discard() {
        for (kind, is_write, is_change) in [
            (Kind::Read, false, false),
            (Kind::Write { durable: false }, true, true),
            (Kind::Write { durable: true }, true, true),
            (Kind::Discard, false, true),
            (Kind::Flush, false, false),
            (Kind::Extents, false, false),
        ] {
            let job = Job::new(kind, Owner::Store, 0, 512, Instant::now());
            assert_eq!((job.is_write(), job.is_change()), (is_write, is_change));
        }
    }
}
