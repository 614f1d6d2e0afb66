//! The check of a command before it becomes an active request.

use super::handshake::Negotiated;
use super::protocol::{MAX_PAYLOAD, NbdError, command, command_flag};
use super::transmission::Command;
use super::zeroing::zeroes_fast;
use inlock_engine::{Access, Mapping};

/// Result of the check of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Accepted,
    /// Valid, and there is nothing to do.
    Empty,
    Refused(NbdError),
    /// The client disconnects.
    Disconnect,
}

/// Checks a command against what was negotiated, and against access rights and length of the device.
pub(super) fn check(
    command: &Command,
    negotiated: Negotiated,
    access: Access,
    device_len: u64,
    mapping: &Mapping,
) -> Verdict {
    if command.kind == command::DISC {
        return Verdict::Disconnect;
    }
    if !command.has_valid_flags(negotiated.style) {
        return Verdict::Refused(NbdError::Inval);
    }
    let is_in_range = command.offset.checked_add(command.len).is_some_and(|end| end <= device_len);
    match command.kind {
        command::FLUSH => return Verdict::Accepted,
        command::READ | command::CACHE => {}
        command::BLOCK_STATUS if negotiated.allocation && command.len > 0 => {}
        command::WRITE | command::WRITE_ZEROES | command::TRIM if access.read_only => {
            return Verdict::Refused(NbdError::Perm);
        }
        command::WRITE | command::WRITE_ZEROES if !is_in_range => return Verdict::Refused(NbdError::NoSpace),
        command::WRITE_ZEROES
            if command.has_flag(command_flag::FAST_ZERO) && !zeroes_fast(command, access, mapping) =>
        {
            return Verdict::Refused(NbdError::NotSup);
        }
        command::WRITE | command::WRITE_ZEROES => {}
        command::TRIM if access.allow_discards => {}
        _ => return Verdict::Refused(NbdError::Inval),
    }
    let has_data = matches!(command.kind, command::READ | command::WRITE);
    if !is_in_range || (has_data && command.len > u64::from(MAX_PAYLOAD)) {
        return Verdict::Refused(NbdError::Inval);
    }
    if command.len > 0 { Verdict::Accepted } else { Verdict::Empty }
}
