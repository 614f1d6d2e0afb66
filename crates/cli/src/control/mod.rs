//! Control of running volumes: names, state files, sockets, metrics, background processes.
//!
//! A volume with a name has, in the [run directory](crate::system::run_dir), a lock that its process holds, a state
//! file, and a socket that carries one JSON object a line each way. Nothing here is on the request path. Keys are never
//! in a line or a file, they travel in [pipes](crate::system::pipe).

pub(crate) mod background;
pub(crate) mod claim;
pub(crate) mod client;
pub(crate) mod engine;
pub(crate) mod files;
pub(crate) mod info;
pub(crate) mod integrity;
pub(crate) mod line;
pub(crate) mod listener;
pub(crate) mod metrics;
pub(crate) mod name;
pub(crate) mod openmetrics;
pub(crate) mod served;
pub(crate) mod server;
pub(crate) mod state_file;
pub(crate) mod verity;
