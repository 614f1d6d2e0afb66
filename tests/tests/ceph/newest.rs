//! Clones with an encryption of their own, which librbd has from Ceph 18 on, and keys with a newer cipher.

use anyhow::{Context, Result, ensure};
use inlock_tests::image::{CHEAP_PBKDF2, difference, key_file};
use inlock_tests::process::lossy;
use inlock_tests::random::Random;
use inlock_tests::report::count;

use crate::support::{Cluster, MIB, PASSPHRASE, cluster_newest, connect, device, unique};

/// Passphrase of parents.
const PARENT: &str = "that of the parent";
const REFUSED: &str = "is a clone that librbd has encrypted by itself";
/// Length of the objects of images here.
const OBJECT: u64 = 4 * MIB;
/// Ranges of a clone that are written: parts of units, of its parent's objects, and of one that its parent lacks.
const RANGES: [(u64, usize); 5] =
    [(0, 4096), (5000, 70_000), (OBJECT - 512, 1024), (2 * OBJECT + 8192, 4096), (4 * OBJECT - 4096, 4096)];

fn same(what: &str, found: &[u8], expected: &[u8]) -> Result<()> {
    let difference = difference(found, expected);
    ensure!(difference.is_none(), "{what}: {}", difference.unwrap_or_default());
    Ok(())
}

/// A clone of an image that librbd has encrypted.
struct Clone<'a> {
    cluster: &'a Cluster,
    name: String,
    /// Bytes that librbd shows.
    model: Vec<u8>,
    random: Random,
}

impl<'a> Clone<'a> {
    /// Makes an image with LUKS2 and four objects of data, of which the third one does not exist, and a clone of it.
    fn new(cluster: &'a Cluster) -> Result<Self> {
        let parent = cluster.image(32)?;
        cluster.librbd(&["format", &parent, "luks2", "aes-256", PARENT], b"")?;
        let mut random = Random::new(71);
        let mut model = random.bytes(4 * OBJECT as usize);
        model[2 * OBJECT as usize..3 * OBJECT as usize].fill(0);
        let (first, last) = (format!("0+{}", 2 * OBJECT), format!("{}+{OBJECT}", 3 * OBJECT));
        let written = [&model[..2 * OBJECT as usize], &model[3 * OBJECT as usize..]].concat();
        cluster.librbd(&["write", &parent, "luks2", PARENT, &first, &last], &written)?;
        let (name, snapshot) = (unique("clone"), format!("rbd/{parent}@snap"));
        cluster.rbd(&["snap", "create", "--no-progress", &snapshot])?;
        cluster.rbd(&["clone", "--rbd-default-clone-format=2", &snapshot, &format!("rbd/{name}")])?;
        Ok(Self { cluster, name, model, random })
    }

    /// Gives the clone an encryption of its own, and writes to it.
    fn format(&mut self, format: &str) -> Result<()> {
        self.cluster.librbd(&["format", &self.name, format, "aes-256", PASSPHRASE], b"")?;
        let size = String::from_utf8(self.librbd(format, "size", &[], b"")?)?.trim().parse()?;
        // The parent's data end before, if its header is longer.
        self.model.resize(size, 0);
        let mut input = Vec::new();
        for (offset, len) in RANGES {
            let data = self.random.bytes(len);
            self.model[offset as usize..][..len].copy_from_slice(&data);
            input.extend(data);
        }
        let words = RANGES.map(|(offset, len)| format!("{offset}+{len}"));
        self.librbd(format, "write", &words.each_ref().map(|word| &**word), &input).map(drop)
    }

    /// Runs an action of librbd with the keys of the clone and of its parent.
    fn librbd(&self, format: &str, action: &str, words: &[&str], input: &[u8]) -> Result<Vec<u8>> {
        let (formats, keys) = (format!("{format}+luks2"), format!("{PASSPHRASE}+{PARENT}"));
        self.cluster.librbd(&[&[action, &self.name, &formats, &keys][..], words].concat(), input)
    }

    fn magic(&self) -> Result<Vec<u8>> {
        self.cluster.librbd(&["read", &self.name, "raw", "", "0", "6"], b"")
    }

    fn key(&self, passphrase: &str) -> Result<String> {
        let path = key_file(self.cluster.own.path(), &unique("key"), passphrase.as_bytes())?;
        Ok(path.to_str().context("a text")?.to_owned())
    }
}

#[test]
fn clone_with_its_own_encryption_is_refused_by_every_action() -> Result<()> {
    let Some(cluster) = cluster_newest()? else { return Ok(()) };
    let mut checks = 0;
    for format in ["luks1", "luks2"] {
        let mut clone = Clone::new(&cluster)?;
        clone.format(format)?;
        ensure!(clone.magic()? == b"RBDL\xba\xbe", "librbd has another magic for clones: {:?}", clone.magic()?);
        let raw = || cluster.librbd(&["read", &clone.name, "raw", "", "0", &(16 * MIB).to_string()], b"");
        let before = raw()?;
        let (name, key) = (device(&clone.name), cluster.key.to_str().context("a text")?);
        let file = cluster.own.path().join(unique("file"));
        let file = file.to_str().context("a text")?;
        std::fs::write(file, [0; 512])?;
        for action in [
            &["open", "--test-passphrase", &name, "-d", key][..],
            &["open", &name, "volume", "-d", key],
            &["serve", &name, "--nbd", "unix:/nowhere", "-d", key],
            &["export", "-q", &name, file, "-d", key],
            &["import", "-q", file, &name, "-d", key],
            &["isLuks", &name],
            &["luksUUID", &name],
            &["luksDump", &name],
            &["luksDump", "-q", "--dump-volume-key", &name, "-d", key],
            &["luksHeaderBackup", &name, "--header-backup-file", &format!("{file}.backup")],
            &["luksAddKey", "-q", "-d", key, &name, key],
            &["luksChangeKey", "-q", "-d", key, &name, key],
            &["luksConvertKey", "-q", "-d", key, &name],
            &["luksRemoveKey", "-q", &name, key],
            &["luksKillSlot", "-q", &name, "0"],
            &["config", &name, "--label", "x"],
            &["token", "remove", "--token-id", "0", &name],
            &["convert", "-q", "--type", "luks2", &name],
            &["erase", "-q", &name],
            &["policy", &name],
            &["table", &name, "-d", key],
            &["repair", "-q", &name],
        ] {
            cluster.fails(action, 1, REFUSED)?;
            checks += 1;
        }
        let examined = cluster.inlock(&["doctor", &name])?;
        ensure!(lossy(&examined.stdout).contains(REFUSED), "{examined:?}");
        same("image of the refused clone", &raw()?, &before)?;
        checks += 2;
    }
    count("ceph_newest_refusals", checks);
    Ok(())
}

/// librbd decrypts what such a volume does not have with the parent's key; Inlock has the parent's bytes only.
#[test]
fn formatting_a_clone_warns_that_librbd_reads_other_bytes() -> Result<()> {
    let Some(cluster) = cluster_newest()? else { return Ok(()) };
    let (plain, mut encrypted) = (Clone::new(&cluster)?, Clone::new(&cluster)?);
    encrypted.format("luks2")?;
    for clone in [&plain, &encrypted] {
        let name = device(&clone.name);
        let key = cluster.key.to_str().context("a text")?;
        let ended =
            cluster.inlock(&[&["luksFormat", "-q", "--type=luks2"][..], &CHEAP_PBKDF2, &[&name, key]].concat())?;
        let said = lossy(&ended.stderr);
        ensure!(ended.status.success() && said.contains("is a clone: parts that are never written"), "{said}");
        ensure!(clone.magic()? == b"LUKS\xba\xbe", "{:?}", clone.magic()?);
        ensure!(cluster.export(&name)?.len() as u64 == 4 * OBJECT, "the volume has another length");
    }
    let theirs = plain.librbd("luks2", "read", &["0", &plain.model.len().to_string()], b"")?;
    same("formatted clone in librbd", &theirs, &plain.model)?;
    ensure!(cluster.export(&device(&plain.name))? != plain.model, "the volume has the parent's data");
    // An image without a parent is no reason to warn.
    let image = cluster.image(32)?;
    let key = cluster.key.to_str().context("a text")?;
    let ended = cluster.inlock(&[&["luksFormat", "-q"][..], &CHEAP_PBKDF2, &[&device(&image), key]].concat())?;
    ensure!(ended.status.success() && ended.stderr.is_empty(), "{}", lossy(&ended.stderr));
    Ok(())
}

#[test]
fn clone_without_encryption_of_its_own_opens_with_its_parents_key() -> Result<()> {
    let Some(cluster) = cluster_newest()? else { return Ok(()) };
    let mut clone = Clone::new(&cluster)?;
    let (name, key) = (device(&clone.name), clone.key(PARENT)?);
    let opened = &["--key-file", &key, "--holes", "zero"];
    {
        let mut server = cluster.serve_with(&name, opened)?;
        let mut connection = connect(&server)?;
        for (offset, len) in RANGES {
            let data = clone.random.bytes(len);
            connection.write(offset, &data)?;
            clone.model[offset as usize..][..len].copy_from_slice(&data);
        }
        connection.flush()?;
        connection.disconnect()?;
        ensure!(server.terminate()?.success(), "the server failed: {}", server.log_text());
    }
    let len = clone.model.len().to_string();
    for (formats, keys) in [("luks2", PARENT.to_owned()), ("luks2+luks2", format!("{PARENT}+{PARENT}"))] {
        let theirs = cluster.librbd(&["read", &clone.name, formats, &keys, "0", &len], b"")?;
        same("clone in librbd", &theirs, &clone.model)?;
    }
    let file = cluster.own.path().join("exported");
    cluster.works(&[&["export", "-q", &name, file.to_str().context("a text")?][..], opened].concat())?;
    same("clone in Inlock", &std::fs::read(file)?, &clone.model)
}

/// `rbd flatten` with both passphrases makes a volume of the clone, with the clone's key.
#[test]
fn flattened_clone_opens_with_its_own_key() -> Result<()> {
    let Some(cluster) = cluster_newest()? else { return Ok(()) };
    for format in ["luks1", "luks2"] {
        let mut clone = Clone::new(&cluster)?;
        clone.format(format)?;
        let theirs = clone.librbd(format, "read", &["0", &clone.model.len().to_string()], b"")?;
        same(&format!("clone with {format} in librbd"), &theirs, &clone.model)?;
        let (own, parents) = (clone.key(PASSPHRASE)?, clone.key(PARENT)?);
        let option = "--encryption-passphrase-file";
        let image = format!("rbd/{}", clone.name);
        cluster.rbd(&["flatten", "--no-progress", &image, option, &own, option, &parents])?;
        ensure!(clone.magic()? == b"LUKS\xba\xbe", "{:?}", clone.magic()?);
        let file = cluster.own.path().join(unique("exported"));
        let path = file.to_str().context("a text")?;
        cluster.works(&["export", "-q", &device(&clone.name), path, "-d", &own, "--holes", "zero"])?;
        same(&format!("flattened clone with {format}"), &std::fs::read(file)?, &clone.model)?;
        cluster.fails(&["open", "--test-passphrase", &device(&clone.name), "-d", &parents], 2, "No key available")?;
    }
    Ok(())
}

/// librbd before 19.2.6 and 20.2.4 does not know the cipher of keys that later clusters make.
#[test]
fn key_with_a_newer_cipher_opens_the_image_or_is_named() -> Result<()> {
    let Some(cluster) = cluster_newest()? else { return Ok(()) };
    let image = cluster.volume(20, &[])?;
    let user = unique("newer");
    let keyring = cluster.own.path().join("newer.keyring");
    let words = ["auth", "get-or-create", &format!("client.{user}"), "mon", "profile rbd", "osd", "profile rbd"];
    std::fs::write(&keyring, cluster.ceph(&[&words[..], &["--key_type=aes256k"]].concat())?)?;
    let name = format!("{}:id={user}:keyring={}", device(&image), keyring.display());
    let ended = cluster.inlock(&["luksUUID", &name])?;
    if ended.status.success() {
        return Ok(());
    }
    let said = lossy(&ended.stderr);
    ensure!(ended.status.code() == Some(4), "{}: {said}", ended.status);
    ensure!(said.contains(&format!("librados cannot read the key of client.{user}")), "{said}");
    // As the hint says.
    let rotated = cluster.ceph(&["auth", "rotate", &format!("client.{user}"), "--key_type=aes"])?;
    std::fs::write(&keyring, rotated)?;
    cluster.works(&["luksUUID", &name]).map(drop)
}
