//! Commands to a server of many volumes, on a socket of its owner: the lines and the thread of [`crate::control`].

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::control::client::{connect, exchange, fields_of};
use crate::control::listener::Listener;
use crate::control::served::{guarded, is_deferred};
use crate::control::server::{ControlThread, Controlled, fields};
use crate::error::ResultExt;
use crate::pipe;
use crate::{Error, Program, Reply, Result};
use inlock_open::Context;
use serde_json::{Map, Value, json};

use super::volumes::Volumes;

/// Commands that may run at the same time, one for each client.
const MAX_CHANGES: usize = 32;
/// Limit of commands with suspensions and closings: a key can be wiped although other commands wait.
const MAX_WITH_ENDS: usize = 64;
/// Maximum length of the keys of a volume in bytes: the capacity of a pipe.
const MAX_KEYS: usize = 65_536;
/// Maximum length of a reply in bytes, with all volumes that a server may have.
const MAX_REPLY: usize = 256 << 20;
/// Timeout of a command. Closing waits for a volume that opens, and for clients that take their last replies.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Starts to serve commands and scrapers. Dropping the result ends that, and removes the sockets' paths.
pub fn start(
    program: Arc<dyn Program>,
    commands: Vec<Listener>,
    metrics: Option<Listener>,
    volumes: Arc<Volumes>,
) -> Result<ControlThread> {
    ControlThread::start(program, commands, metrics, volumes)
}

impl Controlled for Volumes {
    fn max_changes(&self, command: &str) -> usize {
        if matches!(command, "suspend" | "close") { MAX_WITH_ENDS } else { MAX_CHANGES }
    }

    fn query(&self, command: &str, request: &Value) -> Option<Reply> {
        let reply = |name: &str, value| Ok(Map::from_iter([(name.to_owned(), value?)]));
        let volume = volume_of(request);
        match (command, volume) {
            ("list", _) => Some(reply("volumes", serde_json::to_value(self.list()))),
            ("open", _) => Some(reply("volumes", serde_json::to_value(self.open_volumes()))),
            ("stats", "") => Some(reply("samples", serde_json::to_value(self.samples()))),
            ("stats", name) => Some(self.sample(name).and_then(|sample| fields(&sample))),
            ("status", name) => Some(self.status(name).and_then(|status| fields(&status))),
            ("state", name) => {
                let (state, has_failed) = self.state_of(name).unwrap_or(("unknown", false));
                let fields = [("state".to_owned(), state.into()), ("close_failed".to_owned(), has_failed.into())];
                Some(Ok(Map::from_iter(fields)))
            }
            // Also while another command waits for the store.
            ("abort", name) => Some(self.abort(name).map(|()| Map::new())),
            _ => None,
        }
    }

    fn change(&self, command: &str, request: &Value, pipe: Option<OwnedFd>) -> Reply {
        guarded(command, || {
            let (name, force) = (volume_of(request), request["force"] == true);
            let outcome = match (command, name) {
                ("reload", "") => self.reload()?,
                ("close", name) if is_deferred(request) => {
                    return Err(Error::NotDeferrable { name: name.to_owned() });
                }
                ("close", name) => self.close(name, force).map(|()| format!("{name} is closed"))?,
                ("add", name) => self.add(name, &keys_of(pipe)?).map(|()| format!("{name} is added"))?,
                ("remove", name) => self.remove(name, force).map(|()| format!("{name} is removed"))?,
                ("cancel_deferred", _) => return Err(Error::NotDeferred),
                ("suspend" | "resume" | "reload" | "refresh" | "resize" | "reencrypt", name) => {
                    return self.change(name, command, request, pipe);
                }
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

/// Returns the volume that a request names.
fn volume_of(request: &Value) -> &str {
    request["volume"].as_str().unwrap_or_default()
}

/// Receives the keys of a volume.
fn keys_of(pipe: Option<OwnedFd>) -> Result<String> {
    let Some(pipe) = pipe else { return Err(Error::Request("The keys of the volume are missing.".to_owned())) };
    let text = pipe::read_text(&pipe, MAX_KEYS).context("cannot receive the keys of the volume")?;
    String::from_utf8(text.to_vec()).context("the keys of the volume are not text")
}

/// Sends a command to the server at `path`, with the keys of a volume if it has some, and returns its reply.
pub fn call(context: &Context, path: &Path, request: &Value, keys: Option<&str>) -> Result<Map<String, Value>> {
    let cannot = |source| Error::ServerUnreachable { path: path.to_owned(), source };
    let lost = || format!("The server at {} cannot be reached.", path.display());
    let keys = keys.map(|keys| pipe::filled(keys.as_bytes()).context("cannot send the keys of the volume"));
    let mut server = connect(context, &std::path::absolute(path)?).map_err(cannot)?;
    let line = exchange(&mut server, request, keys.transpose()?.as_ref(), (TIMEOUT, MAX_REPLY)).with_context(lost)?;
    fields_of(&line, path.display())
}

/// Returns a request with a command.
pub fn request(command: &str, volume: Option<&str>) -> Value {
    json!({"command": command, "volume": volume})
}
