//! `doctor`: examines a LUKS header, searches for lost ones, and says what to do. Writes nothing.

use std::fmt::Write;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use inlock_volume::{KeyslotReport, KeyslotState, LoadError, LoadWarning, Repair, RepairPlan, UnlockError};
use serde::Serialize;

use crate::args::action::{Action, IMAGE, Prepared};
use crate::error::hint_of_requirement;
use crate::host::context;
use crate::ui::print::print;
use crate::ui::progress::{Progress, Show};
use inlock_open::device::{Device, OpenMode};
use inlock_open::examine::{self, HeaderLoss, HeaderReport, Health, Problem, Report, examine};
use inlock_open::header::ENCRYPTED_CLONE;
use inlock_open::path_text;
use inlock_open::removed_integrity::unreadable;

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

/// The health, whose number is the exit status.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Healthy = 0,
    Damaged = 10,
    Unusable = 11,
    Nothing = 12,
}

/// A report as it is printed.
#[derive(Debug, Serialize)]
struct Shown {
    #[serde(with = "inlock_open::path_text")]
    device: PathBuf,
    length: u64,
    health: Status,
    header: Option<Header>,
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
struct Header {
    version: u32,
    uuid: String,
    label: Option<String>,
    data_offset: u64,
    copies: Vec<HeaderCopy>,
    keyslots: Vec<Keyslot>,
    problems: Vec<String>,
}

#[derive(Debug, Serialize)]
struct HeaderCopy {
    copy: &'static str,
    is_whole: bool,
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
struct Keyslot {
    number: u32,
    can_work: bool,
    state: String,
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
    let mut report = examine(&device, data.as_ref())?;
    if args.scan || report.health >= Health::Unusable {
        let show = if args.json && !matches!(args.show, Show::Json(_)) { Show::Nothing } else { args.show };
        let mut progress = Progress::start(show, &device.path, Some(device.len), args.json);
        report.search(&device, |bytes| {
            progress.add(bytes);
            ControlFlow::Continue(())
        })?;
        progress.finish();
    }
    let shown = Shown::of(&report);
    if args.json {
        print(format_args!("{}\n", serde_json::to_string_pretty(&shown)?))?;
    } else {
        print(text_of(&shown))?;
    }
    Ok(shown.health as u8)
}

impl Shown {
    fn of(report: &Report) -> Self {
        Self {
            device: report.device.clone(),
            length: report.len,
            health: match report.health {
                Health::Healthy => Status::Healthy,
                Health::Damaged => Status::Damaged,
                Health::Unusable => Status::Unusable,
                Health::Nothing => Status::Nothing,
            },
            header: report.header.as_ref().ok().map(Header::of),
            signatures: report
                .signatures
                .iter()
                .map(|one| OtherFormat { format: one.name, offset: one.offset })
                .collect(),
            error: error_of(report),
            found: report.found.iter().map(Found::of).collect(),
            advice: advice(report),
        }
    }
}

/// Says why there is no header at the start.
fn error_of(report: &Report) -> Option<String> {
    if report.repair.as_ref().is_some_and(RepairPlan::is_salvage) {
        let lost = match &report.header {
            Err(HeaderLoss::Load(LoadError::NotLuks)) => "has no magic",
            _ => "has no copy that is whole",
        };
        return Some(format!("the header {lost}, as after `wipefs` or a new partition table, but its rest is there"));
    }
    match report.header.as_ref().err()? {
        HeaderLoss::Load(error) => Some(chain(error)),
        _ => Some(format!("the device is {ENCRYPTED_CLONE}")),
    }
}

impl Header {
    fn of(report: &HeaderReport) -> Self {
        let volume = &report.volume;
        let copies = report.copies().map(|copies| copies.map(|problem| problem.map(LoadWarning::to_string)));
        let copy = |(copy, problem): (_, Option<String>)| HeaderCopy { copy, is_whole: problem.is_none(), problem };
        Self {
            version: volume.version(),
            uuid: volume.uuid().to_owned(),
            label: volume.label().map(ToOwned::to_owned),
            data_offset: volume.data_offset(),
            copies: ["first", "second"].into_iter().zip(copies.into_iter().flatten()).map(copy).collect(),
            keyslots: report.keyslots.iter().map(Keyslot::of).collect(),
            problems: report.problems.iter().map(problem).collect(),
        }
    }
}

fn problem(problem: &Problem) -> String {
    match problem {
        Problem::Irregular(warning) => warning.to_string(),
        Problem::Refused(error) => chain(error),
        Problem::Reencrypted => "its re-encryption has not ended; it opens as it is".to_owned(),
        Problem::NoPayload(error) => error.to_string(),
        Problem::PartOfUnit(unit) => format!("the length of the data is no multiple of {unit} bytes"),
        Problem::UnreadableStart(offset) => unreadable(*offset),
        Problem::RemovedIntegrity(offset) => {
            format!("a superblock of dm-integrity is at byte {offset}, but the header has no integrity protection")
        }
        _ => "unknown".to_owned(),
    }
}

impl Keyslot {
    fn of(slot: &KeyslotReport) -> Self {
        let KeyslotReport { number, state, .. } = slot;
        Self { number: *number, can_work: examine::can_work(state), state: keyslot_state(*number, state) }
    }
}

/// Describes the state of a keyslot.
pub(super) fn keyslot_state(number: u32, state: &KeyslotState) -> String {
    match state {
        KeyslotState::Usable => "can work".to_owned(),
        KeyslotState::OnlyByNumber => format!("can work with --key-slot {number}"),
        KeyslotState::Unbound => "holds a key that opens no data (unbound)".to_owned(),
        KeyslotState::Overwritten { sectors, of } => {
            format!("cannot work: {sectors} of {of} sectors of its key material are overwritten")
        }
        KeyslotState::Unreadable(error) => {
            format!("cannot work: its key material cannot be read: {}", chain(error))
        }
        KeyslotState::Truncated => "cannot work: its key material is beyond the end of the device".to_owned(),
        KeyslotState::Unusable(error) => format!("cannot work: {}", chain(error)),
        _ => "unknown".to_owned(),
    }
}

impl Found {
    fn of(found: &examine::Found) -> Self {
        let (version, uuid, problem) = match &found.volume {
            Ok(volume) => {
                let warning = volume.warning.as_ref().map(LoadWarning::to_string);
                (Some(volume.version), Some(volume.uuid.clone()), warning)
            }
            Err(error) => (None, None, Some(chain(error))),
        };
        let what = match (&found.volume, found.second_only) {
            (Ok(volume), false) => {
                let kind = match volume.has_payload {
                    true => "volume",
                    false => "header without data (a backup, or a detached header)",
                };
                format!("LUKS{} {kind}", volume.version)
            }
            (Ok(_), true) => "LUKS2 volume of which only the second header copy is left".to_owned(),
            (Err(_), true) => "damaged second copy of a LUKS2 header".to_owned(),
            (Err(_), false) => "damaged LUKS header".to_owned(),
        };
        Self { offset: found.offset, what, version, uuid, header_length: found.header_len, problem }
    }
}

/// Says what to do.
fn advice(report: &Report) -> Vec<Advice> {
    let path = quoted(&report.device);
    let restore = format!("inlock luksHeaderRestore {path} --header-backup-file BACKUP");
    let mut advice = Advices(Vec::new());
    match &report.header {
        Ok(header) => advice.on_problems(header, &restore),
        Err(loss) => advice.on_loss(loss, report, &path, &restore),
    }
    if let Some(plan) = &report.repair {
        advice.on_repair(plan, report.header.is_ok(), &path);
        advice.on_lost_keyslots(report.mended_keyslots.as_deref());
    }
    if report.health == Health::Healthy {
        advice.add(
            "Keep a backup of the header on another disk.",
            Some(format!("inlock luksHeaderBackup {path} --header-backup-file BACKUP")),
        );
    }
    advice.on_found(report, &path);
    advice.0
}

struct Advices(Vec<Advice>);

impl Advices {
    fn add(&mut self, text: impl Into<String>, command: Option<String>) {
        self.0.push(Advice { text: text.into(), command });
    }

    fn on_problems(&mut self, header: &HeaderReport, restore: &str) {
        for problem in &header.problems {
            match problem {
                Problem::Refused(UnlockError::Requirement(name)) => {
                    self.add(format!("To open the volume, {}.", hint_of_requirement(name.as_str())), None);
                }
                Problem::Reencrypted => self.add(
                    "Go on with the re-encryption: inlock reencrypt --resume-only, with --header if the header is a file.",
                    None,
                ),
                Problem::NoPayload(_) if header.volume.data_offset() == 0 => {
                    self.add("This is a detached header: name the device with the data as well.", None);
                }
                Problem::NoPayload(_) => {
                    self.add("The device is shorter than the volume. Compare its length with the original's.", None)
                }
                Problem::PartOfUnit(_) => self.add(
                    "The image was cut off, or something was appended. Compare its length with the original's.",
                    None,
                ),
                Problem::RemovedIntegrity(_) => self.add(
                    "The header may have been changed: restore it from a backup. If the volume was formatted again \
                     without integrity protection, open it with --allow-integrity-superblock.",
                    Some(restore.to_owned()),
                ),
                _ => {}
            }
        }
        if !header.has_keyslot() {
            self.add(
                "No keyslot can work. Restore the header from a backup; without one the data are lost.",
                Some(restore.to_owned()),
            );
        }
    }

    fn on_loss(&mut self, loss: &HeaderLoss, report: &Report, path: &str, restore: &str) {
        let HeaderLoss::Load(error) = loss else {
            self.add("Open it through librbd, or flatten it with the passphrases of the clone and its parent.", None);
            return;
        };
        if let LoadError::Luks1Reencrypted { uuid } = error {
            let step = format!("Go on in the directory of LUKS-{uuid}.log, .org and .new: nothing else has the keys.");
            self.add(step, Some(format!("inlock reencrypt {path}")));
            return;
        }
        if let Some(file) = report.file_format() {
            self.add(
                format!("The device is a file of format {}: convert it to a raw image first.", file.name),
                convert_command(file.name, path),
            );
        }
        if report.repair.is_none() && !matches!(error, LoadError::NotLuks) {
            self.add("Restore the header from a backup.", Some(restore.to_owned()));
        }
    }

    /// Says what `repair` does, what only the user knows, and what must not be believed.
    fn on_repair(&mut self, plan: &RepairPlan, has_header: bool, path: &str) {
        let list: Vec<String> = plan.repairs().iter().map(Repair::to_string).collect();
        let list = list.join("; ");
        if let Some(foreign) = plan.foreign() {
            self.add(
                format!("If you use what the {foreign} belongs to, leave all as it is: an older volume has left this."),
                None,
            );
            let key = if plan.unproven().is_empty() { "" } else { "--key-file FILE " };
            self.add(
                format!("If the volume is lost without the header, copy the device, then repair it ({list})."),
                Some(format!("inlock repair --disable-blkid {key}{path}")),
            );
            return;
        }
        // Only a header that can be loaded can be backed up.
        let first = if has_header { "Back the header up" } else { "Copy the start of the device" };
        if plan.unproven().is_empty() {
            self.add(format!("{first}, then repair it ({list})."), Some(format!("inlock repair {path}")));
            return;
        }
        let slots = plan.unproven().iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        self.add(
            format!(
                "Keyslots in use have unusual values ({slots}): whether these are damage or right, only their \
                 passphrases can tell. {first}, then try the repair with them ({list})."
            ),
            Some(format!("inlock repair --key-file FILE {path}")),
        );
    }

    /// Names the keyslots that do not work after the repair either.
    fn on_lost_keyslots(&mut self, mended: Option<&[KeyslotReport]>) {
        let Some(mended) = mended else { return };
        for slot in mended.iter().map(Keyslot::of).filter(|slot| !slot.can_work) {
            self.add(format!("The repair does not bring keyslot {} back: it {}.", slot.number, slot.state), None);
        }
        if !mended.iter().any(|slot| examine::can_work(&slot.state)) {
            self.add("No keyslot is left: restore a backup of the header; without one the data are lost.", None);
        }
    }

    /// Says how to open what was found, or where to look.
    fn on_found(&mut self, report: &Report, path: &str) {
        let is_raw = report.file_format().is_none();
        let is_ambiguous = !report.signatures.is_empty() && report.header.is_err();
        for one in report.found.iter().filter(|one| is_raw && (one.offset > 0 || !is_ambiguous)) {
            self.on_found_header(path, one);
        }
        if report.left_out > 0 {
            self.add(format!("{} more headers were found, and left out.", report.left_out), None);
        }
        if report.health == Health::Nothing && is_raw {
            self.add(
                "There is no trace of a LUKS header on this device. If it is a partition, examine the whole disk \
                 (`inlock doctor DISK`); look for a file of luksHeaderBackup.",
                None,
            );
        }
    }

    fn on_found_header(&mut self, path: &str, found: &examine::Found) {
        let examine::Found { offset, header_len: Some(len), volume: Ok(volume), .. } = found else { return };
        let at = format!("the volume {} at byte {offset}", volume.uuid);
        if *offset == 0 {
            self.add(format!("Repair {at}."), Some(format!("inlock repair {path}")));
            return;
        }
        self.add(
            format!("Open {at} through a loop device (read-only; as root)."),
            Some(format!("losetup --find --show --read-only --offset {offset} {path}")),
        );
        self.add(
            format!("Or copy the header of {at} to a file, for `inlock luksDump` and --header."),
            Some(format!("dd if={path} of=header.img iflag=skip_bytes,count_bytes skip={offset} count={len} bs=1M")),
        );
    }
}

/// Returns the command that makes a raw image of a file.
fn convert_command(format: &str, path: &str) -> Option<String> {
    let format = match format {
        "qcow2" | "qed" | "vmdk" | "vdi" | "vhdx" | "vpc" | "parallels" | "dmg" => format,
        _ => return None,
    };
    Some(format!("qemu-img convert -f {format} -O raw {path} RAW"))
}

fn text_of(report: &Shown) -> String {
    let mut text = String::new();
    // Writing to a string never fails.
    let _ = write_text(report, &mut text);
    text
}

fn write_text(report: &Shown, out: &mut String) -> std::fmt::Result {
    writeln!(out, "Device:   {} ({} bytes)", path_text::shown(&report.device), report.length)?;
    let health = match report.health {
        Status::Healthy => "healthy",
        Status::Damaged => "damaged, but opens",
        Status::Unusable => "does not open as it is",
        Status::Nothing => "no LUKS header",
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
