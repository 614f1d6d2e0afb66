//! Inlock and librbd's own encryption read and write each other's volumes.

use anyhow::{Context, Result, ensure};
use inlock_tests::image::difference;
use inlock_tests::random::Random;
use inlock_tests::report::count;

use crate::support::{Cluster, MIB, PASSPHRASE, cluster, connect, device};

/// Ranges in a volume, of and across units, sectors and objects.
const RANGES: [(u64, usize); 6] =
    [(0, 4096), (512, 512), (5000, 70_000), (4 * MIB - 512, 1024), (8 * MIB + 4096, 1 << 20), (12 * MIB - 1, 2)];

fn same(what: &str, ours: &[u8], theirs: &[u8]) -> Result<()> {
    let difference = difference(ours, theirs);
    ensure!(difference.is_none(), "{what}: {}", difference.unwrap_or_default());
    Ok(())
}

/// Writes ranges alternately by Inlock and by librbd, and reads each with the other.
fn exchange(cluster: &Cluster, image: &str, format: &str) -> Result<usize> {
    let mut random = Random::new(19);
    let mut checks = 0;
    // Everything is written once, since librbd reads zeroes where nothing was.
    let size: u64 = String::from_utf8(cluster.librbd(&["size", image, format, PASSPHRASE], b"")?)?.trim().parse()?;
    let mut model = random.bytes(size as usize);
    {
        let server = cluster.serve(&device(image), &[])?;
        let mut connection = connect(&server)?;
        for (number, piece) in model.chunks(MIB as usize).enumerate() {
            connection.write(number as u64 * MIB, piece)?;
        }
        for (offset, len) in RANGES {
            let data = random.bytes(len);
            connection.write(offset, &data)?;
            model[offset as usize..][..len].copy_from_slice(&data);
        }
        connection.flush()?;
        connection.disconnect()?;
        let mut server = server;
        ensure!(server.terminate()?.success(), "the server failed: {}", server.log_text());
    }
    let theirs = cluster.librbd(&["read", image, format, PASSPHRASE, "0", &size.to_string()], b"")?;
    same(&format!("{image}, {format}, read by librbd"), &model, &theirs)?;
    checks += 1;
    let words = RANGES.map(|(offset, len)| format!("{offset}+{len}"));
    let mut input = Vec::new();
    for (offset, len) in RANGES {
        let data = random.bytes(len);
        model[offset as usize..][..len].copy_from_slice(&data);
        input.extend(data);
        checks += 1;
    }
    let words: Vec<&str> = ["write", image, format, PASSPHRASE].into_iter().chain(words.iter().map(|w| &**w)).collect();
    cluster.librbd(&words, &input)?;
    same(&format!("{image}, {format}, read by Inlock"), &cluster.export(&device(image))?, &model)?;
    Ok(checks + 1)
}

/// Returns the fields of `luksDump` that tell where the data begin and how long the key is.
fn expected_dump(format: &str, offset: u64, key_bits: u64) -> [String; 2] {
    if format == "luks1" {
        return [format!("Payload offset:\t{}", offset * 2048), format!("MK bits:       \t{key_bits}")];
    }
    [format!("offset: {} [bytes]", offset * MIB), format!("Cipher key: {key_bits} bits")]
}

/// Keyslots of librbd take seconds to open, so each volume gets another one, which must open in librbd, too.
#[test]
fn volumes_of_librbd_open_in_inlock() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let first = cluster.own.path().join("first");
    std::fs::write(&first, "the first")?;
    let (first, key) = (first.to_str().context("a text")?, cluster.key.to_str().context("a text")?);
    let mut checks = 0;
    for (format, cipher, offset, key_bits) in
        [("luks1", "aes-256", 4, 512), ("luks1", "aes-128", 4, 256), ("luks2", "aes-256", 16, 512)]
    {
        let image = cluster.image(32)?;
        cluster.librbd(&["format", &image, format, cipher, "the first"], b"")?;
        let dump = cluster.works(&["luksDump", &device(&image)])?;
        let expected = expected_dump(format, offset, key_bits);
        ensure!(expected.iter().all(|line| dump.contains(line)), "{image}: {expected:?} is not in {dump}");
        let cheap = ["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"];
        cluster.works(&[&["luksAddKey", "-q", "-d", first][..], &cheap, &[&device(&image), key]].concat())?;
        if cipher == "aes-128" {
            // With both keyslots.
            cluster.librbd(&["write", &image, format, "the first", "0+7"], b"written")?;
            let read = cluster.librbd(&["read", &image, format, PASSPHRASE, "0", "7"], b"")?;
            ensure!(read == b"written", "{read:?}");
            checks += 1;
        }
        cluster.works(&["luksKillSlot", "-q", &device(&image), "0", "-d", key])?;
        let refused = cluster.librbd(&["read", &image, format, "the first", "0", "7"], b"");
        ensure!(refused.is_err(), "{image}: a removed passphrase opens the image");
        let size = cluster.export(&device(&image))?.len() as u64;
        ensure!(size == (32 - offset) * MIB, "{image} has {size} bytes");
        checks += 3 + exchange(&cluster, &image, format)?;
    }
    count("ceph_checks_of_librbd_volumes", checks);
    Ok(())
}

#[test]
fn volumes_of_inlock_open_in_librbd() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let mut checks = 0;
    for (format, more) in [
        ("luks1", &["--type=luks1"][..]),
        ("luks2", &["--type=luks2"]),
        ("luks2", &["--type=luks2", "--sector-size=512"]),
        ("luks2", &["--type=luks2", "--key-size=256"]),
    ] {
        let image = cluster.volume(32, more)?;
        let size = String::from_utf8(cluster.librbd(&["size", &image, format, PASSPHRASE], b"")?)?;
        let exported = cluster.export(&device(&image))?.len();
        ensure!(size.trim() == exported.to_string(), "{image} {more:?}: {size} bytes in librbd, {exported} here");
        checks += 1 + exchange(&cluster, &image, format)?;
    }
    count("ceph_checks_of_inlock_volumes", checks);
    Ok(())
}

#[test]
fn striped_image_is_formatted_for_librbd() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    // librbd 16 asks for a multiple of an object's length, librbd 20 for one of all objects of a stripe: 24 MiB.
    let image = crate::support::unique("striped");
    let stripes = ["--object-size=8M", "--stripe-unit=1M", "--stripe-count=3", "--size=96M"];
    cluster.rbd(&[&["create"][..], &stripes, &[&format!("rbd/{image}")]].concat())?;
    cluster.format(&device(&image), &["--type=luks2"])?;
    let dump = cluster.works(&["luksDump", &device(&image)])?;
    ensure!(dump.contains(&format!("offset: {} [bytes]", 24 * MIB)), "{dump}");
    let size = String::from_utf8(cluster.librbd(&["size", &image, "luks2", PASSPHRASE], b"")?)?;
    let exported = cluster.export(&device(&image))?.len();
    ensure!(size.trim() == exported.to_string(), "{size} bytes in librbd, {exported} here");
    Ok(())
}
