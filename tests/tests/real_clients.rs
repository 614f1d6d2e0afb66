//! Unmodified NBD clients against `inlock serve`: the tools of libnbd and QEMU, nbdsh, and fio with verification.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use inlock_tests::image::{CHEAP_PBKDF2, difference, inlock_format, key_file};
use inlock_tests::nbd::{Connection, Mode, command, flag};
use inlock_tests::process::{PYTHON, inlock, output, program, root, text};
use inlock_tests::random::Random;
use inlock_tests::report::count;
use inlock_tests::server::Server;
use serde_json::Value;

const SIZE: u64 = 64 << 20;

struct Served {
    dir: tempfile::TempDir,
    image: PathBuf,
    key: PathBuf,
    server: Server,
}

fn served(sector: &str, more: &[&str]) -> Result<Served> {
    let dir = tempfile::tempdir()?;
    let key = key_file(dir.path(), "key", b"real clients")?;
    let image = dir.path().join("volume.img");
    let args = [&["--type=luks2", "--sector-size", sector][..], &CHEAP_PBKDF2].concat();
    inlock_format(&image, SIZE + (16 << 20), &key, &args)?;
    let server = Server::inlock(dir.path(), "volume", &image, Some(&key), more)?;
    Ok(Served { dir, image, key, server })
}

/// Writes a sample to copy, noise and runs of zeroes as in a file system, and returns it.
fn sample(path: &Path) -> Result<Vec<u8>> {
    let mut random = Random::new(11);
    let mut bytes = Vec::with_capacity(SIZE as usize);
    while bytes.len() < SIZE as usize {
        let len = 1 << (9 + random.below(12));
        let piece = if random.below(3) == 0 { vec![0; len] } else { random.bytes(len) };
        bytes.extend(piece);
    }
    bytes.truncate(SIZE as usize);
    std::fs::write(path, &bytes)?;
    Ok(bytes)
}

fn same(what: &str, ours: &[u8], theirs: &[u8]) -> Result<()> {
    let difference = difference(ours, theirs);
    ensure!(difference.is_none(), "{what}: {}", difference.unwrap_or_default());
    Ok(())
}

#[test]
fn nbdinfo_shows_size_abilities_map_and_list() -> Result<()> {
    let served = served("4096", &[])?;
    let uri = served.server.uri();
    let size = text(program("nbdinfo").args(["--size", &uri]))?;
    ensure!(size.trim() == SIZE.to_string(), "nbdinfo --size gives {size}");
    let info: Value = serde_json::from_str(&text(program("nbdinfo").args(["--json", &uri]))?)?;
    let export = &info["exports"][0];
    ensure!(info["protocol"] == "newstyle-fixed", "{info}");
    ensure!(info["structured"] == true, "{info}");
    ensure!(export["export-size"] == SIZE, "{info}");
    for ability in ["can_flush", "can_fua", "can_multi_conn", "can_zero", "can_cache", "can_df"] {
        ensure!(export[ability] == true, "{ability}: {info}");
    }
    for lack in ["is_read_only", "is_rotational", "can_trim"] {
        ensure!(export[lack] == false, "{lack}: {info}");
    }
    ensure!(export["block_size_minimum"] == 1 && export["block_size_preferred"] == 4096, "{info}");
    ensure!(export["block_size_maximum"] == 32 << 20, "{info}");
    ensure!(export["contexts"].to_string().contains("base:allocation"), "{info}");
    let list: Value = serde_json::from_str(&text(program("nbdinfo").args(["--list", "--json", &uri]))?)?;
    ensure!(list["exports"].as_array().is_some_and(|all| all.len() == 1), "{list}");
    for (ability, status) in [("write", 0), ("flush", 0), ("fua", 0), ("multi-conn", 0), ("trim", 2)] {
        let answer = output(program("nbdinfo").args(["--can", ability, &uri]))?;
        ensure!(answer.status.code() == Some(status), "nbdinfo --can {ability}: {}", answer.status);
    }
    Ok(())
}

#[test]
fn block_status_reports_holes_without_zero_flag() -> Result<()> {
    let served = served("4096", &[])?;
    let uri = served.server.uri();
    let script = "h.pwrite(b'x' * (1 << 20), 8 << 20); h.flush()";
    text(program(PYTHON).args(["-m", "nbd", "-u", &uri, "-c", script]))?;
    let map: Value = serde_json::from_str(&text(program("nbdinfo").args(["--map", "--json", &uri]))?)?;
    let extents = map.as_array().context("the map is no list")?;
    let mut end = 0;
    let mut holes = 0;
    for extent in extents {
        ensure!(extent["offset"] == end, "{map}");
        end += extent["length"].as_u64().context("an extent has no length")?;
        let kind = extent["type"].as_u64().context("an extent has no type")?;
        // Bit 1 would declare that the plaintext reads as zeroes, which is false for a hole in the ciphertext.
        ensure!(kind & 2 == 0, "an extent is called zero: {map}");
        holes += kind & 1;
    }
    ensure!(end == SIZE, "the map ends at {end}");
    ensure!(holes > 0, "a volume that was hardly written shows no hole: {map}");
    let written = |e: &&Value| e["offset"].as_u64() <= Some(8 << 20) && e["type"] == 0;
    ensure!(extents.iter().any(|e| written(&e)), "what was written is no data: {map}");
    Ok(())
}

#[test]
fn nbdcopy_copies_in_and_out() -> Result<()> {
    for io in ["uring", "sync"] {
        let served = served("4096", &["--io", io])?;
        let raw = served.dir.path().join("raw.img");
        let back = served.dir.path().join("back.img");
        let bytes = sample(&raw)?;
        let uri = served.server.uri();
        text(program("nbdcopy").args(["--connections=4", "--requests=32"]).arg(&raw).arg(&uri))?;
        text(program("nbdcopy").args(["--connections=4", "--flush"]).arg(&uri).arg(&back))?;
        same(&format!("nbdcopy with --io {io}"), &std::fs::read(&back)?, &bytes)?;
    }
    Ok(())
}

#[test]
fn qemu_img_converts_and_compares() -> Result<()> {
    let served = served("512", &[])?;
    let raw = served.dir.path().join("raw.img");
    let back = served.dir.path().join("back.img");
    let bytes = sample(&raw)?;
    let uri = served.server.uri();
    text(program("qemu-img").args(["convert", "-n", "-f", "raw", "-O", "raw", "-m", "8", "-W"]).arg(&raw).arg(&uri))?;
    text(program("qemu-img").args(["compare", "-f", "raw", "-F", "raw"]).arg(&raw).arg(&uri))?;
    text(program("qemu-img").args(["convert", "-f", "raw", "-O", "raw"]).arg(&uri).arg(&back))?;
    same("qemu-img convert", &std::fs::read(&back)?, &bytes)?;
    // Control: compare must detect one changed byte.
    let script = "b = h.pread(1, 12345); h.pwrite(bytes([b[0] ^ 1]), 12345)";
    text(program(PYTHON).args(["-m", "nbd", "-u", &uri, "-c", script]))?;
    let differs = output(program("qemu-img").args(["compare", "-f", "raw", "-F", "raw"]).arg(&raw).arg(&uri))?;
    ensure!(differs.status.code() == Some(1), "qemu-img compare does not see one flipped bit");
    Ok(())
}

#[test]
fn nbdsh_reads_and_writes_odd_sizes() -> Result<()> {
    for (sector, io) in [("512", "sync"), ("4096", "uring"), ("4096", "sync")] {
        let served = served(sector, &["--io", io])?;
        let script = root().join("tests/oracle/odd_sizes.py");
        let said = text(program(PYTHON).arg(script).arg(served.server.uri()))?;
        let operations = said.trim().strip_prefix("operations ").context(said.clone())?;
        count("nbdsh_operations", operations);
    }
    Ok(())
}

#[test]
fn fio_verifies_what_it_wrote() -> Result<()> {
    let mut verified = 0;
    for io in ["uring", "sync"] {
        let served = served("4096", &["--io", io])?;
        let report = fio_verify(&served.server.uri())?;
        let jobs = report["jobs"].as_array().context("fio reports no jobs")?;
        ensure!(jobs.len() == 4, "fio ran {} jobs", jobs.len());
        for job in jobs {
            ensure!(job["error"] == 0, "--io {io}: fio's error {}", job["error"]);
            let read = job["read"]["io_bytes"].as_u64().unwrap_or(0);
            ensure!(read >= 16 << 20, "--io {io}: a job verified only {read} bytes");
            verified += read;
        }
    }
    count("fio_verified_bytes", verified);
    Ok(())
}

/// Four connections of depth 32 write 512 bytes to 64 KiB at random, each with a checksum, and read and verify them.
fn fio_verify(uri: &str) -> Result<Value> {
    let mut fio = program("fio");
    fio.args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--iodepth=32", "--numjobs=4", "--thread"]);
    fio.args(["--bsrange=512-64k", "--bs_unaligned=0", "--size=16m", "--offset_increment=16m"]);
    fio.args([
        "--verify=crc32c",
        "--do_verify=1",
        "--verify_fatal=1",
        "--fsync=64",
        "--verify_state_save=0",
        "--output-format=json",
    ]);
    let text = text(fio.arg(format!("--uri={uri}")))?;
    let json = text.find('{').map_or("", |start| &text[start..]);
    serde_json::from_str(json).context("fio's report is not JSON")
}

#[test]
fn image_contains_no_plaintext() -> Result<()> {
    let mut served = served("4096", &[])?;
    let raw = served.dir.path().join("raw.img");
    let bytes = sample(&raw)?;
    text(program("nbdcopy").arg(&raw).arg(served.server.uri()))?;
    served.server.terminate()?;
    let stored = std::fs::read(&served.image)?;
    let plain: std::collections::HashSet<&[u8]> =
        bytes.chunks_exact(16).filter(|block| block.iter().any(|b| *b != 0)).collect();
    // Cipher blocks are at multiples of 16 bytes in both; the text of the header is not in the sample.
    let leaked = stored[16 << 20..].chunks_exact(16).filter(|block| plain.contains(block)).count();
    count("cipher_blocks_scanned", stored.len() / 16);
    ensure!(leaked == 0, "{leaked} blocks of plaintext are in the image");
    // Control: the scan must find plaintext in an unencrypted file.
    let found = bytes.chunks_exact(16).filter(|block| plain.contains(block)).count();
    ensure!(found > 1 << 20, "the scan finds only {found} blocks in the plaintext itself");
    let exported = served.dir.path().join("export.img");
    text(inlock()?.args(["export", "-q"]).arg("--key-file").arg(&served.key).arg(&served.image).arg(&exported))?;
    same("export after nbdcopy", &std::fs::read(&exported)?, &bytes)
}

#[test]
fn raw_type_serves_file_unchanged() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let raw = dir.path().join("raw.img");
    let bytes = sample(&raw)?;
    let server = Server::inlock(dir.path(), "raw", &raw, None, &["--type", "raw"])?;
    let back = dir.path().join("back.img");
    text(program("nbdcopy").arg(server.uri()).arg(&back))?;
    same("nbdcopy from --type raw", &std::fs::read(&back)?, &bytes)?;
    text(program(PYTHON).args(["-m", "nbd", "-u", &server.uri(), "-c", "h.pwrite(b'here', 4097); h.flush()"]))?;
    ensure!(std::fs::read(&raw)?[4097..4101] == *b"here", "a write through --type raw is not in the file");
    Ok(())
}

#[test]
fn requests_of_maximum_length_succeed() -> Result<()> {
    const LONGEST: usize = 32 << 20;
    let mut answered = 0;
    for io in ["uring", "sync"] {
        let served = served("4096", &["--io", io])?;
        for mode in [Mode::Simple, Mode::Structured, Mode::Extended] {
            let mut connection = Connection::open(served.server.socket(), Duration::from_secs(60), mode)?;
            let data = Random::new(21).bytes(LONGEST);
            connection.write(1, &data).with_context(|| format!("--io {io}"))?;
            same("a read of 32 MiB", &connection.read(1, LONGEST)?, &data)?;
            // Longer than any buffer: processed in pieces, with one reply.
            for (flags, offset, len) in [(0, 0, SIZE), (flag::NO_HOLE, 511, SIZE - 1000), (flag::FUA, 12345, 37 << 20)]
            {
                connection.write(offset, &data[..4096])?;
                let reply = connection.call(flags, command::WRITE_ZEROES, offset, len, &[]);
                let reply = reply.with_context(|| format!("--io {io}: write-zeroes of {len} bytes"))?;
                ensure!(reply.error == 0, "--io {io}: write-zeroes of {len} bytes: error {}", reply.error);
                ensure!(connection.read(offset, 8192)?.iter().all(|b| *b == 0), "--io {io}: not all are zeroes");
                answered += 1;
            }
            ensure!(connection.read(SIZE - 8192, 7000)?.iter().all(|b| *b == 0), "--io {io}: the end is not zeroes");
            connection.disconnect()?;
        }
    }
    count("long_write_zeroes", answered);
    Ok(())
}
