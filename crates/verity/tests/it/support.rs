//! Devices in memory.

use inlock_cipher::Hash;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{BackingStore, Errno};
use inlock_testing::{Call, ScriptedStore, Verdict};
use inlock_verity::{Layout, OpenOptions, Parameters, Stores, VerityError, VerityStore, create};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Pseudo-random bytes (xorshift64), the same for the same seed.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

pub(crate) fn memory(bytes: Vec<u8>) -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(bytes))
}

pub(crate) fn parameters(hash: Hash, data_block_len: u32, hash_block_len: u32, data_blocks: u64) -> Parameters {
    Parameters { hash, data_block_len, hash_block_len, data_blocks, salt: vec![0xa5; 32], ..Parameters::default() }
}

/// Returns memory whose reads and writes may fail: `check` is called with their range in bytes.
pub(crate) fn failing(
    bytes: &[u8],
    check: impl Fn(Range<u64>) -> Result<(), Errno> + Send + Sync + 'static,
) -> Arc<ScriptedStore> {
    let script = move |call: Call<'_>| match call.range().map(&check) {
        Some(Err(error)) => Verdict::Fail(error),
        Some(Ok(())) | None => Verdict::Pass,
    };
    Arc::new(ScriptedStore::new(memory(bytes.to_vec()), script))
}

/// A device in memory.
pub(crate) struct Device {
    pub(crate) data: Vec<u8>,
    pub(crate) tree: Vec<u8>,
    pub(crate) layout: Layout,
    pub(crate) root: Vec<u8>,
}

impl Device {
    /// Makes a device of pseudo-random data.
    pub(crate) fn new(parameters: &Parameters) -> Self {
        let layout = parameters.layout().unwrap();
        let data = noise(parameters.data_blocks, layout.data_len() as usize);
        let tree = memory(vec![0xee; layout.tree_len() as usize]);
        let root = create(&Stores::new(memory(data.clone()), tree.clone(), 0), &layout, 2).unwrap();
        Self { data, tree: tree.contents(), layout, root }
    }

    pub(crate) fn stores(&self) -> Stores {
        Stores::new(memory(self.data.clone()), memory(self.tree.clone()), 0)
    }

    pub(crate) fn open(&self, options: OpenOptions) -> Result<VerityStore, VerityError> {
        VerityStore::open(&self.stores(), &self.layout, &self.root, options)
    }

    pub(crate) fn verify(&self) -> Result<(), VerityError> {
        inlock_verity::verify(&self.stores(), &self.layout, &self.root, 1)
    }
}

/// Options that keep what is reported.
pub(crate) fn recording() -> (OpenOptions, Arc<Mutex<Vec<inlock_verity::Corruption>>>) {
    let reports = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&reports);
    let on_corruption: inlock_verity::OnCorruption =
        Box::new(move |corruption, _| into.lock().unwrap().push(*corruption));
    (OpenOptions { on_corruption: Some(on_corruption), ..OpenOptions::default() }, reports)
}

/// Reads a range to its end, as the engine does.
pub(crate) fn read(store: &VerityStore, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        match store.read_at(&mut bytes[done..], offset + done as u64)? {
            0 => break,
            more => done += more,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}
