//! Messages from other threads to a worker.
//!
//! Model-checked: the package `inlock-models` compiles this file with loom's primitives.

use crate::ring::Waker;
use crate::sync::{Mutex, PoisonError};
use std::collections::VecDeque;

/// A queue of messages that any thread adds to and one worker empties.
pub(super) struct MessageQueue<T> {
    messages: Mutex<VecDeque<T>>,
    waker: Waker,
}

impl<T> MessageQueue<T> {
    /// With room for `most` messages at a time; more have to be allocated.
    pub(super) fn new(waker: Waker, most: usize) -> Self {
        Self { messages: Mutex::new(VecDeque::with_capacity(most)), waker }
    }

    /// Adds a message and wakes the worker. In this order: a worker that has been woken finds the message.
    pub(super) fn push(&self, message: T) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push_back(message);
        self.waker.wake();
    }

    /// Takes the oldest message. A worker that has been woken takes all, after it has cleared the waker.
    pub(super) fn next(&self) -> Option<T> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let next = messages.pop_front();
        if messages.is_empty() {
            // The next one lies at the front of the memory again, which is in the cache.
            messages.clear();
        }
        next
    }
}
