//! What unlocked volumes are made of: each kind makes the engine's device in its own way.
//!
//! A new kind of volume implements [`Contents`], and is made in `open.rs` from its type of [`crate::source::VolumeType`].

use std::path::Path;
use std::sync::Arc;

use inlock_engine::store::file::IoMode;
use inlock_engine::{self as engine, Content, TargetError};
use inlock_verity::{Fec, FecParameters, Stores, VerityStore};
use inlock_volume::luks2::reencryption::{Reencryption, ReencryptionKeys};
use inlock_volume::table::{AnyTable, CryptOptions, Target};
use inlock_volume::{AuthenticatedSegment, CipherSpec, DataUnitSize, HeaderPolicy, Segment, Table, VolumeKey};

use crate::device::Device;
use crate::engine::VolumeEngine;
use crate::error::{Error, ErrorKind, Result, ResultExt as _};
use crate::host::Context;
use crate::info::{SegmentInfo, VolumeInfo};
use crate::integrity::{IntegrityOpening, threaded};
use crate::integrity_line::RunningLine;
use crate::integrity_table;
use crate::key_check::KeyCheck;
use crate::layer::{Layer, Mapped, Reencryptable, Sealed, Tagged, Verified};
use crate::lock::Lock;
use crate::path_text;
use crate::reencryption::online::Online;
use crate::source::{HeaderOptions, Luks};
use crate::verity::{self, VerityOpening};
use crate::verity_table::{Below, Plaintext, Source, VerityStack};
use crate::zones;

/// What the engine's device is made with.
pub(crate) struct Connection<'a> {
    pub(crate) context: &'a Context,
    /// One device, except for a table, which may have several or none.
    pub(crate) data: &'a [Device],
    pub(crate) info: &'a VolumeInfo,
    pub(crate) mode: IoMode,
    pub(crate) access: engine::Access,
    /// `None` unless the contents are [mapped](Contents::is_mapped).
    pub(crate) engine: Option<VolumeEngine>,
}

/// The engine's device, and what is under it.
pub(crate) type Connected = (engine::Device, Arc<dyn Layer>);

/// What an unlocked volume is made of.
pub(crate) trait Contents: Send {
    /// Makes the engine's device. The key is wiped with the contents.
    fn connect(self: Box<Self>, connection: Connection<'_>) -> Result<Connected>;

    /// Returns the volume key, which keyrings of the kernel may get.
    fn key(&self) -> Option<&VolumeKey> {
        None
    }

    /// Whether the engine maps data units to the devices, so that it may leave out their holes, and another engine may
    /// encrypt them.
    fn is_mapped(&self) -> bool {
        false
    }

    /// Whether the volume can have discards.
    fn has_discards(&self) -> bool {
        true
    }

    /// Uses direct I/O where that is possible.
    fn use_direct_io(&mut self, _data: &[Device]) {}

    /// Adds segments and key to what is known of the volume.
    fn describe(&self, _info: &mut VolumeInfo) {}

    /// Returns the device-mapper table of the volume, whose device gets the name `name`.
    fn table(self: Box<Self>, data: &[Device], info: &VolumeInfo, name: &str) -> Result<AnyTable>;
}

/// A device without encryption: `--type raw`.
pub(crate) struct Raw;

impl Contents for Raw {
    fn connect(self: Box<Self>, connection: Connection<'_>) -> Result<Connected> {
        let Connection { data, mode, access, .. } = connection;
        check_sectors(&data[0])?;
        let mut stores = stores(data, false, mode, access.read_only)?;
        Ok((engine::Device::raw(stores.remove(0), access), Arc::new(Mapped)))
    }

    fn table(self: Box<Self>, data: &[Device], info: &VolumeInfo, _: &str) -> Result<AnyTable> {
        Ok(table_of(&[whole()], &VolumeKey::zeroed(0), data, info))
    }
}

/// Segments with one key: plain, LUKS1, LUKS2.
pub(crate) struct Encrypted {
    pub(crate) segments: Vec<Segment>,
    pub(crate) key: VolumeKey,
    /// Names of the ciphers as the header has them.
    pub(crate) cipher_names: Vec<Option<String>>,
    /// Use direct I/O on the block device.
    direct: bool,
}

impl Encrypted {
    pub(crate) fn new(segments: Vec<Segment>, key: VolumeKey, cipher_names: Vec<Option<String>>) -> Self {
        Self { segments, key, cipher_names, direct: false }
    }
}

impl Contents for Encrypted {
    fn connect(self: Box<Self>, connection: Connection<'_>) -> Result<Connected> {
        let Connection { context, data, info, mode, access, engine } = connection;
        let ciphers = self.segments.iter().filter_map(|segment| segment.cipher);
        let access = access_to(context, ciphers, access, &info.device);
        check_blocks(&self.segments, &data[0])?;
        let stores = stores(data, self.direct, mode, access.read_only)?;
        let content = |s: &Segment| if s.cipher.is_some() { Content::Crypt(&self.key) } else { Content::Linear };
        let targets = self.segments.iter().map(|segment| (*segment, content(segment), 0));
        let device = stacked(&targets.collect::<Vec<_>>(), stores, access, (&info.device, engine))?;
        Ok((device, layer_of(context, info, None)))
    }

    fn key(&self) -> Option<&VolumeKey> {
        Some(&self.key)
    }

    fn is_mapped(&self) -> bool {
        true
    }

    fn use_direct_io(&mut self, data: &[Device]) {
        let [data] = data else { return };
        let block = u64::from(data.block_len());
        let fits = |segment: &Segment| {
            let offset = segment.data_offset.to_bytes();
            (segment.unit.bytes() as u64).is_multiple_of(block) && offset.is_some_and(|n| n.is_multiple_of(block))
        };
        self.direct = data.is_block() && self.segments.iter().all(|s| s.cipher.is_some() && fits(s));
    }

    fn describe(&self, info: &mut VolumeInfo) {
        info.segments = self.segments.iter().map(|segment| SegmentInfo::of(segment, self.key.len())).collect();
        for (segment, name) in info.segments.iter_mut().zip(&self.cipher_names).filter(|(_, name)| name.is_some()) {
            segment.cipher.clone_from(name);
        }
        // A key that the cipher refuses is reported when the engine's device is made.
        info.check = KeyCheck::new(&self.segments, &self.key).ok();
    }

    fn table(self: Box<Self>, data: &[Device], info: &VolumeInfo, _: &str) -> Result<AnyTable> {
        Ok(table_of(&self.segments, &self.key, data, info))
    }
}

/// The lines of a table, with the index of each line's device.
pub(crate) struct Lines {
    pub(crate) table: Table,
    pub(crate) of_line: Vec<usize>,
    /// Bytes that are new, and cryptsetup's lock, of a volume in re-encryption.
    pub(crate) interrupted: Option<(u64, Lock)>,
}

impl Lines {
    /// Returns a volume in re-encryption as it is: ranges with the old key, and with the new one.
    pub(crate) fn of_reencryption(
        state: &Reencryption,
        keys: &ReencryptionKeys,
        lock: Lock,
        flags: CryptOptions,
        data: &Device,
    ) -> Self {
        let segments = state.segments().into_iter().map(|(segment, piece)| (segment, keys.of(piece)));
        let table = Table::of_segments(segments, flags, &path_text::text_of(&data.path), data.len);
        let of_line = vec![0; table.lines().len()];
        let done = state.pieces.done(state.len(data.len));
        Self { table, of_line, interrupted: Some((done, lock)) }
    }
}

impl Contents for Lines {
    fn connect(self: Box<Self>, connection: Connection<'_>) -> Result<Connected> {
        let Connection { context, data, info, mode, access, engine } = connection;
        let Self { table, of_line, interrupted } = *self;
        let ciphers = table.lines().iter().filter_map(|line| line.segment().cipher);
        let access = access_to(context, ciphers, access, &info.device);
        check_lines(&table, &of_line, data)?;
        let stores = stores(data, false, mode, access.read_only)?;
        let device = device_of_lines(&table, &of_line, stores, access, (&info.device, engine))?;
        Ok((device, layer_of(context, info, interrupted)))
    }

    fn is_mapped(&self) -> bool {
        true
    }

    fn table(self: Box<Self>, _: &[Device], _: &VolumeInfo, _: &str) -> Result<AnyTable> {
        Ok(AnyTable::Lines(self.table))
    }
}

/// A dm-integrity volume on the device with its superblock, and perhaps another one with its data.
impl Contents for IntegrityOpening {
    fn connect(self: Box<Self>, connection: Connection<'_>) -> Result<Connected> {
        let Connection { data, info, mode, access, .. } = connection;
        let integrity = self.open(&data[0], data.get(1), mode, access.read_only)?;
        let store = threaded(integrity.store()?, &data[0], data.get(1))?;
        let layer = Tagged { integrity, is_of_table: info.kind == "TABLE" };
        Ok((engine::Device::raw(store, access), Arc::new(layer)))
    }

    fn use_direct_io(&mut self, data: &[Device]) {
        self.direct = data.iter().all(Device::is_block);
    }

    fn table(self: Box<Self>, _: &[Device], info: &VolumeInfo, _: &str) -> Result<AnyTable> {
        let text = format!("{} is an integrity device without a LUKS header.", info.device.display());
        Err(Error::new(ErrorKind::IsIntegrity, text))
    }
}

/// A LUKS2 volume with integrity protection: a dm-integrity volume whose blocks an AEAD seals.
pub(crate) struct Authenticated {
    pub(crate) segment: AuthenticatedSegment,
    pub(crate) key: VolumeKey,
    pub(crate) opening: IntegrityOpening,
}

impl Contents for Authenticated {
    fn connect(self: Box<Self>, connection: Connection<'_>) -> Result<Connected> {
        let Connection { context, data, info, mode, access, .. } = connection;
        let Self { segment, key, mut opening } = *self;
        let line = opening.line.take().unwrap_or_else(|| RunningLine::of_header(&data[0], opening.start));
        let access = access_to(context, segment.spec.inner().into_iter(), access, &info.device);
        let devices = (&data[0], data.get(1));
        let (integrity, store) = opening.open_fresh(devices, segment, &key, mode, access.read_only)?;
        let threads = threaded(Arc::clone(&store) as _, &data[0], data.get(1))?;
        Ok((engine::Device::raw(threads, access), Arc::new(Sealed { integrity, store, segment, line })))
    }

    fn key(&self) -> Option<&VolumeKey> {
        Some(&self.key)
    }

    fn has_discards(&self) -> bool {
        false
    }

    fn use_direct_io(&mut self, data: &[Device]) {
        self.opening.use_direct_io(data);
    }

    fn describe(&self, info: &mut VolumeInfo) {
        // No table may use the device without its tags.
        info.devices.clear();
        info.segments = vec![SegmentInfo::of_authenticated(&self.segment, self.key.len())];
        info.check = KeyCheck::of_authenticated(&self.key).ok();
    }

    fn table(self: Box<Self>, data: &[Device], info: &VolumeInfo, name: &str) -> Result<AnyTable> {
        let Self { segment, key, opening } = *self;
        let names = (name, info.device.as_path());
        let table = integrity_table::of_volume(&data[0], names, (segment, key), &opening, info.flags)?;
        Ok(AnyTable::Integrity(Box::new(table)))
    }
}

/// A dm-verity device on the device of its data, and perhaps another one with its tree.
impl Contents for VerityOpening {
    fn connect(self: Box<Self>, connection: Connection<'_>) -> Result<Connected> {
        let Connection { data, info, mode, access, .. } = connection;
        let store = VerityOpening::connect(&self, &data[0], data.get(1), mode)?;
        let access = engine::Access { read_only: true, ..access };
        let device = engine::Device::raw(verity::threaded(Arc::clone(&store), data)?, access);
        Ok((device, Arc::new(Verified { store, is_of_table: info.kind == "TABLE" })))
    }

    fn table(self: Box<Self>, _: &[Device], info: &VolumeInfo, _: &str) -> Result<AnyTable> {
        Err(is_verity(info))
    }
}

/// A table with a hash tree, whose devices are stacked.
impl Contents for VerityStack {
    fn connect(self: Box<Self>, connection: Connection<'_>) -> Result<Connected> {
        let Connection { context, data, info, mode, access, .. } = connection;
        let store = verify_stack(context, &self, data, mode)?;
        let device = device_of_stack(&self, Arc::clone(&store), data, access, &info.device)?;
        Ok((device, Arc::new(Verified { store, is_of_table: true })))
    }

    fn table(self: Box<Self>, _: &[Device], info: &VolumeInfo, _: &str) -> Result<AnyTable> {
        Err(is_verity(info))
    }
}

fn is_verity(info: &VolumeInfo) -> Error {
    Error::new(ErrorKind::IsVerity, format!("{} is a verity device.", info.device.display()))
}

/// Returns the table of segments on one device.
fn table_of(segments: &[Segment], key: &VolumeKey, data: &[Device], info: &VolumeInfo) -> AnyTable {
    let device = path_text::text_of(&info.device);
    let mut table = Table::of_volume(segments, key, info.flags, &device, data[0].len);
    let names: Vec<_> = info.segments.iter().map(|segment| segment.cipher.clone()).collect();
    table.set_cipher_names(&names);
    AnyTable::Lines(table)
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

/// Returns the layer of a volume that is mapped. `interrupted`: as [`Lines::interrupted`].
fn layer_of(context: &Context, info: &VolumeInfo, interrupted: Option<(u64, Lock)>) -> Arc<dyn Layer> {
    if info.kind != "LUKS2" {
        return Arc::new(Mapped);
    }
    let at = HeaderOptions {
        image: info.device.clone(),
        header: info.header.clone(),
        luks: Luks::Two,
        policy: HeaderPolicy::default(),
    };
    Arc::new(Reencryptable(Online::new(context.clone(), (at, info.header_identity.clone()), interrupted)))
}

/// Returns the only segment of a volume without a cipher.
fn whole() -> Segment {
    Segment::whole(None, DataUnitSize::SECTOR)
}

pub(crate) fn cannot_use(error: TargetError, path: &Path) -> Error {
    let kind = match error {
        TargetError::BeyondStore { .. } | TargetError::Empty { .. } => ErrorKind::MappingMisfit,
        TargetError::UnitLength { .. } => ErrorKind::UnitMisfit,
        _ => return Error::with_source(ErrorKind::Failed, format!("cannot use {}", path.display()), error),
    };
    Error::unusable(kind, path, error)
}
