//! The servers of `bench compare`.
//!
//! Each has an image of the same length on the same file system, and its own unix socket. Inlock creates the LUKS
//! images, all with the same cipher and key length. Dropping a server ends it.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::placement::{Cpus, Placement, threads};
use crate::{environment, wire};

/// The servers, in the order of the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    InlockLuks2,
    /// With `--busy-poll 0`.
    InlockNoPoll,
    InlockRaw,
    NbdkitFile,
    QemuRaw,
    NbdkitLuks,
    QemuLuks,
    /// Answers without touching data: the most that the client can do.
    Null,
}

impl Kind {
    pub(crate) const ALL: [Self; 8] = [
        Self::InlockLuks2,
        Self::InlockNoPoll,
        Self::InlockRaw,
        Self::NbdkitFile,
        Self::QemuRaw,
        Self::NbdkitLuks,
        Self::QemuLuks,
        Self::Null,
    ];

    /// Returns the name in tables and plots.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::InlockLuks2 => "Inlock LUKS2",
            Self::InlockNoPoll => "Inlock no-poll",
            Self::InlockRaw => "Inlock raw",
            Self::NbdkitFile => "nbdkit file",
            Self::QemuRaw => "qemu-nbd raw",
            Self::NbdkitLuks => "nbdkit luks",
            Self::QemuLuks => "qemu-nbd luks",
            Self::Null => "null server",
        }
    }

    /// Program that has to be installed.
    fn program(self) -> Option<&'static str> {
        match self {
            Self::NbdkitFile | Self::NbdkitLuks => Some("nbdkit"),
            Self::QemuRaw | Self::QemuLuks => Some("qemu-nbd"),
            Self::InlockLuks2 | Self::InlockNoPoll | Self::InlockRaw | Self::Null => None,
        }
    }

    fn stem(self) -> String {
        self.name().replace(' ', "-").to_lowercase()
    }

    fn luks(self) -> Option<&'static str> {
        match self {
            Self::InlockLuks2 | Self::InlockNoPoll => Some("luks2"),
            Self::NbdkitLuks | Self::QemuLuks => Some("luks1"),
            _ => None,
        }
    }
}

/// Time for a server to accept its first connection.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    pub kind: Kind,
    pub socket: PathBuf,
    /// Command line, without the name of the directory.
    pub command_line: String,
    /// `None`: a thread of this process.
    child: Option<Child>,
}

impl Server {
    /// Creates the image, starts the server and waits until it accepts connections. `None`: it is not installed.
    pub(crate) fn start(kind: Kind, dir: &Path, payload: u64) -> anyhow::Result<Option<Self>> {
        if kind.program().is_some_and(|program| environment::version(program).is_none()) {
            return Ok(None);
        }
        let socket = dir.join(format!("{}.sock", kind.stem()));
        if kind == Kind::Null {
            wire::serve_null(&socket, payload).context("cannot start the null server")?;
            return Ok(Some(Self { kind, socket, command_line: "(in this process)".to_owned(), child: None }));
        }
        let image = dir.join(format!("{}.img", kind.stem()));
        let key = dir.join("passphrase");
        fs::write(&key, "correct horse battery staple")?;
        make_image(kind, &image, &key, payload)?;
        let mut command = command(kind, &image, &socket, &key)?;
        let log = dir.join(format!("{}.log", kind.stem()));
        let file = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let command_line = shown(&command, dir);
        let child = command.spawn().with_context(|| format!("cannot start {}", kind.name()))?;
        let mut server = Self { kind, socket, command_line, child: Some(child) };
        server.wait_until_ready(&log)?;
        Ok(Some(server))
    }

    /// Places the server's threads.
    pub(crate) fn place(&self, cpus: &Cpus, placement: Placement) -> anyhow::Result<()> {
        let found = match &self.child {
            Some(child) => threads(&child.id().to_string(), |_| true),
            None => threads("self", |name| name == wire::NULL_SERVER),
        };
        cpus.place_server(placement, &found)
    }

    fn wait_until_ready(&mut self, log: &Path) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while UnixStream::connect(&self.socket).is_err() {
            let ended = self.child.as_mut().map(Child::try_wait).transpose()?.flatten();
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(log).unwrap_or_default();
                bail!("{} does not serve: {}", self.kind.name(), log.trim());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Returns the CPU time so far in seconds, user and system. `None` for a server in this process.
    pub(crate) fn cpu_seconds(&self) -> Option<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.as_ref()?.id())).ok()?;
        cpu_ticks(&stat).map(|ticks| ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}

/// Sum of fields 14 and 15 of /proc/PID/stat. The name before them may contain spaces.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Fails if the server has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn inlock() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's own file")
}

fn make_image(kind: Kind, image: &Path, key: &Path, payload: u64) -> anyhow::Result<()> {
    let header = match kind.luks() {
        Some("luks2") => 16 << 20,
        Some(_) => 4 << 20,
        None => 0,
    };
    File::create(image)?.set_len(payload + header)?;
    let Some(version) = kind.luks() else { return Ok(()) };
    let mut format = Command::new(inlock()?);
    format.args(["luksFormat", "-q", "--cipher=aes-xts-plain64", "--key-size=512", "--pbkdf=pbkdf2"]);
    format.args(["--pbkdf-force-iterations=1000", "--type", version]);
    if version == "luks2" {
        format.arg("--sector-size=4096");
    }
    let output = format.arg("--key-file").arg(key).arg(image).stdin(Stdio::null()).output()?;
    if !output.status.success() {
        bail!("cannot create a volume for {}: {}", kind.name(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn command(kind: Kind, image: &Path, socket: &Path, key: &Path) -> anyhow::Result<Command> {
    let (image, socket, key) = (image.display(), socket.display(), key.display());
    let (program, args) = match kind {
        Kind::InlockLuks2 => (inlock()?, format!("serve {image} --key-file {key} --nbd unix:{socket}")),
        Kind::InlockNoPoll => (inlock()?, format!("serve {image} --key-file {key} --busy-poll 0 --nbd unix:{socket}")),
        Kind::InlockRaw => (inlock()?, format!("serve --type raw {image} --nbd unix:{socket}")),
        Kind::NbdkitFile => ("nbdkit".into(), format!("-f -U {socket} file {image}")),
        Kind::NbdkitLuks => ("nbdkit".into(), format!("-f -U {socket} file {image} --filter=luks passphrase=+{key}")),
        Kind::QemuRaw => ("qemu-nbd".into(), format!("-f raw {image} -k {socket} -t -e 8")),
        Kind::QemuLuks => (
            "qemu-nbd".into(),
            format!(
                "--object secret,id=s,file={key} \
                 --image-opts driver=luks,key-secret=s,file.filename={image} -k {socket} -t -e 8"
            ),
        ),
        Kind::Null => bail!("the null server has no command"),
    };
    let mut command = Command::new(program);
    command.args(args.split_whitespace());
    Ok(command)
}

fn shown(command: &Command, dir: &Path) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
    let line = std::iter::once(program).chain(words).collect::<Vec<_>>().join(" ");
    line.replace(&format!("{}/", dir.display()), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_ticks_of_a_name_with_spaces_are_found() {
        let stat = "1234 (a (odd) name) S 1 2 3 4 5 6 7 8 9 10 150 25 0 0 20 0 3 0 1 2 3";
        assert_eq!(cpu_ticks(stat), Some(175));
        assert_eq!(cpu_ticks("nonsense"), None);
    }
}
