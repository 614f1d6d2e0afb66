//! Complete sessions with seeded damage: flipped bits, other numbers, cuts, repeats and insertions.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use inlock_tests::nbd::{Mode, command, flag, go_data, meta_data, option, option_bytes, request_bytes};
use inlock_tests::random::Random;

/// Boundary values of the fields.
const BORDERS: [u64; 12] = [
    0,
    1,
    511,
    4097,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_f000,
    u64::MAX,
];

/// Returns a valid session: client flags, options, requests of every kind in the lower part of the export, DISC.
fn good_session(random: &mut Random) -> Vec<u8> {
    let mode = *random.pick(&[Mode::Simple, Mode::Structured, Mode::Extended]);
    let mut out = 3u32.to_be_bytes().to_vec();
    match mode {
        Mode::Simple => {}
        Mode::Structured => out.extend(option_bytes(option::STRUCTURED_REPLY, &[])),
        Mode::Extended => out.extend(option_bytes(option::EXTENDED_HEADERS, &[])),
    }
    if mode != Mode::Simple {
        out.extend(option_bytes(option::SET_META_CONTEXT, &meta_data(b"", &[b"base:allocation"])));
    }
    out.extend(option_bytes(option::LIST, &[]));
    out.extend(option_bytes(option::INFO, &go_data(b"", &[0, 1, 2, 3])));
    out.extend(option_bytes(option::GO, &go_data(b"", &[3])));
    for cookie in 0..8 {
        let offset = random.below(4 << 20);
        let len = 1 + random.below(12_000);
        let (flags, code) = *random.pick(&[
            (0, command::READ),
            (0, command::WRITE),
            (flag::FUA, command::WRITE),
            (0, command::FLUSH),
            (0, command::WRITE_ZEROES),
            (flag::NO_HOLE, command::WRITE_ZEROES),
            (0, command::BLOCK_STATUS),
            (0, command::CACHE),
            (0, command::TRIM),
        ]);
        out.extend(request_bytes(mode, flags, code, cookie, offset, len));
        if code == command::WRITE {
            out.extend(random.bytes(len as usize));
        }
    }
    out.extend(request_bytes(mode, 0, command::DISC, 99, 0, 0));
    out
}

/// Damages a stream at one to four positions.
fn damage(stream: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(stream.len() as u64) as usize;
        match random.below(7) {
            0 => stream[at] ^= 1 << random.below(8),
            1 => stream[at] = random.number() as u8,
            2 => replace(stream, at, &random.pick(&BORDERS).to_be_bytes()),
            3 => replace(stream, at, &(*random.pick(&BORDERS) as u32).to_be_bytes()),
            4 => stream.truncate(at.max(1)),
            5 => {
                let piece = stream[at..(at + 28).min(stream.len())].to_vec();
                stream.splice(at..at, piece);
            }
            _ => {
                let len = random.below(40) as usize;
                stream.splice(at..at, random.bytes(len));
            }
        }
    }
}

fn replace(stream: &mut [u8], at: usize, with: &[u8]) {
    let len = with.len().min(stream.len() - at);
    stream[at..at + len].copy_from_slice(&with[..len]);
}

/// Sends the damaged session of a seed, drops every reply, and waits for the server to disconnect. Returns the number
/// of bytes sent.
pub(crate) fn send_mutated(socket: &Path, seed: u64) -> Result<u64> {
    let mut random = Random::new(0x1157_0000 + seed);
    let mut bytes = good_session(&mut random);
    damage(&mut bytes, &mut random);
    let stream = UnixStream::connect(socket).context("the server takes no connection")?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.set_write_timeout(Some(Duration::from_secs(60)))?;
    let mut writer = stream.try_clone()?;
    let mut reader = stream;
    let sent = std::thread::scope(|scope| {
        let reading = scope.spawn(move || drain(&mut reader));
        // The server may disconnect at the first invalid byte.
        let _ = writer.write_all(&bytes);
        let _ = writer.shutdown(Shutdown::Write);
        reading.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?
    });
    sent.map(|()| bytes.len() as u64)
}

fn drain(reader: &mut UnixStream) -> Result<()> {
    let mut buffer = [0; 1 << 16];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(e) if [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&e.kind()) => return Ok(()),
            Err(e) => return Err(e).context("the server neither replies nor disconnects"),
        }
    }
}
