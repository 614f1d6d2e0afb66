//! `resume`: gives a suspended volume its key back, and lets its requests go on.
//!
//! The user is asked, and the key derived and verified, here; the process that serves gets the volume key and nothing else.

use anyhow::Context;
use inlock_volume::HeaderPolicy;
use inlock_volume::plain::Plain;
use inlock_volume::table::CryptOptions;
use serde_json::json;

use crate::args::{Kind, Luks, ResumeArgs, SourceArgs};
use crate::control::{Client, Facts, pipe};
use crate::exit::Problem;
use crate::source;

pub(crate) fn run(args: &ResumeArgs) -> anyhow::Result<()> {
    let mut client = Client::of(&args.name)?;
    let status = client.status()?;
    let resume = json!({"command": "resume"});
    if !status.suspended || status.key_present || !status.facts.has_key() {
        return client.command(&resume, None).map(drop);
    }
    let source = source(args, &status.facts)?;
    let key = source::ask_key(&source)?;
    let pipe = pipe::filled(key.as_bytes()).context("cannot hand over the key")?;
    drop(key);
    // Typing may have taken longer than a connection is kept.
    Client::of(&args.name)?.command(&resume, Some(&pipe)).map(drop)
}

/// What was opened, as far as the key depends on it.
fn source(args: &ResumeArgs, facts: &Facts) -> anyhow::Result<SourceArgs> {
    let kind = match &*facts.kind {
        "LUKS1" => Kind::Luks(Luks::One),
        "LUKS2" => Kind::Luks(Luks::Two),
        "PLAIN" => Kind::Plain(plain(facts).context("the process says what cannot be")?),
        _ => {
            return Err(Problem::refused(
                format!("The key of {} came with its table.", facts.name),
                "`inlock reload NAME --table` gives it the table with the key again",
            ));
        }
    };
    if args.header.is_some() && !matches!(kind, Kind::Luks(_)) {
        return Err(Problem::usage("Option --header is for LUKS volumes."));
    }
    let header = args.header.clone().or_else(|| facts.header.clone());
    let flags = CryptOptions::default();
    // What is served stays what it was when it was opened, whatever the header says by now; only the key comes from it.
    let mut policy = HeaderPolicy::new();
    (policy.allow_null_cipher, policy.allow_null_iv, policy.allow_linear_segment) = (true, true, true);
    Ok(SourceArgs { image: facts.device.clone(), header, kind, key: args.key.clone(), flags, policy })
}

fn plain(facts: &Facts) -> Option<Plain> {
    let segment = facts.segments.first()?;
    Some(Plain {
        cipher: segment.cipher.as_deref()?.parse().ok()?,
        key_len: segment.key_bits / 8,
        hash: facts.hash.as_deref()?.parse().ok()?,
        ..Plain::default()
    })
}
