//! The NBD protocol: a handshake and then requests, fed as by a socket.

use inlock_frontend::nbd::handshake::{Handshake, ReplyStyle, Security, Step};
use inlock_frontend::nbd::protocol::Export;
use inlock_frontend::nbd::transmission::Command;

/// Maximum length of the reply to an option.
const MOST_OUT: usize = 1 << 20;

fn export() -> Export {
    Export { name: "disk".into(), description: "fuzz".into(), size: 1 << 30, flags: 0x0fff, preferred_block: 4096 }
}

/// Parses the bytes of a client. The first byte chooses how they are cut into pieces, whether the handshake is
/// skipped, and whether it offers TLS.
pub fn nbd_wire(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    let piece = [1, 7, 64, usize::MAX][usize::from(choice & 3)];
    match choice >> 2 & 3 {
        0 => {
            session(bytes, piece, [Security::None, Security::Offered, Security::Required][usize::from(choice >> 4) % 3])
        }
        1 => requests(bytes, ReplyStyle::Simple),
        2 => requests(bytes, ReplyStyle::Structured),
        _ => requests(bytes, ReplyStyle::Extended),
    }
}

/// Feeds the handshake, one piece of the input at a time, then the requests.
fn session(bytes: &[u8], piece: usize, security: Security) {
    let export = export();
    let mut out = Vec::new();
    let mut handshake = Handshake::new(&mut out).with_security(security);
    let (mut used, mut arrived) = (0, 0);
    loop {
        out.clear();
        let Ok((taken, step)) = handshake.advance(&mut &export, &bytes[used..arrived], &mut out) else { return };
        assert!(taken <= arrived - used, "{taken} bytes used of {}", arrived - used);
        assert!(out.len() <= MOST_OUT, "an answer of {} bytes", out.len());
        used += taken;
        assert!(!handshake.needs_tls() || !matches!(step, Step::Start(_)), "transmission without TLS");
        match step {
            Step::Close => return,
            Step::StartTls => {
                assert_ne!(security, Security::None, "TLS that is not offered");
                handshake.restart();
            }
            Step::Start(negotiated) => return requests(&bytes[used..], negotiated.style),
            Step::Continue if taken == 0 => {
                assert!(out.is_empty(), "an answer to nothing");
                if arrived == bytes.len() {
                    return;
                }
                arrived = arrived.saturating_add(piece).min(bytes.len());
            }
            Step::Continue => {}
        }
    }
}

/// Parses the requests one after the other. Replies depend on the parsed fields only.
fn requests(mut bytes: &[u8], style: ReplyStyle) {
    loop {
        let Ok(Some((command, header_len))) = Command::parse(bytes, style) else { return };
        assert!(header_len <= bytes.len(), "a header of {header_len} bytes out of {}", bytes.len());
        let valid = command.has_valid_flags(style);
        assert!(!valid || command.flags & 0xffc0 == 0, "flags {:#x} are called valid", command.flags);
        let payload = command.payload_len(style);
        assert!(payload == 0 || payload == command.len, "a payload of {payload} for a length of {}", command.len);
        let skip = usize::try_from(payload).unwrap_or(usize::MAX).min(bytes.len() - header_len);
        bytes = &bytes[header_len + skip..];
    }
}
