//! The negative control: an NBD server that accepts everything and checks nothing.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use anyhow::Result;
use inlock_tests::nbd::{be16, be32, command, magic, option};

/// Listens until the test process exits.
pub(crate) fn start(socket: &Path, size: u64) -> Result<()> {
    let listener = UnixListener::bind(socket)?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream, size));
        }
    });
    Ok(())
}

fn serve(mut stream: UnixStream, size: u64) -> Option<()> {
    let mut greeting = magic::SERVER.to_be_bytes().to_vec();
    greeting.extend(magic::OPTION.to_be_bytes());
    greeting.extend(3u16.to_be_bytes());
    stream.write_all(&greeting).ok()?;
    take(&mut stream, 4)?;
    loop {
        let head = take(&mut stream, 16)?;
        let code = be32(&head[8..]);
        take(&mut stream, be32(&head[12..]).min(1 << 20) as usize)?;
        if code == option::GO || code == option::INFO {
            let mut info = vec![0, 0];
            info.extend(size.to_be_bytes());
            info.extend(0x0fffu16.to_be_bytes());
            reply(&mut stream, code, 3, &info)?;
        }
        reply(&mut stream, code, 1, &[])?;
        if code == option::GO {
            break;
        }
    }
    loop {
        let head = take(&mut stream, 28)?;
        let len = be32(&head[24..]).min(1 << 20) as usize;
        let mut answer = magic::SIMPLE_REPLY.to_be_bytes().to_vec();
        answer.extend([0; 4]);
        answer.extend(&head[8..16]);
        match be16(&head[6..]) {
            command::WRITE => drop(take(&mut stream, len)?),
            command::READ => answer.resize(16 + len, 0),
            _ => {}
        }
        stream.write_all(&answer).ok()?;
    }
}

fn take(stream: &mut UnixStream, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).ok().map(|()| bytes)
}

fn reply(stream: &mut UnixStream, code: u32, kind: u32, data: &[u8]) -> Option<()> {
    let mut out = magic::OPTION_REPLY.to_be_bytes().to_vec();
    out.extend(code.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    stream.write_all(&out).ok()
}
