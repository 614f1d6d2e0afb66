//! `luksDump`: prints the header, or LUKS2's metadata as stored.

use inlock_volume::Printable;

use crate::args::HeaderArgs;
use crate::exit::{self, Problem};
use crate::source::Header;

pub(crate) fn run(args: &HeaderArgs, json: bool) -> anyhow::Result<()> {
    let header = Header::load(args, false)?;
    if json {
        let metadata = header.volume.metadata_json().ok_or_else(|| {
            Problem::refused(
                "A LUKS1 header has no JSON metadata.",
                "`inlock luksDump` without --dump-json-metadata prints it",
            )
        })?;
        return exit::print(format_args!("{}\n", Printable::with_layout(metadata.trim_end_matches('\n'))));
    }
    let device = header.device.path.display().to_string();
    let text = header.volume.dump(&device).to_string();
    exit::print(format_args!("{}\n", text.trim_end_matches('\n')))
}
