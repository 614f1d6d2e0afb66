//! Who asks: one folder and one feature for each way of handing a volume out.

#![forbid(unsafe_code)]

#[cfg(feature = "fuse")]
pub mod fuse;
#[cfg(feature = "nbd")]
pub mod nbd;
