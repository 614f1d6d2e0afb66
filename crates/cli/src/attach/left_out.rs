//! Stand-ins for the frontends that this build leaves out, so that attaching code needs no conditions.
//!
//! Their devices are empty enums, so no value of them exists. The functions that create one fail; `--via` reports the
//! missing feature before one is called.

#[cfg(not(feature = "fuse"))]
pub(crate) mod fuse;
#[cfg(not(feature = "ublk"))]
pub(crate) mod ublk;
