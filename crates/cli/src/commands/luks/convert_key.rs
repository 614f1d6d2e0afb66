//! `luksConvertKey`: gives a LUKS2 keyslot another key derivation or cipher, for the same passphrase.

use crate::args::action::{Action, HEADER, IMAGE, KDF, KEY, KEYSLOT, Prepared, TOKENS};
use crate::args::keyslot::{KeyslotArgs, existing_key_args, keyslot_args, measure};
use crate::args::source::header_args;
use crate::host::context;
use crate::ui::print::print_verbose;
use inlock_open::edit::scrubbed;
use inlock_open::header::Header;
use inlock_open::secret::Ask;
use inlock_open::source::{HeaderOptions, KeyOptions};

pub(crate) const ACTION: Action = Action {
    name: "luksConvertKey",
    aliases: &[],
    arguments: &[IMAGE],
    options: &[KEY, HEADER, KDF, KEYSLOT, TOKENS, &["tries", "key-slot"]],
    about: "convert a keyslot to new PBKDF parameters",
    prepare: |options, mut arguments| {
        let at = header_args(&options, arguments.path()?)?;
        let (key, keyslot) = (existing_key_args(&options, None)?, keyslot_args(&options)?);
        Ok(Prepared::new(move || scrubbed(|| run(&at, &key, &keyslot))))
    },
};

fn run(at: &HeaderOptions, key: &KeyOptions, keyslot: &KeyslotArgs) -> anyhow::Result<()> {
    let mut header = Header::load_to_edit(context(), at)?;
    header.check_luks2()?;
    let mut keyslot = keyslot.request(&header.volume)?;
    let prompt = Some("Enter passphrase for keyslot to be converted: ");
    let ask = Ask { device: header.path(), prompt, verify: key.verify, context: context() };
    let opened = header.open_keyslot(key, ask)?;
    measure(&mut keyslot, opened.key.len())?;
    let number = header.change_keyslot(opened.number, &opened.key, &opened.passphrase, keyslot)?;
    print_verbose(format_args!("Key slot {number} created."));
    Ok(())
}
