//! Actions on images: headers, names that are wrong, resizing, snapshots, extents, and the guide.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use inlock_tests::nbd::command;
use inlock_tests::process::{inlock_path, lossy, output, program, root, text};
use inlock_tests::random::Random;
use inlock_tests::report::{count, skipped};

use crate::support::{Cluster, MIB, cluster, connect, device, unique};

#[test]
fn header_actions_work_on_an_image() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let image = cluster.image(32)?;
    let (name, key) = (device(&image), cluster.key.to_str().context("a text")?);
    cluster.fails(&["isLuks", &name], 1, "")?;
    cluster.fails(&["luksDump", &name], 1, "is not a valid LUKS device")?;
    cluster.format(&name, &["--label=first"])?;
    cluster.works(&["isLuks", &name])?;
    let other = cluster.own.path().join("other");
    std::fs::write(&other, "another")?;
    let other = other.to_str().context("a text")?;
    let cheap = ["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"];
    cluster.works(&[&["luksAddKey", "-q", "-d", key][..], &cheap, &[&name, other]].concat())?;
    let backup = cluster.own.path().join("backup");
    let backup = backup.to_str().context("a text")?;
    cluster.works(&["luksHeaderBackup", &name, "--header-backup-file", backup])?;
    cluster.works(&["config", &name, "--label", "second"])?;
    cluster.works(&["luksKillSlot", "-q", &name, "0", "-d", other])?;
    cluster.fails(&["open", "--test-passphrase", &name, "-d", key], 2, "No key available")?;

    // cryptsetup reads the same from a copy of the image.
    let copy = cluster.own.path().join("copy.img");
    let copy = copy.to_str().context("a text")?;
    cluster.rbd(&["export", "--no-progress", &format!("rbd/{image}"), copy])?;
    let theirs = text(program("cryptsetup").args(["luksDump", copy]))?;
    let ours = cluster.works(&["luksDump", &name])?;
    ensure!(ours == theirs, "{ours}\n{theirs}");
    text(program("cryptsetup").args(["open", "--test-passphrase", copy, "-d", other]))?;

    cluster.works(&["luksHeaderRestore", "-q", &name, "--header-backup-file", backup])?;
    cluster.works(&["open", "--test-passphrase", &name, "-d", key])?;
    ensure!(cluster.works(&["luksDump", &name])?.contains("first"), "the label is not restored");
    Ok(())
}

#[test]
fn import_and_export_copy_through_an_image() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let image = cluster.volume(40, &[])?;
    let (from, key) = (cluster.own.path().join("from"), cluster.key.to_str().context("a text")?);
    let data = Random::new(3).bytes(24 << 20);
    std::fs::write(&from, &data)?;
    cluster.works(&["import", "-q", from.to_str().context("a text")?, &device(&image), "-d", key])?;
    ensure!(cluster.export(&device(&image))? == data, "export gives other bytes");
    Ok(())
}

#[test]
fn client_limited_to_a_namespace_uses_its_images() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let space = unique("space");
    cluster.rbd(&["namespace", "create", &format!("rbd/{space}")])?;
    cluster.rbd(&["create", "--size=32M", &format!("rbd/{space}/image")])?;
    let user = unique("tenant");
    let own = format!("profile rbd pool=rbd namespace={space}");
    let words = ["auth", "get-or-create", &format!("client.{user}"), "mon", "profile rbd", "osd", &own];
    let keyring = cluster.own.path().join("tenant.keyring");
    std::fs::write(&keyring, cluster.ceph(&words)?)?;
    let name = format!("rbd:rbd/{space}/image:id={user}:keyring={}", keyring.display());
    cluster.format(&name, &[])?;
    let server = cluster.serve(&name, &[])?;
    let mut connection = connect(&server)?;
    connection.write(0, &[8; 4096])?;
    connection.flush()?;
    drop((connection, server));
    ensure!(cluster.export(&name)?[..4096] == [8; 4096], "a write is lost");
    // Not those of others.
    let other = format!("rbd:rbd/{}:id={user}:keyring={}", cluster.image(20)?, keyring.display());
    cluster.fails(&["luksUUID", &other], 4, &format!("client.{user} may not open the image"))
}

/// Returns the status and the message of an action with a short limit of time.
fn opened(cluster: &Cluster, name: &str) -> Result<(Option<i32>, String)> {
    let ended = cluster.inlock(&["--connect-timeout=20", "luksUUID", name])?;
    Ok((ended.status.code(), lossy(&ended.stderr)))
}

#[test]
fn image_that_cannot_be_opened_has_status_4_and_its_reason() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let image = cluster.volume(20, &[])?;
    let keyring = |user: &str, key: &str| -> Result<String> {
        let path = cluster.own.path().join(format!("{user}.keyring"));
        std::fs::write(&path, format!("[client.{user}]\nkey = {key}\n"))?;
        Ok(path.to_str().context("a text")?.to_owned())
    };
    // A key that the cluster does not have for this client, and a client that may do nothing in the pool.
    let wrong = keyring("stranger", cluster.generate_key()?.trim())?;
    let weak = unique("weak");
    let caps =
        ["auth", "get-or-create-key", &format!("client.{weak}"), "mon", "allow r", "osd", "allow rwx pool=other"];
    let weak_keyring = keyring(&weak, cluster.ceph(&caps)?.trim())?;
    let cases = [
        ("rbd:nowhere/x".to_owned(), "the cluster has no pool 'nowhere'"),
        ("rbd:rbd/nothing".to_owned(), "the pool has no image 'nothing'"),
        (format!("rbd:rbd/nospace/{image}"), "the pool has no namespace 'nospace'"),
        (format!("rbd:rbd/{image}@nosnap"), "the image has no snapshot 'nosnap'"),
        (format!("rbd:rbd/{image}:conf=/no/file"), "cannot read the Ceph configuration /no/file"),
        (format!("rbd:rbd/{image}:no_such_option=1"), "option no_such_option is refused by Ceph"),
        (format!("rbd:rbd/{image}:id=stranger"), "no keyring with a key for client.stranger"),
        (format!("rbd:rbd/{image}:id=stranger:keyring={wrong}"), "the cluster refuses the key of client.stranger"),
        (format!("rbd:rbd/{image}:id={weak}:keyring={weak_keyring}"), "may not open the image"),
        (format!("rbd:rbd/{image}:conf=none"), "the Ceph configuration names no monitors"),
    ];
    for (name, message) in &cases {
        let (status, said) = opened(&cluster, name)?;
        ensure!(status == Some(4), "{name}: {status:?} {said}");
        ensure!(said.contains(message) && said.contains("hint: "), "{name}: {said}");
    }
    // Nothing listens there.
    let lost = format!("rbd:rbd/{image}:conf=none:mon_host=127.0.0.1\\:1");
    cluster.fails(&["--connect-timeout=2", "luksUUID", &lost], 4, "no answer from the cluster within 2 s")?;
    cluster.fails(&["luksUUID", "rbd:rbd"], 1, "write rbd:POOL")?;
    ensure!(opened(&cluster, &device(&image))?.0 == Some(0), "the image itself does not open");
    count("ceph_opening_failures", cases.len() + 2);
    Ok(())
}

#[test]
fn missing_library_has_status_4_and_names_the_package() -> Result<()> {
    if cluster()?.is_none() {
        return Ok(());
    }
    // A loader that finds no library of Ceph: an empty file hides it in a mount namespace.
    let script = r#"for name in librbd.so.1 librados.so.2; do
            path=$(ldconfig -p | awk -v name="$name" '$1 == name { print $NF; exit }')
            mount --bind /dev/null "$path" || exit 99
        done
        exec "$0" luksUUID rbd:rbd/x"#;
    let ended = output(program("unshare").args(["-m", "bash", "-c", script]).arg(inlock_path()?))?;
    if ended.status.code() == Some(99) || lossy(&ended.stderr).contains("unshare") {
        skipped("no mount namespace can be made here");
        return Ok(());
    }
    let said = lossy(&ended.stderr);
    ensure!(ended.status.code() == Some(4) && said.contains("apt-get install librbd1"), "{} {said}", ended.status);
    Ok(())
}

#[test]
fn images_with_journals_and_encrypted_clones_are_refused() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let image = unique("journal");
    let features = "--image-feature=exclusive-lock,journaling";
    cluster.rbd(&["create", "--size=32M", features, &format!("rbd/{image}")])?;
    let key = cluster.key.to_str().context("a text")?;
    cluster.fails(&["luksFormat", "-q", &device(&image), key], 1, "has the feature journaling")?;

    let image = cluster.image(32)?;
    cluster.librbd(&["write", &image, "raw", "", "0+4"], b"RBDL")?;
    cluster.fails(&["luksDump", &device(&image)], 1, "is not a valid LUKS device")?;
    let mut clone = b"RBDL\xba\xbe\0\x02".to_vec();
    clone.resize(MIB as usize, 0);
    let file = cluster.own.path().join("clone.img");
    std::fs::write(&file, &clone)?;
    let image = unique("clone");
    let file = file.to_str().context("a text")?;
    cluster.rbd(&["import", "--no-progress", file, &format!("rbd/{image}")])?;
    cluster.fails(&["luksDump", &device(&image)], 1, "is a clone that librbd has encrypted by itself")?;
    Ok(())
}

#[test]
fn snapshot_of_a_served_volume_keeps_its_bytes() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let image = cluster.volume(32, &[])?;
    let server = cluster.serve(&device(&image), &[])?;
    let mut connection = connect(&server)?;
    let old = Random::new(5).bytes(MIB as usize);
    connection.write(0, &old)?;
    connection.flush()?;
    cluster.rbd(&["snap", "create", "--no-progress", &format!("rbd/{image}@before")])?;
    connection.write(0, &vec![7; MIB as usize])?;
    connection.flush()?;
    let snapshot = format!("{}@before", device(&image));
    ensure!(cluster.export(&snapshot)?.starts_with(&old), "the snapshot has other bytes");
    ensure!(connection.read(0, 4096)? == [7; 4096], "the volume has other bytes");
    let key = cluster.key.to_str().context("a text")?;
    cluster.fails(&["luksFormat", "-q", &snapshot, key], 1, "Cannot write to device")?;
    // A snapshot can be served while the image is.
    let reader = cluster.serve(&snapshot, &["--read-only"])?;
    ensure!(connect(&reader)?.read(0, 4096)? == old[..4096], "the served snapshot has other bytes");
    Ok(())
}

#[test]
fn volume_grows_with_its_image_while_it_is_served() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let image = cluster.volume(32, &[])?;
    let name = unique("grows");
    let server = cluster.serve(&device(&image), &["--name", &name])?;
    ensure!(connect(&server)?.size == 16 * MIB, "the volume has another length");
    cluster.rbd(&["resize", "--no-progress", "--size=48M", &format!("rbd/{image}")])?;
    // The store looks once a second.
    while !server.log_text().contains("the image was resized from 33554432 to 50331648 bytes") {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    cluster.works(&["resize", &name])?;
    let mut connection = connect(&server)?;
    ensure!(connection.size == 32 * MIB, "the volume has not grown: {}", connection.size);
    connection.write(31 * MIB, &[9; 4096])?;
    connection.flush()?;
    drop((connection, server));
    ensure!(cluster.export(&device(&image))?[31 << 20..][..4096] == [9; 4096], "a write is lost");
    Ok(())
}

#[test]
fn extents_of_an_image_are_seen_by_clients() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let image = cluster.volume(48, &[])?;
    let server = cluster.serve(&device(&image), &["--allow-discards"])?;
    let mut connection = connect(&server)?;
    connection.write(8 * MIB, &vec![1; 4 << 20])?;
    connection.flush()?;
    let map = text(program("nbdinfo").args(["--map", &server.uri()]))?;
    let lines: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().take(3).collect()).collect();
    let mib = |n: u64| (n * MIB).to_string();
    let expected = [[mib(0), mib(8), "1".into()], [mib(8), mib(4), "0".into()], [mib(12), mib(20), "1".into()]];
    ensure!(lines == expected, "{map}");
    // A discard of whole objects makes them holes again.
    let reply = connection.call(0, command::TRIM, 8 * MIB, 4 * MIB, &[])?;
    ensure!(reply.error == 0, "the discard fails with {}", reply.error);
    connection.flush()?;
    let map = text(program("nbdinfo").args(["--map", &server.uri()]))?;
    ensure!(map.lines().count() == 1 && map.contains("hole"), "{map}");
    Ok(())
}

/// The commands of the guide, as they stand there.
#[test]
fn commands_of_the_chapter_on_ceph_succeed() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    if !Path::new("/dev/loop-control").exists() || !Path::new("/dev/fuse").exists() {
        skipped("no loop device can be made here");
        return Ok(());
    }
    let chapter = std::fs::read_to_string(root().join("docs/guide/ceph.md"))?;
    let block = chapter.split("```sh skip: a Ceph cluster\n").nth(1).and_then(|rest| rest.split("\n```").next());
    let block = block.context("the chapter has no such block")?;
    ensure!(block.lines().count() == 10, "the chapter promises ten commands: {block}");
    std::fs::create_dir(cluster.own.path().join("mnt"))?;
    let mount = cluster.own.path().join("mnt");
    let script = block.replace("/tmp/ceph", cluster.dir().to_str().context("a text")?);
    let script = script.replace("/mnt", mount.to_str().context("a text")?);
    // Packages are there; keys are cheap.
    let prologue = r#"set -euo pipefail
        PATH=$PATH:/usr/sbin:/sbin
        apt-get() { :; }
        inlock() {
            local more=()
            [ "$1" != luksFormat ] || more=(--pbkdf-force-iterations 4 --pbkdf-memory 32 --pbkdf-parallel 1)
            "$INLOCK" "$@" "${more[@]}" <<< secret
        }
        trap 'umount "$MOUNT" 2> /dev/null; "$INLOCK" close disk 2> /dev/null; true' ERR
        "#;
    let mut bash = program("bash");
    bash.args(["-c", &format!("{prologue}\n{script}\n")]).current_dir(root()).env("MOUNT", &mount);
    bash.env("INLOCK", inlock_path()?).env("INLOCK_RUN_DIR", cluster.own.path().join("run"));
    text(&mut bash)?;
    let dump = cluster.works(&["luksDump", "rbd:rbd/disk"])?;
    ensure!(dump.contains("LUKS header information"), "{dump}");
    cluster.rbd(&["rm", "--no-progress", "rbd/disk"]).map(drop)
}
