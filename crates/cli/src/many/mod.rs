//! Many volumes in one server: their file, opening and closing them, commands to the server.

mod backoff;
pub(crate) mod config;
pub(crate) mod control;
mod key_command;
pub(crate) mod status;
pub(crate) mod volumes;
