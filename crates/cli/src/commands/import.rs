//! `import`: encrypts a raw image into an existing volume.

use std::io;
use std::path::Path;

use inlock_engine as engine;
use inlock_engine::store::file::IoMode;

use super::copy::{CopyArgs, copy_args};
use crate::args::action::{Action, COPY, HOLES, IMAGE, KEY, PLAIN, POLICY, Prepared, REMOTE, SEALED, TOKENS, UNLOCK};
use crate::error::CliError;
use crate::host::{context, take_stdin_for_data};
use crate::ui::progress::Progress;
use inlock_open::copy::{Import, Input};
use inlock_open::source::KeySource;
use inlock_open::unlocked::LockedStores;
use inlock_open::{Error, device, open};

pub(crate) const ACTION: Action = Action {
    name: "import",
    aliases: &[],
    arguments: &["<input file or ->", IMAGE],
    options: &[KEY, UNLOCK, REMOTE, TOKENS, PLAIN, POLICY, COPY, SEALED, HOLES, &["table"]],
    about: "encrypt a raw image into an existing volume",
    prepare: |options, mut arguments| {
        let (input, image) = (arguments.path()?, arguments.path()?);
        let args = copy_args(&options, image, input)?;
        Ok(Prepared::new(move || run(&args)))
    },
};

fn run(args: &CopyArgs) -> anyhow::Result<()> {
    if device::is_read_only(&args.source.image) {
        return Err(Error::read_only(&args.source.image).into());
    }
    if args.other.is_none() {
        if matches!(args.source.key.source, KeySource::Input) {
            return Err(CliError::usage("Standard input cannot carry both the key and the data."));
        }
        take_stdin_for_data();
    }
    let images: Vec<&Path> = std::iter::once(&*args.source.image).chain(args.source.header.as_deref()).collect();
    if args.other.is_none() && rustix::termios::isatty(io::stdin()) {
        return Err(CliError::refused("Standard input is a terminal.", "name an input file, or pipe one in"));
    }
    let input = Input::open(args.other.as_deref(), &images)?;
    let unlocked = open(context(), &args.source, true, None)?;
    let stores = unlocked.into_device(IoMode::Sync, engine::Access::default())?;
    if stores.device.access().read_only {
        let message = format!("Device {} is read-only.", args.source.image.display());
        return Err(CliError::refused(message, "export it, and import the result into a new volume"));
    }
    let copied = copy_in(args, input, &stores);
    Ok(stores.check_writes(copied)?)
}

/// Writes the input to the volume.
fn copy_in(args: &CopyArgs, input: Input, stores: &LockedStores) -> inlock_open::Result<()> {
    let mut import = Import::new(stores, &args.source, args.range, input)?;
    let mut progress = Progress::start(args.show, &args.source.image, import.total(), false);
    import.copy(|bytes| progress.add(bytes))?;
    progress.finish();
    import.check_end()
}
