//! `mount`: opens a volume in the background, and mounts the file system that is in it.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;

use crate::args::{MountArgs, Place};
use crate::commands::{close, open};
use crate::control::Client;
use crate::exit::{Problem, Status};
use crate::holders;

pub(crate) fn run(args: &MountArgs) -> anyhow::Result<u8> {
    if args.open.place == Place::Launched {
        return open::run(&args.open);
    }
    // Nobody types a passphrase for what cannot be.
    if !rustix::process::geteuid().is_root() {
        let message = "Only root can mount a file system.".to_owned();
        let hint = "`inlock open --via fuse` makes the volume a file, which needs no root".to_owned();
        return Err(Problem::Told(message, Some(hint), Status::Permission).into());
    }
    if !args.dir.is_dir() {
        return Err(Problem::usage(format!("{} is not a directory.", args.dir.display())));
    }
    if let Some(source) = holders::source_mounted_on(&args.dir) {
        let message = format!("{} is already mounted on {}.", source.display(), args.dir.display());
        return Err(Problem::Told(message, None, Status::Busy).into());
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
    let status = Client::of(&args.open.name)?.status()?;
    let node = status.facts.node.context("the volume has no node")?;
    let mut command = Command::new("mount");
    let mut options: Vec<&str> = args.options.as_deref().into_iter().collect();
    if args.open.read_only {
        options.push("ro");
    }
    if !options.is_empty() {
        command.arg("-o").arg(options.join(","));
    }
    command.arg("--").arg(&node).arg(&args.dir);
    helper(command, "mount", &args.dir)
}

/// Runs a program that says itself what went wrong.
pub(super) fn helper(mut command: Command, name: &str, dir: &Path) -> anyhow::Result<()> {
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot run {name}"))?;
    if status.success() {
        return Ok(());
    }
    Err(anyhow::anyhow!("{name} failed on {}: {status}", dir.display()))
}
