//! Tables with a hash tree: opening the devices of the stack, and making a table of an opened device.

use crate::error::{Error, ErrorKind, Result};
use crate::host::Context;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use inlock_engine::{BackingStore, BlockingDevice, Device as Mapped, Errno, Geometry};
use inlock_verity::{FecParameters, HashType, Parameters};
use inlock_volume::Table;
use inlock_volume::table::{FecArguments, NamedTable, OnFault, VerityArguments, VerityLine, VerityTable};

use super::device::{Device, OpenMode};
use super::info::resolved;
use super::lock::{self, DeviceLock, Mode};
use super::table::{self, Devices};
use super::verity::{OpenedFec, VerityOpening, hex};
use crate::path_text::text_of;

/// A device of a table with a hash tree, and those that it is stacked with. Devices are counted in the volume's list.
pub(crate) struct VerityStack {
    pub opening: VerityOpening,
    pub data: Source,
    pub hash: Source,
    pub fec: Option<(FecParameters, Source)>,
    pub below: Vec<Below>,
    pub above: Option<Table>,
    /// Length of the verified device.
    pub sectors: u64,
}

/// Store of the data, the tree or the parity.
pub(crate) enum Source {
    /// An underlying device.
    Device(usize),
    /// A device of the stack.
    Below(usize),
}

/// A device that the line of verity names.
pub(crate) struct Below {
    pub name: String,
    pub table: Table,
    /// Its underlying devices.
    pub devices: Range<usize>,
    /// Index of each line's device in `devices`.
    pub of_line: Vec<usize>,
}

impl VerityStack {
    /// Opens and locks the devices of a table. All are opened for reading.
    pub(crate) fn open(context: &Context, table: VerityTable) -> Result<(Self, Vec<Device>, Vec<DeviceLock>)> {
        let VerityTable { below: tables, sectors, verity: line, above, .. } = table;
        check_options(&line.options)?;
        let (mut devices, mut locks, mut below) = (Vec::new(), Vec::new(), Vec::new());
        for NamedTable { name, table, .. } in tables {
            let mut opened = Devices::open(context, &table, false)?;
            let range = devices.len()..devices.len() + opened.devices.len();
            devices.append(&mut opened.devices);
            locks.append(&mut opened.locks);
            below.push(Below { name: name.unwrap_or_default(), table, devices: range, of_line: opened.of_line });
        }
        let own = devices.len();
        let mut source = |name: &str| -> Result<Source> {
            if let Some(at) = below.iter().position(|below: &Below| below.path() == name) {
                return Ok(Source::Below(at));
            }
            let device = table::open_device(context, name, OpenMode::Read)?;
            let known = devices[own..].iter().position(|other: &Device| other.identity() == device.identity());
            if let Some(at) = known {
                return Ok(Source::Device(own + at));
            }
            locks.push(lock::whole_device(&device, Mode::Shared)?);
            devices.push(device);
            Ok(Source::Device(devices.len() - 1))
        };
        let (data, hash) = (source(&line.data_device)?, source(&line.hash_device)?);
        let fec = match &line.options.fec {
            None => None,
            Some(FecArguments { device, roots, blocks, start, .. }) => {
                let offset = start.checked_mul(line.hash_block_size.into());
                let offset =
                    offset.ok_or_else(|| Error::new(ErrorKind::VerityLayout, "Unsupported VERITY FEC offset."))?;
                Some((FecParameters { roots: *roots, blocks: *blocks, offset }, source(device)?))
            }
        };
        let opening = opening(&line)?;
        let above = above.map(|above| above.table);
        Ok((Self { opening, data, hash, fec, below, above, sectors }, devices, locks))
    }

    /// Returns the name of a source for messages.
    pub(crate) fn path(&self, source: &Source, devices: &[Device]) -> std::path::PathBuf {
        match source {
            Source::Device(at) => devices[*at].path.clone(),
            Source::Below(at) => self.below[*at].path().into(),
        }
    }
}

impl Below {
    fn path(&self) -> String {
        format!("/dev/mapper/{}", self.name)
    }
}

/// Refuses what only the kernel can do.
fn check_options(options: &VerityArguments) -> Result<()> {
    let stops = |on: Option<OnFault>| matches!(on, Some(OnFault::Restart | OnFault::Panic));
    let refused = [
        (
            stops(options.on_corruption) || stops(options.on_error),
            "restarts or stops the machine",
            ErrorKind::VerityLineStops,
        ),
        (options.signature_key.is_some(), "has root_hash_sig_key_desc", ErrorKind::VerityLineSignature),
    ];
    match refused.iter().find(|(given, ..)| *given) {
        None => Ok(()),
        Some((_, what, kind)) => Err(Error::new(*kind, format!("The verity line of the table {what}."))),
    }
}

/// Returns the parameters of a line, whose words are checked.
fn opening(line: &VerityLine) -> Result<VerityOpening> {
    let parameters = Parameters {
        hash_type: HashType::from_number(line.hash_type).unwrap_or_default(),
        hash: line.hash,
        data_block_len: line.data_block_size,
        hash_block_len: line.hash_block_size,
        data_blocks: line.data_blocks,
        salt: line.salt.clone(),
    };
    Ok(VerityOpening {
        layout: parameters.layout()?,
        tree_offset: line.hash_start * u64::from(line.hash_block_size),
        root: line.root.clone(),
        uuid: None,
        hash_name: line.hash.name().to_owned(),
        ignore_corruption: line.options.on_corruption == Some(OnFault::Ignore),
        ignore_zero_blocks: line.options.ignore_zero_blocks,
        fec: None,
    })
}

/// Returns the table of a device that is not stacked.
pub fn of_volume(opening: &VerityOpening, data: &Path, hash: &Path) -> VerityTable {
    let parameters = opening.layout.parameters();
    let mut line = VerityLine::new(&text_of(data), &text_of(hash));
    line.hash_type = parameters.hash_type.number();
    line.data_block_size = parameters.data_block_len;
    line.hash_block_size = parameters.hash_block_len;
    line.data_blocks = parameters.data_blocks;
    line.hash_start = opening.tree_offset / u64::from(parameters.hash_block_len);
    line.hash = parameters.hash;
    line.root.clone_from(&opening.root);
    line.salt.clone_from(&parameters.salt);
    line.options.on_corruption = opening.ignore_corruption.then_some(OnFault::Ignore);
    line.options.ignore_zero_blocks = opening.ignore_zero_blocks;
    line.options.fec = opening.fec.as_ref().map(|OpenedFec { fec, path }| {
        let FecParameters { roots, blocks, offset } = *fec.parameters();
        let device = resolved(path);
        FecArguments::new(&text_of(&device), roots, blocks, offset / u64::from(line.hash_block_size))
    });
    VerityTable::new(opening.layout.data_len() / 512, line)
}

/// Returns the arguments of a verity line by name.
pub fn describe(table: &VerityTable) -> serde_json::Value {
    let VerityLine { name, hash_type, data_device, hash_device, options, .. } = &table.verity;
    let line = &table.verity;
    serde_json::json!({
        "name": name, "start": 0, "sectors": table.sectors, "target": "verity", "hash_type": hash_type,
        "data_device": data_device, "hash_device": hash_device, "data_block_size": line.data_block_size,
        "hash_block_size": line.hash_block_size, "data_blocks": line.data_blocks, "hash_start": line.hash_start,
        "hash": line.hash.name(), "root_hash": hex(&line.root), "salt": hex(&line.salt),
        "options": options.to_string().split_ascii_whitespace().skip(1).collect::<Vec<_>>(),
    })
}

/// The plaintext of a device of the stack, as a store.
pub(crate) struct Plaintext(BlockingDevice);

impl Plaintext {
    pub(crate) fn new(device: Mapped) -> Self {
        Self(BlockingDevice::new(Arc::new(device)))
    }
}

impl BackingStore for Plaintext {
    fn geometry(&self) -> Geometry {
        Geometry::new_read_only(self.0.len())
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let left = self.0.len().saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(data.len());
        self.0.read_at(&mut data[..len], offset).map_err(|error| error.errno())?;
        Ok(len)
    }

    fn write_at(&self, _data: &[u8], _offset: u64) -> Result<usize, Errno> {
        Err(Errno::ROFS)
    }

    fn sync(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlock_cipher::{DataUnitSize, Segment, VolumeKey};
    use inlock_engine::Access;
    use inlock_engine::store::memory::MemoryStore;
    use inlock_testing::{Call, ScriptedStore, Verdict};
    use inlock_volume::table::AnyTable;

    #[test]
    fn table_of_a_volume_is_the_one_that_opens_it() {
        let (root, salt) = ("ab".repeat(64), "cd".repeat(7));
        for text in [
            format!(
                "0 2000 verity 0 /dev/a /dev/b 1024 512 1000 7 sha512 {root} {salt} 2 ignore_corruption ignore_zero_blocks"
            ),
            format!("0 3200 verity 1 /dev/a /dev/b 4096 2048 400 1 sha256 {} -", &root[..64]),
        ] {
            let AnyTable::Verity(table) = AnyTable::parse(&text).unwrap() else { panic!("{text}") };
            let opening = opening(&table.verity).unwrap();
            let found = of_volume(&opening, Path::new("/dev/a"), Path::new("/dev/b"));
            assert_eq!((found.sectors, found.verity), (table.sectors, table.verity), "{text}");
        }
    }

    #[test]
    fn plaintext_ends_with_its_device_and_fails_with_it() {
        let bytes: Vec<u8> = (0..4096_u32).map(|at| 1 + (at % 251) as u8).collect();
        let script = |call: Call<'_>| match call {
            Call::Read { offset: 512..1024, .. } => Verdict::Fail(Errno::IO),
            _ => Verdict::Pass,
        };
        let store = Arc::new(ScriptedStore::new(Arc::new(MemoryStore::new(bytes.clone())), script));
        let whole = Segment::whole(None, DataUnitSize::SECTOR);
        let device = Mapped::new(&[whole], &VolumeKey::zeroed(0), store, Access::default()).unwrap();
        let plaintext = Plaintext::new(device);
        for (offset, expected) in [(0, 200), (3000, 200), (3896, 200), (3897, 199), (4000, 96), (4096, 0)] {
            let mut read = [0; 200];
            assert_eq!(plaintext.read_at(&mut read, offset), Ok(expected), "{offset}");
            let (inside, beyond) = read.split_at(expected);
            assert!(inside.is_empty() || inside == &bytes[offset as usize..][..expected], "{offset}");
            assert!(beyond.iter().all(|byte| *byte == 0), "{offset}");
        }
        assert_eq!(plaintext.read_at(&mut [0; 200], 512), Err(Errno::IO));
        assert_eq!(plaintext.geometry(), Geometry::new_read_only(4096));
    }
}
