//! `control`: commands to a server of many volumes.

use std::path::Path;

use crate::args::action::{Action, Prepared};
use crate::error::CliError;
use crate::many::control;
use crate::ui::print::print;

pub(crate) const ACTION: Action = Action {
    name: "control",
    aliases: &[],
    arguments: &["<socket>", "<command>", "[<volume>]"],
    options: &[],
    about: "list, reload or close volumes of a server with --config",
    prepare: |_, mut arguments| {
        let (socket, command) = (arguments.path()?, arguments.word()?);
        let volume = arguments.optional().map(|volume| volume.to_string_lossy().into_owned());
        match (command.as_str(), &volume) {
            ("list" | "reload", None) | ("close", Some(_)) => {}
            ("list" | "reload", Some(_)) => return Err(CliError::usage(format!("Command {command} takes no volume."))),
            ("close", None) => return Err(CliError::usage("Command close requires a volume.")),
            _ => return Err(CliError::usage(format!("Command '{command}' is none of list, reload, close."))),
        }
        Ok(Prepared::new(move || run(&socket, &command, volume.as_deref())))
    },
};

fn run(socket: &Path, command: &str, volume: Option<&str>) -> anyhow::Result<()> {
    print(format_args!("{}\n", control::call(socket, command, volume)?))
}
