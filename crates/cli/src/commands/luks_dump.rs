//! `luksDump`: prints the header, or LUKS2's metadata as stored.

use inlock_volume::Printable;

use crate::args::action::{Action, HEADER, IMAGE, Prepared};
use crate::args::source::header_args;
use crate::error::CliError;
use crate::ui::print::print;
use crate::volume::header::Header;
use crate::volume::source::HeaderArgs;

pub(crate) const ACTION: Action = Action {
    name: "luksDump",
    aliases: &[],
    arguments: &[IMAGE],
    options: &[HEADER, &["dump-json-metadata"]],
    about: "print the header of a LUKS volume",
    prepare: |options, mut arguments| {
        let json = options.dump_json_metadata;
        let args = header_args(options, arguments.path()?)?;
        Ok(Prepared::new(move || run(&args, json)))
    },
};

fn run(args: &HeaderArgs, json: bool) -> anyhow::Result<()> {
    let header = Header::load(args, false)?;
    if json {
        let metadata = header.volume.metadata_json().ok_or_else(|| {
            CliError::refused(
                "A LUKS1 header has no JSON metadata.",
                "use `inlock luksDump` without --dump-json-metadata",
            )
        })?;
        return print(format_args!("{}\n", Printable::with_layout(metadata.trim_end_matches('\n'))));
    }
    let device = header.device.path.display().to_string();
    let text = header.volume.dump(&device).to_string();
    print(format_args!("{}\n", text.trim_end_matches('\n')))
}
