//! `export`: decrypts a volume, or a range of it, to a raw image.

use std::io;
use std::path::Path;

use inlock_engine as engine;
use inlock_engine::store::file::IoMode;

use super::copy::{CopyArgs, copy_args};
use crate::args::action::{Action, COPY, HOLES, IMAGE, KEY, PLAIN, POLICY, Prepared, REMOTE, SEALED, TOKENS, UNLOCK};
use crate::error::CliError;
use crate::host::context;
use crate::output::{self, Existing};
use crate::ui::progress::Progress;
use inlock_open::copy::Export;
use inlock_open::open;
use inlock_open::output::Output;

pub(crate) const ACTION: Action = Action {
    name: "export",
    aliases: &[],
    arguments: &[IMAGE, "<output file or ->"],
    options: &[KEY, UNLOCK, REMOTE, TOKENS, PLAIN, POLICY, COPY, SEALED, HOLES, &["table"]],
    about: "decrypt a volume, or a part of it, to a raw image",
    prepare: |options, mut arguments| {
        let (image, output) = (arguments.path()?, arguments.path()?);
        let args = copy_args(&options, image, output)?;
        let stdout_is_data = args.other.is_none();
        Ok(Prepared::new(move || run(&args)).with_data_on_stdout(stdout_is_data))
    },
};

fn run(args: &CopyArgs) -> anyhow::Result<()> {
    let mut output = check_output(args)?;
    let unlocked = open(context(), &args.source, false, None)?;
    let access = engine::Access { read_only: true, allow_discards: false };
    let stores = unlocked.into_device(IoMode::Sync, access)?;
    let export = Export::new(&stores, &args.source, args.range)?;
    output.begin(export.total())?;
    let mut progress = Progress::start(args.show, &args.source.image, Some(export.total()), args.other.is_none());
    export.copy_to(&mut output, |bytes| progress.add(bytes))?;
    output.finish()?;
    progress.finish();
    Ok(())
}

/// Opens and locks the output before a passphrase is asked for.
fn check_output(args: &CopyArgs) -> anyhow::Result<Output> {
    if args.other.is_none() && rustix::termios::isatty(io::stdout()) {
        return Err(CliError::refused(
            "Standard output is a terminal.",
            "redirect it to a file or a program: inlock export ... - | ...",
        ));
    }
    let inputs: Vec<&Path> = std::iter::once(&*args.source.image).chain(args.source.header.as_deref()).collect();
    output::take(args.other.as_deref(), &inputs, Existing::Asked { batch: args.batch })
}
