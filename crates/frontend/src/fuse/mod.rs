//! FUSE: the volume as one file, for programs, for users without root, and for a loop device on it.
//!
//! The mount has a single inode, its root, which is a regular file: it is mounted over a file. `file` serves the
//! kernel's requests from a [`inlock_engine::BlockingDevice`], [`mount`] mounts and unmounts, and [`loop_device`] makes
//! the file a block device.

mod file;
pub mod loop_device;
pub mod mount;
