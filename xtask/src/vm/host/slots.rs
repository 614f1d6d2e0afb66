//! Volumes in slots of the guest's disks: what `integrity` and `sealed` write to them, cut off, and compare.
//!
//! The disks are those of `tests/vm/parts/slots.sh`. Each row of a test has a slot on each of them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use inlock_tests::image::difference;
use inlock_tests::process::{inlock, text};
use inlock_tests::random::Random;

use super::super::Scene;
use super::super::report::{Outcome, Report};

/// Length of a slot, and of the data to write, in bytes.
pub(super) const SLOT: usize = 8 << 20;
const DATA: usize = 2 << 20;
pub(super) const PAGE: usize = 4096;

/// Pages to write: from where in the data, to where in the volume, how many.
pub(super) type Piece = [usize; 3];
/// Written to the volume that is closed.
pub(super) const FIRST: [Piece; 2] = [[0, 0, 128], [128, 433, 128]];
/// Written after that: the first piece is flushed, the second one is not.
pub(super) const SECOND: [Piece; 2] = [[256, 184, 64], [320, 64, 40]];
/// Written by the kernel to the closed volume of Inlock.
pub(super) const THIRD: Piece = [400, 500, 100];

/// A disk of the guest, in their order.
#[derive(Clone, Copy)]
pub(super) enum Disk {
    Theirs,
    TheirsCut,
    Ours,
    OursCut,
    ViewOfTheirsCut,
    ViewOfOurs,
    ViewOfOursCut,
}

const NAMES: [&str; 7] = ["theirs", "theirs-cut", "ours", "ours-cut", "view-theirs-cut", "view-ours", "view-ours-cut"];

/// One row of a test.
pub(super) trait SlotRow {
    fn name(&self) -> &str;

    /// Returns the part of its line in `/vm/rows` after the slot: place, and options for creating and for opening.
    fn args(&self) -> String;

    /// Returns the slots of a volume of Inlock: closed after the [`FIRST`] pieces, cut off after the [`SECOND`] ones.
    fn ours(&self, data: &[u8], number: usize, scene: &Scene<'_>) -> Result<[Vec<u8>; 2]>;
}

/// Makes disks and data, and fills the slots of Inlock's volumes. Returns the data. The state of the cut volumes before
/// the kernel changes them can be read with [`before`].
pub(super) fn prepare(scene: &mut Scene<'_>, rows: &[impl SlotRow], seed: u64) -> Result<Vec<u8>> {
    let data = Random::new(seed).bytes(DATA);
    let disk = |name: &str, slots: usize| -> Result<(PathBuf, File)> {
        let path = scene.folder.join(format!("{name}.img"));
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        file.set_len((slots * SLOT) as u64)?;
        Ok((path, file))
    };
    let disks = NAMES.iter().map(|name| disk(name, rows.len())).collect::<Result<Vec<_>>>()?;
    let (data_path, data_file) = disk("data", 1)?;
    data_file.write_all_at(&data, 0)?;
    let (scratch, _) = disk("scratch", 2)?;
    let mut list = String::new();
    for (number, row) in rows.iter().enumerate() {
        let [closed, cut] = row.ours(&data, number, scene).with_context(|| row.name().to_owned())?;
        write_sparse(&disks[Disk::Ours as usize].1, &closed, number)?;
        write_sparse(&disks[Disk::OursCut as usize].1, &cut, number)?;
        fs::write(scene.folder.join(format!("{number}.before")), &cut)?;
        list += &format!("{}|{number}|{}\n", row.name(), row.args());
    }
    scene.disks.extend(disks.into_iter().map(|(path, _)| path).chain([data_path, scratch]));
    scene.files.push(("vm/rows".to_owned(), list.into_bytes()));
    Ok(data)
}

/// Writes a slot; zeroes stay holes.
fn write_sparse(disk: &File, slot: &[u8], number: usize) -> Result<()> {
    for (n, piece) in slot.chunks(PAGE).enumerate().filter(|(_, piece)| piece.iter().any(|byte| *byte != 0)) {
        disk.write_all_at(piece, (number * SLOT + n * PAGE) as u64)?;
    }
    Ok(())
}

/// Returns the bytes of a slot.
pub(super) fn slot(scene: &Scene<'_>, disk: Disk, number: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; SLOT];
    File::open(&scene.disks[disk as usize])?.read_exact_at(&mut bytes, (number * SLOT) as u64)?;
    Ok(bytes)
}

/// Returns the slot of Inlock's cut volume as it was before the kernel has replayed it.
pub(super) fn before(scene: &Scene<'_>, number: usize) -> Result<Vec<u8>> {
    Ok(fs::read(scene.folder.join(format!("{number}.before")))?)
}

/// Copies pages of `data` to their places in `expected`.
pub(super) fn put(expected: &mut [u8], data: &[u8], pieces: &[Piece]) {
    for [from, to, count] in pieces {
        expected[to * PAGE..][..count * PAGE].copy_from_slice(&data[from * PAGE..][..count * PAGE]);
    }
}

/// Returns the content of a volume of `len` bytes with these pieces.
pub(super) fn content(len: usize, data: &[u8], pieces: &[Piece]) -> Vec<u8> {
    let mut expected = vec![0; len];
    put(&mut expected, data, pieces);
    expected
}

/// Compares what Inlock reads in a cut volume with what the kernel reads, and with the data that were flushed. The last
/// piece may be there in part.
pub(super) fn same_after_cut(read: &[u8], view: &[u8], data: &[u8]) -> Result<()> {
    same(read, &view[..read.len()]).context("Inlock differs from the kernel")?;
    let mut expected = content(read.len(), data, &FIRST);
    put(&mut expected, data, &SECOND[..1]);
    let [_, to, count] = SECOND[1];
    let range = to * PAGE..(to + count) * PAGE;
    expected[range.clone()].copy_from_slice(&read[range]);
    same(read, &expected).context("durable data are lost, or others are there")
}

pub(super) fn same(ours: &[u8], theirs: &[u8]) -> Result<()> {
    let difference = difference(ours, theirs);
    ensure!(difference.is_none(), "{}", difference.unwrap_or_default());
    Ok(())
}

/// Returns the kernel's table of a row's volume, with `device` for its underlying devices in order. `kind` is `table`,
/// or `table-below` for the device with the tags.
pub(super) fn kernel_table(report: &Report, kind: &str, number: usize, devices: &[&str]) -> Result<String> {
    let key = format!("{kind}:{number}");
    let (_, table) = report.data.iter().find(|(name, _)| *name == key).with_context(|| format!("no {key}"))?;
    let mut devices = devices.iter();
    let is_device = |word: &str| {
        word.split_once(':').is_some_and(|(major, minor)| [major, minor].iter().all(|n| n.parse::<u32>().is_ok()))
    };
    let words = table.split(' ').map(|word| match word.strip_prefix("meta_device:") {
        Some(_) => devices.next().map(|device| format!("meta_device:{device}")),
        None if is_device(word) => devices.next().map(|device| (*device).to_owned()),
        None => Some(word.to_owned()),
    });
    let words: Option<Vec<String>> = words.collect();
    ensure!(devices.next().is_none(), "too few devices in {table}");
    Ok(words.with_context(|| format!("too many devices in {table}"))?.join(" "))
}

/// Reads a volume through `inlock --table`.
pub(super) fn export_table(folder: &Path, table: &str) -> Result<Vec<u8>> {
    let (file, raw) = (folder.join("table"), folder.join("table.raw"));
    fs::write(&file, table)?;
    let _ = fs::remove_file(&raw);
    text(inlock()?.args(["export", "-q"]).arg(&raw).arg("--table").arg(&file)).with_context(|| table.to_owned())?;
    Ok(fs::read(&raw)?)
}

/// Adds the verdicts of a row.
pub(super) fn report_row<const N: usize>(report: &mut Report, row: &str, found: [(&str, Result<()>); N]) {
    for (what, result) in found {
        let name = format!("judge-{what}:{row}");
        report.outcomes.push(match result {
            Ok(()) => Outcome::Ok(name),
            Err(error) => Outcome::Fail(name, format!("{error:#}")),
        });
    }
}
