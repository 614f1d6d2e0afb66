//! Codec of the transmission phase: requests and replies. No I/O.

use super::handshake::{ReplyStyle, Violation};
use super::protocol::{
    BASE_ALLOCATION_ID, EXTENDED_REPLY_MAGIC, EXTENDED_REQUEST_MAGIC, NbdError, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, chunk, command, command_flag,
};

/// Maximum length of a payload that is skipped after an error. A client that announces more violates the protocol.
const MAX_SKIPPED: u64 = 4 << 30;

/// Header of a request.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// [`command_flag`]s.
    pub flags: u16,
    /// A [`command`], known or not.
    pub kind: u16,
    /// The client's identifier of the request.
    pub cookie: u64,
    /// Offset in the export.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Command {
    /// Returns a request for `len` bytes at `offset`.
    pub const fn new(kind: u16, flags: u16, cookie: u64, (offset, len): (u64, u64)) -> Self {
        Self { flags, kind, cookie, offset, len }
    }

    /// Parses a header at the front of `input`. Returns the command and the length of the header, or `None` if the
    /// header is incomplete.
    ///
    /// # Errors
    /// The client has violated the protocol.
    pub fn parse(input: &[u8], style: ReplyStyle) -> Result<Option<(Self, usize)>, Violation> {
        let extended = style == ReplyStyle::Extended;
        let expected = if extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        let Some(magic) = input.first_chunk().map(|m| u32::from_be_bytes(*m)) else { return Ok(None) };
        if magic != expected {
            return Err(Violation::RequestMagic(magic));
        }
        let u16_at = |at: usize| u16::from_be_bytes([input[at], input[at + 1]]);
        let u64_at = |at: usize| input[at..].first_chunk().map_or(0, |b| u64::from_be_bytes(*b));
        let header_len = if extended { 32 } else { 28 };
        if input.len() < header_len {
            return Ok(None);
        }
        let compact_len = || input[24..].first_chunk().map_or(0, |b| u64::from(u32::from_be_bytes(*b)));
        let len = if extended { u64_at(24) } else { compact_len() };
        let command = Self { flags: u16_at(4), kind: u16_at(6), cookie: u64_at(8), offset: u64_at(16), len };
        if command.payload_len(style) > MAX_SKIPPED {
            return Err(Violation::PayloadLength(len));
        }
        Ok(Some((command, header_len)))
    }

    /// Returns the number of payload bytes that follow the header.
    pub fn payload_len(&self, style: ReplyStyle) -> u64 {
        let announced = style == ReplyStyle::Extended && self.flags & command_flag::PAYLOAD_LEN != 0;
        if self.kind == command::WRITE || announced { self.len } else { 0 }
    }

    /// Returns whether the flags are valid for the command and the negotiated style.
    pub fn has_valid_flags(&self, style: ReplyStyle) -> bool {
        let structured = style != ReplyStyle::Simple;
        let own = match self.kind {
            command::READ if structured => command_flag::DF,
            command::WRITE if style == ReplyStyle::Extended => command_flag::PAYLOAD_LEN,
            command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
            command::BLOCK_STATUS => command_flag::REQ_ONE,
            _ => 0,
        };
        // The protocol allows FUA with every command.
        self.flags & !(own | command_flag::FUA) == 0
    }

    /// Returns whether `flag` is set.
    pub fn has_flag(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Header of a reply, or a whole reply without data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    bytes: [u8; Head::MAX_LEN],
    len: usize,
}

impl Head {
    /// Maximum length in bytes.
    pub(crate) const MAX_LEN: usize = 48;

    /// Returns the bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn empty() -> Self {
        Self { bytes: [0; Self::MAX_LEN], len: 0 }
    }

    fn put(mut self, field: &[u8]) -> Self {
        self.bytes[self.len..self.len + field.len()].copy_from_slice(field);
        self.len += field.len();
        self
    }

    fn simple(command: &Command, error: u32) -> Self {
        Self::empty()
            .put(&SIMPLE_REPLY_MAGIC.to_be_bytes())
            .put(&error.to_be_bytes())
            .put(&command.cookie.to_be_bytes())
    }

    /// Header of a chunk with `len` bytes of payload.
    fn chunk(command: &Command, style: ReplyStyle, kind: u16, done: bool, len: u64) -> Self {
        let flags = if done { chunk::DONE } else { 0 };
        let extended = style == ReplyStyle::Extended;
        let magic = if extended { EXTENDED_REPLY_MAGIC } else { STRUCTURED_REPLY_MAGIC };
        let head = Self::empty()
            .put(&magic.to_be_bytes())
            .put(&flags.to_be_bytes())
            .put(&kind.to_be_bytes())
            .put(&command.cookie.to_be_bytes());
        if extended {
            head.put(&command.offset.to_be_bytes()).put(&len.to_be_bytes())
        } else {
            head.put(&(len as u32).to_be_bytes())
        }
    }

    /// Reply of success without data.
    pub(crate) fn done(command: &Command, style: ReplyStyle) -> Self {
        let needs_chunk =
            style == ReplyStyle::Extended || (style == ReplyStyle::Structured && command.kind == command::READ);
        if needs_chunk { Self::chunk(command, style, chunk::NONE, true, 0) } else { Self::simple(command, 0) }
    }

    /// Reply of failure.
    pub(crate) fn error(command: &Command, style: ReplyStyle, error: NbdError) -> Self {
        let error = error as u32;
        if style == ReplyStyle::Simple {
            return Self::simple(command, error);
        }
        Self::chunk(command, style, chunk::ERROR, true, 6).put(&error.to_be_bytes()).put(&0u16.to_be_bytes())
    }

    /// Header before `len` bytes of data from `offset`. A simple reply has one header, before its first data.
    pub(crate) fn data(command: &Command, style: ReplyStyle, offset: u64, len: usize, done: bool) -> Self {
        if style == ReplyStyle::Simple {
            let first = offset == command.offset;
            return if first { Self::simple(command, 0) } else { Self::empty() };
        }
        Self::chunk(command, style, chunk::OFFSET_DATA, done, 8 + len as u64).put(&offset.to_be_bytes())
    }

    /// Header before `count` extents of `base:allocation`.
    pub(crate) fn block_status(command: &Command, style: ReplyStyle, count: usize) -> Self {
        let id = BASE_ALLOCATION_ID.to_be_bytes();
        let payload = (count * extent_len(style)) as u64;
        if style == ReplyStyle::Extended {
            let head = Self::chunk(command, style, chunk::BLOCK_STATUS_EXT, true, 8 + payload);
            head.put(&id).put(&(count as u32).to_be_bytes())
        } else {
            Self::chunk(command, style, chunk::BLOCK_STATUS, true, 4 + payload).put(&id)
        }
    }
}

/// Returns the length of one extent in a block status reply.
pub(crate) fn extent_len(style: ReplyStyle) -> usize {
    if style == ReplyStyle::Extended { 16 } else { 8 }
}

/// Writes one extent to the front of `into`. The length of an extent that is not extended is at most `u32::MAX`.
pub(crate) fn put_extent(into: &mut [u8], style: ReplyStyle, len: u64, flags: u32) {
    if style == ReplyStyle::Extended {
        into[..8].copy_from_slice(&len.to_be_bytes());
        into[8..16].copy_from_slice(&u64::from(flags).to_be_bytes());
    } else {
        into[..4].copy_from_slice(&(len as u32).to_be_bytes());
        into[4..8].copy_from_slice(&flags.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STYLES: [ReplyStyle; 3] = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];

    /// The flags that each command may have, in the order of [`STYLES`], as the section "Command flags" of the protocol
    /// numbers them.
    #[test]
    fn commands_have_the_flags_of_the_protocol() {
        let allowed: [(u16, [u16; 3]); 8] = [
            (command::READ, [1, 5, 5]),
            (command::WRITE, [1, 1, 33]),
            (command::DISC, [1; 3]),
            (command::FLUSH, [1; 3]),
            (command::TRIM, [1; 3]),
            (command::CACHE, [1; 3]),
            (command::WRITE_ZEROES, [19; 3]),
            (command::BLOCK_STATUS, [9; 3]),
        ];
        for (kind, masks) in allowed {
            for (style, mask) in STYLES.into_iter().zip(masks) {
                for flags in (0..16).map(|bit| 1 << bit).chain([0, mask, u16::MAX]) {
                    let command = Command { flags, kind, cookie: 0, offset: 0, len: 1 };
                    assert_eq!(command.has_valid_flags(style), flags & !mask == 0, "{command:?} {style:?}");
                }
            }
        }
    }

    #[test]
    fn payload_that_is_too_long_to_skip_violates_the_protocol() {
        let parse = |len: u64| {
            let header = [&EXTENDED_REQUEST_MAGIC.to_be_bytes(), &[0, 0, 0, 1][..], &[0; 16], &len.to_be_bytes()];
            Command::parse(&header.concat(), ReplyStyle::Extended)
        };
        assert_eq!(parse(MAX_SKIPPED).unwrap().unwrap().0.len, MAX_SKIPPED);
        assert_eq!(parse(MAX_SKIPPED + 1), Err(Violation::PayloadLength(MAX_SKIPPED + 1)));
    }

    /// A read without data ends in a chunk where it would have data in chunks; other commands have simple replies
    /// unless headers are extended.
    #[test]
    fn success_without_data_is_a_chunk_where_the_protocol_says_so() {
        let done = |kind, style| {
            let command = Command { flags: 0, kind, cookie: 7, offset: 512, len: 0 };
            Head::done(&command, style).bytes().to_vec()
        };
        let cookie = 7u64.to_be_bytes();
        let simple = [&SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &[0; 4], &cookie].concat();
        let structured = [&STRUCTURED_REPLY_MAGIC.to_be_bytes()[..], &[0, 1, 0, 0], &cookie, &[0; 4]].concat();
        let offset = 512u64.to_be_bytes();
        let extended = [&EXTENDED_REPLY_MAGIC.to_be_bytes()[..], &[0, 1, 0, 0], &cookie, &offset, &[0; 8]].concat();
        for (kind, expected) in
            [(command::READ, [&simple, &structured, &extended]), (command::WRITE, [&simple, &simple, &extended])]
        {
            assert_eq!(STYLES.map(|style| done(kind, style)), expected.map(Clone::clone), "{kind}");
        }
    }
}
