//! `repair`: mends the header of a LUKS volume.

use inlock_open::source::KeySource;
use inlock_volume::{
    KdfLimits, KeyslotState, LoadError, ProofError, Repair, RepairError, RepairPlan, UnlockError, UnlockOptions, Volume,
};

use crate::args::action::{Action, HEADER, IMAGE, KEY, Prepared};
use crate::args::source::{header_args, key_args};
use crate::commands::doctor;
use crate::error::CliError;
use crate::host::context;
use crate::ui::print::{print_stderr, warn};
use crate::ui::terminal;
use inlock_open::edit::scrubbed;
use inlock_open::error::cannot_unlock;
use inlock_open::header::{Header, cannot_load_from};
use inlock_open::header_access::HeaderAccess;
use inlock_open::reencryption::{self, Offline, is_begun, is_hot, is_unconfirmed};
use inlock_open::secret::{self, Ask};
use inlock_open::source::{HeaderOptions, KeyOptions, Luks};
use std::collections::BTreeSet;
use std::path::Path;

pub(crate) const ACTION: Action = Action {
    name: "repair",
    aliases: &[],
    arguments: &[IMAGE],
    options: &[HEADER, KEY, &["disable-keyring"]],
    about: "try to repair the header of a LUKS volume",
    prepare: |options, mut arguments| {
        let batch = options.batch_mode;
        let args = header_args(&options, arguments.path()?)?;
        let key = key_args(&options)?;
        Ok(Prepared::new(move || {
            run(&args, &key, batch)?;
            // A zone of a re-encryption that is confirmed now is recovered when the volume is opened.
            let is_confirmed = scrubbed(|| confirm_reencryption(&args, &key, batch))?;
            if is_confirmed { Ok(()) } else { scrubbed(|| recover(&args, &key, batch)) }
        }))
    },
};

/// Lists the repairs, and carries them out if the user agrees. A keyslot is erased only if the user was asked, and one
/// that may hold a key is changed only if its passphrase proves the change.
fn run(args: &HeaderOptions, key: &KeyOptions, batch: bool) -> anyhow::Result<()> {
    let access = HeaderAccess::open(context(), args.header.as_deref().unwrap_or(&args.image))?;
    let path = &access.device.path;
    let mut plan = RepairPlan::new(&access.header).map_err(|error| match error {
        RepairError::Load(error) => cannot_load_from(path, &access.header)(error).into(),
        error => anyhow::Error::from(error).context(format!("cannot repair {}", path.display())),
    })?;
    if !matches!((args.luks, plan.version()), (Luks::Any, _) | (Luks::One, 1) | (Luks::Two, 2)) {
        let found = Some(plan.version());
        return Err(inlock_open::Error::not_luks(path, found).into());
    }
    let asks = terminal::stdin_is_terminal() && !batch;
    if let Some(foreign) = plan.foreign().filter(|_| !context().settings().ignore_signatures) {
        // --batch-mode is an answer, as in cryptsetup, which repairs nothing without any magic.
        if !asks && plan.is_salvage() {
            return Err(CliError::refused(
                format!("Device {} has a {foreign}, and only parts of a LUKS header.", path.display()),
                "if what the signature belongs to may be destroyed, repair with --disable-blkid, or on a terminal",
            ));
        }
        print_stderr(format_args!("WARNING: Device {} already contains a {foreign}.", path.display()));
    }
    let erases = plan.repairs().iter().any(Repair::is_erasure);
    for repair in plan.repairs().iter().filter(|repair| asks || !repair.is_erasure()) {
        print_stderr(format_args!("{}: {repair}", path.display()));
    }
    let erases_keyslot = |repair: &Repair| matches!(repair, Repair::EraseKeyslot { .. });
    if !asks && plan.repairs().iter().any(erases_keyslot) {
        warn(format_args!(
            "{}: damaged keyslots stay; erase them with `inlock luksKillSlot`, or repair on a terminal",
            path.display()
        ));
    } else if !asks && erases {
        warn(format_args!(
            "{}: both header copies stay; `inlock repair` on a terminal makes them equal",
            path.display()
        ));
    }
    if plan.repairs().is_empty() {
        return Ok(());
    }
    access.device.check_writable()?;
    prove(&mut plan, &access, key, asks)?;
    if asks {
        let erasing =
            if erases { "\nKeyslots that are erased cannot be restored without a header backup." } else { "" };
        terminal::confirm(&format!("Really try to repair LUKS device header?{erasing}"), CliError::NotConfirmed)?;
    }
    let unproven = plan.unproven().clone();
    let repaired = plan.execute(&access.header, asks);
    let volume: Volume = repaired.map_err(|error| {
        if matches!(error, RepairError::Load(LoadError::Damaged(_))) && !unproven.is_empty() {
            return unproved(path, &unproven);
        }
        anyhow::Error::from(error).context(format!("Repair failed: cannot write the header of {}", path.display()))
    })?;
    for warning in volume.warnings() {
        warn(format_args!("{}: {warning}", path.display()));
    }
    let slots = volume.report_keyslots(&access.header, &KdfLimits::default())?;
    for slot in slots.iter().filter(|slot| matches!(slot.state, KeyslotState::Overwritten { .. })) {
        let state = doctor::keyslot_state(slot.number, &slot.state);
        warn(format_args!("{}: keyslot {} {state}", path.display(), slot.number));
    }
    if unproven.is_empty() { Ok(()) } else { Err(unproved(path, &unproven)) }
}

/// Adds the digest of a re-encryption that has none. `false`: there is no such re-encryption.
fn confirm_reencryption(args: &HeaderOptions, key: &KeyOptions, batch: bool) -> anyhow::Result<bool> {
    let header = Header::load(context(), args, true)?;
    if !is_unconfirmed(&header) {
        return Ok(false);
    }
    let path = header.path().display().to_string();
    warn(format_args!(
        "{path}: a re-encryption has begun that nothing confirms. Repair it only if you have begun it: what others \
         write to a header can make the next `open` or `reencrypt` decrypt data"
    ));
    drop(header);
    terminal::confirm_change(batch, "Really proceed with LUKS2 reencryption metadata repair?", "Operation aborted.")?;
    let prompt = Some("Enter passphrase to protect and update reencryption metadata: ");
    let ask = Ask { device: &args.image, prompt, verify: false, context: context() };
    reencryption::confirm(context(), args, key, ask)?;
    Ok(true)
}

/// Verifies a re-encryption with a passphrase, and recovers the zone in which it was interrupted.
fn recover(args: &HeaderOptions, key: &KeyOptions, batch: bool) -> anyhow::Result<()> {
    let header = Header::load(context(), args, true)?;
    if !is_begun(&header)? {
        return Ok(());
    }
    let is_hot = is_hot(&header)?;
    drop(header);
    let mut offline = Offline::open(context(), args)?;
    if is_hot {
        let text = "Really proceed with LUKS2 reencryption recovery?";
        terminal::confirm_change(batch, text, "Operation aborted.")?;
    }
    let prompt = Some("Enter passphrase for reencryption recovery: ");
    offline.unlock(key, Ask { device: &args.image, prompt, verify: false, context: context() })?;
    Ok(offline.recover()?)
}

/// Asks for the passphrases of keyslots that may hold a key until the changes of all are proven, or one opens none.
fn prove(plan: &mut RepairPlan, access: &HeaderAccess, key: &KeyOptions, asks: bool) -> anyhow::Result<()> {
    let path = &access.device.path;
    while !plan.unproven().is_empty() && (asks || is_file(key)) {
        let prompt = Some("Enter passphrase of a damaged keyslot: ");
        let ask = Ask { device: path, prompt, verify: false, context: context() };
        let given = secret::read(key, ask, None)?;
        match plan.prove(&access.header, &given.secret, &UnlockOptions::default()) {
            Ok(keyslot) => print_stderr(format_args!("{}: keyslot {keyslot} opens when repaired", path.display())),
            // A key file does not change.
            Err(ProofError::Unlock(UnlockError::WrongPassphrase)) => break,
            Err(ProofError::Unlock(error)) => return Err(cannot_unlock(path)(error).into()),
            Err(error) => return Err(anyhow::Error::from(error).context(format!("cannot repair {}", path.display()))),
        }
        if is_file(key) {
            break;
        }
    }
    Ok(())
}

/// Whether the passphrase does not come from a user who is asked.
fn is_file(key: &KeyOptions) -> bool {
    !matches!(key.source, KeySource::Ask)
}

/// The error of keyslots that stay as they are.
fn unproved(path: &Path, keyslots: &BTreeSet<u32>) -> anyhow::Error {
    let list = keyslots.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let some = if keyslots.len() == 1 { "" } else { "s" };
    CliError::refused(
        format!("Repair failed: device {} has damage in keyslot{some} {list}, which may hold a key.", path.display()),
        "the values may be right for this key, so only its passphrase can prove the repair: give it on a terminal or \
         with --key-file; otherwise restore a backup",
    )
}
