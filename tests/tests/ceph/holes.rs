//! `--holes zero`: holes read in Inlock as in librbd's own encryption, after writes and discards by either.
//!
//! librbd reads a missing object, and what is behind the end of one, as zeroes. Other holes of an object it reads as
//! zeroes in reads of at least 64 KiB (`rbd_sparse_read_threshold_bytes`), and as noise in shorter ones. Inlock reads
//! all of them as zeroes, in reads of any length.

use anyhow::{Context, Result, ensure};
use inlock_tests::image::difference;
use inlock_tests::nbd::{Connection, command, errno, flag};
use inlock_tests::process::{program, text};
use inlock_tests::random::Random;
use inlock_tests::report::count;
use inlock_tests::server::Server;

use crate::support::{Cluster, MIB, PASSPHRASE, cluster, connect, device};

/// Length of the objects of images here.
const OBJECT: u64 = MIB;
const QUARTER: u64 = OBJECT / 4;
/// Length of the volumes: six objects.
const LEN: u64 = 6 * OBJECT;
const ZERO: [&str; 2] = ["--holes", "zero"];
const WRITABLE: [&str; 3] = ["--holes", "zero", "--allow-discards"];

/// A volume in both programs, and the bytes that it should have.
struct Volume<'a> {
    cluster: &'a Cluster,
    image: String,
    model: Vec<u8>,
    random: Random,
    checks: usize,
}

impl Volume<'_> {
    fn serve(&self) -> Result<(Server, Connection)> {
        let server = self.cluster.serve(&device(&self.image), &WRITABLE)?;
        let connection = connect(&server)?;
        Ok((server, connection))
    }

    fn librbd(&self, action: &str, words: &[&str], input: &[u8]) -> Result<Vec<u8>> {
        self.cluster.librbd(&[&[action, &self.image, "luks2", PASSPHRASE][..], words].concat(), input)
    }

    fn change(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let data = self.random.bytes(len);
        self.model[offset as usize..][..len].copy_from_slice(&data);
        data
    }

    fn zero(&mut self, offset: u64, len: u64) {
        self.model[offset as usize..][..len as usize].fill(0);
    }

    /// Compares all bytes, as Inlock reads them in pieces of several lengths, and as librbd reads them in long ones.
    fn compare(&mut self, connection: &mut Connection, when: &str) -> Result<()> {
        for step in [16384 + 512, OBJECT] {
            let mut found = Vec::new();
            while (found.len() as u64) < LEN {
                let at = found.len() as u64;
                found.extend(connection.read(at, step.min(LEN - at) as usize)?);
            }
            same(&format!("{when}, reads of {step} bytes"), &found, &self.model)?;
            self.checks += 1;
        }
        for step in [64 << 10, OBJECT] {
            let theirs = self.librbd("pieces", &[&step.to_string()], b"")?;
            same(&format!("{when}, librbd's reads of {step} bytes"), &theirs, &self.model)?;
            self.checks += 1;
        }
        Ok(())
    }

    /// Compares objects whose holes librbd reads as zeroes in reads of any length.
    fn compare_short(&mut self, objects: &[u64], when: &str) -> Result<()> {
        let theirs = self.librbd("pieces", &["4096"], b"")?;
        for object in objects {
            let range = (object * OBJECT) as usize..((object + 1) * OBJECT) as usize;
            same(&format!("{when}, object {object}"), &theirs[range.clone()], &self.model[range])?;
            self.checks += 1;
        }
        Ok(())
    }

    /// Returns the objects of the volume that exist.
    fn objects(&self) -> Result<Vec<u64>> {
        let extents = self.cluster.rbd(&["diff", "--format=json", &format!("rbd/{}", self.image)])?;
        let extents: serde_json::Value = serde_json::from_str(&extents)?;
        let start = |extent: &serde_json::Value| extent["offset"].as_u64();
        let starts = extents.as_array().context("a list")?.iter().filter_map(start);
        let mut objects: Vec<u64> = starts.filter_map(|at| Some(at.checked_sub(16 * MIB)? / OBJECT)).collect();
        objects.dedup();
        Ok(objects)
    }
}

/// Makes an image of six objects behind the place of a header.
fn image(cluster: &Cluster) -> Result<String> {
    let name = crate::support::unique("holes");
    cluster.rbd(&["create", "--size=22M", "--object-size=1M", &format!("rbd/{name}")])?;
    Ok(name)
}

/// Ends a server, which gives the lock back.
fn end((mut server, connection): (Server, Connection)) -> Result<()> {
    connection.disconnect()?;
    ensure!(server.terminate()?.success(), "the server failed: {}", server.log_text());
    Ok(())
}

fn same(what: &str, found: &[u8], expected: &[u8]) -> Result<()> {
    let difference = difference(found, expected);
    ensure!(difference.is_none(), "{what}: {}", difference.unwrap_or_default());
    Ok(())
}

/// Writes and discards in turns in both programs, and compares after each.
fn exchange(cluster: &Cluster, image: &str) -> Result<usize> {
    let mut volume =
        Volume { cluster, image: image.to_owned(), model: vec![0; LEN as usize], random: Random::new(31), checks: 0 };
    // Objects 0 to 2 are written by Inlock: the middle, parts of units, and across two objects that are not there.
    let (server, mut connection) = volume.serve()?;
    volume.compare(&mut connection, "nothing written")?;
    for (offset, len) in [
        (QUARTER, 4096),
        (2 * QUARTER + 512, 512),
        (3 * QUARTER + 4095, 2),
        (2 * OBJECT - 700, 1400),
        (3 * OBJECT - 4096, 4096),
    ] {
        let data = volume.change(offset, len);
        connection.write(offset, &data)?;
    }
    connection.flush()?;
    volume.compare(&mut connection, "parts of objects written by Inlock")?;
    volume.compare_short(&[3, 4, 5], "objects that are not there")?;
    ensure!(volume.objects()? == [0, 1, 2], "{:?}", volume.objects()?);
    end((server, connection))?;

    // Objects 3 and 4 by librbd.
    let mut input = Vec::new();
    let ranges = [(3 * OBJECT + QUARTER, 4096), (4 * OBJECT - QUARTER, 512), (5 * OBJECT - 5000, 3000), (QUARTER, 100)];
    for (offset, len) in ranges {
        input.extend(volume.change(offset, len));
    }
    let words = ranges.map(|(offset, len)| format!("{offset}+{len}"));
    volume.librbd("write", &words.each_ref().map(|word| &**word), &input)?;
    let discarded = [(3 * OBJECT, 2 * QUARTER), (QUARTER + (64 << 10), 64 << 10)];
    let words = discarded.map(|(offset, len)| format!("{offset}+{len}"));
    volume.librbd("discard", &words.each_ref().map(|word| &**word), b"")?;
    discarded.into_iter().for_each(|(offset, len)| volume.zero(offset, len));
    let (server, mut connection) = volume.serve()?;
    volume.compare(&mut connection, "written and discarded by librbd")?;
    end((server, connection))?;

    volume.checks += zeroed(&mut volume)?;
    Ok(volume.checks)
}

/// Trims and zeroes in Inlock, whose result librbd reads in short pieces too.
fn zeroed(volume: &mut Volume<'_>) -> Result<usize> {
    let (server, mut connection) = volume.serve()?;
    let all = volume.change(0, LEN as usize);
    for (number, piece) in all.chunks(MIB as usize).enumerate() {
        connection.write(number as u64 * MIB, piece)?;
    }
    for (flags, kind, offset, len, error) in [
        (0, command::TRIM, 0, OBJECT, 0),
        (0, command::WRITE_ZEROES, OBJECT + 512, 2 * OBJECT, 0),
        (flag::FUA, command::TRIM, 4 * OBJECT - 8192, 8192, 0),
        (flag::FAST_ZERO, command::WRITE_ZEROES, 5 * OBJECT, OBJECT, 0),
        (flag::FAST_ZERO, command::WRITE_ZEROES, 4 * OBJECT, QUARTER, errno::NOTSUP),
        (flag::NO_HOLE, command::WRITE_ZEROES, 4 * OBJECT, QUARTER, 0),
    ] {
        let reply = connection.call(flags, kind, offset, len, &[])?;
        ensure!(reply.error == error, "command {kind} of {offset}+{len} ends with {}", reply.error);
        // A trim of less than an object leaves it.
        if error == 0 && (kind != command::TRIM || len >= OBJECT) {
            volume.zero(offset, len);
        }
    }
    connection.flush()?;
    volume.compare(&mut connection, "zeroed by Inlock")?;
    volume.compare_short(&[0, 1, 2, 3, 4, 5], "zeroed by Inlock")?;
    ensure!(volume.objects()? == [1, 3, 4], "whole objects are to be removed: {:?}", volume.objects()?);
    let map = text(program("nbdinfo").args(["--map", &server.uri()]))?;
    let lines: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().take(3).collect()).collect();
    let object = |n: u64| (n * OBJECT).to_string();
    let expected = [[0, 1, 3], [1, 1, 0], [2, 1, 3], [3, 2, 0], [5, 1, 3]]
        .map(|[start, count, flags]| [object(start), object(count), flags.to_string()]);
    ensure!(lines == expected, "{map}");
    end((server, connection))?;
    let key = volume.cluster.key.to_str().context("a text")?;
    let file = volume.cluster.own.path().join("sparse");
    let path = file.to_str().context("a text")?;
    volume.cluster.works(&["export", "-q", &device(&volume.image), path, "-d", key, ZERO[0], ZERO[1]])?;
    same("exported", &std::fs::read(&file)?, &volume.model)?;
    Ok(4)
}

#[test]
fn holes_of_volumes_of_inlock_read_as_in_librbd() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let mut checks = 0;
    for more in [&["--type=luks2"][..], &["--type=luks2", "--sector-size=512"]] {
        let image = image(&cluster)?;
        cluster.format(&device(&image), more)?;
        checks += exchange(&cluster, &image)?;
    }
    count("ceph_checks_of_holes_of_inlock", checks);
    Ok(())
}

#[test]
fn holes_of_volumes_of_librbd_read_as_in_librbd() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let image = image(&cluster)?;
    let key = cluster.key.to_str().context("a text")?;
    let first = cluster.own.path().join("first");
    std::fs::write(&first, "the first")?;
    cluster.librbd(&["format", &image, "luks2", "aes-256", "the first"], b"")?;
    let cheap = ["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"];
    let first = first.to_str().context("a text")?;
    cluster.works(&[&["luksAddKey", "-q", "-d", first][..], &cheap, &[&device(&image), key]].concat())?;
    cluster.works(&["luksKillSlot", "-q", &device(&image), "0", "-d", key])?;
    count("ceph_checks_of_holes_of_librbd", exchange(&cluster, &image)?);
    Ok(())
}

/// A clone shows its parent's data where it has no object, and zeroes where a discard has left one without bytes.
#[test]
fn holes_of_snapshots_and_clones_read_as_zeroes() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let image = image(&cluster)?;
    cluster.format(&device(&image), &[])?;
    let mut random = Random::new(8);
    let data = random.bytes(2 * OBJECT as usize);
    {
        let server = cluster.serve(&device(&image), &ZERO)?;
        let mut connection = connect(&server)?;
        for (number, piece) in data.chunks(MIB as usize).enumerate() {
            connection.write(number as u64 * MIB, piece)?;
        }
        connection.flush()?;
        end((server, connection))?;
    }
    let (snapshot, clone) = (format!("rbd/{image}@snap"), format!("{image}-clone"));
    cluster.rbd(&["snap", "create", "--no-progress", &snapshot])?;
    let mut model = data;
    model.resize(LEN as usize, 0);
    let whole = |connection: &mut Connection| -> Result<Vec<u8>> {
        let pieces = (0..LEN / MIB).map(|piece| connection.read(piece * MIB, MIB as usize));
        Ok(pieces.collect::<Result<Vec<_>>>()?.concat())
    };
    let reader = cluster.serve(&format!("{}@snap", device(&image)), &["--read-only", ZERO[0], ZERO[1]])?;
    same("snapshot", &whole(&mut connect(&reader)?)?, &model)?;
    cluster.rbd(&["clone", "--rbd-default-clone-format=2", &snapshot, &format!("rbd/{clone}")])?;
    let server = cluster.serve(&device(&clone), &WRITABLE)?;
    let mut connection = connect(&server)?;
    same("clone", &whole(&mut connection)?, &model)?;
    let reply = connection.call(0, command::TRIM, 0, OBJECT, &[])?;
    ensure!(reply.error == 0, "the discard fails with {}", reply.error);
    connection.write(OBJECT + 10, &[7; 20])?;
    connection.write(3 * OBJECT + 10, &[7; 20])?;
    connection.flush()?;
    model[..OBJECT as usize].fill(0);
    model[OBJECT as usize + 10..][..20].fill(7);
    model[3 * OBJECT as usize + 10..][..20].fill(7);
    same("changed clone", &whole(&mut connection)?, &model)?;
    let map = text(program("nbdinfo").args(["--map", &server.uri()]))?;
    let hole = |line: &str| line.split_whitespace().nth(2) == Some("3");
    ensure!(!map.lines().next().is_some_and(|line| hole(line) && line.contains(&(2 * OBJECT).to_string())), "{map}");
    ensure!(map.lines().any(hole), "{map}");
    Ok(())
}

/// Each sector is zero or written, never noise: the store's bytes tell a hole, and come with the read.
#[test]
fn reads_beside_writes_into_holes_are_zeroes_or_data() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let image = image(&cluster)?;
    cluster.format(&device(&image), &[])?;
    let server = cluster.serve(&device(&image), &["--holes", "zero", "--allow-discards", "--threads", "2"])?;
    let (mut writer, mut reader) = (connect(&server)?, connect(&server)?);
    let mut random = Random::new(77);
    let writing = std::thread::spawn(move || -> Result<()> {
        for round in 0..120 {
            let offset = random.below(LEN / 512) * 512;
            let len = [512, 4096, 70_144][round % 3].min(LEN - offset);
            writer.write(offset, &vec![0xa5; len as usize])?;
            if round % 20 == 19 {
                let object = random.below(LEN / OBJECT) * OBJECT;
                let reply = writer.call(0, command::TRIM, object, OBJECT, &[])?;
                ensure!(reply.error == 0, "a discard fails with {}", reply.error);
            }
        }
        Ok(())
    });
    let mut random = Random::new(78);
    let mut reads = 0;
    let is_sector = |sector: &[u8]| [0, 0xa5].iter().any(|byte| sector.iter().all(|found| found == byte));
    while !writing.is_finished() {
        let offset = random.below(LEN / MIB) * MIB;
        let found = reader.read(offset, MIB as usize)?;
        let wrong = found.chunks(512).position(|sector| !is_sector(sector));
        ensure!(wrong.is_none(), "sector {wrong:?} of {offset} is noise");
        reads += 1;
    }
    ensure!(reads > 0, "nothing was read");
    writing.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?
}

#[test]
fn holes_are_zero_where_that_is_exact() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let image = cluster.image(64)?;
    let key = cluster.key.to_str().context("a text")?;
    cluster.format(&device(&image), &["--type=luks2", "--integrity=hmac-sha256", "--integrity-no-wipe"])?;
    let message = "needs a LUKS or plain volume without integrity protection";
    let file = cluster.own.path().join("x");
    let file = file.to_str().context("a text")?;
    cluster.fails(&["export", "-q", &device(&image), file, "-d", key, ZERO[0], ZERO[1]], 1, message)?;
    // Stripes are no whole objects, so nothing of a striped image is deallocated; holes are zeroes as well.
    let image = crate::support::unique("striped");
    let stripes = ["--object-size=8M", "--stripe-unit=1M", "--stripe-count=3", "--size=96M"];
    cluster.rbd(&[&["create"][..], &stripes, &[&format!("rbd/{image}")]].concat())?;
    cluster.format(&device(&image), &["--type=luks2"])?;
    let server = cluster.serve(&device(&image), &WRITABLE)?;
    let mut connection = connect(&server)?;
    ensure!(connection.read(0, MIB as usize)?.iter().all(|byte| *byte == 0), "a hole is not zero");
    connection.write(0, &vec![1; MIB as usize])?;
    let reply = connection.call(flag::FAST_ZERO, command::WRITE_ZEROES, 0, 24 * MIB, &[])?;
    ensure!(reply.error == errno::NOTSUP, "{}", reply.error);
    let reply = connection.call(0, command::TRIM, 0, 24 * MIB, &[])?;
    ensure!(reply.error == 0, "{}", reply.error);
    ensure!(connection.read(0, MIB as usize)?.iter().all(|byte| *byte == 1), "a trim wrote to a striped image");
    let reply = connection.call(0, command::WRITE_ZEROES, 0, MIB, &[])?;
    ensure!(reply.error == 0, "{}", reply.error);
    ensure!(connection.read(0, MIB as usize)?.iter().all(|byte| *byte == 0), "zeroed bytes are not zero");
    Ok(())
}
