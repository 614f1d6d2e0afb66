//! Stores that fail.

use crate::support::{Device, failing, memory, parameters, read};
use inlock_cipher::Hash;
use inlock_engine::Errno;
use inlock_testing::{ScriptedStore, Verdict};
use inlock_verity::{OpenOptions, Stores, VerityError, VerityStore, create, verify};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns a store whose operation of this number, and those behind it, fail.
fn faulty(bytes: &[u8], left: u64) -> Arc<ScriptedStore> {
    let left = AtomicU64::new(left);
    let step = |left: u64| Some(left.saturating_sub(1));
    failing(bytes, move |_| match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step) {
        Ok(0) | Err(_) => Err(Errno::NODEV),
        Ok(_) => Ok(()),
    })
}

/// The error of a failed operation of a store is returned, and nothing is taken for corrupt.
#[test]
fn error_of_a_store_is_passed_on() {
    let device = Device::new(&parameters(Hash::Sha256, 512, 512, 400));
    let is_io = |error: VerityError| matches!(error, VerityError::Io { source: Errno::NODEV, .. });
    let mut faults = 0;
    for left in 0..200 {
        for fail_data in [true, false] {
            let limit = |fails: bool| if fails { left } else { u64::MAX };
            let (data, tree) = (faulty(&device.data, limit(fail_data)), faulty(&device.tree, limit(!fail_data)));
            let stores = Stores::new(data, tree, 0);
            faults += u32::from(create(&stores, &device.layout, 3).is_err_and(is_io));
            let (data, tree) = (faulty(&device.data, limit(fail_data)), faulty(&device.tree, limit(!fail_data)));
            let stores = Stores::new(data, tree, 0);
            faults += u32::from(verify(&stores, &device.layout, &device.root, 3).is_err_and(is_io));
            let (data, tree) = (faulty(&device.data, limit(fail_data)), faulty(&device.tree, limit(!fail_data)));
            match VerityStore::open(&Stores::new(data, tree, 0), &device.layout, &device.root, OpenOptions::default()) {
                Err(error) => faults += u32::from(is_io(error)),
                Ok(store) => {
                    let errors: Vec<_> = (0..400).filter_map(|at| read(&store, at * 512, 512).err()).collect();
                    assert!(errors.iter().all(|error| *error == Errno::NODEV));
                    assert_eq!(store.snapshot().corrupted, 0);
                    faults += errors.len() as u32;
                }
            }
        }
    }
    assert!(faults > 40_000);
    println!("COUNT verity_store_faults {faults}");
}

/// One call fails, and none after it would: the operation fails with its error all the same, and makes no further one.
#[test]
fn operation_ends_with_the_first_failure() {
    type Operation = fn(&Stores, &Device) -> Result<(), VerityError>;
    let device = Device::new(&parameters(Hash::Sha256, 512, 512, 400));
    let operations: [(&str, Operation); 3] = [
        ("create", |stores, device| create(stores, &device.layout, 1).map(drop)),
        ("verify", |stores, device| verify(stores, &device.layout, &device.root, 1)),
        ("open", |stores, device| {
            VerityStore::open(stores, &device.layout, &device.root, OpenOptions::default()).map(drop)
        }),
    ];
    for (name, operation) in operations {
        for nth in 1.. {
            let calls = Arc::new(AtomicU64::new(0));
            let store = |bytes: &[u8]| {
                let counted = Arc::clone(&calls);
                Arc::new(ScriptedStore::new(memory(bytes.to_vec()), move |_| {
                    let is_nth = counted.fetch_add(1, Ordering::Relaxed) + 1 == nth;
                    if is_nth { Verdict::Fail(Errno::NODEV) } else { Verdict::Pass }
                }))
            };
            let result = operation(&Stores::new(store(&device.data), store(&device.tree), 0), &device);
            let count = calls.load(Ordering::Relaxed);
            if count < nth {
                assert!(result.is_ok() && nth > 1, "{name}: {result:?}");
                break;
            }
            let is_io = matches!(result, Err(VerityError::Io { source: Errno::NODEV, .. }));
            assert!(is_io && count == nth, "{name}: {result:?} after {count} calls, of which number {nth} failed");
        }
    }
}

#[test]
fn short_devices_are_refused() {
    let device = Device::new(&parameters(Hash::Sha256, 512, 512, 400));
    let short = |bytes: &[u8]| memory(bytes[..bytes.len() - 1].to_vec());
    let rows = [
        (Stores::new(short(&device.data), memory(device.tree.clone()), 0), "the data device ends"),
        (Stores::new(memory(device.data.clone()), short(&device.tree), 0), "the hash device ends"),
        (Stores::new(memory(device.data.clone()), memory(device.tree.clone()), 1), "the hash device ends"),
        (Stores::new(memory(device.data.clone()), memory(device.tree.clone()), u64::MAX), "the hash device ends"),
    ];
    for (stores, reason) in rows {
        let open = VerityStore::open(&stores, &device.layout, &device.root, OpenOptions::default());
        let verify = verify(&stores, &device.layout, &device.root, 1);
        let create = create(&stores, &device.layout, 1);
        for error in [open.err(), verify.err(), create.err()] {
            assert!(error.unwrap().to_string().contains(reason));
        }
    }
}

#[test]
fn failed_read_is_named_by_its_device() {
    let device = Device::new(&parameters(Hash::Sha256, 512, 512, 400));
    for (fails_data, action) in [(true, "read the data"), (false, "read the hash tree")] {
        // The first read of the tree is that of the topmost block.
        let (data, tree) = match fails_data {
            true => (faulty(&device.data, 0), faulty(&device.tree, u64::MAX)),
            false => (faulty(&device.data, u64::MAX), faulty(&device.tree, 1)),
        };
        let error = verify(&Stores::new(data, tree, 0), &device.layout, &device.root, 1).unwrap_err();
        assert!(matches!(error, VerityError::Io { action: found, .. } if found == action), "{error}");
    }
}

/// A block of the tree that cannot be read is not called corrupt, at any level.
#[test]
fn unreadable_block_of_the_tree_is_no_corruption() {
    const LEN: u64 = 512;
    let device = Device::new(&parameters(Hash::Sha256, LEN as u32, LEN as u32, 400));
    for block in 0..device.layout.tree_blocks() {
        let bad = move |range: Range<u64>| {
            if range.start < (block + 1) * LEN && block * LEN < range.end { Err(Errno::IO) } else { Ok(()) }
        };
        let stores = Stores::new(memory(device.data.clone()), failing(&device.tree, bad), 0);
        let verified = verify(&stores, &device.layout, &device.root, 1);
        assert!(matches!(verified, Err(VerityError::Io { source: Errno::IO, .. })), "block {block}: {verified:?}");
    }
}
