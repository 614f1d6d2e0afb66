//! Every byte of a small volume changed: the change is detected or has no effect.

use crate::support::{fill, formatted, hash, memory, open_options};
use inlock_integrity::{FormatOptions, IntegrityDevice, Mode, Stores};

#[test]
fn every_changed_byte_is_detected_or_harmless() {
    let (mut detected, mut harmless) = (0, 0);
    for mode in [Mode::Journal, Mode::Direct] {
        let format = FormatOptions {
            tag_size: Some(200),
            internal_hash: Some(hash("hmac-sha256")),
            journal_mac: Some(hash("hmac-sha256")),
            interleave_sectors: 8,
            journal_sectors: Some(1),
            salt: Some([5; 16]),
            ..FormatOptions::default()
        };
        let store = memory(formatted(&format, 40 << 10, None).0);
        let open = open_options(mode, &format);
        let device = IntegrityDevice::open(Stores::interleaved(store.clone()), open.clone()).unwrap();
        let blocks = device.layout().blocks();
        for block in 0..blocks {
            device.write(block, &fill(block, 1, 512), &[]).unwrap();
        }
        // With a journal, some of the blocks are only there.
        device.flush().unwrap();
        drop(device);
        let image = store.contents();
        for at in 0..image.len() {
            let mut changed = image.clone();
            changed[at] ^= 1 << (at % 8);
            let opened = IntegrityDevice::open(Stores::interleaved(memory(changed)), open.clone());
            let Ok(device) = opened else {
                detected += 1;
                continue;
            };
            let mut found = device.metrics().mismatches > 0;
            for block in 0..blocks {
                let mut data = [0; 512];
                match device.read(block, &mut data, &mut []) {
                    Ok(()) => assert!(data[..] == fill(block, 1, 512), "{mode:?}: byte {at} changes block {block}"),
                    Err(_) => found = true,
                }
            }
            if found { detected += 1 } else { harmless += 1 }
        }
    }
    println!("COUNT integrity_changed_bytes_judged {}", detected + harmless);
    println!("COUNT integrity_changed_bytes_detected {detected}");
    assert!(detected > 10_000, "{detected} detected, {harmless} harmless");
}
