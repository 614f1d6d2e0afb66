//! `resume`: restores the key of a suspended volume, and resumes I/O.
//!
//! This process asks the user, derives and verifies the key; the process of the volume gets only the volume key.

use std::path::PathBuf;

use anyhow::Context;
use inlock_volume::HeaderPolicy;
use inlock_volume::plain::Plain;
use inlock_volume::table::CryptOptions;
use serde_json::json;

use crate::args::action::{Action, Alias, KEY, NAME, Prepared, TOKENS, VOLUME_KEY};
use crate::args::source::{key_args, policy_of};
use crate::control::client::Client;
use crate::control::info::RuntimeInfo;
use crate::control::name::Name;
use crate::error::CliError;
use crate::system::pipe;
use crate::volume::open::ask_key;
use crate::volume::source::{KeyArgs, Luks, SourceArgs, VolumeType};

pub(crate) const ACTION: Action = Action {
    name: "resume",
    aliases: &[Alias::new("luksResume")],
    arguments: &[NAME],
    options: &[KEY, VOLUME_KEY, TOKENS, &["tries", "key-slot", "header", "key-size", "disable-locks", "policy"]],
    about: "restore the key and resume I/O",
    prepare: |options, mut arguments| {
        let (key, policy) = (key_args(&options)?, policy_of(&options)?);
        let args = ResumeArgs { name: arguments.name()?, key, header: options.header, policy };
        Ok(Prepared::new(move || run(&args)))
    },
};

/// A volume to resume.
struct ResumeArgs {
    name: Name,
    key: KeyArgs,
    /// A header other than the one that the volume was opened with.
    header: Option<PathBuf>,
    policy: HeaderPolicy,
}

fn run(args: &ResumeArgs) -> anyhow::Result<()> {
    let mut client = Client::of(&args.name)?;
    let status = client.status()?;
    let resume = json!({"command": "resume"});
    if !status.suspended || status.key_present || !status.info.has_key() {
        return client.command(&resume, None).map(drop);
    }
    let source = source(args, &status.info)?;
    let key = ask_key(&source)?;
    let pipe = pipe::filled(key.as_bytes()).context("cannot pass the key")?;
    drop(key);
    // The first connection may have been dropped while the user was asked.
    Client::of(&args.name)?.command(&resume, Some(&pipe)).map(drop)
}

/// Returns the source that the volume was opened from, as far as the key depends on it.
fn source(args: &ResumeArgs, info: &RuntimeInfo) -> anyhow::Result<SourceArgs> {
    let volume_type = match &*info.kind {
        "LUKS1" => VolumeType::Luks(Luks::One),
        "LUKS2" => VolumeType::Luks(Luks::Two),
        "PLAIN" => VolumeType::Plain(plain(info).context("The process sent an invalid status.")?),
        _ => {
            return Err(CliError::refused(
                format!("The key of {} came with its table.", info.name),
                "run `inlock reload NAME --table` with a table that has the key, then `inlock resume`",
            ));
        }
    };
    if args.header.is_some() && !matches!(volume_type, VolumeType::Luks(_)) {
        return Err(CliError::usage("Option --header is allowed only for LUKS volumes."));
    }
    let header = args.header.clone().or_else(|| info.header.clone());
    let flags = CryptOptions::default();
    // Only the key comes from the header, which may have changed. The mapping stays as opened.
    let mut policy = args.policy.clone();
    (policy.allow_null_cipher, policy.allow_null_iv, policy.allow_linear_segment) = (true, true, true);
    Ok(SourceArgs { image: info.device.clone(), header, volume_type, key: args.key.clone(), flags, policy })
}

fn plain(info: &RuntimeInfo) -> Option<Plain> {
    let segment = info.segments.first()?;
    let mut plain = Plain::default();
    plain.cipher = segment.cipher.as_deref()?.parse().ok()?;
    plain.key_len = segment.key_bits / 8;
    plain.hash = info.hash.as_deref()?.parse().ok()?;
    Some(plain)
}
