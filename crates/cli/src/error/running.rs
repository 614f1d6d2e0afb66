//! Exit status and hint of errors of running volumes.

use std::io;
use std::path::Path;

use inlock_engine::ControlError;
use inlock_serve::Error;
use inlock_serve::control::state_file::aside;
use inlock_serve::error::Instead;

use super::Status;

/// Returns the exit status. `None`: that of the causes.
pub(super) fn status(error: &Error) -> Option<Status> {
    Some(match error {
        Error::Inactive { .. } | Error::Gone { .. } | Error::ServerGone { .. } | Error::UnknownVolume { .. } => {
            Status::Device
        }
        Error::ServerUnreachable { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            Status::Permission
        }
        Error::ServerUnreachable { .. } => Status::Device,
        Error::Certificates { kind: None, .. } => Status::Wrong,
        Error::Certificates { kind: Some(io::ErrorKind::PermissionDenied), .. } => Status::Permission,
        Error::Certificates { .. } => Status::Device,
        Error::NameInUse { .. }
        | Error::Unreachable { .. }
        | Error::StateFile { .. }
        | Error::SetAside { .. }
        | Error::RecoveredVolume { .. }
        | Error::Held { .. }
        | Error::InProgress
        | Error::Closing
        | Error::TooManyCommands
        | Error::NotOpen { .. }
        | Error::ServerSilent { .. }
        | Error::ServerUnresponsive { .. }
        | Error::VolumeExists { .. }
        | Error::VolumeInUse { .. }
        | Error::AddressInUse { .. } => Status::Busy,
        Error::RecoveredKey { .. } | Error::CannotAttach { not_permitted: true, .. } | Error::Untrusted { .. } => {
            Status::Permission
        }
        Error::Told(told) => Status::from_number(told.exit.into()),
        Error::RemovedWithLoss { source, .. } => return status(source),
        Error::Open(_) | Error::Control(_) | Error::Io(_) | Error::Other(_) | Error::Failed { .. } => return None,
        _ => Status::Wrong,
    })
}

/// Whether a request was wrong, so that the hint is the help of the action.
pub(super) fn is_of_command_line(error: &Error) -> bool {
    matches!(error, Error::Request(_) | Error::KeyMissing { .. })
}

/// Returns what to do next.
pub(super) fn hint(error: &Error) -> Option<String> {
    Some(match error {
        Error::NameInUse { pid: Some(pid), .. } => {
            format!("choose another name, or close it (process {pid}); run `inlock list` to see all")
        }
        Error::Gone { name } => format!("run `inlock close {name}` to clean up"),
        Error::Unreachable { pid: 0, .. } => "wait until it has started; it may be asking for a passphrase".to_owned(),
        Error::Unreachable { pid, .. } => format!("check process {pid}; it may be stopped, or wait for a disk"),
        Error::StateFile { name, path, is_newer, remains, .. } => of_state_file(name, path, *is_newer, *remains),
        Error::RecoveredVolume { name, .. } => {
            format!("use the same options, or stop the users of the device and run `inlock close {name}`")
        }
        Error::MethodMissing { best: Some(method), .. } => format!("use --via {}, which works here", method.name()),
        Error::CannotAttach { instead, .. } => return of_attaching(*instead),
        Error::Told(told) => return told.hint.clone(),
        Error::RemovedWithLoss { source, .. } => return hint(source),
        Error::ServerSilent { pid, .. } | Error::ServerUnresponsive { pid } => {
            format!("check process {pid}; it may be stopped")
        }
        error if is_of_command_line(error) => "run `inlock --help` to list actions and options".to_owned(),
        error => fixed_hint(error)?.to_owned(),
    })
}

/// Returns a hint that names no object.
fn fixed_hint(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::Inactive { .. } => "run `inlock list` to see active volumes",
        Error::SetAside { .. } => "move the latter away, and try again",
        Error::RunDir { .. } => {
            "set INLOCK_RUN_DIR to the absolute path of a directory of your own that other users cannot write to"
        }
        Error::NoRunDir => "set XDG_RUNTIME_DIR or INLOCK_RUN_DIR to a directory that other users cannot write to",
        Error::RecoveredKey { .. } => "check the passphrase and the header; the device still awaits recovery",
        Error::Held { .. } => "stop it first, or use `inlock close --deferred`",
        Error::NoMethod { .. } | Error::MethodMissing { best: None, .. } => USE_SERVE,
        Error::MethodWithoutZones { .. } | Error::ZonesMissing { .. } => "use --read-only; it works with every --via",
        Error::WorkerFailed { .. } => "run `inlock open` with the same name and options",
        Error::DeviceStays { .. } => {
            "close the volume and open it again, or use --via nbd or --via loop, which grow while in use"
        }
        Error::MethodWithoutDiscards { .. } => "use --via ublk or --via nbd",
        Error::DeviceWithoutDiscards { .. } => "close the volume and open it with --allow-discards",
        Error::NotDeferred => "run `inlock close NAME` to close it",
        Error::DetachesItself { .. } => "close the volume, and open it with --via nbd or --via ublk",
        Error::Suspended { .. } | Error::SuspendedResize { .. } => "run `inlock resume` to resume I/O",
        Error::NotSuspended { .. } => "run `inlock status NAME` to see its state",
        Error::Table { source: ControlError::Shorter { .. } } => {
            "extend the table to the length of the device, or close the volume first"
        }
        Error::Table { .. } => "close the volume and open it with this table",
        Error::InProgress | Error::TooManyCommands => "try again when it is done",
        Error::Panicked { .. } => "see its log; the state of the volume is unknown",
        Error::AddressInUse { .. } => "stop the server that listens there, or use another address",
        Error::NotLoopback(_) => "use tcp:localhost:PORT or unix:PATH, or allow it with --insecure",
        error => return of_many(error),
    })
}

/// Returns a hint for errors of a server of many volumes.
fn of_many(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::ServerGone { .. } => "start the server again",
        Error::Ambiguous { .. } => "use the socket of one of them: inlock control SOCKET COMMAND",
        Error::UnknownVolume { .. } => "run `inlock control SOCKET list`",
        Error::VolumeExists { .. } => "choose another name, or remove the volume first",
        Error::NotOpen { .. } => "try again; run `inlock control SOCKET list` to see all volumes of a server",
        Error::VolumeInUse { .. } => "disconnect them first, or use --force",
        Error::NotDeferrable { .. } => "close it now, or set idle-timeout in the file of the server",
        Error::NotAdded { .. } => "correct the key; nothing has changed",
        Error::ClosedWithLoss { .. } => "the log of the server names the volume and the cause",
        Error::Zoned { .. } => "set read-only = true",
        Error::KeyCommand { .. } => {
            "run key-command of the volume by hand; it has to print the key and exit with status 0"
        }
        Error::ConfigTooLong { .. } => "divide the volumes between several servers",
        Error::Config { .. } => "correct the file",
        Error::Untrusted { .. } => {
            "let root or the user of the server own it and all directories above, and no others write to them; or use \
             --allow-untrusted-config"
        }
        Error::TlsStays => "stop the server, and start it again",
        Error::Certificates { .. } => {
            "the directory of --tls-certificates needs server-cert.pem and server-key.pem, and ca-cert.pem with \
             --tls-verify-peer; create them with openssl"
        }
        Error::ServerUnreachable { source, .. } if source.kind() != io::ErrorKind::PermissionDenied => {
            "start the server with --control SOCKET, or check the path"
        }
        _ => return None,
    })
}

/// Hint if no method works.
const USE_SERVE: &str = "use `inlock serve SOURCE --nbd unix:PATH`; it needs no kernel driver";

fn of_attaching(instead: Instead) -> Option<String> {
    Some(match instead {
        Instead::Serve => USE_SERVE.to_owned(),
        Instead::Loop => "use --via loop, which needs only FUSE and loop devices".to_owned(),
        Instead::Zones { sectors } => format!(
            "use a plain volume or a table line of {sectors} sectors, which ends with a zone, or --read-only --via nbd \
             for all of it"
        ),
        _ => return None,
    })
}

fn of_state_file(name: &str, path: &Path, is_newer: bool, remains: bool) -> String {
    match (is_newer, remains) {
        (true, true) => {
            format!("use the version that opened {name}, or detach what it left behind with `inlock close {name}`")
        }
        (false, true) => format!("run `inlock close {name}` to detach what its process left behind"),
        (_, false) => format!(
            "run `inlock close --force {name}`, which detaches what it finds under this name, and keeps the file as {}",
            aside(path).display()
        ),
    }
}
