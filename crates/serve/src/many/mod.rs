//! Many volumes in one server: their file, opening and closing them, commands to the server.

mod backoff;
pub mod config;
pub mod control;
mod entry;
mod key_command;
mod running;
pub mod status;
pub mod volumes;
