//! Codec of clients: options and requests that they send, replies that they receive. No I/O.
//!
//! A server is not trusted: a reply that does not follow the protocol is a [`BadReply`], and ends the connection.

use super::handshake::ReplyStyle;
use super::protocol::{
    EXTENDED_REPLY_MAGIC, EXTENDED_REQUEST_MAGIC, MAX_PAYLOAD, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, chunk, info,
};
use super::transmission::Command;

pub use super::handshake::{OptionReply, option_bytes, parse_export};

/// Longest payload of a chunk that is neither data nor a hole: an error with its message, or extents.
pub const MAX_SMALL_PAYLOAD: usize = 4096 + 32;

/// Violation of the protocol by a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadReply {
    /// Wrong magic number of a reply.
    #[error("wrong reply magic {0:#x}")]
    Magic(u32),
    /// A reply to no request in flight.
    #[error("a reply to no request, with cookie {0:#x}")]
    Cookie(u64),
    /// A chunk of an unknown type.
    #[error("a chunk of the unknown type {0}")]
    ChunkType(u16),
    /// A chunk whose length does not fit its type.
    #[error("a chunk of type {kind} with {len} bytes")]
    ChunkLength {
        /// Type of the chunk.
        kind: u16,
        /// Length of its payload.
        len: u64,
    },
    /// Data outside the range that was read, or twice.
    #[error("data of another range than was read")]
    Range,
    /// A reply that ends before all data has come.
    #[error("a reply without all of its data")]
    Short,
    /// A reply of a kind that the request cannot have.
    #[error("a reply that does not fit its request")]
    Unfit,
    /// A block size that the protocol does not allow.
    #[error("the block sizes {0}, {1} and {2}")]
    BlockSize(u32, u32, u32),
}

/// Returns the data of GO: the name, then the kinds of information wanted.
pub fn go_data(name: &[u8], wanted: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name);
    data.extend((wanted.len() as u16).to_be_bytes());
    wanted.iter().for_each(|kind| data.extend(kind.to_be_bytes()));
    data
}

/// Returns the data of SET_META_CONTEXT: the name of the export, then that of a context.
pub fn context_data(name: &[u8], context: &[u8]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name);
    data.extend(1u32.to_be_bytes());
    data.extend((context.len() as u32).to_be_bytes());
    data.extend(context);
    data
}

/// Returns the minimum, the preferred and the maximum block size in bytes, if `data` is that kind of information.
///
/// # Errors
/// The sizes are none that the protocol allows.
pub fn parse_block_size(data: &[u8]) -> Result<Option<[u32; 3]>, BadReply> {
    let [kind_high, kind_low, sizes @ ..] = data else { return Ok(None) };
    if u16::from_be_bytes([*kind_high, *kind_low]) != info::BLOCK_SIZE {
        return Ok(None);
    }
    let Some([min, preferred, max]) = sizes.as_chunks::<4>().0.first_chunk().copied().filter(|_| sizes.len() == 12)
    else {
        return Err(BadReply::ChunkLength { kind: info::BLOCK_SIZE, len: data.len() as u64 });
    };
    let [min, preferred, max] = [min, preferred, max].map(u32::from_be_bytes);
    let is_valid = min.is_power_of_two()
        && min <= 64 << 10
        && preferred.is_power_of_two()
        && preferred >= min
        && (max == u32::MAX || max >= min && max.is_multiple_of(min));
    if is_valid { Ok(Some([min, preferred, max])) } else { Err(BadReply::BlockSize(min, preferred, max)) }
}

/// Maximum length of the header of a request.
pub const MAX_REQUEST_HEADER: usize = 32;

/// Returns the header of a request and its length. The caller sends the payload of a write behind it.
pub fn request_header(command: &Command, style: ReplyStyle) -> ([u8; MAX_REQUEST_HEADER], usize) {
    let extended = style == ReplyStyle::Extended;
    let magic = if extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
    let mut header = [0; MAX_REQUEST_HEADER];
    header[..4].copy_from_slice(&magic.to_be_bytes());
    header[4..6].copy_from_slice(&command.flags.to_be_bytes());
    header[6..8].copy_from_slice(&command.kind.to_be_bytes());
    header[8..16].copy_from_slice(&command.cookie.to_be_bytes());
    header[16..24].copy_from_slice(&command.offset.to_be_bytes());
    if extended {
        header[24..32].copy_from_slice(&command.len.to_be_bytes());
        return (header, 32);
    }
    header[24..28].copy_from_slice(&(command.len as u32).to_be_bytes());
    (header, 28)
}

/// Header of a simple reply, or of a chunk with what its content starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHead {
    /// The request's cookie.
    pub cookie: u64,
    /// Whether nothing of the reply follows, except for the data of this head.
    pub is_last: bool,
    /// Offset of the request, which an extended reply repeats.
    pub request_offset: Option<u64>,
    /// Content of the reply or the chunk.
    pub content: Content,
}

/// Content of a reply or a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A simple reply of success. The data of a read follows.
    Success,
    /// Nothing.
    None,
    /// So many bytes of a read from this offset follow.
    Data {
        /// Offset in the export.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// So many zeroes of a read.
    Hole {
        /// Offset in the export.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// The first extent of the first context: its length and flags. No bytes follow.
    Extent {
        /// Length in bytes.
        len: u64,
        /// Flags.
        flags: u64,
    },
    /// An error number of the protocol. No bytes follow.
    Error(u32),
}

impl ReplyHead {
    /// Parses a head at the front of `input`, with the whole content of a chunk that has no data. Returns it with the
    /// number of bytes used, or `None` if bytes are missing: never more than a header and [`MAX_SMALL_PAYLOAD`].
    ///
    /// # Errors
    /// The server has violated the protocol.
    pub fn parse(input: &[u8], style: ReplyStyle) -> Result<Option<(Self, usize)>, BadReply> {
        let Some(magic) = input.first_chunk().map(|magic| u32::from_be_bytes(*magic)) else { return Ok(None) };
        let chunk_magic = match style {
            ReplyStyle::Extended => EXTENDED_REPLY_MAGIC,
            _ => STRUCTURED_REPLY_MAGIC,
        };
        match magic {
            SIMPLE_REPLY_MAGIC if style != ReplyStyle::Extended => Ok(Self::parse_simple(input)),
            _ if magic == chunk_magic && style != ReplyStyle::Simple => Self::parse_chunk(input, style),
            _ => Err(BadReply::Magic(magic)),
        }
    }

    fn parse_simple(input: &[u8]) -> Option<(Self, usize)> {
        let (error, cookie) = (u32_at(input, 4)?, u64_at(input, 8)?);
        let content = if error == 0 { Content::Success } else { Content::Error(error) };
        Some((Self { cookie, is_last: true, request_offset: None, content }, 16))
    }

    fn parse_chunk(input: &[u8], style: ReplyStyle) -> Result<Option<(Self, usize)>, BadReply> {
        let extended = style == ReplyStyle::Extended;
        let header_len = if extended { 32 } else { 20 };
        let Some(header) = input.get(..header_len) else { return Ok(None) };
        let field = |at| u64_at(header, at).unwrap_or(0);
        let (flags, kind) = (u16::from_be_bytes([header[4], header[5]]), u16::from_be_bytes([header[6], header[7]]));
        let compact_len = || u64::from(u32_at(header, 16).unwrap_or(0));
        let len = if extended { field(24) } else { compact_len() };
        let bad_len = BadReply::ChunkLength { kind, len };
        let is_error = kind & (1 << 15) != 0;
        let small = match kind {
            chunk::NONE if len == 0 => 0,
            // Checked before the offset has come, for which a server may let the client wait.
            chunk::OFFSET_DATA if (9..=8 + u64::from(MAX_PAYLOAD)).contains(&len) => 8,
            chunk::OFFSET_HOLE if len == 12 => 12,
            chunk::BLOCK_STATUS if !extended && len >= 12 && (len - 4).is_multiple_of(8) => len,
            chunk::BLOCK_STATUS_EXT if extended && len >= 24 && (len - 8).is_multiple_of(16) => len,
            _ if is_error && len >= 6 => len,
            chunk::NONE | chunk::OFFSET_DATA | chunk::OFFSET_HOLE => return Err(bad_len),
            chunk::BLOCK_STATUS | chunk::BLOCK_STATUS_EXT => return Err(bad_len),
            _ if is_error => return Err(bad_len),
            _ => return Err(BadReply::ChunkType(kind)),
        };
        if small > MAX_SMALL_PAYLOAD as u64 {
            return Err(bad_len);
        }
        let end = header_len + small as usize;
        let Some(payload) = input.get(header_len..end) else { return Ok(None) };
        let content = match kind {
            chunk::NONE => Content::None,
            chunk::OFFSET_DATA => Content::Data { offset: u64_at(payload, 0).unwrap_or(0), len: len - 8 },
            chunk::OFFSET_HOLE => {
                let (offset, len) = (u64_at(payload, 0).unwrap_or(0), u32_at(payload, 8).unwrap_or(0));
                Content::Hole { offset, len: len.into() }
            }
            chunk::BLOCK_STATUS => Content::Extent {
                len: u32_at(payload, 4).unwrap_or(0).into(),
                flags: u32_at(payload, 8).unwrap_or(0).into(),
            },
            chunk::BLOCK_STATUS_EXT => {
                Content::Extent { len: u64_at(payload, 8).unwrap_or(0), flags: u64_at(payload, 16).unwrap_or(0) }
            }
            _ => match u32_at(payload, 0).unwrap_or(0) {
                0 => return Err(BadReply::Unfit),
                error => Content::Error(error),
            },
        };
        let request_offset = extended.then(|| field(16));
        let is_last = flags & chunk::DONE != 0;
        if kind == chunk::NONE && !is_last {
            return Err(bad_len);
        }
        Ok(Some((Self { cookie: field(8), is_last, request_offset, content }, end)))
    }
}

fn u32_at(input: &[u8], at: usize) -> Option<u32> {
    input.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

fn u64_at(input: &[u8], at: usize) -> Option<u64> {
    input.get(at..)?.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::super::protocol::command;
    use super::*;

    /// The server's parser and the client's header are each other's inverse.
    #[test]
    fn server_parses_the_headers_of_requests() {
        for style in [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended] {
            let command = Command { flags: 1, kind: command::TRIM, cookie: 1 << 63 | 7, offset: 1 << 40, len: 4096 };
            let (header, len) = request_header(&command, style);
            assert_eq!(Command::parse(&header[..len], style), Ok(Some((command, len))));
        }
    }

    #[test]
    fn block_sizes_that_the_protocol_forbids_are_refused() {
        let parse = |sizes: [u32; 3]| {
            let bytes: Vec<u8> = sizes.iter().flat_map(|size| size.to_be_bytes()).collect();
            parse_block_size(&[&info::BLOCK_SIZE.to_be_bytes()[..], &bytes].concat()).map(|found| found.is_some())
        };
        for good in [[1, 4096, 32 << 20], [512, 512, 512], [65536, 65536, u32::MAX]] {
            assert_eq!(parse(good), Ok(true), "{good:?}");
        }
        for bad in [[0, 1, 2], [3, 4, 9], [131_072, 131_072, 131_072], [512, 256, 512], [512, 512, 1000], [8, 8, 4]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(parse_block_size(&[0, 0, 1]), Ok(None));
        assert!(parse_block_size(&[0, 3, 1]).is_err());
    }

    const COOKIE: u64 = 1 << 63 | 7;
    const OFFSET: u64 = 1 << 40;

    /// Returns a chunk that says it has a payload of `len` bytes.
    fn chunk_bytes(style: ReplyStyle, (flags, kind): (u16, u16), len: u64, payload: &[u8]) -> Vec<u8> {
        let [flags, kind] = [flags.to_be_bytes(), kind.to_be_bytes()];
        match style {
            ReplyStyle::Extended => [
                &EXTENDED_REPLY_MAGIC.to_be_bytes()[..],
                &flags,
                &kind,
                &COOKIE.to_be_bytes(),
                &OFFSET.to_be_bytes(),
                &len.to_be_bytes(),
                payload,
            ]
            .concat(),
            _ => [
                &STRUCTURED_REPLY_MAGIC.to_be_bytes()[..],
                &flags,
                &kind,
                &COOKIE.to_be_bytes(),
                &(len as u32).to_be_bytes(),
                payload,
            ]
            .concat(),
        }
    }

    #[test]
    fn chunks_are_parsed_once_all_is_there_but_data() {
        let extents = [&[0, 0, 0, 1, 0, 0, 0x10, 0, 0, 0, 0, 3][..], &[9; 8]].concat();
        let long_extents = [&[0; 8][..], &[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], &[9; 16]].concat();
        let at = OFFSET.to_be_bytes();
        let hole = [&at[..], &[0, 0, 0x20, 0]].concat();
        let most = 8 + u64::from(MAX_PAYLOAD);
        let error = Content::Error(28);
        let (compact, extended) = (ReplyStyle::Structured, ReplyStyle::Extended);
        for style in [compact, extended] {
            let header_len = if style == extended { 32 } else { 20 };
            let (status, status_bytes, extent) = match style == extended {
                true => (chunk::BLOCK_STATUS_EXT, &long_extents, Content::Extent { len: 2 << 32, flags: 1 }),
                false => (chunk::BLOCK_STATUS, &extents, Content::Extent { len: 0x1000, flags: 3 }),
            };
            let one = status_bytes.len() - if style == extended { 16 } else { 8 };
            let cases: [(u16, u64, &[u8], Content); 9] = [
                (chunk::NONE, 0, b"", Content::None),
                (chunk::OFFSET_DATA, 9, &at, Content::Data { offset: OFFSET, len: 1 }),
                (chunk::OFFSET_DATA, most, &at, Content::Data { offset: OFFSET, len: most - 8 }),
                (chunk::OFFSET_HOLE, 12, &hole, Content::Hole { offset: OFFSET, len: 0x2000 }),
                (status, one as u64, &status_bytes[..one], extent),
                (status, status_bytes.len() as u64, status_bytes, extent),
                (chunk::ERROR, 6, &[0, 0, 0, 28, 0, 0], error),
                (1 << 15 | 2, 15, &[&[0, 0, 0, 28, 0, 1, b'x'][..], &at].concat(), error),
                (1 << 15 | 77, 6, &[0, 0, 0, 28, 0, 0], error),
            ];
            for (kind, len, payload, content) in cases {
                for flags in [0, chunk::DONE] {
                    let bytes = chunk_bytes(style, (flags, kind), len, payload);
                    let is_last = flags == chunk::DONE;
                    if kind == chunk::NONE && !is_last {
                        assert!(ReplyHead::parse(&bytes, style).is_err(), "it would say nothing");
                        continue;
                    }
                    let request_offset = (style == extended).then_some(OFFSET);
                    let head = ReplyHead { cookie: COOKIE, is_last, request_offset, content };
                    for cut in 0..bytes.len() {
                        assert_eq!(ReplyHead::parse(&bytes[..cut], style), Ok(None), "{kind}: {cut} bytes");
                    }
                    let more = [&bytes[..], b"more"].concat();
                    assert_eq!(ReplyHead::parse(&more, style), Ok(Some((head, header_len + payload.len()))), "{kind}");
                }
            }
        }
    }

    #[test]
    fn chunks_whose_length_does_not_fit_are_refused_with_their_header() {
        let limit = MAX_SMALL_PAYLOAD as u64;
        for style in [ReplyStyle::Structured, ReplyStyle::Extended] {
            let is_extended = style == ReplyStyle::Extended;
            let (status, other) = match is_extended {
                true => (chunk::BLOCK_STATUS_EXT, chunk::BLOCK_STATUS),
                false => (chunk::BLOCK_STATUS, chunk::BLOCK_STATUS_EXT),
            };
            let bad: [(u16, &[u64]); 6] = [
                (chunk::NONE, &[1]),
                (chunk::OFFSET_DATA, &[0, 8, 9 + u64::from(MAX_PAYLOAD)]),
                (chunk::OFFSET_HOLE, &[0, 11, 13]),
                (status, &[0, 4, 8, 10, 13, 25, limit + 8]),
                (other, &[12, 24]),
                (chunk::ERROR, &[0, 5, limit + 1]),
            ];
            for (kind, lens) in bad {
                for &len in lens {
                    let parsed = ReplyHead::parse(&chunk_bytes(style, (chunk::DONE, kind), len, b""), style);
                    assert_eq!(parsed, Err(BadReply::ChunkLength { kind, len }), "{style:?}");
                }
            }
            let parse = |kind, payload: &[u8]| {
                ReplyHead::parse(&chunk_bytes(style, (chunk::DONE, kind), payload.len() as u64, payload), style)
            };
            assert_eq!(parse(99, b"").map(drop), Err(BadReply::ChunkType(99)));
            assert_eq!(parse(chunk::ERROR, &[0; 6]).map(drop), Err(BadReply::Unfit), "an error without a number");
            let longest = [&[0, 0, 0, 28][..], &vec![0; MAX_SMALL_PAYLOAD - 4]].concat();
            assert!(parse(chunk::ERROR, &longest).is_ok_and(|head| head.is_some()));
            let others = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];
            for wrong in others.into_iter().filter(|other| *other != style) {
                let bytes = chunk_bytes(style, (chunk::DONE, chunk::NONE), 0, b"");
                assert!(matches!(ReplyHead::parse(&bytes, wrong), Err(BadReply::Magic(_))), "{wrong:?}");
            }
        }
    }

    #[test]
    fn simple_replies_have_an_error_number_and_a_cookie() {
        let bytes = |error: u32| {
            [&SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &error.to_be_bytes(), &COOKIE.to_be_bytes(), b"more"].concat()
        };
        for (error, content) in [(0, Content::Success), (28, Content::Error(28))] {
            for style in [ReplyStyle::Simple, ReplyStyle::Structured] {
                let head = ReplyHead { cookie: COOKIE, is_last: true, request_offset: None, content };
                assert_eq!(ReplyHead::parse(&bytes(error), style), Ok(Some((head, 16))));
                for cut in 0..16 {
                    assert_eq!(ReplyHead::parse(&bytes(error)[..cut], style), Ok(None));
                }
            }
            assert_eq!(ReplyHead::parse(&bytes(error), ReplyStyle::Extended), Err(BadReply::Magic(SIMPLE_REPLY_MAGIC)));
        }
    }

    #[test]
    fn options_have_their_names_behind_the_lengths() {
        assert_eq!(go_data(b"vol", &[3, 1]), [0, 0, 0, 3, b'v', b'o', b'l', 0, 2, 0, 3, 0, 1]);
        assert_eq!(context_data(b"v", b"ab"), [0, 0, 0, 1, b'v', 0, 0, 0, 1, 0, 0, 0, 2, b'a', b'b']);
    }
}
