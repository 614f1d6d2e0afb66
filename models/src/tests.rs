//! The models.

mod flush;
mod freeze;
mod locks;
mod message_queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs `model` in every order of its threads' steps.
fn in_every_order(model: impl Fn() + Send + Sync + 'static) {
    explore(None, model);
}

/// Runs `model` in every order with at most `preemptions` interruptions of a thread that could continue. For models
/// with too many orders.
fn in_orders_with(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    explore(Some(preemptions), model);
}

fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let orders = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&orders);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    println!("COUNT model_orders {}", orders.load(Ordering::Relaxed));
}
