//! The bytes of a sidecar: its header, its sessions, and the records of the zones. No I/O.
//!
//! See `docs/formats/zoned-file.md`. Every piece carries a CRC-32C that covers the file's identity and its own place
//! too, so that what was moved, or belongs to another file, is not taken for good.

use crate::layout::{LayoutError, ZonedLayout};
use crate::states::State;
use inlock_engine::zoned::ZoneCondition;

/// What ties a data file and its sidecar together: random.
pub(crate) type Identity = [u8; 16];

/// Length of the header, of the room for sessions, and of the mark at the end of the data file.
pub(crate) const BLOCK: u64 = 4096;
/// Length of a record of a zone.
pub(crate) const RECORD: usize = 32;
/// Length of a session.
pub(crate) const SESSION: usize = 32;
/// No file has seen so many changes: a number that is higher is none of ours, and might overflow.
pub(crate) const SEQUENCE_END: u64 = 1 << 62;
/// How far the two sessions are apart.
const SESSION_STRIDE: u64 = 512;
const SESSIONS_AT: u64 = BLOCK;
const TABLES_AT: u64 = 2 * BLOCK;

const HEADER_MAGIC: &[u8; 8] = b"INLKZONE";
const MARK_MAGIC: &[u8; 8] = b"INLKZDAT";
const VERSION: u32 = 1;

/// The tables of a sidecar, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    /// What survives a power cut, once.
    PromisedA,
    /// And again: written in turn with the first.
    PromisedB,
    /// What was answered, and lives as long as the system's memory.
    Answered,
}

impl Table {
    pub(crate) const ALL: [Self; 3] = [Self::PromisedA, Self::PromisedB, Self::Answered];

    /// The table of promises that is not this one.
    pub(crate) fn other(self) -> Self {
        if self == Self::PromisedA { Self::PromisedB } else { Self::PromisedA }
    }

    /// What messages call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PromisedA => "the first table of promises",
            Self::PromisedB => "the second table of promises",
            Self::Answered => "the table of answers",
        }
    }
}

/// Length of the data file of a layout.
pub(crate) fn data_len(layout: &ZonedLayout) -> u64 {
    layout.len + BLOCK
}

/// Length of a table of so many zones.
pub(crate) fn table_len(zones: u32) -> u64 {
    (u64::from(zones) * RECORD as u64).next_multiple_of(BLOCK)
}

/// Length of the sidecar of so many zones.
pub(crate) fn sidecar_len(zones: u32) -> u64 {
    TABLES_AT + table_len(zones) * Table::ALL.len() as u64
}

/// Where a table begins.
pub(crate) fn table_at(table: Table, zones: u32) -> u64 {
    TABLES_AT + table as u64 * table_len(zones)
}

/// Where the record of a zone is.
pub(crate) fn record_at(table: Table, zone: u32, zones: u32) -> u64 {
    table_at(table, zones) + u64::from(zone) * RECORD as u64
}

/// Where a session is: there are two places.
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

/// The checksum of `bytes` but for the first four, where it is kept itself.
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

/// Why a header is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadHeader {
    Magic,
    Version(u32),
    Checksum,
    Layout(LayoutError),
}

/// The first block of a sidecar.
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

/// What stands behind the zones in the data file.
pub(crate) fn mark(layout: &ZonedLayout, identity: &Identity) -> Vec<u8> {
    let mut block = vec![0; BLOCK as usize];
    put(&mut block, 8, MARK_MAGIC);
    put(&mut block, 16, identity);
    seal(identity, layout.len, &mut block);
    block
}

/// Whether a block is the mark at the end of some data file whose zones are `len` bytes long, and of which.
pub(crate) fn read_mark(block: &[u8], len: u64) -> Option<Identity> {
    let identity = block[16..32].try_into().expect("the slice has sixteen bytes");
    (&block[8..16] == MARK_MAGIC && is_sealed(&identity, len, block)).then_some(identity)
}

/// Who had the file open for writing last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    /// Grows with every session.
    pub sequence: u64,
    /// Of the system's start.
    pub boot: u64,
    /// Whether it was closed in order.
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

    /// `None`: it is none.
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
    /// What it says.
    pub state: State,
    /// The start of the system whose memory it lives in; 0 in tables of promises.
    pub boot: u64,
}

impl Record {
    /// Its bytes for their place in a sidecar.
    pub(crate) fn encode(&self, identity: &Identity, place: u64) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        bytes[4] = self.state.condition.number();
        put(&mut bytes, 8, &self.state.sequence.to_le_bytes());
        put(&mut bytes, 16, &self.state.written.to_le_bytes());
        put(&mut bytes, 24, &self.boot.to_le_bytes());
        seal(identity, place, &mut bytes);
        bytes
    }

    /// `None`: it is none.
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
