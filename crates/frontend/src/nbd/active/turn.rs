//! Parts of the worker that a turn lends, and charges of its requests.

use crate::nbd::protocol::{Export, command};
use crate::nbd::throttle::{Blocked, Charge, Throttle};
use crate::nbd::transmission::Command;
use crate::nbd::zeroing::zeroes_written;
use inlock_engine::worker::Request;
use inlock_engine::{BufferPool, Device, Mapping};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Parts of the worker that one turn lends to sessions and active requests.
pub(in crate::nbd) struct Turn<'a> {
    pub(in crate::nbd) pool: &'a mut BufferPool,
    pub(in crate::nbd) device: &'a Device,
    pub(in crate::nbd) mapping: &'a Mapping,
    /// Requests that the worker is to start.
    pub(in crate::nbd) requests: &'a mut VecDeque<Request>,
    /// Export that is advertised to new clients.
    pub(in crate::nbd) export: &'a Export,
    /// Number of the turn.
    pub(in crate::nbd) number: u64,
    pub(in crate::nbd) now: Instant,
    /// The server stops: no more commands are read.
    pub(in crate::nbd) is_draining: bool,
    /// Limits of the export.
    pub(in crate::nbd) throttle: Option<&'a Arc<Throttle>>,
    /// Other sessions wait for a limit, and come first.
    pub(in crate::nbd) must_wait: bool,
}

impl Turn<'_> {
    /// Returns why no request may begin now, if the export is at a limit.
    pub(in crate::nbd) fn hold(&self) -> Option<Blocked> {
        self.throttle.and_then(|throttle| throttle.hold(self.now))
    }

    /// Charges a request that begins.
    pub(super) fn charge(&self, command: &Command) -> Option<Charge> {
        let throttle = self.throttle?;
        let (moved, in_flight) = match command.kind {
            command::READ | command::WRITE => (command.len, command.len),
            // One piece at a time.
            command::WRITE_ZEROES => {
                let written = zeroes_written(command, self.device.access(), self.mapping);
                (written, command.len.min(BufferPool::LARGEST_PIECE as u64))
            }
            // A discard changes what the store knows of the bytes, and moves none.
            _ => (0, 0),
        };
        Some(throttle.begin(moved, in_flight, self.now))
    }

    /// Charges zeroes that are written although they were to be holes.
    pub(super) fn charge_zeroes(&self, len: u64) {
        if let Some(throttle) = self.throttle {
            throttle.charge_bytes(len, self.now);
        }
    }
}
