//! `erase`: removes all keyslots that hold the volume key.

use inlock_volume::{KeyslotStatus, Volume};

use crate::args::action::{Action, Alias, HEADER, IMAGE, Prepared};
use crate::args::source::header_args;
use crate::host::context;
use crate::ui::print::print_verbose;
use crate::ui::terminal::confirm_change;
use inlock_open::edit::{holds_volume_key, keyslots};
use inlock_open::header::Header;
use inlock_open::path_text;
use inlock_open::source::HeaderOptions;

pub(crate) const ACTION: Action = Action {
    name: "erase",
    aliases: &[Alias::new("luksErase")],
    arguments: &[IMAGE],
    options: &[HEADER],
    about: "erase all keyslots (remove encryption key)",
    prepare: |options, mut arguments| {
        let at = header_args(&options, arguments.path()?)?;
        Ok(Prepared::new(move || run(&at, options.batch_mode)))
    },
};

fn run(at: &HeaderOptions, batch: bool) -> anyhow::Result<()> {
    let mut header = Header::load_to_edit(context(), at)?;
    let warning = format!(
        "This operation will erase all keyslots on device {}.\nDevice will become unusable after this operation.",
        path_text::shown(header.path())
    );
    confirm_change(batch, &warning, "Operation aborted, keyslots were NOT wiped.")?;
    let erased = header.edit(&[], |volume, device| {
        let erased = keyslots(volume, holds_volume_key);
        // Of a volume in re-encryption all go, those of the new key, too.
        let is_in_reencryption = matches!(&*volume, Volume::Luks2(luks2) if luks2.is_in_reencryption());
        match is_in_reencryption || keyslots(volume, |status| status == KeyslotStatus::Unbound).is_empty() {
            true => volume.erase_keyslots(device)?,
            // Their keys are not those of the volume.
            false => erased.iter().try_for_each(|number| volume.kill_keyslot(device, *number))?,
        }
        Ok(erased)
    })?;
    for number in erased {
        print_verbose(format_args!("Key slot {number} removed."));
    }
    Ok(())
}
