//! From what the user names to an unlocked volume: opening, locking, loading the header, asking, unlocking.
//!
//! The device is taken before a passphrase is asked for, so that nobody types one for a volume that is in use.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use inlock_cipher::scrub_stack;
use inlock_engine::store::file::{FileStore, IoMode};
use inlock_engine::{self as engine, Content, CryptMapping, TargetError};
use inlock_volume::plain::Plain;
use inlock_volume::table::{CryptOptions, TableLine, Target};
use inlock_volume::{
    CipherSpec, DataDeviceError, DataUnitSize, FileDevice, HeaderLocation, HeaderPolicy, Segment, Table, UnlockOptions,
    Volume, VolumeKey, plain_iv_repeats,
};

use crate::args::{HeaderArgs, KeyArgs, Kind, Luks, SourceArgs};
use crate::backing;
use crate::control::Facts;
use crate::control::facts::{SegmentFacts, thread_flags};
use crate::control::key_check::KeyCheck;
use crate::daemon::Launcher;
use crate::device::{self, Access, Device};
use crate::exit::{Problem, against_policy, cannot_load, cannot_unlock, say};
use crate::lock::{self, DeviceLock, Mode};
use crate::secret::{self, Ask};
use crate::table::{self, Devices};
use crate::zones;

/// A loaded header and the device it is on.
pub(crate) struct Header {
    pub device: Device,
    pub volume: Volume,
}

impl Header {
    /// Loads the header at `args`, saying what is wrong with it on standard error unless `quiet`.
    pub(crate) fn load(args: &HeaderArgs, quiet: bool) -> anyhow::Result<Self> {
        let device = Device::open(args.header.as_deref().unwrap_or(&args.image), Access::Read)?;
        Self::load_from(device, args.luks, quiet)
    }

    fn load_from(device: Device, luks: Luks, quiet: bool) -> anyhow::Result<Self> {
        let volume = {
            let _lock = lock::header(&device, Mode::Shared)?;
            Volume::load(&FileDevice::new(device.share()?)).map_err(cannot_load(&device.path))?
        };
        let wanted = match luks {
            Luks::Any => volume.version(),
            Luks::One => 1,
            Luks::Two => 2,
        };
        if volume.version() != wanted {
            let found = Some(volume.version());
            return Err(Problem::NotLuks { path: device.path.clone(), found }.into());
        }
        if !quiet {
            for warning in volume.warnings() {
                say(&format!("inlock: warning: {}: {warning}", device.path.display()));
            }
        }
        Ok(Self { device, volume })
    }

    /// Checks that the volume is what the user allows and requires, before anything is asked.
    pub(crate) fn check(&self, policy: &HeaderPolicy) -> anyhow::Result<()> {
        self.volume.check_policy(policy).map_err(cannot_unlock(&self.device.path))
    }

    /// Asks for passphrases until one opens the volume, as often as the options allow.
    pub(crate) fn unlock(
        &self,
        key: &KeyArgs,
        policy: &HeaderPolicy,
        ask: Ask<'_>,
    ) -> anyhow::Result<inlock_volume::Unlocked> {
        let device = FileDevice::new(self.device.share()?);
        let options = UnlockOptions::new().with_keyslot(key.slot).with_policy(policy.clone());
        let tries = if secret::prompts(key, ask) { key.tries } else { 1 };
        for left in (0..tries).rev() {
            let given = secret::read(key, ask, None)?;
            let unlocked = {
                let _lock = lock::header(&self.device, Mode::Shared)?;
                self.volume.unlock(&device, &given.secret, &options).map_err(cannot_unlock(&self.device.path))
            };
            match unlocked {
                Err(error) if left > 0 && matches!(error.downcast_ref(), Some(Problem::NoKey)) => {
                    say(&Problem::NoKey.to_string());
                }
                Err(error) => return Err(error),
                Ok(unlocked) => {
                    for warning in &unlocked.warnings {
                        say(&format!("inlock: warning: {}: {warning}", ask.device.display()));
                    }
                    return Ok(unlocked);
                }
            }
        }
        Err(Problem::NoKey.into())
    }
}

impl Header {
    /// Takes a volume key that was derived elsewhere, once more verified.
    fn verify(&self, key: VolumeKey, policy: &HeaderPolicy) -> anyhow::Result<inlock_volume::Unlocked> {
        let _lock = lock::header(&self.device, Mode::Shared)?;
        let options = UnlockOptions::new().with_policy(policy.clone());
        self.volume.unlock_with_volume_key(key, &options).map_err(cannot_unlock(&self.device.path))
    }
}

/// What was opened: what a name's facts say of it.
#[derive(Clone, Debug)]
pub(crate) struct About {
    /// `LUKS1`, `LUKS2`, `PLAIN`, `RAW`.
    pub kind: String,
    pub device: PathBuf,
    /// Where the header is, if elsewhere.
    pub header: Option<PathBuf>,
    pub uuid: Option<String>,
    /// How a plain volume hashes a passphrase.
    pub hash: Option<String>,
    pub segments: Vec<SegmentFacts>,
    /// Knows the key again after it was wiped.
    pub check: Option<KeyCheck>,
    /// What the header, or the table, says of discards and of dm-crypt's threads.
    pub own_flags: CryptOptions,
    /// The same with what the user says.
    pub flags: CryptOptions,
    /// What the devices are, under whatever name, in the order of the engine's stores.
    pub devices: Vec<String>,
}

/// A volume that is unlocked and taken.
pub(crate) struct Opened {
    /// One, but for a table, which may be on several or on none.
    data: Vec<Device>,
    pub about: About,
    crypt: Crypt,
    /// What the header or the table says, and the user.
    pub flags: CryptOptions,
    locks: Vec<DeviceLock>,
    /// Go past the kernel's cache of a block device.
    direct: bool,
}

/// What is on the devices.
enum Crypt {
    /// `--type raw`
    None,
    Volume(Vec<Segment>, VolumeKey),
    /// With the device of each line.
    Table(Table, Vec<usize>),
}

impl Crypt {
    fn ciphers(&self) -> Vec<CipherSpec> {
        match self {
            Self::None => Vec::new(),
            Self::Volume(segments, _) => segments.iter().filter_map(|segment| segment.cipher).collect(),
            Self::Table(table, _) => table.lines().iter().filter_map(|line| line.segment().cipher).collect(),
        }
    }
}

/// A device for the engine, and the locks that last as long as it is used.
pub(crate) struct Attached {
    pub device: Arc<engine::Device>,
    /// As they were opened at first: a block device is this process's alone as long as it has that descriptor, which another
    /// one, past the cache, does not say.
    data: Vec<Device>,
    _locks: Vec<DeviceLock>,
}

impl Attached {
    /// How the use of the volume has ended: never well where writes may be lost, whatever has been told of it before.
    pub(crate) fn check_writes(&self, ended: anyhow::Result<()>) -> anyhow::Result<()> {
        if !self.device.has_lost_writes() {
            return ended;
        }
        let path = self.data.first().map_or_else(PathBuf::new, |data| data.path.clone());
        let lost = Problem::WritesLost { path };
        Err(match ended {
            Ok(()) => lost.into(),
            Err(cause) => cause.context(lost),
        })
    }
}

/// Where the volume key comes from.
#[derive(Clone, Copy)]
pub(crate) enum Keys<'a> {
    /// The user is asked. `stdin_taken`: standard input carries data.
    Asked { stdin_taken: bool },
    /// The process that started this one asks the user.
    Launcher(&'a Launcher),
}

/// What the derivation and the check of a key may have used of the stack.
const SCRUB: usize = 256 << 10;

/// Opens, takes and unlocks a volume. No part of its key stays behind on the stack.
pub(crate) fn open(args: &SourceArgs, writing: bool, keys: Keys<'_>) -> anyhow::Result<Opened> {
    let opened = unlock(args, writing, keys);
    scrub_stack::<SCRUB>();
    opened
}

#[inline(never)]
fn unlock(args: &SourceArgs, writing: bool, keys: Keys<'_>) -> anyhow::Result<Opened> {
    if let Kind::Table(table) = &args.kind {
        return open_table(table.take()?, args, writing);
    }
    let data = Device::open(&args.image, if writing { Access::Write } else { Access::Read })?.with_zones()?;
    let mut locks = vec![lock::whole_device(&data, if writing { Mode::Exclusive } else { Mode::Shared })?];
    let mut about = About::new(args, &data);
    let crypt = match &args.kind {
        Kind::Raw | Kind::Table(_) => {
            args.policy.check_ciphers([None]).map_err(against_policy(named(&data)))?;
            Crypt::None
        }
        Kind::Plain(plain) => {
            args.policy.check_ciphers([Some(plain.cipher)]).map_err(against_policy(named(&data)))?;
            // Before anything is asked: a size that does not fit is no reason to type a passphrase.
            let mut segments = plain.segments(data.len).with_context(|| data.path.display().to_string())?;
            zones::check(&data, &segments, "--offset, --size and --sector-size say where a plain volume lies")?;
            let key = match keys {
                Keys::Asked { stdin_taken } => plain_key(plain, &args.key, ask(args, &data, stdin_taken))?,
                Keys::Launcher(launcher) => launcher.key()?,
            };
            if plain.size.is_none() {
                segments.iter_mut().for_each(|segment| segment.sectors = open_end(segment, data.len));
            }
            Crypt::Volume(segments, key)
        }
        Kind::Luks(luks) => {
            let device = header_device(args, &data)?;
            let detached = device.identity() != data.identity();
            let location = if detached { HeaderLocation::Detached } else { HeaderLocation::DataDevice };
            if detached && !backing::overlap(&device.path, &data.path) {
                // The header is not formatted meanwhile; what lies on the data device is locked already.
                locks.push(lock::whole_device(&device, Mode::Shared)?);
            }
            let header = Header::load_from(device, *luks, false)?;
            header.check(&args.policy)?;
            header.volume.check_data_device(location, data.len).map_err(|error| unfit(error, &data.path))?;
            check_zones(&header.volume, &data, !detached && writing)?;
            about.kind = format!("LUKS{}", header.volume.version());
            about.uuid = Some(header.volume.uuid().to_owned());
            about.header = detached.then(|| resolved(&header.device.path));
            let unlocked = match keys {
                Keys::Asked { stdin_taken } => header.unlock(&args.key, &args.policy, ask(args, &data, stdin_taken))?,
                Keys::Launcher(launcher) => header.verify(launcher.key()?, &args.policy)?,
            };
            about.own_flags = unlocked.flags.into();
            Crypt::Volume(unlocked.segments, unlocked.key)
        }
    };
    if let Crypt::Volume(segments, key) = &crypt {
        warn_of_repeated_ivs(segments, &data);
        about.segments = segments.iter().map(|segment| SegmentFacts::of(segment, key.len())).collect();
        // A key that no cipher takes is told of when the device is made.
        about.check = KeyCheck::new(segments, key).ok();
    }
    about.flags.add(&about.own_flags);
    Ok(Opened { data: vec![data], flags: about.flags, about, crypt, locks, direct: false })
}

/// The device, as a sentence begins with it.
fn named(device: &Device) -> String {
    format!("Device {}", device.path.display())
}

/// Tells of a volume that is longer than its IVs reach. It opens as it always did: the data are there.
fn warn_of_repeated_ivs(segments: &[Segment], data: &Device) {
    if let Some(cipher) = plain_iv_repeats(segments, data.len) {
        let path = data.path.display();
        say(&format!(
            "inlock: warning: {path}: the IVs of {cipher} have 32 bits and repeat in a volume of this length"
        ));
    }
}

/// The length of a segment that was cut from a device of `len` bytes: none where it goes to the end, with which it then grows.
fn open_end(segment: &Segment, len: u64) -> Option<u64> {
    let end = segment.data_offset.0.checked_add(segment.sectors?)?;
    segment.sectors.filter(|_| end.checked_mul(512) != Some(len))
}

/// Opens and takes what the lines of a table are on.
fn open_table(table: Table, args: &SourceArgs, writing: bool) -> anyhow::Result<Opened> {
    table::check_policy(&table, &args.policy)?;
    let Devices { devices, of_line, locks } = Devices::open(&table, writing)?;
    for (line, device) in table.lines().iter().zip(&of_line).filter(|(line, _)| line.device().is_some()) {
        zones::check(&devices[*device], &[line.segment()], "the lines of a table start and end where zones do")?;
    }
    for (number, device) in devices.iter().enumerate() {
        let lines = table.lines().iter().zip(&of_line).filter(|(line, at)| **at == number && line.device().is_some());
        warn_of_repeated_ivs(&lines.map(|(line, _)| line.segment()).collect::<Vec<_>>(), device);
    }
    let own_flags = table::flags(&table);
    let mut flags = own_flags;
    flags.add(&args.flags);
    let about = About {
        kind: "TABLE".to_owned(),
        device: devices.first().map_or_else(PathBuf::new, |device| resolved(&device.path)),
        header: None,
        uuid: None,
        hash: None,
        segments: facts_of_lines(&table),
        // A key that no cipher takes is told of when the device is made.
        check: KeyCheck::of_table(&table).ok(),
        own_flags,
        flags,
        devices: devices.iter().map(Device::identity).collect(),
    };
    Ok(Opened { data: devices, about, crypt: Crypt::Table(table, of_line), flags, locks, direct: false })
}

fn facts_of_lines(table: &Table) -> Vec<SegmentFacts> {
    let segment = |line: &TableLine| {
        let (key_len, target) = match &line.target {
            Target::Crypt(crypt) => (crypt.key.len(), "crypt"),
            Target::Linear { .. } => (0, "linear"),
            Target::Zero => (0, "zero"),
            Target::Error => (0, "error"),
        };
        let device = line.device().map(|name| resolved(Path::new(name)));
        SegmentFacts { target: target.to_owned(), device, ..SegmentFacts::of(&line.segment(), key_len) }
    };
    table.lines().iter().map(segment).collect()
}

/// What a table makes of a running volume: the target for its device, and what is to be said of it. `devices` are the
/// identities of those that the volume was opened on, in their order; the table lies on no others.
pub(crate) fn reload(table: &Table, running: &engine::Device, facts: &mut Facts) -> anyhow::Result<CryptMapping> {
    let of_line = table::on_devices(table, &facts.devices)?;
    let is_legacy = |line: &TableLine| match &line.target {
        Target::Crypt(crypt) => crypt.cipher.cipher.is_legacy(),
        _ => false,
    };
    if !running.access().read_only && table.lines().iter().any(is_legacy) {
        return Err(Problem::refused(
            "The table has a cipher that is for reading only.",
            "a volume that was opened with --read-only takes it",
        ));
    }
    table::check_discards(table, running.access().allow_discards)?;
    for (number, (line, store)) in table.lines().iter().zip(&of_line).enumerate() {
        let block = running.stores().get(*store).and_then(|store| device::direct_block(store.as_fd()?));
        block.map_or(Ok(()), |block| table::check_blocks(number + 1, line, block))?;
    }
    let segments: Vec<Segment> = table.lines().iter().map(TableLine::segment).collect();
    if running.zone_limits().is_some() && runs(&facts.segments, running.len()) != runs(&facts_of_lines(table), 0) {
        return Err(Problem::refused(
            "The table does not lie on the same zones in the same order, and those who use the volume know its zones.",
            "close the volume and open it with this table",
        ));
    }
    let lines = table.lines().iter().zip(&segments).zip(&of_line);
    let lines: Vec<_> = lines
        .map(|((line, segment), store)| engine::Target { segment, content: content_of(&line.target), store: *store })
        .collect();
    let lens: Vec<u64> = running.stores().iter().map(|store| store.geometry().len).collect();
    let target = CryptMapping::stacked(&lines, &lens)?;
    facts.kind = "TABLE".to_owned();
    (facts.header, facts.uuid, facts.hash) = (None, None, None);
    facts.check = KeyCheck::of_table(table).ok();
    facts.segments = facts_of_lines(table);
    facts.own_flags = table::flags(table);
    facts.table_flags = thread_flags(&facts.own_flags);
    Ok(target)
}

/// Where the sectors of a volume of `len` bytes are stored: for every run its first sector, and its place. Nothing but a run's last
/// line ends it.
fn runs(segments: &[SegmentFacts], len: u64) -> Vec<(u64, u64, u64)> {
    let mut runs: Vec<(u64, u64, u64)> = Vec::new();
    for segment in segments {
        let sectors = segment.sectors.unwrap_or((len / 512).saturating_sub(segment.start));
        match runs.last_mut() {
            Some((_, place, run)) if place.checked_add(*run) == Some(segment.offset) => *run += sectors,
            _ => runs.push((segment.start, segment.offset, sectors)),
        }
    }
    runs
}

impl About {
    fn new(args: &SourceArgs, data: &Device) -> Self {
        let (kind, hash) = match &args.kind {
            Kind::Luks(_) => ("LUKS", None),
            Kind::Plain(plain) => ("PLAIN", Some(plain.hash.to_string())),
            Kind::Raw | Kind::Table(_) => ("RAW", None),
        };
        let device = resolved(&data.path);
        Self {
            kind: kind.to_owned(),
            device,
            header: None,
            uuid: None,
            hash,
            segments: Vec::new(),
            check: None,
            own_flags: CryptOptions::default(),
            flags: args.flags,
            devices: vec![data.identity()],
        }
    }
}

/// The path that names a device from everywhere.
fn resolved(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

fn header_device(args: &SourceArgs, data: &Device) -> anyhow::Result<Device> {
    match &args.header {
        Some(header) => Device::open(header, Access::Read),
        None => {
            let (path, metadata) = (data.path.clone(), data.metadata.clone());
            Ok(Device { path, file: data.share()?, len: data.len, metadata, zones: data.zones })
        }
    }
}

/// Refuses a volume that does not fit the zones below before anybody types a passphrase for it. `rewritten`: so may be its
/// header, which lies on the same device.
fn check_zones(volume: &Volume, data: &Device, rewritten: bool) -> anyhow::Result<()> {
    let Some(zones) = &data.zones else { return Ok(()) };
    if rewritten {
        let hint = "--read-only opens it, and so does --header with a copy of the header in a file";
        zones.check_header(volume.data_offset()).map_err(zones::unfit(&data.path, hint))?;
    }
    let segments = volume.segments().map_err(cannot_unlock(&data.path))?;
    zones::check(data, &segments, "its header knows nothing of these zones: `inlock luksFormat` makes one that does")
}

fn unfit(error: DataDeviceError, path: &Path) -> anyhow::Error {
    let hint = match error {
        DataDeviceError::Detached => "name the data device, and this file with --header",
        _ => "the image was cut off, or its header belongs to another one",
    };
    let message = format!("Device {} cannot be used", path.display());
    anyhow::Error::from(error).context(Problem::Refused { message, hint })
}

/// Asks for the passphrase or key of a volume that another process has opened and taken, and gives its volume key.
pub(crate) fn ask_key(args: &SourceArgs) -> anyhow::Result<VolumeKey> {
    if let Kind::Table(_) = args.kind {
        // Whoever has the table has its keys.
        return Ok(VolumeKey::zeroed(0));
    }
    let data = Device::open(&args.image, Access::Read)?;
    let ask = ask(args, &data, false);
    match &args.kind {
        Kind::Raw | Kind::Table(_) => Ok(VolumeKey::zeroed(0)),
        Kind::Plain(plain) => plain_key(plain, &args.key, ask),
        Kind::Luks(luks) => {
            // Its warnings were told by the other process.
            let header = Header::load_from(header_device(args, &data)?, *luks, true)?;
            header.check(&args.policy)?;
            Ok(header.unlock(&args.key, &args.policy, ask)?.key)
        }
    }
}

/// Whether what the volume lies on has zones that are written in order. Where that cannot be told, opening it tells why.
pub(crate) fn has_zones(args: &SourceArgs) -> bool {
    let is_zoned = |device: anyhow::Result<Device>| device.is_ok_and(|device| zones::is_zoned(&device));
    match &args.kind {
        Kind::Table(table) => table.any_device(is_zoned),
        _ => is_zoned(Device::open(&args.image, Access::Read)),
    }
}

fn ask<'a>(args: &SourceArgs, data: &'a Device, stdin_taken: bool) -> Ask<'a> {
    Ask { device: &data.path, verify: args.key.verify, stdin_taken }
}

fn plain_key(plain: &Plain, key: &KeyArgs, ask: Ask<'_>) -> anyhow::Result<VolumeKey> {
    let given = secret::read(key, ask, Some(plain.key_len as u64))?;
    Ok(match given.from_file {
        true => plain.key_from_file(&given.secret)?,
        false => plain.key_from_passphrase(&given.secret)?,
    })
}

impl Opened {
    /// Has a volume that is on a block device, in blocks of that device, read and written past the kernel's cache: what is above
    /// has a cache of its own, and shall not wait for memory of this one. For front ends that ask on a worker only, whose
    /// buffers are where the device wants them.
    pub(crate) fn past_the_cache(&mut self) {
        let (Crypt::Volume(segments, _), [data]) = (&self.crypt, self.data.as_slice()) else { return };
        let block = u64::from(data.block_len());
        let fits = |segment: &Segment| {
            let offset = segment.data_offset.to_bytes();
            (segment.unit.bytes() as u64).is_multiple_of(block) && offset.is_some_and(|n| n.is_multiple_of(block))
        };
        self.direct = data.is_block() && segments.iter().all(|s| s.cipher.is_some() && fits(s));
    }

    /// The engine's device, read-only where the cipher is only for old volumes. The volume key is wiped when this returns; the cipher
    /// has its own schedule of it.
    pub(crate) fn attach(self, mode: IoMode, access: engine::Access) -> anyhow::Result<Attached> {
        let attached = self.connect(mode, access);
        scrub_stack::<SCRUB>();
        attached
    }

    #[inline(never)]
    fn connect(self, mode: IoMode, access: engine::Access) -> anyhow::Result<Attached> {
        let legacy = self.crypt.ciphers().into_iter().find(|spec| spec.cipher.is_legacy());
        if let Some(spec) = legacy.filter(|_| !access.read_only) {
            let path = self.about.device.display();
            say(&format!("inlock: warning: {path}: {spec} is for old volumes only: it is opened read-only"));
        }
        let access = engine::Access { read_only: access.read_only || legacy.is_some(), ..access };
        let mut stores: Vec<Arc<dyn engine::BackingStore>> = Vec::with_capacity(self.data.len());
        for data in &self.data {
            if data.zones.is_some() {
                stores.push(zones::store(data, access.read_only, mode)?);
                continue;
            }
            let file = if self.direct { data.reopen_direct(!access.read_only)? } else { data.share()? };
            let store = FileStore::new(file, access.read_only, mode);
            stores.push(Arc::new(store.with_context(|| format!("cannot use {}", data.path.display()))?));
        }
        let lines: Vec<_> = match &self.crypt {
            Crypt::None => return self.finish(engine::Device::raw(stores.remove(0), access)),
            Crypt::Volume(segments, key) => {
                let content = |s: &Segment| if s.cipher.is_some() { Content::Crypt(key) } else { Content::Linear };
                segments.iter().map(|segment| (*segment, content(segment), 0)).collect()
            }
            Crypt::Table(table, of_line) => {
                let lines = table.lines().iter().zip(of_line);
                lines.map(|(line, store)| (line.segment(), content_of(&line.target), *store)).collect()
            }
        };
        let lines: Vec<_> = lines
            .iter()
            .map(|(segment, content, store)| engine::Target { segment, content: *content, store: *store })
            .collect();
        let device = engine::Device::stacked(&lines, stores, access)
            .map_err(|error| cannot_attach(error, &self.about.device))?;
        drop(lines);
        self.finish(device)
    }

    fn finish(self, device: engine::Device) -> anyhow::Result<Attached> {
        if inlock_cipher::memory_lock_failed() {
            say("inlock: warning: keys may be written to swap: their memory cannot be locked (see ulimit -l)");
        }
        Ok(Attached { device: Arc::new(device), data: self.data, _locks: self.locks })
    }

    /// Those of its devices that are files.
    pub(crate) fn files(&self) -> Vec<String> {
        self.data.iter().filter(|data| !data.is_block()).map(|data| data.path.display().to_string()).collect()
    }

    /// The table that dm-crypt would get.
    pub(crate) fn table(self) -> Table {
        let (segments, key) = match self.crypt {
            Crypt::Table(table, _) => return table,
            Crypt::Volume(segments, key) => (segments, key),
            Crypt::None => (vec![whole()], VolumeKey::zeroed(0)),
        };
        let data = &self.data[0];
        Table::of_volume(&segments, &key, self.flags, &self.about.device.to_string_lossy(), data.len)
    }
}

fn content_of(target: &Target) -> Content<'_> {
    match target {
        Target::Crypt(crypt) => Content::Crypt(&crypt.key),
        Target::Linear { .. } => Content::Linear,
        Target::Zero => Content::Zero,
        Target::Error => Content::Error,
    }
}

/// The one segment of a volume without a cipher.
pub(crate) fn whole() -> Segment {
    Segment::whole(None, DataUnitSize::SECTOR)
}

fn cannot_attach(error: TargetError, path: &Path) -> anyhow::Error {
    let hint = match error {
        TargetError::BeyondStore { .. } | TargetError::Empty { .. } => {
            "the image was cut off, or its header belongs to another one"
        }
        TargetError::UnitLength { .. } => {
            "the length of an image must be a multiple of its sector size: truncate -s SIZE"
        }
        _ => return anyhow::Error::from(error).context(format!("cannot use {}", path.display())),
    };
    anyhow::Error::from(error)
        .context(Problem::Refused { message: format!("Device {} cannot be used", path.display()), hint })
}
