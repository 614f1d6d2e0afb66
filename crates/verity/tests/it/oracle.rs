//! Trees and superblocks against `veritysetup`, in both directions.

use crate::support::noise;
use inlock_engine::store::memory::MemoryStore;
use inlock_verity::{HashType, Parameters, Stores, Superblock, create, hash_named, verify};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// A directory that is removed.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("inlock-verity-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A volume of `veritysetup`.
struct Combination {
    hash: &'static str,
    format: u32,
    data_block: u32,
    hash_block: u32,
    blocks: u64,
    salt_len: usize,
    /// `None`: a hash device of its own.
    appended_behind: Option<u64>,
    superblock: bool,
}

fn combinations() -> Vec<Combination> {
    let mut all = Vec::new();
    let shapes =
        [(512, 512, 1), (512, 4096, 17), (4096, 4096, 300), (4096, 512, 130), (65536, 1024, 9), (1024, 65536, 2050)];
    let hashes = ["sha256", "sha1", "sha512", "sha384", "sha224", "ripemd160", "blake2b-512", "sha3-256"];
    for (number, (data_block, hash_block, blocks)) in (0..).zip(shapes) {
        for (at, hash) in (0..).zip(hashes) {
            for format in [0, 1] {
                let salt_len = [0, 32, 1, 64, 256][(number + at + format as usize) % 5];
                let kind: usize = number * 3 + at + format as usize;
                let appended_behind = [None, Some(0), Some(1), None][kind % 4];
                all.push(Combination {
                    hash,
                    format,
                    data_block,
                    hash_block,
                    blocks,
                    salt_len,
                    appended_behind,
                    superblock: !kind.is_multiple_of(3),
                });
            }
        }
    }
    all
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Formats with `veritysetup`, and returns the root hash that it prints.
fn format_by_veritysetup(row: &Combination, data: &Path, hash: &Path, offset: u64, salt: &str) -> String {
    let mut command = Command::new("veritysetup");
    command.arg("format").args([data, hash]).args(["--hash", row.hash, "--salt", salt]);
    command.args(["--uuid", "67d8cc2c-d8c1-4ada-a044-47333b44d202"]).arg(format!("--format={}", row.format));
    command.arg(format!("--data-block-size={}", row.data_block)).arg(format!("--hash-block-size={}", row.hash_block));
    command.arg(format!("--data-blocks={}", row.blocks)).arg(format!("--hash-offset={offset}"));
    if !row.superblock {
        command.arg("--no-superblock");
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().find_map(|line| line.strip_prefix("Root hash:")).unwrap().trim().to_owned()
}

/// Every byte of the hash device equals that of `veritysetup`, and each verifies what the other has made.
#[test]
fn trees_and_superblocks_are_those_of_veritysetup() {
    if Command::new("veritysetup").arg("--version").output().is_err() {
        println!("SKIPPED: veritysetup is not installed");
        return;
    }
    let dir = Dir::new();
    let (data_path, hash_path) = (dir.0.join("data"), dir.0.join("hash"));
    let mut compared = 0;
    for row in combinations() {
        let data = noise(row.blocks, (row.blocks * u64::from(row.data_block)) as usize);
        let salt = noise(3, row.salt_len);
        let align = u64::from(row.hash_block.max(512));
        let offset = row.appended_behind.map_or(0, |gap| (data.len() as u64).next_multiple_of(align) + gap * align);
        let _ = fs::remove_file(&hash_path);
        fs::write(&data_path, &data).unwrap();
        let hash_of = if row.appended_behind.is_some() { &data_path } else { &hash_path };
        let salt_text = if salt.is_empty() { "-".to_owned() } else { hex(&salt) };
        let root = format_by_veritysetup(&row, &data_path, hash_of, offset, &salt_text);
        let theirs = fs::read(hash_of).unwrap();

        let parameters = Parameters {
            hash_type: HashType::from_number(row.format).unwrap(),
            hash: hash_named(row.hash).unwrap(),
            data_block_len: row.data_block,
            hash_block_len: row.hash_block,
            data_blocks: row.blocks,
            salt,
        };
        let layout = parameters.layout().unwrap();
        let start = if row.superblock { Superblock::tree_offset(offset, row.hash_block).unwrap() } else { offset };
        let mut device = if row.appended_behind.is_some() { data.clone() } else { Vec::new() };
        device.resize(theirs.len(), 0);
        let store = Arc::new(MemoryStore::new(device));
        let stores = Stores::new(Arc::new(MemoryStore::new(data)), store.clone(), start);
        let own = create(&stores, &layout, 2).unwrap();
        if row.superblock {
            let uuid = *b"\x67\xd8\xcc\x2c\xd8\xc1\x4a\xda\xa0\x44\x47\x33\x3b\x44\xd2\x02";
            let superblock = Superblock { uuid, hash_name: row.hash.to_owned(), parameters: parameters.clone() };
            superblock.write(&*store, offset).unwrap();
            assert_eq!(Superblock::read(&MemoryStore::new(theirs.clone()), offset).unwrap(), superblock);
        }
        let described = format!("{} {} {}/{} {}", row.hash, row.format, row.data_block, row.hash_block, row.superblock);
        assert_eq!(hex(&own), root, "{described}");
        assert!(store.contents() == theirs, "{described}");
        let theirs = Stores::new(stores.data.clone(), Arc::new(MemoryStore::new(theirs)), start);
        verify(&theirs, &layout, &own, 2).unwrap();
        compared += 1;
    }
    assert!(compared >= 60);
    println!("COUNT verity_volumes_of_veritysetup {compared}");
}
