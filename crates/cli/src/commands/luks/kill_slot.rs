//! `luksKillSlot`: removes a keyslot by its number.
//!
//! A passphrase of another keyslot proves that one remains. It is not asked for with `--batch-mode`, and without a
//! terminal standard input may be empty, as in cryptsetup.

use inlock_open::ErrorKind;
use inlock_volume::KeyslotStatus;

use super::{LAST_KEYSLOT, NOT_WIPED};
use crate::args::action::{Action, HEADER, IMAGE, KEY, Prepared, TOKENS};
use crate::args::keyslot::existing_key_args;
use crate::args::source::header_args;
use crate::error::{CliError, Status};
use crate::host::context;
use crate::ui::print::{print_stderr, print_verbose};
use crate::ui::terminal::confirm_change;
use inlock_open::edit::{Checked, scrubbed};
use inlock_open::header::Header;
use inlock_open::secret::{self, Ask};
use inlock_open::source::{HeaderOptions, KeyOptions};

pub(crate) const ACTION: Action = Action {
    name: "luksKillSlot",
    aliases: &[],
    arguments: &[IMAGE, "<keyslot>"],
    options: &[KEY, HEADER, TOKENS, &["tries"]],
    about: "remove the keyslot of this number",
    prepare: |options, mut arguments| {
        let at = header_args(&options, arguments.path()?)?;
        let number = arguments.word()?;
        let key = existing_key_args(&options, None)?;
        Ok(Prepared::new(move || scrubbed(|| run(&at, &number, &key, options.batch_mode))))
    },
};

fn run(at: &HeaderOptions, number: &str, key: &KeyOptions, batch: bool) -> anyhow::Result<()> {
    // Arguments in the wrong order are a missing device.
    let mut header = Header::load_to_edit(context(), at)?;
    let number = number.parse().map_err(|_| CliError::usage(format!("'{number}' is not the number of a keyslot.")))?;
    let confirm = || confirm_change(batch, LAST_KEYSLOT, NOT_WIPED);
    let status = header.volume.keyslot_status(number);
    match status {
        KeyslotStatus::Invalid => {
            let max = if header.volume.version() == 1 { 7 } else { 31 };
            return Err(CliError::refused(
                format!("Key slot {number} is invalid, please select between 0 and {max}."),
                "run `inlock luksDump` to list the keyslots",
            ));
        }
        KeyslotStatus::Inactive => {
            return Err(CliError::refused(
                format!("Keyslot {number} is not active."),
                "run `inlock luksDump` to list the keyslots",
            ));
        }
        KeyslotStatus::ActiveLast => confirm()?,
        _ => {}
    }
    print_verbose(format_args!("Keyslot {number} is selected for deletion."));
    let mut checked = vec![Checked::Keyslot(number)];
    let prompt = Some("Enter any remaining passphrase: ");
    let ask = Ask { device: header.path(), prompt, verify: key.verify, context: context() };
    if key.tokens.is_requested() || !(batch && secret::prompts(key, ask)) {
        match header.open_remaining_keyslot(number, key, ask) {
            // A token that was requested and does not prove it is an error.
            Err(error) if !key.tokens.is_requested() && error.kind() == ErrorKind::NothingToRead => {
                print_stderr(error);
                if secret::prompts(key, ask) {
                    return Err(CliError::Silent(Status::Wrong).into());
                }
            }
            opened => checked.push(Checked::Keyslot(opened?)),
        }
    }
    header.kill_keyslot(number, &checked, status == KeyslotStatus::ActiveLast, confirm)?;
    print_verbose(format_args!("Key slot {number} removed."));
    Ok(())
}
