//! The servers that `bench compare` puts beside each other.
//!
//! Each has an image of the same payload on the same file system, and its own unix socket. The LUKS images are made by
//! Inlock, with the same cipher and key length for all. A server ends when its value is dropped.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::{environment, wire};

/// What is measured, in the order of the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    InlockLuks2,
    InlockRaw,
    NbdkitFile,
    QemuRaw,
    NbdkitLuks,
    QemuLuks,
    /// Answers without touching data: what the client can do.
    Nothing,
}

impl Kind {
    pub(crate) const ALL: [Self; 7] = [
        Self::InlockLuks2,
        Self::InlockRaw,
        Self::NbdkitFile,
        Self::QemuRaw,
        Self::NbdkitLuks,
        Self::QemuLuks,
        Self::Nothing,
    ];

    /// What it is called in tables and plots.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::InlockLuks2 => "Inlock LUKS2",
            Self::InlockRaw => "Inlock raw",
            Self::NbdkitFile => "nbdkit file",
            Self::QemuRaw => "qemu-nbd raw",
            Self::NbdkitLuks => "nbdkit luks",
            Self::QemuLuks => "qemu-nbd luks",
            Self::Nothing => "does nothing",
        }
    }

    /// The program that has to be installed.
    fn program(self) -> Option<&'static str> {
        match self {
            Self::NbdkitFile | Self::NbdkitLuks => Some("nbdkit"),
            Self::QemuRaw | Self::QemuLuks => Some("qemu-nbd"),
            Self::InlockLuks2 | Self::InlockRaw | Self::Nothing => None,
        }
    }

    fn stem(self) -> String {
        self.name().replace(' ', "-").to_lowercase()
    }

    fn luks(self) -> Option<&'static str> {
        match self {
            Self::InlockLuks2 => Some("luks2"),
            Self::NbdkitLuks | Self::QemuLuks => Some("luks1"),
            _ => None,
        }
    }
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    pub kind: Kind,
    pub socket: PathBuf,
    /// How it was started, without the folder's name.
    pub command_line: String,
    /// `None`: it lives in this process.
    child: Option<Child>,
}

impl Server {
    /// Makes the image, starts the server and waits until it takes connections. `None`: it is not installed.
    pub(crate) fn start(kind: Kind, dir: &Path, payload: u64) -> anyhow::Result<Option<Self>> {
        if kind.program().is_some_and(|program| environment::version(program).is_none()) {
            return Ok(None);
        }
        let socket = dir.join(format!("{}.sock", kind.stem()));
        if kind == Kind::Nothing {
            wire::serve_nothing(&socket, payload).context("cannot start the server that does nothing")?;
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

    fn wait_until_ready(&mut self, log: &Path) -> anyhow::Result<()> {
        let patience = Instant::now() + Duration::from_secs(60);
        while UnixStream::connect(&self.socket).is_err() {
            let ended = self.child.as_mut().map(Child::try_wait).transpose()?.flatten();
            if ended.is_some() || Instant::now() > patience {
                let log = fs::read_to_string(log).unwrap_or_default();
                bail!("{} does not serve: {}", self.kind.name(), log.trim());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Seconds of processor time it took so far, user and system. `None` where it cannot be told from this process's.
    pub(crate) fn cpu_seconds(&self) -> Option<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.as_ref()?.id())).ok()?;
        cpu_ticks(&stat).map(|ticks| ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}

/// Fields 14 and 15 of /proc/PID/stat; the name before them may hold spaces.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, behind) = stat.rsplit_once(')')?;
    let mut fields = behind.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Nothing to do about a server that is gone already.
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
        bail!("cannot make a volume for {}: {}", kind.name(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn command(kind: Kind, image: &Path, socket: &Path, key: &Path) -> anyhow::Result<Command> {
    let (image, socket, key) = (image.display(), socket.display(), key.display());
    let (program, args) = match kind {
        Kind::InlockLuks2 => (inlock()?, format!("serve {image} --key-file {key} --nbd unix:{socket}")),
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
        Kind::Nothing => bail!("the server that does nothing has no command"),
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
    fn processor_time_is_read_behind_the_name() {
        let stat = "1234 (a (odd) name) S 1 2 3 4 5 6 7 8 9 10 150 25 0 0 20 0 3 0 1 2 3";
        assert_eq!(cpu_ticks(stat), Some(175));
        assert_eq!(cpu_ticks("nonsense"), None);
    }
}
