//! Fuzz targets: one function of bytes for each door that takes bytes from outside.
//!
//! A target panics when a promise is broken: nothing panics, writes while it loads, or allocates without bound. The same
//! functions are run by libFuzzer (`cargo xtask fuzz`) and, on the saved corpus, by a normal test.

#![forbid(unsafe_code)]

mod control;
mod device;
mod headers;
mod included;
// What reads answers is private to the NBD server, and compiled here from its own file.
#[allow(dead_code, reason = "the target calls what reads")]
#[path = "../../crates/frontend/src/nbd/netlink.rs"]
mod nbd_netlink;
mod netlink;
mod table;
mod wire;
mod zoned;

pub use control::{control_lines, table_pipe};
pub use headers::{luks1_header, luks2_header, luks2_json};
pub use netlink::netlink_answer;
pub use table::table;
pub use wire::nbd_wire;
pub use zoned::zoned_sidecar;

/// A target: it takes any bytes, and panics when a promise is broken.
pub type Target = fn(&[u8]);

/// The targets by name, as their corpus folders are called.
pub const TARGETS: [(&str, Target); 9] = [
    ("control_lines", control_lines),
    ("luks1_header", luks1_header),
    ("luks2_header", luks2_header),
    ("luks2_json", luks2_json),
    ("nbd_wire", nbd_wire),
    ("netlink_answer", netlink_answer),
    ("table", table),
    ("table_pipe", table_pipe),
    ("zoned_sidecar", zoned_sidecar),
];
