//! `luksUUID`: prints or sets the UUID of a LUKS volume.

use inlock_volume::Printable;

use crate::args::action::{Action, HEADER, IMAGE, Prepared};
use crate::args::source::header_args;
use crate::host::context;
use crate::ui::print::print;
use crate::ui::terminal::confirm_change;
use inlock_open::header::Header;
use inlock_open::source::HeaderOptions;

pub(crate) const ACTION: Action = Action {
    name: "luksUUID",
    aliases: &[],
    arguments: &[IMAGE],
    options: &[HEADER, &["uuid"]],
    about: "print or set the UUID of a LUKS volume",
    prepare: |options, mut arguments| {
        let args = header_args(&options, arguments.path()?)?;
        Ok(Prepared::new(move || match &options.uuid {
            None => show(&args),
            Some(uuid) => set(&args, uuid, options.batch_mode),
        }))
    },
};

fn show(args: &HeaderOptions) -> anyhow::Result<()> {
    let header = Header::load(context(), args, false)?;
    print(format_args!("{}\n", Printable::new(header.volume.uuid())))
}

fn set(args: &HeaderOptions, uuid: &str, batch: bool) -> anyhow::Result<()> {
    let mut header = Header::load_to_edit(context(), args)?;
    // Its process is found by the UUID again.
    let _unused = header.lock_unused()?;
    confirm_change(batch, "Do you really want to change UUID of device?", "Operation aborted.")?;
    Ok(header.edit(&[], |volume, device| volume.set_uuid(device, Some(uuid)))?)
}
