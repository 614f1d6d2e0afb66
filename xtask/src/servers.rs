//! The servers that are measured beside each other: Inlock encrypted and raw, nbdkit and QEMU over LUKS1.
//!
//! Each gets its own image of the same size on the same file system, made by cryptsetup with the same cipher, and its
//! own unix socket. A server ends when its value is dropped.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// What is measured, in the order of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    InlockLuks2,
    InlockRaw,
    NbdkitLuks1,
    QemuLuks1,
}

/// All kinds, in the order of the table's columns.
pub(crate) const KINDS: [Kind; 4] = [Kind::InlockLuks2, Kind::InlockRaw, Kind::NbdkitLuks1, Kind::QemuLuks1];

impl Kind {
    /// The column's head.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::InlockLuks2 => "Inlock LUKS2",
            Self::InlockRaw => "Inlock raw",
            Self::NbdkitLuks1 => "nbdkit luks",
            Self::QemuLuks1 => "qemu-nbd luks",
        }
    }

    fn file_stem(self) -> &'static str {
        match self {
            Self::InlockLuks2 => "inlock-luks2",
            Self::InlockRaw => "inlock-raw",
            Self::NbdkitLuks1 => "nbdkit-luks1",
            Self::QemuLuks1 => "qemu-luks1",
        }
    }
}

/// A running server.
pub(crate) struct Server {
    pub kind: Kind,
    pub socket: PathBuf,
    /// How it was started, for the record, with the folder's name left out.
    pub command_line: String,
    child: Child,
}

impl Server {
    /// Makes the image, starts the server and waits until it takes connections.
    pub(crate) fn start(kind: Kind, inlock: &Path, dir: &Path, size_mib: u64) -> Result<Self> {
        let image = dir.join(format!("{}.img", kind.file_stem()));
        let socket = dir.join(format!("{}.sock", kind.file_stem()));
        let key = dir.join("passphrase");
        fs::write(&key, "correct horse battery staple")?;
        make_image(kind, &image, &key, size_mib)?;
        let mut command = command(kind, inlock, &image, &socket, &key);
        let log = File::create(dir.join(format!("{}.log", kind.file_stem())))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let command_line = shown(&command, dir);
        let child = command.spawn().with_context(|| format!("cannot start {}", kind.name()))?;
        let mut server = Self { kind, socket, command_line, child };
        server.wait_until_ready(dir)?;
        Ok(server)
    }

    fn wait_until_ready(&mut self, dir: &Path) -> Result<()> {
        let patience = Instant::now() + Duration::from_secs(60);
        while UnixStream::connect(&self.socket).is_err() {
            let ended = self.child.try_wait()?;
            if ended.is_some() || Instant::now() > patience {
                let log = fs::read_to_string(dir.join(format!("{}.log", self.kind.file_stem()))).unwrap_or_default();
                bail!("{} does not serve ({ended:?}): {log}", self.kind.name());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing to do about a server that is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn make_image(kind: Kind, image: &Path, key: &Path, size_mib: u64) -> Result<()> {
    let header_mib = match kind {
        Kind::InlockLuks2 => 16,
        Kind::InlockRaw => 0,
        Kind::NbdkitLuks1 | Kind::QemuLuks1 => 2,
    };
    File::create(image)?.set_len((size_mib + header_mib) << 20)?;
    let mut format = Command::new("cryptsetup");
    format.args(["luksFormat", "-q", "--cipher=aes-xts-plain64", "--key-size=512", "--pbkdf-force-iterations=1000"]);
    match kind {
        Kind::InlockRaw => return Ok(()),
        Kind::InlockLuks2 => format.args(["--type=luks2", "--sector-size=4096", "--pbkdf=pbkdf2"]),
        Kind::NbdkitLuks1 | Kind::QemuLuks1 => format.arg("--type=luks1"),
    };
    let output = format.arg("--key-file").arg(key).arg(image).output().context("cannot run cryptsetup")?;
    if !output.status.success() {
        bail!("cryptsetup luksFormat failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

fn command(kind: Kind, inlock: &Path, image: &Path, socket: &Path, key: &Path) -> Command {
    let (image, socket, key) = (image.display(), socket.display(), key.display());
    let (program, args) = match kind {
        Kind::InlockLuks2 => (inlock.to_path_buf(), format!("serve {image} --key-file {key} --nbd unix:{socket}")),
        Kind::InlockRaw => (inlock.to_path_buf(), format!("serve --type raw {image} --nbd unix:{socket}")),
        Kind::NbdkitLuks1 => ("nbdkit".into(), format!("-f -U {socket} file {image} --filter=luks passphrase=+{key}")),
        Kind::QemuLuks1 => (
            "qemu-nbd".into(),
            format!(
                "--object secret,id=s,file={key} \
                 --image-opts driver=luks,key-secret=s,file.filename={image} -k {socket} -t -e 8"
            ),
        ),
    };
    let mut command = Command::new(program);
    command.args(args.split_whitespace());
    command
}

fn shown(command: &Command, dir: &Path) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let words = command.get_args().map(|a| a.to_string_lossy().into_owned());
    let line = std::iter::once(program).chain(words).collect::<Vec<_>>().join(" ");
    line.replace(&format!("{}/", dir.display()), "")
}
