//! What a frontend is to a worker: who asks, in what terms, and how other threads reach it.

use crate::buffer::{Buffer, BufferPool};
use crate::crypt_mapping::MappedRange;
use crate::device::Device;
use crate::mapping::Mapping;
use crate::message_queue::MessageQueue;
use crate::request::{Operation, RequestError};
use crate::ring::{Completion, Ring, Wait, Waker};
use std::collections::VecDeque;

/// A request and the memory it needs; the frontend made both.
#[derive(Debug)]
pub struct Request {
    /// The frontend's name for it.
    pub id: u64,
    /// What is asked.
    pub operation: Operation,
    /// Where; any range for a flush.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// For operations that move data: where that lies ([`crate::Mapping::locate`]), and a buffer that holds the aligned range,
    /// with a write's bytes at [`MappedRange::requested`].
    pub data: Option<(MappedRange, Buffer)>,
    /// For writes with partial units: room for [`crate::rmw::spare_len`] bytes. Otherwise it comes back as it is.
    pub spare: Option<Buffer>,
}

/// A request that has ended, with its memory. A read's bytes are at [`MappedRange::requested`].
#[derive(Debug)]
pub struct Finished {
    /// The frontend's name for it.
    pub id: u64,
    /// How it ended.
    pub result: Result<(), RequestError>,
    /// What [`Request::data`] was.
    pub data: Option<(MappedRange, Buffer)>,
    /// What [`Request::spare`] was.
    pub spare: Option<Buffer>,
}

/// Whether a worker goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// There may be more.
    Continue,
    /// The frontend is finished.
    Stop,
}

/// What a frontend may use while it is called.
pub struct Context<'a> {
    /// Where its own operations go. Tokens with the top bit set are the worker's.
    pub ring: &'a mut Ring,
    /// The worker's buffers.
    pub pool: &'a mut BufferPool,
    /// The device that is served.
    pub device: &'a Device,
    /// Where its data units lie, as the worker sees it.
    pub mapping: &'a Mapping,
    /// Whether requests wait because the device is suspended.
    pub suspended: bool,
    /// Requests that the worker is to carry out.
    pub requests: &'a mut VecDeque<Request>,
}

/// Who asks. One frontend, one thread, one ring.
pub trait Frontend {
    /// What other threads send it through [`Mailbox::post`].
    type Message: Send;

    /// Its own buffers, as far as they go to stores: the worker's ring is told of them at the start.
    fn buffers(&mut self) -> Vec<&mut Buffer> {
        Vec::new()
    }
    /// Something was posted.
    fn on_message(&mut self, cx: &mut Context<'_>, message: Self::Message);
    /// One of its own operations has ended.
    fn on_completion(&mut self, cx: &mut Context<'_>, done: Completion);
    /// One of its requests has ended.
    fn on_finished(&mut self, cx: &mut Context<'_>, done: Finished);
    /// Takes one step with what completions, messages and ended requests have brought. The worker calls it when nothing else
    /// is to be done, until it returns false: there was nothing to do.
    fn process(&mut self, cx: &mut Context<'_>) -> bool {
        let _ = cx;
        false
    }
    /// Everything that this turn brought was handled: the moment to send what was collected. Says how long the next
    /// turn may wait, or that nothing is left to do.
    fn end_turn(&mut self, cx: &mut Context<'_>) -> (Flow, Wait);
}

/// Messages of a frontend that have room; more at a time may have to be allocated.
const FRONT_MESSAGES: usize = 1024;

/// How other threads reach a worker's frontend.
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

    pub(super) fn next(&self) -> Option<M> {
        self.messages.next()
    }
}
