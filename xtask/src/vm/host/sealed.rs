//! LUKS2 volumes with integrity protection, used in the guest by cryptsetup, dm-crypt and dm-integrity, and on the host
//! by `inlock`; both ways, closed and cut off in the middle of writing.
//!
//! cryptsetup creates a volume in the guest, and data are written through the kernel; a copy is made in the middle of
//! it, which the kernel and Inlock must read alike. Inlock creates a volume, and one whose process is killed, which the
//! kernel must read as Inlock does.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use inlock_tests::image::CHEAP_PBKDF2;
use inlock_tests::nbd::{Connection, Mode};
use inlock_tests::process::{inlock, text};
use inlock_tests::server::Server;

use super::super::Scene;
use super::super::report::Report;
use super::Judge;
use super::slots::{self, Disk, FIRST, PAGE, Piece, SECOND, SLOT, SlotRow, THIRD, content, same, same_after_cut};

const PASSPHRASE: &[u8] = b"a passphrase with blanks";
/// Header of 1 MiB, so that most of a slot is the volume.
const LAYOUT: [&str; 3] = ["--luks2-metadata-size=16k", "--luks2-keyslots-size=512k", "--offset=2048"];

/// Volumes: cipher, integrity, bits of the key, data unit, J (journal) or D (direct), and more options of luksFormat.
/// `lazy`: Inlock marks the blocks of its volume instead of wiping them, and the kernel cannot read these.
/// cryptsetup 2.6.1 cannot create `aes-cbc-random` in this kernel.
const LINES: [&str; 9] = [
    "aes-xts-plain64 hmac-sha256 512 4096 J",
    "aes-xts-random hmac-sha256 512 4096 J --integrity-legacy-padding",
    "aes-xts-random hmac-sha512 256 512 D",
    "aes-cbc-plain64 hmac-sha512 256 4096 D",
    "aes-gcm-random aead 256 512 J",
    "aes-gcm-random aead 256 4096 D",
    "aes-ccm-random aead 280 512 J",
    "aegis128-random aead 128 4096 J lazy",
    "chacha20-random poly1305 256 512 J",
];

/// Further volumes, with `--full`.
const MORE_LINES: [&str; 15] = [
    "aes-xts-random hmac-sha256 512 512 J",
    "chacha20-random poly1305 256 4096 D",
    "aes-xts-plain64 hmac-sha256 512 512 D",
    "aes-xts-random hmac-sha256 256 4096 D",
    "aes-xts-random hmac-sha512 512 4096 J",
    "aes-xts-plain64 hmac-sha512 512 512 J",
    "aes-xts-random hmac-sha1 512 4096 J",
    "aes-xts-plain64 hmac-sha1 256 512 J",
    "aes-cbc-plain64 hmac-sha256 256 512 J",
    "aes-gcm-random aead 256 4096 J",
    "aes-gcm-random aead 128 512 D",
    "aes-ccm-random aead 152 4096 D",
    "aegis128-random aead 128 512 J",
    "aegis128-random aead 128 4096 D",
    "chacha20-random poly1305 256 4096 J",
];

struct Row {
    name: String,
    has_journal: bool,
    is_lazy: bool,
    format: String,
    /// Option that opens it.
    open: &'static str,
}

impl Row {
    fn parse(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [cipher, integrity, bits, unit, mode, more @ ..] = &words[..] else { bail!("too few words") };
        let mut format =
            format!("--cipher {cipher} --integrity {integrity} --key-size {bits} --sector-size {unit} --type luks2");
        let is_lazy = more.contains(&"lazy");
        for word in CHEAP_PBKDF2.iter().chain(&LAYOUT).chain(more.iter().filter(|word| **word != "lazy")) {
            format += &format!(" {word}");
        }
        let has_journal = *mode == "J";
        let open = if has_journal { "" } else { "--integrity-no-journal" };
        Ok(Self { name: line.replace(' ', ","), has_journal, is_lazy, format, open })
    }

    /// Runs `inlock ACTION` on an image with this row's options.
    fn inlock(&self, action: &str, image: &Path, key: &Path, more: &[&str]) -> Result<()> {
        let mut command = inlock()?;
        command.arg(action).arg(image).arg("--key-file").arg(key).args(more);
        text(&mut command).map(drop).with_context(|| format!("{}: {action}", self.name))
    }

    /// Returns all bytes of the volume in an image, which is not written to.
    fn export(&self, image: &Path, key: &Path) -> Result<Vec<u8>> {
        let raw = image.with_extension("raw");
        let _ = fs::remove_file(&raw);
        self.inlock("export", image, key, &["-q", raw.to_str().context("a path in UTF-8")?])?;
        Ok(fs::read(&raw)?)
    }
}

impl SlotRow for Row {
    fn name(&self) -> &str {
        &self.name
    }

    fn args(&self) -> String {
        format!("interleaved|{}|{}", self.format, self.open)
    }

    fn ours(&self, data: &[u8], number: usize, scene: &Scene<'_>) -> Result<[Vec<u8>; 2]> {
        ours(self, &scene.folder.join(format!("{number}.ours")), &scene.folder.join("key"), data)
    }
}

pub(super) fn prepare(scene: &mut Scene<'_>) -> Result<Judge> {
    let lines = LINES.iter().chain(MORE_LINES.iter().filter(|_| scene.full));
    let rows = lines.map(|line| Row::parse(line).with_context(|| (*line).to_owned()));
    let rows = rows.collect::<Result<Vec<_>>>()?;
    fs::write(scene.folder.join("key"), PASSPHRASE)?;
    let data = slots::prepare(scene, &rows, 16)?;
    scene.files.push(("vm/key".to_owned(), PASSPHRASE.to_vec()));
    Ok(Box::new(move |scene, report| {
        for (number, row) in rows.iter().enumerate() {
            judge(row, number, &data, scene, report)?;
        }
        report.counts.push(("sealed_volumes_of_the_kernel".to_owned(), rows.len() as u64));
        report.counts.push(("sealed_volumes_used_by_the_kernel".to_owned(), rows.len() as u64));
        Ok(())
    }))
}

/// Creates a volume on `image` and writes to it; then serves it again, writes more, and kills the process. Returns the
/// slots of both states.
fn ours(row: &Row, image: &Path, key: &Path, data: &[u8]) -> Result<[Vec<u8>; 2]> {
    File::create(image)?.set_len(SLOT as u64)?;
    let format: Vec<&str> =
        row.format.split(' ').chain(["-q"]).chain(row.is_lazy.then_some("--integrity-lazy")).collect();
    row.inlock("luksFormat", image, key, &format)?;
    let dir = tempfile::tempdir()?;
    let open: Vec<&str> = row.open.split_whitespace().collect();
    let serve = || Server::inlock(dir.path(), "volume", image, Some(key), &open);
    let connect = |server: &Server| Connection::open(server.socket(), Duration::from_secs(120), Mode::Simple);
    let write = |client: &mut Connection, [from, to, count]: Piece| {
        client.write((to * PAGE) as u64, &data[from * PAGE..][..count * PAGE])
    };
    let mut server = serve()?;
    let mut client = connect(&server)?;
    for piece in FIRST {
        write(&mut client, piece)?;
    }
    client.disconnect()?;
    ensure!(server.terminate()?.success(), "{}", server.log_text());
    let closed = fs::read(image)?;
    let mut server = serve()?;
    let mut client = connect(&server)?;
    write(&mut client, SECOND[0])?;
    client.flush()?;
    if row.has_journal {
        write(&mut client, SECOND[1])?;
    }
    server.signal("KILL")?;
    server.wait()?;
    Ok([closed, fs::read(image)?])
}

fn judge(row: &Row, number: usize, data: &[u8], scene: &Scene<'_>, report: &mut Report) -> Result<()> {
    let key = scene.folder.join("key");
    let image = |name: &str, bytes: Result<Vec<u8>>| -> Result<PathBuf> {
        let path = scene.folder.join(format!("{number}.{name}"));
        fs::write(&path, bytes?)?;
        Ok(path)
    };
    let slot = |disk| slots::slot(scene, disk, number);
    let (theirs_cut, ours_cut) = (slot(Disk::ViewOfTheirsCut)?, slot(Disk::ViewOfOursCut)?);
    let same_view = |image: Result<PathBuf>, view: &[u8]| same_view(row, &image?, &key, view, data);
    let found = [
        ("theirs", theirs(row, &image("theirs", slot(Disk::Theirs))?, &key, data)),
        ("table", same_table(row, number, &key, scene, report)),
        ("theirs-by-table", theirs_by_table(row, number, scene, data, report)),
        ("theirs-cut", same_view(image("theirs-cut", slot(Disk::TheirsCut)), &theirs_cut)),
        ("ours", ours_after(row, &image("ours", slot(Disk::Ours))?, &key, &slot(Disk::ViewOfOurs)?, data)),
        ("ours-cut", same_view(image("ours-cut", slots::before(scene, number)), &ours_cut)),
        ("ours-after-cut", same_view(image("ours-after-cut", slot(Disk::OursCut)), &ours_cut)),
    ];
    slots::report_row(report, &row.name, found);
    Ok(())
}

/// Reads the kernel's closed volume.
fn theirs(row: &Row, image: &Path, key: &Path, data: &[u8]) -> Result<()> {
    let read = row.export(image, key)?;
    same(&read, &written(row, read.len(), data))
}

/// Returns the content of the kernel's closed volume.
fn written(row: &Row, len: usize, data: &[u8]) -> Vec<u8> {
    let second = if row.has_journal { &SECOND[..] } else { &SECOND[..1] };
    content(len, data, &[&FIRST, second].concat())
}

/// Returns the kernel's tables of a row's volume with `device` for its device, as Inlock prints tables.
fn kernel_tables(number: usize, device: &str, report: &Report) -> Result<String> {
    let below = slots::kernel_table(report, "table-below", number, &[device])?;
    let above = slots::kernel_table(report, "table", number, &["/dev/mapper/volume_dif"])?;
    Ok(format!("volume_dif: {below}\nvolume: {above}\n"))
}

/// Compares the table that Inlock prints for the kernel's volume with the kernel's.
fn same_table(row: &Row, number: usize, key: &Path, scene: &Scene<'_>, report: &Report) -> Result<()> {
    let image = scene.folder.join(format!("{number}.theirs"));
    let mut command = inlock()?;
    command.args(["table", "--showkeys"]).arg(&image).arg("--key-file").arg(key).args(row.open.split_whitespace());
    let printed = text(&mut command)?;
    let name = printed.split_once("_dif: ").context("a table without a name")?.0.to_owned();
    let path = image.to_str().context("a path in UTF-8")?;
    let (ours, kernels) = (printed.replace(&name, "volume"), kernel_tables(number, path, report)?);
    ensure!(ours == kernels, "Inlock prints\n{ours}and the kernel\n{kernels}");
    Ok(())
}

/// Reads the kernel's closed volume by the kernel's table.
fn theirs_by_table(row: &Row, number: usize, scene: &Scene<'_>, data: &[u8], report: &Report) -> Result<()> {
    let image = scene.folder.join(format!("{number}.theirs"));
    let table = kernel_tables(number, image.to_str().context("a path in UTF-8")?, report)?;
    let read = slots::export_table(scene.folder, &table)?;
    same(&read, &written(row, read.len(), data))
}

/// Compares what Inlock reads in a volume that was not closed, before and after a replay, with what the kernel reads.
fn same_view(row: &Row, image: &Path, key: &Path, view: &[u8], data: &[u8]) -> Result<()> {
    let read = row.export(image, key)?;
    same_after_cut(&read, view, data)?;
    let open: Vec<&str> = row.open.split_whitespace().chain(["--run", "true"]).collect();
    row.inlock("serve", image, key, &open)?;
    same(&row.export(image, key)?, &read).context("after the replay")
}

/// Compares what the kernel has read in Inlock's volume with what was written, and reads what the kernel wrote.
fn ours_after(row: &Row, image: &Path, key: &Path, view: &[u8], data: &[u8]) -> Result<()> {
    let read = row.export(image, key)?;
    same(&view[..read.len()], &content(read.len(), data, &FIRST)).context("the kernel's view")?;
    same(&read, &content(read.len(), data, &[FIRST[0], FIRST[1], THIRD]))
}
