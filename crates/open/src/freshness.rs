//! `--freshness`: a file outside the image that records its newest state, so that an older copy is refused.
//!
//! The file has two records, of which the newer one is valid; they are written in turns, so that an interrupted write
//! leaves the other. Their MAC has a key that is derived from the volume key.

use crate::error::{Error, ErrorKind, Result, ResultExt as _, message_of};
use crate::host::Context;
use std::fs::{File, OpenOptions as FileOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use inlock_engine::Errno;
use inlock_integrity::{
    Digest, Freshness, FreshnessKey, FreshnessRecord, IntegrityDevice, Mode, OpenOptions, RecordedState, Stores,
    digest, empties_journal, stored_section, tag_root,
};
use inlock_volume::{HeaderDevice, Volume, VolumeKey};

use super::device::Device;
use super::header::Header;
use super::source::{FreshnessOptions, Luks};

/// Distance of the two records in the file.
const SLOT: u64 = 4096;
/// Bytes of the file.
const FILE_LEN: usize = 2 * SLOT as usize;
/// Shortest and longest LUKS2 metadata, which end where the second copy begins.
const MIN_METADATA: u64 = 16 << 10;
const MAX_METADATA: u64 = 4 << 20;
/// Bytes of a binary header, with its sequence number and a checksum of its metadata.
const BLOCK: usize = 4096;

type Block = [u8; BLOCK];

/// A volume whose freshness is to be checked.
pub struct FreshnessCheck {
    args: FreshnessOptions,
    uuid: String,
    /// The header that was loaded, and unlocked the volume.
    loaded: Digest,
    header: HeaderSource,
}

/// Where the header of a volume is.
struct HeaderSource {
    device: Device,
    luks: Luks,
}

/// The file of a volume that was compared with it.
pub struct FreshnessFile {
    path: PathBuf,
    file: File,
    key: FreshnessKey,
    header: HeaderSource,
    /// First blocks of both copies of the header when it was last read.
    seen: Mutex<Option<[Block; 2]>>,
    /// Device of the volume.
    data: Device,
    /// The dm-integrity volume on it, read-only, and the options that open it.
    stores: Stores,
    options: OpenOptions,
    record: Mutex<FreshnessRecord>,
    tags: bool,
}

impl FreshnessCheck {
    /// Prepares the check of a volume with this header, which is not read again for it.
    pub(crate) fn new(args: FreshnessOptions, header: &Header, luks: Luks) -> Self {
        let (uuid, loaded) = (header.volume.uuid().to_owned(), identity(&header.volume));
        Self { args, uuid, loaded, header: HeaderSource { device: header.device.duplicate(), luks } }
    }

    /// Compares the volume on `data`, which `stores` read, with the file, before its journal is replayed. Returns the
    /// file if the volume will be written; it then has a record that allows the replay.
    pub(crate) fn verify(
        self,
        key: &VolumeKey,
        data: &Device,
        stores: Stores,
        options: &OpenOptions,
        writing: bool,
    ) -> Result<Option<Arc<FreshnessFile>>> {
        let Self { args, uuid, loaded, header } = self;
        let path = args.file;
        if args.accept && !writing {
            return Err(Error::new(
                ErrorKind::AcceptNeedsWriting,
                "Option --freshness-accept needs a writable open: it records the state.",
            ));
        }
        let file = open_file(&path, args.accept, writing)?;
        let key = FreshnessKey::derive(key.as_bytes())?;
        let volume = digest(uuid.as_bytes());
        let present = with_superblock(&loaded, data, stores.start)?;
        let stored = newest_record(&file, &path, &key, &volume, args.accept)?;
        let tags = args.tags || stored.is_some_and(|record| record.tags.is_some());
        if !args.accept {
            let Some(record) = stored else { return Err(not_of_volume(&path, &data.path)) };
            judge(data.context(), record.compare(&stores, options, &present)?, &data.path, &path)?;
        } else if let Some(record) = stored {
            // A changed header is what most users accept: they are told if there is more.
            let found = FreshnessRecord { header: present, ..record }.compare(&stores, options, &present)?;
            tell_accepted(data.context(), found, &data.path, &path);
        }
        if !writing {
            return Ok(None);
        }
        if options.mode == Mode::Direct && !tags {
            return Err(Error::new(
                ErrorKind::FreshnessNeedsTags,
                "Option --freshness without the journal needs --freshness-tags.",
            ));
        }
        let number = stored.map_or(0, |record| record.number);
        let accepted = FreshnessRecord {
            number,
            state: RecordedState::Opening,
            volume,
            header: present,
            section: None,
            tags: stored.and_then(|record| record.tags),
        };
        // Until the volume is open, the stored record tells its state, unless its journal is emptied meanwhile.
        let empties = !args.accept && empties_journal(&stores, options)?;
        let record = Mutex::new(stored.filter(|_| !args.accept).unwrap_or(accepted));
        let (data, options, seen) = (data.duplicate(), options.clone(), Mutex::default());
        let fresh = FreshnessFile { path, file, key, header, seen, data, stores, options, record, tags };
        if empties {
            fresh.write(|record| record.state = RecordedState::Opening)?;
        }
        Ok(Some(Arc::new(fresh)))
    }
}

/// Tells what `--freshness-accept` accepts apart from a changed header.
fn tell_accepted(context: &Context, found: Freshness, image: &Path, file: &Path) {
    let (image, file) = (image.display(), file.display());
    match found {
        Freshness::Older => {
            context.warn(format_args!("{image} is older than {file} records; it is accepted nevertheless"))
        }
        Freshness::Unknown => context.warn(format_args!(
            "{image} was used without the journal and not closed; its present state is accepted without a comparison"
        )),
        _ => {}
    }
}

/// Explains a volume that is not the newest one.
fn judge(context: &Context, found: Freshness, image: &Path, file: &Path) -> Result<()> {
    let (image, file) = (image.display(), file.display());
    match found {
        Freshness::Newest => Ok(()),
        Freshness::NewestWithoutTags => {
            context.warn(format_args!("{image}: the volume was not closed; its tags are not compared with {file}"));
            Ok(())
        }
        Freshness::OtherHeader => {
            let text = format!("The header of device {image} is not the one that {file} records.");
            Err(Error::new(ErrorKind::HeaderNotFresh, text))
        }
        Freshness::Older => {
            Err(Error::new(ErrorKind::NotFresh, format!("Device {image} is older than {file} records.")))
        }
        Freshness::Unknown => {
            let text = format!(
                "Device {image} was used without the journal and not closed, so {file} cannot tell its last state."
            );
            Err(Error::new(ErrorKind::FreshnessUnknown, text))
        }
    }
}

fn not_of_volume(path: &Path, image: &Path) -> Error {
    let (path, image) = (path.display(), image.display());
    Error::new(ErrorKind::FreshnessOfOther, format!("{path} has no record of the volume on {image}."))
}

/// Opens the file, and creates it if it is missing and `accept` is set.
fn open_file(path: &Path, accept: bool, writing: bool) -> Result<File> {
    let cannot_open = || format!("Cannot open freshness file {}.", path.display());
    let file = FileOptions::new().read(true).write(writing).create(accept && writing).mode(0o600).open(path);
    let file = match file {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !accept => {
            let text = format!("Freshness file {} does not exist.", path.display());
            return Err(Error::new(ErrorKind::NoFreshnessFile, text).about(path));
        }
        other => other.with_context(cannot_open)?,
    };
    match if writing { file.try_lock() } else { file.try_lock_shared() } {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(Error::in_use(ErrorKind::FreshnessFileInUse, path));
        }
        Err(TryLockError::Error(error)) => return Err(error).with_context(cannot_open),
    }
    if accept && file.metadata().with_context(cannot_open)?.len() == 0 {
        // Name and blocks are durable before a record is relied on: no later flush fails for want of space.
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        file.write_all_at(&[0; FILE_LEN], 0).and_then(|()| file.sync_all()).with_context(cannot_open)?;
        File::open(dir).and_then(|dir| dir.sync_all()).with_context(cannot_open)?;
    }
    Ok(file)
}

/// Returns the newest record of the volume. `None`: there is none. With `accept` a file of another volume is refused.
fn newest_record(
    file: &File,
    path: &Path,
    key: &FreshnessKey,
    volume: &Digest,
    accept: bool,
) -> Result<Option<FreshnessRecord>> {
    let cannot_read = || format!("Cannot read freshness file {}.", path.display());
    let mut newest: Option<FreshnessRecord> = None;
    let mut is_present = false;
    let mut is_foreign = false;
    for slot in 0..2 {
        let mut bytes = [0; FreshnessRecord::LEN];
        read_until_end(file, &mut bytes, slot * SLOT).with_context(cannot_read)?;
        is_present |= FreshnessRecord::is_present(&bytes);
        is_foreign |= !FreshnessRecord::is_present(&bytes) && bytes.iter().any(|byte| *byte != 0);
        let record = FreshnessRecord::decode(&bytes, key).filter(|record| record.volume == *volume);
        newest = newest.into_iter().chain(record).max_by_key(|record| record.number);
    }
    let is_long = file.metadata().with_context(cannot_read)?.len() > FILE_LEN as u64;
    if is_foreign || (is_long && !is_present) {
        return Err(Error::new(ErrorKind::NotAFreshnessFile, format!("{} is not a freshness file.", path.display())));
    }
    if accept && is_present && newest.is_none() {
        return Err(Error::new(
            ErrorKind::FreshnessForeign,
            format!("{} has records of another volume, or is damaged.", path.display()),
        ));
    }
    Ok(newest)
}

/// Reads what there is; the rest is left as it is.
fn read_until_end(file: &File, mut bytes: &mut [u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.read_at(bytes, at) {
            Ok(0) => break,
            Ok(len) => (bytes, at) = (&mut bytes[len..], at + len as u64),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the digest of a header: everything that decides what opens the volume, of the copy that was used.
fn identity(volume: &Volume) -> Digest {
    let fields = [Some(volume.uuid()), volume.label(), volume.subsystem(), volume.metadata_json()];
    let digests: Vec<u8> = fields.iter().flat_map(|field| digest(field.unwrap_or_default().as_bytes())).collect();
    digest(&digests)
}

/// Returns the digest of a header and of the superblock.
fn with_superblock(header: &Digest, data: &Device, start: u64) -> Result<Digest> {
    let mut bytes = [0; 32 + 512];
    let (first, superblock) = bytes.split_at_mut(32);
    first.copy_from_slice(header);
    let read = data.header()?.read_exact_at(superblock, start * 512);
    read.with_context(|| format!("cannot read the superblock of {}", data.path.display()))?;
    Ok(digest(&bytes))
}

impl HeaderSource {
    /// Returns the first blocks of both copies, which every change of the header changes. One that cannot be read is
    /// zero.
    fn blocks(&self) -> io::Result<[Block; 2]> {
        let (device, mut blocks) = (self.device.header()?, [[0; BLOCK]; 2]);
        let _ = device.read_exact_at(&mut blocks[0], 0);
        let second = u64::from_be_bytes(blocks[0][8..16].try_into().unwrap_or_default());
        let _ = device.read_exact_at(&mut blocks[1], second.clamp(MIN_METADATA, MAX_METADATA));
        Ok(blocks)
    }
}

impl FreshnessFile {
    /// Records that the volume is open, and each commit of its journal from now on.
    pub(crate) fn attach(self: &Arc<Self>, device: &IntegrityDevice) -> Result<()> {
        let section = match device.newest_section() {
            None => None,
            Some(number) => {
                let stored = stored_section(&self.stores, &self.options, number)?;
                stored.map(|stored| (stored.number, stored.digest))
            }
        };
        if section.is_some() {
            let file = Arc::clone(self);
            let recorded = device.record_commits(move |number, digest| file.commit(number, digest));
            recorded.map_err(|_| {
                let text = format!("The journal of {} is too short for --freshness.", self.data.path.display());
                Error::new(ErrorKind::FreshnessJournal, text)
            })?;
        }
        self.write(|record| {
            (record.state, record.section) = (RecordedState::Open, section);
            // Until the close, that there is a digest tells that tags are recorded.
            record.tags = self.tags.then(|| record.tags.unwrap_or_default());
        })
    }

    fn commit(&self, number: u32, digest: Digest) -> Result<(), Errno> {
        let header = self.changed_header();
        let change = |record: &mut FreshnessRecord| {
            (record.state, record.section) = (RecordedState::Open, Some((number, digest)));
            record.header = header.unwrap_or(record.header);
        };
        self.write(change).map_err(|error| {
            self.data.context().warn(message_of(&error));
            Errno::IO
        })
    }

    /// Records a volume that was closed.
    pub(crate) fn close(&self) -> Result<()> {
        let tags = match self.tags {
            true => Some(tag_root(&self.stores, &self.options)?),
            false => None,
        };
        let header = self.header_digest()?;
        self.write(|record| (record.state, record.header, record.tags) = (RecordedState::Closed, header, tags))
    }

    fn header_digest(&self) -> Result<Digest> {
        let volume = Header::load_again(&self.header.device, self.header.luks)?;
        with_superblock(&identity(&volume), &self.data, self.stores.start)
    }

    /// Records a header that was changed while the volume is open, so that it is not refused after a power cut.
    pub(crate) fn refresh_header(&self) -> Result<()> {
        match self.changed_header() {
            Some(header) => self.write(|record| record.header = header),
            None => Ok(()),
        }
    }

    /// Returns the digest of the header if it was changed since the last call. A header that cannot be read now, as
    /// while it is being written, is tried again by the next call.
    fn changed_header(&self) -> Option<Digest> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let blocks = self.header.blocks().ok().filter(|blocks| seen.as_ref() != Some(blocks))?;
        let digest = self.header_digest().ok()?;
        *seen = Some(blocks);
        Some(digest)
    }

    /// Changes the record, and makes it durable.
    fn write(&self, change: impl FnOnce(&mut FreshnessRecord)) -> Result<()> {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = *record;
        change(&mut next);
        next.number += 1;
        let written = self.file.write_all_at(&next.encode(&self.key), next.number % 2 * SLOT);
        let written = written.and_then(|()| self.file.sync_data());
        written.with_context(|| format!("cannot write freshness file {}", self.path.display()))?;
        *record = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::OpenMode;
    use crate::host::{Silent, Warned};
    use crate::settings::Settings;
    use inlock_engine::store::memory::MemoryStore;
    use inlock_integrity::{FormatOptions, TagHash, format};
    use inlock_volume::luks2;
    use inlock_volume::{FileDevice, KdfKind, KdfRequest, Secret};

    const RECORD: FreshnessRecord = FreshnessRecord {
        number: 1,
        state: RecordedState::Closed,
        volume: [1; 32],
        header: [2; 32],
        section: None,
        tags: None,
    };

    /// A file with these bytes at these positions, and of this length.
    fn file(parts: &[(u64, &[u8])], len: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        parts.iter().for_each(|(at, bytes)| file.write_all_at(bytes, *at).unwrap());
        file.set_len(len).unwrap();
        file
    }

    #[test]
    fn newest_record_of_the_volume_counts() {
        let key = FreshnessKey::derive(&[7; 64]).unwrap();
        let [two, three] = [2, 3].map(|number| FreshnessRecord { number, ..RECORD }.encode(&key));
        let foreign = FreshnessRecord { volume: [9; 32], number: 4, ..RECORD }.encode(&key);
        let len = FILE_LEN as u64;
        let not_a_file = Err(ErrorKind::NotAFreshnessFile);
        type Parts<'a> = &'a [(u64, &'a [u8])];
        let cases: [(&str, Parts<'_>, u64, [_; 2]); 12] = [
            ("of a fresh file", &[], len, [Ok(None); 2]),
            ("of an empty file", &[], 0, [Ok(None); 2]),
            ("in the second place", &[(0, &two), (SLOT, &three)], len, [Ok(Some(3)); 2]),
            ("in the first place", &[(0, &three), (SLOT, &two)], len, [Ok(Some(3)); 2]),
            ("alone in the first place", &[(0, &two)], SLOT, [Ok(Some(2)); 2]),
            ("alone in the second place", &[(SLOT, &two)], len, [Ok(Some(2)); 2]),
            ("next to another volume's", &[(0, &foreign), (SLOT, &two)], len, [Ok(Some(2)); 2]),
            ("of another volume", &[(0, &foreign)], len, [Ok(None), Err(ErrorKind::FreshnessForeign)]),
            ("next to other bytes", &[(0, &two), (SLOT, &[0, 1])], len, [not_a_file; 2]),
            ("none, but other bytes", &[(0, b"x")], len, [not_a_file; 2]),
            ("none in a long file", &[], len + 1, [not_a_file; 2]),
            ("in a long file", &[(0, &two)], len + 1, [Ok(Some(2)); 2]),
        ];
        for (what, parts, len, expected) in cases {
            let file = file(parts, len);
            let newest = |accept| newest_record(&file, Path::new("x"), &key, &[1; 32], accept);
            let found = [false, true].map(|accept| newest(accept).map(|record| record.map(|record| record.number)));
            assert_eq!(found.map(|found| found.map_err(|error| error.kind())), expected, "{what}");
        }
    }

    #[test]
    fn freshness_file_that_cannot_be_read_or_filled_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let unreadable = File::create(dir.path().join("x")).unwrap();
        let key = FreshnessKey::derive(&[7; 64]).unwrap();
        let read = newest_record(&unreadable, Path::new("x"), &key, &[1; 32], false);
        assert!(read.unwrap_err().to_string().starts_with("Cannot read freshness file x."));
        let full = Path::new("/dev/full");
        if !full.exists() {
            println!("SKIPPED: there is no /dev/full");
            return;
        }
        let opened = open_file(full, true, true).map(drop).unwrap_err().to_string();
        assert!(opened.starts_with("Cannot open freshness file /dev/full."), "{opened}");
    }

    #[test]
    fn second_copy_of_a_header_is_found_behind_the_first() {
        for len in [MIN_METADATA, 128 << 10, MAX_METADATA] {
            let temporary = tempfile::NamedTempFile::new().unwrap();
            let write = |at: u64, bytes: &[u8]| temporary.as_file().write_all_at(bytes, at).unwrap();
            write(8, &len.to_be_bytes());
            write(len, &[5; BLOCK]);
            let context = Context::new(Silent, Settings::default());
            let device = Device::of_file(&context, temporary.path(), temporary.reopen().unwrap()).unwrap();
            let [first, second] = HeaderSource { device, luks: Luks::Any }.blocks().unwrap();
            assert_eq!((&first[8..16], second), (&len.to_be_bytes()[..], [5; BLOCK]), "{len}");
        }
    }

    #[test]
    fn digest_depends_on_the_header_and_on_the_whole_superblock() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(9 * 512).unwrap();
        let context = Context::new(Silent, Settings::default());
        let data = Device::of_file(&context, file.path(), file.reopen().unwrap()).unwrap();
        let of = |header: u8, start| with_superblock(&[header; 32], &data, start);
        let before = of(1, 8).unwrap();
        assert_eq!(of(1, 8).unwrap(), before);
        assert_ne!(of(2, 8).unwrap(), before);
        for at in [8 * 512, 9 * 512 - 1] {
            file.as_file().write_all_at(&[1], at).unwrap();
            assert_ne!(of(1, 8).unwrap(), before, "byte {at}");
            file.as_file().write_all_at(&[0], at).unwrap();
        }
        assert_eq!(of(1, 8).unwrap(), before);
        let text = of(1, 9).unwrap_err().to_string();
        assert!(text.starts_with("cannot read the superblock of "), "{text}");
    }

    /// A volume with a header and its journal, and an empty file of records.
    struct Fresh {
        header: tempfile::NamedTempFile,
        records: tempfile::NamedTempFile,
        stores: Stores,
        options: OpenOptions,
        warned: Warned,
    }

    impl Fresh {
        fn new() -> Self {
            let header = tempfile::NamedTempFile::new().unwrap();
            header.as_file().set_len(17 << 20).unwrap();
            let mut options = luks2::FormatOptions::default();
            options.kdf = KdfRequest::new(KdfKind::Pbkdf2);
            options.kdf.forced_iterations = Some(1000);
            luks2::format(&FileDevice::new(header.reopen().unwrap()), options, &Secret::new(b"x".to_vec())).unwrap();
            let hash = Some(Arc::new(TagHash::new("crc32c".parse().unwrap(), &[]).unwrap()));
            let stores = Stores::interleaved(Arc::new(MemoryStore::new(vec![0; 4 << 20])));
            let journal_sectors = Some(2048);
            let format_options =
                FormatOptions { internal_hash: hash.clone(), journal_sectors, ..FormatOptions::default() };
            format(&stores, &format_options).unwrap();
            let options = OpenOptions { internal_hash: hash, ..OpenOptions::new(Mode::Journal) };
            let records = tempfile::NamedTempFile::new().unwrap();
            Self { header, records, stores, options, warned: Warned::default() }
        }

        /// Returns what writes the records to `file`.
        fn opened(&self, file: File, tags: bool, record: FreshnessRecord) -> Arc<FreshnessFile> {
            let device = Device::open(&self.warned.context(), self.header.path(), OpenMode::Read).unwrap();
            Arc::new(FreshnessFile {
                path: self.records.path().to_owned(),
                file,
                key: FreshnessKey::derive(&[7; 64]).unwrap(),
                data: device.duplicate(),
                header: HeaderSource { device, luks: Luks::Any },
                seen: Mutex::default(),
                stores: self.stores.clone(),
                options: self.options.clone(),
                record: Mutex::new(record),
                tags,
            })
        }

        fn stored(&self) -> Option<FreshnessRecord> {
            let key = FreshnessKey::derive(&[7; 64]).unwrap();
            newest_record(self.records.as_file(), self.records.path(), &key, &[1; 32], false).unwrap()
        }
    }

    #[test]
    fn file_that_is_missing_has_another_error_than_one_that_cannot_be_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (missing, no_dir) = (dir.path().join("x"), dir.path().join("no/x"));
        let cases = [
            (&*missing, false, false, Some(ErrorKind::NoFreshnessFile)),
            (&*missing, false, true, Some(ErrorKind::NoFreshnessFile)),
            (&*no_dir, false, true, Some(ErrorKind::NoFreshnessFile)),
            (&*no_dir, true, true, Some(ErrorKind::Failed)),
            (dir.path(), false, true, Some(ErrorKind::Failed)),
            (&*missing, true, true, None),
            (&*missing, false, false, None),
        ];
        for (path, accept, writing, refused) in cases {
            let opened = open_file(path, accept, writing).map(drop).map_err(|error| error.kind());
            assert_eq!(opened.err(), refused, "{}, {accept}, {writing}", path.display());
        }
    }

    #[test]
    fn file_may_be_named_without_its_directory() {
        let here = tempfile::NamedTempFile::new_in(".").unwrap();
        let file = open_file(Path::new(here.path().file_name().unwrap()), true, true).unwrap();
        assert_eq!(file.metadata().unwrap().len(), FILE_LEN as u64);
    }

    /// A process that is killed leaves the record of an open volume.
    #[test]
    fn record_of_an_open_volume_tells_whether_tags_are_recorded() {
        for (tags, stored, expected) in
            [(false, None, None), (true, None, Some([0; 32])), (true, Some([3; 32]), Some([3; 32]))]
        {
            let fresh = Fresh::new();
            let file = fresh.opened(fresh.records.reopen().unwrap(), tags, FreshnessRecord { tags: stored, ..RECORD });
            let device = IntegrityDevice::open(fresh.stores.clone(), fresh.options.clone()).unwrap();
            file.attach(&device).unwrap();
            let record = fresh.stored().unwrap();
            assert_eq!((record.state, record.tags), (RecordedState::Open, expected), "{tags}, {stored:?}");
            let section = record.section;
            assert!(section.is_some());
            device.write(0, &[1; 512], &[]).unwrap();
            device.flush().unwrap();
            let record = fresh.stored().unwrap();
            assert!(record.section != section && record.tags == expected, "{record:?}");
        }
    }

    #[test]
    fn header_is_recorded_once_for_each_change() {
        let fresh = Fresh::new();
        let file = fresh.opened(fresh.records.reopen().unwrap(), false, RECORD);
        let refreshed = || {
            file.refresh_header().unwrap();
            fresh.stored().map(|record| (record.number, record.header))
        };
        let first = refreshed().unwrap();
        assert!(first.0 == 2 && first.1 != RECORD.header);
        assert_eq!(refreshed(), Some(first), "it is the same header");
        let device = FileDevice::new(fresh.header.reopen().unwrap());
        Volume::load(&device).unwrap().set_uuid(&device, None).unwrap();
        let second = refreshed().unwrap();
        assert!(second.0 == 3 && second.1 != first.1);
        assert_eq!(refreshed(), Some(second));
    }

    #[test]
    fn commit_that_cannot_be_recorded_is_told_and_fails() {
        let fresh = Fresh::new();
        let file = fresh.opened(File::open(fresh.records.path()).unwrap(), false, RECORD);
        assert_eq!(file.commit(1, [5; 32]), Err(Errno::IO));
        let told = format!("cannot write freshness file {}: ", fresh.records.path().display());
        let heard = fresh.warned.heard();
        assert!(heard.len() == 1 && heard[0].starts_with(&told), "{heard:?}");
    }
}
