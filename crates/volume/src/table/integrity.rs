//! Tables of devices with integrity protection: a line of the target `integrity`, and one of `crypt` on it.
//!
//! The kernel has two devices then, each with a table of its own. As in the output of `dmsetup table`, a line may start
//! with the name of its device and a colon; the line of `crypt` names the other device as `/dev/mapper/NAME`:
//!
//! ```text
//! data_dif: 0 30720 integrity 7:0 32768 28 J 6 ...
//! data: 0 30720 crypt capi:gcm(aes)-random KEY 0 /dev/mapper/data_dif 0 1 integrity:28:aead
//! ```

use super::crypt::parse_key_digits;
use super::error::{TableError, TableFault};
use super::options::{Arguments, CryptOptions};
use super::words::{MAPPER, Words, number, parse_range, split_name};
use super::{ShowKeys, write_key, write_word};
use crate::authenticated::AuthenticatedSegment;
use inlock_cipher::{AeadSpec, DataUnitSize, Sector, VolumeKey};
use std::fmt::{self, Write};
use zeroize::Zeroizing;

/// Maximum number of optional arguments of `integrity` in the kernel.
const MAX_OPTIONS: u64 = 18;

/// A device of the target `integrity`, and the device of the target `crypt` that seals its blocks.
#[derive(Debug)]
#[non_exhaustive]
pub struct IntegrityTable {
    /// Length of both devices in sectors.
    pub sectors: u64,
    /// The device with the tags.
    pub integrity: IntegrityLine,
    /// The device with the plaintext; `None` if the tags are hashes.
    pub sealed: Option<SealedLine>,
}

/// A line `device offset tag_size mode count [option...]` of the target `integrity`.
#[derive(Debug)]
#[non_exhaustive]
pub struct IntegrityLine {
    /// Name of the device-mapper device.
    pub name: Option<String>,
    /// The device of the data: a path or `MAJ:MIN`.
    pub device: String,
    /// First sector of the volume on the device with the superblock.
    pub offset: u64,
    /// Length of a tag in bytes. `None`, printed as `-`: that of the hash.
    pub tag_size: Option<u16>,
    /// Mode.
    pub mode: IntegrityMode,
    /// Optional arguments.
    pub options: IntegrityArguments,
}

/// Mode of an `integrity` line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntegrityMode {
    /// `J`: journal.
    Journal,
    /// `B`: bitmap.
    Bitmap,
    /// `D`: direct writes.
    Direct,
    /// `R`: recovery.
    Recovery,
    /// `I`: tags in the metadata of the device's sectors.
    Inline,
}

impl IntegrityMode {
    /// Returns the kernel's letter.
    pub fn letter(self) -> char {
        match self {
            Self::Journal => 'J',
            Self::Bitmap => 'B',
            Self::Direct => 'D',
            Self::Recovery => 'R',
            Self::Inline => 'I',
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        [Self::Journal, Self::Bitmap, Self::Direct, Self::Recovery, Self::Inline]
            .into_iter()
            .find(|mode| word.chars().eq([mode.letter()]))
    }
}

/// Optional arguments of an `integrity` line. Those that are counts are printed if they are there.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct IntegrityArguments {
    /// The device with superblock, journal and tags, if it is another one.
    pub meta_device: Option<String>,
    /// Bytes of a block.
    pub block_size: Option<u32>,
    /// Compute the tags of the present data, or continue with it.
    pub recalculate: bool,
    /// Compute the tags from the beginning.
    pub reset_recalculate: bool,
    /// Allow discards.
    pub allow_discards: bool,
    /// Numbers that are not used to open a volume, or have a field of their own, in the kernel's order.
    pub counts: Counts,
    /// Tag areas have the padding of superblocks of version 4.
    pub fix_padding: bool,
    /// The superblock has a salt and a MAC.
    pub fix_hmac: bool,
    /// Compute tags with a key although an attacker could have changed the data.
    pub legacy_recalculate: bool,
    /// Hash of tags.
    pub internal_hash: Option<KeyedName>,
    /// Cipher of the journal.
    pub journal_crypt: Option<KeyedName>,
    /// MAC of the journal.
    pub journal_mac: Option<KeyedName>,
}

/// Numbers of an `integrity` line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Length of the journal, for a new volume.
    pub journal_sectors: Option<u64>,
    /// Sectors between two tag areas, for a new volume.
    pub interleave_sectors: Option<u64>,
    /// Sectors of a buffer of the kernel.
    pub buffer_sectors: Option<u64>,
    /// Percentage of the journal at which the kernel copies it.
    pub journal_watermark: Option<u64>,
    /// Milliseconds between two commits of the journal.
    pub commit_time: Option<u64>,
    /// Sectors for each bit of the bitmap.
    pub sectors_per_bit: Option<u64>,
    /// Milliseconds between two flushes of the bitmap.
    pub bitmap_flush_interval: Option<u64>,
}

impl Counts {
    const NAMES: [&'static str; 7] = [
        "journal_sectors",
        "interleave_sectors",
        "buffer_sectors",
        "journal_watermark",
        "commit_time",
        "sectors_per_bit",
        "bitmap_flush_interval",
    ];

    fn fields(&mut self) -> [&mut Option<u64>; 7] {
        [
            &mut self.journal_sectors,
            &mut self.interleave_sectors,
            &mut self.buffer_sectors,
            &mut self.journal_watermark,
            &mut self.commit_time,
            &mut self.sectors_per_bit,
            &mut self.bitmap_flush_interval,
        ]
    }
}

/// An algorithm, and its key if it takes one.
#[derive(Debug)]
pub struct KeyedName {
    /// The kernel's name, such as `hmac(sha256)`.
    pub name: String,
    /// The key.
    pub key: Option<VolumeKey>,
}

/// A line `cipher key iv_offset device offset count [option...]` of the target `crypt` with tags.
#[derive(Debug)]
#[non_exhaustive]
pub struct SealedLine {
    /// Name of the device-mapper device.
    pub name: Option<String>,
    /// The cipher, its data unit, and where the volume of dm-integrity starts.
    pub segment: AuthenticatedSegment,
    /// The key.
    pub key: VolumeKey,
    /// Optional arguments.
    pub options: CryptOptions,
}

impl IntegrityTable {
    /// Describes a device with hashes for tags.
    pub fn new(sectors: u64, integrity: IntegrityLine) -> Self {
        Self { sectors, integrity, sealed: None }
    }

    /// Adds the device that seals the blocks. `name` is its name, and with `_dif` behind it, as cryptsetup has it, that
    /// of the other device.
    #[must_use]
    pub fn with_sealed(
        mut self,
        name: &str,
        segment: AuthenticatedSegment,
        key: VolumeKey,
        options: CryptOptions,
    ) -> Self {
        self.integrity.name = Some(format!("{name}_dif"));
        self.sealed = Some(SealedLine { name: Some(name.to_owned()), segment, key, options });
        self
    }

    pub(super) fn parse(text: &str) -> Result<Self, TableError> {
        let mut found: Option<Self> = None;
        for (at, line) in text.lines().enumerate() {
            let (name, rest) = split_name(line);
            let mut words = Words::new(at + 1, rest);
            if words.is_empty() {
                continue;
            }
            let name = name.map(str::to_owned);
            match &mut found {
                None => found = Some(Self::parse_integrity(&mut words, name)?),
                Some(table) => table.parse_sealed(&mut words, name)?,
            }
        }
        found.ok_or(TableError::of_table(TableFault::Empty))
    }

    fn parse_integrity(words: &mut Words, name: Option<String>) -> Result<Self, TableError> {
        let sectors = parse_range(words)?;
        if words.next("target")? != "integrity" {
            return Err(words.fault(TableFault::NotIntegrity));
        }
        let integrity = IntegrityLine::parse(words, name)?;
        words.end()?;
        Ok(Self { sectors, integrity, sealed: None })
    }

    fn parse_sealed(&mut self, words: &mut Words, name: Option<String>) -> Result<(), TableError> {
        let sectors = parse_range(words)?;
        if sectors != self.sectors {
            return Err(words.fault(TableFault::OtherLength { expected: self.sectors }));
        }
        if words.next("target")? != "crypt" || self.sealed.is_some() {
            return Err(words.fault(TableFault::NotSealed));
        }
        let below = self.integrity.name.as_deref().unwrap_or_default();
        let mut sealed = SealedLine::parse(words, below)?;
        if !sectors.is_multiple_of(sealed.segment.unit.sectors()) {
            return Err(words.fault_at(2, "length", TableFault::Misaligned { sectors: sealed.segment.unit.sectors() }));
        }
        sealed.segment.data_offset = Sector(self.integrity.offset);
        sealed.name = name;
        words.end()?;
        self.sealed = Some(sealed);
        Ok(())
    }

    /// Returns the underlying devices: that of the data, and the one with the metadata.
    pub fn devices(&self) -> Vec<&str> {
        std::iter::once(self.integrity.device.as_str()).chain(self.integrity.options.meta_device.as_deref()).collect()
    }

    /// Whether a line has a key.
    pub fn has_key(&self) -> bool {
        let algorithms = self.integrity.options.algorithms();
        let has_key = |(_, named): (_, &Option<KeyedName>)| named.as_ref().is_some_and(|named| named.key.is_some());
        self.sealed.is_some() || algorithms.into_iter().any(has_key)
    }

    /// Returns the lines, with names if there are two. Wiped when dropped.
    pub fn to_text(&self, keys: ShowKeys) -> Zeroizing<String> {
        // Long enough from the start: growing would leave a copy of a key behind.
        let devices: usize = self.devices().iter().map(|device| 2 * device.len()).sum();
        let mut text = Zeroizing::new(String::with_capacity(devices + 4 * VolumeKey::MAX_LEN + 4096));
        // Writing to a string cannot fail.
        let _ = self.write(&mut text, keys);
        text
    }

    fn write(&self, f: &mut String, keys: ShowKeys) -> fmt::Result {
        let below = self.integrity.name.as_deref().unwrap_or("integrity");
        if self.sealed.is_some() {
            write!(f, "{below}: ")?;
        }
        write!(f, "0 {} integrity ", self.sectors)?;
        self.integrity.write(f, keys)?;
        f.push('\n');
        if let Some(sealed) = &self.sealed {
            write!(f, "{}: 0 {} crypt ", sealed.name.as_deref().unwrap_or("crypt"), self.sectors)?;
            sealed.write(f, below, keys)?;
            f.push('\n');
        }
        Ok(())
    }
}

impl IntegrityLine {
    /// Describes a line without options.
    pub fn new(device: &str, offset: u64, tag_size: Option<u16>, mode: IntegrityMode) -> Self {
        Self { name: None, device: device.to_owned(), offset, tag_size, mode, options: IntegrityArguments::default() }
    }

    fn parse(words: &mut Words, name: Option<String>) -> Result<Self, TableError> {
        let device = words.next("device")?.to_owned();
        let offset = words.number("offset")?;
        let tag_size = match words.next("tag_size")? {
            "-" => None,
            word => {
                match number(word).and_then(|size| u16::try_from(size).ok()).filter(|size| (1..=255).contains(size)) {
                    Some(size) => Some(size),
                    None => return Err(words.fault(TableFault::TagSize)),
                }
            }
        };
        let mode = IntegrityMode::from_word(words.next("mode")?).ok_or_else(|| words.fault(TableFault::Mode))?;
        let mut line = Self { name, device, offset, tag_size, mode, options: IntegrityArguments::default() };
        let count = number(words.next("number of options")?).filter(|count| *count <= MAX_OPTIONS);
        let count = count.ok_or_else(|| words.fault(TableFault::IntegrityOptionCount))?;
        if count != words.left() as u64 {
            return Err(words.fault(TableFault::OptionCountDiffers { found: words.left() }));
        }
        for _ in 0..count {
            let word = words.next("option")?;
            let has_key = word.matches(':').count() > 1;
            let result = line.options.take(word);
            // An unknown word may be a key whose name was forgotten.
            if has_key || result == Err(TableFault::UnknownIntegrityOption) {
                words.hide();
            }
            result.map_err(|fault| words.fault(fault))?;
        }
        if line.tag_size.is_none() && line.options.internal_hash.is_none() {
            return Err(words.fault_at(6, "tag_size", TableFault::TagSize));
        }
        Ok(line)
    }

    fn write(&self, f: &mut String, keys: ShowKeys) -> fmt::Result {
        write_word(f, &self.device)?;
        match self.tag_size {
            Some(size) => write!(f, " {} {size} {}", self.offset, self.mode.letter())?,
            None => write!(f, " {} - {}", self.offset, self.mode.letter())?,
        }
        self.options.write(f, keys)
    }
}

impl IntegrityArguments {
    /// Returns the algorithms in the kernel's order.
    fn algorithms(&self) -> [(&'static str, &Option<KeyedName>); 3] {
        [
            ("internal_hash", &self.internal_hash),
            ("journal_crypt", &self.journal_crypt),
            ("journal_mac", &self.journal_mac),
        ]
    }

    fn take(&mut self, word: &str) -> Result<(), TableFault> {
        let flag = match word {
            "recalculate" => Some(&mut self.recalculate),
            "reset_recalculate" => Some(&mut self.reset_recalculate),
            "allow_discards" => Some(&mut self.allow_discards),
            "fix_padding" => Some(&mut self.fix_padding),
            "fix_hmac" => Some(&mut self.fix_hmac),
            "legacy_recalculate" => Some(&mut self.legacy_recalculate),
            _ => None,
        };
        if let Some(flag) = flag {
            *flag = true;
            return Ok(());
        }
        let (name, value) = word.split_once(':').ok_or(TableFault::UnknownIntegrityOption)?;
        if let Some(at) = Counts::NAMES.iter().position(|known| *known == name) {
            let value =
                number(value).filter(|value| u32::try_from(*value).is_ok()).ok_or(TableFault::IntegrityNumber)?;
            *self.counts.fields()[at] = Some(value);
            return Ok(());
        }
        match name {
            "meta_device" if !value.is_empty() => self.meta_device = Some(value.to_owned()),
            "block_size" => {
                let size = number(value).and_then(|size| u32::try_from(size).ok());
                let good = |size: &u32| size.is_power_of_two() && (512..=4096).contains(size);
                self.block_size = Some(size.filter(good).ok_or(TableFault::BlockSize)?);
            }
            "internal_hash" => self.internal_hash = Some(KeyedName::parse(value)?),
            "journal_crypt" => self.journal_crypt = Some(KeyedName::parse(value)?),
            "journal_mac" => self.journal_mac = Some(KeyedName::parse(value)?),
            _ => return Err(TableFault::UnknownIntegrityOption),
        }
        Ok(())
    }

    /// Writes the number of options and the options, in the kernel's order.
    fn write(&self, f: &mut String, keys: ShowKeys) -> fmt::Result {
        let mut options = Zeroizing::new(String::with_capacity(f.capacity()));
        let mut count = 0;
        let mut add = |write: &mut dyn FnMut(&mut String) -> fmt::Result| {
            count += 1;
            options.push(' ');
            write(&mut options)
        };
        if let Some(device) = &self.meta_device {
            add(&mut |f| {
                f.push_str("meta_device:");
                write_word(f, device)
            })?;
        }
        if let Some(size) = self.block_size.filter(|size| *size != 512) {
            add(&mut |f| write!(f, "block_size:{size}"))?;
        }
        let flags = [
            (self.recalculate, "recalculate"),
            (self.reset_recalculate, "reset_recalculate"),
            (self.allow_discards, "allow_discards"),
        ];
        for (_, name) in flags.into_iter().filter(|(set, _)| *set) {
            add(&mut |f| f.write_str(name))?;
        }
        let mut counts = self.counts;
        for (name, value) in Counts::NAMES.iter().zip(counts.fields()) {
            if let Some(value) = value {
                add(&mut |f| write!(f, "{name}:{value}"))?;
            }
        }
        let flags = [
            (self.fix_padding, "fix_padding"),
            (self.fix_hmac, "fix_hmac"),
            (self.legacy_recalculate, "legacy_recalculate"),
        ];
        for (_, name) in flags.into_iter().filter(|(set, _)| *set) {
            add(&mut |f| f.write_str(name))?;
        }
        for (name, algorithm) in self.algorithms() {
            if let Some(KeyedName { name: algorithm, key }) = algorithm {
                add(&mut |f| {
                    write!(f, "{name}:")?;
                    write_word(f, algorithm)?;
                    let Some(key) = key else { return Ok(()) };
                    f.push(':');
                    write_key(f, key, keys)
                })?;
            }
        }
        write!(f, " {count}")?;
        f.push_str(&options);
        Ok(())
    }
}

impl KeyedName {
    fn parse(value: &str) -> Result<Self, TableFault> {
        let (name, digits) = value.split_once(':').map_or((value, None), |(name, key)| (name, Some(key)));
        if name.is_empty() {
            return Err(TableFault::UnknownIntegrityOption);
        }
        Ok(Self { name: name.to_owned(), key: digits.map(parse_key_digits).transpose()? })
    }
}

impl SealedLine {
    /// Parses the words behind the target. `below` is the name of the device of the target `integrity`.
    fn parse(words: &mut Words, below: &str) -> Result<Self, TableError> {
        let cipher = words.next("cipher")?.parse::<AeadSpec>().map_err(TableFault::Cipher);
        let mut spec = cipher.map_err(|fault| words.fault(fault))?;
        let key = parse_key_digits(words.next_secret("key")?).map_err(|fault| words.fault(fault))?;
        let iv_offset = Sector(words.number("iv_offset")?);
        if words.next("device")?.strip_prefix(MAPPER) != Some(below) {
            return Err(words.fault(TableFault::NotBelow));
        }
        if words.number("offset")? != 0 {
            return Err(words.fault(TableFault::SealedOffset));
        }
        let Arguments { options, unit, large_iv, tags } = Arguments::parse_with_tags(words)?;
        let Some(len) = tags.len else { return Err(words.fault(TableFault::NoTags)) };
        let fitting = spec.with_metadata_len(len).and_then(|spec| match tags.mac_key_len {
            Some(len) => spec.with_mac_key_len(len),
            None => Ok(spec),
        });
        spec = fitting.map_err(|error| words.fault_at(4, "cipher", TableFault::Cipher(error)))?;
        if !spec.can_use_key_len(key.len()) {
            return Err(words.fault_at(5, "key", TableFault::SealedKey));
        }
        if large_iv {
            return Err(words.fault(TableFault::SealedLargeIv));
        }
        if !iv_offset.0.is_multiple_of(unit.sectors()) {
            return Err(words.fault_at(6, "iv_offset", TableFault::Misaligned { sectors: unit.sectors() }));
        }
        let mut segment = AuthenticatedSegment::new(spec, unit, Sector(0));
        segment.iv_offset = iv_offset;
        Ok(Self { name: None, segment, key, options })
    }

    fn write(&self, f: &mut String, below: &str, keys: ShowKeys) -> fmt::Result {
        let AuthenticatedSegment { spec, unit, iv_offset, .. } = &self.segment;
        write_word(f, &spec.to_string())?;
        f.push(' ');
        write_key(f, &self.key, keys)?;
        write!(f, " {} {MAPPER}{below} 0", iv_offset.0)?;
        let (flags, sized) = (self.options.names(), *unit != DataUnitSize::SECTOR);
        let own_key = spec.has_own_mac_key_len();
        write!(f, " {}", flags.len() + 1 + usize::from(sized) + usize::from(own_key))?;
        for flag in flags {
            write!(f, " {flag}")?;
        }
        write!(f, " integrity:{}:aead", spec.metadata_len())?;
        if sized {
            write!(f, " sector_size:{}", unit.bytes())?;
        }
        if own_key { write!(f, " integrity_key_size:{}", spec.mac_key_len()) } else { Ok(()) }
    }
}
