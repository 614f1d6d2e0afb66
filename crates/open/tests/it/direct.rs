//! Direct I/O on block devices.

use crate::locks::loop_device;
use crate::{Image, silent};
use inlock_engine::Access;
use inlock_engine::store::file::IoMode;
use inlock_open::source::VolumeType;
use inlock_open::{KeySource, OpenOptions, open};
use inlock_volume::plain::Plain;
use rustix::fs::OFlags;
use std::fs;
use std::path::Path;

/// Whether this process has opened a file or device for direct I/O.
fn is_direct(path: &Path) -> bool {
    let is_direct = |name: &Path| {
        let info = fs::read_to_string(Path::new("/proc/self/fdinfo").join(name)).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).unwrap_or(0);
        OFlags::from_bits_retain(flags).contains(OFlags::DIRECT)
    };
    let open = fs::read_dir("/proc/self/fd").expect("descriptors").flatten();
    let mut of_path = open.filter(|one| fs::read_link(one.path()).is_ok_and(|target| target == path));
    of_path.any(|one| is_direct(Path::new(&one.file_name())))
}

#[test]
fn encrypted_block_device_has_direct_io_where_it_is_asked_for() {
    let Some((_file, node)) = loop_device() else { return };
    let image = Image::new();
    let plain = || VolumeType::Plain(Plain::default());
    let cases = [
        (&node.0, plain(), true, true),
        (&node.0, plain(), false, false),
        (&node.0, VolumeType::Raw, true, false),
        (&image.path(), plain(), true, false),
    ];
    for (path, volume_type, asks, expected) in cases {
        let options = OpenOptions::new(path, volume_type, KeySource::bytes([7; 32]));
        let mut volume = open(&silent(), &options, true, None).expect("it opens");
        if asks {
            volume.use_direct_io();
        }
        let volume = volume.into_device(IoMode::Sync, Access::default()).expect("a device");
        assert_eq!(is_direct(path), expected, "{}, {asks}", path.display());
        drop(volume);
    }
}
