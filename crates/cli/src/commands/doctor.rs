//! `doctor`: examines a LUKS header, searches for lost ones, and says what to do. Writes nothing.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use inlock_volume::{
    FoundHeader, HeaderBackup, HeaderDevice, HeaderLocation, KdfLimits, KeyslotState, LoadError, LoadWarning, Repair,
    RepairPlan, SignatureKind, UnlockError, Volume, WindowDevice, find_headers, find_signatures,
};
use serde::Serialize;

use crate::args::action::{Action, IMAGE, Prepared};
use crate::host::context;
use crate::ui::print::print;
use crate::ui::progress::{Progress, Show};
use inlock_open::device::{Device, OpenMode};
use inlock_open::header::{ENCRYPTED_CLONE, is_encrypted_clone};
use inlock_open::lock::{self, Mode};
use inlock_open::path_text;
use inlock_open::remote::DeviceHeader;
use inlock_open::removed_integrity::{self, Start};
use std::path::PathBuf;

pub(crate) const ACTION: Action = Action {
    name: "doctor",
    aliases: &[],
    arguments: &[IMAGE],
    options: &[&["header", "json", "scan", "progress-json", "progress-frequency"]],
    about: "examine a LUKS header, and search for lost ones; exits with 0, 10, 11 or 12",
    prepare: |options, mut arguments| {
        let show = Show::from_options(options.batch_mode, options.progress_json, options.progress_frequency);
        let args = DoctorArgs {
            image: arguments.path()?,
            header: options.header,
            json: options.json,
            scan: options.scan,
            show,
        };
        Ok(Prepared::with_status(move || run(&args)))
    },
};

struct DoctorArgs {
    image: PathBuf,
    header: Option<PathBuf>,
    json: bool,
    scan: bool,
    show: Show,
}

/// Maximum number of found headers in a report.
const MAX_FOUND: usize = 256;

/// The result, and the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Health {
    /// The header is whole, and a keyslot can work.
    Healthy = 0,
    /// The volume opens, but something is damaged.
    Damaged = 10,
    /// The volume does not open as it is, but there is a header.
    Unusable = 11,
    /// There is no header.
    Nothing = 12,
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(with = "inlock_open::path_text")]
    device: PathBuf,
    length: u64,
    health: Health,
    header: Option<HeaderReport>,
    /// Other formats that the device has signatures of.
    signatures: Vec<OtherFormat>,
    /// Why there is no header at the start.
    error: Option<String>,
    found: Vec<Found>,
    advice: Vec<Advice>,
}

#[derive(Debug, Serialize)]
struct OtherFormat {
    format: &'static str,
    offset: u64,
}

#[derive(Debug, Serialize)]
struct HeaderReport {
    version: u32,
    uuid: String,
    label: Option<String>,
    data_offset: u64,
    copies: Vec<CopyReport>,
    keyslots: Vec<Keyslot>,
    problems: Vec<String>,
}

#[derive(Debug, Serialize)]
struct CopyReport {
    copy: &'static str,
    is_whole: bool,
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Keyslot {
    number: u32,
    can_work: bool,
    pub(super) state: String,
}

/// A header that does not begin at the start of the device.
#[derive(Debug, Serialize)]
struct Found {
    offset: u64,
    what: String,
    version: Option<u32>,
    uuid: Option<String>,
    /// Length of the header with its keyslots, which a file for it needs.
    header_length: Option<u64>,
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
struct Advice {
    text: String,
    command: Option<String>,
}

fn run(args: &DoctorArgs) -> anyhow::Result<u8> {
    let device = Device::open(context(), args.header.as_deref().unwrap_or(&args.image), OpenMode::Read)?;
    let data = args.header.as_ref().map(|_| Device::open(context(), &args.image, OpenMode::Read)).transpose()?;
    let data = data.as_ref().unwrap_or(&device);
    let header = device.header()?;
    let location = if args.header.is_some() { HeaderLocation::Detached } else { HeaderLocation::DataDevice };
    let report = {
        let _lock = lock::header(&device, Mode::Shared)?;
        examine(&device, &header, location, data)?
    };
    let mut report = report;
    if args.scan || report.health >= Health::Unusable {
        search(args, &device, &header, &mut report)?;
    }
    if args.json {
        print(format_args!("{}\n", serde_json::to_string_pretty(&report)?))?;
    } else {
        print(text_of(&report))?;
    }
    Ok(report.health as u8)
}

/// Examines the header at the start of the device.
fn examine(device: &Device, header: &DeviceHeader, location: HeaderLocation, data: &Device) -> anyhow::Result<Report> {
    let signatures = find_signatures(header)?;
    let mut report = Report {
        device: device.path.clone(),
        length: device.len,
        health: Health::Healthy,
        header: None,
        signatures: signatures.iter().map(|one| OtherFormat { format: one.name, offset: one.offset }).collect(),
        error: None,
        found: Vec::new(),
        advice: Vec::new(),
    };
    let path = quoted(&device.path);
    let plan = RepairPlan::new(header).ok();
    let repairs = plan.as_ref().map(|plan| plan.repairs().to_vec()).unwrap_or_default();
    match Volume::load(header) {
        Ok(volume) => of_volume(&volume, header, location, data, &mut report)?,
        Err(LoadError::NotLuks) if is_encrypted_clone(header) => {
            report.health = Health::Unusable;
            report.error = Some(format!("the device is {ENCRYPTED_CLONE}"));
            report.advise(
                "Open it through librbd, or flatten it with the passphrases of the clone and its parent.",
                None,
            );
        }
        Err(error) => {
            report.health = if matches!(error, LoadError::NotLuks) { Health::Nothing } else { Health::Unusable };
            report.error = Some(chain(&error));
            if let Some(file) = signatures.iter().find(|one| one.kind == SignatureKind::File) {
                report.advise(
                    format!("The device is a file of format {}: convert it to a raw image first.", file.name),
                    convert_command(file.name, &path),
                );
            }
            if repairs.is_empty() && report.health == Health::Unusable {
                report.advise(
                    "Restore the header from a backup.",
                    Some(format!("inlock luksHeaderRestore {path} --header-backup-file BACKUP")),
                );
            }
        }
    }
    if let Some(plan) = plan.filter(|_| !repairs.is_empty()) {
        report.advise_repair(&plan, &path);
        if report.header.is_none() {
            report.advise_lost_keyslots(&plan, header)?;
        }
    }
    if report.health == Health::Healthy {
        report.advise(
            "Keep a backup of the header on another disk.",
            Some(format!("inlock luksHeaderBackup {path} --header-backup-file BACKUP")),
        );
    }
    Ok(report)
}

fn of_volume(
    volume: &Volume,
    header: &DeviceHeader,
    location: HeaderLocation,
    data: &Device,
    report: &mut Report,
) -> anyhow::Result<()> {
    let keyslots: Vec<Keyslot> = volume
        .report_keyslots(header, &KdfLimits::default())?
        .iter()
        .map(|slot| keyslot(slot.number, &slot.state))
        .collect();
    let mut problems: Vec<String> = volume.warnings().iter().map(LoadWarning::to_string).collect();
    if let Err(error) = volume.check_policy(&Default::default()) {
        problems.push(chain(&error));
        report.health = Health::Unusable;
        if matches!(error, UnlockError::Requirement(_)) {
            report.advise("Finish or undo the operation in the header with cryptsetup.", None);
        }
    }
    if let Err(error) = volume.check_data_device(location, data.len) {
        problems.push(error.to_string());
        report.health = Health::Unusable;
        match volume.data_offset() {
            0 => report.advise("This is a detached header: name the device with the data as well.", None),
            _ => report.advise("The device is shorter than the volume. Compare its length with the original's.", None),
        }
    }
    let unit = volume.segments().ok().and_then(|all| all.first().map(|one| one.unit.bytes())).unwrap_or(512) as u64;
    if data.len > volume.data_offset() && !(data.len - volume.data_offset()).is_multiple_of(unit) {
        problems.push(format!("the length of the data is no multiple of {unit} bytes"));
        report
            .advise("The image was cut off, or something was appended. Compare its length with the original's.", None);
    }
    let path = quoted(&report.device);
    match removed_integrity::found(volume, data)? {
        None => {}
        Some(Start::Unreadable(offset)) => problems.push(removed_integrity::unreadable(offset)),
        Some(Start::Superblock(offset)) => {
            problems.push(format!(
                "a superblock of dm-integrity is at byte {offset}, but the header has no integrity protection"
            ));
            report.health = Health::Unusable;
            report.advise(
                "The header may have been changed: restore it from a backup. If the volume was formatted again \
                 without integrity protection, open it with --allow-integrity-superblock.",
                Some(format!("inlock luksHeaderRestore {path} --header-backup-file BACKUP")),
            );
        }
    }
    if !keyslots.iter().any(|slot| slot.can_work) {
        report.health = Health::Unusable;
        report.advise(
            "No keyslot can work. Restore the header from a backup; without one the data are lost.",
            Some(format!("inlock luksHeaderRestore {path} --header-backup-file BACKUP")),
        );
    } else if !problems.is_empty() || keyslots.iter().any(|slot| !slot.can_work) {
        report.health = report.health.max(Health::Damaged);
    }
    report.header = Some(HeaderReport {
        version: volume.version(),
        uuid: volume.uuid().to_owned(),
        label: volume.label().map(ToOwned::to_owned),
        data_offset: volume.data_offset(),
        copies: copies(volume),
        keyslots,
        problems,
    });
    Ok(())
}

/// Returns the state of both copies of a LUKS2 header.
fn copies(volume: &Volume) -> Vec<CopyReport> {
    if volume.version() == 1 {
        return Vec::new();
    }
    let mut problems = [None, None];
    for warning in volume.warnings() {
        let copy = match warning {
            LoadWarning::PrimaryDamaged(_) => 0,
            LoadWarning::CopiesDiffer { primary, secondary } if primary < secondary => 0,
            LoadWarning::SecondaryDamaged(_) | LoadWarning::CopiesDiffer { .. } => 1,
            LoadWarning::SameSequenceDifferentContent { .. } => 1,
            _ => continue,
        };
        problems[copy] = Some(warning.to_string());
    }
    let report =
        |(copy, problem): (&'static str, Option<String>)| CopyReport { copy, is_whole: problem.is_none(), problem };
    ["first", "second"].into_iter().zip(problems).map(report).collect()
}

/// Describes the state of a keyslot.
pub(super) fn keyslot(number: u32, state: &KeyslotState) -> Keyslot {
    let (can_work, state) = match state {
        KeyslotState::Usable => (true, "can work".to_owned()),
        KeyslotState::OnlyByNumber => (true, format!("can work with --key-slot {number}")),
        KeyslotState::Unbound => (false, "holds a key that opens no data (unbound)".to_owned()),
        KeyslotState::Overwritten { sectors, of } => {
            (false, format!("cannot work: {sectors} of {of} sectors of its key material are overwritten"))
        }
        KeyslotState::Unreadable(error) => {
            (false, format!("cannot work: its key material cannot be read: {}", chain(error)))
        }
        KeyslotState::Truncated => (false, "cannot work: its key material is beyond the end of the device".to_owned()),
        KeyslotState::Unusable(error) => (false, format!("cannot work: {}", chain(error))),
        _ => (false, "unknown".to_owned()),
    };
    Keyslot { number, can_work, state }
}

/// Searches the device for other headers.
fn search(args: &DoctorArgs, device: &Device, header: &DeviceHeader, report: &mut Report) -> anyhow::Result<()> {
    let show = if args.json && !matches!(args.show, Show::Json(_)) { Show::Nothing } else { args.show };
    let mut progress = Progress::start(show, &device.path, Some(device.len), args.json);
    let has_first = report.header.is_some();
    let (mut found, mut left_out) = (Vec::new(), 0);
    find_headers(
        header,
        0,
        |one| match one.offset == 0 && has_first {
            true => {}
            false if found.len() < MAX_FOUND => found.push(describe(header, one)),
            false => left_out += 1,
        },
        |bytes| {
            progress.add(bytes);
            true
        },
    )?;
    progress.finish();
    let path = quoted(&device.path);
    // Offsets in a file of another format are no offsets on the disk in it.
    let is_raw = find_signatures(header)?.iter().all(|one| one.kind != SignatureKind::File);
    let is_ambiguous = report.signatures.iter().any(|_| report.header.is_none());
    for one in found.iter().filter(|one| is_raw && (one.offset > 0 || !is_ambiguous)) {
        advise_found(&path, one, &mut report.advice);
    }
    if left_out > 0 {
        report.advise(format!("{left_out} more headers were found, and left out."), None);
    }
    if report.health == Health::Nothing && !found.is_empty() {
        report.health = Health::Unusable;
    }
    if report.health == Health::Nothing && is_raw {
        report.advise(
            "There is no trace of a LUKS header on this device. If it is a partition, examine the whole disk \
             (`inlock doctor DISK`); look for a file of luksHeaderBackup.",
            None,
        );
    }
    report.found = found;
    Ok(())
}

fn describe(header: &DeviceHeader, found: FoundHeader) -> Found {
    let window = WindowDevice::new(header, found.offset);
    let backup = HeaderBackup::of_device(&window).ok().map(|backup| backup.bytes().len() as u64);
    let (version, uuid, problem) = match &found.volume {
        Ok(volume) => {
            let warning = volume.warnings().first().map(LoadWarning::to_string);
            (Some(volume.version()), Some(volume.uuid().to_owned()), warning)
        }
        Err(error) => (None, None, Some(chain(error))),
    };
    let what = match (&found.volume, found.second_only) {
        (Ok(volume), false) => {
            let fits = window.len().is_ok_and(|len| volume.check_data_device(HeaderLocation::DataDevice, len).is_ok());
            let kind = if fits { "volume" } else { "header without data (a backup, or a detached header)" };
            format!("LUKS{} {kind}", volume.version())
        }
        (Ok(_), true) => "LUKS2 volume of which only the second header copy is left".to_owned(),
        (Err(_), true) => "damaged second copy of a LUKS2 header".to_owned(),
        (Err(_), false) => "damaged LUKS header".to_owned(),
    };
    Found { offset: found.offset, what, version, uuid, header_length: backup, problem }
}

/// Says how to open a found volume.
fn advise_found(path: &str, found: &Found, advice: &mut Vec<Advice>) {
    let Found { offset, header_length: Some(len), uuid: Some(uuid), .. } = found else { return };
    let at = format!("the volume {uuid} at byte {offset}");
    if *offset == 0 {
        let command = format!("inlock repair {path}");
        advice.push(Advice { text: format!("Repair {at}."), command: Some(command) });
        return;
    }
    advice.push(Advice {
        text: format!("Open {at} through a loop device (read-only; as root)."),
        command: Some(format!("losetup --find --show --read-only --offset {offset} {path}")),
    });
    advice.push(Advice {
        text: format!("Or copy the header of {at} to a file, for `inlock luksDump` and --header."),
        command: Some(format!(
            "dd if={path} of=header.img iflag=skip_bytes,count_bytes skip={offset} count={len} bs=1M"
        )),
    });
}

/// Returns the command that makes a raw image of a file.
fn convert_command(format: &str, path: &str) -> Option<String> {
    let format = match format {
        "qcow2" | "qed" | "vmdk" | "vdi" | "vhdx" | "vpc" | "parallels" | "dmg" => format,
        _ => return None,
    };
    Some(format!("qemu-img convert -f {format} -O raw {path} RAW"))
}

impl Report {
    /// Says what `repair` does, what only the user knows, and what must not be believed.
    fn advise_repair(&mut self, plan: &RepairPlan, path: &str) {
        let list: Vec<String> = plan.repairs().iter().map(Repair::to_string).collect();
        let list = list.join("; ");
        if plan.is_salvage() {
            let lost = if self.health == Health::Nothing { "has no magic" } else { "has no copy that is whole" };
            self.health = Health::Unusable;
            self.error =
                Some(format!("the header {lost}, as after `wipefs` or a new partition table, but its rest is there"));
        }
        self.health = self.health.max(Health::Damaged);
        if let Some(foreign) = plan.foreign() {
            self.health = Health::Unusable;
            self.advise(
                format!("If you use what the {foreign} belongs to, leave all as it is: an older volume has left this."),
                None,
            );
            let key = if plan.unproven().is_empty() { "" } else { "--key-file FILE " };
            self.advise(
                format!("If the volume is lost without the header, copy the device, then repair it ({list})."),
                Some(format!("inlock repair --disable-blkid {key}{path}")),
            );
            return;
        }
        // Only a header that can be loaded can be backed up.
        let first = if self.header.is_some() { "Back the header up" } else { "Copy the start of the device" };
        if plan.unproven().is_empty() {
            self.advise(format!("{first}, then repair it ({list})."), Some(format!("inlock repair {path}")));
            return;
        }
        let slots = plan.unproven().iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        self.advise(
            format!(
                "Keyslots in use have unusual values ({slots}): whether these are damage or right, only their \
                 passphrases can tell. {first}, then try the repair with them ({list})."
            ),
            Some(format!("inlock repair --key-file FILE {path}")),
        );
    }

    /// Names the keyslots that do not work after the repair either.
    fn advise_lost_keyslots(&mut self, plan: &RepairPlan, header: &DeviceHeader) -> anyhow::Result<()> {
        let Ok(volume) = plan.mended() else { return Ok(()) };
        let slots = volume.report_keyslots(header, &KdfLimits::default())?;
        let slots: Vec<Keyslot> = slots.iter().map(|slot| keyslot(slot.number, &slot.state)).collect();
        for slot in slots.iter().filter(|slot| !slot.can_work) {
            self.advise(format!("The repair does not bring keyslot {} back: it {}.", slot.number, slot.state), None);
        }
        if !slots.iter().any(|slot| slot.can_work) {
            self.advise("No keyslot is left: restore a backup of the header; without one the data are lost.", None);
        }
        Ok(())
    }

    fn advise(&mut self, text: impl Into<String>, command: Option<String>) {
        self.advice.push(Advice { text: text.into(), command });
    }
}

fn text_of(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string never fails.
    let _ = write_text(report, &mut text);
    text
}

fn write_text(report: &Report, out: &mut String) -> std::fmt::Result {
    writeln!(out, "Device:   {} ({} bytes)", path_text::shown(&report.device), report.length)?;
    let health = match report.health {
        Health::Healthy => "healthy",
        Health::Damaged => "damaged, but opens",
        Health::Unusable => "does not open as it is",
        Health::Nothing => "no LUKS header",
    };
    writeln!(out, "Health:   {health}")?;
    if let Some(error) = &report.error {
        writeln!(out, "Problem:  {error}")?;
    }
    for other in &report.signatures {
        writeln!(out, "Format:   byte {}: {}", other.offset, other.format)?;
    }
    if let Some(header) = &report.header {
        writeln!(out, "Header:   LUKS{}, UUID {}", header.version, header.uuid)?;
        if let Some(label) = &header.label {
            writeln!(out, "Label:    {label}")?;
        }
        writeln!(out, "Data:     from byte {}", header.data_offset)?;
        for copy in &header.copies {
            let state = copy.problem.as_deref().unwrap_or("whole");
            writeln!(out, "Copy:     {}: {state}", copy.copy)?;
        }
        for slot in &header.keyslots {
            writeln!(out, "Keyslot:  {}: {}", slot.number, slot.state)?;
        }
        for problem in &header.problems {
            writeln!(out, "Problem:  {problem}")?;
        }
    }
    for found in &report.found {
        write!(out, "Found:    byte {}: {}", found.offset, found.what)?;
        if let Some(uuid) = &found.uuid {
            write!(out, ", UUID {uuid}")?;
        }
        match &found.problem {
            Some(problem) => writeln!(out, " ({problem})")?,
            None => writeln!(out)?,
        }
    }
    for advice in &report.advice {
        writeln!(out, "Advice:   {}", advice.text)?;
        if let Some(command) = &advice.command {
            writeln!(out, "          {command}")?;
        }
    }
    Ok(())
}

/// Returns a path as a word for a shell.
fn quoted(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let Some(text) = path.to_str().filter(|text| path_text::shown(path) == *text) else {
        let escaped: String = bytes.iter().flat_map(|byte| std::ascii::escape_default(*byte)).map(char::from).collect();
        return format!("$'{escaped}'");
    };
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+:=@,".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// Returns an error and its causes as one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}
