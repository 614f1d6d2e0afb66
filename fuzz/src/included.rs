//! Modules of the command, which is not a library, compiled here from their own files.

#[allow(dead_code, reason = "targets call what reads")]
#[path = "../../crates/cli/src/control/line.rs"]
pub(crate) mod line;
#[path = "../../crates/cli/src/system/pipe.rs"]
pub(crate) mod pipe;
