//! `verity verify`: compares all data with a tree, and the tree with the root hash.

use std::path::Path;

use inlock_engine::store::file::IoMode;
use inlock_verity::verify;

use crate::volume::device::OpenMode;
use crate::volume::verity::{VerityArgs, VerityDevices, cannot_use};

pub(super) fn run(data: &Path, args: &VerityArgs, threads: usize) -> anyhow::Result<()> {
    let devices = VerityDevices::open(data, &args.hash_device, OpenMode::Read)?;
    let opening = args.load(&devices)?;
    let stores = opening.stores(&devices.data, devices.hash.as_ref(), IoMode::Sync)?;
    verify(&stores, &opening.layout, &opening.root, threads).map_err(cannot_use(&devices.hash().path))
}
