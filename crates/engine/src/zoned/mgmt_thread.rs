//! The mgmt_thread of a worker's zones: a thread that gives orders to zones, which a drive may take long to follow.
//!
//! It is started by the first order. Who asked is told when the order has been carried out, and the writes behind it go on.

use super::queue::ZoneMgmtId;
use crate::device::Device;
use rustix::io::Errno;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// Who is told that an order was carried out.
pub(crate) trait Managed: Send + Sync {
    /// How the order with `token` ended.
    fn managed(&self, token: u64, result: Result<(), Errno>);
}

/// An order whose turn it is.
pub(crate) struct Order {
    pub(crate) device: Arc<Device>,
    pub(crate) action: ZoneMgmtId,
    pub(crate) to: Arc<dyn Managed>,
    pub(crate) token: u64,
}

/// A thread that carries orders out, one after the other.
pub(crate) struct ZoneMgmtThread {
    orders: Option<mpsc::Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl ZoneMgmtThread {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        let (orders, received) = mpsc::channel::<Order>();
        let work = move || received.into_iter().for_each(Order::carry_out);
        let thread = std::thread::Builder::new().name("inlock-zones".into()).spawn(work)?;
        Ok(Self { orders: Some(orders), thread: Some(thread) })
    }

    /// Takes `order`.
    pub(crate) fn post(&self, order: Order) {
        let orders = self.orders.as_ref().expect("the channel is open until this is dropped");
        // The thread ends only after the channel, whatever an order does.
        orders.send(order).expect("the thread receives until the channel is closed");
    }
}

impl Drop for ZoneMgmtThread {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // Carrying an order out catches what a store panics with, so it has nothing to say.
            let _ = thread.join();
        }
    }
}

impl Order {
    fn carry_out(self) {
        let Self { device, action, to, token } = self;
        let zones = device.zones().expect("orders go to devices with zones");
        to.managed(token, zones.carry_out(action));
    }
}
