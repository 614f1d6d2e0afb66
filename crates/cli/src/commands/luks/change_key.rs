//! `luksChangeKey`: replaces the passphrase or key of a keyslot.

use crate::args::action::{Action, Arguments, HEADER, IMAGE, KDF, KEY, KEYSLOT, NEW_KEY, Prepared, TOKENS};
use crate::args::keyslot::{KeyslotArgs, existing_key_args, keyslot_args, measure, new_key_args};
use crate::args::options::Options;
use crate::args::source::header_args;
use crate::host::context;
use crate::ui::print::print_verbose;
use inlock_open::edit::scrubbed;
use inlock_open::header::Header;
use inlock_open::secret::{self, Ask};
use inlock_open::source::{HeaderOptions, KeyOptions, NewKeyOptions};

pub(crate) const ACTION: Action = Action {
    name: "luksChangeKey",
    aliases: &[],
    arguments: &[IMAGE, "[<new key file>]"],
    options: &[KEY, HEADER, KDF, KEYSLOT, NEW_KEY, TOKENS, &["tries", "key-slot"]],
    about: "change the passphrase or key file of a keyslot",
    prepare: |options, mut arguments| {
        let args = ChangeKeyArgs::new(&options, &mut arguments)?;
        Ok(Prepared::new(move || scrubbed(|| args.run())))
    },
};

/// A keyslot to change.
struct ChangeKeyArgs {
    at: HeaderOptions,
    key: KeyOptions,
    new: NewKeyOptions,
    keyslot: KeyslotArgs,
}

impl ChangeKeyArgs {
    fn new(options: &Options, arguments: &mut Arguments) -> anyhow::Result<Self> {
        Ok(Self {
            at: header_args(options, arguments.path()?)?,
            key: existing_key_args(options, None)?,
            new: new_key_args(options, arguments.optional())?,
            keyslot: keyslot_args(options)?,
        })
    }

    fn run(&self) -> anyhow::Result<()> {
        let mut header = Header::load_to_edit(context(), &self.at)?;
        let mut keyslot = self.keyslot.request(&header.volume)?;
        let prompt = Some("Enter passphrase to be changed: ");
        let ask = Ask { device: header.path(), prompt, verify: self.key.verify, context: context() };
        let opened = header.open_keyslot(&self.key, ask)?;
        let passphrase = secret::read_new(context(), &self.new, header.path(), "Enter new passphrase: ")?;
        measure(&mut keyslot, opened.key.len())?;
        // A keyslot that is named keeps its number; otherwise a LUKS1 keyslot takes a free one.
        keyslot.number = self.key.slot;
        let number = header.change_keyslot(opened.number, &opened.key, &passphrase, keyslot)?;
        print_verbose(format_args!("Key slot {number} created."));
        Ok(())
    }
}
