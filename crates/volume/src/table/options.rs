//! dm-crypt's optional arguments: their number, and the words.

use super::error::{TableError, TableFault};
use super::words::{Words, number};
use inlock_cipher::DataUnitSize;
use std::fmt;

/// Maximum number of options of a line in the kernel.
const MAX_OPTIONS: u64 = 9;

/// Flags of a line. All except the first control threads of the Linux kernel. Inlock records and shows them; it always
/// encrypts on the thread of the request, as they demand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CryptOptions {
    /// Pass discards on to the device.
    pub allow_discards: bool,
    /// Encrypt on the CPU of the request.
    pub same_cpu_crypt: bool,
    /// Encrypt with high priority.
    pub high_priority: bool,
    /// Submit writes on the CPU that encrypts them, instead of from one thread that sorts them.
    pub submit_from_crypt_cpus: bool,
    /// Decrypt in the completion of the read.
    pub no_read_workqueue: bool,
    /// Encrypt in the submission of the write.
    pub no_write_workqueue: bool,
}

impl CryptOptions {
    /// Returns every flag, in the order of the kernel's status line, and whether it is set.
    fn flags(&self) -> [(&'static str, bool); 6] {
        [
            ("allow_discards", self.allow_discards),
            ("same_cpu_crypt", self.same_cpu_crypt),
            ("high_priority", self.high_priority),
            ("submit_from_crypt_cpus", self.submit_from_crypt_cpus),
            ("no_read_workqueue", self.no_read_workqueue),
            ("no_write_workqueue", self.no_write_workqueue),
        ]
    }

    fn flag_mut(&mut self, name: &str) -> Option<&mut bool> {
        Some(match name {
            "allow_discards" => &mut self.allow_discards,
            "same_cpu_crypt" => &mut self.same_cpu_crypt,
            "high_priority" => &mut self.high_priority,
            "submit_from_crypt_cpus" => &mut self.submit_from_crypt_cpus,
            "no_read_workqueue" => &mut self.no_read_workqueue,
            "no_write_workqueue" => &mut self.no_write_workqueue,
            _ => return None,
        })
    }

    /// Returns the flags with these names; `None` if one is unknown.
    pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let mut options = Self::default();
        for name in names {
            *options.flag_mut(name)? = true;
        }
        Some(options)
    }

    /// Returns the names of the set flags, in the order of the kernel's status line.
    pub fn names(&self) -> Vec<&'static str> {
        self.flags().into_iter().filter(|(_, set)| *set).map(|(name, _)| name).collect()
    }

    /// Adds the flags of `other`.
    pub fn add(&mut self, other: &Self) {
        for name in other.names() {
            if let Some(flag) = self.flag_mut(name) {
                *flag = true;
            }
        }
    }
}

/// The options of a line.
pub(super) struct Arguments {
    pub(super) options: CryptOptions,
    pub(super) unit: DataUnitSize,
    pub(super) large_iv: bool,
    pub(super) tags: Tags,
}

/// The options of a line on a device with tags.
#[derive(Clone, Copy, Default)]
pub(super) struct Tags {
    /// `integrity:N:aead`: bytes of tag and IV.
    pub(super) len: Option<usize>,
    /// `integrity_key_size:N`: bytes of the MAC's key.
    pub(super) mac_key_len: Option<usize>,
}

impl Arguments {
    /// Parses the rest of a line without tags.
    pub(super) fn parse(words: &mut Words) -> Result<Self, TableError> {
        Self::parse_with(words, Self::take)
    }

    /// Parses the rest of a line with tags.
    pub(super) fn parse_with_tags(words: &mut Words) -> Result<Self, TableError> {
        Self::parse_with(words, Self::take_with_tags)
    }

    fn parse_with(
        words: &mut Words,
        take: impl Fn(&mut Self, &str) -> Result<(), TableFault>,
    ) -> Result<Self, TableError> {
        let (options, unit, tags) = (CryptOptions::default(), DataUnitSize::SECTOR, Tags::default());
        let mut all = Self { options, unit, large_iv: false, tags };
        if words.left() == 0 {
            return Ok(all);
        }
        let count = words.next("number of options")?;
        let count = number(count).filter(|count| *count <= MAX_OPTIONS);
        let count = count.ok_or_else(|| words.fault(TableFault::OptionCount))?;
        if count != words.left() as u64 {
            return Err(words.fault(TableFault::OptionCountDiffers { found: words.left() }));
        }
        for _ in 0..count {
            let word = words.next("option")?;
            let result = take(&mut all, word);
            result.map_err(|fault| words.fault(fault))?;
        }
        Ok(all)
    }

    fn take_with_tags(&mut self, word: &str) -> Result<(), TableFault> {
        let bytes = |text: &str| number(text).and_then(|len| usize::try_from(len).ok());
        if let Some(tags) = word.strip_prefix("integrity:") {
            let len = tags.strip_suffix(":aead").and_then(bytes);
            self.tags.len = Some(len.ok_or(TableFault::Tags)?);
        } else if let Some(len) = word.strip_prefix("integrity_key_size:") {
            self.tags.mac_key_len = Some(bytes(len).ok_or(TableFault::MacKeyLen)?);
        } else {
            return self.take(word);
        }
        Ok(())
    }

    fn take(&mut self, word: &str) -> Result<(), TableFault> {
        let lower = word.to_ascii_lowercase();
        if let Some(flag) = self.options.flag_mut(&lower) {
            *flag = true;
        } else if lower == "iv_large_sectors" {
            self.large_iv = true;
        } else if let Some(size) = word.strip_prefix("sector_size:") {
            let size = number(size).and_then(|size| u32::try_from(size).ok());
            let unit = size.and_then(|size| DataUnitSize::new(size).ok());
            self.unit = unit.ok_or(TableFault::SectorSize)?;
        } else if word.starts_with("integrity:") || word.starts_with("integrity_key_size:") {
            return Err(TableFault::Integrity);
        } else {
            return Err(TableFault::UnknownOption);
        }
        Ok(())
    }
}

/// Displays them as at the end of a line: with their number, or nothing if there are none.
impl fmt::Display for Arguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = self.options.names();
        let sized = self.unit != DataUnitSize::SECTOR;
        let count = flags.len() + usize::from(sized) + usize::from(self.large_iv);
        if count > 0 {
            write!(f, " {count}")?;
        }
        for flag in flags {
            write!(f, " {flag}")?;
        }
        if sized {
            write!(f, " sector_size:{}", self.unit.bytes())?;
        }
        if self.large_iv { f.write_str(" iv_large_sectors") } else { Ok(()) }
    }
}
