//! The frontends that attach volumes, or their stand-ins if this build leaves them out.

#[cfg(feature = "fuse")]
pub(super) use inlock_frontend::fuse;
pub(super) use inlock_frontend::nbd::kernel as nbd;
#[cfg(feature = "ublk")]
pub(super) use inlock_frontend::ublk::device as ublk;

#[cfg(not(feature = "fuse"))]
pub(super) use super::left_out::fuse;
#[cfg(not(feature = "ublk"))]
pub(super) use super::left_out::ublk;
