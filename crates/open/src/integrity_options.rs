//! A dm-integrity volume as the command line names it: hashes, journal cipher, and the files with their keys.

use crate::error::{Result, ResultExt as _};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use inlock_cipher::VolumeKey;
use inlock_integrity::{JournalCipher, Mode, OpenOptions, TagAlgorithm, TagHash};
use zeroize::Zeroizing;

/// A dm-integrity volume as named on the command line.
#[derive(Clone, Debug)]
pub struct IntegrityOptions {
    /// Device of the data; the image is then the metadata device.
    pub data_device: Option<PathBuf>,
    /// How tags are kept up to date.
    pub mode: Mode,
    /// The hash of the tags.
    pub hash: HashOptions,
    /// The hash that authenticates the journal.
    pub journal_mac: Option<HashOptions>,
    /// The cipher of the journal.
    pub journal_cipher: Option<JournalCipherOptions>,
    /// Time between two commits of the journal, or two flushes of the bitmap.
    pub every: Duration,
    /// Bytes of a tag. `None`: those of the superblock, with a key not less than the hash has.
    pub tag_size: Option<usize>,
    /// Sectors of a bit of the bitmap. `None`: those of the superblock.
    pub sectors_per_bit: Option<u32>,
    /// Discarded blocks have no valid tag.
    pub allow_discards: bool,
    /// Computes all tags.
    pub recalculate: bool,
    /// Computes tags of a volume with a keyed hash, too.
    pub legacy_recalculate: bool,
    /// Journals that are accepted.
    pub journal: JournalOptions,
}

/// Journals that are accepted.
#[derive(Clone, Copy, Debug, Default)]
pub struct JournalOptions {
    /// `--integrity-salvage-journal`
    pub salvage: bool,
    /// `--integrity-long-journal`
    pub long: bool,
}

impl JournalOptions {
    /// Returns options that accept it.
    pub fn apply(self, options: OpenOptions) -> OpenOptions {
        OpenOptions { salvage_journal: self.salvage, long_journal: self.long, ..options }
    }
}

/// A hash and its key.
#[derive(Clone, Debug)]
pub struct HashOptions {
    /// The hash.
    pub algorithm: TagAlgorithm,
    /// Its key.
    pub key: Option<IntegrityKeyFile>,
}

/// The cipher of a journal and its key.
#[derive(Clone, Debug)]
pub struct JournalCipherOptions {
    /// Name of the cipher, as in a table.
    pub name: String,
    /// Its key.
    pub key: IntegrityKeyFile,
}

/// The first bytes of a file, as a key.
#[derive(Clone, Debug)]
pub struct IntegrityKeyFile {
    /// The file.
    pub path: PathBuf,
    /// Length of the key in bytes.
    pub len: usize,
}

impl IntegrityKeyFile {
    fn read(&self) -> Result<Zeroizing<Vec<u8>>> {
        let cannot_read = || format!("Cannot read {} bytes from keyfile {}.", self.len, self.path.display());
        let mut file =
            File::open(&self.path).with_context(|| format!("Cannot read keyfile {}.", self.path.display()))?;
        let mut key = Zeroizing::new(vec![0; self.len]);
        file.read_exact(&mut key).with_context(cannot_read)?;
        Ok(key)
    }
}

impl HashOptions {
    /// Reads the key.
    pub fn load(&self) -> Result<Arc<TagHash>> {
        let key = self.key.as_ref().map(IntegrityKeyFile::read).transpose()?.unwrap_or_default();
        Ok(Arc::new(TagHash::new(self.algorithm, &key)?))
    }
}

impl JournalCipherOptions {
    /// Reads the key.
    pub fn load(&self) -> Result<Arc<JournalCipher>> {
        Ok(Arc::new(JournalCipher::new(&self.name, &VolumeKey::new(&self.key.read()?))?))
    }
}

impl IntegrityOptions {
    /// Reads the keys, and returns the options of the library.
    pub fn load(&self) -> Result<OpenOptions> {
        let mut options = OpenOptions::new(self.mode);
        options.internal_hash = Some(self.hash.load()?);
        options.journal_mac = self.journal_mac.as_ref().map(HashOptions::load).transpose()?;
        options.journal_cipher = self.journal_cipher.as_ref().map(JournalCipherOptions::load).transpose()?;
        options.tag_size = self.tag_size;
        options.sectors_per_bit = self.sectors_per_bit;
        options.allow_discards = self.allow_discards;
        options.recalculate = self.recalculate;
        options.legacy_recalculate = self.legacy_recalculate;
        Ok(self.journal.apply(options))
    }
}
