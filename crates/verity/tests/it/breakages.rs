//! Hostile superblocks and trees: each is refused with the name of its field, before memory is taken.

use crate::support::{Device, failing, memory, parameters, read};
use inlock_cipher::Hash;
use inlock_engine::{BackingStore, Errno};
use inlock_verity::{OpenOptions, Stores, Superblock, VerityError, VerityStore, verify};

/// Bytes of a little-endian number at an offset.
type Patch = (usize, u64, usize);

const fn u8_at(at: usize, value: u8) -> Patch {
    (at, value as u64, 1)
}

const fn u16_at(at: usize, value: u16) -> Patch {
    (at, value as u64, 2)
}

const fn u32_at(at: usize, value: u32) -> Patch {
    (at, value as u64, 4)
}

const fn u64_at(at: usize, value: u64) -> Patch {
    (at, value, 8)
}

/// Bytes of a name.
const fn name(text: &[u8; 8]) -> Patch {
    (32, u64::from_le_bytes(*text), 8)
}

/// Name, change of the superblock of 100 blocks of 4096 bytes, and the words that the error has to have.
const SUPERBLOCKS: &[(&str, Patch, &str)] = &[
    ("signature, first letter", u8_at(0, b'V'), "no superblock"),
    ("signature, last letter", u8_at(5, b'Y'), "no superblock"),
    ("signature without its end", u8_at(6, b'!'), "no superblock"),
    ("signature, one more letter", u8_at(7, b'2'), "no superblock"),
    ("signature, cleared", u64_at(0, 0), "no superblock"),
    ("version 0", u32_at(8, 0), "version"),
    ("version 2", u32_at(8, 2), "version"),
    ("version, high byte", u8_at(11, 1), "version"),
    ("version, all bits", u32_at(8, u32::MAX), "version"),
    ("type 2", u32_at(12, 2), "hash_type"),
    ("type, high byte", u8_at(15, 1), "hash_type"),
    ("type, all bits", u32_at(12, u32::MAX), "hash_type"),
    ("no name of a hash", name(b"\0\0\0\0\0\0\0\0"), "there is no name of a hash"),
    ("unknown hash", name(b"sha255\0\0"), "algorithm"),
    ("hash of a file system", name(b"crc32c\0\0"), "algorithm"),
    ("hash with key", name(b"hmac-sha"), "algorithm"),
    ("hash with a blank", name(b"sha 256\0"), "other characters"),
    ("hash behind a blank", name(b" sha256\0"), "other characters"),
    ("hash with a line feed", name(b"sha256\n\0"), "other characters"),
    ("hash with an escape", name(b"\x1b[2J256\0"), "other characters"),
    ("hash that is no text", name(b"\xff\xfe\xff\xfe256\0"), "other characters"),
    ("hash with half a letter", name(b"sha256\xc3\0"), "other characters"),
    ("hash with parentheses", name(b"crc(a)\0\0"), "algorithm"),
    ("path as a hash", name(b"../sha1\0"), "algorithm"),
    ("bytes behind the name", u8_at(40, b'x'), "algorithm"),
    ("bytes at the end of the name's field", u8_at(63, 1), "algorithm"),
    ("data blocks of no bytes", u32_at(64, 0), "data_block_size"),
    ("data blocks of one byte", u32_at(64, 1), "data_block_size"),
    ("data blocks of 256 bytes", u32_at(64, 256), "data_block_size"),
    ("data blocks of 511 bytes", u32_at(64, 511), "data_block_size"),
    ("data blocks of 513 bytes", u32_at(64, 513), "data_block_size"),
    ("data blocks of three sectors", u32_at(64, 1536), "data_block_size"),
    ("data blocks of 1 MiB", u32_at(64, 1 << 20), "data_block_size"),
    ("data blocks of 2 GiB", u32_at(64, 1 << 31), "data_block_size"),
    ("data blocks, all bits", u32_at(64, u32::MAX), "data_block_size"),
    ("hash blocks of no bytes", u32_at(68, 0), "hash_block_size"),
    ("hash blocks of one byte", u32_at(68, 1), "hash_block_size"),
    ("hash blocks as long as a digest", u32_at(68, 32), "hash_block_size"),
    ("hash blocks of 256 bytes", u32_at(68, 256), "hash_block_size"),
    ("hash blocks of 4097 bytes", u32_at(68, 4097), "hash_block_size"),
    ("hash blocks of 12 KiB", u32_at(68, 12 << 10), "hash_block_size"),
    ("hash blocks of 1 MiB", u32_at(68, 1 << 20), "hash_block_size"),
    ("hash blocks of 2 GiB", u32_at(68, 1 << 31), "hash_block_size"),
    ("hash blocks, all bits", u32_at(68, u32::MAX), "hash_block_size"),
    ("no data", u64_at(72, 0), "data_blocks"),
    ("one block more than there is", u64_at(72, 101), "data_blocks"),
    ("data of 16 TiB", u64_at(72, 1 << 32), "data_blocks"),
    ("data of 4 EiB", u64_at(72, 1 << 50), "data_blocks"),
    ("data of 8 EiB", u64_at(72, 1 << 51), "data_blocks"),
    ("data whose length wraps to 0", u64_at(72, 1 << 52), "data_blocks"),
    ("data whose length wraps to 100 blocks", u64_at(72, (1 << 52) + 100), "data_blocks"),
    ("negative number of blocks", u64_at(72, u64::MAX), "data_blocks"),
    ("largest positive number of blocks", u64_at(72, i64::MAX as u64), "data_blocks"),
    ("salt of 257 bytes", u16_at(80, 257), "salt_size"),
    ("salt to the end of the superblock", u16_at(80, 424), "salt_size"),
    ("salt behind the superblock", u16_at(80, 425), "salt_size"),
    ("salt, all bits", u16_at(80, u16::MAX), "salt_size"),
    // They are possible, but not of this tree.
    ("another type", u32_at(12, 0), "root hash"),
    ("another hash", name(b"sha3-256"), "root hash"),
    ("another name without end", (32, 0x2d33_6168_732d_3373, 8), "algorithm"),
    ("hash of another length", name(b"sha512\0\0"), "hash device"),
    ("short hash", name(b"sha1\0\0\0\0"), "root_hash"),
    ("smaller data blocks", u32_at(64, 2048), "data block 0 at position 0"),
    ("larger data blocks", u32_at(64, 8192), "data_blocks"),
    ("smaller hash blocks", u32_at(68, 2048), "root hash"),
    ("larger hash blocks", u32_at(68, 8192), "hash device"),
    ("fewer data", u64_at(72, 1), "root hash"),
    ("one block less", u64_at(72, 99), "unused bytes that are not zero"),
    ("shorter salt", u16_at(80, 31), "root hash"),
    ("longer salt", u16_at(80, 33), "root hash"),
    ("no salt", u16_at(80, 0), "root hash"),
    ("another salt", u8_at(88, 0), "root hash"),
];

/// Returns a device whose hash device starts with its superblock.
fn formatted() -> (Device, Vec<u8>) {
    let parameters = parameters(Hash::Sha256, 4096, 4096, 100);
    let device = Device::new(&parameters);
    let superblock = Superblock { uuid: [7; 16], hash_name: "sha256".to_owned(), parameters };
    let mut bytes = superblock.encode().to_vec();
    bytes.resize(4096, 0);
    bytes.extend(&device.tree);
    (device, bytes)
}

/// Loads a superblock and opens its device.
fn open(data: &[u8], hash: Vec<u8>, offset: u64, root: &[u8]) -> Result<VerityStore, VerityError> {
    let hash = memory(hash);
    let superblock = Superblock::read(&*hash, offset)?;
    let layout = superblock.layout()?;
    let start = Superblock::tree_offset(offset, superblock.parameters.hash_block_len)?;
    let stores = Stores::new(memory(data.to_vec()), hash, start);
    let opened = VerityStore::open(&stores, &layout, root, OpenOptions::default());
    // Some are found out only by reading.
    let verified = verify(&stores, &layout, root, 1);
    opened.and_then(|opened| verified.map(|()| opened))
}

#[test]
fn broken_superblock_is_refused_by_its_field() {
    let (device, bytes) = formatted();
    assert!(open(&device.data, bytes.clone(), 0, &device.root).is_ok());
    for (name, (at, value, len), reason) in SUPERBLOCKS {
        let mut broken = bytes.clone();
        broken[*at..at + len].copy_from_slice(&value.to_le_bytes()[..*len]);
        assert_ne!(broken, bytes, "{name} changes something");
        let before = broken.clone();
        let error =
            open(&device.data, broken.clone(), 0, &device.root).err().unwrap_or_else(|| panic!("{name}: opened"));
        assert!(error.to_string().contains(reason), "{name}: {error}");
        assert!(broken == before);
    }
    assert!(SUPERBLOCKS.len() >= 60);
    println!("COUNT verity_superblocks_judged {}", SUPERBLOCKS.len());
}

#[test]
fn name_of_a_hash_that_fills_its_field_is_refused() {
    let (device, mut bytes) = formatted();
    bytes[32..64].fill(b'a');
    let error = open(&device.data, bytes, 0, &device.root).err().unwrap().to_string();
    assert!(error.contains("the name of the hash has no end"), "{error}");
}

/// A superblock that was read has a layout, and one that cannot be read is none that is missing.
#[test]
fn superblock_is_read_whole_or_not_at_all() {
    let (_, bytes) = formatted();
    for (at, value, len) in [u32_at(64, 0), u32_at(68, 0), u64_at(72, 0), u64_at(72, u64::MAX)] {
        let mut broken = bytes.clone();
        broken[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
        assert!(matches!(Superblock::read(&*memory(broken), 0), Err(VerityError::Field(_))), "{at}: {value}");
    }
    let unsigned = Superblock::decode(&[&[0; 8][..], &bytes[8..]].concat());
    assert_eq!(unsigned.unwrap_err().field, "signature");
    let unreadable = failing(&bytes, |_| Err(Errno::IO));
    assert!(matches!(Superblock::read(&*unreadable, 0), Err(VerityError::Io { source: Errno::IO, .. })));
}

/// A root hash that is cut short, or has more bytes, is no verdict about the device.
#[test]
fn root_hash_of_another_length_is_refused_as_such() {
    let (device, bytes) = formatted();
    for root in [&device.root[..31], &[&device.root[..], &[0]].concat(), &[]] {
        let opened = open(&device.data, bytes.clone(), 0, root).err().unwrap();
        let verified = verify(&device.stores(), &device.layout, root, 1).unwrap_err();
        for error in [opened, verified] {
            assert!(matches!(&error, VerityError::Field(field) if field.field == "root_hash"), "{error}");
        }
    }
}

#[test]
fn superblock_at_an_impossible_place_is_refused() {
    let (device, bytes) = formatted();
    for (offset, reason) in
        [(1, "512"), (511, "512"), (512, "no superblock"), (u64::MAX - 511, "ends before"), (1 << 62, "ends before")]
    {
        let error = open(&device.data, bytes.clone(), offset, &device.root).err().unwrap().to_string();
        assert!(error.contains(reason), "{offset}: {error}");
    }
    for len in [0, 1, 511] {
        let error = open(&device.data, bytes[..len].to_vec(), 0, &device.root).err().unwrap().to_string();
        assert!(error.contains("ends before the superblock"), "{len}: {error}");
    }
    assert!(Superblock::tree_offset(u64::MAX - 600, 4096).is_err());
    assert!(open(&device.data, bytes[..8191].to_vec(), 0, &device.root).is_err());
}

/// Every value of every byte of a superblock opens the device or fails; nothing panics or takes memory for it.
#[test]
fn every_byte_of_a_superblock_is_judged() {
    let (device, bytes) = formatted();
    let mut judged = 0;
    for at in 0..512 {
        for value in 0..=255u8 {
            let mut broken = bytes.clone();
            broken[at] = value;
            // The UUID, unused bytes, and the case of letters.
            let is_free = (16..32).contains(&at) || (82..88).contains(&at) || at >= 120 || broken[at] == bytes[at];
            let is_free = is_free || (32..38).contains(&at) && broken[at].eq_ignore_ascii_case(&bytes[at]);
            let hash = memory(broken);
            let opened = Superblock::read(&*hash, 0).and_then(|superblock| {
                let start = Superblock::tree_offset(0, superblock.parameters.hash_block_len)?;
                let stores = Stores::new(memory(device.data.clone()), hash, start);
                VerityStore::open(&stores, &superblock.layout()?, &device.root, OpenOptions::default())?;
                verify(&stores, &superblock.layout()?, &device.root, 1)
            });
            assert_eq!(opened.is_ok(), is_free, "byte {at} is {value}");
            judged += 1;
        }
    }
    println!("COUNT verity_superblock_bytes_judged {judged}");
}

type Break = fn(&mut Device);

/// Name, and change of a tree of three levels over 1000 blocks of 512 bytes.
const TREES: &[(&str, Break)] = &[
    ("topmost block, first digest", |device| device.tree[0] ^= 1),
    ("topmost block, unused bytes", |device| device.tree[511] ^= 1),
    ("topmost block, cleared", |device| device.tree[..512].fill(0)),
    ("middle level, first digest", |device| device.tree[512] ^= 1),
    ("middle level, last block", |device| device.tree[4 * 512 + 100] ^= 1),
    ("middle level, two blocks exchanged", |device| device.tree[512..3 * 512].rotate_left(512)),
    ("lowest level, first digest", |device| device.tree[5 * 512] ^= 1),
    ("lowest level, two digests exchanged", |device| device.tree[5 * 512..5 * 512 + 64].rotate_left(32)),
    ("lowest level, two blocks exchanged", |device| device.tree[5 * 512..7 * 512].rotate_left(512)),
    ("lowest level, cleared", |device| device.tree[5 * 512..].fill(0)),
    ("level in place of the one above", |device| device.tree.copy_within(5 * 512..6 * 512, 512)),
    ("tree of other data", |device| device.tree = Device::new(&parameters(Hash::Sha256, 512, 512, 999)).tree),
    ("two blocks of data exchanged", |device| device.data[..1024].rotate_left(512)),
    ("data shifted by a block", |device| device.data.rotate_left(512)),
    ("data of the block before", |device| device.data.copy_within(..512, 512)),
    ("data cleared", |device| device.data.fill(0)),
];

#[test]
fn broken_tree_is_detected() {
    for (name, break_it) in TREES {
        let mut device = Device::new(&parameters(Hash::Sha256, 512, 512, 1000));
        let written = device.data.clone();
        break_it(&mut device);
        device.tree.resize(device.layout.tree_len() as usize, 0);
        assert!(matches!(device.verify(), Err(VerityError::Corrupt(_))), "{name}");
        let Ok(store) = device.open(OpenOptions::default()) else { continue };
        let blocks: Vec<_> = (0..1000).map(|block| read(&store, block * 512, 512)).collect();
        assert!(blocks.iter().any(Result::is_err), "{name}");
        let is_written =
            |(block, written): (&Result<Vec<u8>, _>, &[u8])| block.as_ref().map_or(true, |read| read == written);
        assert!(blocks.iter().zip(written.chunks(512)).all(is_written), "{name}");
        assert!(store.geometry().len == 512_000);
    }
}
