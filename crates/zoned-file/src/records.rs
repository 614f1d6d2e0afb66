//! The bytes of a sidecar: its header, its sessions, and the records of the zones. No I/O.
//!
//! See `docs/formats/zoned-file.md`. Every piece has a CRC-32C of its bytes, the file's identity and its position, so
//! that moved pieces and those of another file are detected.

use crate::layout::{LayoutError, ZonedLayout};
use crate::states::State;
use inlock_engine::zoned::ZoneCondition;

/// Random number shared by a data file and its sidecar.
pub(crate) type Identity = [u8; 16];

/// Length of the header, of the space for sessions, and of the mark at the end of the data file.
pub(crate) const BLOCK: u64 = 4096;
/// Length of the record of a zone.
pub(crate) const RECORD: usize = 32;
/// Length of a session.
pub(crate) const SESSION: usize = 32;
/// Limit of sequence numbers: no file has so many changes, and a higher number might overflow.
pub(crate) const SEQUENCE_END: u64 = 1 << 62;
/// Distance of the two sessions.
const SESSION_STRIDE: u64 = 512;
const SESSIONS_AT: u64 = BLOCK;
const TABLES_AT: u64 = 2 * BLOCK;

const HEADER_MAGIC: &[u8; 8] = b"INLKZONE";
const MARK_MAGIC: &[u8; 8] = b"INLKZDAT";
const VERSION: u32 = 1;

/// The tables of a sidecar, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    /// Promised states, which survive a power cut.
    PromisedA,
    /// Promised states; the two tables are written alternately.
    PromisedB,
    /// Acknowledged states, which survive as long as the page cache.
    Answered,
}

impl Table {
    pub(crate) const ALL: [Self; 3] = [Self::PromisedA, Self::PromisedB, Self::Answered];

    /// Returns the other table of promises.
    pub(crate) fn other(self) -> Self {
        if self == Self::PromisedA { Self::PromisedB } else { Self::PromisedA }
    }

    /// Returns the name for messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PromisedA => "the first table of promises",
            Self::PromisedB => "the second table of promises",
            Self::Answered => "the table of answers",
        }
    }
}

/// Returns the length of the data file of a layout.
pub(crate) fn data_len(layout: &ZonedLayout) -> u64 {
    layout.len + BLOCK
}

/// Returns the length of a table.
pub(crate) fn table_len(zones: u32) -> u64 {
    (u64::from(zones) * RECORD as u64).next_multiple_of(BLOCK)
}

/// Returns the length of the sidecar.
pub(crate) fn sidecar_len(zones: u32) -> u64 {
    TABLES_AT + table_len(zones) * Table::ALL.len() as u64
}

/// Returns the start of a table.
pub(crate) fn table_at(table: Table, zones: u32) -> u64 {
    TABLES_AT + table as u64 * table_len(zones)
}

/// Returns the position of a zone's record.
pub(crate) fn record_at(table: Table, zone: u32, zones: u32) -> u64 {
    table_at(table, zones) + u64::from(zone) * RECORD as u64
}

/// Returns the position of a session, of which there are two.
pub(crate) fn session_at(place: usize) -> u64 {
    SESSIONS_AT + place as u64 * SESSION_STRIDE
}

fn put(into: &mut [u8], at: usize, bytes: &[u8]) {
    into[at..at + bytes.len()].copy_from_slice(bytes);
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("the slice has four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("the slice has eight bytes"))
}

/// Returns the checksum of `bytes`, except for the first four, which have the checksum.
fn checksum(identity: &Identity, place: u64, bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c(identity);
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &place.to_le_bytes()), &bytes[4..])
}

fn seal(identity: &Identity, place: u64, bytes: &mut [u8]) {
    let sum = checksum(identity, place, bytes);
    put(bytes, 0, &sum.to_le_bytes());
}

fn is_sealed(identity: &Identity, place: u64, bytes: &[u8]) -> bool {
    u32_at(bytes, 0) == checksum(identity, place, bytes)
}

/// Fault of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadHeader {
    Magic,
    Version(u32),
    Checksum,
    Layout(LayoutError),
}

/// Returns the first block of a sidecar.
pub(crate) fn header(layout: &ZonedLayout, identity: &Identity) -> Vec<u8> {
    let mut block = vec![0; BLOCK as usize];
    put(&mut block, 4, &VERSION.to_le_bytes());
    put(&mut block, 8, HEADER_MAGIC);
    put(&mut block, 16, identity);
    put(&mut block, 32, &layout.len.to_le_bytes());
    put(&mut block, 40, &layout.zone_len.to_le_bytes());
    put(&mut block, 48, &layout.capacity.to_le_bytes());
    put(&mut block, 56, &layout.conventional.to_le_bytes());
    put(&mut block, 60, &layout.max_open.to_le_bytes());
    put(&mut block, 64, &layout.max_active.to_le_bytes());
    put(&mut block, 68, &layout.write_granularity.to_le_bytes());
    seal(identity, 0, &mut block);
    block
}

/// Reads the first block of a sidecar.
pub(crate) fn read_header(block: &[u8]) -> Result<(ZonedLayout, Identity), BadHeader> {
    if &block[8..16] != HEADER_MAGIC {
        return Err(BadHeader::Magic);
    }
    let identity = block[16..32].try_into().expect("the slice has sixteen bytes");
    if !is_sealed(&identity, 0, block) {
        return Err(BadHeader::Checksum);
    }
    let version = u32_at(block, 4);
    if version != VERSION {
        return Err(BadHeader::Version(version));
    }
    let layout = ZonedLayout {
        len: u64_at(block, 32),
        zone_len: u64_at(block, 40),
        capacity: u64_at(block, 48),
        conventional: u32_at(block, 56),
        max_open: u32_at(block, 60),
        max_active: u32_at(block, 64),
        write_granularity: u32_at(block, 68),
    };
    layout.check().map_err(BadHeader::Layout)?;
    Ok((layout, identity))
}

/// Makes the mark after the zones of a data file.
pub(crate) fn mark(layout: &ZonedLayout, identity: &Identity) -> Vec<u8> {
    let mut block = vec![0; BLOCK as usize];
    put(&mut block, 8, MARK_MAGIC);
    put(&mut block, 16, identity);
    seal(identity, layout.len, &mut block);
    block
}

/// Returns the identity in `block` if that is the mark of a data file whose zones have `len` bytes.
pub(crate) fn read_mark(block: &[u8], len: u64) -> Option<Identity> {
    let identity = block[16..32].try_into().expect("the slice has sixteen bytes");
    (&block[8..16] == MARK_MAGIC && is_sealed(&identity, len, block)).then_some(identity)
}

/// The last use of a file for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    /// Grows with every session.
    pub sequence: u64,
    /// Number of the boot.
    pub boot: u64,
    /// Whether it was closed properly.
    pub clean: bool,
}

impl Session {
    pub(crate) fn encode(&self, identity: &Identity, place: usize) -> [u8; SESSION] {
        let mut bytes = [0; SESSION];
        put(&mut bytes, 4, &u32::from(self.clean).to_le_bytes());
        put(&mut bytes, 8, &self.sequence.to_le_bytes());
        put(&mut bytes, 16, &self.boot.to_le_bytes());
        seal(identity, session_at(place), &mut bytes);
        bytes
    }

    /// `None`: the bytes are not a valid session.
    pub(crate) fn decode(bytes: &[u8], identity: &Identity, place: usize) -> Option<Self> {
        let clean = u32_at(bytes, 4);
        let session = Self { sequence: u64_at(bytes, 8), boot: u64_at(bytes, 16), clean: clean == 1 };
        let good = is_sealed(identity, session_at(place), bytes) && clean <= 1 && session.sequence < SEQUENCE_END;
        good.then_some(session)
    }
}

/// The record of a zone in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// State of the zone.
    pub state: State,
    /// Number of the boot whose memory has the state; 0 in tables of promises.
    pub boot: u64,
}

impl Record {
    /// Encodes the record for its position in a sidecar.
    pub(crate) fn encode(&self, identity: &Identity, place: u64) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        bytes[4] = self.state.condition.number();
        put(&mut bytes, 8, &self.state.sequence.to_le_bytes());
        put(&mut bytes, 16, &self.state.written.to_le_bytes());
        put(&mut bytes, 24, &self.boot.to_le_bytes());
        seal(identity, place, &mut bytes);
        bytes
    }

    /// `None`: the bytes are not a valid record.
    pub(crate) fn decode(bytes: &[u8], identity: &Identity, place: u64) -> Option<Self> {
        if !is_sealed(identity, place, bytes) || bytes[5..8] != [0; 3] {
            return None;
        }
        let state = State {
            condition: ZoneCondition::from_number(bytes[4])?,
            sequence: u64_at(bytes, 8),
            written: u64_at(bytes, 16),
        };
        (state.sequence < SEQUENCE_END).then(|| Self { state, boot: u64_at(bytes, 24) })
    }
}
