//! Commands to a server of many volumes, on a socket of its owner: the lines and the thread of [`crate::control`].

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Map, Value, json};

use super::volumes::Volumes;
use crate::error::{CliError, Status, told};
use crate::host::{context, program};
use inlock_serve::control::client::{connect, exchange, fields_of};
use inlock_serve::control::listener::Listener;
use inlock_serve::control::served::guarded;
use inlock_serve::control::server::{ControlThread, Controlled, fields};
use inlock_serve::pipe;
use inlock_serve::{Error, Reply};

/// Commands that may run at the same time, one for each client.
const MAX_CHANGES: usize = 32;
/// Maximum length of the keys of a volume in bytes: the capacity of a pipe.
const MAX_KEYS: usize = 65_536;
/// Maximum length of a reply in bytes, with all volumes that a server may have.
const MAX_REPLY: usize = 256 << 20;
/// Timeout of a command. Closing waits for a volume that opens, and for clients that take their last replies.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Starts to serve commands and scrapers. Dropping the result ends that, and removes the sockets' paths.
pub(crate) fn start(
    path: Option<&Path>,
    metrics: Option<Listener>,
    volumes: Arc<Volumes>,
) -> anyhow::Result<ControlThread> {
    Ok(ControlThread::start(program(), path.map(Listener::bind_unix).transpose()?, metrics, volumes)?)
}

impl Controlled for Volumes {
    fn max_changes(&self) -> usize {
        MAX_CHANGES
    }

    fn query(&self, command: &str, request: &Value) -> Option<Reply> {
        let reply = |name: &str, value| Ok(Map::from_iter([(name.to_owned(), value?)]));
        match command {
            "list" => Some(reply("volumes", serde_json::to_value(self.list()))),
            "stats" => Some(reply("samples", serde_json::to_value(self.samples()))),
            "status" => {
                let status = self.status(request["volume"].as_str().unwrap_or_default());
                Some(status.map_err(passed_on).and_then(|status| fields(&status)))
            }
            _ => None,
        }
    }

    fn change(&self, command: &str, request: &Value, pipe: Option<OwnedFd>) -> Reply {
        guarded(command, || {
            let name = request["volume"].as_str().unwrap_or_default();
            let outcome = match command {
                "reload" => self.reload().map_err(passed_on)?,
                "close" => self
                    .close(name, request["force"] == true)
                    .map(|()| format!("{name} is closed"))
                    .map_err(passed_on)?,
                "add" => keys_of(pipe)
                    .and_then(|keys| self.add(name, &keys))
                    .map(|()| format!("{name} is added"))
                    .map_err(passed_on)?,
                "remove" => self
                    .remove(name, request["force"] == true)
                    .map(|()| format!("{name} is removed"))
                    .map_err(passed_on)?,
                _ => return Err(Error::Request(format!("The server does not know the command '{command}'."))),
            };
            Ok(Map::from_iter([("outcome".to_owned(), outcome.into())]))
        })
    }

    fn is_closing(&self, _command: &str, _request: &Value) -> bool {
        false
    }

    fn metrics(&self) -> String {
        Self::metrics(self)
    }
}

/// Returns an error of the command as one that a client is told.
fn passed_on(error: anyhow::Error) -> Error {
    Error::Told(Box::new(told(&error)))
}

/// Receives the keys of a volume.
fn keys_of(pipe: Option<OwnedFd>) -> anyhow::Result<String> {
    let Some(pipe) = pipe else { return Err(CliError::usage("The keys of the volume are missing.")) };
    let text = pipe::read_text(&pipe, MAX_KEYS).context("cannot receive the keys of the volume")?;
    String::from_utf8(text.to_vec()).context("the keys of the volume are not text")
}

/// Sends a command to a server, with the keys of a volume if it has some, and returns its reply.
pub(crate) fn call(path: &Path, request: &Value, keys: Option<&str>) -> anyhow::Result<Map<String, Value>> {
    let cannot = || format!("The server at {} cannot be reached.", path.display());
    let unreachable = |error: std::io::Error| {
        let hint = Some("start the server with --control SOCKET, or check the path".to_owned());
        match error.kind() {
            std::io::ErrorKind::PermissionDenied => anyhow::Error::from(error).context(cannot()),
            _ => anyhow::Error::from(error).context(CliError::Remote(cannot(), hint, Status::Device)),
        }
    };
    let keys = keys.map(|keys| pipe::filled(keys.as_bytes()).context("cannot send the keys of the volume"));
    let mut server = connect(context(), &std::path::absolute(path)?).map_err(unreachable)?;
    let line = exchange(&mut server, request, keys.transpose()?.as_ref(), (TIMEOUT, MAX_REPLY)).with_context(cannot)?;
    Ok(fields_of(&line, path.display())?)
}

/// Returns a request with a command.
pub(crate) fn request(command: &str, volume: Option<&str>) -> Value {
    json!({"command": command, "volume": volume})
}
