//! Fields without a signature, crossed with modes, keys and options: with a key a reader gets the bytes that were
//! written, or none.
//!
//! The attacker has the whole image and no key. Each volume has an older and a newer content of its blocks, of which
//! the newer is flushed. The attacker changes the data of some blocks, gives others the filler of discarded blocks or
//! zeroes as tags, and changes one field of the superblock.

use crate::sealed::{gcm, with_tags_of};
use crate::support::{fill, formatted, hash, memory};
use inlock_engine::{BackingStore, Errno};
use inlock_integrity::{
    DISCARD_FILLER, Flags, FormatOptions, IntegrityDevice, IntegrityStore, Mode, OpenOptions, Stores, Superblock,
    format, load,
};
use std::sync::Arc;

/// Protection of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// HMAC, and nothing protects the superblock.
    Keyed,
    /// HMAC, without salt.
    Unsalted,
    /// HMAC, and a MAC of journal and superblock.
    Signed,
    /// An AEAD, as LUKS2 has it.
    Sealed,
    /// A checksum, which anyone can compute: what cannot be forged with it are fillers.
    Keyless,
}

/// State before the attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    /// A power cut after a flush.
    Crashed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forgery {
    None,
    /// The data are changed.
    Data,
    /// So, and the tag is the filler.
    Filler,
    /// So, and the tag is zero.
    ZeroTag,
}

const BLOCK: usize = 512;
/// Room for four sections of the journal and some blocks, of which one section has all.
const LEN: usize = 208 << 10;
const SEPARATE_DATA_LEN: usize = 16 << 10;
const FORGERIES: [Forgery; 4] = [Forgery::None, Forgery::Data, Forgery::Filler, Forgery::ZeroTag];
const MODES: [Mode; 3] = [Mode::Journal, Mode::Bitmap, Mode::Direct];

fn format_options(kind: Kind) -> FormatOptions {
    FormatOptions {
        tag_size: (kind == Kind::Sealed).then(|| gcm().metadata_len()),
        internal_hash: match kind {
            Kind::Sealed => None,
            Kind::Keyless => Some(hash("sha256")),
            _ => Some(hash("hmac-sha256")),
        },
        journal_mac: (kind == Kind::Signed).then(|| hash("hmac-sha256")),
        fix_hmac: kind != Kind::Unsalted,
        interleave_sectors: 32,
        journal_sectors: Some(360),
        sectors_per_bit: 8,
        salt: Some([7; 16]),
        ..FormatOptions::default()
    }
}

fn open_options(kind: Kind, mode: Mode) -> OpenOptions {
    crate::support::open_options(mode, &format_options(kind))
}

/// A volume in memory.
enum Volume {
    Internal(Box<IntegrityDevice>),
    Sealed(IntegrityStore),
}

impl Volume {
    fn open(kind: Kind, stores: &Stores, options: OpenOptions) -> Option<Self> {
        let device = IntegrityDevice::open(stores.clone(), options).ok()?;
        if kind != Kind::Sealed {
            return Some(Self::Internal(Box::new(device)));
        }
        let sealing = with_tags_of(gcm().metadata_len(), &gcm(), BLOCK as u32, 1);
        IntegrityStore::sealed(Arc::new(device), sealing).ok().map(Self::Sealed)
    }

    fn device(&self) -> &IntegrityDevice {
        match self {
            Self::Internal(device) => device,
            Self::Sealed(store) => store.device(),
        }
    }

    fn write(&self, block: u64, data: &[u8]) {
        match self {
            Self::Internal(device) => device.write(block, data, &[]).unwrap(),
            Self::Sealed(store) => assert_eq!(store.write_at(data, block * BLOCK as u64), Ok(BLOCK)),
        }
    }

    fn read(&self, block: u64) -> Result<Vec<u8>, Errno> {
        let mut data = vec![0xcc; BLOCK];
        match self {
            Self::Internal(device) => device.read(block, &mut data, &mut []).map_err(|error| error.errno())?,
            Self::Sealed(store) => {
                store.read_at(&mut data, block * BLOCK as u64)?;
            }
        }
        Ok(data)
    }
}

/// The bytes of a volume's devices.
#[derive(Clone)]
struct Image {
    data: Vec<u8>,
    meta: Option<Vec<u8>>,
}

impl Image {
    /// Makes a volume whose blocks have content 1, then 2.
    fn make(kind: Kind, mode: Mode, state: State, separate: bool) -> Self {
        let format = format_options(kind);
        let (data, meta) = formatted(&format, if separate { SEPARATE_DATA_LEN } else { LEN }, separate.then_some(LEN));
        let (data, meta) = (memory(data), meta.map(memory));
        let stores = Stores { data: data.clone(), meta: meta.clone().map(|meta| meta as _), start: 0 };
        let write = |mode, content| {
            let volume = Volume::open(kind, &stores, open_options(kind, mode)).unwrap();
            for block in 0..volume.device().layout().blocks() {
                volume.write(block, &fill(block, content, BLOCK));
            }
            volume.device().flush().unwrap();
            volume
        };
        write(Mode::Direct, 1).device().close().unwrap();
        let volume = write(mode, 2);
        if state == State::Closed {
            volume.device().close().unwrap();
        }
        let first = volume.device().layout().data_position(0).0 as usize;
        drop(volume);
        let image = Self { data: data.contents(), meta: meta.map(|meta| meta.contents()) };
        let is_journaled = (mode, state) == (Mode::Journal, State::Crashed) && kind != Kind::Sealed;
        let content = if is_journaled { 1 } else { 2 };
        assert!(kind == Kind::Sealed || image.data[first..first + BLOCK] == fill(0, content, BLOCK));
        image
    }

    fn stores(&self) -> Stores {
        let meta = self.meta.clone().map(|meta| memory(meta) as _);
        Stores { data: memory(self.data.clone()), meta, start: 0 }
    }

    fn metadata(&mut self) -> &mut Vec<u8> {
        self.meta.as_mut().unwrap_or(&mut self.data)
    }

    /// Changes some blocks in their places, and their tags.
    fn forge(&mut self, kind: Kind) {
        let options = OpenOptions { legacy_recalculate: true, ..open_options(kind, Mode::Direct) };
        let layout = load(&self.stores(), &options).unwrap().1;
        for block in 0..layout.blocks() {
            let forgery = FORGERIES[block as usize % FORGERIES.len()];
            if forgery == Forgery::None {
                continue;
            }
            let (at, tag) = (layout.data_position(block).0 as usize, layout.tag_position(block).0 as usize);
            self.data[at..at + BLOCK].copy_from_slice(&fill(block, 9, BLOCK));
            let tag = &mut self.metadata()[tag..tag + layout.journal.tag_size];
            match forgery {
                Forgery::Filler => tag.fill(DISCARD_FILLER),
                Forgery::ZeroTag => tag.fill(0),
                Forgery::Data | Forgery::None => {}
            }
        }
    }
}

/// A change of the superblock: its bytes from an offset.
type Change = (usize, Vec<u8>);

/// Returns every single bit of the fields, and hostile values of each field, some with the flags that make them count.
fn changes(superblock: &[u8]) -> Vec<Change> {
    let mut changes = vec![(0, Vec::new())];
    changes.extend((0..64 * 8).map(|bit| (bit / 8, vec![superblock[bit / 8] ^ 1 << (bit % 8)])));
    let flags = u32::from_le_bytes(superblock[24..28].try_into().unwrap());
    let mut add = |at: usize, bytes: &[u8]| changes.push((at, bytes.to_vec()));
    [1, 4, 8, 16, 24, 27, 28, 29, 31, 32, 33, 36, 40, 64, 255].into_iter().for_each(|len: u8| add(10, &[len, 0]));
    (1..=6).for_each(|version| add(8, &[version]));
    (0..32).for_each(|log2| add(9, &[log2]));
    (0..4).for_each(|log2| add(28, &[log2]));
    (0..32).for_each(|log2| add(29, &[log2]));
    (1..8u32).for_each(|sections| add(12, &sections.to_le_bytes()));
    (1..64u64).for_each(|sectors| add(16, &(sectors * 8).to_le_bytes()));
    // All flags, with the version that they need and with every place of a recalculation.
    for set in (0..64).filter(|set| *set != flags) {
        for recalculated in [0, 8, 32, 1 << 40] {
            let mut bytes = superblock[8..40].to_vec();
            bytes[0] = if set & Flags::INLINE.bits() == 0 { 5 } else { 6 };
            bytes[16..20].copy_from_slice(&u32::to_le_bytes(set));
            bytes[24..32].copy_from_slice(&u64::to_le_bytes(recalculated));
            changes.push((8, bytes));
        }
    }
    changes
}

/// Opens a volume, computes the tags that it wants computed, and compares each block before and behind that.
/// Returns whether it was opened.
fn judge(kind: Kind, image: &Image, options: &OpenOptions, what: &str) -> bool {
    let stores = image.stores();
    let Some(volume) = Volume::open(kind, &stores, options.clone()) else { return false };
    let blocks = volume.device().layout().blocks().min(64);
    for round in ["at first", "later"] {
        for block in 0..blocks {
            let discarded = options.allow_discards && kind != Kind::Keyless;
            match volume.read(block) {
                Ok(data) if data == fill(block, 2, BLOCK) => {}
                Ok(data) if discarded && data == [0; BLOCK] => {}
                Ok(data) => panic!("{what}: {round} block {block} reads as {:02x?}", &data[..8]),
                Err(error) => assert_eq!(error, Errno::ILSEQ, "{what}: {round} block {block}"),
            }
        }
        if options.read_only {
            break;
        }
        while volume.device().recalculate_step() == Ok(false) {}
    }
    true
}

/// Returns the options of a mode that an ordinary user gives.
fn ordinary(kind: Kind, mode: Mode) -> Vec<OpenOptions> {
    let options = open_options(kind, mode);
    let discards = OpenOptions { allow_discards: true, ..options.clone() };
    let read_only = OpenOptions { read_only: true, ..options.clone() };
    if kind == Kind::Sealed { vec![options, read_only] } else { vec![options, discards, read_only] }
}

#[test]
fn no_field_of_a_superblock_makes_a_block_read_as_other_bytes() {
    let (mut opened, mut refused) = (0, 0);
    for kind in [Kind::Keyed, Kind::Unsalted, Kind::Signed, Kind::Sealed] {
        for (mode, separate) in MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
            if kind == Kind::Sealed && mode == Mode::Bitmap {
                continue;
            }
            for state in [State::Closed, State::Crashed] {
                let image = Image::make(kind, mode, state, separate);
                let mut forged = image.clone();
                forged.forge(kind);
                for (number, (at, bytes)) in changes(&image.clone().metadata()[..512]).into_iter().enumerate() {
                    // Each change with one of the images, of the other modes, and of the options.
                    let mut changed = if number % 7 == 6 { image.clone() } else { forged.clone() };
                    changed.metadata()[at..at + bytes.len()].copy_from_slice(&bytes);
                    let opened_in = if number % 3 == 2 { MODES[number % 9 / 3] } else { mode };
                    let options = ordinary(kind, opened_in);
                    let options = &options[number % options.len()];
                    let what = format!("{kind:?}, {mode:?}, then {opened_in:?}, {state:?}, from {at}: {bytes:02x?}");
                    if judge(kind, &changed, options, &what) { opened += 1 } else { refused += 1 }
                }
            }
        }
    }
    println!("COUNT integrity_hostile_superblocks {}", opened + refused);
    assert!(opened > 1000 && refused > 1000, "{opened} opened, {refused} refused");
}

#[test]
fn flags_that_turn_verification_off_need_an_option_with_a_key() {
    let recalculating = Flags::RECALCULATING.bits();
    let dirty = Flags::DIRTY_BITMAP.bits();
    for (mode, flag) in MODES.into_iter().flat_map(|mode| [(mode, recalculating), (mode, dirty)]) {
        for kind in [Kind::Keyed, Kind::Unsalted, Kind::Keyless] {
            let mut image = Image::make(kind, mode, State::Closed, false);
            image.data[24] |= flag as u8;
            image.data[8] = image.data[8].max(3);
            let options = open_options(kind, mode);
            let error = IntegrityDevice::open(image.stores(), options.clone()).err().map(|error| error.to_string());
            if kind == Kind::Keyless {
                assert_eq!(error, None, "{mode:?}, flag {flag}");
                continue;
            }
            let option = if flag == dirty { "option integrity-legacy-recalculate" } else { "integrity-recalculate" };
            assert!(error.as_ref().is_some_and(|error| error.contains(option)), "{kind:?}, {mode:?}: {error:?}");
            let legacy = OpenOptions { legacy_recalculate: true, ..options };
            assert!(judge(kind, &image, &legacy, "with the option, nothing was changed"));
        }
        // Nothing could compute the tags, and the journal would be left out.
        if mode != Mode::Bitmap {
            let mut image = Image::make(Kind::Sealed, mode, State::Crashed, false);
            assert!(judge(Kind::Sealed, &image, &open_options(Kind::Sealed, mode), "unchanged"));
            image.data[24] |= dirty as u8;
            let error = IntegrityDevice::open(image.stores(), open_options(Kind::Sealed, mode)).err().unwrap();
            assert!(error.to_string().contains("superblock field flags"), "{error}");
        }
    }
}

#[test]
fn mac_without_a_key_signs_no_superblock() {
    let mut options = format_options(Kind::Keyed);
    options.journal_mac = Some(hash("sha256"));
    options.recalculate = true;
    let (data, _) = formatted(&options, LEN, None);
    let mut open = crate::support::open_options(Mode::Journal, &options);
    let opened = |open: &OpenOptions| IntegrityDevice::open(Stores::interleaved(memory(data.clone())), open.clone());
    let error = opened(&open).err().unwrap().to_string();
    assert!(error.contains("integrity-recalculate") && error.contains("a MAC with a key"), "{error}");
    open.legacy_recalculate = true;
    opened(&open).unwrap();
}

#[test]
fn tags_shorter_than_a_keyed_hash_are_asked_for_by_name() {
    for (kind, name) in [(Kind::Keyed, "hmac-sha256"), (Kind::Keyless, "sha256")] {
        for tag_size in [1, 31, 32, 40] {
            let format_options = FormatOptions { tag_size: Some(tag_size), ..format_options(kind) };
            let (data, _) = formatted(&format_options, LEN, None);
            let mut open = open_options(kind, Mode::Journal);
            let load = |open: &OpenOptions| load(&Stores::interleaved(memory(data.clone())), open).map(|_| ());
            let result = load(&open);
            let is_weak = kind == Kind::Keyed && tag_size < 32;
            assert_eq!(result.is_err(), is_weak, "{name} of {tag_size} bytes: {result:?}");
            assert!(result.is_ok() || result.unwrap_err().to_string().starts_with("option tag-size"));
            open.tag_size = Some(tag_size);
            load(&open).unwrap();
            open.tag_size = Some(tag_size + 1);
            load(&open).unwrap_err();
        }
    }
}

#[test]
fn discarded_blocks_are_read_only_where_discards_are_allowed() {
    for (kind, mode) in [Kind::Keyed, Kind::Keyless].into_iter().flat_map(|kind| MODES.map(|mode| (kind, mode))) {
        // Its journal is empty: an entry from before the discard may be replayed.
        let image = Image::make(kind, Mode::Direct, State::Closed, false);
        let stores = image.stores();
        let allowed = OpenOptions { allow_discards: true, ..open_options(kind, mode) };
        let device = IntegrityDevice::open(stores.clone(), allowed.clone()).unwrap();
        device.discard(3, 2).unwrap();
        device.write(0, &fill(0, 2, BLOCK), &[]).unwrap();
        device.close().unwrap();
        drop(device);
        let read = |options| {
            let device = IntegrityDevice::open(stores.clone(), options).unwrap();
            let mut data = vec![0xcc; BLOCK];
            let result = device.read(3, &mut data, &mut []).map_err(|error| error.errno());
            device.close().unwrap();
            result.map(|()| data)
        };
        // With a key the data behind a filler, which anyone can write, are not returned.
        let expected = if kind == Kind::Keyed { vec![0; BLOCK] } else { fill(3, 2, BLOCK) };
        assert_eq!(read(allowed), Ok(expected), "{kind:?}, {mode:?}");
        assert_eq!(read(open_options(kind, mode)), Err(Errno::ILSEQ), "{kind:?}, {mode:?}");
    }
}

#[test]
fn superblock_of_other_fields_is_the_only_one_with_its_mac() {
    let options = format_options(Kind::Signed);
    let stores = Stores::interleaved(memory(vec![0; LEN]));
    let superblock = format(&stores, &options).unwrap();
    let bytes = superblock.encode(options.journal_mac.as_deref(), false);
    for bit in 0..64 * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let Ok(decoded) = Superblock::decode(&changed[..]) else { continue };
        let is_signed = decoded.flags.has(Flags::FIXED_HMAC);
        assert_eq!(decoded.check_mac(&changed[..], options.journal_mac.as_deref()).is_err(), is_signed, "bit {bit}");
    }
}
