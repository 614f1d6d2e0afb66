//! The control plane of a running volume: its name, what is known of it, and a socket to ask and to steer it.
//!
//! A volume with a name has, in the [run directory](crate::run_dir), a lock that lives as long as its process, a file that says
//! what is served, and a socket that takes one JSON object a line each way. Nothing here is on a request's way, and no key
//! is ever in a line or a file: keys travel in pipes ([`pipe`]).

pub(crate) mod client;
pub(crate) mod facts;
pub(crate) mod figures;
pub(crate) mod key_check;
pub(crate) mod line;
pub(crate) mod metrics;
pub(crate) mod name;
pub(crate) mod pipe;
pub(crate) mod running;
pub(crate) mod server;
pub(crate) mod socket;
pub(crate) mod table;

pub(crate) use client::Client;
pub(crate) use facts::Facts;
pub(crate) use name::{Claim, Name};
pub(crate) use running::Running;
pub(crate) use server::Control;
pub(crate) use table::Table;
