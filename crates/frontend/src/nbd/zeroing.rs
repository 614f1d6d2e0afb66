//! TRIM and WRITE_ZEROES of a device whose holes read as zeroes: whole holes are deallocated. WRITE_ZEROES writes
//! zeroes to the rest, and TRIM leaves it.

use super::protocol::{command, command_flag};
use super::transmission::Command;
use inlock_engine::{Access, Mapping, Zeroing};

/// Whether a command may leave holes where it makes bytes read as zeroes.
fn may_deallocate(command: &Command, access: Access) -> bool {
    match command.kind {
        command::TRIM => true,
        command::WRITE_ZEROES => access.allow_discards && !command.has_flag(command_flag::NO_HOLE),
        _ => false,
    }
}

/// Returns how the next piece of a command makes its first bytes read as zeroes: offset and length are those of the
/// rest, and a discard has about `max_len` bytes. `None`: as on a device whose holes do not.
pub(super) fn zeroing(
    command: &Command,
    (offset, len): (u64, u64),
    max_len: u64,
    access: Access,
    mapping: &Mapping,
) -> Option<Zeroing> {
    if may_deallocate(command, access) { mapping.zeroing(offset, len, max_len) } else { None }
}

/// Whether discards alone carry out a write-zeroes.
pub(super) fn zeroes_fast(command: &Command, access: Access, mapping: &Mapping) -> bool {
    may_deallocate(command, access) && mapping.can_zero_fast(command.offset, command.len)
}
