//! Tables of devices with a hash tree: a line of the target `verity`, and the devices below and above it.
//!
//! Each device of the kernel has a table of its own. As in the output of `dmsetup table`, a line may start with the
//! name of its device and a colon. Lines before that of `verity` are devices that it names as `/dev/mapper/NAME`: a
//! hash tree over plaintext. Lines behind it are a device that names the verified one: encrypted data under a hash
//! tree.
//!
//! ```text
//! plain: 0 8192 crypt aes-xts-plain64 KEY 0 /dev/sda 0
//! root: 0 8192 verity 1 /dev/mapper/plain /dev/sdb 4096 4096 1024 1 sha256 ROOT SALT
//! ```

use super::error::{TableError, TableFault};
use super::words::{MAPPER, Words, number, parse_range, split_name};
use super::{MAX_KEYS, MAX_LEN, MAX_SECTORS, ShowKeys, Table, TableLine, Target, write_word};
use inlock_cipher::Hash;
use std::fmt::{self, Write};
use zeroize::Zeroizing;

/// Maximum number of words of optional arguments in the kernel.
const MAX_OPTIONS: u64 = 15;
/// Longest block, and longest salt, that Inlock accepts, in bytes.
const MAX_BLOCK_LEN: u64 = 512 << 10;
const MAX_SALT_LEN: usize = 256;
/// Longest block of data that the kernel accepts: a page.
const KERNEL_BLOCK_LEN: u32 = 4096;
/// Devices below: those of the data, the tree and the parity.
const MAX_BELOW: usize = 3;

/// A device of the target `verity`, and those that it is stacked with.
#[derive(Debug)]
#[non_exhaustive]
pub struct VerityTable {
    /// Devices that the line of `verity` names, at most three.
    pub below: Vec<NamedTable>,
    /// Length of the verified device in sectors.
    pub sectors: u64,
    /// The verified device.
    pub verity: VerityLine,
    /// A device on the verified one.
    pub above: Option<NamedTable>,
}

/// A device of a stack.
#[derive(Debug)]
#[non_exhaustive]
pub struct NamedTable {
    /// Its name; only a device that no other names may have none.
    pub name: Option<String>,
    /// Its lines.
    pub table: Table,
}

/// A line of the target `verity`: `version data_device hash_device data_block_size hash_block_size data_blocks
/// hash_start algorithm root salt [count option...]`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerityLine {
    /// Name of the device-mapper device.
    pub name: Option<String>,
    /// Type of the tree: 0 or 1.
    pub hash_type: u32,
    /// The device of the data: a path or `MAJ:MIN`.
    pub data_device: String,
    /// The device of the tree.
    pub hash_device: String,
    /// Length of a block of data in bytes.
    pub data_block_size: u32,
    /// Length of a block of the tree in bytes.
    pub hash_block_size: u32,
    /// Number of blocks of data.
    pub data_blocks: u64,
    /// First block of the tree on its device.
    pub hash_start: u64,
    /// The hash.
    pub hash: Hash,
    /// Digest of the topmost block.
    pub root: Vec<u8>,
    /// Salt; printed as `-` if it is empty.
    pub salt: Vec<u8>,
    /// Optional arguments.
    pub options: VerityArguments,
}

/// Optional arguments of a `verity` line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerityArguments {
    /// Effect of a corrupted block; `None`: an I/O error.
    pub on_corruption: Option<OnFault>,
    /// Effect of an I/O error of a device; `None`: an I/O error. Never [`OnFault::Ignore`].
    pub on_error: Option<OnFault>,
    /// Return zeroes for blocks whose digest is that of zeroes.
    pub ignore_zero_blocks: bool,
    /// Verify a block when it is first read only.
    pub check_at_most_once: bool,
    /// Verify in the completion of the read.
    pub try_verify_in_tasklet: bool,
    /// Forward error correction.
    pub fec: Option<FecArguments>,
    /// Description of the key in the kernel's keyring with the signature of the root hash.
    pub signature_key: Option<String>,
}

/// Effect of a corrupted block or a failed read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFault {
    /// `ignore_…`: it is logged.
    Ignore,
    /// `restart_on_…`: the machine restarts.
    Restart,
    /// `panic_on_…`: the kernel stops.
    Panic,
}

/// Forward error correction of a `verity` line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FecArguments {
    /// The device with the parity: a path or `MAJ:MIN`.
    pub device: String,
    /// Bytes of parity in a code word of 255 bytes.
    pub roots: u32,
    /// Number of blocks that are covered, of data and behind it of the tree.
    pub blocks: u64,
    /// First block of the parity on its device.
    pub start: u64,
}

impl FecArguments {
    /// Describes error correction.
    pub fn new(device: &str, roots: u32, blocks: u64, start: u64) -> Self {
        Self { device: device.to_owned(), roots, blocks, start }
    }
}

impl VerityTable {
    /// Describes a device that is not stacked with others.
    pub fn new(sectors: u64, verity: VerityLine) -> Self {
        Self { below: Vec::new(), sectors, verity, above: None }
    }

    pub(super) fn parse(text: &str) -> Result<Self, TableError> {
        if text.len() > MAX_LEN {
            return Err(TableError::of_table(TableFault::TooLong));
        }
        let mut parser = Parser::default();
        for (at, line) in text.lines().enumerate() {
            let (name, rest) = split_name(line);
            let mut words = Words::new(at + 1, rest);
            if !words.is_empty() {
                parser.take(name, at + 1, rest, &mut words)?;
            }
        }
        parser.finish()
    }

    /// Returns the underlying devices, each once: those of the data, the tree and the error correction, or of the
    /// devices with these names.
    pub fn devices(&self) -> Vec<&str> {
        let fec = self.verity.options.fec.as_ref().map(|fec| fec.device.as_str());
        let mut devices = Vec::new();
        for own in [self.verity.data_device.as_str(), &self.verity.hash_device].into_iter().chain(fec) {
            let found = self.below_named(own).map_or_else(|| vec![own], |below| below.table.devices());
            for device in found {
                if !devices.contains(&device) {
                    devices.push(device);
                }
            }
        }
        devices
    }

    /// Returns the device of the stack that a line names as `/dev/mapper/NAME`.
    pub fn below_named(&self, device: &str) -> Option<&NamedTable> {
        self.below.iter().find(|below| below.is_named(device))
    }

    /// Whether a line has a key.
    pub fn has_key(&self) -> bool {
        self.below.iter().chain(&self.above).any(|device| device.table.has_key())
    }

    /// Returns the lines, with names if there are several devices. Wiped when dropped.
    pub fn to_text(&self, keys: ShowKeys) -> Zeroizing<String> {
        // Long enough from the start: growing would leave a copy of a key behind.
        let others = self.below.iter().chain(&self.above);
        let lines = |device: &NamedTable| device.name_len() * device.table.lines().len() + device.table.text_len();
        let room: usize = others.map(lines).sum();
        let mut text = Zeroizing::new(String::with_capacity(room + self.verity.text_len()));
        // Writing to a string cannot fail.
        let _ = self.write(&mut text, keys);
        text
    }

    fn write(&self, f: &mut String, keys: ShowKeys) -> fmt::Result {
        for device in &self.below {
            device.write(f, keys)?;
        }
        let is_stacked = !self.below.is_empty() || self.above.is_some();
        if let Some(name) = self.verity.name.as_deref().filter(|_| is_stacked) {
            write!(f, "{name}: ")?;
        }
        writeln!(f, "0 {} verity {}", self.sectors, self.verity)?;
        self.above.as_ref().map_or(Ok(()), |device| device.write(f, keys))
    }
}

impl NamedTable {
    /// Whether `device` is the path of this device.
    fn is_named(&self, device: &str) -> bool {
        device.strip_prefix(MAPPER).is_some_and(|name| self.name.as_deref() == Some(name))
    }

    fn name_len(&self) -> usize {
        self.name.as_ref().map_or(0, |name| name.len() + 2)
    }

    fn write(&self, f: &mut String, keys: ShowKeys) -> fmt::Result {
        for line in self.table.lines() {
            if let Some(name) = &self.name {
                write!(f, "{name}: ")?;
            }
            line.write(f, keys)?;
            f.push('\n');
        }
        Ok(())
    }
}

/// Lines of a device, with their numbers.
struct Group<'a> {
    name: Option<&'a str>,
    lines: Vec<(usize, &'a str)>,
}

impl Group<'_> {
    fn table(&self) -> Result<NamedTable, TableError> {
        let table = Table::parse_lines(self.lines.iter().copied())?;
        Ok(NamedTable { name: self.name.map(str::to_owned), table })
    }

    /// Returns an error about a word of a line.
    fn fault(&self, line: usize, word: usize, name: &'static str, fault: TableFault) -> TableError {
        let (number, text) = self.lines[line];
        Words::new(number, text).fault_at(word, name, fault)
    }
}

/// The lines that were read.
#[derive(Default)]
struct Parser<'a> {
    below: Vec<Group<'a>>,
    verity: Option<(u64, VerityLine)>,
    above: Option<Group<'a>>,
}

impl<'a> Parser<'a> {
    fn take(
        &mut self,
        name: Option<&'a str>,
        number: usize,
        line: &'a str,
        words: &mut Words,
    ) -> Result<(), TableError> {
        if words.peek(3) == Some("verity") {
            let sectors = parse_range(words)?;
            words.next("target")?;
            if self.verity.is_some() {
                return Err(words.fault(TableFault::SecondVerity));
            }
            self.verity = Some((sectors, VerityLine::parse(words, sectors, name)?));
            return words.end();
        }
        let group = match (&self.verity, &mut self.above) {
            (Some(_), Some(above)) if above.name != name => {
                return Err(words.fault_at(1, "start", TableFault::SecondAbove));
            }
            (Some(_), above) => above.get_or_insert(Group { name, lines: Vec::new() }),
            (None, _) => {
                let is_new = self.below.last().is_none_or(|last| last.name != name);
                if name.is_none() || is_new && self.below.len() == MAX_BELOW {
                    return Err(words.fault_at(1, "start", TableFault::NotNamed));
                }
                if is_new {
                    self.below.push(Group { name, lines: Vec::new() });
                }
                let last = self.below.len() - 1;
                &mut self.below[last]
            }
        };
        group.lines.push((number, line));
        Ok(())
    }

    fn finish(self) -> Result<VerityTable, TableError> {
        let (sectors, verity) = self.verity.ok_or(TableError::of_table(TableFault::Empty))?;
        let mut found = VerityTable::new(sectors, verity);
        for group in &self.below {
            let device = group.table()?;
            let named = |path: &String| device.is_named(path);
            let is_first = !found.below.iter().any(|other| other.name == device.name);
            let fec = found.verity.options.fec.as_ref().map(|fec| &fec.device);
            let names = [&found.verity.data_device, &found.verity.hash_device].into_iter().chain(fec);
            if !is_first || !names.into_iter().any(named) {
                return Err(group.fault(0, 1, "start", TableFault::NotNamed));
            }
            found.below.push(device);
        }
        if let Some(group) = &self.above {
            let device = group.table()?;
            for (at, line) in device.table.lines().iter().enumerate() {
                let word = if matches!(line.target, Target::Crypt(_)) { 7 } else { 4 };
                let name = found.verity.name.as_deref().filter(|name| !name.is_empty());
                let is_above = |path: &str| name.is_some() && path.strip_prefix(MAPPER) == name;
                if line.device().is_some_and(|path| !is_above(path)) {
                    return Err(group.fault(at, word, "device", TableFault::NotOnVerity));
                }
            }
            found.above = Some(device);
        }
        let keys = |line: &TableLine| match &line.target {
            Target::Crypt(crypt) => crypt.cipher.keys.get(),
            _ => 0,
        };
        let lines = found.below.iter().chain(&found.above).flat_map(|device| device.table.lines());
        if lines.map(keys).sum::<usize>() > MAX_KEYS {
            return Err(TableError::of_table(TableFault::TooLong));
        }
        Ok(found)
    }
}

impl VerityLine {
    /// Describes a line with blocks of 4096 bytes and SHA-256, without salt and options, of no data.
    pub fn new(data_device: &str, hash_device: &str) -> Self {
        Self {
            name: None,
            hash_type: 1,
            data_device: data_device.to_owned(),
            hash_device: hash_device.to_owned(),
            data_block_size: 4096,
            hash_block_size: 4096,
            data_blocks: 0,
            hash_start: 0,
            hash: Hash::Sha256,
            root: Vec::new(),
            salt: Vec::new(),
            options: VerityArguments::default(),
        }
    }

    /// Whether the kernel accepts blocks of this length.
    pub fn has_blocks_of_the_kernel(&self) -> bool {
        self.data_block_size <= KERNEL_BLOCK_LEN
    }

    fn parse(words: &mut Words, sectors: u64, name: Option<&str>) -> Result<Self, TableError> {
        let hash_type = parse(words, "version", TableFault::VerityVersion, |version| version <= 1)? as u32;
        let (data_device, hash_device) = (words.next("data device")?.to_owned(), words.next("hash device")?.to_owned());
        let is_block = |len: u64| len.is_power_of_two() && (512..=MAX_BLOCK_LEN).contains(&len);
        let data_block_size = parse(words, "data block size", TableFault::VerityBlockSize, is_block)? as u32;
        let hash_block_size = parse(words, "hash block size", TableFault::VerityBlockSize, is_block)? as u32;
        let sectors_of =
            |blocks: u64, len: u32| blocks.checked_mul(u64::from(len) / 512).filter(|sectors| *sectors <= MAX_SECTORS);
        let data_blocks = parse(words, "data blocks", TableFault::VerityBlocks, |blocks| {
            sectors_of(blocks, data_block_size).is_some_and(|provided| sectors <= provided)
        })?;
        let hash_start = parse(words, "hash start block", TableFault::VerityHashStart, |start| {
            sectors_of(start, hash_block_size).is_some()
        })?;
        let hash =
            Hash::from_kernel_name(words.next("algorithm")?).ok_or_else(|| words.fault(TableFault::VerityHash))?;
        if hash.len() * 2 > hash_block_size as usize {
            return Err(words.fault_at(8, "hash block size", TableFault::VerityHashBlock));
        }
        let digits = hash.len() * 2;
        let root = unhex(words.next("digest")?).filter(|root| root.len() == hash.len());
        let root = root.ok_or_else(|| words.fault(TableFault::VerityRoot { digits }))?;
        let salt = match words.next("salt")? {
            "-" => Some(Vec::new()),
            word => unhex(word).filter(|salt| salt.len() <= MAX_SALT_LEN),
        };
        let salt = salt.ok_or_else(|| words.fault(TableFault::VeritySalt))?;
        let options = VerityArguments::parse(words)?;
        let name = name.map(str::to_owned);
        Ok(Self {
            name,
            hash_type,
            data_device,
            hash_device,
            data_block_size,
            hash_block_size,
            data_blocks,
            hash_start,
            hash,
            root,
            salt,
            options,
        })
    }

    /// Returns a length that the text does not exceed.
    fn text_len(&self) -> usize {
        let options = &self.options;
        let fec = options.fec.as_ref().map_or(0, |fec| 2 * fec.device.len());
        let words =
            self.data_device.len() + self.hash_device.len() + options.signature_key.as_ref().map_or(0, String::len);
        2048 + 2 * words + fec + self.name.as_ref().map_or(0, String::len)
    }
}

/// Displays the arguments, as `dmsetup table` does.
impl fmt::Display for VerityLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.hash_type)?;
        write_word(f, &self.data_device)?;
        f.write_char(' ')?;
        write_word(f, &self.hash_device)?;
        write!(f, " {} {} ", self.data_block_size, self.hash_block_size)?;
        let name = self.hash.kernel_name().unwrap_or(self.hash.name());
        write!(f, "{} {} {name} ", self.data_blocks, self.hash_start)?;
        self.root.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(if self.salt.is_empty() { " -" } else { " " })?;
        self.salt.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        self.options.fmt(f)
    }
}

impl VerityArguments {
    fn parse(words: &mut Words) -> Result<Self, TableError> {
        let mut options = Self::default();
        if words.left() == 0 {
            return Ok(options);
        }
        let count = number(words.next("number of options")?).filter(|count| *count <= MAX_OPTIONS);
        let count = count.ok_or_else(|| words.fault(TableFault::VerityOptionCount))?;
        if count != words.left() as u64 {
            return Err(words.fault(TableFault::OptionCountDiffers { found: words.left() }));
        }
        let mut fec = Fec::default();
        while words.left() > 0 {
            options.take(words, &mut fec)?;
        }
        options.fec = match fec {
            Fec { device: None, roots: None, blocks: None, start: None } => None,
            Fec { device: Some(device), roots: Some(roots), blocks: Some(blocks), start } => {
                Some(FecArguments { device, roots, blocks, start: start.unwrap_or(0) })
            }
            _ => return Err(words.fault(TableFault::FecIncomplete)),
        };
        Ok(options)
    }

    /// Consumes an option and its value.
    fn take(&mut self, words: &mut Words, fec: &mut Fec) -> Result<(), TableError> {
        let mut conflict = false;
        let mut set = |fault: &mut Option<OnFault>, value: OnFault| {
            conflict = fault.is_some_and(|other| other != value);
            *fault = Some(value);
        };
        match words.next("option")? {
            "ignore_corruption" => set(&mut self.on_corruption, OnFault::Ignore),
            "restart_on_corruption" => set(&mut self.on_corruption, OnFault::Restart),
            "panic_on_corruption" => set(&mut self.on_corruption, OnFault::Panic),
            "restart_on_error" => set(&mut self.on_error, OnFault::Restart),
            "panic_on_error" => set(&mut self.on_error, OnFault::Panic),
            "ignore_zero_blocks" => self.ignore_zero_blocks = true,
            "check_at_most_once" => self.check_at_most_once = true,
            "try_verify_in_tasklet" => self.try_verify_in_tasklet = true,
            "use_fec_from_device" => fec.device = Some(words.next("device of the parity")?.to_owned()),
            "fec_roots" => {
                let roots = parse(words, "fec_roots", TableFault::FecRoots, |roots| (2..=24).contains(&roots))?;
                fec.roots = Some(roots as u32);
            }
            "fec_blocks" => fec.blocks = Some(parse(words, "fec_blocks", TableFault::FecNumber, |_| true)?),
            "fec_start" => fec.start = Some(parse(words, "fec_start", TableFault::FecNumber, |_| true)?),
            "root_hash_sig_key_desc" => self.signature_key = Some(words.next("description of a key")?.to_owned()),
            _ => return Err(words.fault(TableFault::UnknownVerityOption)),
        }
        if conflict { Err(words.fault(TableFault::VerityConflict)) } else { Ok(()) }
    }
}

/// Options of error correction that were read.
#[derive(Default)]
struct Fec {
    device: Option<String>,
    roots: Option<u32>,
    blocks: Option<u64>,
    start: Option<u64>,
}

/// Displays the number of words and the options, in the kernel's order, or nothing if there are none.
impl fmt::Display for VerityArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fault = |on: Option<OnFault>, names: [&'static str; 3]| on.map(|on| names[on as usize]);
        let flags = [
            fault(self.on_corruption, ["ignore_corruption", "restart_on_corruption", "panic_on_corruption"]),
            fault(self.on_error, ["", "restart_on_error", "panic_on_error"]),
            self.ignore_zero_blocks.then_some("ignore_zero_blocks"),
            self.check_at_most_once.then_some("check_at_most_once"),
            self.try_verify_in_tasklet.then_some("try_verify_in_tasklet"),
        ];
        let flags: Vec<&str> = flags.into_iter().flatten().collect();
        let count =
            flags.len() + if self.fec.is_some() { 8 } else { 0 } + 2 * usize::from(self.signature_key.is_some());
        if count > 0 {
            write!(f, " {count}")?;
        }
        flags.iter().try_for_each(|flag| write!(f, " {flag}"))?;
        if let Some(FecArguments { device, roots, blocks, start }) = &self.fec {
            f.write_str(" use_fec_from_device ")?;
            write_word(f, device)?;
            write!(f, " fec_blocks {blocks} fec_start {start} fec_roots {roots}")?;
        }
        if let Some(key) = &self.signature_key {
            f.write_str(" root_hash_sig_key_desc ")?;
            write_word(f, key)?;
        }
        Ok(())
    }
}

/// Consumes a number for which `is_good` holds.
fn parse(
    words: &mut Words,
    name: &'static str,
    fault: TableFault,
    is_good: impl Fn(u64) -> bool,
) -> Result<u64, TableError> {
    let found = number(words.next(name)?).filter(|found| is_good(*found));
    found.ok_or_else(|| words.fault(fault))
}

/// Decodes hexadecimal digits, at least two.
fn unhex(word: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> =
        word.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    let whole = !pairs.is_empty() && rest.is_empty();
    whole.then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}
