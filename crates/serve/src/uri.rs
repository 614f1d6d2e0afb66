//! URIs of exports.

use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Path of a unix socket.
    Unix(PathBuf),
    /// Address and port.
    Tcp(SocketAddr),
}

/// Returns the NBD URI of an export. `certificates`: the directory of a server that requires TLS, for clients on this
/// machine.
pub fn uri(address: &Address, export: &str, certificates: Option<&Path>) -> String {
    let export = percent(export.as_bytes(), b"/");
    let (s, tls) = match certificates {
        None => ("", String::new()),
        Some(dir) => ("s", format!("tls-certificates={}", percent(dir.as_os_str().as_bytes(), b"/"))),
    };
    match address {
        Address::Unix(path) => {
            let socket = percent(path.as_os_str().as_bytes(), b"/");
            format!("nbd{s}+unix:///{export}?socket={socket}{}{tls}", if tls.is_empty() { "" } else { "&" })
        }
        Address::Tcp(address) => format!("nbd{s}://{address}/{export}{}{tls}", if tls.is_empty() { "" } else { "?" }),
    }
}

/// Percent-encodes all bytes except RFC 3986's unreserved characters and those in `also`.
fn percent(bytes: &[u8], also: &[u8]) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte) || also.contains(byte);
    let encode = |byte: &u8| if plain(byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") };
    bytes.iter().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uri_encodes_reserved_characters() {
        let unix = Address::Unix("/run/a b?.sock".into());
        assert_eq!(uri(&unix, "", None), "nbd+unix:///?socket=/run/a%20b%3F.sock");
        assert_eq!(uri(&unix, "x&y/z", None), "nbd+unix:///x%26y/z?socket=/run/a%20b%3F.sock");
        assert_eq!(uri(&Address::Tcp("[::1]:10809".parse().unwrap()), "e", None), "nbd://[::1]:10809/e");
    }

    #[test]
    fn uri_of_a_server_that_requires_tls_names_its_certificates() {
        let dir = Some(Path::new("/etc/a b"));
        let unix = Address::Unix("/s".into());
        assert_eq!(uri(&unix, "e", dir), "nbds+unix:///e?socket=/s&tls-certificates=/etc/a%20b");
        let tcp = Address::Tcp("127.0.0.1:1".parse().unwrap());
        assert_eq!(uri(&tcp, "", dir), "nbds://127.0.0.1:1/?tls-certificates=/etc/a%20b");
    }
}
