//! `resume`: restores the key of a suspended volume, and resumes I/O.
//!
//! This process asks the user, derives and verifies the key; the process of the volume gets only the volume key.

use anyhow::Context;
use serde_json::json;

use super::running_key::{RunningKey, check_type};
use crate::args::action::{Action, Alias, KEY, NAME, Prepared, REMOTE, TOKENS, UNLOCK};
use crate::args::source::links_of;
use crate::error::CliError;
use crate::host::context;
use inlock_open::keyring::{KeyLink, LinkedKeys, check_links};
use inlock_open::open::ask_key;
use inlock_serve::control::client::Client;
use inlock_serve::control::name::Name;
use inlock_serve::pipe;

pub(crate) const ACTION: Action = Action {
    name: "resume",
    aliases: &[Alias { volume_type: Some("luks"), ..Alias::new("luksResume") }],
    arguments: &[NAME],
    options: &[
        KEY,
        TOKENS,
        UNLOCK,
        REMOTE,
        &["key-size", "policy", "serialize-memory-hard-pbkdf", "link-vk-to-keyring"],
    ],
    about: "restore the key and resume I/O",
    prepare: |options, mut arguments| {
        let (name, key, links) = (arguments.name()?, RunningKey::new(&options)?, links_of(&options)?);
        let volume_type = options.volume_type;
        Ok(Prepared::new(move || run(&name, &key, &links, volume_type.as_deref())))
    },
};

fn run(name: &Name, key: &RunningKey, links: &[KeyLink], volume_type: Option<&str>) -> anyhow::Result<()> {
    let mut client = Client::of(context(), name)?;
    let status = client.status()?;
    check_type(&status.info, volume_type)?;
    let resume = json!({"command": "resume"});
    check_links(links, &status.info.kind)?;
    if !status.suspended || status.key_present || !status.info.has_key() {
        if !links.is_empty() {
            return Err(CliError::refused(
                format!("Volume {name} has its key, so none is asked for."),
                "to link the key, run `inlock open --test-passphrase IMAGE --link-vk-to-keyring …`",
            ));
        }
        client.command(&resume, None)?;
        return Ok(());
    }
    let source = key.source(&status.info)?;
    let key = ask_key(context(), &source)?;
    let pipe = pipe::filled(key.as_bytes()).context("cannot pass the key")?;
    let linked = LinkedKeys::link(links, &key)?;
    drop(key);
    // The first connection may have been dropped while the user was asked.
    Client::of(context(), name)?.command(&resume, Some(&pipe))?;
    linked.keep();
    Ok(())
}
