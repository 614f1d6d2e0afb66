//! dm-verity devices, read in the guest by the kernel, and on the host by Inlock's library.
//!
//! Inlock makes a tree; the kernel opens the device and reads it, whole and over data with corrupted blocks: it must
//! fail for the blocks for which Inlock fails. `veritysetup` makes a tree of the same data in the guest; Inlock
//! verifies and reads that one.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use inlock_engine::BackingStore;
use inlock_engine::store::memory::MemoryStore;
use inlock_tests::random::Random;
use inlock_verity::{HashType, OpenOptions, Parameters, Stores, Superblock, VerityStore, create, hash_named, verify};

use super::super::Scene;
use super::super::report::{Outcome, Report};
use super::Judge;

/// Length of a slot in bytes, as in `verity.sh`.
const SLOT: usize = 4 << 20;
/// Blocks of data of each device that are corrupted.
const CORRUPTED: [u64; 3] = [1, 40, 127];

/// Name; hash; type; lengths of blocks; number of blocks of data; length of the salt; with superblock.
type Line = (&'static str, &'static str, u32, u32, u32, u64, usize, bool);

const LINES: &[Line] = &[
    ("defaults", "sha256", 1, 4096, 4096, 700, 32, true),
    ("no-superblock", "sha256", 1, 4096, 4096, 700, 0, false),
    ("small-blocks", "sha256", 1, 512, 512, 2000, 32, true),
    ("small-hash-blocks", "sha256", 1, 4096, 512, 300, 256, true),
    ("small-data-blocks", "sha256", 1, 1024, 4096, 1500, 1, true),
    ("chrome-os", "sha256", 0, 4096, 4096, 500, 32, true),
    ("sha1", "sha1", 1, 4096, 4096, 400, 20, true),
    ("sha512", "sha512", 1, 4096, 1024, 400, 64, true),
    ("chrome-os-sha1", "sha1", 0, 4096, 4096, 400, 32, false),
];

struct Row {
    name: &'static str,
    parameters: Parameters,
    superblock: Option<Superblock>,
    tree_offset: u64,
    root: Vec<u8>,
    data: Vec<u8>,
    tree: Vec<u8>,
    corrupted: Vec<u8>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn memory(bytes: &[u8]) -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(bytes.to_vec()))
}

impl Row {
    fn new(&(name, hash, hash_type, data_block_len, hash_block_len, data_blocks, salt, with): &Line) -> Result<Self> {
        let mut random = Random::new(data_blocks + 77);
        let parameters = Parameters {
            hash_type: HashType::from_number(hash_type).context("type")?,
            hash: hash_named(hash).context("hash")?,
            data_block_len,
            hash_block_len,
            data_blocks,
            salt: random.bytes(salt),
        };
        let layout = parameters.layout()?;
        let mut data = random.bytes(layout.data_len() as usize);
        data.resize(SLOT, 0);
        let superblock =
            with.then(|| Superblock { uuid: [7; 16], hash_name: hash.to_owned(), parameters: parameters.clone() });
        let tree_offset = if with { Superblock::tree_offset(0, hash_block_len)? } else { 0 };
        let tree = memory(&vec![0; SLOT]);
        let root = create(&Stores::new(memory(&data), tree.clone(), tree_offset), &layout, 2)?;
        if let Some(superblock) = &superblock {
            superblock.write(&*tree, 0)?;
        }
        let mut corrupted = data.clone();
        for block in CORRUPTED {
            corrupted[block as usize * data_block_len as usize + 9] ^= 0x10;
        }
        let tree = tree.contents();
        Ok(Self { name, parameters, superblock, tree_offset, root, data, tree, corrupted })
    }

    /// Returns the line for the guest.
    fn line(&self, number: usize) -> String {
        let p = &self.parameters;
        let salt = if p.salt.is_empty() { "-".to_owned() } else { hex(&p.salt) };
        let mut format = format!(
            "--hash {} --format={} --data-block-size={} --hash-block-size={} --data-blocks={} --salt {salt}",
            p.hash.name(),
            p.hash_type.number(),
            p.data_block_len,
            p.hash_block_len,
            p.data_blocks
        );
        let mut open = String::new();
        if self.superblock.is_none() {
            format += " --no-superblock";
            open.clone_from(&format);
        }
        let block = p.data_block_len;
        format!("{}|{number}|{block}|{}|{format}|{open}\n", self.name, hex(&self.root))
    }

    fn stores(&self, data: &[u8], tree: &[u8]) -> Stores {
        Stores::new(memory(data), memory(tree), self.tree_offset)
    }

    /// Returns the blocks that cannot be read.
    fn unreadable(&self) -> Result<Vec<u64>> {
        let stores = self.stores(&self.corrupted, &self.tree);
        let store = VerityStore::open(&stores, &self.parameters.layout()?, &self.root, OpenOptions::default())?;
        let len = self.parameters.data_block_len as usize;
        let mut block = vec![0; len];
        let mut fails = |number: &u64| store.read_at(&mut block, number * len as u64).is_err();
        Ok((0..self.parameters.data_blocks).filter(|number| fails(number)).collect())
    }
}

pub(super) fn prepare(scene: &mut Scene<'_>) -> Result<Judge> {
    let rows = LINES.iter().map(Row::new).collect::<Result<Vec<_>>>()?;
    let mut list = String::new();
    for name in ["data", "ours", "theirs", "view", "corrupted"] {
        let path = scene.folder.join(format!("{name}.img"));
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        file.set_len((rows.len() * SLOT) as u64)?;
        for (number, row) in rows.iter().enumerate() {
            let bytes = match name {
                "data" => &row.data,
                "ours" => &row.tree,
                "corrupted" => &row.corrupted,
                _ => continue,
            };
            file.write_all_at(bytes, (number * SLOT) as u64)?;
        }
        scene.disks.push(path);
    }
    rows.iter().enumerate().for_each(|(number, row)| list += &row.line(number));
    scene.files.push(("vm/rows".to_owned(), list.into_bytes()));
    Ok(Box::new(move |scene, report| {
        for (number, row) in rows.iter().enumerate() {
            judge(row, number, scene, report)?;
        }
        report.counts.push(("verity_devices_read_by_the_kernel".to_owned(), rows.len() as u64));
        Ok(())
    }))
}

fn judge(row: &Row, number: usize, scene: &Scene<'_>, report: &mut Report) -> Result<()> {
    let slot = |disk: usize| -> Result<Vec<u8>> {
        let mut bytes = vec![0; SLOT];
        File::open(&scene.disks[disk])?.read_exact_at(&mut bytes, (number * SLOT) as u64)?;
        Ok(bytes)
    };
    let said = |key: &str| {
        let key = format!("{key}:{}", row.name);
        report.data.iter().find(|(other, _)| *other == key).map_or("", |(_, text)| text.trim()).to_owned()
    };
    let len = row.parameters.layout()?.data_len() as usize;
    let found = [
        ("read", same_data(&slot(3)?[..len], &row.data[..len])),
        ("corrupted", same_blocks(row, &said("unreadable"))),
        ("theirs", theirs(row, &slot(2)?, &said("root"))),
    ];
    for (what, result) in found {
        let name = format!("judge-{what}:{}", row.name);
        report.outcomes.push(match result {
            Ok(()) => Outcome::Ok(name),
            Err(error) => Outcome::Fail(name, format!("{error:#}")),
        });
    }
    Ok(())
}

fn same_data(theirs: &[u8], ours: &[u8]) -> Result<()> {
    ensure!(theirs == ours, "the kernel reads other data");
    Ok(())
}

/// Compares the blocks that the kernel cannot read with those that Inlock cannot.
fn same_blocks(row: &Row, theirs: &str) -> Result<()> {
    let theirs: Vec<u64> = theirs.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let ours = row.unreadable()?;
    ensure!(ours == CORRUPTED, "Inlock cannot read {ours:?}");
    // The kernel reads a page of the device at a time, so its neighbours in the page may fail too.
    let len = u64::from(row.parameters.data_block_len);
    let pages = |blocks: &[u64]| -> Vec<u64> {
        let mut pages: Vec<u64> = blocks.iter().map(|block| block * len / 4096).collect();
        pages.dedup();
        pages
    };
    ensure!(pages(&theirs) == pages(&ours), "the kernel cannot read {theirs:?}, Inlock {ours:?}");
    ensure!(len < 4096 || theirs == ours, "the kernel cannot read {theirs:?}, Inlock {ours:?}");
    Ok(())
}

/// Verifies and reads the device with the tree that `veritysetup` has made.
fn theirs(row: &Row, tree: &[u8], root: &str) -> Result<()> {
    ensure!(root == hex(&row.root), "veritysetup's root hash is {root:?}");
    let (stores, layout) = (row.stores(&row.data, tree), row.parameters.layout()?);
    verify(&stores, &layout, &row.root, 2)?;
    let start = row.tree_offset as usize;
    let end = start + layout.tree_len() as usize;
    ensure!(tree[start..end] == row.tree[start..end], "the trees differ");
    if let Some(superblock) = &row.superblock {
        let theirs = Superblock::read(&*stores.hash, 0)?;
        ensure!(theirs.parameters == superblock.parameters, "the superblocks differ");
    }
    Ok(())
}
