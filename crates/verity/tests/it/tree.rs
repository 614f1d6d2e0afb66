//! Trees against a naive implementation, and the places of levels.

use crate::support::{Device, memory, noise, parameters};
use inlock_cipher::Hash;
use inlock_verity::{HashType, Parameters, Stores, create, random_salt, verify};

/// Digests of blocks, each made alone, and the blocks of digests of the level above.
fn naive_level(parameters: &Parameters, blocks: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let (hash, normal) = (parameters.hash, parameters.hash_type == HashType::Normal);
    let digests: Vec<Vec<u8>> = blocks
        .iter()
        .map(|block| {
            let parts = if normal { [&parameters.salt[..], block] } else { [block, &parameters.salt[..]] };
            let mut digest = hash.digest(&parts)[..hash.len()].to_vec();
            if normal {
                digest.resize(hash.len().next_power_of_two(), 0);
            }
            digest
        })
        .collect();
    // As many as fit, rounded down to a power of two.
    let mut per_block = 1;
    while per_block * 2 * hash.len() <= parameters.hash_block_len as usize {
        per_block *= 2;
    }
    let padded = |digests: &[Vec<u8>]| {
        let mut block = digests.concat();
        block.resize(parameters.hash_block_len as usize, 0);
        block
    };
    digests.chunks(per_block).map(padded).collect()
}

fn naive(parameters: &Parameters, data: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut blocks: Vec<Vec<u8>> = data.chunks(parameters.data_block_len as usize).map(<[u8]>::to_vec).collect();
    let mut levels = Vec::new();
    while blocks.len() > 1 {
        blocks = naive_level(parameters, &blocks);
        levels.push(blocks.concat());
    }
    levels.reverse();
    let root = naive_level(parameters, &blocks)[0][..parameters.hash.len()].to_vec();
    (levels.concat(), root)
}

#[test]
fn tree_equals_a_naive_one_in_every_shape() {
    let mut compared = 0;
    for hash in [Hash::Sha256, Hash::Sha1, Hash::Sha512, Hash::Sha384, Hash::Blake2b256] {
        for hash_type in [HashType::Normal, HashType::ChromeOs] {
            for (data_block_len, hash_block_len) in [(512, 512), (4096, 512), (512, 4096), (1024, 2048)] {
                for (data_blocks, salt_len) in
                    [(1, 0), (2, 32), (7, 1), (8, 256), (9, 64), (64, 63), (65, 5), (700, 32)]
                {
                    let salt = noise(1, salt_len);
                    let parameters = Parameters { hash_type, hash, data_block_len, hash_block_len, data_blocks, salt };
                    let device = Device::new(&parameters);
                    let (tree, root) = naive(&parameters, &device.data);
                    assert!(device.tree == tree && device.root == root, "{parameters:?}");
                    device.verify().unwrap();
                    compared += 1;
                }
            }
        }
    }
    println!("COUNT verity_trees_compared {compared}");
}

#[test]
fn any_number_of_threads_makes_the_same_tree() {
    let parameters = parameters(Hash::Sha256, 512, 512, 3000);
    let device = Device::new(&parameters);
    for threads in [1, 3, 16, 1000] {
        let tree = memory(vec![0; device.tree.len()]);
        let stores = Stores::new(memory(device.data.clone()), tree.clone(), 0);
        assert_eq!(create(&stores, &device.layout, threads).unwrap(), device.root);
        assert!(tree.contents() == device.tree, "{threads} threads");
        verify(&stores, &device.layout, &device.root, threads).unwrap();
    }
}

/// Of a tree in the middle of a device, no other byte is written.
#[test]
fn tree_behind_an_offset_leaves_the_bytes_around_it() {
    let device = Device::new(&parameters(Hash::Sha256, 512, 512, 100));
    let (before, behind) = (7 * 512, 5);
    let store = memory(vec![0xee; before + device.tree.len() + behind]);
    let stores = Stores::new(memory(device.data.clone()), store.clone(), before as u64);
    create(&stores, &device.layout, 2).unwrap();
    let bytes = store.contents();
    assert!(bytes[..before].iter().chain(&bytes[before + device.tree.len()..]).all(|byte| *byte == 0xee));
    assert!(bytes[before..][..device.tree.len()] == device.tree);
}

#[test]
fn levels_of_a_tebibyte_are_stored_from_the_top() {
    let layout = parameters(Hash::Sha256, 4096, 4096, 1 << 28).layout().unwrap();
    let levels: Vec<_> = layout.levels().iter().map(|level| (level.start_block, level.blocks)).collect();
    assert_eq!(levels, [(1 + 128 + (1 << 14), 1 << 21), (1 + 128, 1 << 14), (1, 128), (0, 1)]);
    assert_eq!(layout.tree_blocks(), (1 << 21) + (1 << 14) + 128 + 1);
}

#[test]
fn tree_over_the_data_is_refused() {
    let device = Device::new(&parameters(Hash::Sha256, 512, 512, 40));
    let room = vec![0; device.layout.tree_len() as usize];
    let both = memory([&device.data[..], &room].concat());
    let create_at = |offset| create(&Stores::new(both.clone(), both.clone(), offset), &device.layout, 1);
    for offset in [0, device.layout.data_len() - 512] {
        assert!(create_at(offset).is_err_and(|error| error.to_string().contains("hash_offset")), "{offset}");
        assert!(both.contents()[..device.data.len()] == device.data);
    }
    assert_eq!(create_at(device.layout.data_len()).unwrap(), device.root);
}

#[test]
fn random_salts_have_32_bytes_and_differ() {
    let [one, other] = [(); 2].map(|()| random_salt().unwrap());
    assert_eq!((one.len(), other.len()), (32, 32));
    assert_ne!(one, other);
}

#[test]
fn salt_has_at_most_256_bytes() {
    let layout = |len| Parameters { salt: vec![7; len], ..parameters(Hash::Sha256, 512, 512, 3) }.layout();
    assert!(layout(0).is_ok() && layout(256).is_ok());
    assert_eq!(layout(257).unwrap_err().field, "salt_size");
}
