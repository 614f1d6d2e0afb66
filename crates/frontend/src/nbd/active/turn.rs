//! Parts of the worker that a turn lends.

use crate::nbd::protocol::Export;
use inlock_engine::worker::Request;
use inlock_engine::{BufferPool, Device, Mapping};
use std::collections::VecDeque;
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
    /// Other sessions wait for bytes in flight, and come first.
    pub(in crate::nbd) must_wait: bool,
}
