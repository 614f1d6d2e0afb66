//! `policy`: prints a policy file that pins the present header of a volume.

use crate::args::action::{Action, HEADER, IMAGE, Prepared};
use crate::args::source::header_args;
use crate::host::context;
use crate::ui::print::print;
use inlock_open::error::cannot_unlock;
use inlock_open::header::Header;
use inlock_open::policy_file;

pub(crate) const ACTION: Action = Action {
    name: "policy",
    aliases: &[],
    arguments: &[IMAGE],
    options: &[HEADER],
    about: "print a policy file that pins the header of a LUKS volume",
    prepare: |options, mut arguments| {
        let args = header_args(&options, arguments.path()?)?;
        Ok(Prepared::new(move || {
            let header = Header::load(context(), &args, false)?;
            let policy = header.volume.present_policy().map_err(cannot_unlock(&header.device.path))?;
            print(policy_file::text_of(&policy)?)
        }))
    },
};
