//! What a frontend is to a worker: who asks, in what terms, and how other threads reach it.

use super::mailbox::MessageQueue;
use crate::buffer::{Buffer, BufferPool};
use crate::carrier::{Carried, Delivery};
use crate::crypt_mapping::MappedRange;
use crate::device::Device;
use crate::locks::Granted;
use crate::mapping::Mapping;
use crate::offload::{Ciphered, Done};
use crate::request::{Operation, RequestError};
use crate::ring::{Completion, Ring, Wait, Waker};
use crate::zoned::mgmt_thread::Managed;
use crate::zoned::queue::{Queued, Written};
use rustix::io::Errno;
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

/// Messages of a frontend that have room; who posts more at a time may have to allocate it.
const FRONT_MESSAGES: usize = 1024;

/// How other threads reach a worker.
pub struct Mailbox<M> {
    messages: MessageQueue<Message<M>>,
}

pub(super) enum Message<M> {
    Front(M),
    Granted(u64),
    Written(u64, Written),
    Ciphered(u64, Done),
    Carried(u64, Delivery),
    Managed(u64, Result<(), Errno>),
}

impl<M> Mailbox<M> {
    /// With room for `most` messages about requests, and some of the frontend's.
    pub(super) fn new(waker: Waker, most: usize) -> Self {
        Self { messages: MessageQueue::new(waker, most + FRONT_MESSAGES) }
    }

    /// Sends the frontend a message and wakes the worker.
    pub fn post(&self, message: M) {
        self.push(Message::Front(message));
    }

    pub(super) fn next(&self) -> Option<Message<M>> {
        self.messages.next()
    }

    fn push(&self, message: Message<M>) {
        self.messages.push(message);
    }
}

impl<M: Send> Granted for Mailbox<M> {
    fn granted(&self, token: u64) {
        self.push(Message::Granted(token));
    }
}

impl<M: Send> Queued for Mailbox<M> {
    fn turn(&self, token: u64) {
        self.push(Message::Granted(token));
    }

    fn written(&self, token: u64, written: Written) {
        self.push(Message::Written(token, written));
    }
}

impl<M: Send> Ciphered for Mailbox<M> {
    fn ciphered(&self, token: u64, done: Done) {
        self.push(Message::Ciphered(token, done));
    }
}

impl<M: Send> Carried for Mailbox<M> {
    fn carried(&self, token: u64, delivery: Delivery) {
        self.push(Message::Carried(token, delivery));
    }
}

impl<M: Send> Managed for Mailbox<M> {
    fn managed(&self, token: u64, result: Result<(), Errno>) {
        self.push(Message::Managed(token, result));
    }
}
