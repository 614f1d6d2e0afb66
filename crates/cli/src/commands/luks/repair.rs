//! `repair`: mends the header of a LUKS volume.

use inlock_volume::{RepairError, RepairPlan, Volume};

use crate::args::action::{Action, HEADER, IMAGE, Prepared};
use crate::args::source::header_args;
use crate::error::CliError;
use crate::ui::print::{print_stderr, warn};
use crate::ui::terminal;
use crate::volume::header::cannot_load_from;
use crate::volume::header_access::HeaderAccess;
use crate::volume::source::{HeaderArgs, Luks};

pub(crate) const ACTION: Action = Action {
    name: "repair",
    aliases: &[],
    arguments: &[IMAGE],
    options: &[HEADER],
    about: "try to repair the header of a LUKS volume",
    prepare: |options, mut arguments| {
        let batch = options.batch_mode;
        let args = header_args(&options, arguments.path()?)?;
        Ok(Prepared::new(move || run(&args, batch)))
    },
};

/// Lists the repairs, and carries them out if the user agrees. A keyslot is erased only if the user was asked.
fn run(args: &HeaderArgs, batch: bool) -> anyhow::Result<()> {
    let access = HeaderAccess::open(args.header.as_deref().unwrap_or(&args.image))?;
    let path = &access.device.path;
    let plan = RepairPlan::new(&access.header).map_err(|error| match error {
        RepairError::Load(error) => cannot_load_from(path, &access.header)(error),
        error => anyhow::Error::from(error).context(format!("cannot repair {}", path.display())),
    })?;
    if !matches!((args.luks, plan.version()), (Luks::Any, _) | (Luks::One, 1) | (Luks::Two, 2)) {
        let found = Some(plan.version());
        return Err(CliError::NotLuks { path: path.clone(), found, can_be_plain: false }.into());
    }
    let asks = terminal::stdin_is_terminal() && !batch;
    let erases = plan.repairs().iter().any(inlock_volume::Repair::is_erasure);
    for repair in plan.repairs().iter().filter(|repair| asks || !repair.is_erasure()) {
        print_stderr(format_args!("{}: {repair}", path.display()));
    }
    if !asks && erases {
        warn(format_args!("{}: damaged keyslots stay; erase them with `inlock luksKillSlot`", path.display()));
    }
    if plan.repairs().is_empty() {
        return Ok(());
    }
    if asks {
        let erasing =
            if erases { "\nKeyslots that are erased cannot be restored without a header backup." } else { "" };
        terminal::confirm(&format!("Really try to repair LUKS device header?{erasing}"), CliError::NotConfirmed)?;
    }
    let repaired = plan.execute(&access.header, asks);
    let volume: Volume = repaired.map_err(|error| {
        anyhow::Error::from(error).context(format!("Repair failed: cannot write the header of {}", path.display()))
    })?;
    for warning in volume.warnings() {
        warn(format_args!("{}: {warning}", path.display()));
    }
    Ok(())
}
