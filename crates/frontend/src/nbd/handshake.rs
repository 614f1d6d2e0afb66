//! Codec of the handshake: options of clients, and the replies to them. No I/O.
//!
//! The caller sends the reply to an option before it passes on the next option, so a client that never reads its
//! replies is owed one reply at most.

use super::protocol::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, Export, INIT_MAGIC, MAX_PAYLOAD, OPTION_MAGIC, OPTION_REPLY_MAGIC,
    handshake_flag, info, option, option_reply, transmission_flag,
};
use std::borrow::Cow;

/// Maximum length of option data. Longer data is skipped, and the reply is "too big".
pub const MAX_OPTION_LEN: usize = 16 << 10;
/// Maximum length of option data that is skipped. A client that announces more violates the protocol.
const MAX_SKIPPED: u32 = 16 << 20;
/// Maximum number of these bytes that a step needs.
const MAX_SKIPPED_AT_ONCE: usize = 4096;
/// Text of the reply to an option that comes before TLS.
const TLS_REQUIRED: &str = "this server requires TLS";
/// Maximum length of a name in the protocol.
const MAX_NAME: usize = 4096;

/// Form of requests and replies in the transmission phase, in ascending order of preference.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplyStyle {
    /// Simple replies only.
    #[default]
    Simple,
    /// Structured replies.
    Structured,
    /// Extended headers, which imply structured replies.
    Extended,
}

/// Result of a handshake.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Negotiated {
    /// Form of requests and replies.
    pub style: ReplyStyle,
    /// Whether the client may query `base:allocation`.
    pub allocation: bool,
}

/// Result of a step of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// More input is needed, or the reply has to be sent first.
    Continue,
    /// The transmission phase begins.
    Start(Negotiated),
    /// The client has ended the handshake: the connection closes after the reply.
    Close,
    /// The handshake of TLS follows the reply. What has arrived behind the option is part of it. Then
    /// [`Handshake::restart`].
    StartTls,
}

/// TLS of a connection during the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Security {
    /// None, and it cannot be started.
    #[default]
    None,
    /// None yet. The client may start it.
    Offered,
    /// None yet. The client has to start it first.
    Required,
    /// The connection is encrypted.
    Started,
}

/// The exports of a server, as clients find them in a handshake.
pub trait Exports {
    /// Returns the names for a client that lists exports.
    fn names(&self) -> Vec<String>;

    /// Returns the export with this name. The empty name is the client's default. May block.
    ///
    /// # Errors
    /// There is no such export, or it cannot be used now.
    fn find(&mut self, name: &[u8]) -> Result<Cow<'_, Export>, Unavailable>;
}

/// The reason why a client gets no export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unavailable {
    /// No export has the name.
    Unknown,
    /// It cannot be opened, or has too many clients.
    Refused,
}

/// A single export.
impl Exports for &Export {
    fn names(&self) -> Vec<String> {
        vec![self.name.clone()]
    }

    fn find(&mut self, name: &[u8]) -> Result<Cow<'_, Export>, Unavailable> {
        let is_named = name.is_empty() || name == self.name.as_bytes();
        if is_named { Ok(Cow::Borrowed(self)) } else { Err(Unavailable::Unknown) }
    }
}

/// Violation of the protocol by a client, whose connection then ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Handshake flags that were not offered.
    #[error("unknown client flags {0:#x}")]
    ClientFlags(u32),
    /// Wrong magic number of an option.
    #[error("wrong option magic {0:#x}")]
    OptionMagic(u64),
    /// Option data that is too long to be skipped.
    #[error("option data of {0} bytes")]
    OptionLength(u32),
    /// Unknown name in EXPORT_NAME, which has no error reply.
    #[error("unknown export name")]
    ExportName,
    /// EXPORT_NAME, which has no error reply, without TLS that is required.
    #[error("no TLS, which is required")]
    NoTls,
    /// Wrong magic number of a request.
    #[error("wrong request magic {0:#x}")]
    RequestMagic(u32),
    /// A payload that is too long to be skipped.
    #[error("payload of {0} bytes")]
    PayloadLength(u64),
}

/// Handshake of one client.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    zeroes: bool,
    security: Security,
    negotiated: Negotiated,
    /// Name of the export whose contexts were negotiated last.
    contexts_of: Option<String>,
}

#[derive(Debug)]
enum State {
    ClientFlags,
    Option,
    /// Data of an option that is skipped.
    Skip {
        option: u32,
        rest: u32,
    },
}

impl Handshake {
    /// Begins a handshake, and appends the greeting to `out`.
    pub fn new(out: &mut Vec<u8>) -> Self {
        out.extend(INIT_MAGIC.to_be_bytes());
        out.extend(OPTION_MAGIC.to_be_bytes());
        out.extend((handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES).to_be_bytes());
        let (security, negotiated) = (Security::None, Negotiated::default());
        Self { state: State::ClientFlags, zeroes: true, security, negotiated, contexts_of: None }
    }

    /// Offers or requires TLS.
    #[must_use]
    pub fn with_security(self, security: Security) -> Self {
        Self { security, ..self }
    }

    /// Returns whether the client has to start TLS before any other option.
    pub fn needs_tls(&self) -> bool {
        self.security == Security::Required
    }

    /// Begins again behind the handshake of TLS: what the client has negotiated before may be an attacker's.
    pub fn restart(&mut self) {
        self.security = Security::Started;
        (self.negotiated, self.contexts_of) = (Negotiated::default(), None);
    }

    /// Returns the number of bytes that the next step needs, of which `unread` have arrived: never more than belong to
    /// the item that begins there.
    pub fn wanted(&self, unread: &[u8]) -> usize {
        match &self.state {
            State::ClientFlags => 4,
            State::Skip { rest, .. } => (*rest as usize).min(MAX_SKIPPED_AT_ONCE),
            State::Option => match unread.get(12..).and_then(take::<4>).map(u32::from_be_bytes) {
                Some(len) if len as usize <= MAX_OPTION_LEN => 16 + len as usize,
                _ => 16,
            },
        }
    }

    /// Takes one step with the bytes in `input`, and returns the number of bytes used and what follows. Appends replies
    /// to `out`; the caller sends them before the next call.
    ///
    /// # Errors
    /// The client has violated the protocol.
    pub fn advance(
        &mut self,
        exports: &mut dyn Exports,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Step), Violation> {
        match &mut self.state {
            State::ClientFlags => {
                let Some(flags) = take::<4>(input) else { return Ok((0, Step::Continue)) };
                let flags = u32::from_be_bytes(flags);
                let known = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
                if flags & !known != 0 {
                    return Err(Violation::ClientFlags(flags));
                }
                self.zeroes = flags & u32::from(handshake_flag::NO_ZEROES) == 0;
                self.state = State::Option;
                Ok((4, Step::Continue))
            }
            State::Skip { option, rest } => {
                let skipped = input.len().min(*rest as usize);
                *rest -= skipped as u32;
                if *rest == 0 {
                    let (kind, text): (u32, &[u8]) = match self.security == Security::Required {
                        true if *option != option::STARTTLS => (option_reply::ERR_TLS_REQD, TLS_REQUIRED.as_bytes()),
                        _ => (option_reply::ERR_TOO_BIG, b"option data too long"),
                    };
                    reply(out, *option, kind, text);
                    self.state = State::Option;
                }
                Ok((skipped, Step::Continue))
            }
            State::Option => self.option(exports, input, out),
        }
    }

    fn option(
        &mut self,
        exports: &mut dyn Exports,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Step), Violation> {
        // Checked as soon as the magic has arrived, before the rest of a header.
        let Some(magic) = take::<8>(input) else { return Ok((0, Step::Continue)) };
        let magic = u64::from_be_bytes(magic);
        if magic != OPTION_MAGIC {
            return Err(Violation::OptionMagic(magic));
        }
        let mut header = Fields(&input[8..]);
        let (Some(number), Some(len)) = (header.u32(), header.u32()) else { return Ok((0, Step::Continue)) };
        if len as usize > MAX_OPTION_LEN {
            if len > MAX_SKIPPED || number == option::EXPORT_NAME {
                return Err(Violation::OptionLength(len));
            }
            self.state = State::Skip { option: number, rest: len };
            return Ok((16, Step::Continue));
        }
        let Some(data) = header.0.get(..len as usize) else { return Ok((0, Step::Continue)) };
        let step = self.answer(exports, number, data, out)?;
        Ok((16 + data.len(), step))
    }

    fn answer(
        &mut self,
        exports: &mut dyn Exports,
        number: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Step, Violation> {
        let style = self.negotiated.style;
        let (kind, text): (u32, &str) = match number {
            option::STARTTLS => match self.security {
                _ if !data.is_empty() => (option_reply::ERR_INVALID, "the option takes no data"),
                Security::None => (option_reply::ERR_POLICY, "this server does no TLS"),
                Security::Started => (option_reply::ERR_INVALID, "TLS is already started"),
                Security::Offered | Security::Required => {
                    reply(out, number, option_reply::ACK, b"");
                    return Ok(Step::StartTls);
                }
            },
            option::EXPORT_NAME if self.needs_tls() => return Err(Violation::NoTls),
            _ if self.needs_tls() && number != option::ABORT => (option_reply::ERR_TLS_REQD, TLS_REQUIRED),
            option::EXPORT_NAME => {
                let Ok(export) = exports.find(data) else { return Err(Violation::ExportName) };
                out.extend(export.size.to_be_bytes());
                out.extend(self.flags(&export).to_be_bytes());
                if self.zeroes {
                    out.extend([0; 124]);
                }
                return Ok(self.start(&export));
            }
            option::ABORT => {
                reply(out, number, option_reply::ACK, b"");
                return Ok(Step::Close);
            }
            option::LIST if data.is_empty() => {
                exports.names().iter().for_each(|name| list_entry(out, name));
                (option_reply::ACK, "")
            }
            option::INFO | option::GO => match parse_info(data).map(|(name, wanted)| (exports.find(name), wanted)) {
                None => (option_reply::ERR_INVALID, "malformed option"),
                Some((Err(unavailable), _)) => unavailable.reply(),
                Some((Ok(export), wanted)) => {
                    self.describe(&export, number, wanted, out);
                    reply(out, number, option_reply::ACK, b"");
                    return Ok(if number == option::GO { self.start(&export) } else { Step::Continue });
                }
            },
            option::STRUCTURED_REPLY if data.is_empty() => match style {
                ReplyStyle::Simple => {
                    self.negotiated.style = ReplyStyle::Structured;
                    (option_reply::ACK, "")
                }
                ReplyStyle::Structured => (option_reply::ERR_INVALID, "structured replies are already negotiated"),
                ReplyStyle::Extended => (option_reply::ERR_EXT_HEADER_REQD, "extended headers are already negotiated"),
            },
            option::EXTENDED_HEADERS if data.is_empty() => match style {
                ReplyStyle::Extended => (option_reply::ERR_INVALID, "extended headers are already negotiated"),
                _ => {
                    self.negotiated.style = ReplyStyle::Extended;
                    (option_reply::ACK, "")
                }
            },
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(exports, number, data, out),
            option::LIST | option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => {
                (option_reply::ERR_INVALID, "the option takes no data")
            }
            _ => (option_reply::ERR_UNSUP, "unknown option"),
        };
        reply(out, number, kind, text.as_bytes());
        Ok(Step::Continue)
    }

    /// Begins the transmission phase. Contexts are those of one export.
    fn start(&mut self, export: &Export) -> Step {
        self.negotiated.allocation &= self.contexts_of.as_ref() == Some(&export.name);
        Step::Start(self.negotiated)
    }

    /// Returns the transmission flags. SEND_DF may be advertised with structured replies only.
    fn flags(&self, export: &Export) -> u16 {
        let simple = self.negotiated.style == ReplyStyle::Simple;
        if simple { export.flags & !transmission_flag::SEND_DF } else { export.flags }
    }

    fn describe(&self, export: &Export, number: u32, wanted: &[u8], out: &mut Vec<u8>) {
        let mut facts = info::EXPORT.to_be_bytes().to_vec();
        facts.extend(export.size.to_be_bytes());
        facts.extend(self.flags(export).to_be_bytes());
        reply(out, number, option_reply::INFO, &facts);
        let is_wanted = |kind: u16| wanted.as_chunks::<2>().0.iter().any(|w| u16::from_be_bytes(*w) == kind);
        for (kind, text) in [(info::NAME, &export.name), (info::DESCRIPTION, &export.description)] {
            if is_wanted(kind) {
                let mut facts = kind.to_be_bytes().to_vec();
                facts.extend(text.as_bytes());
                reply(out, number, option_reply::INFO, &facts);
            }
        }
        if is_wanted(info::BLOCK_SIZE) {
            let mut facts = info::BLOCK_SIZE.to_be_bytes().to_vec();
            for size in [1, export.preferred_block, MAX_PAYLOAD] {
                facts.extend(size.to_be_bytes());
            }
            reply(out, number, option_reply::INFO, &facts);
        }
    }

    fn meta_context(
        &mut self,
        exports: &mut dyn Exports,
        number: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> (u32, &'static str) {
        let set = number == option::SET_META_CONTEXT;
        if set {
            self.negotiated.allocation = false;
        }
        if self.negotiated.style == ReplyStyle::Simple {
            return (option_reply::ERR_INVALID, "negotiate structured replies first");
        }
        let Some((name, queries)) = parse_queries(data) else {
            return (option_reply::ERR_INVALID, "malformed option");
        };
        let export = match exports.find(name) {
            Ok(export) => export,
            Err(unavailable) => return unavailable.reply(),
        };
        if set {
            self.contexts_of = Some(export.name.clone());
        }
        let exact = queries.iter().any(|q| *q == BASE_ALLOCATION.as_bytes());
        let listed = !set && (queries.is_empty() || queries.contains(&b"base:".as_slice()));
        if exact || listed {
            self.negotiated.allocation |= set;
            // Context numbers are valid in replies to SET only.
            let id = if set { BASE_ALLOCATION_ID } else { 0 };
            let mut entry = id.to_be_bytes().to_vec();
            entry.extend(BASE_ALLOCATION.as_bytes());
            reply(out, number, option_reply::META_CONTEXT, &entry);
        }
        (option_reply::ACK, "")
    }
}

impl Unavailable {
    /// Returns kind and text of the reply to an option.
    fn reply(self) -> (u32, &'static str) {
        match self {
            Self::Unknown => (option_reply::ERR_UNKNOWN, "no such export"),
            Self::Refused => (option_reply::ERR_POLICY, "the export cannot be used now; the server has the cause"),
        }
    }
}

/// Appends a reply to an option.
fn reply(out: &mut Vec<u8>, number: u32, kind: u32, data: &[u8]) {
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(number.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}

/// Appends the name of an export to the reply to LIST.
fn list_entry(out: &mut Vec<u8>, name: &str) {
    let mut entry = (name.len() as u32).to_be_bytes().to_vec();
    entry.extend(name.as_bytes());
    reply(out, option::LIST, option_reply::SERVER, &entry);
}

/// Returns the name, and the kinds of information as big-endian pairs of bytes.
fn parse_info(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut fields = Fields(data);
    let name = fields.text()?;
    let count = fields.u16()?;
    let wanted = fields.bytes(usize::from(count) * 2)?;
    fields.0.is_empty().then_some((name, wanted))
}

/// Returns the name and the queries.
fn parse_queries(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let mut fields = Fields(data);
    let name = fields.text()?;
    let count = fields.u32()?;
    // Each query has a length field, so the length of the option bounds their number.
    let mut queries = Vec::new();
    for _ in 0..count {
        queries.push(fields.text()?);
    }
    fields.0.is_empty().then_some((name, queries))
}

/// Returns an option as a client sends it.
pub fn option_bytes(number: u32, data: &[u8]) -> Vec<u8> {
    let len = (data.len() as u32).to_be_bytes();
    [&OPTION_MAGIC.to_be_bytes(), number.to_be_bytes().as_slice(), &len, data].concat()
}

/// Header of a reply to an option, as a client receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReply {
    /// The [`option`] that it replies to.
    pub option: u32,
    /// An [`option_reply`].
    pub kind: u32,
    /// Bytes of data that follow.
    pub len: usize,
}

impl OptionReply {
    /// Parses a header. `None`: the magic is wrong, or the data too long.
    pub fn parse(header: &[u8; 20]) -> Option<Self> {
        let mut fields = Fields(header);
        let magic = fields.bytes(8)?;
        let (option, kind, len) = (fields.u32()?, fields.u32()?, fields.u32()? as usize);
        (magic == OPTION_REPLY_MAGIC.to_be_bytes() && len <= MAX_OPTION_LEN).then_some(Self { option, kind, len })
    }
}

/// Returns length and transmission flags of an export if `data` is that kind of information.
pub fn parse_export(data: &[u8]) -> Option<(u64, u16)> {
    let mut fields = Fields(data);
    let kind = fields.u16()?;
    let export = (take(fields.bytes(8)?).map(u64::from_be_bytes)?, fields.u16()?);
    (kind == info::EXPORT && fields.0.is_empty()).then_some(export)
}

fn take<const N: usize>(input: &[u8]) -> Option<[u8; N]> {
    input.first_chunk::<N>().copied()
}

/// Big-endian fields of an option.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(field)
    }

    fn u16(&mut self) -> Option<u16> {
        take(self.bytes(2)?).map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        take(self.bytes(4)?).map(u32::from_be_bytes)
    }

    /// Takes a length and as many bytes, at most those of a name.
    fn text(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        if len > MAX_NAME { None } else { self.bytes(len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_reply_with_another_magic_or_too_much_data_is_refused() {
        let parse = |magic: u64, len: usize| {
            let fields = [&magic.to_be_bytes()[..], &[0, 0, 0, 7, 0, 0, 0, 3], &(len as u32).to_be_bytes()];
            OptionReply::parse(&fields.concat().try_into().unwrap())
        };
        let magic = 0x3e889045565a9;
        assert_eq!(parse(magic, MAX_OPTION_LEN), Some(OptionReply { option: 7, kind: 3, len: MAX_OPTION_LEN }));
        assert_eq!(parse(magic, MAX_OPTION_LEN + 1), None);
        assert_eq!(parse(magic + 1, 0), None);
    }

    #[test]
    fn option_of_the_longest_length_is_read_and_a_longer_one_skipped() {
        let export =
            Export { name: String::new(), description: String::new(), size: 0, flags: 1, preferred_block: 4096 };
        for (len, expected) in
            [(MAX_OPTION_LEN, option_reply::ERR_UNSUP), (MAX_OPTION_LEN + 1, option_reply::ERR_TOO_BIG)]
        {
            let mut handshake = Handshake::new(&mut Vec::new());
            let input = [3u32.to_be_bytes().to_vec(), option_bytes(99, &vec![0; len])].concat();
            let (mut used, mut out) = (0, Vec::new());
            while out.is_empty() {
                used += handshake.advance(&mut &export, &input[used..], &mut out).unwrap().0;
            }
            assert_eq!(used, input.len());
            assert_eq!(OptionReply::parse(out[..20].try_into().unwrap()).unwrap().kind, expected, "{len}");
        }
    }

    #[test]
    fn option_of_more_bytes_than_are_skipped_ends_the_connection() {
        let export =
            Export { name: String::new(), description: String::new(), size: 0, flags: 1, preferred_block: 4096 };
        for (len, expected) in [(MAX_SKIPPED, Ok(16)), (MAX_SKIPPED + 1, Err(Violation::OptionLength(MAX_SKIPPED + 1)))]
        {
            let mut handshake = Handshake::new(&mut Vec::new());
            let header = [&OPTION_MAGIC.to_be_bytes()[..], &99u32.to_be_bytes(), &len.to_be_bytes()].concat();
            let input = [&3u32.to_be_bytes()[..], &header].concat();
            let flags = handshake.advance(&mut &export, &input, &mut Vec::new()).unwrap().0;
            let advanced = handshake.advance(&mut &export, &input[flags..], &mut Vec::new());
            assert_eq!(advanced.map(|(used, _)| used), expected);
        }
    }

    #[test]
    fn information_of_another_kind_or_length_is_no_export() {
        let parse = |kind: u16, rest: &[u8]| {
            parse_export(&[&kind.to_be_bytes()[..], &77u64.to_be_bytes(), &5u16.to_be_bytes(), rest].concat())
        };
        assert_eq!(parse(info::EXPORT, &[]), Some((77, 5)));
        assert_eq!(parse(info::EXPORT, &[0]), None);
        assert_eq!(parse(info::NAME, &[]), None);
    }
}
