//! The NBD server in this process, spoken to byte by byte.

mod client;
mod commands;
mod handshake;
mod load;
mod regressions;
mod support;
