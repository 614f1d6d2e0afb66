//! `luksUUID`: prints the UUID of a LUKS volume.

use inlock_volume::Printable;

use crate::args::action::{Action, HEADER, IMAGE, Prepared};
use crate::args::source::header_args;
use crate::ui::print::print;
use crate::volume::header::Header;

pub(crate) const ACTION: Action = Action {
    name: "luksUUID",
    aliases: &[],
    arguments: &[IMAGE],
    options: &[HEADER],
    about: "print the UUID of a LUKS volume",
    prepare: |options, mut arguments| {
        let args = header_args(options, arguments.path()?)?;
        Ok(Prepared::new(move || {
            let header = Header::load(&args, false)?;
            print(format_args!("{}\n", Printable::new(header.volume.uuid())))
        }))
    },
};
