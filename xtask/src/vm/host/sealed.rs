//! LUKS2 volumes with integrity protection, used in the guest by cryptsetup, dm-crypt and dm-integrity, and on the host
//! by `inlock`; both ways, closed and cut off in the middle of writing.
//!
//! cryptsetup creates a volume in the guest, and data are written through the kernel; a copy is made in the middle of
//! it, which the kernel and Inlock must read alike. Inlock creates a volume, and one whose process is killed, which the
//! kernel must read as Inlock does.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use inlock_tests::image::{CHEAP_PBKDF2, difference};
use inlock_tests::nbd::{Connection, Mode};
use inlock_tests::process::{inlock, text};
use inlock_tests::random::Random;
use inlock_tests::server::Server;

use super::super::Scene;
use super::super::report::{Outcome, Report};
use super::Judge;

const PASSPHRASE: &[u8] = b"a passphrase with blanks";
/// Length of a slot, in bytes, as in `sealed.sh`.
const SLOT: usize = 8 << 20;
const DATA: usize = 2 << 20;
const PAGE: usize = 4096;
/// Header of 1 MiB, so that most of a slot is the volume.
const LAYOUT: [&str; 3] = ["--luks2-metadata-size=16k", "--luks2-keyslots-size=512k", "--offset=2048"];

/// Volumes: cipher, integrity, bits of the key, data unit, J (journal) or D (direct), and more options of luksFormat.
/// cryptsetup 2.6.1 cannot create `aes-cbc-random` in this kernel.
const LINES: [&str; 11] = [
    "aes-xts-plain64 hmac-sha256 512 4096 J",
    "aes-xts-random hmac-sha256 512 512 J",
    "aes-xts-random hmac-sha256 512 4096 J --integrity-legacy-padding",
    "aes-xts-random hmac-sha512 256 512 D",
    "aes-cbc-plain64 hmac-sha512 256 4096 D",
    "aes-gcm-random aead 256 512 J",
    "aes-gcm-random aead 256 4096 D",
    "aes-ccm-random aead 280 512 J",
    "aegis128-random aead 128 4096 J",
    "chacha20-random poly1305 256 512 J",
    "chacha20-random poly1305 256 4096 D",
];

/// Further volumes, with `--full`.
const MORE_LINES: [&str; 13] = [
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

/// Pages that are written to a volume: from where in the data, to where, how many. The same as in `sealed.sh`.
const FIRST: [[usize; 3]; 2] = [[0, 0, 128], [128, 433, 128]];
const SECOND: [[usize; 3]; 2] = [[256, 184, 64], [320, 64, 40]];
const THIRD: [usize; 3] = [400, 500, 100];

/// Disks of the guest, in their order.
const DISKS: [&str; 7] = ["theirs", "theirs-cut", "ours", "ours-cut", "view-theirs-cut", "view-ours", "view-ours-cut"];
const THEIRS: usize = 0;
const THEIRS_CUT: usize = 1;
const OURS: usize = 2;
const OURS_CUT: usize = 3;
const VIEW_OF_THEIRS_CUT: usize = 4;
const VIEW_OF_OURS: usize = 5;
const VIEW_OF_OURS_CUT: usize = 6;

struct Row {
    name: String,
    has_journal: bool,
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
        for word in CHEAP_PBKDF2.iter().chain(&LAYOUT).chain(more) {
            format += &format!(" {word}");
        }
        let has_journal = *mode == "J";
        let open = if has_journal { "" } else { "--integrity-no-journal" };
        Ok(Self { name: line.replace(' ', ","), has_journal, format, open })
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
        self.inlock("export", image, key, &[raw.to_str().context("a path in UTF-8")?])?;
        Ok(fs::read(&raw)?)
    }
}

/// Copies pages of `data` to their places in `expected`.
fn put(expected: &mut [u8], data: &[u8], pieces: &[[usize; 3]]) {
    for [from, to, count] in pieces {
        expected[to * PAGE..][..count * PAGE].copy_from_slice(&data[from * PAGE..][..count * PAGE]);
    }
}

pub(super) fn prepare(scene: &mut Scene<'_>) -> Result<Judge> {
    let lines = LINES.iter().chain(MORE_LINES.iter().filter(|_| scene.full));
    let rows = lines.map(|line| Row::parse(line).with_context(|| (*line).to_owned()));
    let rows = rows.collect::<Result<Vec<_>>>()?;
    let key = scene.folder.join("key");
    fs::write(&key, PASSPHRASE)?;
    let data = Random::new(16).bytes(DATA);
    let disk = |name: &str, slots: usize| -> Result<(PathBuf, File)> {
        let path = scene.folder.join(format!("{name}.img"));
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        file.set_len((slots * SLOT) as u64)?;
        Ok((path, file))
    };
    let disks = DISKS.iter().map(|name| disk(name, rows.len())).collect::<Result<Vec<_>>>()?;
    let (data_path, data_file) = disk("data", 1)?;
    data_file.write_all_at(&data, 0)?;
    let (scratch, _) = disk("scratch", 1)?;
    let mut list = String::new();
    for (number, row) in rows.iter().enumerate() {
        let image = scene.folder.join(format!("{number}.killed"));
        let (closed, cut) = ours(row, &image, &key, &data).with_context(|| row.name.clone())?;
        write_sparse(&disks[OURS].1, &closed, number)?;
        write_sparse(&disks[OURS_CUT].1, &cut, number)?;
        list += &format!("{}|{number}|{}|{}\n", row.name, row.format, row.open);
    }
    scene.disks.extend(disks.into_iter().map(|(path, _)| path).chain([data_path, scratch]));
    scene.files.push(("vm/rows".to_owned(), list.into_bytes()));
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

/// Writes a slot; zeroes stay holes.
fn write_sparse(disk: &File, slot: &[u8], number: usize) -> Result<()> {
    for (n, piece) in slot.chunks(PAGE).enumerate().filter(|(_, piece)| piece.iter().any(|byte| *byte != 0)) {
        disk.write_all_at(piece, (number * SLOT + n * PAGE) as u64)?;
    }
    Ok(())
}

/// Creates a volume on `image` and writes to it; then serves it again, writes more, and kills the process. Returns the
/// slots of both states.
fn ours(row: &Row, image: &Path, key: &Path, data: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
    File::create(image)?.set_len(SLOT as u64)?;
    let format: Vec<&str> = row.format.split(' ').chain(["-q"]).collect();
    row.inlock("luksFormat", image, key, &format)?;
    let dir = tempfile::tempdir()?;
    let open: Vec<&str> = row.open.split_whitespace().collect();
    let serve = || Server::inlock(dir.path(), "volume", image, Some(key), &open);
    let connect = |server: &Server| Connection::open(server.socket(), Duration::from_secs(120), Mode::Simple);
    let write = |client: &mut Connection, [from, to, count]: [usize; 3]| {
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
    Ok((closed, fs::read(image)?))
}

fn judge(row: &Row, number: usize, data: &[u8], scene: &Scene<'_>, report: &mut Report) -> Result<()> {
    let key = scene.folder.join("key");
    let slot = |disk: usize| -> Result<Vec<u8>> {
        let mut bytes = vec![0; SLOT];
        File::open(&scene.disks[disk])?.read_exact_at(&mut bytes, (number * SLOT) as u64)?;
        Ok(bytes)
    };
    let image = |disk: usize| -> Result<PathBuf> {
        let path = scene.folder.join(format!("{number}.{}", DISKS[disk]));
        fs::write(&path, slot(disk)?)?;
        Ok(path)
    };
    // As Inlock left it when it was killed: the kernel has replayed the one on the disk.
    let killed = scene.folder.join(format!("{number}.killed"));
    let found = [
        ("theirs", image(THEIRS).and_then(|image| theirs(row, &image, &key, data))),
        (
            "theirs-cut",
            image(THEIRS_CUT).and_then(|image| same_view(row, &image, &key, &slot(VIEW_OF_THEIRS_CUT)?, data)),
        ),
        ("ours", image(OURS).and_then(|image| ours_after(row, &image, &key, &slot(VIEW_OF_OURS)?, data))),
        ("ours-cut", slot(VIEW_OF_OURS_CUT).and_then(|view| same_view(row, &killed, &key, &view, data))),
        (
            "ours-after-cut",
            image(OURS_CUT).and_then(|image| same_view(row, &image, &key, &slot(VIEW_OF_OURS_CUT)?, data)),
        ),
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

/// Reads the kernel's closed volume.
fn theirs(row: &Row, image: &Path, key: &Path, data: &[u8]) -> Result<()> {
    let read = row.export(image, key)?;
    let mut expected = vec![0; read.len()];
    put(&mut expected, data, &FIRST);
    put(&mut expected, data, if row.has_journal { &SECOND } else { &SECOND[..1] });
    same(&read, &expected)
}

/// Compares what Inlock reads in a volume that was not closed, before and after a replay, with what the kernel reads.
fn same_view(row: &Row, image: &Path, key: &Path, view: &[u8], data: &[u8]) -> Result<()> {
    let read = row.export(image, key)?;
    same(&read, &view[..read.len()]).context("Inlock differs from the kernel")?;
    // Flushed data are there; the last write may be there in part.
    let mut expected = read.clone();
    put(&mut expected, data, &FIRST);
    put(&mut expected, data, &SECOND[..1]);
    let [_, to, count] = SECOND[1];
    let range = to * PAGE..(to + count) * PAGE;
    expected[range.clone()].copy_from_slice(&read[range]);
    same(&read, &expected).context("durable data are lost")?;
    let open: Vec<&str> = row.open.split_whitespace().chain(["--run", "true"]).collect();
    row.inlock("serve", image, key, &open)?;
    same(&row.export(image, key)?, &read).context("after the replay")
}

/// Compares what the kernel has read in Inlock's volume with what was written, and reads what the kernel wrote.
fn ours_after(row: &Row, image: &Path, key: &Path, view: &[u8], data: &[u8]) -> Result<()> {
    let read = row.export(image, key)?;
    let mut expected = vec![0; read.len()];
    put(&mut expected, data, &FIRST);
    same(&view[..read.len()], &expected).context("the kernel's view")?;
    put(&mut expected, data, &[THIRD]);
    same(&read, &expected)
}

fn same(ours: &[u8], theirs: &[u8]) -> Result<()> {
    let difference = difference(ours, theirs);
    ensure!(difference.is_none(), "{}", difference.unwrap_or_default());
    Ok(())
}
