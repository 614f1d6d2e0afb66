//! Opening a volume: device, lock, header, policy, key, in this order.
//!
//! The device is locked before a passphrase is asked for, so that a volume in use is refused first.

use crate::error::{Error, ErrorKind, Result, ZoneHint, against_policy};
use crate::host::Context;
use std::path::{Path, PathBuf};

use inlock_cipher::scrub_stack;
use inlock_volume::luks2::reencryption::PieceState;
use inlock_volume::plain::{Plain, PlainError};
use inlock_volume::table::{AnyTable, IntegrityTable, SealedLine, VerityTable};
use inlock_volume::{DataUnitSize, HeaderLocation, Segment, Table, VolumeKey, plain_iv_repeats};

use super::backing;
use super::contents::{Authenticated, Contents, Encrypted, Lines, Raw};
use super::device::{self, Device, OpenMode};
use super::freshness::FreshnessCheck;
use super::header::{Header, check_place, detached_header};
use super::holes;
use super::info::{SegmentInfo, VolumeInfo, resolved};
use super::integrity::{IntegrityDevices, IntegrityOpening};
use super::integrity_options::IntegrityOptions;
use super::integrity_table;
use super::key_check::KeyCheck;
use super::keyring::check_links;
use super::lock::{self, DeviceLock, Mode, VolumeName};
use super::reencryption::interrupted;
use super::remote;
use super::removed_integrity;
use super::secret::{self, Ask, SCRUB};
use super::source::{KeyOptions, Luks, NoJournal, OpenOptions, VolumeType};
use super::table::{self, Devices};
use super::unlocked::UnlockedVolume;
use super::verity::{VerityDevices, VerityOptions};
use super::verity_table::VerityStack;
use super::zones;
use crate::range::Range;

/// Another process that asks the user for the key.
pub trait KeyProvider {
    /// Returns the volume key.
    fn key(&self) -> Result<VolumeKey>;
}

/// Opens, locks and unlocks a volume. Wipes the stack memory that deriving and checking the key has used.
///
/// `writing`: for one writer; otherwise the volume is read-only, and may have other readers. With `provider`, the volume
/// key comes from another process, and is verified again.
pub fn open(
    context: &Context,
    args: &OpenOptions,
    writing: bool,
    provider: Option<&dyn KeyProvider>,
) -> Result<UnlockedVolume> {
    let table = match &args.volume_type {
        VolumeType::Table(table) => Some(table.take()?),
        _ => None,
    };
    let read_only = writing && has_read_only_device(context, args, table.as_ref());
    let writing = writing && !read_only;
    let opened = match &args.volume_type {
        VolumeType::Table(_) => match table.ok_or_else(table::used_before)? {
            AnyTable::Lines(table) => open_table(context, table, args, writing),
            AnyTable::Integrity(table) => open_integrity_table(context, *table, args, writing),
            AnyTable::Verity(table) => open_verity_table(context, *table, args),
        },
        VolumeType::Integrity(integrity) => open_integrity(context, integrity, args, writing),
        VolumeType::Verity(verity) => open_verity(context, verity, args),
        _ => unlock(context, args, writing, provider),
    };
    scrub_stack::<SCRUB>();
    let mut opened = opened?;
    if !writing {
        // Its devices are open for reading only.
        opened.set_read_only();
    }
    if args.zero_holes {
        opened.read_zero_holes()?;
    }
    Ok(opened)
}

/// Whether a device of a volume that can be written is read-only. Warns then.
fn has_read_only_device(context: &Context, args: &OpenOptions, table: Option<&AnyTable>) -> bool {
    let devices: Vec<PathBuf> = match (&args.volume_type, table) {
        (VolumeType::Verity(_), _) | (_, Some(AnyTable::Verity(_))) => Vec::new(),
        (_, Some(table)) => table.devices().into_iter().map(table::path_of).collect(),
        (VolumeType::Integrity(integrity), None) => {
            std::iter::once(&args.image).chain(&integrity.data_device).cloned().collect()
        }
        (_, None) => vec![args.image.clone()],
    };
    let read_only = devices.iter().find(|path| device::is_read_only(path));
    if let Some(path) = read_only {
        context.warn(format_args!("{}: the device is read-only; opened read-only", path.display()));
    }
    read_only.is_some()
}

/// Returns how to open and to lock the device.
fn modes(writing: bool, shared: bool) -> (OpenMode, Mode) {
    match (writing, shared) {
        (false, _) => (OpenMode::Read, Mode::Shared),
        (true, false) => (OpenMode::Write, Mode::Exclusive),
        // Without the exclusive claim on a block device, too.
        (true, true) => (OpenMode::Header, Mode::Shared),
    }
}

#[inline(never)]
fn unlock(
    context: &Context,
    args: &OpenOptions,
    writing: bool,
    provider: Option<&dyn KeyProvider>,
) -> Result<UnlockedVolume> {
    let (open_mode, mode) = modes(writing, args.shared);
    let data = Device::open(context, &args.image, open_mode)?.with_zones()?;
    if args.zero_holes {
        // Before a passphrase is asked for.
        holes::check(&data)?;
    }
    let mut locks = vec![lock::storage(&data, mode)?];
    let mut info = VolumeInfo::new(args, &data);
    let contents: Box<dyn Contents> = match &args.volume_type {
        VolumeType::Raw | VolumeType::Table(_) | VolumeType::Integrity(_) | VolumeType::Verity(_) => {
            let whole = Segment::whole(None, DataUnitSize::SECTOR);
            args.policy.check_segments(&[whole]).map_err(against_policy(named(&data)))?;
            Box::new(Raw)
        }
        VolumeType::Plain(plain) => {
            // Before a passphrase is asked for.
            let mut segments = plain.segments(data.len).map_err(|error| unfit_plain(error, &data.path))?;
            args.policy.check_segments(&segments).map_err(against_policy(named(&data)))?;
            args.policy.check_key_len(plain.key_len).map_err(against_policy(named(&data)))?;
            if args.shared {
                locks.push(lock_part(&data, &segments, writing)?);
            }
            zones::check(&data, &segments, ZoneHint::Plain)?;
            check_no_journal(args, &data)?;
            let key = match provider {
                None => plain_key(plain, &args.key, ask(args, &data))?,
                Some(provider) => provider.key()?,
            };
            if plain.size.is_none() {
                segments.iter_mut().for_each(|segment| segment.sectors = open_end(segment, data.len));
            }
            warn_of_repeated_ivs(&segments, &data);
            Box::new(Encrypted::new(segments, key, Vec::new()))
        }
        VolumeType::Luks(luks) => unlock_luks(*luks, args, writing, provider, &data, &mut locks, &mut info)?,
    };
    contents.describe(&mut info);
    info.flags.add(&info.own_flags);
    forbid_discards(context, &*contents, &mut info);
    Ok(UnlockedVolume::new(context, vec![data], info, contents, locks))
}

/// Locks the part of a device that a volume has, against other volumes that share the device.
fn lock_part(data: &Device, segments: &[Segment], writing: bool) -> Result<DeviceLock> {
    let bytes = |sectors: u64| sectors.saturating_mul(512);
    let ends = segments.iter().map(|segment| segment.sectors.map(|len| segment.data_offset.0.saturating_add(len)));
    let end = ends.map(|end| end.map_or(u64::MAX, bytes)).max().unwrap_or(u64::MAX);
    let offset = segments.iter().map(|segment| bytes(segment.data_offset.0)).min().unwrap_or(0);
    lock::part(data, Range { offset, len: Some(end.saturating_sub(offset)) }, modes(writing, false).1)
}

/// A volume whose blocks an AEAD seals has no discards.
fn forbid_discards(context: &Context, contents: &dyn Contents, info: &mut VolumeInfo) {
    if !contents.has_discards() && std::mem::take(&mut info.flags.allow_discards) {
        context.warn(format_args!("{}: a volume with integrity protection has no discards", info.device.display()));
    }
}

/// Refuses `--resume-wipe` of a volume without integrity protection, and warns of `--integrity-no-journal`.
fn check_no_journal(args: &OpenOptions, data: &Device) -> Result<()> {
    match args.no_journal {
        None => {}
        Some(NoJournal::ResumeWipe) => {
            return Err(Error::new(
                ErrorKind::NeedsIntegrity,
                "Option --resume-wipe needs a LUKS2 volume with integrity protection.",
            ));
        }
        Some(NoJournal::Option) => data.context().warn(format_args!(
            "{}: the volume has no integrity protection, and --integrity-no-journal has no effect",
            data.path.display()
        )),
    }
    Ok(())
}

/// Unlocks a LUKS volume.
fn unlock_luks(
    luks: Luks,
    args: &OpenOptions,
    writing: bool,
    provider: Option<&dyn KeyProvider>,
    data: &Device,
    locks: &mut Vec<DeviceLock>,
    info: &mut VolumeInfo,
) -> Result<Box<dyn Contents>> {
    let device = detached_header(args, data)?;
    let detached = device.is_some();
    let device = device.unwrap_or_else(|| data.duplicate());
    let location = if detached { HeaderLocation::Detached } else { HeaderLocation::DataDevice };
    if detached && !backing::overlap(&device.path, &data.path) {
        // Prevents replacing the header. The lock of the data device includes a header on it.
        locks.push(lock::storage(&device, Mode::Shared)?);
    }
    let header = Header::load_from(device, luks, false).map_err(Error::may_be_plain)?;
    locks.push(lock::volume(data, &VolumeName::of(&header.volume), modes(writing, false).1)?);
    info.kind = header.kind();
    info.uuid = Some(header.volume.uuid().to_owned());
    info.header = detached.then(|| resolved(header.path()));
    info.header_identity = Some(header.device.identity());
    if interrupted::state_of(&header)?.is_some() {
        return open_interrupted(header, args, writing, provider, data, info);
    }
    header.check(&args.policy)?;
    check_place(&header, location, data)?;
    zones::check_volume(&header.volume, data, !detached && writing)?;
    removed_integrity::check(&header.volume, data, &args.policy)?;
    let is_authenticated = header.volume.authenticated().is_ok_and(|segment| segment.is_some());
    if is_authenticated && data.zones.is_some() {
        return Err(Error::new(
            ErrorKind::IntegrityOnZones { is_new: false },
            format!("Device {} is zoned, and its volume has integrity protection.", data.path.display()),
        ));
    }
    if is_authenticated && args.zero_holes {
        return Err(holes::no_holes(&data.path));
    }
    if !is_authenticated && args.freshness.is_some() {
        return Err(Error::new(
            ErrorKind::NeedsIntegrity,
            "Option --freshness needs a LUKS2 volume with integrity protection.",
        ));
    }
    if !is_authenticated {
        check_no_journal(args, data)?;
    }
    check_links(&args.links, &info.kind)?;
    let unlocked = match provider {
        None => header.unlock(&args.key, &args.policy, ask(args, data))?,
        Some(provider) => header.verify(provider.key()?, &args.policy)?,
    };
    info.own_flags = if args.persistent { args.flags } else { unlocked.flags.into() };
    let cipher_names = header.volume.cipher_names();
    Ok(match unlocked.authenticated {
        None => {
            warn_of_repeated_ivs(&unlocked.segments, data);
            Box::new(Encrypted::new(unlocked.segments, unlocked.key, cipher_names))
        }
        Some(segment) => {
            let no_journal = args.no_journal.is_some() || unlocked.flags.no_journal && !args.persistent;
            let freshness = args.freshness.as_ref().map(|args| FreshnessCheck::new(args.clone(), &header, luks));
            let opening = IntegrityOpening::of_segment(&segment, no_journal, args.journal, freshness);
            Box::new(Authenticated { segment, key: unlocked.key, opening })
        }
    })
}

/// Unlocks a volume whose re-encryption was interrupted. Recovers the zone that was being written, if there is one.
fn open_interrupted(
    mut header: Header,
    args: &OpenOptions,
    writing: bool,
    provider: Option<&dyn KeyProvider>,
    data: &Device,
    info: &mut VolumeInfo,
) -> Result<Box<dyn Contents>> {
    check_no_journal(args, data)?;
    if args.freshness.is_some() {
        return Err(Error::new(
            ErrorKind::NeedsIntegrity,
            "Option --freshness needs a LUKS2 volume with integrity protection.",
        ));
    }
    let lock = lock::reencryption(data, header.volume.uuid(), modes(writing, false).1)?;
    header.volume = Header::load_again(&header.device, Luks::Two)?;
    if interrupted::is_hot(&header)? && !writing {
        return Err(interrupted::needs_recovery(&header));
    }
    let (_, keys) = match provider {
        None => header.unlock_reencryption(&args.key, &args.policy, ask(args, data))?,
        Some(provider) => header.confirm_reencryption(&provider.key()?, &args.policy)?,
    };
    if interrupted::is_hot(&header)? {
        if info.header.is_some() {
            header.device = Device::open(data.context(), header.path(), OpenMode::Header)?;
        }
        interrupted::recover(data, &mut header, &keys, args.zero_holes)?;
    }
    let Some(state) = interrupted::state_of(&header)? else {
        // The recovered zone was the last one.
        let key = keys.of(PieceState::New).map(|key| VolumeKey::new(key.as_bytes()));
        let unlocked = key.map(|key| header.verify(key, &args.policy)).and_then(Result::ok);
        let unlocked = unlocked.ok_or_else(|| interrupted::has_ended(&header))?;
        return Ok(Box::new(Encrypted::new(unlocked.segments, unlocked.key, header.volume.cipher_names())));
    };
    let lines = Lines::of_reencryption(&state, &keys, lock, args.flags, data);
    info.segments = SegmentInfo::of_table(&lines.table);
    let [old, new] = state.sides(data.len);
    let sides = [(&old, keys.of(PieceState::Old)), (&new, keys.of(PieceState::New))];
    info.check = KeyCheck::of_sides(sides).ok();
    Ok(Box::new(lines))
}

/// Opens and locks the devices of a table.
fn open_table(context: &Context, table: Table, args: &OpenOptions, writing: bool) -> Result<UnlockedVolume> {
    table::check_policy(&table, &args.policy)?;
    let Devices { devices, of_line, locks } = Devices::open(context, &table, writing)?;
    for (line, device) in table.lines().iter().zip(&of_line).filter(|(line, _)| line.device().is_some()) {
        zones::check(&devices[*device], &[line.segment()], ZoneHint::Table)?;
    }
    for (number, device) in devices.iter().enumerate() {
        let lines = table.lines().iter().zip(&of_line).filter(|(line, at)| **at == number && line.device().is_some());
        warn_of_repeated_ivs(&lines.map(|(line, _)| line.segment()).collect::<Vec<_>>(), device);
    }
    let own_flags = table::flags(&table);
    let mut flags = own_flags;
    flags.add(&args.flags);
    let info = VolumeInfo {
        kind: "TABLE".to_owned(),
        device: devices.first().map_or_else(PathBuf::new, |device| resolved(&device.path)),
        header: None,
        header_identity: None,
        uuid: None,
        hash: None,
        segments: SegmentInfo::of_table(&table),
        // A key that the cipher refuses is reported when the engine's device is made.
        check: KeyCheck::of_table(&table).ok(),
        own_flags,
        flags,
        devices: devices.iter().map(Device::identity).collect(),
    };
    Ok(UnlockedVolume::new(context, devices, info, Box::new(Lines { table, of_line, interrupted: None }), locks))
}

/// Opens and locks the devices of a table, and checks the superblock against it.
fn open_integrity_table(
    context: &Context,
    table: IntegrityTable,
    args: &OpenOptions,
    writing: bool,
) -> Result<UnlockedVolume> {
    table::check_integrity_policy(&table, &args.policy)?;
    let IntegrityTable { sectors, integrity: line, sealed, .. } = table;
    let mode = if writing { OpenMode::Write } else { OpenMode::Read };
    let device = table::open_device(context, &line.device, mode)?;
    let path = resolved(&device.path);
    let (metadata, data) = match &line.options.meta_device {
        Some(meta) => (table::open_device(context, meta, mode)?, Some(device)),
        None => (device, None),
    };
    let IntegrityDevices { metadata, data, locks } = IntegrityDevices::lock(metadata, data, mode)?;
    let opening = integrity_table::opening((&line, args.journal), sealed.is_some(), sectors, &metadata, data.as_ref())?;
    let flags = match &sealed {
        Some(sealed) => sealed.options,
        None => integrity_table::allow_discards(line.options.allow_discards),
    };
    let mut info = VolumeInfo {
        kind: "TABLE".to_owned(),
        device: path,
        header: data.is_some().then(|| resolved(&metadata.path)),
        header_identity: None,
        uuid: None,
        hash: None,
        segments: Vec::new(),
        check: None,
        own_flags: flags,
        flags,
        // No other table may use a device without its tags.
        devices: Vec::new(),
    };
    let contents: Box<dyn Contents> = match sealed {
        None => Box::new(opening),
        Some(SealedLine { segment, key, .. }) => Box::new(Authenticated { segment, key, opening }),
    };
    contents.describe(&mut info);
    info.flags.add(&args.flags);
    forbid_discards(context, &*contents, &mut info);
    Ok(UnlockedVolume::new(context, std::iter::once(metadata).chain(data).collect(), info, contents, locks))
}

/// Opens and locks the devices of a dm-integrity volume, and checks its superblock.
fn open_integrity(
    context: &Context,
    integrity: &IntegrityOptions,
    args: &OpenOptions,
    writing: bool,
) -> Result<UnlockedVolume> {
    let mode = if writing { OpenMode::Write } else { OpenMode::Read };
    let devices = IntegrityDevices::open(context, &args.image, integrity.data_device.as_deref(), mode)?;
    let mut info = VolumeInfo::new(args, &devices.metadata);
    // No table may use an underlying device without its tags.
    info.devices.clear();
    info.header = devices.data.is_some().then(|| info.device.clone());
    if let Some(data) = &devices.data {
        info.device = resolved(&data.path);
    }
    info.flags.allow_discards = integrity.allow_discards;
    let (options, every) = (integrity.load()?, integrity.every);
    let opening =
        IntegrityOpening { options, every, start: 0, freshness: None, line: None, direct: false, is_of_header: false };
    let data = std::iter::once(devices.metadata).chain(devices.data).collect();
    Ok(UnlockedVolume::new(context, data, info, Box::new(opening), devices.locks))
}

/// Opens and locks the devices of a dm-verity device, and checks its superblock. Its root hash is checked when it is
/// connected.
fn open_verity(context: &Context, verity: &VerityOptions, args: &OpenOptions) -> Result<UnlockedVolume> {
    let devices = VerityDevices::open(context, &args.image, &verity.hash_device, verity.fec.as_ref(), OpenMode::Read)?;
    let mut info = VolumeInfo::new(args, &devices.data);
    info.header = Some(resolved(&verity.hash_device));
    let opening = verity.load(&devices)?;
    info.uuid.clone_from(&opening.uuid);
    info.hash = Some(opening.hash_name.clone());
    let data = std::iter::once(devices.data).chain(devices.hash).collect();
    Ok(UnlockedVolume::new(context, data, info, Box::new(opening), devices.locks))
}

/// Opens and locks the devices of a table with a hash tree. The root hash is checked when it is connected.
fn open_verity_table(context: &Context, table: VerityTable, args: &OpenOptions) -> Result<UnlockedVolume> {
    table::check_verity_policy(&table, &args.policy)?;
    let hash = table.verity.hash.name().to_owned();
    let (stack, devices, locks) = VerityStack::open(context, table)?;
    let mut info = VolumeInfo {
        kind: "TABLE".to_owned(),
        device: devices.first().map_or_else(PathBuf::new, |device| resolved(&device.path)),
        header: None,
        header_identity: None,
        uuid: None,
        hash: Some(hash),
        segments: stack.above.as_ref().map(SegmentInfo::of_table).unwrap_or_default(),
        check: None,
        own_flags: Default::default(),
        flags: args.flags,
        // No other table may use a device without its hash tree.
        devices: Vec::new(),
    };
    if std::mem::take(&mut info.flags.allow_discards) {
        context.warn(format_args!("{}: a device with a hash tree has no discards", info.device.display()));
    }
    Ok(UnlockedVolume::new(context, devices, info, Box::new(stack), locks))
}

/// Asks for the passphrase or key of a volume that another process has opened and locked, and returns its volume key.
pub fn ask_key(context: &Context, args: &OpenOptions) -> Result<VolumeKey> {
    if let VolumeType::Table(_) = args.volume_type {
        // A table has its keys.
        return Ok(VolumeKey::zeroed(0));
    }
    let data = Device::open(context, &args.image, OpenMode::Read)?;
    let ask = ask(args, &data);
    match &args.volume_type {
        VolumeType::Raw | VolumeType::Table(_) | VolumeType::Integrity(_) | VolumeType::Verity(_) => {
            Ok(VolumeKey::zeroed(0))
        }
        VolumeType::Plain(plain) => plain_key(plain, &args.key, ask),
        VolumeType::Luks(luks) => {
            // The other process has printed the warnings.
            let device = detached_header(args, &data)?.unwrap_or_else(|| data.duplicate());
            let header = Header::load_from(device, *luks, true).map_err(Error::may_be_plain)?;
            if interrupted::state_of(&header)?.is_some() {
                return Ok(header.unlock_reencryption(&args.key, &args.policy, ask)?.1.joined());
            }
            header.check(&args.policy)?;
            Ok(header.unlock(&args.key, &args.policy, ask)?.key)
        }
    }
}

/// Whether a device of the volume has zones that are written in order. An unusable device has none; opening it fails.
pub fn has_zones(context: &Context, args: &OpenOptions) -> bool {
    let is_zoned = |device: Result<Device>| device.is_ok_and(|device| zones::is_zoned(&device));
    match &args.volume_type {
        VolumeType::Table(table) => table.has_device(context, is_zoned),
        _ if remote::uri_of(&args.image).is_some() => false,
        _ => is_zoned(Device::open(context, &args.image, OpenMode::Read)),
    }
}

fn ask<'a>(args: &OpenOptions, data: &'a Device) -> Ask<'a> {
    Ask { context: data.context(), device: &data.path, prompt: None, verify: args.key.verify }
}

fn plain_key(plain: &Plain, key: &KeyOptions, ask: Ask<'_>) -> Result<VolumeKey> {
    let given = secret::read(key, ask, Some(plain.key_len as u64))?;
    Ok(match given.from_file {
        true => plain.key_from_file(&given.secret)?,
        false => plain.key_from_passphrase(&given.secret)?,
    })
}

/// Returns the subject of a sentence about the device.
fn named(device: &Device) -> String {
    format!("Device {}", device.path.display())
}

/// Warns of a volume that is longer than its IVs reach. It is opened nevertheless.
fn warn_of_repeated_ivs(segments: &[Segment], data: &Device) {
    if let Some(cipher) = plain_iv_repeats(segments, data.len) {
        let path = data.path.display();
        data.context()
            .warn(format_args!("{path}: the IVs of {cipher} have 32 bits and repeat in a volume of this length"));
    }
}

/// Returns the length of a segment that was cut from a device of `len` bytes: `None` if it ends with the device, so
/// that it grows with it.
fn open_end(segment: &Segment, len: u64) -> Option<u64> {
    let end = segment.data_offset.0.checked_add(segment.sectors?)?;
    segment.sectors.filter(|_| end.checked_mul(512) != Some(len))
}

fn unfit_plain(error: PlainError, path: &Path) -> Error {
    Error::unusable(ErrorKind::PlainMisfit, path, error)
}
