//! Extents of a block status reply.

use super::handshake::ReplyStyle;
use super::protocol::{STATE_HOLE, STATE_ZERO, command_flag};
use super::transmission::{Command, extent_len, put_extent};
use inlock_engine::{Buffer, Device, Mapping, RequestError};
use std::time::{Duration, Instant};

/// Maximum number of extents in a block status reply.
pub(super) const MAX_EXTENTS: usize = 256;
/// Maximum number of block status calls to the store for one command, so that a fragmented file does not make a single
/// command walk all of it. The reply then covers less of the range, which the protocol allows.
const MAX_STATUS_CALLS: usize = 4 * MAX_EXTENTS;
/// Time after which the calls for one command end likewise: a store may ask a server.
pub(super) const MAX_STATUS_TIME: Duration = Duration::from_millis(100);

/// Puts the extents of a block status reply into `buffer`, and returns their number. Asks the store at least once, and
/// no more when `limit` has passed.
pub(super) fn put_block_status(
    buffer: &mut Buffer,
    command: &Command,
    style: ReplyStyle,
    device: &Device,
    mapping: &Mapping,
    limit: Duration,
) -> Result<usize, RequestError> {
    let max_count = if command.has_flag(command_flag::REQ_ONE) { 1 } else { MAX_EXTENTS };
    let reads_zero = !mapping.is_encrypted() || mapping.has_zero_holes();
    let hole_flags = if reads_zero { STATE_HOLE | STATE_ZERO } else { STATE_HOLE };
    let max_len = if style == ReplyStyle::Extended { u64::MAX } else { u64::from(u32::MAX - 0xffff) };
    let size = extent_len(style);
    // Length and flags of the last extent, which the next status may extend.
    let mut last: Option<(u64, u32)> = None;
    let mut count = 0;
    let mut offset = command.offset;
    let end = command.offset + command.len;
    let begun = Instant::now();
    for _ in 0..MAX_STATUS_CALLS {
        if offset == end || count > 0 && begun.elapsed() > limit {
            break;
        }
        let status = device.block_status(offset, (end - offset).min(max_len))?;
        let flags = if status.hole { hole_flags } else { 0 };
        let (len, flags) = match last {
            Some((len, same)) if same == flags && len + status.len <= max_len => (len + status.len, flags),
            _ if count == max_count => break,
            _ => {
                count += 1;
                (status.len, flags)
            }
        };
        last = Some((len, flags));
        put_extent(&mut buffer.data_mut()[(count - 1) * size..], style, len, flags);
        offset += status.len;
    }
    Ok(count)
}
