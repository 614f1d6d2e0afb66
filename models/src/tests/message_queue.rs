//! The message queue: threads that post, and a worker that sleeps until it is woken.

use super::in_every_order;
use crate::message_queue::MessageQueue;
use crate::ring::Waker;
use loom::thread;
use std::sync::Arc;

/// Runs turns of a worker until it has received `wanted` messages: it waits, clears the waker, and takes all messages.
fn take(queue: &MessageQueue<(u32, u32)>, waker: &Waker, wanted: usize) -> Vec<(u32, u32)> {
    let mut taken = Vec::new();
    while taken.len() < wanted {
        waker.wait();
        waker.clear();
        taken.extend(std::iter::from_fn(|| queue.next()));
    }
    taken
}

/// Posts `each` messages from each of `threads` threads, and checks that all arrive once, those of a thread in order.
fn post(threads: u32, each: u32) {
    in_every_order(move || {
        let waker = Waker::default();
        let queue = Arc::new(MessageQueue::new(waker.clone(), 4));
        let post = |number| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || (0..each).for_each(|message| queue.push((number, message))))
        };
        let posting: Vec<_> = (0..threads).map(post).collect();
        let mut taken = take(&queue, &waker, (threads * each) as usize);
        posting.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(queue.next(), None);
        // A stable sort keeps the order of each thread's own messages.
        taken.sort_by_key(|(number, _)| *number);
        let expected: Vec<_> =
            (0..threads).flat_map(|number| (0..each).map(move |message| (number, message))).collect();
        assert_eq!(taken, expected);
    });
}

#[test]
fn messages_of_one_thread_arrive_once_and_in_order() {
    post(1, 3);
}

#[test]
fn messages_of_two_threads_arrive_once_each() {
    post(2, 1);
}
