//! Error correction: the parity is that of `veritysetup`, and bad blocks are rebuilt as far as the code allows.

use crate::support::{Device, failing, memory, noise, parameters, read, recording};
use inlock_cipher::Hash;
use inlock_engine::Errno;
use inlock_verity::{
    Area, Fec, FecParameters, OpenOptions, Parameters, Stores, VerityError, VerityStore, create, verify_repairing,
};
use std::collections::HashSet;
use std::fs;
use std::process::Command;

/// Returns a device with its parity.
fn protected(parameters: &Parameters, roots: u32) -> (Device, Vec<u8>, FecParameters) {
    let device = Device::new(parameters);
    let blocks = parameters.data_blocks + device.layout.tree_blocks();
    let fec = FecParameters { roots, blocks, offset: 0 };
    let len = Fec::new(memory(Vec::new()), fec, &device.layout).unwrap().parity_len();
    let parity = memory(vec![0x77; len as usize]);
    Fec::new(parity.clone(), fec, &device.layout).unwrap().create(&device.stores(), 2).unwrap();
    (device, parity.contents(), fec)
}

fn fec_of(device: &Device, parity: &[u8], parameters: FecParameters) -> Fec {
    Fec::new(memory(parity.to_vec()), parameters, &device.layout).unwrap()
}

/// Opens a device, with error correction.
fn open(device: &Device, parity: &[u8], parameters: FecParameters) -> Result<VerityStore, VerityError> {
    device.open(OpenOptions { fec: Some(fec_of(device, parity, parameters)), ..OpenOptions::default() })
}

/// Every byte of the parity is that of `veritysetup`, on a device of its own and behind the tree.
#[test]
fn parity_is_that_of_veritysetup() {
    if Command::new("veritysetup").arg("--version").output().is_err() {
        println!("SKIPPED: veritysetup is not installed");
        return;
    }
    let dir = std::env::temp_dir().join(format!("inlock-fec-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let path = |name: &str| dir.join(name).display().to_string();
    let mut compared = 0;
    for (block, blocks) in [(512, 1), (512, 700), (1024, 253), (4096, 9), (4096, 300), (8192, 40)] {
        for (roots, place) in [(2, "own"), (3, "behind"), (7, "own"), (16, "longer"), (24, "behind")] {
            let parameters = parameters(Hash::Sha256, block, block, blocks);
            let layout = parameters.layout().unwrap();
            let data = noise(blocks + u64::from(roots), layout.data_len() as usize);
            fs::write(path("data"), &data).unwrap();
            let tree_len = layout.tree_len();
            // What is behind the tree on its device is covered, too.
            let more =
                [("longer", 5), ("behind", 2)].iter().find(|(other, _)| *other == place).map_or(0, |more| more.1);
            let start = if place == "own" { 3 * u64::from(block) } else { 0 };
            let hash_len = start + tree_len + more * u64::from(block);
            fs::write(path("hash"), noise(9, hash_len as usize)).unwrap();
            let _ = fs::remove_file(path("fec"));
            let (device, offset) = if place == "behind" { ("hash", hash_len) } else { ("fec", 0) };
            let mut command = Command::new("veritysetup");
            command.args(["format", &path("data"), &path("hash"), "--no-superblock", "--salt", &"a5".repeat(32)]);
            command.args([format!("--data-block-size={block}"), format!("--hash-block-size={block}")]);
            command.args(["--fec-device", &path(device), &format!("--fec-roots={roots}")]);
            command.args([format!("--fec-offset={offset}"), format!("--hash-offset={start}")]);
            let output = command.output().unwrap();
            assert!(output.status.success(), "{command:?}: {output:?}");
            let theirs = fs::read(path(device)).unwrap();

            let covered = (hash_len - start) / u64::from(block) + blocks;
            let fec = FecParameters { roots, blocks: covered, offset };
            let hash = memory(noise(9, hash_len as usize));
            let stores = Stores::new(memory(data), hash, start);
            create(&stores, &layout, 2).unwrap();
            let parity_len = Fec::new(memory(Vec::new()), fec, &layout).unwrap().parity_len();
            let parity = memory(vec![0; (offset + parity_len) as usize]);
            Fec::new(parity.clone(), fec, &layout).unwrap().create(&stores, 3).unwrap();
            let ours = parity.contents();
            assert!(ours[offset as usize..] == theirs[offset as usize..], "{block} {blocks} {roots} {place}");
            compared += 1;
        }
    }
    fs::remove_dir_all(&dir).unwrap();
    println!("COUNT verity_parities_of_veritysetup {compared}");
}

/// Up to half as many bad blocks in a round as there are roots are rebuilt without knowing them, all with.
#[test]
fn bad_blocks_are_rebuilt_up_to_the_roots() {
    let mut rebuilt = 0;
    for (block_len, roots) in [(512, 2), (512, 5), (1024, 24)] {
        let (device, parity, parameters) = protected(&parameters(Hash::Sha256, block_len, block_len, 1000), roots);
        let rounds = parameters.blocks.div_ceil(255 - u64::from(roots));
        let len = block_len as usize;
        for bad in (1..=roots + 1).filter(|bad| roots < 24 || [1, 12, 13, 24, 25].contains(bad)) {
            // Blocks of one round, of the data; the first byte of each, or all of them.
            let mut broken = Device { data: device.data.clone(), tree: device.tree.clone(), ..copy(&device) };
            let blocks: Vec<u64> = (0..u64::from(bad)).map(|at| 1 + at * rounds * 3).collect();
            assert!(blocks.iter().all(|block| *block < 1000));
            for block in &blocks {
                let start = *block as usize * len;
                if block % 2 == 0 {
                    broken.data[start] ^= 1;
                } else {
                    broken.data[start..start + len].iter_mut().for_each(|byte| *byte = byte.wrapping_add(3));
                }
            }
            let store = open(&broken, &parity, parameters).unwrap();
            let whole = read(&store, 0, device.data.len());
            if bad <= roots {
                assert!(whole.unwrap() == device.data, "{bad} of {roots}");
                let counters = store.snapshot();
                assert_eq!((counters.corrupted, counters.repaired), (0, u64::from(bad)));
                let fec = fec_of(&broken, &parity, parameters);
                let found = verify_repairing(&broken.stores(), &broken.layout, &broken.root, &fec, 1).unwrap();
                assert_eq!(found, counters.repaired_bytes);
                rebuilt += bad;
            } else {
                // Never other bytes; the blocks before and behind can be read.
                assert_eq!(whole, Err(Errno::IO));
                for block in blocks.iter().flat_map(|block| block - 1..=block + 1) {
                    let one = read(&store, block * u64::from(block_len), len);
                    match one {
                        Ok(one) => assert!(one == device.data[block as usize * len..][..len]),
                        Err(_) => assert!(blocks.contains(&block), "{block}"),
                    }
                }
                let fec = fec_of(&broken, &parity, parameters);
                let error = verify_repairing(&broken.stores(), &broken.layout, &broken.root, &fec, 1).unwrap_err();
                let VerityError::Corrupt(corruption) = error else { panic!("{error}") };
                assert_eq!((corruption.area, corruption.block), (Area::Data, 1));
            }
        }
    }
    println!("COUNT verity_blocks_rebuilt {rebuilt}");
}

fn copy(device: &Device) -> Device {
    Device { data: Vec::new(), tree: Vec::new(), layout: device.layout.clone(), root: device.root.clone() }
}

/// Each block of the tree alone, the topmost too, and all levels of one path at once.
#[test]
fn blocks_of_the_tree_are_rebuilt() {
    let (device, parity, parameters) = protected(&parameters(Hash::Sha256, 512, 512, 600), 8);
    let blocks = device.layout.tree_blocks() as usize;
    for block in 0..=blocks {
        let mut broken = Device { data: device.data.clone(), tree: device.tree.clone(), ..copy(&device) };
        let bad: Vec<usize> = if block < blocks { vec![block] } else { vec![0, 1, 4] };
        for block in &bad {
            broken.tree[block * 512..][..512].fill(0x3c);
        }
        broken.data[0] ^= 1;
        let (options, reports) = recording();
        let fec = Some(fec_of(&broken, &parity, parameters));
        let store = broken.open(OpenOptions { fec, ..options }).unwrap();
        assert!(read(&store, 0, device.data.len()).unwrap() == device.data, "{block}");
        assert_eq!(store.snapshot().corrupted, 0);
        let reports = reports.lock().unwrap();
        assert!(reports.iter().all(|report| report.is_repaired) && reports.len() == bad.len() + 1, "{reports:?}");
        assert!(reports[0].to_string().ends_with(", and was rebuilt from the parity"), "{}", reports[0]);
    }
    // Another root hash is none of the parity's faults.
    let mut other = Device { data: device.data.clone(), tree: device.tree.clone(), ..copy(&device) };
    other.root[3] ^= 1;
    let Err(VerityError::Corrupt(corruption)) = open(&other, &parity, parameters) else { panic!("it opens") };
    assert!(corruption.is_root);
}

/// Parity that is wrong, or of another device, makes no read return other bytes.
#[test]
fn wrong_parity_returns_no_wrong_bytes() {
    let (mut device, parity, parameters) = protected(&parameters(Hash::Sha256, 512, 512, 300), 4);
    let good = device.data.clone();
    device.data[512 * 7 + 100] ^= 8;
    for kind in 0..3 {
        let parity = match kind {
            0 => noise(5, parity.len()),
            1 => vec![0; parity.len()],
            // One wrong byte in each code word: one error of two that can be corrected.
            _ => parity.chunks_exact(4).flat_map(|bytes| [bytes[0], bytes[1] ^ 0x40, bytes[2], bytes[3]]).collect(),
        };
        let store = open(&device, &parity, parameters).unwrap();
        let found = read(&store, 512 * 7, 512);
        assert_eq!(found, if kind == 2 { Ok(good[512 * 7..512 * 8].to_vec()) } else { Err(Errno::IO) });
    }
    // Ignored corruption is corrected first.
    let fec = Some(fec_of(&device, &parity, parameters));
    let store = device.open(OpenOptions { fec, ignore_corruption: true, ..OpenOptions::default() }).unwrap();
    assert!(read(&store, 0, good.len()).unwrap() == good);
}

/// A bad block of the tree says nothing about the blocks under it while others are rebuilt.
#[test]
fn blocks_under_a_bad_block_of_the_tree_are_not_erased() {
    let (device, parity, parameters) = protected(&parameters(Hash::Sha256, 512, 512, 600), 2);
    let mut broken = Device { data: device.data.clone(), tree: device.tree.clone(), ..copy(&device) };
    assert_eq!(parameters.blocks.div_ceil(253), 3);
    // Both in round 0, as block 300, whose digest is in block 18 of level 0, which is in another round.
    broken.data[0] ^= 1;
    broken.data[3 * 512] ^= 1;
    let at = device.layout.levels()[0].start_block + 300 / 16;
    assert_ne!((600 + at) % 3, 0);
    broken.tree[at as usize * 512..][..512].fill(9);
    for ignore_corruption in [false, true] {
        let fec = Some(fec_of(&broken, &parity, parameters));
        let store = broken.open(OpenOptions { fec, ignore_corruption, ..OpenOptions::default() }).unwrap();
        assert!(read(&store, 0, 512).unwrap() == device.data[..512]);
        assert_eq!((store.snapshot().repaired, store.snapshot().corrupted), (1, 0));
        assert!(read(&store, 0, device.data.len()).unwrap() == device.data);
    }
}

#[test]
fn unreadable_blocks_are_rebuilt() {
    let (device, parity, parameters) = protected(&parameters(Hash::Sha256, 8192, 8192, 600), 2);
    let rounds = parameters.blocks.div_ceil(253);
    let unreadable = |bytes: &[u8], bad: &[u64]| {
        let bad: HashSet<u64> = bad.iter().copied().collect();
        failing(bytes, move |range| {
            let mut blocks = range.start / 8192..range.end.div_ceil(8192);
            if blocks.any(|block| bad.contains(&block)) { Err(Errno::IO) } else { Ok(()) }
        })
    };
    let open = |data: &[u64], tree: &[u64], options: OpenOptions| {
        let stores = Stores::new(unreadable(&device.data, data), unreadable(&device.tree, tree), 0);
        VerityStore::open(&stores, &device.layout, &device.root, options)
    };
    let with_fec = || OpenOptions { fec: Some(fec_of(&device, &parity, parameters)), ..OpenOptions::default() };
    // A run of blocks, two in a round of which one is of the tree, and the topmost.
    for (data, tree) in [(vec![10, 11, 12], vec![]), (vec![4], vec![1]), (vec![], vec![0])] {
        let store = open(&data, &tree, with_fec()).unwrap();
        assert!(read(&store, 0, device.data.len()).unwrap() == device.data, "{data:?} {tree:?}");
        assert_eq!(store.snapshot().repaired, (data.len() + tree.len()) as u64);
    }
    let store = open(&[5, 5 + rounds, 5 + 2 * rounds], &[], with_fec()).unwrap();
    assert_eq!(read(&store, 5 * 8192, 8192), Err(Errno::IO), "three of two");
    assert!(read(&store, 6 * 8192, 8192).is_ok());
    let store = open(&[5], &[], OpenOptions { ignore_corruption: true, ..with_fec() }).unwrap();
    assert_eq!(read(&store, 5 * 8192, 8192), Err(Errno::IO), "not zeroes for a block that was not rebuilt");
    assert!(matches!(open(&[], &[0], OpenOptions::default()), Err(VerityError::Io { .. })));
}

#[test]
fn impossible_parameters_are_refused_by_their_field() {
    let (device, parity, good) = protected(&parameters(Hash::Sha256, 512, 512, 100), 2);
    let field = |parameters: FecParameters, len: usize| match Fec::new(memory(vec![0; len]), parameters, &device.layout)
    {
        Err(error) => error.field,
        Ok(fec) => {
            let options = OpenOptions { fec: Some(fec), ..OpenOptions::default() };
            match device.open(options) {
                Err(VerityError::Field(error)) => error.field,
                other => panic!("{:?}", other.map(|_| "opened")),
            }
        }
    };
    let len = parity.len();
    for (parameters, expected) in [
        (FecParameters { roots: 1, ..good }, "fec_roots"),
        (FecParameters { roots: 25, ..good }, "fec_roots"),
        (FecParameters { roots: u32::MAX, ..good }, "fec_roots"),
        (FecParameters { blocks: good.blocks - 1, ..good }, "fec_blocks"),
        (FecParameters { blocks: 0, ..good }, "fec_blocks"),
        (FecParameters { blocks: good.blocks + 1, ..good }, "fec_blocks"),
        (FecParameters { blocks: u64::MAX, ..good }, "fec_blocks"),
        (FecParameters { blocks: 1 << 53, ..good }, "fec_blocks"),
        (FecParameters { offset: 100, ..good }, "fec_offset"),
        (FecParameters { offset: 512, ..good }, "fec_offset"),
        (FecParameters { offset: u64::MAX - 511, ..good }, "fec_offset"),
        (FecParameters { offset: i64::MAX as u64 - 511, ..good }, "fec_offset"),
    ] {
        assert_eq!(field(parameters, len), expected, "{parameters:?}");
    }
    assert_eq!(field(good, len - 1), "fec_offset");
    assert_eq!(field(FecParameters { offset: 100, ..good }, len + 512), "fec_offset", "there is room");
    let layout = parameters(Hash::Sha256, 512, 1024, 100).layout().unwrap();
    assert_eq!(Fec::new(memory(parity), good, &layout).unwrap_err().field, "hash_block_size");
}

/// No parity is written for a device that lacks what it covers.
#[test]
fn parity_of_devices_that_are_too_short_is_refused() {
    let (device, parity, good) = protected(&parameters(Hash::Sha256, 512, 512, 100), 2);
    let more = FecParameters { blocks: good.blocks + 1, ..good };
    for (parameters, len, expected) in [(more, parity.len(), "fec_blocks"), (good, parity.len() - 1, "fec_offset")] {
        let short = memory(vec![0x77; len]);
        let created = Fec::new(short.clone(), parameters, &device.layout).unwrap().create(&device.stores(), 1);
        assert!(matches!(&created, Err(VerityError::Field(field)) if field.field == expected), "{created:?}");
        assert!(short.contents() == vec![0x77; len], "{expected}: something is written");
        let fec = fec_of(&device, &parity[..len], parameters);
        let verified = verify_repairing(&device.stores(), &device.layout, &device.root, &fec, 1);
        assert!(matches!(&verified, Err(VerityError::Field(field)) if field.field == expected), "{verified:?}");
    }
    let full = failing(&parity, |_| Err(Errno::NOSPC));
    let created = Fec::new(full, good, &device.layout).unwrap().create(&device.stores(), 1);
    assert!(matches!(created, Err(VerityError::Io { source: Errno::NOSPC, .. })), "{created:?}");
    let far = Stores::new(memory(device.data.clone()), memory(device.tree.clone()), u64::MAX);
    let created = fec_of(&device, &parity, good).create(&far, 1);
    assert!(matches!(&created, Err(VerityError::Field(field)) if field.field == "fec_blocks"), "{created:?}");
}

/// All blocks of a small device are in one round: as many as there are roots are rebuilt.
#[test]
fn verification_with_repairs_counts_wrong_bytes_or_names_the_first_bad_block() {
    let (device, parity, parameters) = protected(&parameters(Hash::Sha256, 512, 512, 40), 4);
    let verify = |device: &Device, parity: &[u8]| {
        let fec = fec_of(device, parity, parameters);
        verify_repairing(&device.stores(), &device.layout, &device.root, &fec, 1)
    };
    let corruption = |result: Result<u64, VerityError>| match result {
        Err(VerityError::Corrupt(corruption)) => corruption,
        other => panic!("{other:?}"),
    };
    let sound = || Device { data: device.data.clone(), tree: device.tree.clone(), ..copy(&device) };
    assert_eq!(verify(&device, &parity).unwrap(), 0);
    for bad in 1..=5 {
        let mut broken = sound();
        for block in 0..bad {
            // One more byte of each.
            broken.data[3 * 512 + block * 7 * 512..][..block + 1].iter_mut().for_each(|byte| *byte ^= 0x81);
        }
        let result = verify(&broken, &parity);
        if bad <= 4 {
            assert_eq!(result.unwrap() as usize, bad * (bad + 1) / 2);
        } else {
            let corruption = corruption(result);
            assert_eq!((corruption.area, corruption.block, corruption.is_repaired), (Area::Data, 3, false));
        }
    }
    // A block of the tree, with digests that nothing is compared with before it is rebuilt.
    let mut broken = sound();
    broken.tree[512] ^= 1;
    assert_eq!(verify(&broken, &parity).unwrap(), 1);
    // Bytes that no digest uses are not wrong for a reader: nothing is repaired, and they are still named.
    let mut spare = sound();
    let topmost = device.layout.levels().last().unwrap().start_block as usize * 512;
    spare.tree[topmost + 511] = 1;
    let digest = Hash::Sha256.digest(&[&[0xa5; 32], &spare.tree[topmost..topmost + 512]]);
    spare.root = digest[..32].to_vec();
    assert!(corruption(verify(&spare, &parity)).is_spare);
    // A device that cannot be read.
    let stores = Stores::new(failing(&device.data, |_| Err(Errno::NODEV)), memory(device.tree.clone()), 0);
    let fec = fec_of(&device, &parity, parameters);
    let error = verify_repairing(&stores, &device.layout, &device.root, &fec, 1).unwrap_err();
    assert!(matches!(error, VerityError::Io { .. } | VerityError::Corrupt(_)), "{error}");
}
