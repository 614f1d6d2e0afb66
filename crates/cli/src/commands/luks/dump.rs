//! `luksDump`: prints the header, LUKS2's metadata as stored, or a key.

use super::dump_key::DumpKeyArgs;
use crate::args::action::{Action, Arguments, HEADER, IMAGE, KEY, Prepared, TOKENS};
use crate::args::keyslot::existing_key_args;
use crate::args::options::Options;
use crate::args::source::header_args;
use crate::error::CliError;
use crate::host::context;
use crate::ui::print::print;
use inlock_open::edit::scrubbed;
use inlock_open::header::Header;
use inlock_open::source::HeaderOptions;

pub(crate) const ACTION: Action = Action {
    name: "luksDump",
    aliases: &[],
    arguments: &[IMAGE],
    options: &[
        HEADER,
        KEY,
        TOKENS,
        &["tries", "dump-json-metadata", "dump-volume-key", "volume-key-file", "unbound", "key-slot"],
    ],
    about: "print the header of a LUKS volume, or a key with --dump-volume-key or --unbound",
    prepare,
};

fn prepare(options: Options, mut arguments: Arguments) -> anyhow::Result<Prepared> {
    let at = header_args(&options, arguments.path()?)?;
    let json = options.dump_json_metadata;
    if options.dump_volume_key || options.unbound {
        if json || options.dump_volume_key && options.unbound {
            return Err(CliError::usage(
                "Only one of --dump-volume-key, --unbound and --dump-json-metadata is allowed.",
            ));
        }
        if options.unbound && options.key_slot.is_none() {
            return Err(CliError::usage("Keyslot specification is required."));
        }
        let mut key = existing_key_args(&options, None)?;
        key.volume_key = None;
        let unbound = options.key_slot.filter(|_| options.unbound);
        let args = DumpKeyArgs { at, key, output: options.volume_key_file, unbound, batch: options.batch_mode };
        return Ok(Prepared::new(move || scrubbed(|| args.run())));
    }
    let needs_key = [
        (options.volume_key_file.is_some(), "volume-key-file"),
        (options.key_slot.is_some(), "key-slot"),
        (options.key_file.is_some(), "key-file"),
        (options.token_id.is_some(), "token-id"),
        (options.token_type.is_some(), "token-type"),
        (options.token_only, "token-only"),
    ];
    if let Some((_, option)) = needs_key.iter().find(|(given, _)| *given) {
        return Err(CliError::usage(format!("Option --{option} needs --dump-volume-key or --unbound.")));
    }
    Ok(Prepared::new(move || run(&at, json)))
}

fn run(args: &HeaderOptions, json: bool) -> anyhow::Result<()> {
    let header = Header::load(context(), args, false)?;
    if json {
        let metadata = header.volume.metadata_json().ok_or_else(|| {
            CliError::refused(
                "A LUKS1 header has no JSON metadata.",
                "use `inlock luksDump` without --dump-json-metadata",
            )
        })?;
        return print(format_args!("{}\n", metadata.trim_end_matches('\n')));
    }
    let device = header.device.path.display().to_string();
    let text = header.volume.dump(&device).to_string();
    print(format_args!("{}\n", text.trim_end_matches('\n')))
}
