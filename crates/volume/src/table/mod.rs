//! dm-crypt's table: `start length crypt cipher key iv_offset device offset [count options]`, parsed and printed like
//! the Linux kernel.
//!
//! A table describes an unlocked volume in one or several lines of text: a program that has it needs no header. Lines
//! of the targets `crypt`, `linear`, `zero` and `error` follow each other without gaps. The parser refuses what the
//! kernel refuses, with the wrong word and the expected text; docs/formats/table.md lists the differences. Keys are in
//! locked memory, and printed only on request. [`IntegrityTable`] describes a device with integrity protection,
//! [`VerityTable`] one with a hash tree.

mod any;
mod crypt;
mod error;
mod integrity;
mod options;
mod print;
mod verity;
mod words;

pub use any::AnyTable;
pub use crypt::{CryptLine, KernelRefusal};
pub use error::{TableError, TableFault};
pub use integrity::{Counts, IntegrityArguments, IntegrityLine, IntegrityMode, IntegrityTable, KeyedName, SealedLine};
pub use options::CryptOptions;
pub use print::ShowKeys;
pub use verity::{FecArguments, NamedTable, OnFault, VerityArguments, VerityLine, VerityTable};

use crate::unlock::ActivationFlags;
use inlock_cipher::{DataUnitSize, Sector, Segment, TargetType, VolumeKey};
use print::{write_key, write_word};
use words::Words;

/// Maximum length of a table in bytes.
const MAX_LEN: usize = 1 << 20;
/// Maximum number of lines.
const MAX_LINES: usize = 1024;
/// Maximum number of keys in all lines. Each takes some mappings of locked memory.
const MAX_KEYS: usize = 2048;
/// Maximum length of a device, in sectors: below 2^63 bytes, as in Linux.
const MAX_SECTORS: u64 = (1 << 54) - 1;

/// The lines of a table, in order and without gaps.
#[derive(Debug)]
pub struct Table {
    lines: Vec<TableLine>,
}

/// A range of the device with its target.
#[non_exhaustive]
#[derive(Debug)]
pub struct TableLine {
    /// First sector of 512 bytes.
    pub start: u64,
    /// Number of sectors.
    pub sectors: u64,
    /// The target.
    pub target: Target,
}

/// A target with its arguments.
#[derive(Debug)]
pub enum Target {
    /// Encrypted data.
    Crypt(Box<CryptLine>),
    /// Unencrypted data.
    Linear {
        /// The device: a path or `MAJ:MIN`.
        device: String,
        /// Start of the line's data on it, in sectors.
        offset: u64,
    },
    /// Reads return zeroes, writes are dropped.
    Zero,
    /// Every request fails.
    Error,
}

impl Target {
    /// Returns the type of the target.
    pub fn target_type(&self) -> TargetType {
        match self {
            Self::Crypt(_) => TargetType::Crypt,
            Self::Linear { .. } => TargetType::Linear,
            Self::Zero => TargetType::Zero,
            Self::Error => TargetType::Error,
        }
    }
}

impl Table {
    /// Parses the lines of `text`. Empty lines, and lines that start with `#`, are skipped.
    ///
    /// # Errors
    ///
    /// Fails at the first word that the Linux kernel or Inlock refuses.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        if text.len() > MAX_LEN {
            return Err(TableError::of_table(TableFault::TooLong));
        }
        Self::parse_lines((1..).zip(text.lines()))
    }

    /// Parses lines with their numbers.
    fn parse_lines<'a>(text: impl Iterator<Item = (usize, &'a str)>) -> Result<Self, TableError> {
        let mut lines: Vec<TableLine> = Vec::new();
        let (mut next, mut keys) = (0, 0);
        for (number, line) in text {
            let mut words = Words::new(number, line);
            if words.is_empty() {
                continue;
            }
            if lines.len() == MAX_LINES {
                return Err(TableError::of_table(TableFault::TooLong));
            }
            let line = TableLine::parse(&mut words, next)?;
            if let Target::Crypt(crypt) = &line.target {
                keys += crypt.cipher.keys.get();
            }
            if keys > MAX_KEYS {
                return Err(TableError::of_table(TableFault::TooLong));
            }
            next += line.sectors;
            lines.push(line);
        }
        if lines.is_empty() { Err(TableError::of_table(TableFault::Empty)) } else { Ok(Self { lines }) }
    }

    /// Returns the table of an unlocked volume on `device`, which has `device_len` bytes.
    pub fn of_volume(
        segments: &[Segment],
        key: &VolumeKey,
        options: CryptOptions,
        device: &str,
        device_len: u64,
    ) -> Self {
        Self::of_segments(segments.iter().map(|segment| (*segment, Some(key))), options, device, device_len)
    }

    /// Returns the table of segments on `device`, which has `device_len` bytes, each with its key.
    pub fn of_segments<'a>(
        segments: impl IntoIterator<Item = (Segment, Option<&'a VolumeKey>)>,
        options: CryptOptions,
        device: &str,
        device_len: u64,
    ) -> Self {
        let line = |(segment, key): (Segment, Option<&VolumeKey>)| {
            let behind = (device_len / 512).saturating_sub(segment.data_offset.0);
            let sectors = segment.sectors.unwrap_or(behind / segment.unit.sectors() * segment.unit.sectors());
            let target = match segment.cipher.zip(key) {
                None => Target::Linear { device: device.to_owned(), offset: segment.data_offset.0 },
                Some((cipher, key)) => Target::Crypt(Box::new(CryptLine {
                    cipher,
                    cipher_name: cipher.to_string(),
                    key: VolumeKey::new(key.as_bytes()),
                    iv_offset: segment.iv_offset,
                    device: device.to_owned(),
                    offset: segment.data_offset,
                    unit: segment.unit,
                    large_iv: segment.large_iv,
                    options,
                })),
            };
            TableLine { start: segment.start.0, sectors, target }
        };
        Self { lines: segments.into_iter().map(line).collect() }
    }

    /// Sets the names of ciphers as a header has them ([`Volume::cipher_names`](crate::Volume::cipher_names)), by line.
    pub fn set_cipher_names(&mut self, names: &[Option<String>]) {
        for (line, name) in self.lines.iter_mut().zip(names) {
            if let (Target::Crypt(crypt), Some(name)) = (&mut line.target, name) {
                crypt.cipher_name.clone_from(name);
            }
        }
    }

    /// Returns the lines.
    pub fn lines(&self) -> &[TableLine] {
        &self.lines
    }

    /// Returns the length of the device in sectors.
    pub fn sectors(&self) -> u64 {
        self.lines.last().map_or(0, |line| line.start + line.sectors)
    }

    /// Returns the devices of the lines, each once, in the order of their first use.
    pub fn devices(&self) -> Vec<&str> {
        let mut devices = Vec::new();
        for device in self.lines.iter().filter_map(TableLine::device) {
            if !devices.contains(&device) {
                devices.push(device);
            }
        }
        devices
    }

    /// Whether a line has a key.
    pub fn has_key(&self) -> bool {
        self.lines.iter().any(|line| matches!(&line.target, Target::Crypt(crypt) if !crypt.key.is_empty()))
    }

    /// Returns the options of all lines together: those that at least one of them has.
    pub fn options(&self) -> CryptOptions {
        let mut all = CryptOptions::default();
        for line in &self.lines {
            if let Target::Crypt(crypt) = &line.target {
                all.add(&crypt.options);
            }
        }
        all
    }
}

impl TableLine {
    fn parse(words: &mut Words, expected_start: u64) -> Result<Self, TableError> {
        let start = words.number("start")?;
        if start != expected_start {
            return Err(words.fault(TableFault::Gap { expected: expected_start }));
        }
        let sectors = words.number("length")?;
        if sectors == 0 {
            return Err(words.fault(TableFault::ZeroLength));
        }
        if start.checked_add(sectors).is_none_or(|end| end > MAX_SECTORS) {
            return Err(words.fault(TableFault::PastEnd));
        }
        let target = match TargetType::from_name(words.next("target")?) {
            Some(TargetType::Crypt) => Target::Crypt(Box::new(CryptLine::parse(words, sectors)?)),
            Some(TargetType::Linear) => {
                let device = words.next("device")?.to_owned();
                Target::Linear { device, offset: words.offset("offset", sectors)? }
            }
            Some(TargetType::Zero) => Target::Zero,
            Some(TargetType::Error) => Target::Error,
            None => return Err(words.fault(TableFault::UnknownTarget)),
        };
        words.end()?;
        Ok(Self { start, sectors, target })
    }

    /// Returns the device of the line, if any.
    pub fn device(&self) -> Option<&str> {
        match &self.target {
            Target::Crypt(crypt) => Some(&crypt.device),
            Target::Linear { device, .. } => Some(device),
            Target::Zero | Target::Error => None,
        }
    }

    /// Returns the line as a segment.
    pub fn segment(&self) -> Segment {
        let mut segment = Segment::whole(None, DataUnitSize::SECTOR);
        segment.start = Sector(self.start);
        segment.sectors = Some(self.sectors);
        match &self.target {
            Target::Crypt(crypt) => {
                segment.data_offset = crypt.offset;
                segment.iv_offset = crypt.iv_offset;
                segment.unit = crypt.unit;
                segment.large_iv = crypt.large_iv;
                segment.cipher = Some(crypt.cipher);
            }
            Target::Linear { offset, .. } => segment.data_offset = Sector(*offset),
            Target::Zero | Target::Error => {}
        }
        segment
    }
}

impl From<ActivationFlags> for CryptOptions {
    fn from(flags: ActivationFlags) -> Self {
        Self {
            allow_discards: flags.allow_discards,
            same_cpu_crypt: flags.same_cpu_crypt,
            high_priority: false,
            submit_from_crypt_cpus: flags.submit_from_crypt_cpus,
            no_read_workqueue: flags.no_read_workqueue,
            no_write_workqueue: flags.no_write_workqueue,
        }
    }
}
