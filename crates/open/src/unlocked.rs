//! An unlocked volume, and the engine's device made of it.

use crate::error::{Cause, Error, ErrorKind, Result, ResultExt as _};
use crate::host::Context;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inlock_cipher::scrub_stack;
use inlock_engine::store::file::IoMode;
use inlock_engine::{self as engine, Content, TargetError};
use inlock_verity::{Fec, FecParameters, Stores, VerityStore};
use inlock_volume::table::{AnyTable, Target};
use inlock_volume::{AuthenticatedSegment, CipherSpec, DataUnitSize, Segment, Table, VolumeKey};

use super::device::Device;
use super::engine::VolumeEngine;
use super::holes;
use super::info::VolumeInfo;
use super::integrity::{IntegrityOpening, threaded};
use super::integrity_line::RunningLine;
use super::integrity_table;
use super::keyring::{KeyLink, LinkedKeys};
use super::layer::{Layer, Mapped, Sealed, Tagged, Verified};
use super::lock::DeviceLock;
use super::verity::{self, VerityOpening};
use super::verity_table::{Below, Plaintext, Source, VerityStack};
use super::zones;
use crate::path_text;

/// Length of the stack that deriving and checking a key may have used.
pub(crate) const SCRUB: usize = 256 << 10;

/// A volume that is unlocked, and whose devices are locked.
pub struct UnlockedVolume {
    context: Context,
    /// One device, except for a table, which may have several or none.
    data: Vec<Device>,
    /// What is known of it.
    pub info: VolumeInfo,
    contents: Contents,
    locks: Vec<DeviceLock>,
    /// Use direct I/O on the block device.
    direct: bool,
    engine: Option<VolumeEngine>,
    /// Holes of the devices read as zeroes.
    zero_holes: bool,
    /// A device is read-only.
    read_only: bool,
}

/// Data on the devices.
pub(crate) enum Contents {
    /// `--type raw`
    Raw,
    Volume(Vec<Segment>, VolumeKey),
    /// With the index of each line's device.
    Table(Table, Vec<usize>),
    /// A dm-integrity volume on the device with its superblock, and perhaps another one with its data.
    Integrity(IntegrityOpening),
    /// A dm-verity device on the device of its data, and perhaps another one with its tree.
    Verity(VerityOpening),
    /// A table with a hash tree, whose devices are stacked.
    VerityTable(Box<VerityStack>),
    /// A LUKS2 volume with integrity protection: a dm-integrity volume whose blocks an AEAD seals.
    Authenticated(AuthenticatedSegment, VolumeKey, IntegrityOpening),
}

/// The engine's device, and the locks on what is below.
///
/// Keep it until the last use of the device, and of its clones: dropping it releases the locks, and ends the threads
/// that commit a journal. Another process may then write. Call [`LockedStores::check_writes`] before, after the last
/// write: a volume with integrity protection that is dropped without it loses what was not flushed.
pub struct LockedStores {
    /// The device of the engine.
    pub device: Arc<engine::Device>,
    /// The devices as first opened. The exclusive claim on a block device belongs to this descriptor, not to the one
    /// for direct I/O.
    data: Vec<Device>,
    /// What is under the engine's device.
    pub layer: Arc<dyn Layer>,
    _locks: Vec<DeviceLock>,
}

impl Drop for LockedStores {
    fn drop(&mut self) {
        // Before the locks: nothing is written without them.
        self.layer.end();
    }
}

impl LockedStores {
    /// Returns what runs: the engine's device, and what is under it.
    pub fn running(&self) -> (Arc<engine::Device>, Arc<dyn Layer>) {
        (Arc::clone(&self.device), Arc::clone(&self.layer))
    }

    /// Returns how the use of the volume ended: `ended`, or an error if writes may be lost.
    ///
    /// Closes the layer first.
    pub fn check_writes<E: From<Error> + Into<Cause>>(&self, ended: Result<(), E>) -> Result<(), E> {
        let ended = self.layer.close().map_err(E::from).and(ended);
        if !self.device.has_lost_writes() {
            return ended;
        }
        let path = self.data.first().map_or_else(PathBuf::new, |data| data.path.clone());
        Err(Error::writes_lost(&path, ended.err().map(Into::into)).into())
    }
}

impl UnlockedVolume {
    pub(crate) fn new(
        context: &Context,
        data: Vec<Device>,
        info: VolumeInfo,
        contents: Contents,
        locks: Vec<DeviceLock>,
    ) -> Self {
        let context = context.clone();
        Self { context, data, info, contents, locks, direct: false, engine: None, zero_holes: false, read_only: false }
    }

    /// Uses direct I/O if the volume is on a block device and aligned with its blocks: the layers above have caches of
    /// their own, and must not wait for memory of this one. Only for frontends with workers, whose buffers are aligned.
    /// A volume with integrity protection has buffers of its own.
    pub fn use_direct_io(&mut self) {
        if let Contents::Integrity(opening) | Contents::Authenticated(_, _, opening) = &mut self.contents {
            opening.direct = self.data.iter().all(Device::is_block);
        }
        let (Contents::Volume(segments, _), [data]) = (&self.contents, self.data.as_slice()) else { return };
        let block = u64::from(data.block_len());
        let fits = |segment: &Segment| {
            let offset = segment.data_offset.to_bytes();
            (segment.unit.bytes() as u64).is_multiple_of(block) && offset.is_some_and(|n| n.is_multiple_of(block))
        };
        self.direct = data.is_block() && segments.iter().all(|s| s.cipher.is_some() && fits(s));
    }

    /// Makes holes of the devices read as zeroes.
    ///
    /// # Errors
    ///
    /// Fails for a device whose holes need not be zeroes, and for a volume of another kind.
    pub(crate) fn read_zero_holes(&mut self) -> Result<()> {
        if !matches!(self.contents, Contents::Volume(..) | Contents::Table(..)) {
            return Err(holes::no_holes(&self.info.device));
        }
        self.data.iter().try_for_each(holes::check)?;
        self.zero_holes = true;
        Ok(())
    }

    /// Uses a cipher engine.
    pub fn use_engine(&mut self, engine: Option<VolumeEngine>) {
        self.engine = engine;
    }

    /// Adds the volume key, if there is one, to keyrings of the kernel.
    pub fn link_key(&self, links: &[KeyLink]) -> Result<LinkedKeys> {
        match &self.contents {
            Contents::Volume(_, key) | Contents::Authenticated(_, key, _) => LinkedKeys::link(links, key),
            Contents::Raw
            | Contents::Table(..)
            | Contents::Integrity(_)
            | Contents::Verity(_)
            | Contents::VerityTable(_) => Ok(LinkedKeys::default()),
        }
    }

    /// Opens it read-only, also if it is to be written.
    pub(crate) fn set_read_only(&mut self) {
        self.read_only = true;
    }

    /// Makes the engine's device, read-only for a legacy cipher or a read-only device. Wipes the volume key before it
    /// returns; the cipher keeps its own key schedule.
    pub fn into_device(self, mode: IoMode, access: engine::Access) -> Result<LockedStores> {
        let stores = self.connect(mode, access);
        scrub_stack::<SCRUB>();
        stores
    }

    #[inline(never)]
    fn connect(self, mode: IoMode, access: engine::Access) -> Result<LockedStores> {
        let Self { context, data, info, contents, locks, direct, engine, zero_holes, read_only } = self;
        let access = engine::Access { read_only: access.read_only || read_only, ..access };
        let path = &info.device;
        if engine.is_some() && !matches!(contents, Contents::Volume(..) | Contents::Table(..)) {
            return Err(VolumeEngine::nothing_to_do(path));
        }
        let is_of_table = info.kind == "TABLE";
        let (device, layer): (_, Arc<dyn Layer>) = match contents {
            Contents::Raw => {
                check_sectors(&data[0])?;
                let mut stores = stores(&data, direct, mode, access.read_only)?;
                (engine::Device::raw(stores.remove(0), access), Arc::new(Mapped))
            }
            Contents::Volume(segments, key) => {
                let ciphers = segments.iter().filter_map(|segment| segment.cipher);
                let access = access_to(&context, ciphers, access, path);
                check_blocks(&segments, &data[0])?;
                let stores = stores(&data, direct, mode, access.read_only)?;
                let content = |s: &Segment| if s.cipher.is_some() { Content::Crypt(&key) } else { Content::Linear };
                let targets = segments.iter().map(|segment| (*segment, content(segment), 0));
                (stacked(&targets.collect::<Vec<_>>(), stores, access, (path, engine))?, Arc::new(Mapped))
            }
            Contents::Table(table, of_line) => {
                let ciphers = table.lines().iter().filter_map(|line| line.segment().cipher);
                let access = access_to(&context, ciphers, access, path);
                check_lines(&table, &of_line, &data)?;
                let stores = stores(&data, direct, mode, access.read_only)?;
                (device_of_lines(&table, &of_line, stores, access, (path, engine))?, Arc::new(Mapped))
            }
            Contents::Integrity(opening) => {
                let integrity = opening.open(&data[0], data.get(1), mode, access.read_only)?;
                let store = threaded(integrity.store()?, &data[0], data.get(1))?;
                (engine::Device::raw(store, access), Arc::new(Tagged { integrity, is_of_table }))
            }
            Contents::Verity(opening) => {
                let store = opening.connect(&data[0], data.get(1), mode)?;
                let access = engine::Access { read_only: true, ..access };
                let device = engine::Device::raw(verity::threaded(Arc::clone(&store), &data)?, access);
                (device, Arc::new(Verified { store, is_of_table }))
            }
            Contents::VerityTable(stack) => {
                let store = verify_stack(&context, &stack, &data, mode)?;
                let device = device_of_stack(&stack, Arc::clone(&store), &data, access, path)?;
                (device, Arc::new(Verified { store, is_of_table }))
            }
            Contents::Authenticated(segment, key, mut opening) => {
                let line = opening.line.take().unwrap_or_else(|| RunningLine::of_header(&data[0], opening.start));
                let inner = segment.spec.inner();
                let access = access_to(&context, inner.into_iter(), access, path);
                let devices = (&data[0], data.get(1));
                let (integrity, store) = opening.open_fresh(devices, segment, &key, mode, access.read_only)?;
                let threads = threaded(Arc::clone(&store) as _, &data[0], data.get(1))?;
                (engine::Device::raw(threads, access), Arc::new(Sealed { integrity, store, segment, line }))
            }
        };
        let device =
            if zero_holes { device.with_zero_holes().map_err(|error| cannot_use(error, path))? } else { device };
        if inlock_cipher::memory_lock_failed() {
            context.warn("cannot lock the memory of keys, which may be written to swap (see ulimit -l)");
        }
        Ok(LockedStores { device: Arc::new(device), data, layer, _locks: locks })
    }

    /// Returns the names of its devices that are files.
    pub fn files(&self) -> Vec<String> {
        self.data.iter().filter(|data| !data.is_block()).map(|data| data.path.display().to_string()).collect()
    }

    /// Returns the device-mapper table of the volume, whose device gets the name `name`.
    ///
    /// # Errors
    ///
    /// Fails for a volume that Inlock has no table for.
    pub fn table(self, name: &str) -> Result<AnyTable> {
        let (segments, key) = match self.contents {
            Contents::Table(table, _) => return Ok(AnyTable::Lines(table)),
            Contents::Authenticated(segment, key, opening) => {
                let flags = self.info.flags;
                let table = integrity_table::of_volume(
                    &self.data[0],
                    (name, &self.info.device),
                    (segment, key),
                    &opening,
                    flags,
                )?;
                return Ok(AnyTable::Integrity(Box::new(table)));
            }
            Contents::Volume(segments, key) => (segments, key),
            Contents::Raw => (vec![whole()], VolumeKey::zeroed(0)),
            Contents::Verity(_) | Contents::VerityTable(_) => {
                return Err(Error::new(
                    ErrorKind::IsVerity,
                    format!("{} is a verity device.", self.info.device.display()),
                ));
            }
            Contents::Integrity(_) => {
                return Err(Error::new(
                    ErrorKind::IsIntegrity,
                    format!("{} is an integrity device without a LUKS header.", self.info.device.display()),
                ));
            }
        };
        let data = &self.data[0];
        let mut table =
            Table::of_volume(&segments, &key, self.info.flags, &path_text::text_of(&self.info.device), data.len);
        let names: Vec<_> = self.info.segments.iter().map(|segment| segment.cipher.clone()).collect();
        table.set_cipher_names(&names);
        Ok(AnyTable::Lines(table))
    }
}

/// Opens the verified device of a stack on those below it.
fn verify_stack(context: &Context, stack: &VerityStack, data: &[Device], mode: IoMode) -> Result<Arc<VerityStore>> {
    let access = engine::Access { read_only: true, ..Default::default() };
    let plaintext = |Below { name, table, devices, of_line }: &Below| -> Result<Arc<dyn engine::BackingStore>> {
        let devices = &data[devices.clone()];
        check_lines(table, of_line, devices)?;
        let device =
            device_of_lines(table, of_line, stores(devices, false, mode, true)?, access, (Path::new(name), None))?;
        Ok(Arc::new(Plaintext::new(device)))
    };
    let below = stack.below.iter().map(plaintext).collect::<Result<Vec<_>>>()?;
    let store = |source: &Source| -> Result<Arc<dyn engine::BackingStore>> {
        match source {
            Source::Device(at) => Ok(self::stores(std::slice::from_ref(&data[*at]), false, mode, true)?.remove(0)),
            Source::Below(at) => Ok(Arc::clone(&below[*at])),
        }
    };
    let stores = Stores::new(store(&stack.data)?, store(&stack.hash)?, stack.opening.tree_offset);
    let paths = [&stack.data, &stack.hash].map(|source| stack.path(source, data));
    let fec = |(parameters, source): &(FecParameters, Source)| -> Result<Fec> {
        let path = stack.path(source, data);
        let fec = Fec::new(store(source)?, *parameters, &stack.opening.layout);
        fec.map_err(|error| verity::cannot_use(&path)(error.into()))
    };
    let fec = stack.fec.as_ref().map(fec).transpose()?;
    stack.opening.connect_stores(context, &stores, fec, paths)
}

/// Returns the engine's device of a stack: the lines on the verified device, or this as long as its line says.
fn device_of_stack(
    stack: &VerityStack,
    store: Arc<VerityStore>,
    data: &[Device],
    access: engine::Access,
    path: &Path,
) -> Result<engine::Device> {
    let access = engine::Access { read_only: true, ..access };
    let stores = vec![verity::threaded(store, data)?];
    if let Some(table) = &stack.above {
        return device_of_lines(table, &vec![0; table.lines().len()], stores, access, (path, None));
    }
    let mut segment = whole();
    segment.sectors = Some(stack.sectors);
    stacked(&[(segment, Content::Linear, 0)], stores, access, (path, None))
}

/// Refuses lines whose data units are parts of the blocks of their server.
fn check_lines(table: &Table, of_line: &[usize], data: &[Device]) -> Result<()> {
    let mut lines = table.lines().iter().zip(of_line).filter(|(line, _)| line.device().is_some());
    lines.try_for_each(|(line, store)| check_blocks(&[line.segment()], &data[*store]))
}

/// Returns the engine's device of the lines of a table, each on its store.
fn device_of_lines(
    table: &Table,
    of_line: &[usize],
    stores: Vec<Arc<dyn engine::BackingStore>>,
    access: engine::Access,
    place: (&Path, Option<VolumeEngine>),
) -> Result<engine::Device> {
    let lines = table.lines().iter().zip(of_line);
    let targets = lines.map(|(line, store)| (line.segment(), content_of(&line.target), *store));
    stacked(&targets.collect::<Vec<_>>(), stores, access, place)
}

/// Returns the access to a volume with these ciphers: read-only for a legacy one.
fn access_to(
    context: &Context,
    mut ciphers: impl Iterator<Item = CipherSpec>,
    access: engine::Access,
    path: &Path,
) -> engine::Access {
    let legacy = ciphers.find(|spec| spec.cipher.is_legacy());
    if let Some(spec) = legacy.filter(|_| !access.read_only) {
        context.warn(format_args!("{}: {spec} is a legacy cipher; opened read-only", path.display()));
    }
    engine::Access { read_only: access.read_only || legacy.is_some(), ..access }
}

/// Returns the stores of the devices.
fn stores(
    devices: &[Device],
    direct: bool,
    mode: IoMode,
    read_only: bool,
) -> Result<Vec<Arc<dyn engine::BackingStore>>> {
    let store = |device: &Device| -> Result<Arc<dyn engine::BackingStore>> {
        if device.zones.is_some() {
            return zones::store(device, read_only, mode);
        }
        device.store(mode, read_only, direct).with_context(|| format!("cannot use {}", device.path.display()))
    };
    devices.iter().map(store).collect()
}

/// Refuses segments whose data units are parts of the blocks of their server.
fn check_blocks(segments: &[Segment], data: &Device) -> Result<()> {
    let Some(remote) = data.remote() else { return Ok(()) };
    let fits = |s: &Segment| remote.is_fitting(s.unit.bytes() as u64, s.data_offset.to_bytes());
    match segments.iter().find(|segment| !fits(segment)) {
        None => Ok(()),
        Some(segment) => Err(Error::new(
            ErrorKind::ServerBlocks { of_volume: true },
            format!(
                "The server of {} takes blocks of {} bytes, and the volume has sectors of {} bytes.",
                data.path.display(),
                remote.min_block(),
                segment.unit.bytes()
            ),
        )),
    }
}

/// Refuses a device without cipher whose server's blocks are longer than its sectors.
fn check_sectors(data: &Device) -> Result<()> {
    let Some(remote) = data.remote().filter(|remote| !remote.is_fitting(512, Some(0))) else { return Ok(()) };
    Err(Error::new(
        ErrorKind::ServerBlocks { of_volume: false },
        format!(
            "The server of {} takes blocks of {} bytes, and the volume has sectors of 512 bytes.",
            data.path.display(),
            remote.min_block()
        ),
    ))
}

/// Returns the engine's device of segments, each with its content and its store.
fn stacked(
    targets: &[(Segment, Content<'_>, usize)],
    stores: Vec<Arc<dyn engine::BackingStore>>,
    access: engine::Access,
    (path, engine): (&Path, Option<VolumeEngine>),
) -> Result<engine::Device> {
    let targets: Vec<_> = targets
        .iter()
        .map(|(segment, content, store)| engine::Target { segment, content: *content, store: *store })
        .collect();
    let device = engine::Device::stacked(&targets, stores, access).map_err(|error| cannot_use(error, path))?;
    match engine {
        Some(engine) => engine.add_to(device, &targets, path),
        None => Ok(device),
    }
}

/// Returns the engine's content for a table's target.
pub(crate) fn content_of(target: &Target) -> Content<'_> {
    match target {
        Target::Crypt(crypt) => Content::Crypt(&crypt.key),
        Target::Linear { .. } => Content::Linear,
        Target::Zero => Content::Zero,
        Target::Error => Content::Error,
    }
}

/// Returns the only segment of a volume without a cipher.
fn whole() -> Segment {
    Segment::whole(None, DataUnitSize::SECTOR)
}

fn cannot_use(error: TargetError, path: &Path) -> Error {
    let kind = match error {
        TargetError::BeyondStore { .. } | TargetError::Empty { .. } => ErrorKind::MappingMisfit,
        TargetError::UnitLength { .. } => ErrorKind::UnitMisfit,
        _ => return Error::with_source(ErrorKind::Failed, format!("cannot use {}", path.display()), error),
    };
    Error::unusable(kind, path, error)
}
