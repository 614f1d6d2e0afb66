//! The cluster, its images, and volumes that are served from them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use inlock_tests::image::{CHEAP_PBKDF2, key_file};
use inlock_tests::nbd::{Connection, Mode};
use inlock_tests::process::{PYTHON, bare, inlock_path, lossy, output, program, root, text, text_with_input};
use inlock_tests::report::skipped;
use inlock_tests::server::Server;

pub(crate) const PASSPHRASE: &str = "a distributed secret";
pub(crate) const MIB: u64 = 1 << 20;
/// Longest wait for a reply. It only tells a hang from a reply.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// Held exclusively by a test that disturbs the whole cluster.
static IN_USE: RwLock<()> = RwLock::new(());

/// The running cluster.
pub(crate) struct Cluster {
    dir: PathBuf,
    /// `tests/ceph/newest.sh`, if the cluster is one of the newest Ceph.
    newest: Option<OsString>,
    /// Of this test alone.
    pub(crate) own: tempfile::TempDir,
    pub(crate) key: PathBuf,
    _use: Use,
}

/// Use of the cluster with other tests, or alone.
#[expect(dead_code, reason = "held until dropped")]
enum Use {
    /// Also while it is disturbed.
    Any,
    Shared(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

/// Returns the cluster. `None`, with a report of a skip: there is none.
pub(crate) fn cluster() -> Result<Option<Cluster>> {
    find(|| Use::Shared(IN_USE.read().unwrap_or_else(PoisonError::into_inner)))
}

/// Returns the cluster, as [`cluster`] does, if it is one of the newest Ceph.
pub(crate) fn cluster_newest() -> Result<Option<Cluster>> {
    if std::env::var_os("INLOCK_NEWEST_CEPH").is_none() {
        skipped("the newest Ceph is only for tests/ceph/newest.sh");
        return Ok(None);
    }
    cluster()
}

/// Returns the cluster for a test that others may disturb, as [`cluster`] does.
pub(crate) fn cluster_disturbed() -> Result<Option<Cluster>> {
    find(|| Use::Any)
}

/// Returns the cluster for a test that disturbs it, as [`cluster`] does.
pub(crate) fn cluster_alone() -> Result<Option<Cluster>> {
    find(|| Use::Alone(IN_USE.write().unwrap_or_else(PoisonError::into_inner)))
}

fn find(take: impl FnOnce() -> Use) -> Result<Option<Cluster>> {
    let Some(dir) = std::env::var_os("INLOCK_CEPH_DIR") else {
        skipped("no Ceph cluster runs here");
        return Ok(None);
    };
    let own = tempfile::tempdir()?;
    let key = key_file(own.path(), "key", PASSPHRASE.as_bytes())?;
    let newest = std::env::var_os("INLOCK_NEWEST_CEPH");
    Ok(Some(Cluster { dir: dir.into(), newest, own, key, _use: take() }))
}

/// Returns a name that no other test uses.
pub(crate) fn unique(what: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("{what}-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

impl Cluster {
    fn of_cluster<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("CEPH_CONF", self.conf()).env("INLOCK_RUN_DIR", self.own.path().join("run"))
    }

    pub(crate) fn conf(&self) -> PathBuf {
        self.dir.join("ceph.conf")
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns a program of the cluster's release.
    fn program(&self, name: &str) -> Command {
        let mut command = program(self.newest.as_deref().unwrap_or(name.as_ref()));
        if self.newest.is_some() {
            command.args(["run", name]);
        }
        self.of_cluster(&mut command);
        command
    }

    /// Runs a program of Ceph, and returns its output.
    pub(crate) fn run(&self, name: &str, words: &[&str]) -> Result<String> {
        text(self.program(name).args(words))
    }

    pub(crate) fn ceph(&self, words: &[&str]) -> Result<String> {
        self.run("ceph", words)
    }

    pub(crate) fn rbd(&self, words: &[&str]) -> Result<String> {
        self.run("rbd", words)
    }

    /// Returns a new key that no client has, and that every release of librados can read.
    pub(crate) fn generate_key(&self) -> Result<String> {
        let older: &[&str] = if self.newest.is_some() { &["--key-type", "aes"] } else { &[] };
        self.run("ceph-authtool", &[&["--gen-print-key"][..], older].concat())
    }

    /// Runs an action of `cluster.sh`.
    pub(crate) fn control(&self, action: &str) -> Result<()> {
        let script = root().join("tests/ceph/cluster.sh");
        let dir = self.dir.to_str().context("a text")?;
        self.run(script.to_str().context("a text")?, &[action, dir]).map(drop)
    }

    /// Sends a signal to the storage daemon.
    pub(crate) fn signal_osd(&self, signal: &str) -> Result<()> {
        let pid = std::fs::read_to_string(self.dir.join("run/osd.0.pid"))?;
        self.run("bash", &["-c", "kill -s $0 $1", signal, pid.trim()]).map(drop)
    }

    /// Runs an action of librbd's own encryption.
    pub(crate) fn librbd(&self, words: &[&str], input: &[u8]) -> Result<Vec<u8>> {
        let mut command = self.program(PYTHON);
        command.arg(root().join("tests/ceph/librbd.py")).args(words);
        if words[0] == "write" {
            return text_with_input(&mut command, input).map(String::into_bytes);
        }
        let ended = output(&mut command)?;
        ensure!(ended.status.success(), "{words:?}: {}", lossy(&ended.stderr));
        Ok(ended.stdout)
    }

    /// Makes an image, and returns its name without the pool.
    pub(crate) fn image(&self, mib: u64) -> Result<String> {
        let name = unique("image");
        self.rbd(&["create", "--size", &format!("{mib}M"), &format!("rbd/{name}")])?;
        Ok(name)
    }

    /// Makes an image with a volume on it.
    pub(crate) fn volume(&self, mib: u64, more: &[&str]) -> Result<String> {
        let name = self.image(mib)?;
        self.format(&device(&name), more)?;
        Ok(name)
    }

    pub(crate) fn format(&self, device: &str, more: &[&str]) -> Result<()> {
        let key = self.key.to_str().context("a text")?;
        self.works(&[&["luksFormat", "-q"][..], &CHEAP_PBKDF2, more, &[device, key]].concat()).map(drop)
    }

    /// Runs Inlock.
    pub(crate) fn inlock(&self, words: &[&str]) -> Result<Output> {
        output(self.of_cluster(program(inlock_path()?).args(words)))
    }

    /// Runs an action of Inlock that succeeds, and returns its output.
    pub(crate) fn works(&self, words: &[&str]) -> Result<String> {
        text(self.of_cluster(program(inlock_path()?).args(words)))
    }

    /// Runs an action of Inlock that fails with this status and text.
    pub(crate) fn fails(&self, words: &[&str], status: i32, message: &str) -> Result<()> {
        let ended = self.inlock(words)?;
        let said = lossy(&ended.stderr);
        ensure!(ended.status.code() == Some(status), "{words:?} ends with {}: {said}", ended.status);
        ensure!(said.contains(message), "{words:?} says {said}, not {message}");
        Ok(())
    }

    /// Serves a volume.
    pub(crate) fn serve(&self, device: &str, more: &[&str]) -> Result<Server> {
        let key = self.key.to_str().context("a text")?;
        self.serve_with(device, &[more, &["--key-file", key]].concat())
    }

    /// Serves a volume with the key that the options name.
    pub(crate) fn serve_with(&self, device: &str, options: &[&str]) -> Result<Server> {
        let socket = self.own.path().join(unique("socket"));
        let mut command = bare(inlock_path()?);
        command.args(["serve", device, "--nbd", &format!("unix:{}", socket.display())]).args(options);
        // A cluster whose daemon was killed may take longer than the default.
        command.args(["--connect-timeout", "60"]);
        Server::start(
            {
                self.of_cluster(&mut command);
                command
            },
            socket,
        )
    }

    /// Decrypts a volume, and returns its bytes.
    pub(crate) fn export(&self, device: &str) -> Result<Vec<u8>> {
        let file = self.own.path().join(unique("export"));
        let key = self.key.to_str().context("a text")?;
        // A cluster whose daemon was killed may take longer than the default.
        let patience = ["--connect-timeout", "60"];
        self.works(&[&["export", "-q", device, file.to_str().context("a text")?, "-d", key][..], &patience].concat())?;
        Ok(std::fs::read(file)?)
    }
}

/// Returns the name of an image for Inlock.
pub(crate) fn device(image: &str) -> String {
    format!("rbd:rbd/{image}")
}

/// Connects to a served volume.
pub(crate) fn connect(server: &Server) -> Result<Connection> {
    Connection::open(server.socket(), PATIENCE, Mode::Simple)
}
