//! Constants of the protocol, and the description of an export.

/// The server's first eight bytes.
pub const INIT_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// Begins every option, and follows [`INIT_MAGIC`].
pub const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// Begins every option reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Begins a request with a compact header.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins a request with an extended header.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Begins a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Begins an extended reply chunk.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Maximum payload of one request in bytes: advertised, and enforced.
pub const MAX_PAYLOAD: u32 = 32 << 20;

/// Handshake flags: fixed newstyle, and no 124 zero bytes after the reply to EXPORT_NAME.
pub mod handshake_flag {
    #![allow(missing_docs)]
    pub const FIXED_NEWSTYLE: u16 = 1;
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options of the handshake.
pub mod option {
    #![allow(missing_docs)]
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Replies to options.
pub mod option_reply {
    #![allow(missing_docs)]
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = (1 << 31) | 1;
    pub const ERR_POLICY: u32 = (1 << 31) | 2;
    pub const ERR_INVALID: u32 = (1 << 31) | 3;
    pub const ERR_TLS_REQD: u32 = (1 << 31) | 5;
    pub const ERR_UNKNOWN: u32 = (1 << 31) | 6;
    pub const ERR_TOO_BIG: u32 = (1 << 31) | 9;
    pub const ERR_EXT_HEADER_REQD: u32 = (1 << 31) | 10;
}

/// Kinds of information in a reply to INFO and GO.
pub mod info {
    #![allow(missing_docs)]
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: what an export supports.
pub mod transmission_flag {
    #![allow(missing_docs)]
    pub const HAS_FLAGS: u16 = 1;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Commands of the transmission phase.
pub mod command {
    #![allow(missing_docs)]
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of a command.
pub mod command_flag {
    #![allow(missing_docs)]
    pub const FUA: u16 = 1;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Types of reply chunks.
pub mod chunk {
    #![allow(missing_docs)]
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const BLOCK_STATUS_EXT: u16 = 6;
    pub const ERROR: u16 = (1 << 15) | 1;
    /// Flag of the last chunk of a reply.
    pub const DONE: u16 = 1;
}

/// The only metadata context.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The number of [`BASE_ALLOCATION`] in this server.
pub const BASE_ALLOCATION_ID: u32 = 1;
/// Extent flag: nothing is allocated here.
pub const STATE_HOLE: u32 = 1;
/// Extent flag: this reads as zeroes.
pub const STATE_ZERO: u32 = 1 << 1;

/// Error number of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u32)]
pub enum NbdError {
    /// Not permitted, for example a write to a read-only export.
    Perm = 1,
    /// The store failed.
    Io = 5,
    /// The request is invalid.
    Inval = 22,
    /// No space left, or a write beyond the end.
    NoSpace = 28,
    /// A reply in one chunk would be too long.
    Overflow = 75,
    /// The export does not support the request.
    NotSup = 95,
}

/// Description of an export, as advertised to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Name; clients find the export by the empty name as well.
    pub name: String,
    /// Description for people.
    pub description: String,
    /// Length in bytes.
    pub size: u64,
    /// [`transmission_flag`]s.
    pub flags: u16,
    /// Block size in bytes that needs no read-modify-write.
    pub preferred_block: u32,
}
