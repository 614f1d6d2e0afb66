//! Running volumes: names and control of the volumes that a process serves, their status and metrics, block devices and
//! files to attach them as.

#![forbid(unsafe_code)]

pub mod attach;
pub mod attached;
pub mod control;
pub mod error;
pub mod listen;
pub mod many;
pub mod method;
pub mod pipe;
pub mod program;
pub mod run_dir;
pub mod socket;
pub mod tls;
pub mod trusted_config;

pub use error::{Error, Reply, Result, Told};
pub use method::AttachMethod;
pub use program::Program;
