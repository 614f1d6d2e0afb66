//! Every flipped bit of a small device is detected.

use crate::support::{Device, parameters, read};
use inlock_cipher::Hash;
use inlock_verity::{Area, HashType, OpenOptions, Parameters, VerityError};

fn devices() -> Vec<Device> {
    let small = |hash_type, hash| Parameters { hash_type, ..parameters(hash, 512, 512, 17) };
    let devices =
        [(HashType::Normal, Hash::Sha256), (HashType::ChromeOs, Hash::Sha256), (HashType::Normal, Hash::Sha1)];
    devices.map(|(hash_type, hash)| Device::new(&small(hash_type, hash))).into()
}

/// A flipped bit in the data, or in the tree, fails the verification and some read; the read of everything returns no
/// other byte than was written.
#[test]
fn every_flipped_bit_is_detected() {
    let mut detected = 0;
    for device in &mut devices() {
        let (data_bits, tree_bits) = (device.data.len() * 8, device.tree.len() * 8);
        for bit in 0..data_bits + tree_bits {
            let (in_data, bit) = (bit < data_bits, if bit < data_bits { bit } else { bit - data_bits });
            let written = device.data.clone();
            let bytes = if in_data { &mut device.data } else { &mut device.tree };
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(device.verify(), Err(VerityError::Corrupt(_))), "bit {bit}, data: {in_data}");
            match device.open(OpenOptions::default()) {
                // The topmost block has another digest.
                Err(error) => assert!(!in_data && matches!(error, VerityError::Corrupt(_))),
                Ok(store) => {
                    let blocks = 0..written.len() / 512;
                    let reads: Vec<_> = blocks.map(|block| read(&store, block as u64 * 512, 512)).collect();
                    assert!(reads.iter().any(Result::is_err), "bit {bit}, data: {in_data}");
                    let good = |(read, written): (&Result<Vec<u8>, _>, &[u8])| {
                        read.as_ref().is_ok_and(|r| r == written) || read.is_err()
                    };
                    assert!(reads.iter().zip(written.chunks(512)).all(good), "bit {bit}, data: {in_data}");
                }
            }
            let bytes = if in_data { &mut device.data } else { &mut device.tree };
            bytes[bit / 8] ^= 1 << (bit % 8);
            detected += 1;
        }
        device.verify().unwrap();
    }
    println!("COUNT verity_flipped_bits_detected {detected}");
}

/// Bytes of the last block that no digest uses: the kernel's readers cannot see them, the verification can.
#[test]
fn bytes_behind_the_digests_are_reported_as_spare() {
    let mut device = Device::new(&parameters(Hash::Sha256, 512, 4096, 20));
    device.tree[4095] = 1;
    let parent = device.tree.clone();
    device.root = Hash::Sha256.digest(&[&[0xa5; 32], &parent])[..32].to_vec();
    let error = device.verify().unwrap_err().to_string();
    assert_eq!(error, "hash block 0 of level 0 at position 0 has unused bytes that are not zero");
    assert!(device.open(OpenOptions::default()).is_ok());
}

/// The second block of a level, which has fewer digests than its length allows, below a topmost block.
#[test]
fn corruption_is_named_by_its_block_and_place() {
    let sound = Device::new(&parameters(Hash::Sha256, 512, 512, 20));
    let stored = |level: usize, block: u64| {
        let start = (sound.layout.levels()[level].start_block + block) as usize * 512;
        start..start + 512
    };
    let found = |device: &Device| match device.verify() {
        Err(VerityError::Corrupt(corruption)) => corruption,
        other => panic!("{other:?}"),
    };
    for block in [0, 3, 15, 16, 18, 19] {
        let mut device = copy(&sound);
        device.data[block * 512 + 7] ^= 4;
        let corruption = found(&device);
        assert_eq!((corruption.area, corruption.block), (Area::Data, block as u64));
        assert_eq!((corruption.position, corruption.is_root, corruption.is_spare), (block as u64 * 512, false, false));
    }
    // Digests of level 0 are those of level 1: the block, and not what it covers, is bad.
    for block in [0, 1] {
        let mut device = copy(&sound);
        device.tree[stored(0, block).start] ^= 1;
        let corruption = found(&device);
        assert_eq!((corruption.area, corruption.block), (Area::Level(0), block));
    }
    // Bytes behind the four digests of the second block, with digests that cover them.
    let mut device = copy(&sound);
    for at in [4 * 32, 511] {
        device.tree[stored(0, 1)][at] ^= 1;
    }
    let digest = |bytes: &[u8]| Hash::Sha256.digest(&[&[0xa5; 32], bytes])[..32].to_vec();
    let lower = digest(&device.tree[stored(0, 1)]);
    device.tree[stored(1, 0)][32..64].copy_from_slice(&lower);
    device.root = digest(&device.tree[stored(1, 0)]);
    let corruption = found(&device);
    assert_eq!((corruption.area, corruption.block, corruption.is_spare), (Area::Level(0), 1, true));
    // The same of the topmost block, whose digest is the root hash and not wrong.
    let mut device = copy(&sound);
    device.tree[stored(1, 0)][511] = 1;
    device.root = digest(&device.tree[stored(1, 0)]);
    let corruption = found(&device);
    assert_eq!((corruption.area, corruption.is_spare, corruption.is_root), (Area::Level(1), true, false));
    let mut device = copy(&sound);
    device.tree[stored(1, 0)][0] ^= 1;
    let corruption = found(&device);
    assert_eq!((corruption.area, corruption.is_spare, corruption.is_root), (Area::Level(1), false, true));
}

fn copy(device: &Device) -> Device {
    let Device { data, tree, layout, root } = device;
    Device { data: data.clone(), tree: tree.clone(), layout: layout.clone(), root: root.clone() }
}
