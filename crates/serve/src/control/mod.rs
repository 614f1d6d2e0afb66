//! Control of running volumes: names, state files, sockets, metrics.
//!
//! A volume with a name has, in the [run directory](crate::run_dir), a lock that its process holds, a state
//! file, and a socket that carries one JSON object a line each way. Nothing here is on the request path. Keys are never
//! in a line or a file, they travel in [pipes](crate::pipe).

pub mod claim;
pub mod client;
pub mod engine;
pub mod files;
pub mod info;
pub mod integrity;
pub mod line;
pub mod listener;
pub mod metrics;
pub mod name;
pub mod openmetrics;
pub mod served;
pub mod server;
pub mod servers;
pub mod state_file;
pub mod verity;
