//! Volumes of dm-integrity, used in the guest by the kernel, and on the host by Inlock's library.
//!
//! integritysetup creates a volume in the guest, and data are written through the kernel; a copy is made in the middle
//! of it. Inlock compares the superblock with its own, verifies every block, and replays the copy: it must read what
//! the kernel reads on another copy. The other way round, Inlock creates a volume, and one that it does not close; the
//! kernel verifies and reads both.

mod rows;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use inlock_engine::store::memory::MemoryStore;
use inlock_integrity::{Flags, IntegrityDevice, Mode, ReadError, Stores, Superblock, format, load, resize};
use inlock_tests::image::difference;
use inlock_tests::random::Random;

use super::super::Scene;
use super::super::report::{Outcome, Report};
use super::Judge;
use rows::{KEYS, LINES, MORE_LINES, Row};

/// Length of a slot, and of the volume in it; the rest is the metadata device. In bytes, as in `integrity.sh`.
const SLOT: usize = 8 << 20;
const VOLUME: usize = 6 << 20;
/// Length of the data that are written.
const DATA: usize = 2 << 20;
const PAGE: usize = 4096;

/// Disks of the guest, in their order.
#[derive(Clone, Copy)]
enum Disk {
    Theirs,
    TheirsCut,
    Ours,
    OursCut,
    ViewOfTheirsCut,
    ViewOfOurs,
    ViewOfOursCut,
}

/// A volume in memory.
struct Image {
    data: Arc<MemoryStore>,
    meta: Option<Arc<MemoryStore>>,
}

impl Image {
    fn of_slot(slot: &[u8], separate: bool) -> Self {
        let memory = |bytes: &[u8]| Arc::new(MemoryStore::new(bytes.to_vec()));
        Self { data: memory(&slot[..VOLUME]), meta: separate.then(|| memory(&slot[VOLUME..])) }
    }

    fn stores(&self) -> Stores {
        Stores { data: self.data.clone(), meta: self.meta.clone().map(|meta| meta as _), start: 0 }
    }

    fn slot(&self) -> Vec<u8> {
        let mut slot = self.data.contents();
        slot.extend(self.meta.as_ref().map_or_else(Vec::new, |meta| meta.contents()));
        slot.resize(SLOT, 0);
        slot
    }
}

/// Reads all blocks, and names those that do not match their tags.
fn read_all(device: &IntegrityDevice) -> Result<Vec<u8>> {
    let mut bytes = vec![0; device.layout().provided_data_sectors as usize * 512];
    for (n, piece) in bytes.chunks_mut(1 << 20).enumerate() {
        match device.read((n << 11) as u64, piece, &mut []) {
            Ok(()) => {}
            Err(ReadError::Io(error)) => return Err(error).context("cannot read"),
            Err(error @ ReadError::Mismatch(_)) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

/// Writes pages of `data` from page `from` to page `to` of the volume, and to `expected`.
fn put(
    device: Option<&IntegrityDevice>,
    expected: &mut [u8],
    data: &[u8],
    [from, to, count]: [usize; 3],
) -> Result<()> {
    let bytes = &data[from * PAGE..][..count * PAGE];
    expected[to * PAGE..][..count * PAGE].copy_from_slice(bytes);
    device.map_or(Ok(()), |device| device.write((to * PAGE / 512) as u64, bytes, &[])).context("cannot write")
}

pub(super) fn prepare(scene: &mut Scene<'_>) -> Result<Judge> {
    let lines = LINES.iter().chain(MORE_LINES.iter().filter(|_| scene.full));
    let rows = lines.map(|line| Row::parse(line).with_context(|| (*line).to_owned())).collect::<Result<Vec<_>>>()?;
    let data = Random::new(15).bytes(DATA);
    let disk = |name: &str, slots: usize| -> Result<(PathBuf, File)> {
        let path = scene.folder.join(format!("{name}.img"));
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        file.set_len((slots * SLOT) as u64)?;
        Ok((path, file))
    };
    let names = ["theirs", "theirs-cut", "ours", "ours-cut", "view-theirs-cut", "view-ours", "view-ours-cut"];
    let disks = names.iter().map(|name| disk(name, rows.len())).collect::<Result<Vec<_>>>()?;
    let (data_path, data_file) = disk("data", 1)?;
    data_file.write_all_at(&data, 0)?;
    let (scratch, _) = disk("scratch", 2)?;
    let mut list = String::new();
    for (number, row) in rows.iter().enumerate() {
        let (closed, cut) = ours(row, &data).with_context(|| row.name.clone())?;
        write_sparse(&disks[Disk::Ours as usize].1, &closed, number)?;
        write_sparse(&disks[Disk::OursCut as usize].1, &cut, number)?;
        // The kernel changes the disk; the judge needs it as it was.
        fs::write(scene.folder.join(format!("{number}.cut")), &cut)?;
        let place = if row.separate { "separate" } else { "interleaved" };
        list += &format!("{}|{number}|{place}|{}|{}\n", row.name, row.args[0], row.args[1]);
    }
    scene.disks.extend(disks.into_iter().map(|(path, _)| path).chain([data_path, scratch]));
    scene.files.push(("vm/rows".to_owned(), list.into_bytes()));
    scene.files.extend(KEYS.iter().map(|(name, key)| (format!("vm/keys/{name}"), key.to_vec())));
    Ok(Box::new(move |scene, report| {
        for (number, row) in rows.iter().enumerate() {
            judge(row, number, &data, scene, report)?;
        }
        report.counts.push(("integrity_volumes_of_the_kernel".to_owned(), rows.len() as u64));
        report.counts.push(("integrity_volumes_used_by_the_kernel".to_owned(), rows.len() as u64));
        Ok(())
    }))
}

/// Writes a slot; zeroes stay holes.
fn write_sparse(disk: &File, slot: &[u8], number: usize) -> Result<()> {
    for (n, piece) in slot.chunks(PAGE).enumerate().filter(|(_, piece)| piece.iter().any(|byte| *byte != 0)) {
        disk.write_all_at(piece, (number * SLOT + n * PAGE) as u64)?;
    }
    Ok(())
}

/// Creates a volume, closes it, writes more and leaves it open. Returns the slots of both states.
fn ours(row: &Row, data: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
    let mut image = Image::of_slot(&vec![0; SLOT], row.separate);
    if row.grown {
        image.data = Arc::new(MemoryStore::new(vec![0; VOLUME / 2]));
    }
    format(&image.stores(), &row.format)?;
    let mut options = row.open_options();
    options.mode = Mode::Direct;
    let wipe = |image: &Image, from| -> Result<()> {
        let device = IntegrityDevice::open(image.stores(), options.clone())?;
        device.wipe(from, 2, |_, _, _| Ok(()), |_| std::ops::ControlFlow::Continue(()))?;
        Ok(device.close()?)
    };
    wipe(&image, 0)?;
    if row.grown {
        image = Image::of_slot(&image.slot(), row.separate);
        let (before, _) = resize(&image.stores(), &options, None)?;
        wipe(&image, before)?;
    }
    let device = IntegrityDevice::open(image.stores(), row.open_options())?;
    let mut unused = vec![0; VOLUME];
    for piece in FIRST {
        put(Some(&device), &mut unused, data, piece)?;
    }
    device.close()?;
    drop(device);
    let closed = image.slot();
    let device = IntegrityDevice::open(image.stores(), row.open_options())?;
    put(Some(&device), &mut unused, data, SECOND[0])?;
    device.flush()?;
    if row.mode != Mode::Direct {
        put(Some(&device), &mut unused, data, SECOND[1])?;
    }
    Ok((closed, image.slot()))
}

/// Writes to a volume, in pages: from where in the data, to where, how many. The same as in `integrity.sh`.
const FIRST: [[usize; 3]; 2] = [[0, 0, 128], [128, 433, 128]];
const SECOND: [[usize; 3]; 2] = [[256, 184, 64], [320, 64, 40]];
const THIRD: [usize; 3] = [400, 500, 100];

fn judge(row: &Row, number: usize, data: &[u8], scene: &Scene<'_>, report: &mut Report) -> Result<()> {
    let slot = |disk: Disk| -> Result<Vec<u8>> {
        let mut bytes = vec![0; SLOT];
        File::open(&scene.disks[disk as usize])?.read_exact_at(&mut bytes, (number * SLOT) as u64)?;
        Ok(bytes)
    };
    let before = fs::read(scene.folder.join(format!("{number}.cut")))?;
    let found = [
        ("superblock", same_superblock(row, &slot(Disk::Theirs)?)),
        ("theirs", theirs(row, &slot(Disk::Theirs)?, data)),
        ("theirs-cut", same_view(row, &slot(Disk::TheirsCut)?, &slot(Disk::ViewOfTheirsCut)?, data)),
        ("ours", ours_after(row, &slot(Disk::Ours)?, &slot(Disk::ViewOfOurs)?, data)),
        ("ours-cut", same_view(row, &before, &slot(Disk::ViewOfOursCut)?, data)),
        ("ours-after-cut", same_view(row, &slot(Disk::OursCut)?, &slot(Disk::ViewOfOursCut)?, data)),
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

/// Compares the kernel's superblock with the one that Inlock makes of the same options and salt.
fn same_superblock(row: &Row, slot: &[u8]) -> Result<()> {
    let image = Image::of_slot(slot, row.separate);
    let (theirs, _) = load(&image.stores(), &row.open_options())?;
    let mut ours = row.format.superblock(&image.stores().sizes())?;
    // These differ by the salt's randomness, and by what the volume was used for.
    ours.salt = theirs.salt;
    if !ours.flags.has(Flags::FIXED_HMAC) {
        ensure!(theirs.salt == [0; 16], "the salt is not empty");
    }
    ours.flags.set(Flags::DIRTY_BITMAP, theirs.flags.has(Flags::DIRTY_BITMAP));
    ours.log2_blocks_per_bitmap_bit =
        if row.mode == Mode::Bitmap { ours.log2_blocks_per_bitmap_bit } else { theirs.log2_blocks_per_bitmap_bit };
    let ours = Superblock::decode(&ours.encode(None, row.mode == Mode::Bitmap)[..])?;
    ensure!(ours == theirs, "the kernel has {theirs:?}, Inlock has {ours:?}");
    Ok(())
}

/// Reads the kernel's closed volume.
fn theirs(row: &Row, slot: &[u8], data: &[u8]) -> Result<()> {
    let image = Image::of_slot(slot, row.separate);
    let device = IntegrityDevice::open(image.stores(), row.open_options())?;
    let read = read_all(&device)?;
    let mut expected = vec![0; read.len()];
    let second = if row.mode == Mode::Direct { &SECOND[..1] } else { &SECOND };
    for piece in FIRST.iter().chain(second).copied() {
        put(None, &mut expected, data, piece)?;
    }
    ensure!(device.metrics().mismatches == 0, "{} mismatches", device.metrics().mismatches);
    same(&read, &expected)
}

/// Compares what Inlock reads in a volume that was not closed with what the kernel reads.
fn same_view(row: &Row, slot: &[u8], view: &[u8], data: &[u8]) -> Result<()> {
    let image = Image::of_slot(slot, row.separate);
    let device = IntegrityDevice::open(image.stores(), row.open_options())?;
    let read = read_all(&device)?;
    same(&read, &view[..read.len()]).context("Inlock differs from the kernel")?;
    // Flushed data are there; the last write may be there in part.
    let mut expected = read.clone();
    for piece in FIRST.into_iter().chain([SECOND[0]]) {
        put(None, &mut expected, data, piece)?;
    }
    let [_, to, count] = SECOND[1];
    let range = to * PAGE..(to + count) * PAGE;
    expected[range.clone()].copy_from_slice(&read[range]);
    same(&read, &expected).context("durable data are lost")?;
    while !device.recalculate_step()? {}
    device.close()?;
    same(&read_all(&device)?, &read).context("after the close")
}

/// Compares what the kernel has read in Inlock's volume with what was written, and reads what the kernel wrote.
fn ours_after(row: &Row, slot: &[u8], view: &[u8], data: &[u8]) -> Result<()> {
    let image = Image::of_slot(slot, row.separate);
    let device = IntegrityDevice::open(image.stores(), row.open_options())?;
    let read = read_all(&device)?;
    let mut expected = vec![0; read.len()];
    for piece in FIRST {
        put(None, &mut expected, data, piece)?;
    }
    same(&view[..read.len()], &expected).context("the kernel's view")?;
    put(None, &mut expected, data, THIRD)?;
    same(&read, &expected)
}

fn same(ours: &[u8], theirs: &[u8]) -> Result<()> {
    let difference = difference(ours, theirs);
    ensure!(difference.is_none(), "{}", difference.unwrap_or_default());
    Ok(())
}
