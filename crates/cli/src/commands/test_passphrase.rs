//! `open --test-passphrase`: reports by the exit status whether a passphrase unlocks the volume.

use crate::error::CliError;
use crate::host::context;
use inlock_open::edit::scrubbed;
use inlock_open::header::Header;
use inlock_open::keyring::{LinkedKeys, check_links};
use inlock_open::reencryption::try_passphrase;
use inlock_open::secret::Ask;
use inlock_open::source::{HeaderOptions, Luks, OpenOptions, VolumeType};

/// Returns the version of the header, or fails if the type has no header.
pub(super) fn check_type(args: &OpenOptions) -> anyhow::Result<Luks> {
    match args.volume_type {
        VolumeType::Luks(luks) => Ok(luks),
        _ => Err(CliError::usage("Option --test-passphrase is allowed only for LUKS volumes.")),
    }
}

/// Tests a passphrase. An unbound keyslot counts if it is named, or with `unbound`.
pub(super) fn run(args: &OpenOptions, luks: Luks, unbound: bool) -> anyhow::Result<()> {
    let at =
        HeaderOptions { image: args.image.clone(), header: args.header.clone(), luks, policy: args.policy.clone() };
    let header = Header::load(context(), &at, false)?;
    let ask = Ask { device: &args.image, prompt: None, verify: args.key.verify, context: context() };
    if scrubbed(|| try_passphrase(&header, &args.key, &args.policy, ask))? {
        return Ok(());
    }
    header.check(&args.policy)?;
    check_links(&args.links, &header.kind())?;
    let of_keyslot = args.key.volume_key.is_none() && (unbound || args.key.slot.is_some());
    scrubbed(|| -> inlock_open::Result<()> {
        let key = match of_keyslot {
            true => match header.try_tokens(&args.key, &args.policy, ask)? {
                Some(unlocked) => unlocked.key,
                None => header.open_keyslot(&args.key, ask)?.key,
            },
            false => header.unlock(&args.key, &args.policy, ask)?.key,
        };
        LinkedKeys::link(&args.links, &key).map(LinkedKeys::keep)
    })?;
    Ok(())
}
