//! The volume to open, and where its key comes from.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use inlock_volume::plain::Plain;
use inlock_volume::table::CryptOptions;
use inlock_volume::{HeaderPolicy, Secret};

use super::integrity_options::{IntegrityOptions, JournalOptions};
use super::keyring::KeyLink;
use super::table::TableSource;
use super::verity::VerityOptions;

/// A volume to open.
#[derive(Debug)]
pub struct OpenOptions {
    /// The device, or the first one of a table.
    pub image: PathBuf,
    /// A detached header.
    pub header: Option<PathBuf>,
    /// Type of the volume.
    pub volume_type: VolumeType,
    /// Origin of the key.
    pub key: KeyOptions,
    /// Flags in addition to those of the header or the table.
    pub flags: CryptOptions,
    /// `--persistent`: `flags` replace those of the header.
    pub persistent: bool,
    /// What a header has to comply with.
    pub policy: HeaderPolicy,
    /// Why a volume with integrity protection is opened without its journal.
    pub no_journal: Option<NoJournal>,
    /// Journals that are accepted.
    pub journal: JournalOptions,
    /// `--freshness`
    pub freshness: Option<FreshnessOptions>,
    /// `--link-vk-to-keyring`
    pub links: Vec<KeyLink>,
    /// `--shared`: other plain volumes on the device may be open.
    pub shared: bool,
    /// `--holes zero`: holes of the device read as zeroes.
    pub zero_holes: bool,
}

impl OpenOptions {
    /// Returns the options of a volume of this type, with a header or a superblock on `image`.
    pub fn new(image: impl Into<PathBuf>, volume_type: VolumeType, key: KeySource) -> Self {
        Self {
            image: image.into(),
            header: None,
            volume_type,
            key: KeyOptions::new(key),
            flags: CryptOptions::default(),
            persistent: false,
            policy: HeaderPolicy::default(),
            no_journal: None,
            journal: JournalOptions::default(),
            freshness: None,
            links: Vec::new(),
            shared: false,
            zero_holes: false,
        }
    }

    /// Returns the options of a LUKS volume of any version.
    pub fn luks(image: impl Into<PathBuf>, key: KeySource) -> Self {
        Self::new(image, VolumeType::Luks(Luks::Any), key)
    }
}

/// Reason for which a journal is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoJournal {
    /// `--integrity-no-journal`, which scripts pass for every volume, as cryptsetup allows.
    Option,
    /// `--resume-wipe`, which needs integrity protection.
    ResumeWipe,
}

/// Type of a volume.
#[derive(Clone, Debug)]
pub enum VolumeType {
    /// A LUKS volume.
    Luks(Luks),
    /// A plain volume.
    Plain(Plain),
    /// A device-mapper table.
    Table(TableSource),
    /// A volume of dm-integrity; the image is the device with its superblock.
    Integrity(IntegrityOptions),
    /// A dm-verity device; the image is the data device.
    Verity(VerityOptions),
    /// No encryption.
    Raw,
}

/// The LUKS versions that are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Luks {
    /// Any version.
    Any,
    /// LUKS1.
    One,
    /// LUKS2.
    Two,
}

/// Location of a LUKS header.
#[derive(Debug)]
pub struct HeaderOptions {
    /// The device with the data.
    pub image: PathBuf,
    /// A detached header.
    pub header: Option<PathBuf>,
    /// Accepted versions.
    pub luks: Luks,
    /// What the header has to comply with.
    pub policy: HeaderPolicy,
}

/// Source of a passphrase or key.
#[derive(Clone, Debug)]
pub struct KeyOptions {
    /// Origin of the passphrase or key.
    pub source: KeySource,
    /// Bytes to skip.
    pub offset: u64,
    /// Bytes to read. `None`: to the end.
    pub size: Option<u64>,
    /// The keyslot to try. `None`: all.
    pub slot: Option<u32>,
    /// Number of passphrases that are asked for.
    pub tries: u32,
    /// Time to type a passphrase.
    pub timeout: Option<Duration>,
    /// Ask twice.
    pub verify: bool,
    /// Tokens to try first.
    pub tokens: TokenChoice,
    /// Use a volume key instead of a passphrase.
    pub volume_key: Option<VolumeKeyOptions>,
    /// The other volume key of a volume in re-encryption, in any order.
    pub second_volume_key: Option<VolumeKeyOrigin>,
}

impl KeyOptions {
    /// Returns the options of a passphrase or key that is used whole, for any keyslot. No helper of a token is run.
    pub fn new(source: KeySource) -> Self {
        Self {
            source,
            offset: 0,
            size: None,
            slot: None,
            tries: 3,
            timeout: None,
            verify: false,
            tokens: TokenChoice {
                number: None,
                kind: None,
                only: false,
                helpers: None,
                timeout: Duration::from_secs(30),
            },
            volume_key: None,
            second_volume_key: None,
        }
    }
}

/// Source of the passphrase or key of a new keyslot.
#[derive(Clone, Debug)]
pub struct NewKeyOptions {
    /// Origin of the passphrase or key.
    pub key: KeyOptions,
    /// Ask twice at a terminal.
    pub verify: bool,
}

/// Source of a volume key.
#[derive(Clone, Debug)]
pub struct VolumeKeyOptions {
    /// Place of the key.
    pub origin: VolumeKeyOrigin,
    /// Length in bytes. `None`: that of the header.
    pub len: Option<usize>,
}

/// Place of a volume key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeKeyOrigin {
    /// The first bytes of a file.
    File(PathBuf),
    /// A key of the kernel's keyring: a number, or `%TYPE:NAME`.
    Keyring(String),
}

/// The tokens to try.
#[derive(Clone, Debug)]
pub struct TokenChoice {
    /// `--token-id`
    pub number: Option<u32>,
    /// `--token-type`
    pub kind: Option<String>,
    /// `--token-only`
    pub only: bool,
    /// Directory of the helpers; `None`: no helper is run.
    pub helpers: Option<PathBuf>,
    /// Time that a helper has.
    pub timeout: Duration,
}

/// Origin of a passphrase or key.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// A user, or the first line of the input if there is none.
    Ask,
    /// A user, or all of the input if there is none.
    Input,
    /// A key file.
    File(PathBuf),
    /// The passphrase or key itself.
    Bytes(Arc<Secret>),
}

impl KeySource {
    /// Returns a passphrase or key that the program has.
    pub fn bytes(secret: impl Into<Vec<u8>>) -> Self {
        Self::Bytes(Arc::new(Secret::new(secret.into())))
    }
}

/// Options of `--freshness`.
#[derive(Clone, Debug)]
pub struct FreshnessOptions {
    /// The file with the records.
    pub file: PathBuf,
    /// `--freshness-accept`: record the present state without comparing it.
    pub accept: bool,
    /// `--freshness-tags`: record a digest of all tags when the volume is closed.
    pub tags: bool,
}
