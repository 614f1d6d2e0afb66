//! Frontends in this process: the NBD server, spoken to byte by byte, and the file that FUSE shows.

mod client;
mod commands;
mod fairness;
#[cfg(feature = "fuse")]
mod fuse;
mod handshake;
mod holes;
mod load;
mod park;
mod regressions;
mod resize;
mod stop;
mod support;
mod tls;
