//! Running a command while a server runs, like nbdkit's captive mode.
//!
//! A shell runs the command, with the variables `$uri`, `$nbd`, `$unixsocket`, `$port` and `$exportname`. The server
//! stops when it exits, and returns its exit status.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use inlock_serve::uri::{Address, uri};

/// Starts `command` in a shell with variables for the server.
pub(crate) fn start(
    command: &OsStr,
    address: &Address,
    export: &str,
    certificates: Option<&Path>,
) -> io::Result<Child> {
    Command::new("/bin/sh").arg("-c").arg(script(command, address, export, certificates)).spawn()
}

/// Converts an exit status or a signal to one number, as shells do.
pub(crate) fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

fn script(command: &OsStr, address: &Address, export: &str, certificates: Option<&Path>) -> OsString {
    let mut script = Vec::new();
    let mut set = |name: &str, value: &[u8]| {
        script.extend_from_slice(name.as_bytes());
        script.push(b'=');
        script.extend_from_slice(&quoted(value));
        script.push(b'\n');
    };
    set("uri", uri(address, export, certificates).as_bytes());
    set("exportname", export.as_bytes());
    // The format from before NBD URIs.
    let mut nbd = match address {
        Address::Unix(path) => [b"nbd:unix:", path.as_os_str().as_bytes()].concat(),
        Address::Tcp(address) => format!("nbd:{address}").into_bytes(),
    };
    if !export.is_empty() {
        nbd.extend_from_slice(b":exportname=");
        nbd.extend_from_slice(export.as_bytes());
    }
    set("nbd", &nbd);
    let (socket, port) = match address {
        Address::Unix(path) => (path.as_path(), String::new()),
        Address::Tcp(address) => (Path::new(""), address.port().to_string()),
    };
    set("unixsocket", socket.as_os_str().as_bytes());
    set("port", port.as_bytes());
    script.extend_from_slice(command.as_bytes());
    OsString::from_vec(script)
}

/// Quotes for a shell, in single quotes.
fn quoted(value: &[u8]) -> Vec<u8> {
    let mut text = vec![b'\''];
    for byte in value {
        match byte {
            b'\'' => text.extend_from_slice(b"'\\''"),
            byte => text.push(*byte),
        }
    }
    text.push(b'\'');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_gets_values_unchanged() {
        let address = Address::Unix("/tmp/it's $HOME `x` \\ \"\n.sock".into());
        let script = script(OsStr::new("printf %s \"$unixsocket|$exportname|$port\""), &address, "a'b", None);
        let output = Command::new("/bin/sh").arg("-c").arg(script).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "/tmp/it's $HOME `x` \\ \"\n.sock|a'b|");
    }

    #[test]
    fn signal_becomes_status_over_128() {
        let run = |script| code_of(Command::new("/bin/sh").args(["-c", script]).status().unwrap());
        assert_eq!(run("exit 0"), 0);
        assert_eq!(run("exit 7"), 7);
        assert_eq!(run("kill -TERM $$"), 128 + 15);
    }
}
