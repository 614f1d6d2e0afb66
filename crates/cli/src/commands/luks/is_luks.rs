//! `isLuks`: reports by the exit status whether a device has a LUKS header.

use inlock_volume::LoadError;

use crate::args::action::{Action, HEADER, IMAGE, Prepared};
use crate::args::source::header_args;
use crate::error::CliError;
use crate::host::context;
use inlock_open::ErrorKind;
use inlock_open::header::Header;
use inlock_open::source::HeaderOptions;

pub(crate) const ACTION: Action = Action {
    name: "isLuks",
    aliases: &[],
    arguments: &[IMAGE],
    options: &[HEADER],
    about: "test for a LUKS header, by the exit status",
    prepare: |options, mut arguments| {
        let args = header_args(&options, arguments.path()?)?;
        Ok(Prepared::new(move || run(&args)))
    },
};

/// Fails silently without a header. Other errors, such as a missing device, are printed.
fn run(args: &HeaderOptions) -> anyhow::Result<()> {
    match Header::load(context(), args, true) {
        Ok(_) => Ok(()),
        Err(error) => {
            let is_no_header = matches!(error.kind(), ErrorKind::NotLuks { .. })
                || error
                    .cause()
                    .and_then(|cause| cause.downcast_ref::<LoadError>())
                    .is_some_and(|error| !matches!(error, LoadError::Io(_) | LoadError::Luks1Reencrypted { .. }));
            Err(if is_no_header { CliError::No.into() } else { error.into() })
        }
    }
}
