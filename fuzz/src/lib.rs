//! Fuzz targets: one function for each input from outside.
//!
//! A target panics if a guarantee is violated: no input may cause a panic, a write during loading, or an unbounded
//! allocation. libFuzzer (`cargo xtask fuzz`) and, on the saved corpus, a normal test run the same functions.

#![forbid(unsafe_code)]

mod control;
mod device;
mod headers;
// The netlink parser is private to the NBD server, and compiled here from its own file.
#[allow(dead_code, reason = "the target calls what reads")]
#[path = "../../crates/frontend/src/nbd/netlink.rs"]
mod nbd_netlink;
// The same of the NBD store's modules, which read what a server sends.
#[allow(dead_code, reason = "the target calls what reads")]
mod nbd_store;
mod netlink;
mod server;
mod table;
mod wire;
mod zoned;

pub use control::{control_lines, table_pipe};
pub use headers::{luks1_header, luks2_header, luks2_json};
pub use netlink::netlink_answer;
pub use server::nbd_server;
pub use table::table;
pub use wire::nbd_wire;
pub use zoned::zoned_sidecar;

/// A target: takes any bytes, and panics if a guarantee is violated.
pub type Target = fn(&[u8]);

/// The targets by name, which is also the name of the corpus directory.
pub const TARGETS: [(&str, Target); 10] = [
    ("control_lines", control_lines),
    ("luks1_header", luks1_header),
    ("luks2_header", luks2_header),
    ("luks2_json", luks2_json),
    ("nbd_server", nbd_server),
    ("nbd_wire", nbd_wire),
    ("netlink_answer", netlink_answer),
    ("table", table),
    ("table_pipe", table_pipe),
    ("zoned_sidecar", zoned_sidecar),
];
