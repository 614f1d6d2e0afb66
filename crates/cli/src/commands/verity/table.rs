//! `verity table`: prints the device-mapper table of a device.

use std::path::Path;

use inlock_volume::table::{AnyTable, ShowKeys};

use crate::commands::table::print_table;
use crate::host::context;
use crate::ui::print::warn;
use inlock_open::device::OpenMode;
use inlock_open::info::resolved;
use inlock_open::verity::{FecDevice, VerityDevices, VerityOptions};
use inlock_open::verity_table::of_volume;

pub(super) fn run(data: &Path, args: &VerityOptions, json: bool) -> anyhow::Result<()> {
    let devices = VerityDevices::open(context(), data, &args.hash_device, args.fec.as_ref(), OpenMode::Read)?;
    let opening = args.load(&devices)?;
    let own = devices.fec().filter(|_| matches!(devices.fec, Some(FecDevice::Own(_))));
    let all = std::iter::once(&devices.data).chain(&devices.hash).chain(own);
    for device in all.filter(|device| !device.is_block()) {
        let path = device.path.display();
        warn(format_args!("{path} is a file; the Linux kernel needs a block device, such as a loop device"));
    }
    let table = of_volume(&opening, &resolved(&devices.data.path), &resolved(&devices.hash().path));
    if !table.verity.has_blocks_of_the_kernel() {
        let len = table.verity.data_block_size;
        warn(format_args!("the Linux kernel would refuse the line: data blocks of {len} bytes exceed its page"));
    }
    print_table(&AnyTable::Verity(Box::new(table)), ShowKeys::No, json)
}
