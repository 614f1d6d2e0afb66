//! `open --test-passphrase`: whether a passphrase opens the volume, by the exit status.

use crate::args::{HeaderArgs, Kind, SourceArgs};
use crate::exit::Problem;
use crate::secret::Ask;
use crate::source::Header;

pub(crate) fn run(args: &SourceArgs) -> anyhow::Result<()> {
    let Kind::Luks(luks) = args.kind else {
        return Err(Problem::usage("Option --test-passphrase is allowed only for LUKS volumes."));
    };
    let at = HeaderArgs { image: args.image.clone(), header: args.header.clone(), luks };
    let header = Header::load(&at, false)?;
    header.check(&args.policy)?;
    let ask = Ask { device: &args.image, verify: args.key.verify, stdin_taken: false };
    header.unlock(&args.key, &args.policy, ask).map(drop)
}
