//! dm-verity devices, read in the guest by the kernel, and on the host by Inlock's library.
//!
//! Inlock makes a tree; the kernel opens the device and reads it, whole and over data with corrupted blocks: it must
//! fail for the blocks for which Inlock fails. `veritysetup` makes a tree of the same data in the guest; Inlock
//! verifies and reads that one. The kernel's table of a device is the one that `inlock verity table` prints; the kernel
//! opens that one too, and tables of a hash tree over dm-crypt and of dm-crypt over a hash tree.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use inlock_engine::BackingStore;
use inlock_engine::store::memory::MemoryStore;
use inlock_tests::process::{inlock, text};
use inlock_tests::random::Random;
use inlock_verity::{HashType, OpenOptions, Parameters, Stores, Superblock, VerityStore, create, hash_named, verify};

use super::super::Scene;
use super::super::report::Report;
use super::{Judge, slots};

/// Length of a slot in bytes, as in `verity.sh`.
const SLOT: usize = 4 << 20;
/// Blocks of data of each device that are corrupted.
const CORRUPTED: [u64; 3] = [1, 40, 127];

/// Devices in the guest.
const DATA: &str = "/dev/mapper/data";
const HASH: &str = "/dev/mapper/ours";

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
    /// Table that Inlock prints, with the devices [`DATA`] and [`HASH`].
    table: String,
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
        let table = String::new();
        Ok(Self { name, table, parameters, superblock, tree_offset, root, data, tree, corrupted })
    }

    /// Lets Inlock print the table, from images in a directory.
    fn with_table(mut self, dir: &Path) -> Result<Self> {
        let (data, hash) = (dir.join("table.data"), dir.join("table.hash"));
        fs::write(&data, &self.data[..self.parameters.layout()?.data_len() as usize])?;
        fs::write(&hash, &self.tree)?;
        let mut command = inlock()?;
        command.args(["verity", "table"]).args([&data, &hash]).arg(hex(&self.root)).args(self.open_options());
        let printed = text(&mut command).with_context(|| self.name)?;
        let path = |path: &Path| path.canonicalize().map(|path| path.display().to_string());
        self.table = printed.trim().replace(&path(&data)?, DATA).replace(&path(&hash)?, HASH);
        Ok(self)
    }

    /// Returns the options that open the device.
    fn open_options(&self) -> Vec<String> {
        if self.superblock.is_some() {
            return Vec::new();
        }
        ["--no-superblock".to_owned()].into_iter().chain(self.format_options()).collect()
    }

    /// Returns the options that describe the device.
    fn format_options(&self) -> Vec<String> {
        let p = &self.parameters;
        let salt = if p.salt.is_empty() { "-".to_owned() } else { hex(&p.salt) };
        vec![
            format!("--hash={}", p.hash.name()),
            format!("--format={}", p.hash_type.number()),
            format!("--data-block-size={}", p.data_block_len),
            format!("--hash-block-size={}", p.hash_block_len),
            format!("--data-blocks={}", p.data_blocks),
            format!("--salt={salt}"),
        ]
    }

    /// Returns the line for the guest.
    fn line(&self, number: usize) -> String {
        let (mut format, open) = (self.format_options().join(" "), self.open_options().join(" "));
        if self.superblock.is_none() {
            format += " --no-superblock";
        }
        let (name, block, root) = (self.name, self.parameters.data_block_len, hex(&self.root));
        format!("{name}|{number}|{block}|{root}|{format}|{open}|{}\n", self.table)
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

/// A stack of dm-verity and dm-crypt.
struct Stack {
    name: &'static str,
    plaintext: Vec<u8>,
    /// Bytes of the underlying devices.
    data: Vec<u8>,
    tree: Vec<u8>,
    /// Its table, with the devices [`DATA`] and [`HASH`].
    table: String,
}

impl Stack {
    /// Makes the image and the tree, with the tree over the plaintext or over the ciphertext.
    fn new(name: &'static str, over_plaintext: bool, dir: &Path) -> Result<Self> {
        const BLOCKS: u64 = 300;
        let sectors = BLOCKS * 8;
        let plaintext = Random::new(5).bytes(BLOCKS as usize * 4096);
        let key = hex(&Random::new(6).bytes(64));
        let crypt = |device: &str| format!("0 {sectors} crypt aes-xts-plain64 {key} 0 {device} 0");
        let [plain, image, table] = ["plain", "image", "line"].map(|file| dir.join(format!("{name}.{file}")));
        fs::write(&plain, &plaintext)?;
        File::create(&image)?.set_len(plaintext.len() as u64)?;
        fs::write(&table, crypt(image.to_str().context("a path in UTF-8")?))?;
        text(inlock()?.arg("import").arg(&plain).arg("--table").arg(&table))?;
        let data = fs::read(&image)?;
        let parameters = Parameters { data_blocks: BLOCKS, salt: vec![8; 32], ..Parameters::default() };
        let layout = parameters.layout()?;
        let tree = memory(&vec![0; layout.tree_len() as usize]);
        let covered = if over_plaintext { &plaintext } else { &data };
        let root = hex(&create(&Stores::new(memory(covered), tree.clone(), 0), &layout, 2)?);
        let salt = hex(&parameters.salt);
        let verity = |device: &str| {
            format!("root: 0 {sectors} verity 1 {device} {HASH} 4096 4096 {BLOCKS} 0 sha256 {root} {salt}")
        };
        let table = if over_plaintext {
            format!("plain: {}\n{}\n", crypt(DATA), verity("/dev/mapper/plain"))
        } else {
            format!("{}\nplain: {}\n", verity(DATA), crypt("/dev/mapper/root"))
        };
        Ok(Self { name, plaintext, data, tree: tree.contents(), table })
    }

    /// Compares what the kernel has read, and what Inlock reads by the same table, with the plaintext.
    fn judge(&self, theirs: &[u8], dir: &Path) -> Result<()> {
        ensure!(theirs[..self.plaintext.len()] == self.plaintext, "the kernel reads other data");
        let paths: [PathBuf; 2] = ["data", "hash"].map(|file| dir.join(format!("stack.{file}")));
        fs::write(&paths[0], &self.data)?;
        fs::write(&paths[1], &self.tree)?;
        let [data, hash] = paths.map(|path| path.display().to_string());
        let read = slots::export_table(dir, &self.table.replace(DATA, &data).replace(HASH, &hash))?;
        ensure!(read == self.plaintext, "Inlock reads other data");
        Ok(())
    }
}

/// A device with parity behind its tree, and data with corrupted blocks.
struct Repaired {
    data: Vec<u8>,
    corrupted: Vec<u8>,
    hash: Vec<u8>,
    root: String,
    /// Table that Inlock prints, with the devices [`DATA`] and [`HASH`].
    table: String,
}

impl Repaired {
    const OPTIONS: [&str; 2] = ["--fec-offset=2097152", "--fec-roots=4"];
    const BLOCKS: usize = 600;

    /// Lets Inlock make the tree and the parity.
    fn new(dir: &Path) -> Result<Self> {
        let bytes = Random::new(9).bytes(Self::BLOCKS * 4096);
        let [data, hash, root] = ["data", "hash", "root"].map(|file| dir.join(format!("fec.{file}")));
        fs::write(&data, &bytes)?;
        let fec = format!("--fec-device={}", hash.display());
        let mut command = inlock()?;
        command.args(["verity", "format"]).args([&data, &hash]).arg(&fec).args(Self::OPTIONS);
        text(command.arg("--root-hash-file").arg(&root))?;
        let root = fs::read_to_string(&root)?;
        let mut command = inlock()?;
        command.args(["verity", "table"]).args([&data, &hash]).args([&root, &fec]).args(Self::OPTIONS);
        let printed = text(&mut command)?;
        let path = |path: &Path| path.canonicalize().map(|path| path.display().to_string());
        let table = printed.trim().replace(&path(&data)?, DATA).replace(&path(&hash)?, HASH);
        // As many blocks of a round as there are roots; in other rounds a run, and a block with one wrong bit.
        let mut corrupted = bytes.clone();
        let rounds = (Self::BLOCKS + 511).div_ceil(251);
        for block in (0..4).map(|column| 2 + column * rounds) {
            corrupted[block * 4096..][..100].fill(0);
        }
        corrupted[23 * 4096..27 * 4096].fill(0xee);
        corrupted[101 * 4096 + 9] ^= 1;
        Ok(Self { data: bytes, corrupted, hash: fs::read(&hash)?, root, table })
    }

    /// Compares what the kernel has read, its table, and what Inlock reads by that table.
    fn judge(&self, read: &[u8], theirs: &str, dir: &Path) -> Result<()> {
        ensure!(read[..self.data.len()] == self.data, "the kernel reads other data");
        let words: Vec<&str> = theirs.split(' ').collect();
        ensure!(words.len() > 5, "the kernel's table is {theirs:?}");
        let named = |word: &&'_ str| match *word {
            word if word == words[4] => DATA.to_owned(),
            word if word == words[5] => HASH.to_owned(),
            word => word.to_owned(),
        };
        let named = words.iter().map(named).collect::<Vec<_>>().join(" ");
        ensure!(named == self.table, "the kernel's table is {theirs:?}, Inlock's {:?}", self.table);
        let paths: [PathBuf; 2] = ["data", "hash"].map(|file| dir.join(format!("repaired.{file}")));
        fs::write(&paths[0], &self.corrupted)?;
        fs::write(&paths[1], &self.hash)?;
        let [data, hash] = paths.map(|path| path.display().to_string());
        let read = slots::export_table(dir, &self.table.replace(DATA, &data).replace(HASH, &hash))?;
        ensure!(read == self.data, "Inlock reads other data");
        Ok(())
    }
}

/// Writes the bytes of a disk into their slots.
fn disk(scene: &mut Scene<'_>, name: &str, slots: &[&[u8]]) -> Result<()> {
    let path = scene.folder.join(format!("{name}.img"));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    file.set_len((slots.len() * SLOT) as u64)?;
    for (number, bytes) in slots.iter().enumerate() {
        file.write_all_at(bytes, (number * SLOT) as u64)?;
    }
    scene.disks.push(path);
    Ok(())
}

pub(super) fn prepare(scene: &mut Scene<'_>) -> Result<Judge> {
    let folder = scene.folder.to_owned();
    let rows: Vec<Row> = LINES.iter().map(|line| Row::new(line)?.with_table(&folder)).collect::<Result<_>>()?;
    let stacks = [Stack::new("verity-over-crypt", true, &folder)?, Stack::new("crypt-over-verity", false, &folder)?];
    let fec = Repaired::new(&folder)?;
    let fec_slot = rows.len() + stacks.len();
    let all = |of_row: fn(&Row) -> &[u8], of_stack: fn(&Stack) -> &[u8], of_fec: fn(&Repaired) -> &[u8]| {
        let slots = rows.iter().map(of_row).chain(stacks.iter().map(of_stack)).chain([of_fec(&fec)]);
        slots.collect::<Vec<_>>()
    };
    disk(scene, "data", &all(|row| &row.data, |stack| &stack.data, |fec| &fec.data))?;
    disk(scene, "ours", &all(|row| &row.tree, |stack| &stack.tree, |fec| &fec.hash))?;
    for name in ["theirs", "view"] {
        disk(scene, name, &all(|_| &[], |_| &[], |_| &[]))?;
    }
    disk(scene, "corrupted", &all(|row| &row.corrupted, |_| &[], |fec| &fec.corrupted))?;
    let list: String = rows.iter().enumerate().map(|(number, row)| row.line(number)).collect();
    scene.files.push(("vm/rows".to_owned(), list.into_bytes()));
    let open = format!("--fec-device={HASH} {}", Repaired::OPTIONS.join(" "));
    scene.files.push(("vm/fec".to_owned(), format!("{fec_slot}|{}|{open}\n", fec.root).into_bytes()));
    for (at, stack) in stacks.iter().enumerate() {
        let file = format!("vm/stack.{}.{}", stack.name, rows.len() + at);
        scene.files.push((file, stack.table.clone().into_bytes()));
    }
    Ok(Box::new(move |scene, report| {
        for (number, row) in rows.iter().enumerate() {
            judge(row, number, scene, report)?;
        }
        for (at, stack) in stacks.iter().enumerate() {
            let found = stack.judge(&slot(scene, 3, rows.len() + at)?, scene.folder);
            slots::report_row(report, stack.name, [("stack", found)]);
        }
        let said = report.data.iter().find(|(key, _)| key == "table:fec").map(|(_, text)| text.trim().to_owned());
        let found = fec.judge(&slot(scene, 3, fec_slot)?, &said.unwrap_or_default(), scene.folder);
        slots::report_row(report, "fec", [("repaired", found)]);
        report.counts.push(("verity_devices_read_by_the_kernel".to_owned(), rows.len() as u64));
        report.counts.push(("verity_tables_of_the_kernel".to_owned(), 2 * rows.len() as u64));
        Ok(())
    }))
}

/// Returns the bytes of a slot of a disk.
fn slot(scene: &Scene<'_>, disk: usize, number: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; SLOT];
    File::open(&scene.disks[disk])?.read_exact_at(&mut bytes, (number * SLOT) as u64)?;
    Ok(bytes)
}

fn judge(row: &Row, number: usize, scene: &Scene<'_>, report: &mut Report) -> Result<()> {
    let said = |key: &str| {
        let key = format!("{key}:{}", row.name);
        report.data.iter().find(|(other, _)| *other == key).map_or("", |(_, text)| text.trim()).to_owned()
    };
    let len = row.parameters.layout()?.data_len() as usize;
    let found = [
        ("read", same_data(&slot(scene, 3, number)?[..len], &row.data[..len])),
        ("corrupted", same_blocks(row, &said("unreadable"))),
        ("theirs", theirs(row, &slot(scene, 2, number)?, &said("root"))),
        ("table", same_table(row, &said("table"))),
        ("options", same_options(row, &said("options"))),
    ];
    slots::report_row(report, row.name, found);
    Ok(())
}

/// Compares the kernel's table, in which devices are numbers, with the one that Inlock has printed.
fn same_table(row: &Row, theirs: &str) -> Result<()> {
    let mut words: Vec<&str> = theirs.split(' ').collect();
    ensure!(words.len() > 5, "the kernel's table is {theirs:?}");
    (words[4], words[5]) = (DATA, HASH);
    ensure!(words.join(" ") == row.table, "the kernel's table is {theirs:?}, Inlock's {:?}", row.table);
    Ok(())
}

/// Lets Inlock read and print the kernel's table with options.
fn same_options(row: &Row, theirs: &str) -> Result<()> {
    let printed = text(inlock()?.args(["table", "--table", theirs]))?;
    ensure!(printed.trim() == theirs, "the kernel's table is {theirs:?}, Inlock prints {printed:?}");
    ensure!(theirs.ends_with(" 3 ignore_corruption ignore_zero_blocks check_at_most_once"), "{}: {theirs}", row.name);
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
