//! FUSE: the volume as one file, for programs, for users without root, and for a loop device on top.
//!
//! The mount has a single inode, its root, which is a regular file: it is mounted over a file, as other disk tools do.
//! [`file`] answers the kernel on a [`inlock_engine::BlockingDevice`], [`mount`] begins and ends that, and
//! [`loop_device`] makes the file a block device.

mod file;
pub mod loop_device;
pub mod mount;
