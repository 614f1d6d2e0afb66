//! The sidecar of a zoned file: reads it after any kind of exit, and writes its records.
//!
//! Reading yields for each zone the promised state, which survives a power cut, the table that has it, and the last
//! acknowledged state, which is valid until the system reboots. If a power cut may have torn a record, the promise in
//! the other table is used; otherwise a torn record is damage.

use crate::error::{Damage, ZonedFileError};
use crate::layout::ZonedLayout;
use crate::records::{self, BLOCK, BadHeader, Identity, RECORD, Record, SESSION, Session, Table};
use crate::states::State;
use inlock_engine::Errno;
use inlock_engine::store::{BackingStore, read_all, write_all};
use inlock_engine::zoned::ZoneCondition;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// The open sidecar of a file.
pub(crate) struct Sidecar {
    store: Arc<dyn BackingStore>,
    pub layout: ZonedLayout,
    pub identity: Identity,
    /// Number of the current boot.
    boot: u64,
}

/// Content of a sidecar.
pub(crate) struct Loaded {
    pub sidecar: Sidecar,
    /// Current state of every zone.
    pub states: Vec<State>,
    /// Promised state of every zone.
    pub promises: Vec<Promise>,
    /// The last session, and its position.
    pub session: (Session, usize),
    /// Records torn by a power cut.
    pub torn: Vec<(Table, u32)>,
}

/// The promised state of a zone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    /// The promise in effect.
    pub state: State,
    /// The table that has it.
    pub table: Table,
    /// The promise that replaces it after the next sync.
    pub next: State,
}

/// Converts an error of a system call on a file that the caller knows.
pub(crate) fn failed(source: impl Into<io::Error>) -> ZonedFileError {
    ZonedFileError::Io { path: PathBuf::new(), source: source.into() }
}

/// Writes a new sidecar with unused zones, and syncs it.
pub(crate) fn write_new(
    store: &dyn BackingStore,
    layout: &ZonedLayout,
    identity: &Identity,
    boot: u64,
) -> Result<(), Errno> {
    let zones = layout.zones();
    let mut blocks = records::header(layout, identity);
    blocks.resize(2 * BLOCK as usize, 0);
    for place in 0..2 {
        let session = Session { sequence: place as u64, boot, clean: true };
        let at = records::session_at(place) as usize;
        blocks[at..at + SESSION].copy_from_slice(&session.encode(identity, place));
    }
    write_all(store, &blocks, 0)?;
    for table in Table::ALL {
        let mut bytes = vec![0; records::table_len(zones) as usize];
        for zone in 0..zones {
            let place = records::record_at(table, zone, zones);
            let record = Record { state: State::new(layout, zone), boot: 0 };
            let at = zone as usize * RECORD;
            bytes[at..at + RECORD].copy_from_slice(&record.encode(identity, place));
        }
        write_all(store, &bytes, records::table_at(table, zones))?;
    }
    store.sync()
}

/// Reads the header.
pub(crate) fn read_header(store: &dyn BackingStore) -> Result<(ZonedLayout, Identity), ZonedFileError> {
    let len = store.geometry().len;
    let damaged = |damage| ZonedFileError::Damaged(damage);
    if len < BLOCK {
        return Err(damaged(Damage::Len { len, expected: records::sidecar_len(1) }));
    }
    let mut block = vec![0; BLOCK as usize];
    read_all(store, &mut block, 0).map_err(failed)?;
    let (layout, identity) = records::read_header(&block).map_err(|bad| {
        damaged(match bad {
            BadHeader::Magic => Damage::Magic,
            BadHeader::Version(version) => Damage::Version(version),
            BadHeader::Checksum => Damage::Header,
            BadHeader::Layout(error) => Damage::Layout(error),
        })
    })?;
    let expected = records::sidecar_len(layout.zones());
    if len != expected {
        return Err(damaged(Damage::Len { len, expected }));
    }
    Ok((layout, identity))
}

/// Reads a sidecar. `boot` is the number of the current boot.
pub(crate) fn load(store: Arc<dyn BackingStore>, boot: u64) -> Result<Loaded, ZonedFileError> {
    let (layout, identity) = read_header(&*store)?;
    let session = load_session(&*store, &identity, boot)?;
    // Only a power cut tears records.
    let whole = session.0.clean || session.0.boot == boot;
    let zones = layout.zones();
    let mut tables = Vec::with_capacity(Table::ALL.len());
    for table in Table::ALL {
        let mut bytes = vec![0; records::table_len(zones) as usize];
        read_all(&*store, &mut bytes, records::table_at(table, zones)).map_err(failed)?;
        check_padding(&bytes[zones as usize * RECORD..], records::record_at(table, zones, zones))?;
        tables.push(bytes);
    }
    let sidecar = Sidecar { store, layout, identity, boot };
    let mut loaded =
        Loaded { sidecar, states: Vec::with_capacity(zones as usize), promises: Vec::new(), session, torn: Vec::new() };
    loaded.promises.reserve_exact(zones as usize);
    for zone in 0..zones {
        loaded.load_zone(zone, &tables, whole)?;
    }
    Ok(loaded)
}

fn check_padding(bytes: &[u8], at: u64) -> Result<(), ZonedFileError> {
    match bytes.iter().position(|byte| *byte != 0) {
        None => Ok(()),
        Some(place) => Err(ZonedFileError::Damaged(Damage::Padding(at + place as u64))),
    }
}

fn load_session(store: &dyn BackingStore, identity: &Identity, boot: u64) -> Result<(Session, usize), ZonedFileError> {
    let mut block = vec![0; BLOCK as usize];
    let start = records::session_at(0);
    read_all(store, &mut block, start).map_err(failed)?;
    let mut sessions = [None; 2];
    for (place, session) in sessions.iter_mut().enumerate() {
        let at = (records::session_at(place) - start) as usize;
        *session = Session::decode(&block[at..at + SESSION], identity, place);
        block[at..at + SESSION].fill(0);
    }
    check_padding(&block, start)?;
    let last = match sessions {
        [Some(a), Some(b)] if a.sequence > b.sequence => (a, 0),
        [_, Some(b)] => (b, 1),
        [Some(a), None] => (a, 0),
        [None, None] => return Err(ZonedFileError::Damaged(Damage::Session)),
    };
    // A crash of the system may have torn the start or the end of a session, which cannot happen while it runs.
    if sessions.contains(&None) && last.0.boot == boot {
        return Err(ZonedFileError::Damaged(Damage::Session));
    }
    Ok(last)
}

impl Loaded {
    fn load_zone(&mut self, zone: u32, tables: &[Vec<u8>], whole: bool) -> Result<(), ZonedFileError> {
        let Sidecar { layout, identity, boot, .. } = &self.sidecar;
        let read = |table: Table| {
            let at = zone as usize * RECORD;
            let place = records::record_at(table, zone, layout.zones());
            let record = Record::decode(&tables[table as usize][at..at + RECORD], identity, place)?;
            // Promises are of zones at rest.
            let fits = table == Table::Answered || record.state == record.state.at_rest();
            (fits && record.state.is_possible(layout, zone)).then_some(record)
        };
        let wrong = |table: Table| ZonedFileError::Damaged(Damage::Record { zone, table: table.name() });
        for table in Table::ALL {
            match read(table) {
                None if whole => return Err(wrong(table)),
                None => self.torn.push((table, zone)),
                Some(_) => {}
            }
        }
        let (state, table) = match (read(Table::PromisedA), read(Table::PromisedB)) {
            (Some(a), Some(b)) if a.state.sequence > b.state.sequence => (a.state, Table::PromisedA),
            (_, Some(b)) => (b.state, Table::PromisedB),
            (Some(a), None) => (a.state, Table::PromisedA),
            (None, None) => return Err(wrong(Table::PromisedA)),
        };
        let answered = read(Table::Answered).filter(|record| record.boot == *boot).map(|record| record.state);
        // Both may have the same change, and only the acknowledged state knows whether the zone is open.
        let now = answered.filter(|answered| answered.sequence >= state.sequence).unwrap_or(state);
        // It was closed for another zone while its first write was in flight, and that write did not complete.
        let never_begun = now.condition == ZoneCondition::Closed && now.written == 0;
        self.states.push(if never_begun { now.at_rest() } else { now });
        self.promises.push(Promise { state, table, next: state });
        Ok(())
    }
}

impl Sidecar {
    /// Writes an acknowledged state.
    pub(crate) fn answer(&self, zone: u32, state: State) -> Result<(), Errno> {
        self.write(Table::Answered, zone, Record { state, boot: self.boot })
    }

    /// Writes a promise, which is durable after [`Sidecar::sync`].
    pub(crate) fn promise(&self, table: Table, zone: u32, state: State) -> Result<(), Errno> {
        self.write(table, zone, Record { state, boot: 0 })
    }

    fn write(&self, table: Table, zone: u32, record: Record) -> Result<(), Errno> {
        let place = records::record_at(table, zone, self.layout.zones());
        write_all(&*self.store, &record.encode(&self.identity, place), place)
    }

    /// Starts or ends a session at one of the two positions.
    pub(crate) fn write_session(&self, sequence: u64, place: usize, clean: bool) -> Result<(), Errno> {
        let session = Session { sequence, boot: self.boot, clean };
        write_all(&*self.store, &session.encode(&self.identity, place), records::session_at(place))?;
        self.sync()
    }

    /// Makes all records durable.
    pub(crate) fn sync(&self) -> Result<(), Errno> {
        self.store.sync()
    }
}
