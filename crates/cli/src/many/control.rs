//! Commands to a server of many volumes, on a socket of its owner: one JSON object a connection, and one in reply.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};

use super::volumes::Volumes;
use crate::error::{CliError, Status, message_of};
use crate::system::socket;

/// Maximum length of a request in bytes.
const MAX_REQUEST: u64 = 64 << 10;
/// Time in which a client has to send its request, and to take the reply.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The socket of a server. It is removed when this is dropped; the thread ends with the process.
pub(crate) struct ControlSocket(PathBuf);

impl ControlSocket {
    /// Listens. A socket that no process listens on is replaced.
    pub(crate) fn start(path: &Path, volumes: Arc<Volumes>) -> anyhow::Result<Self> {
        let path = std::path::absolute(path)?;
        let in_use = || CliError::AddressInUse { address: path.display().to_string() };
        if let Ok(found) = std::fs::symlink_metadata(&path)
            && (!found.file_type().is_socket() || socket::connect(&path).is_ok())
        {
            return Err(in_use().into());
        }
        let listener = socket::listen(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
        listener.set_nonblocking(false)?;
        let run = move || accept(&listener, &volumes);
        std::thread::Builder::new().name("inlock-control".into()).spawn(run)?;
        Ok(Self(path))
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Replies to one client after the other.
fn accept(listener: &UnixListener, volumes: &Volumes) {
    loop {
        match listener.accept() {
            // A client that has left needs no reply.
            Ok((client, _)) => drop(serve(client, volumes)),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn serve(mut client: UnixStream, volumes: &Volumes) -> anyhow::Result<()> {
    client.set_read_timeout(Some(TIMEOUT))?;
    client.set_write_timeout(Some(TIMEOUT))?;
    let mut line = String::new();
    BufReader::new((&client).take(MAX_REQUEST)).read_line(&mut line)?;
    let request: Value = serde_json::from_str(&line)?;
    let volume = request["volume"].as_str().unwrap_or_default();
    let reply = match request["command"].as_str() {
        Some("list") => Ok(volumes.list()),
        Some("reload") => volumes.reload().map(Value::String),
        Some("close") => volumes.close(volume).map(|()| json!(format!("{volume} is closed"))),
        _ => Err(CliError::usage("Unknown command.")),
    };
    let reply = match reply {
        Ok(result) => json!({"result": result}),
        Err(error) => json!({"error": message_of(&error).to_string()}),
    };
    client.write_all(format!("{reply}\n").as_bytes())?;
    Ok(())
}

/// Sends a command to a server, and returns the text of its reply.
pub(crate) fn call(path: &Path, command: &str, volume: Option<&str>) -> anyhow::Result<String> {
    let cannot = || format!("cannot reach a server at {}", path.display());
    let mut server = socket::connect(&std::path::absolute(path)?).with_context(cannot)?;
    server.write_all(format!("{}\n", json!({"command": command, "volume": volume})).as_bytes())?;
    let mut reply = String::new();
    server.read_to_string(&mut reply)?;
    let mut reply: Value = serde_json::from_str(&reply).with_context(cannot)?;
    if let Some(error) = reply["error"].as_str() {
        return Err(CliError::Remote(error.to_owned(), None, Status::Wrong).into());
    }
    match reply["result"].take() {
        Value::String(text) => Ok(text),
        list => Ok(serde_json::to_string_pretty(&list)?),
    }
}
