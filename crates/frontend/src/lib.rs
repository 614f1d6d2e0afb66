//! Who asks: one folder and one feature for each way of handing a volume out.

#[cfg(feature = "fuse")]
pub mod fuse;
#[cfg(feature = "nbd")]
pub mod nbd;
#[cfg(feature = "ublk")]
pub mod ublk;
