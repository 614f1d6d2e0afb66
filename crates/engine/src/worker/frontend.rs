//! Interface between a worker and its frontend: requests, completions, and messages from other threads.

use crate::buffer::{Buffer, BufferPool};
use crate::crypt_mapping::MappedRange;
use crate::device::Device;
use crate::mapping::Mapping;
use crate::message_queue::MessageQueue;
use crate::request::{Operation, RequestError};
use crate::ring::{Completion, Ring, Wait, Waker};
use std::collections::VecDeque;

/// Request with its memory; both come from the frontend.
#[derive(Debug)]
pub struct Request {
    /// The frontend's identifier of the request.
    pub id: u64,
    /// Operation to carry out.
    pub operation: Operation,
    /// First byte of the range; ignored for a flush.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// For an operation that moves data: the mapped range ([`crate::Mapping::locate`]) and a buffer for its aligned
    /// range, with the data of a write at [`MappedRange::requested`].
    pub data: Option<(MappedRange, Buffer)>,
    /// For a write of partial units: a buffer for [`crate::rmw::spare_len`] bytes. Other operations return it unused.
    pub spare: Option<Buffer>,
}

impl Request {
    /// Ends the request with its memory.
    pub(super) fn end(&mut self, result: Result<(), RequestError>) -> Finished {
        Finished { id: self.id, result, data: self.data.take(), spare: self.spare.take() }
    }
}

/// Request that has completed, with its memory. The data of a read is at [`MappedRange::requested`].
#[derive(Debug)]
pub struct Finished {
    /// The frontend's identifier of the request.
    pub id: u64,
    /// Result of the request.
    pub result: Result<(), RequestError>,
    /// Memory from [`Request::data`].
    pub data: Option<(MappedRange, Buffer)>,
    /// Memory from [`Request::spare`].
    pub spare: Option<Buffer>,
}

/// Whether the worker continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The worker starts the next turn.
    Continue,
    /// The worker stops.
    Stop,
}

/// Resources that a worker lends its frontend for the length of a call.
#[non_exhaustive]
pub struct Context<'a> {
    /// Ring for the frontend's own operations. The worker uses the tokens with the top bit set.
    pub ring: &'a mut Ring,
    /// Buffer pool of the worker.
    pub pool: &'a mut BufferPool,
    /// Device that is served.
    pub device: &'a Device,
    /// Mapping that the worker uses.
    pub mapping: &'a Mapping,
    /// Whether requests wait because the device is suspended.
    pub suspended: bool,
    /// Queue of requests to the worker.
    pub requests: &'a mut VecDeque<Request>,
}

/// Source of a worker's requests, called on the worker's thread. Its methods must not block.
pub trait Frontend {
    /// Type of the messages that other threads send with [`Mailbox::post`].
    type Message: Send;

    /// Handles a posted message.
    fn on_message(&mut self, cx: &mut Context<'_>, message: Self::Message);
    /// Handles the completion of one of the frontend's own ring operations.
    fn on_completion(&mut self, cx: &mut Context<'_>, done: Completion);
    /// Handles the completion of a request.
    fn on_finished(&mut self, cx: &mut Context<'_>, done: Finished);
    /// Processes input in one step and returns whether there was any. The worker calls it when it has nothing else to
    /// do, until it returns false.
    fn process(&mut self, cx: &mut Context<'_>) -> bool {
        let _ = cx;
        false
    }
    /// Ends a turn and sends the replies queued in it. Returns how long the next turn may wait, or [`Flow::Stop`].
    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait);
}

/// Number of messages that a mailbox has memory for; more at a time are allocated.
const FRONT_MESSAGES: usize = 1024;

/// Mailbox through which other threads reach a worker's frontend.
pub struct Mailbox<M> {
    messages: MessageQueue<M>,
}

impl<M> Mailbox<M> {
    pub(super) fn new(waker: Waker) -> Self {
        Self { messages: MessageQueue::new(waker, FRONT_MESSAGES) }
    }

    /// Sends the frontend a message and wakes the worker.
    pub fn post(&self, message: M) {
        self.messages.push(message);
    }

    /// Takes the oldest message that was not handled: for those of a worker that has ended.
    pub fn next(&self) -> Option<M> {
        self.messages.next()
    }
}
