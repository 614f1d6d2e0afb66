//! Stand-ins for the frontends that this build leaves out, so that the code that attaches volumes is written once.
//!
//! None of their devices can exist: each is an empty enum, and a method on one matches on no case. The functions that
//! would make one refuse; `--via` names the missing feature before one is called.

#[cfg(not(feature = "fuse"))]
pub(crate) mod fuse;
#[cfg(not(feature = "ublk"))]
pub(crate) mod ublk;
