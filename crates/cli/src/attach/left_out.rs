//! Stand-ins for the frontends that this build leaves out, so that the code that attaches volumes is written once.
//!
//! Their devices are empty enums, which cannot exist. The functions that make one fail; `--via` reports the missing
//! feature before one is called.

#[cfg(not(feature = "fuse"))]
pub(crate) mod fuse;
#[cfg(not(feature = "ublk"))]
pub(crate) mod ublk;
