//! `open --test-passphrase`: reports by the exit status whether a passphrase unlocks the volume.

use crate::error::CliError;
use crate::volume::header::Header;
use crate::volume::secret::Ask;
use crate::volume::source::{HeaderArgs, SourceArgs, VolumeType};

pub(super) fn run(args: &SourceArgs) -> anyhow::Result<()> {
    let VolumeType::Luks(luks) = args.volume_type else {
        return Err(CliError::usage("Option --test-passphrase is allowed only for LUKS volumes."));
    };
    let at = HeaderArgs { image: args.image.clone(), header: args.header.clone(), luks };
    let header = Header::load(&at, false)?;
    header.check(&args.policy)?;
    let ask = Ask { device: &args.image, verify: args.key.verify, stdin_taken: false };
    header.unlock(&args.key, &args.policy, ask).map(drop)
}
