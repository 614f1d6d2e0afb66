//! Volumes of dm-integrity, used in the guest by the kernel, and on the host by Inlock's library.
//!
//! integritysetup creates a volume in the guest, and data are written through the kernel; a copy is made in the middle
//! of it. Inlock compares the superblock with its own, verifies every block, and replays the copy: it must read what
//! the kernel reads on another copy. The other way round, Inlock creates a volume, and one that it does not close; the
//! kernel verifies and reads both. The table that the kernel shows for its volume opens it in `inlock`.

mod rows;

use std::fs;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use inlock_engine::store::memory::MemoryStore;
use inlock_integrity::{Flags, IntegrityDevice, Mode, ReadError, Stores, Superblock, format, load, resize};

use super::super::Scene;
use super::super::report::Report;
use super::Judge;
use super::slots::{self, Disk, FIRST, PAGE, Piece, SECOND, SLOT, SlotRow, THIRD, content, same, same_after_cut};
use rows::{KEYS, LINES, MORE_LINES, Row};

/// Length of the volume in a slot; the rest is the metadata device. In bytes, as in `integrity.sh`.
const VOLUME: usize = 6 << 20;

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

/// Writes pages of `data` to the volume.
fn put(device: &IntegrityDevice, data: &[u8], [from, to, count]: Piece) -> Result<()> {
    let bytes = &data[from * PAGE..][..count * PAGE];
    device.write((to * PAGE / 512) as u64, bytes, &[]).context("cannot write")
}

impl SlotRow for Row {
    fn name(&self) -> &str {
        &self.name
    }

    fn args(&self) -> String {
        let place = if self.separate { "separate" } else { "interleaved" };
        format!("{place}|{}|{}", self.args[0], self.args[1])
    }

    fn ours(&self, data: &[u8], _number: usize, _scene: &Scene<'_>) -> Result<[Vec<u8>; 2]> {
        ours(self, data)
    }
}

pub(super) fn prepare(scene: &mut Scene<'_>) -> Result<Judge> {
    let lines = LINES.iter().chain(MORE_LINES.iter().filter(|_| scene.full));
    let rows = lines.map(|line| Row::parse(line).with_context(|| (*line).to_owned())).collect::<Result<Vec<_>>>()?;
    let data = slots::prepare(scene, &rows, 15)?;
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

/// Creates a volume, closes it, writes more and leaves it open. Returns the slots of both states.
fn ours(row: &Row, data: &[u8]) -> Result<[Vec<u8>; 2]> {
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
    FIRST.into_iter().try_for_each(|piece| put(&device, data, piece))?;
    device.close()?;
    drop(device);
    let closed = image.slot();
    let device = IntegrityDevice::open(image.stores(), row.open_options())?;
    put(&device, data, SECOND[0])?;
    device.flush()?;
    if row.mode != Mode::Direct {
        put(&device, data, SECOND[1])?;
    }
    Ok([closed, image.slot()])
}

fn judge(row: &Row, number: usize, data: &[u8], scene: &Scene<'_>, report: &mut Report) -> Result<()> {
    let slot = |disk| slots::slot(scene, disk, number);
    let (theirs_cut, ours_cut) = (slot(Disk::ViewOfTheirsCut)?, slot(Disk::ViewOfOursCut)?);
    let found = [
        ("superblock", same_superblock(row, &slot(Disk::Theirs)?)),
        ("theirs", theirs(row, &slot(Disk::Theirs)?, data)),
        ("theirs-by-table", theirs_by_table(row, number, &slot(Disk::Theirs)?, data, scene, report)),
        ("theirs-cut", same_view(row, &slot(Disk::TheirsCut)?, &theirs_cut, data)),
        ("ours", ours_after(row, &slot(Disk::Ours)?, &slot(Disk::ViewOfOurs)?, data)),
        ("ours-cut", same_view(row, &slots::before(scene, number)?, &ours_cut, data)),
        ("ours-after-cut", same_view(row, &slot(Disk::OursCut)?, &ours_cut, data)),
    ];
    slots::report_row(report, &row.name, found);
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
    ensure!(device.metrics().mismatches == 0, "{} mismatches", device.metrics().mismatches);
    same(&read, &written(row, read.len(), data))
}

/// Returns the content of the kernel's closed volume.
fn written(row: &Row, len: usize, data: &[u8]) -> Vec<u8> {
    let second = if row.mode == Mode::Direct { &SECOND[..1] } else { &SECOND[..] };
    content(len, data, &[&FIRST, second].concat())
}

/// Reads the kernel's closed volume by the kernel's table.
fn theirs_by_table(
    row: &Row,
    number: usize,
    slot: &[u8],
    data: &[u8],
    scene: &Scene<'_>,
    report: &Report,
) -> Result<()> {
    let [volume, meta] = ["by-table", "by-table.meta"].map(|name| scene.folder.join(format!("{number}.{name}")));
    fs::write(&volume, &slot[..VOLUME])?;
    fs::write(&meta, &slot[VOLUME..])?;
    let devices = [&volume, &meta].map(|path| path.to_str().expect("the directory is UTF-8"));
    let devices = if row.separate { &devices[..] } else { &devices[..1] };
    let table = slots::kernel_table(report, "table", number, devices)?;
    let read = slots::export_table(scene.folder, &table)?;
    same(&read, &written(row, read.len(), data)).context(table)
}

/// Compares what Inlock reads in a volume that was not closed with what the kernel reads.
fn same_view(row: &Row, slot: &[u8], view: &[u8], data: &[u8]) -> Result<()> {
    let image = Image::of_slot(slot, row.separate);
    let device = IntegrityDevice::open(image.stores(), row.open_options())?;
    let read = read_all(&device)?;
    same_after_cut(&read, view, data)?;
    while !device.recalculate_step()? {}
    device.close()?;
    same(&read_all(&device)?, &read).context("after the close")
}

/// Compares what the kernel has read in Inlock's volume with what was written, and reads what the kernel wrote.
fn ours_after(row: &Row, slot: &[u8], view: &[u8], data: &[u8]) -> Result<()> {
    let image = Image::of_slot(slot, row.separate);
    let device = IntegrityDevice::open(image.stores(), row.open_options())?;
    let read = read_all(&device)?;
    same(&view[..read.len()], &content(read.len(), data, &FIRST)).context("the kernel's view")?;
    same(&read, &content(read.len(), data, &[FIRST[0], FIRST[1], THIRD]))
}
