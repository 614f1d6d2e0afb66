//! `config`: sets labels of a LUKS2 header, or the priority of a keyslot.

use inlock_volume::{EditError, Priority, Volume};

use crate::args::action::{Action, HEADER, IMAGE, Prepared};
use crate::args::options::Options;
use crate::args::source::header_args;
use crate::error::CliError;
use crate::host::context;
use inlock_open::header::Header;
use inlock_open::source::HeaderOptions;

pub(crate) const ACTION: Action = Action {
    name: "config",
    aliases: &[],
    arguments: &[IMAGE],
    options: &[HEADER, &["label", "subsystem", "priority", "key-slot"]],
    about: "set permanent configuration options for LUKS2",
    prepare: |options, mut arguments| {
        let at = header_args(&options, arguments.path()?)?;
        let settings = Settings::new(&options)?;
        Ok(Prepared::new(move || run(&at, &settings)))
    },
};

/// Settings to change.
struct Settings {
    label: Option<String>,
    subsystem: Option<String>,
    /// Of which keyslot.
    priority: Option<(u32, Priority)>,
}

impl Settings {
    fn new(options: &Options) -> anyhow::Result<Self> {
        let priority = match (options.priority.as_deref(), options.key_slot) {
            (None, _) => None,
            (Some(_), None) => return Err(CliError::usage("Keyslot specification is required.")),
            (Some("ignore"), Some(slot)) => Some((slot, Priority::Ignore)),
            (Some("normal"), Some(slot)) => Some((slot, Priority::Normal)),
            (Some("prefer"), Some(slot)) => Some((slot, Priority::Prefer)),
            (Some(_), Some(_)) => {
                return Err(CliError::usage("Option --priority can be only ignore/normal/prefer."));
            }
        };
        if priority.is_none() && options.label.is_none() && options.subsystem.is_none() {
            return Err(CliError::usage("Option --priority, --label or --subsystem is missing."));
        }
        if priority.is_none() && options.key_slot.is_some() {
            return Err(CliError::usage("Option --key-slot needs --priority."));
        }
        Ok(Self { label: options.label.clone(), subsystem: options.subsystem.clone(), priority })
    }
}

fn run(at: &HeaderOptions, settings: &Settings) -> anyhow::Result<()> {
    let mut header = Header::load_to_edit(context(), at)?;
    header.check_luks2()?;
    Ok(header.edit(&[], |volume, device| {
        let Volume::Luks2(luks2) = volume else { return Err(EditError::NeedsLuks2("config")) };
        if let Some((slot, priority)) = settings.priority {
            luks2.set_priority(device, slot, priority)?;
        }
        if settings.label.is_some() || settings.subsystem.is_some() {
            // As in cryptsetup, both are set, and one that is not named is removed.
            let [label, subsystem] = [&settings.label, &settings.subsystem].map(|text| text.as_deref().unwrap_or(""));
            luks2.set_labels(device, Some(label), Some(subsystem))?;
        }
        Ok(())
    })?)
}
