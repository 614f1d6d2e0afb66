//! `luksAddKey`: adds a keyslot with a new passphrase, or an unbound one with a key of its own.

use anyhow::Context;
use inlock_open::source::KeySource;
use inlock_volume::{EditError, NewKeyslot, Secret, Volume, VolumeKey};

use crate::args::action::{Action, Arguments, HEADER, IMAGE, KDF, KEY, KEYSLOT, NEW_KEY, Prepared, TOKENS, VOLUME_KEY};
use crate::args::keyslot::{KeyslotArgs, existing_key_args, keyslot_args, measure, new_key_args};
use crate::args::options::Options;
use crate::args::source::{header_args, key_bytes};
use crate::error::CliError;
use crate::host::context;
use crate::ui::print::{print_stderr, print_verbose};
use inlock_open::edit::{Checked, scrubbed};
use inlock_open::header::Header;
use inlock_open::remote::DeviceHeader;
use inlock_open::secret::{self, Ask};
use inlock_open::source::{HeaderOptions, KeyOptions, NewKeyOptions};
use inlock_open::token;

pub(crate) const ACTION: Action = Action {
    name: "luksAddKey",
    aliases: &[],
    arguments: &[IMAGE, "[<new key file>]"],
    options: &[
        KEY,
        VOLUME_KEY,
        HEADER,
        KDF,
        KEYSLOT,
        NEW_KEY,
        TOKENS,
        &[
            "tries",
            "key-slot",
            "new-keyfile",
            "new-key-slot",
            "unbound",
            "key-size",
            "new-token-id",
            "new-key-description",
        ],
    ],
    about: "add key to LUKS device",
    prepare: |options, mut arguments| {
        let args = AddKeyArgs::new(&options, &mut arguments)?;
        Ok(Prepared::new(move || scrubbed(|| args.run())))
    },
};

/// A keyslot to add.
struct AddKeyArgs {
    at: HeaderOptions,
    /// The existing passphrase or key.
    key: KeyOptions,
    new: NewKeyOptions,
    new_origin: NewOrigin,
    /// Number of the new keyslot.
    number: Option<u32>,
    keyslot: KeyslotArgs,
    /// Length in bytes of the key of an unbound keyslot.
    unbound: Option<usize>,
}

/// Origin of the new passphrase.
enum NewOrigin {
    /// The user, or a key file.
    Asked,
    /// The token of this number.
    Token(u32),
    /// The key of the kernel's keyring with this description.
    Keyring(String),
}

impl NewOrigin {
    fn new(options: &Options, new: &NewKeyOptions) -> anyhow::Result<Self> {
        match (options.new_token_id, &options.new_key_description, &new.key.source) {
            (None, None, _) => Ok(Self::Asked),
            (Some(number), None, KeySource::Ask) => Ok(Self::Token(number)),
            (None, Some(description), KeySource::Ask) => Ok(Self::Keyring(description.clone())),
            _ => Err(CliError::usage("Only one of new key file, --new-token-id and --new-key-description is allowed.")),
        }
    }
}

impl AddKeyArgs {
    fn new(options: &Options, arguments: &mut Arguments) -> anyhow::Result<Self> {
        let at = header_args(options, arguments.path()?)?;
        let mut key = existing_key_args(options, None)?;
        let unbound = match (options.unbound, options.key_size.map(key_bytes).transpose()?) {
            (true, None | Some(0)) => return Err(CliError::usage("Key size is required with --unbound option.")),
            (true, Some(len)) => Some(len),
            (false, Some(_)) if key.volume_key.is_none() => {
                return Err(CliError::usage("Option --key-size needs --unbound or --volume-key-file."));
            }
            (false, _) => None,
        };
        let new = new_key_args(options, arguments.optional())?;
        let mut number = options.new_key_slot;
        if number.is_none() && options.key_slot.is_some() {
            print_stderr("WARNING: The --key-slot parameter is used for new keyslot number.");
            number = key.slot.take();
        }
        // As in cryptsetup, a requested token is not replaced by a passphrase here.
        key.tokens.only |= key.tokens.is_requested();
        let new_origin = NewOrigin::new(options, &new)?;
        Ok(Self { at, key, new, new_origin, number, keyslot: keyslot_args(options)?, unbound })
    }

    fn run(&self) -> anyhow::Result<()> {
        let mut header = Header::load_to_edit(context(), &self.at)?;
        if self.unbound.is_some() {
            header.check_luks2()?;
        }
        let mut keyslot = self.keyslot.request(&header.volume)?;
        keyslot.number = self.number;
        let number = match self.unbound {
            Some(len) => self.add_unbound(&mut header, &mut keyslot, len)?,
            None => self.add(&mut header, &mut keyslot)?,
        };
        print_verbose(format_args!("Key slot {number} created."));
        Ok(())
    }

    fn add(&self, header: &mut Header, keyslot: &mut NewKeyslot) -> anyhow::Result<u32> {
        let mut checked = self.checked_token();
        let key = match &self.key.volume_key {
            // The header confirms it again.
            Some(source) => header.read_volume_key(source)?,
            None => {
                let prompt = Some("Enter any existing passphrase: ");
                let ask = Ask { device: header.path(), prompt, verify: self.key.verify, context: context() };
                let opened = header.open_bound_keyslot(&self.key, ask)?;
                checked.push(Checked::Keyslot(opened.number));
                opened.key
            }
        };
        let passphrase = self.new_passphrase(header)?;
        measure(keyslot, key.len())?;
        let added = header.edit(&checked, |volume, device| {
            let number = volume.add_keyslot(device, &key, &passphrase, keyslot)?;
            self.assign(volume, device, number)
        });
        Ok(added?)
    }

    fn new_passphrase(&self, header: &Header) -> anyhow::Result<Secret> {
        let prompt = "Enter new passphrase for key slot: ";
        match (&self.new_origin, &header.volume) {
            (NewOrigin::Asked, _) => Ok(secret::read_new(context(), &self.new, header.path(), prompt)?),
            (NewOrigin::Keyring(description), _) => Ok(token::keyring_passphrase(description)?),
            (NewOrigin::Token(number), Volume::Luks2(luks2)) => {
                let ask = Ask { device: header.path(), prompt: None, verify: false, context: context() };
                Ok(token::passphrase(luks2, &header.device, &self.key, *number, ask)?)
            }
            (NewOrigin::Token(_), _) => Err(inlock_open::Error::not_luks2(header.path()).into()),
        }
    }

    fn checked_token(&self) -> Vec<Checked> {
        match self.new_origin {
            NewOrigin::Token(number) => vec![Checked::Token(number)],
            _ => Vec::new(),
        }
    }

    /// Assigns the token that has the new passphrase to the new keyslot, as cryptsetup does. Returns the keyslot.
    fn assign(&self, volume: &mut Volume, device: &DeviceHeader, keyslot: u32) -> Result<u32, EditError> {
        if let (NewOrigin::Token(token), Volume::Luks2(luks2)) = (&self.new_origin, volume) {
            luks2.assign_token(device, *token, Some(keyslot))?;
        }
        Ok(keyslot)
    }

    fn add_unbound(&self, header: &mut Header, keyslot: &mut NewKeyslot, len: usize) -> anyhow::Result<u32> {
        let key = match &self.key.volume_key {
            Some(source) => secret::read_volume_key(source, Some(len))?,
            None => random_key(len)?,
        };
        let passphrase = self.new_passphrase(header)?;
        measure(keyslot, len)?;
        let added = header.edit(&self.checked_token(), |volume, device| {
            let number = volume.add_unbound_keyslot(device, &key, &passphrase, keyslot)?;
            self.assign(volume, device, number)
        });
        Ok(added?)
    }
}

fn random_key(len: usize) -> anyhow::Result<VolumeKey> {
    let mut key = VolumeKey::zeroed(len);
    getrandom::fill(key.as_mut_bytes()).context("cannot read random bytes")?;
    Ok(key)
}
