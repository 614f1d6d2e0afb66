//! Another table for a running volume.

use crate::{Image, silent};
use inlock_engine::store::file::IoMode;
use inlock_engine::{Access, BlockingDevice};
use inlock_open::reload::reload;
use inlock_open::source::VolumeType;
use inlock_open::table::TableSource;
use inlock_open::{ErrorKind, KeySource, OpenOptions, open};
use inlock_volume::Table;
use std::ffi::OsStr;

/// Returns a line of 8 sectors at the start of the device.
fn crypt(image: &Image, cipher: &str, key: &str, options: &str) -> String {
    format!("0 8 crypt {cipher} {} 0 {} 0 {options}", key.repeat(16), image.path().display())
}

#[test]
fn table_that_does_not_fit_what_runs_is_refused() {
    let (image, other) = (Image::new(), Image::new());
    let aes = |image: &Image, options: &str| crypt(image, "aes-cbc-plain64", "ab", options);
    let legacy = crypt(&image, "blowfish-cbc-plain64", "ab", "");
    let linear = |image: &Image| format!("0 8 linear {} 0", image.path().display());
    for read_only in [false, true] {
        let cases = [
            (aes(&image, ""), None),
            (crypt(&image, "aes-cbc-plain64", "cd", ""), None),
            (linear(&image), None),
            ("0 8 zero".to_owned(), None),
            (legacy.clone(), (!read_only).then_some(ErrorKind::TableLegacyCipher)),
            (aes(&image, "1 allow_discards"), Some(ErrorKind::TableAllowsDiscards)),
            (aes(&other, ""), Some(ErrorKind::TableOtherDevice)),
            (linear(&other), Some(ErrorKind::TableOtherDevice)),
        ];
        let table = TableSource::parse(OsStr::new(&aes(&image, ""))).expect("a table");
        let options = OpenOptions::new("/nonexistent", VolumeType::Table(table), KeySource::Ask);
        let volume = open(&silent(), &options, !read_only, None).expect("it opens");
        let info = volume.info.clone();
        let volume = volume.into_device(IoMode::Sync, Access::default()).expect("a device");
        assert_eq!(volume.device.access().read_only, read_only);
        for (text, refused) in cases {
            let table = Table::parse(&text).expect("a table");
            let reloaded = reload(&silent(), &table, &volume.device, &info.segments, &info.devices);
            assert_eq!(reloaded.map(drop).map_err(|error| error.kind()).err(), refused, "{text}, {read_only}");
        }
        let table = Table::parse("0 8 zero").expect("a table");
        let reloaded = reload(&silent(), &table, &volume.device, &info.segments, &info.devices).expect("it fits");
        volume.device.reload(reloaded.mapping).expect("it is as long");
        let mut read = [1; 512];
        BlockingDevice::new(volume.device.clone()).read_at(&mut read, 0).expect("zeroes");
        assert_eq!(read, [0; 512]);
    }
}
