//! `verity verify`: compares all data with a tree, and the tree with the root hash.

use std::path::Path;

use inlock_engine::store::file::IoMode;
use inlock_verity::{verify, verify_repairing};

use crate::host::context;
use crate::ui::print::warn;
use inlock_open::device::OpenMode;
use inlock_open::verity::{VerityDevices, VerityOptions, cannot_use};

pub(super) fn run(data: &Path, args: &VerityOptions, threads: usize) -> anyhow::Result<()> {
    let devices = VerityDevices::open(context(), data, &args.hash_device, args.fec.as_ref(), OpenMode::Read)?;
    let opening = args.load(&devices)?;
    let stores = opening.stores(&devices.data, devices.hash.as_ref(), IoMode::Sync)?;
    let cannot_use = cannot_use(&devices.hash().path);
    let Some(fec) = &opening.fec else {
        return Ok(verify(&stores, &opening.layout, &opening.root, threads).map_err(cannot_use)?);
    };
    let corrected = verify_repairing(&stores, &opening.layout, &opening.root, &fec.fec, threads);
    match corrected.map_err(cannot_use)? {
        0 => {}
        count => warn(format_args!("found {count} repairable errors with FEC device {}", fec.path.display())),
    }
    Ok(())
}
