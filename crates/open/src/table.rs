//! `--table`: a device-mapper table from an argument or a file, instead of a volume.

use crate::error::{Error, ErrorKind, Result, ResultExt as _, against_policy, cannot_open};
use crate::host::Context;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use inlock_volume::table::{AnyTable, CryptOptions, IntegrityTable, SealedLine, TableLine, Target, VerityTable};
use inlock_volume::{DataUnitSize, HeaderPolicy, Segment, Table, TableError};
use zeroize::Zeroizing;

use super::device::{Device, OpenMode};
use super::lock::{self, DeviceLock, Mode};

/// Maximum number of bytes read from a file. The table itself has a lower limit.
const MAX_FILE: u64 = 2 << 20;

/// A table of the command line. Using it takes it out, so that no copy of its keys remains.
#[derive(Clone)]
pub struct TableSource {
    table: Arc<Mutex<Option<AnyTable>>>,
    /// It is an argument, which all users can read.
    is_argument: bool,
}

fn unusable(text: String) -> impl FnOnce(TableError) -> Error {
    move |error| Error::with_source(ErrorKind::Table, text, error)
}

/// The error of a table that was taken twice.
pub(crate) fn used_before() -> Error {
    Error::new(ErrorKind::Failed, "the table was used before")
}

/// The file of a table, or a line, which may have keys: it is wiped when dropped, and not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct TableText(Zeroizing<Vec<u8>>);

impl From<OsString> for TableText {
    fn from(text: OsString) -> Self {
        Self(Zeroizing::new(text.into_vec()))
    }
}

impl TableText {
    /// Returns the text.
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }
}

impl fmt::Debug for TableText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TableText(..)")
    }
}

impl TableSource {
    /// Reads `FILE`, or a line that starts with a number and a space.
    pub fn parse(given: &OsStr) -> Result<Self> {
        if given.is_empty() {
            return Err(Error::new(ErrorKind::TableInput, "Option --table is empty."));
        }
        let line = given.to_str().filter(|text| is_line(text));
        let table = match line {
            Some(line) => AnyTable::parse(line).map_err(unusable("The table cannot be used.".to_owned()))?,
            None => {
                let path = Path::new(given);
                let mut text = Zeroizing::new(Vec::with_capacity(MAX_FILE as usize));
                let file = File::open(path).map_err(cannot_open(path, false))?;
                let place = || format!("cannot read table {}", path.display());
                file.take(MAX_FILE).read_to_end(&mut text).with_context(place)?;
                let text =
                    std::str::from_utf8(&text).map_err(|_| Error::new(ErrorKind::TableInput, "The table is not text."));
                let message = format!("Table {} cannot be used.", path.display());
                AnyTable::parse(text?).map_err(unusable(message))?
            }
        };
        Ok(Self { is_argument: line.is_some(), table: Arc::new(Mutex::new(Some(table))) })
    }

    /// Returns the names of its devices.
    pub fn devices(&self) -> Vec<PathBuf> {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.iter().flat_map(AnyTable::devices).map(PathBuf::from).collect()
    }

    /// Returns a path for messages: the first device.
    pub fn image(&self) -> PathBuf {
        self.devices().into_iter().next().unwrap_or_else(|| "table".into())
    }

    /// Returns the table. It can be taken once.
    pub fn take(&self) -> Result<AnyTable> {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner).take();
        table.ok_or_else(used_before)
    }

    /// Whether it describes a stack of devices: with integrity protection, or with a hash tree.
    pub fn is_stack(&self) -> bool {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(*table, Some(AnyTable::Integrity(_) | AnyTable::Verity(_)))
    }

    /// Whether the condition holds for one of its devices.
    pub fn has_device(&self, context: &Context, condition: impl Fn(Result<Device>) -> bool) -> bool {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names = table.iter().flat_map(AnyTable::devices);
        names.any(|name| condition(open_device(context, name, OpenMode::Read)))
    }

    /// Refuses a key in an argument, which a background process would have as long as the volume is served.
    pub fn check_for_background(&self) -> Result<()> {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_argument && table.as_ref().is_some_and(AnyTable::has_key) {
            return Err(Error::new(
                ErrorKind::TableKeyInArgument,
                "The key of the table would be an argument of the background process, which all users can read.",
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for TableSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TableSource")
    }
}

fn is_line(text: &str) -> bool {
    let mut words = text.split_ascii_whitespace().peekable();
    // The name of a device may be before it.
    words.next_if(|word| word.len() > 1 && word.ends_with(':'));
    let number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    words.next().is_some_and(number) && words.next().is_some()
}

/// The devices of a table, opened and locked.
pub struct Devices {
    /// Each device once.
    pub devices: Vec<Device>,
    /// Index of each line's device; any index for a line without one.
    pub of_line: Vec<usize>,
    /// Locks on them.
    pub locks: Vec<DeviceLock>,
}

impl Devices {
    /// Opens and locks the devices of a table.
    pub fn open(context: &Context, table: &Table, writing: bool) -> Result<Self> {
        let (open_mode, mode) =
            if writing { (OpenMode::Write, Mode::Exclusive) } else { (OpenMode::Read, Mode::Shared) };
        let mut found = Self { devices: Vec::new(), of_line: Vec::new(), locks: Vec::new() };
        // Another process may open the volume that a table without keys only passes on.
        let has_keys = table.lines().iter().any(|line| matches!(line.target, Target::Crypt(_)));
        let take = if has_keys { lock::whole_device } else { lock::storage };
        let mut named: Vec<(&str, usize)> = Vec::new();
        for name in table.devices() {
            let device = open_device(context, name, open_mode)?.with_zones()?;
            // A device with two names is locked once.
            let known = found.devices.iter().position(|other| other.identity() == device.identity());
            let index = match known {
                Some(index) => index,
                None => {
                    found.locks.push(take(&device, mode)?);
                    found.devices.push(device);
                    found.devices.len() - 1
                }
            };
            named.push((name, index));
        }
        let index = |name: &str| named.iter().find(|(other, _)| *other == name).map_or(0, |(_, index)| *index);
        found.of_line = table.lines().iter().map(|line| line.device().map_or(0, index)).collect();
        Ok(found)
    }
}

/// Checks a table against the policy.
pub fn check_any_policy(table: &AnyTable, policy: &HeaderPolicy) -> Result<()> {
    match table {
        AnyTable::Lines(table) => check_policy(table, policy),
        AnyTable::Integrity(table) => check_integrity_policy(table, policy),
        AnyTable::Verity(table) => check_verity_policy(table, policy),
    }
}

/// Checks the cipher of a device with integrity protection against the policy.
pub(crate) fn check_integrity_policy(table: &IntegrityTable, policy: &HeaderPolicy) -> Result<()> {
    let checked = match &table.sealed {
        Some(SealedLine { segment, key, .. }) => policy.check_aead(&segment.spec, key.len(), segment.unit),
        None => policy.check_segments(&[Segment::whole(None, DataUnitSize::SECTOR)]),
    };
    checked.map_err(against_policy("The table".to_owned()))
}

/// Checks the lines of a device with a hash tree against the policy: of the device on it, or else of those below.
pub(crate) fn check_verity_policy(table: &VerityTable, policy: &HeaderPolicy) -> Result<()> {
    let below = table.below_named(&table.verity.data_device);
    match table.above.as_ref().or(below) {
        Some(device) => check_policy(&device.table, policy),
        None => policy
            .check_segments(&[Segment::whole(None, DataUnitSize::SECTOR)])
            .map_err(against_policy("The table".to_owned())),
    }
}

/// Checks the lines of a table against the policy. A line without a device needs no cipher.
pub(crate) fn check_policy(table: &Table, policy: &HeaderPolicy) -> Result<()> {
    let stored = table.lines().iter().filter(|line| line.device().is_some());
    let segments: Vec<_> = stored.map(TableLine::segment).collect();
    let check = || {
        policy.check_segments(&segments)?;
        table.lines().iter().try_for_each(|line| match &line.target {
            Target::Crypt(crypt) => policy.check_key_len(crypt.key.len()),
            _ => Ok(()),
        })
    };
    check().map_err(against_policy("The table".to_owned()))
}

/// Returns the index of each line's device among those with these identities; any index for a line without a device.
pub fn on_devices(context: &Context, table: &Table, identities: &[String]) -> Result<Vec<usize>> {
    let index = |line: &TableLine| match line.device() {
        None => Ok(0),
        Some(name) => {
            let identity = open_device(context, name, OpenMode::Read)?.identity();
            identities.iter().position(|known| *known == identity).ok_or_else(|| {
                Error::new(ErrorKind::TableOtherDevice, format!("The volume was not opened on device {name}."))
            })
        }
    };
    table.lines().iter().map(index).collect()
}

fn numbers_of(name: &str) -> Option<(u32, u32)> {
    let number = |text: &str| text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    name.split_once(':').and_then(|(major, minor)| number(major).zip(number(minor)))
}

/// Returns the path of a device that a table names by path or `MAJ:MIN`. One that does not exist keeps its name.
pub(crate) fn path_of(name: &str) -> PathBuf {
    let link = numbers_of(name).and_then(|_| std::fs::read_link(format!("/sys/dev/block/{name}")).ok());
    let node = link.map(|link| link.file_name().unwrap_or_default().to_string_lossy().replace('!', "/"));
    node.map_or_else(|| name.into(), |node| Path::new("/dev").join(node))
}

/// Opens a path, or `MAJ:MIN`.
pub(crate) fn open_device(context: &Context, name: &str, mode: OpenMode) -> Result<Device> {
    let Some(numbers) = numbers_of(name) else { return Device::open(context, Path::new(name), mode) };
    let path = path_of(name);
    let device = Device::open(context, &path, mode)?;
    if !device.is_block() || device.device_number() != numbers {
        return Err(Error::not_a_device(&path));
    }
    Ok(device)
}

/// Whether discards are allowed: every encrypted line has to allow them. `None`: no line is encrypted.
pub fn asks_for_discards(table: &Table) -> Option<bool> {
    let asks = |target: &Target| match target {
        Target::Crypt(crypt) => Some(crypt.options.allow_discards),
        _ => None,
    };
    table.lines().iter().filter_map(|line| asks(&line.target)).reduce(|all, asks| all && asks)
}

/// Returns the flags of a table: discards, and dm-crypt's threads.
pub fn flags(table: &Table) -> CryptOptions {
    let mut flags = table.options();
    flags.allow_discards = asks_for_discards(table).unwrap_or(false);
    flags
}

/// Refuses a table whose discard flag differs from the one that the volume advertises, which clients have seen when
/// they connected.
pub fn check_discards(table: &Table, allowed: bool) -> Result<()> {
    match asks_for_discards(table) {
        Some(true) if !allowed => {
            Err(Error::new(ErrorKind::TableAllowsDiscards, "The table allows discards, but the volume does not."))
        }
        Some(false) if allowed => {
            Err(Error::new(ErrorKind::TableForbidsDiscards, "The table does not allow discards, but the volume does."))
        }
        _ => Ok(()),
    }
}

/// Refuses a line that does not fit the blocks of `block` bytes of direct I/O on its device.
pub fn check_blocks(number: usize, line: &TableLine, block: u64) -> Result<()> {
    let (Some(device), segment) = (line.device(), line.segment()) else { return Ok(()) };
    let refused = |what: String| {
        let message = format!(
            "The table cannot be used: direct I/O on device {device} takes blocks of {block} bytes, and line {number} \
             {what}."
        );
        Err(Error::new(ErrorKind::TableDirectIo, message))
    };
    // A line starts on a multiple of its data units.
    match segment.cipher {
        None => refused("is not encrypted".to_owned()),
        Some(_) if !(segment.unit.bytes() as u64).is_multiple_of(block) => {
            refused(format!("has data units of {} bytes", segment.unit.bytes()))
        }
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_starts_with_number_and_has_more_words() {
        for line in ["0 8 zero", "  0 8 zero\n8 8 error", "0 x", "data_dif: 0 8 integrity x"] {
            assert!(is_line(line), "{line}");
        }
        for file in ["table", "0", "./0 8 zero", "my table", "", "data: x", ": 0 8"] {
            assert!(!is_line(file), "{file}");
        }
    }

    #[test]
    fn discards_need_flag_of_every_encrypted_line() {
        let key = "00".repeat(32);
        let with = |start: u32, options: &str| format!("{start} 8 crypt aes-cbc-plain {key} 0 7:0 0 {options}\n");
        let asks = |text: String| asks_for_discards(&Table::parse(&text).unwrap());
        assert_eq!(asks(with(0, "1 allow_discards") + "8 8 zero\n"), Some(true));
        assert_eq!(asks(with(0, "1 allow_discards") + &with(8, "")), Some(false));
        assert_eq!(asks("0 8 linear 7:0 0".into()), None, "as for any volume without a cipher");
    }

    #[test]
    fn table_with_other_discards_than_the_volume_is_refused() {
        let key = "00".repeat(32);
        let with = |options: &str| format!("0 8 crypt aes-cbc-plain {key} 0 7:0 0 {options}");
        let linear = "0 8 linear 7:0 0".to_owned();
        for (text, allowed, refused) in [
            (with("1 allow_discards"), true, None),
            (with("1 allow_discards"), false, Some(ErrorKind::TableAllowsDiscards)),
            (with(""), true, Some(ErrorKind::TableForbidsDiscards)),
            (with(""), false, None),
            (linear.clone(), true, None),
            (linear, false, None),
        ] {
            let checked = check_discards(&Table::parse(&text).unwrap(), allowed);
            assert_eq!(checked.map_err(|error| error.kind()).err(), refused, "{text}, {allowed}");
        }
    }

    #[test]
    fn line_that_cuts_blocks_of_direct_io_is_refused() {
        let key = "00".repeat(32);
        for (line, block, fault) in [
            (format!("0 8 crypt aes-cbc-plain {key} 0 /dev/x 8 1 sector_size:4096"), 4096, None),
            (format!("0 8 crypt aes-cbc-plain {key} 0 /dev/x 1"), 512, None),
            ("0 8 zero".into(), 4096, None),
            ("0 8 error".into(), 4096, None),
            (format!("0 8 crypt aes-cbc-plain {key} 0 /dev/x 8"), 4096, Some("data units of 512 bytes")),
            (format!("0 8 crypt aes-cbc-plain {key} 0 /dev/x 8 1 sector_size:1024"), 4096, Some("units of 1024 bytes")),
            (format!("0 8 crypt aes-cbc-plain {key} 0 /dev/x 2 1 sector_size:1024"), 4096, Some("units of 1024 bytes")),
            (format!("0 8 crypt aes-cbc-plain {key} 0 /dev/x 8 1 sector_size:4096"), 8192, Some("of 4096 bytes")),
            (format!("0 16 crypt aes-cbc-plain {key} 0 /dev/x 16 1 sector_size:8192"), 4096, None),
            ("0 8 linear /dev/x 0".into(), 512, Some("is not encrypted")),
        ] {
            let table = Table::parse(&line).unwrap();
            let error = check_blocks(3, &table.lines()[0], block).err().map(|error| error.to_string());
            assert_eq!(error.is_some(), fault.is_some(), "{line}: {error:?}");
            if let (Some(error), Some(fault)) = (error, fault) {
                let words = ["line 3", "/dev/x", &format!("blocks of {block} bytes"), fault];
                assert!(words.iter().all(|word| error.contains(word)), "{error}");
            }
        }
    }
}
