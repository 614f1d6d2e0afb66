//! Errors of formatting and opening volumes.

use inlock_engine::Errno;

/// A volume cannot be formatted or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IntegrityError {
    /// The device has no superblock, and its first 4096 bytes are zero.
    #[error("the device has no superblock")]
    NoSuperblock,
    /// The device has other data where the superblock belongs.
    #[error("superblock field magic: the device holds other data")]
    OtherData,
    /// A field of the superblock is impossible or does not match the devices.
    #[error(transparent)]
    Superblock(#[from] InvalidField),
    /// An option is impossible or does not match the superblock.
    #[error("option {option}: {reason}")]
    Option {
        /// The option.
        option: &'static str,
        /// The reason.
        reason: &'static str,
    },
    /// The journal has a MAC, and no hash is given for it.
    #[error("its journal has a MAC, and option journal-integrity is not given")]
    NoJournalMac,
    /// The journal is longer than [`MAX_JOURNAL_SECTORS`](crate::MAX_JOURNAL_SECTORS).
    #[error("the journal has {sectors} sectors")]
    LongJournal {
        /// Its sectors.
        sectors: u64,
    },
    /// The journal is damaged. Nothing was written.
    #[error("the journal is damaged: {0}")]
    Journal(JournalDamage),
    /// A store failed.
    #[error("cannot {action}")]
    Io {
        /// The failed action.
        action: &'static str,
        /// The store's error.
        #[source]
        source: Errno,
    },
    /// The system returned no random bytes for the salt.
    #[error("the system returned no random bytes: {0}")]
    Random(getrandom::Error),
}

impl IntegrityError {
    /// Returns an error of an option.
    pub(crate) const fn option(option: &'static str, reason: &'static str) -> Self {
        Self::Option { option, reason }
    }

    /// Returns the error of a store as that of an action.
    pub(crate) fn io(action: &'static str) -> impl FnOnce(Errno) -> Self {
        move |source| Self::Io { action, source }
    }
}

/// Damage of a journal that no power cut leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalDamage {
    /// A sector has none of the commit ids of its place. Sectors that a power cut has kept from being written have that
    /// of an earlier lap.
    #[error("sector {sector} of section {section} has no commit id of this journal")]
    CommitId {
        /// Number of the section.
        section: u32,
        /// Number of the sector in it.
        sector: usize,
    },
    /// Sectors of all laps are there, so that none is the oldest.
    #[error("its sectors are of too many laps")]
    Laps,
    /// The MAC of a section that was written whole does not match.
    #[error("the MAC of section {section} does not match")]
    Mac {
        /// Number of the section.
        section: u32,
    },
    /// An entry is for a sector at which no block of the volume starts.
    #[error("entry {entry} of section {section} has an impossible position")]
    Position {
        /// Number of the section.
        section: u32,
        /// Number of the entry in it.
        entry: usize,
    },
    /// Position, data and tag of an entry do not match.
    #[error("entry {entry} of section {section} does not match its tag")]
    Tag {
        /// Number of the section.
        section: u32,
        /// Number of the entry in it.
        entry: usize,
    },
    /// A long journal is all zeroes.
    #[error("it is longer than 64 MiB and was never written")]
    NeverWritten,
}

/// A journal cannot be read or replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplayError {
    Io(Errno),
    Damaged(JournalDamage),
}

impl From<Errno> for ReplayError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno)
    }
}

impl ReplayError {
    /// Returns the error as that of an action.
    pub(crate) const fn during(action: &'static str) -> impl FnOnce(Self) -> IntegrityError {
        move |error| match error {
            Self::Io(source) => IntegrityError::Io { action, source },
            Self::Damaged(damage) => IntegrityError::Journal(damage),
        }
    }
}

/// A field of the superblock has an impossible value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("superblock field {field} is {value}: {reason}")]
pub struct InvalidField {
    /// The field, under the kernel's name.
    pub field: &'static str,
    /// Its value.
    pub value: u64,
    /// The reason.
    pub reason: &'static str,
}

/// Returns an error unless `good`.
pub(crate) fn check(good: bool, field: &'static str, value: u64, reason: &'static str) -> Result<(), InvalidField> {
    if good { Ok(()) } else { Err(InvalidField { field, value, reason }) }
}
