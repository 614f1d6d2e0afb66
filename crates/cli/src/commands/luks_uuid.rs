//! `luksUUID`: prints the UUID of a LUKS volume.

use inlock_volume::Printable;

use crate::args::HeaderArgs;
use crate::exit;
use crate::source::Header;

pub(crate) fn run(args: &HeaderArgs) -> anyhow::Result<()> {
    let header = Header::load(args, false)?;
    exit::print(format_args!("{}\n", Printable::new(header.volume.uuid())))
}
