//! Every flipped bit of a small device is detected.

use crate::support::{Device, parameters, read};
use inlock_cipher::Hash;
use inlock_verity::{HashType, OpenOptions, Parameters, VerityError};

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
