//! The options of a volume as plain values, as a command line or a file has them.
//!
//! [`OpenConfig`] can be compared and read with serde; [`OpenConfig::source`] checks which options go together, reads
//! the table and the policy that they name, and makes the [`OpenOptions`].

mod error;
mod key;
mod keys;
mod plain;
mod policy;
pub mod values;

use std::path::PathBuf;

use inlock_engine::store::file::IoMode;
use inlock_volume::table::CryptOptions;
use serde::Deserialize;

use crate::engine::EngineOptions;
use crate::error::Error;
use crate::host::Host;
use crate::integrity_options::JournalOptions;
use crate::source::{FreshnessOptions, Luks, NoJournal, OpenOptions, VolumeType};
use crate::table::{TableSource, TableText};
pub use error::{ConfigError, Fault, With};
pub use key::{MoreOptions, key_source};
pub use plain::{cipher, key_bytes, key_len};
use values::{Ciphers, Engine, Holes};

type Result<T, E = ConfigError> = std::result::Result<T, E>;

/// Maximum number of workers.
const MAX_THREADS: u16 = 1024;

/// The options of a volume. Fields have the names of the command line's options; serde has dashes in them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct OpenConfig {
    /// `luks`, which is the default, `luks1`, `luks2`, `plain` or `raw`.
    #[serde(rename = "type", deserialize_with = "keys::text")]
    pub volume_type: Option<String>,
    /// A detached header.
    #[serde(deserialize_with = "keys::path")]
    pub header: Option<PathBuf>,
    /// File with the passphrase or key; `-` is the input of the program.
    #[serde(deserialize_with = "keys::path")]
    pub key_file: Option<PathBuf>,
    /// Bytes to skip in it.
    #[serde(deserialize_with = "keys::count")]
    pub keyfile_offset: Option<u64>,
    /// Bytes to read of it.
    #[serde(deserialize_with = "keys::count")]
    pub keyfile_size: Option<u64>,
    /// The keyslot to try.
    #[serde(deserialize_with = "keys::number")]
    pub key_slot: Option<u32>,
    /// File with the volume key.
    #[serde(deserialize_with = "keys::path")]
    pub volume_key_file: Option<PathBuf>,
    /// A device-mapper table, in a file or as one line, in place of an image.
    #[serde(deserialize_with = "keys::table")]
    pub table: Option<TableText>,
    /// Clients cannot write.
    #[serde(deserialize_with = "keys::flag")]
    pub read_only: bool,
    /// Discards are passed on to the device.
    #[serde(deserialize_with = "keys::flag")]
    pub allow_discards: bool,
    /// I/O engine.
    #[serde(deserialize_with = "keys::choice")]
    pub io: Option<IoMode>,
    /// Number of workers.
    #[serde(deserialize_with = "keys::number")]
    pub threads: Option<u16>,
    /// Cipher engine.
    #[serde(deserialize_with = "keys::choice")]
    pub engine: Option<Engine>,
    /// Bytes of the shortest request for it.
    #[serde(deserialize_with = "keys::size")]
    pub engine_threshold: Option<u64>,

    /// Cipher of a plain volume.
    #[serde(deserialize_with = "keys::text")]
    pub cipher: Option<String>,
    /// Length of its key, or of that in `volume_key_file`, in bits.
    #[serde(deserialize_with = "keys::number")]
    pub key_size: Option<u32>,
    /// Hash that makes it from a passphrase.
    #[serde(deserialize_with = "keys::text")]
    pub hash: Option<String>,
    /// Bytes of a data unit.
    #[serde(deserialize_with = "keys::number")]
    pub sector_size: Option<u32>,
    /// IV numbers count data units.
    #[serde(deserialize_with = "keys::flag")]
    pub iv_large_sectors: bool,
    /// The tweak is that of SPDK.
    #[serde(deserialize_with = "keys::flag")]
    pub spdk_tweak: bool,
    /// First sector on the device.
    #[serde(deserialize_with = "keys::count")]
    pub offset: Option<u64>,
    /// First IV number.
    #[serde(deserialize_with = "keys::count")]
    pub skip: Option<u64>,
    /// Number of sectors.
    #[serde(deserialize_with = "keys::sectors")]
    pub size: Option<u64>,
    /// Number of bytes.
    #[serde(deserialize_with = "keys::size")]
    pub device_size: Option<u64>,

    /// A null cipher is allowed.
    #[serde(deserialize_with = "keys::flag")]
    pub allow_null_cipher: bool,
    /// A cipher without IV is allowed.
    #[serde(deserialize_with = "keys::flag")]
    pub allow_null_iv: bool,
    /// A segment without encryption is allowed.
    #[serde(deserialize_with = "keys::flag")]
    pub allow_linear_segment: bool,
    /// A superblock of dm-integrity behind a header that does not tell of it is allowed.
    #[serde(deserialize_with = "keys::flag")]
    pub allow_integrity_superblock: bool,
    /// The volume must have one of these.
    #[serde(deserialize_with = "keys::ciphers")]
    pub require_cipher: Option<Ciphers>,
    /// The header must have it.
    #[serde(deserialize_with = "keys::uuid")]
    pub expect_uuid: Option<String>,
    /// File with a policy.
    #[serde(deserialize_with = "keys::path")]
    pub policy: Option<PathBuf>,

    /// A volume with integrity protection is written without its journal.
    #[serde(deserialize_with = "keys::flag")]
    pub integrity_no_journal: bool,
    /// What can be read of a damaged journal is replayed.
    #[serde(deserialize_with = "keys::flag")]
    pub integrity_salvage_journal: bool,
    /// A journal of any length is accepted.
    #[serde(deserialize_with = "keys::flag")]
    pub integrity_long_journal: bool,
    /// File that records the newest state.
    #[serde(deserialize_with = "keys::path")]
    pub freshness: Option<PathBuf>,
    /// The present state is recorded without comparing it.
    #[serde(deserialize_with = "keys::flag")]
    pub freshness_accept: bool,
    /// A digest of all tags is recorded when the volume is closed.
    #[serde(deserialize_with = "keys::flag")]
    pub freshness_tags: bool,
    /// Content of holes.
    #[serde(deserialize_with = "keys::choice")]
    pub holes: Option<Holes>,

    /// Options that no file has.
    #[serde(skip)]
    pub more: MoreOptions,
}

/// A volume to open, and how its device works.
#[derive(Debug)]
pub struct VolumeSource {
    /// The volume.
    pub options: OpenOptions,
    /// I/O engine.
    pub io: IoMode,
    /// Number of workers, if it is given.
    pub threads: Option<u16>,
    /// Cipher engine. `None`: the ciphers of this program.
    pub engine: Option<EngineOptions>,
}

impl OpenConfig {
    /// Returns the names of the options that a file can have.
    pub fn names() -> &'static [&'static str] {
        keys::names::<Self>()
    }

    /// Checks which options go together, and returns the volume that they are of. Reads the table and the policy.
    /// `image`: the device, unless there is a table. `host`: is told of a policy that protects little.
    pub fn source(&self, host: &dyn Host, image: PathBuf) -> Result<VolumeSource> {
        let threads = self.threads()?;
        let options = self.open_options(host, image)?;
        Ok(VolumeSource { options, io: self.io.unwrap_or_default(), threads, engine: self.engine()? })
    }

    /// Returns the volume alone, as [`OpenConfig::source`] does.
    pub fn open_options(&self, host: &dyn Host, image: PathBuf) -> Result<OpenOptions> {
        let (volume_type, image, with) = match &self.table {
            None => (self.volume_type()?, image, With::Type(self.type_name().to_owned())),
            Some(_) if self.volume_type.is_some() => return Err(not_allowed("type", &With::Option("table"))),
            Some(table) => {
                let table = TableSource::parse(table.as_os_str()).map_err(|error| Fault::Open(error).of("table"))?;
                (VolumeType::Table(table.clone()), table.image(), With::Option("table"))
            }
        };
        self.check_type(&volume_type, &with)?;
        let policy = self.policy(host)?;
        if !matches!(volume_type, VolumeType::Luks(_)) && policy.needs_header() {
            return Err(Fault::PolicyOfHeader(with).of("policy"));
        }
        Ok(OpenOptions {
            image,
            header: self.header.clone(),
            volume_type,
            key: self.key()?,
            flags: self.flags(),
            persistent: self.more.persistent,
            policy,
            no_journal: self.integrity_no_journal.then_some(NoJournal::Option),
            journal: self.journal(),
            freshness: self.freshness()?,
            links: self.links()?,
            shared: self.more.shared,
            zero_holes: self.holes == Some(Holes::Zero),
        })
    }

    fn type_name(&self) -> &str {
        self.volume_type.as_deref().unwrap_or("luks")
    }

    /// Returns the type of the volume, with the options that go with it.
    pub fn volume_type(&self) -> Result<VolumeType> {
        Ok(match self.type_name() {
            "luks" => VolumeType::Luks(Luks::Any),
            "luks1" => VolumeType::Luks(Luks::One),
            "luks2" => VolumeType::Luks(Luks::Two),
            "plain" => VolumeType::Plain(self.plain()?),
            "raw" => VolumeType::Raw,
            other => return Err(Fault::UnknownType(other.to_owned()).of("type")),
        })
    }

    /// Refuses options that do not go with the type.
    fn check_type(&self, volume_type: &VolumeType, with: &With) -> Result<()> {
        let is_luks = matches!(volume_type, VolumeType::Luks(_));
        let is_plain = matches!(volume_type, VolumeType::Plain(_));
        let (is_raw, is_table) = (matches!(volume_type, VolumeType::Raw), matches!(volume_type, VolumeType::Table(_)));
        let of_plain = [
            (self.cipher.is_some(), "cipher"),
            (self.key_size.is_some() && self.volume_key_file.is_none(), "key-size"),
            (self.hash.is_some(), "hash"),
            (self.sector_size.is_some(), "sector-size"),
            (self.iv_large_sectors, "iv-large-sectors"),
            (self.spdk_tweak, "spdk-tweak"),
            (self.offset.is_some(), "offset"),
            (self.skip.is_some(), "skip"),
            (self.size.is_some(), "size"),
            (self.device_size.is_some(), "device-size"),
            (self.more.shared, "shared"),
        ];
        let of_header = [
            (self.volume_key_file.is_some(), "volume-key-file"),
            (self.more.volume_key_keyring.is_some(), "volume-key-keyring"),
            (self.header.is_some(), "header"),
            (self.key_slot.is_some(), "key-slot"),
            (self.more.token_id.is_some(), "token-id"),
            (self.more.token_type.is_some(), "token-type"),
            (self.more.token_only, "token-only"),
            (!self.more.link_vk_to_keyring.is_empty(), "link-vk-to-keyring"),
            (self.integrity_no_journal && !is_plain, "integrity-no-journal"),
            (self.freshness.is_some(), "freshness"),
            (self.expect_uuid.is_some(), "expect-uuid"),
        ];
        let of_plain = of_plain.iter().filter(|_| !is_plain);
        let of_header = of_header.iter().filter(|_| !is_luks);
        let others = [
            ((is_raw || is_table) && self.key_file.is_some(), "key-file"),
            (is_raw && self.holes == Some(Holes::Zero), "holes"),
        ];
        match of_plain.chain(of_header).chain(&others).find(|(given, _)| *given) {
            Some((_, option)) => Err(not_allowed(option, with)),
            None => Ok(()),
        }
    }

    /// Returns the flags: discards, and dm-crypt's threads.
    pub fn flags(&self) -> CryptOptions {
        let mut flags = self.more.thread_flags;
        flags.allow_discards = self.allow_discards;
        flags
    }

    /// Returns which journals are accepted.
    pub fn journal(&self) -> JournalOptions {
        JournalOptions { salvage: self.integrity_salvage_journal, long: self.integrity_long_journal }
    }

    fn freshness(&self) -> Result<Option<FreshnessOptions>> {
        let Some(file) = &self.freshness else {
            let given = [(self.freshness_accept, "freshness-accept"), (self.freshness_tags, "freshness-tags")];
            return match given.iter().find(|(given, _)| *given) {
                Some((_, option)) => Err(Fault::Needs("freshness").of(option)),
                None => Ok(None),
            };
        };
        // A process in the background has another working directory.
        let file = std::path::absolute(file).map_err(|error| Fault::Open(Error::from(error)).of("freshness"))?;
        Ok(Some(FreshnessOptions { file, accept: self.freshness_accept, tags: self.freshness_tags }))
    }

    /// Returns the number of workers, if it is given.
    pub fn threads(&self) -> Result<Option<u16>> {
        match self.threads {
            Some(number) if !(1..=MAX_THREADS).contains(&number) => Err(Fault::Above(MAX_THREADS.into()).of("threads")),
            threads => Ok(threads),
        }
    }

    /// Returns the cipher engine. `None`: the ciphers of this program.
    pub fn engine(&self) -> Result<Option<EngineOptions>> {
        if self.engine != Some(Engine::AfAlg) {
            return match self.engine_threshold {
                Some(_) => Err(Fault::Needs("engine afalg").of("engine-threshold")),
                None => Ok(None),
            };
        }
        let threshold = self.engine_threshold.unwrap_or(inlock_afalg::DEFAULT_MIN_LEN as u64);
        if threshold == 0 {
            return Err(Fault::Zero.of("engine-threshold"));
        }
        if self.holes == Some(Holes::Zero) {
            return Err(Fault::Combined("engine afalg", "holes zero").of("engine"));
        }
        Ok(Some(EngineOptions { threshold: usize::try_from(threshold).unwrap_or(usize::MAX) }))
    }
}

fn not_allowed(option: &'static str, with: &With) -> ConfigError {
    Fault::NotAllowed(with.clone()).of(option)
}

#[cfg(test)]
mod tests;
