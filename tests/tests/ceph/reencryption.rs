//! Re-encryption of volumes on images, which librbd reads before and afterwards.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use inlock_tests::nbd::Connection;
use inlock_tests::process::lossy;
use inlock_tests::random::Random;
use inlock_tests::server::Server;
use serde_json::Value;

use crate::support::{Cluster, MIB, PASSPHRASE, cluster, cluster_disturbed, connect, device};

/// Length of a volume on an image of 40 MiB, in bytes.
const LEN: usize = 24 * MIB as usize;

/// Options for key derivations that take no time.
const CHEAP: [&str; 2] = ["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"];

/// A volume on an image, and its data.
struct Volume<'a> {
    cluster: &'a Cluster,
    image: String,
    name: String,
    key: &'a str,
    model: Vec<u8>,
    random: Random,
}

impl<'a> Volume<'a> {
    fn new(cluster: &'a Cluster) -> Result<Self> {
        let image = cluster.volume(40, &["--type=luks2"])?;
        let mut random = Random::new(33);
        let (name, key) = (device(&image), cluster.key.to_str().context("a text")?);
        Ok(Self { cluster, image, name, key, model: random.bytes(LEN), random })
    }

    fn serve(&self) -> Result<(Server, Connection)> {
        let server = self.cluster.serve(&self.name, &["--name", "data"])?;
        let connection = connect(&server)?;
        Ok((server, connection))
    }

    /// Serves the volume after its server was killed, and the cluster has noticed.
    fn serve_again(&self) -> Result<(Server, Connection)> {
        loop {
            let words = ["config", "--connect-timeout=120", &self.name, "--label", "again"];
            let ended = self.cluster.inlock(&words)?;
            match ended.status.code() {
                // The header is in re-encryption, which is said after the image was opened.
                Some(0 | 1) => return self.serve(),
                Some(5) => std::thread::sleep(Duration::from_millis(500)),
                _ => bail!("{}: {}", ended.status, lossy(&ended.stderr)),
            }
        }
    }

    fn fill(&self, connection: &mut Connection) -> Result<()> {
        for (number, piece) in self.model.chunks(MIB as usize).enumerate() {
            connection.write(number as u64 * MIB, piece)?;
        }
        connection.flush()
    }

    /// Writes a block anywhere, and reads another one.
    fn exercise(&mut self, connection: &mut Connection) -> Result<()> {
        let at = |random: &mut Random| random.below((LEN / 4096) as u64) as usize * 4096;
        let (written, read, block) = (at(&mut self.random), at(&mut self.random), self.random.bytes(4096));
        connection.write(written as u64, &block)?;
        self.model[written..written + 4096].copy_from_slice(&block);
        let found = connection.read(read as u64, 4096)?;
        ensure!(found == self.model[read..read + 4096], "the block at {read} has other bytes");
        Ok(())
    }

    fn check(&self, when: &str) -> Result<()> {
        let words = ["read", &self.image, "luks2", PASSPHRASE, "0", &LEN.to_string()];
        ensure!(self.cluster.librbd(&words, b"")? == self.model, "{when}: librbd reads something else");
        ensure!(self.cluster.export(&self.name)? == self.model, "{when}: Inlock reads something else");
        Ok(())
    }

    fn reencrypt(&self, words: &[&str]) -> Result<String> {
        self.cluster.works(&[&["reencrypt", "data"], words].concat())
    }

    fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.reencrypt(&["--status", "--json"])?)?)
    }
}

#[test]
fn volume_on_an_image_is_re_encrypted() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let volume = Volume::new(&cluster)?;
    let (mut server, mut connection) = volume.serve()?;
    volume.fill(&mut connection)?;
    connection.disconnect()?;
    ensure!(server.terminate()?.success(), "the server failed: {}", server.log_text());
    volume.check("before")?;
    let words = ["reencrypt", "-q", &volume.name, "-d", volume.key, "--hotzone-size", "4M"];
    cluster.works(&[&words[..], &CHEAP].concat())?;
    volume.check("afterwards")
}

#[test]
fn volume_on_an_image_is_re_encrypted_while_it_is_served_and_goes_on_after_a_kill() -> Result<()> {
    let Some(cluster) = cluster_disturbed()? else { return Ok(()) };
    let mut volume = Volume::new(&cluster)?;
    let (mut server, mut connection) = volume.serve()?;
    volume.fill(&mut connection)?;
    let zones = ["--hotzone-size", "1M"];
    volume.reencrypt(&[&["--start", "-d", volume.key, "--rate", "4M"][..], &zones, &CHEAP].concat())?;
    while volume.status()?["done_bytes"].as_u64().context("a number")? < 8 * MIB {
        volume.exercise(&mut connection)?;
    }
    connection.flush()?;
    server.signal("KILL")?;
    server.wait()?;
    drop(connection);

    let (mut server, mut connection) = volume.serve_again()?;
    let status = volume.status()?;
    ensure!(status["state"] == "interrupted" && status["done_bytes"].as_u64() >= Some(8 * MIB), "{status}");
    volume.exercise(&mut connection)?;
    volume.reencrypt(&[&["--resume", "-d", volume.key][..], &zones].concat())?;
    loop {
        let state = volume.status()?["state"].clone();
        match state.as_str() {
            Some("running") => volume.exercise(&mut connection)?,
            Some("finished") => break,
            _ => bail!("{state}: {}", server.log_text()),
        }
    }
    volume.exercise(&mut connection)?;
    connection.disconnect()?;
    ensure!(server.terminate()?.success(), "the server failed: {}", server.log_text());
    volume.check("afterwards")
}
