//! Fuzz targets: one function of bytes for each door that takes bytes from outside.
//!
//! A target panics when a promise is broken: nothing panics, writes while it loads, or allocates without bound. The same
//! functions are run by libFuzzer (`cargo xtask fuzz`) and, on the saved corpus, by a normal test.

#![forbid(unsafe_code)]

mod device;
mod headers;
mod table;
mod wire;

pub use headers::{luks1_header, luks2_header, luks2_json};
pub use table::table;
pub use wire::nbd_wire;

/// A target: it takes any bytes, and panics when a promise is broken.
pub type Target = fn(&[u8]);

/// The targets by name, as their corpus folders are called.
pub const TARGETS: [(&str, Target); 5] = [
    ("luks1_header", luks1_header),
    ("luks2_header", luks2_header),
    ("luks2_json", luks2_json),
    ("nbd_wire", nbd_wire),
    ("table", table),
];
