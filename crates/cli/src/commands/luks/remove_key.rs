//! `luksRemoveKey`: removes the keyslot that a passphrase or key opens.

use inlock_volume::KeyslotStatus;

use super::{LAST_KEYSLOT, NOT_WIPED};
use crate::args::action::{Action, HEADER, IMAGE, KEY, Prepared, TOKENS};
use crate::args::keyslot::existing_key_args;
use crate::args::source::header_args;
use crate::host::context;
use crate::ui::print::print_verbose;
use crate::ui::terminal::confirm_change;
use inlock_open::edit::{Checked, scrubbed};
use inlock_open::header::Header;
use inlock_open::secret::Ask;
use inlock_open::source::{HeaderOptions, KeyOptions};

pub(crate) const ACTION: Action = Action {
    name: "luksRemoveKey",
    aliases: &[],
    arguments: &[IMAGE, "[<key file>]"],
    options: &[KEY, HEADER, TOKENS, &["tries"]],
    about: "remove the keyslot of a passphrase or key file",
    prepare: |options, mut arguments| {
        let at = header_args(&options, arguments.path()?)?;
        let key = existing_key_args(&options, arguments.optional())?;
        Ok(Prepared::new(move || scrubbed(|| run(&at, &key, options.batch_mode))))
    },
};

fn run(at: &HeaderOptions, key: &KeyOptions, batch: bool) -> anyhow::Result<()> {
    let mut header = Header::load_to_edit(context(), at)?;
    let prompt = Some("Enter passphrase to be deleted: ");
    let ask = Ask { device: header.path(), prompt, verify: key.verify, context: context() };
    let number = header.open_bound_keyslot(key, ask)?.number;
    print_verbose(format_args!("Keyslot {number} is selected for deletion."));
    let is_last = header.volume.keyslot_status(number) == KeyslotStatus::ActiveLast;
    let confirm = || confirm_change(batch, LAST_KEYSLOT, NOT_WIPED);
    if is_last {
        confirm()?;
    }
    header.kill_keyslot(number, &[Checked::Keyslot(number)], is_last, confirm)?;
    print_verbose(format_args!("Key slot {number} removed."));
    Ok(())
}
