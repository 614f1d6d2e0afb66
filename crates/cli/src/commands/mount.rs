//! `mount`: opens a volume in the background, and mounts its file system.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use super::close;
use super::open::{self, OpenArgs};
use crate::args::action::{
    ATTACH, Action, HOLES, KEY, PLAIN, POLICY, Prepared, REMOTE, SEALED, SOURCE, THREAD_FLAGS, TOKENS, UNLOCK, name_of,
};
use crate::args::options::Options;
use crate::background::RunMode;
use crate::error::{CliError, Status};
use crate::host::context;
use inlock_serve::attach::holders;
use inlock_serve::control::client::Client;

pub(crate) const ACTION: Action = Action {
    name: "mount",
    aliases: &[],
    arguments: &[SOURCE, "<directory>"],
    options: &[
        KEY,
        UNLOCK,
        REMOTE,
        TOKENS,
        PLAIN,
        POLICY,
        SEALED,
        HOLES,
        ATTACH,
        THREAD_FLAGS,
        &["table", "name", "mount-options"],
    ],
    about: "open a volume and mount its file system",
    prepare: |options, mut arguments| {
        let (image, dir) = (arguments.path()?, arguments.path()?);
        let args = mount_args(options, image, dir)?;
        Ok(Prepared::with_status(move || run(&args)))
    },
};

/// A volume to mount.
struct MountArgs {
    open: OpenArgs,
    dir: PathBuf,
    /// For mount(8).
    options: Option<String>,
}

fn mount_args(options: Options, image: PathBuf, dir: PathBuf) -> anyhow::Result<MountArgs> {
    let name = match &options.name {
        Some(name) => name.clone(),
        None => {
            // The last component of the path, without characters that a name cannot have.
            let last = image.file_name().unwrap_or_default().to_string_lossy();
            let plain = |c: char| if c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c) { c } else { '_' };
            name_of(last.chars().map(plain).collect::<String>().into())?
        }
    };
    Ok(MountArgs { open: OpenArgs::new(&options, image, name)?, dir, options: options.mount_options })
}

fn run(args: &MountArgs) -> anyhow::Result<u8> {
    if args.open.run_mode == RunMode::BackgroundChild {
        return open::run(&args.open);
    }
    let dir = args.dir.display();
    // Checked before a passphrase is asked for.
    if !rustix::process::geteuid().is_root() {
        let message = "Only root can mount a file system.".to_owned();
        let hint = "use `inlock open --via fuse`, which attaches the volume as a file without root".to_owned();
        return Err(CliError::Remote(message, Some(hint), Status::Permission).into());
    }
    if !args.dir.exists() {
        let (message, hint) = (format!("Directory {} does not exist.", dir), format!("mkdir {dir}"));
        return Err(CliError::Remote(message, Some(hint), Status::Wrong).into());
    }
    if !args.dir.is_dir() {
        return Err(CliError::refused(format!("{dir} is not a directory."), "name the directory to mount on"));
    }
    if let Some(source) = holders::source_mounted_on(&args.dir) {
        let message = format!("{} is already mounted on {dir}.", source.display());
        return Err(CliError::Remote(message, None, Status::Busy).into());
    }
    let code = open::run(&args.open)?;
    if code != 0 {
        return Ok(code);
    }
    let mounted = mount(args);
    if mounted.is_err() {
        let _ = close::run(&args.open.name, false);
    }
    mounted.map(|()| 0)
}

fn mount(args: &MountArgs) -> anyhow::Result<()> {
    let status = Client::of(context(), &args.open.name)?.status()?;
    let node = status.info.node.context("The volume has no device.")?;
    let mut command = Command::new("mount");
    let mut options: Vec<&str> = args.options.as_deref().into_iter().collect();
    if args.open.read_only {
        options.push("ro");
    }
    if !options.is_empty() {
        command.arg("-o").arg(options.join(","));
    }
    command.arg("--").arg(&node).arg(&args.dir);
    run_helper(command, "mount", &args.dir)
}

/// Runs a program that prints its own errors.
pub(super) fn run_helper(mut command: Command, name: &str, dir: &Path) -> anyhow::Result<()> {
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot run {name}"))?;
    if status.success() {
        return Ok(());
    }
    Err(anyhow::anyhow!("{name} failed on {}: {status}", dir.display()))
}
