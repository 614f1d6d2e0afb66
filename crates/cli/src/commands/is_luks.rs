//! `isLuks`: the exit status alone says whether there is a LUKS header. A device that is not there is another matter.

use inlock_volume::LoadError;

use crate::args::HeaderArgs;
use crate::exit::Problem;
use crate::source::Header;

pub(crate) fn run(args: &HeaderArgs) -> anyhow::Result<()> {
    match Header::load(args, true) {
        Ok(_) => Ok(()),
        Err(error) => {
            let about_content = matches!(error.downcast_ref(), Some(Problem::NotLuks { .. }))
                || error.downcast_ref::<LoadError>().is_some_and(|error| !matches!(error, LoadError::Io(_)));
            Err(if about_content { Problem::No.into() } else { error })
        }
    }
}
