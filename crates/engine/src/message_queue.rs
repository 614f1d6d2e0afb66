//! Queue to which any thread adds messages and from which one worker takes them.
//!
//! Model-checked: the package `inlock-models` compiles this file with loom's primitives.

use crate::ring::Waker;
use crate::sync::{Mutex, PoisonError};
use std::collections::VecDeque;

/// Messages for one worker.
pub(crate) struct MessageQueue<T> {
    messages: Mutex<VecDeque<T>>,
    waker: Waker,
}

impl<T> MessageQueue<T> {
    /// Returns a queue with memory for `capacity` messages; more at a time are allocated.
    pub(crate) fn new(waker: Waker, capacity: usize) -> Self {
        Self { messages: Mutex::new(VecDeque::with_capacity(capacity)), waker }
    }

    /// Adds a message and wakes the worker. In this order: a worker that was woken finds the message.
    pub(crate) fn push(&self, message: T) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push_back(message);
        self.waker.wake();
    }

    /// Takes the oldest message. A worker that was woken clears the waker first, then takes all messages.
    pub(crate) fn next(&self) -> Option<T> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let next = messages.pop_front();
        if messages.is_empty() {
            // The next message uses the front of the memory again, which is cached.
            messages.clear();
        }
        next
    }
}
