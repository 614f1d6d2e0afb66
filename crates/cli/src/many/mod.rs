//! Many volumes in one server: their file, opening and closing them, commands to the server.

mod backoff;
pub(crate) mod config;
pub(crate) mod control;
mod entry;
mod key_command;
mod running;
pub(crate) mod status;
pub(crate) mod volumes;
