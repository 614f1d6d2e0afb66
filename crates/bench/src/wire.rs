//! An NBD client that keeps its queue full, and a null server, which answers without touching data.
//!
//! The rate of the null server is the most that the client can do: no server can be faster. Both implement only the
//! fixed newstyle handshake with GO, and simple replies.

use std::io::{self, BufReader, IoSlice, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const SERVER_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

const OPTION_EXPORT_NAME: u32 = 1;
const OPTION_ABORT: u32 = 2;
const OPTION_INFO: u32 = 6;
const OPTION_GO: u32 = 7;
const ACK: u32 = 1;
const INFO: u32 = 3;
const UNSUPPORTED: u32 = (1 << 31) | 1;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;

/// Maximum length of a request.
const MAX_REQUEST: usize = 32 << 20;
/// Size of the input buffers.
const INPUT: usize = 256 << 10;

fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn be64(bytes: &[u8]) -> u64 {
    u64::from(be32(bytes)) << 32 | u64::from(be32(&bytes[4..]))
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// A load for a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub write: bool,
    pub random: bool,
    pub block: usize,
    pub depth: usize,
    pub time: Duration,
}

/// Results of a client.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub requests: u64,
    pub elapsed: Duration,
    /// Nanoseconds of each request, in ascending order.
    pub latencies: Vec<u64>,
}

/// One connection, in transmission.
pub(crate) struct Client {
    stream: UnixStream,
    size: u64,
}

impl Client {
    /// Connects to the default export of the server on `socket`.
    pub(crate) fn connect(socket: &Path) -> io::Result<Self> {
        let mut stream = inlock_frontend::connect::unix(socket, inlock_frontend::connect::TIME_LIMIT, || {})?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.set_write_timeout(Some(Duration::from_secs(60)))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        if be64(&greeting) != SERVER_MAGIC || be64(&greeting[8..]) != OPTION_MAGIC {
            return Err(broken("no NBD server of the newstyle"));
        }
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(OPTION_GO.to_be_bytes());
        hello.extend(6u32.to_be_bytes());
        // An empty name and no information requests.
        hello.extend([0; 6]);
        stream.write_all(&hello)?;
        let mut size = 0;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head)?;
            let mut data = vec![0; (be32(&head[16..]) as usize).min(1 << 16)];
            stream.read_exact(&mut data)?;
            match be32(&head[12..]) {
                ACK => return Ok(Self { stream, size }),
                INFO if data.len() == 12 && be16(&data) == 0 => size = be64(&data[2..]),
                INFO => {}
                _ => return Err(broken("the server refuses its default export")),
            }
        }
    }

    /// Keeps the queue full for the time of the load, then waits for the rest of the replies.
    pub(crate) fn run(&mut self, load: Load) -> io::Result<Done> {
        let blocks = self.size / load.block as u64;
        if blocks == 0 {
            return Err(broken("the export is shorter than a request"));
        }
        let mut state = Sender { load, blocks, next: 0, random: 0x9e37_79b9_7f4a_7c15, out: Vec::new() };
        let payload = vec![0x5a; load.block];
        let mut into = vec![0; load.block];
        let mut reader = BufReader::with_capacity(INPUT, self.stream.try_clone()?);
        let began = Instant::now();
        let mut submitted = vec![began; load.depth];
        let mut done = Done::default();
        for number in 0..load.depth {
            state.submit(number as u64, &payload);
        }
        let mut in_flight = load.depth;
        while in_flight > 0 {
            // Requests are sent once all received replies are processed.
            if reader.buffer().len() < 16 {
                self.stream.write_all(&state.out)?;
                state.out.clear();
            }
            let mut head = [0; 16];
            reader.read_exact(&mut head)?;
            let number = be64(&head[8..]);
            if be32(&head) != REPLY_MAGIC || be32(&head[4..]) != 0 || number >= load.depth as u64 {
                return Err(broken("the server replied with an error, or to no request"));
            }
            if !load.write {
                reader.read_exact(&mut into)?;
            }
            let now = Instant::now();
            let since = &mut submitted[number as usize];
            done.latencies.push(now.duration_since(*since).as_nanos() as u64);
            done.requests += 1;
            *since = now;
            if now.duration_since(began) < load.time {
                state.submit(number, &payload);
            } else {
                in_flight -= 1;
            }
        }
        done.elapsed = began.elapsed();
        done.latencies.sort_unstable();
        Ok(done)
    }

    /// Writes the whole export once.
    pub(crate) fn fill(&mut self) -> io::Result<()> {
        let payload: Vec<u8> = (0..1u32 << 20).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
        let mut offset = 0;
        while offset < self.size {
            let part = &payload[..payload.len().min((self.size - offset) as usize)];
            let mut out = Vec::with_capacity(28 + part.len());
            request(&mut out, WRITE, 0, offset, part.len() as u32);
            out.extend_from_slice(part);
            self.stream.write_all(&out)?;
            let mut head = [0; 16];
            self.stream.read_exact(&mut head)?;
            if be32(&head) != REPLY_MAGIC || be32(&head[4..]) != 0 {
                return Err(broken("the server refuses a write"));
            }
            offset += part.len() as u64;
        }
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut out = Vec::new();
        request(&mut out, DISCONNECT, 0, 0, 0);
        // Fails if the server has closed the connection.
        let _ = self.stream.write_all(&out);
    }
}

/// Requests that are not sent yet.
struct Sender {
    load: Load,
    blocks: u64,
    next: u64,
    random: u64,
    out: Vec<u8>,
}

impl Sender {
    fn submit(&mut self, number: u64, payload: &[u8]) {
        if self.load.random {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.next = self.random;
        }
        let offset = self.next % self.blocks * self.load.block as u64;
        self.next = self.next.wrapping_add(1);
        let command = if self.load.write { WRITE } else { READ };
        request(&mut self.out, command, number, offset, self.load.block as u32);
        if self.load.write {
            self.out.extend_from_slice(payload);
        }
    }
}

fn request(out: &mut Vec<u8>, command: u16, number: u64, offset: u64, len: u32) {
    out.extend(REQUEST_MAGIC.to_be_bytes());
    out.extend(0u16.to_be_bytes());
    out.extend(command.to_be_bytes());
    out.extend(number.to_be_bytes());
    out.extend(offset.to_be_bytes());
    out.extend(len.to_be_bytes());
}

/// Name of the threads of the null server.
pub(crate) const NULL_SERVER: &str = "null-server";

/// Serves an export of `size` bytes on `socket` in threads of its own until the process ends. Reads return the bytes of
/// one buffer, writes are received and dropped.
pub(crate) fn serve_null(socket: &Path, size: u64) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let (started, wait) = mpsc::channel();
    let accept = move || {
        // The thread has its name by now.
        let _ = started.send(());
        while let Ok((stream, _)) = listener.accept() {
            // An error means that the client has disconnected.
            let serve = move || serve_one(stream, size).is_ok();
            if std::thread::Builder::new().name(NULL_SERVER.into()).spawn(serve).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name(NULL_SERVER.into()).spawn(accept)?;
    wait.recv().map_err(io::Error::other)
}

fn serve_one(mut stream: UnixStream, size: u64) -> io::Result<()> {
    if !handshake(&mut stream, size)? {
        return Ok(());
    }
    let data = vec![0x5a; MAX_REQUEST];
    let mut input = vec![0; INPUT];
    let mut dropped = vec![0; 1 << 20];
    let mut have = 0;
    loop {
        let got = stream.read(&mut input[have..])?;
        if got == 0 {
            return Ok(());
        }
        have += got;
        let mut at = 0;
        // Header of each reply, and length of the data after it.
        let mut replies: Vec<([u8; 16], usize)> = Vec::new();
        while have - at >= 28 {
            let head = &input[at..at + 28];
            let (command, len) = (be16(&head[6..]), be32(&head[24..]) as usize);
            if be32(head) != REQUEST_MAGIC || len > MAX_REQUEST {
                return Err(broken("not a request"));
            }
            let mut reply = [0; 16];
            reply[..4].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
            reply[8..].copy_from_slice(&head[8..16]);
            at += 28;
            match command {
                DISCONNECT => return Ok(()),
                WRITE => {
                    let here = len.min(have - at);
                    at += here;
                    let mut rest = len - here;
                    while rest > 0 {
                        let part = rest.min(dropped.len());
                        let got = stream.read(&mut dropped[..part])?;
                        if got == 0 {
                            return Ok(());
                        }
                        rest -= got;
                    }
                }
                _ => {}
            }
            replies.push((reply, if command == READ { len } else { 0 }));
        }
        input.copy_within(at..have, 0);
        have -= at;
        for some in replies.chunks(256) {
            let mut slices = Vec::with_capacity(2 * some.len());
            for (head, len) in some {
                slices.push(IoSlice::new(head));
                slices.push(IoSlice::new(&data[..*len]));
            }
            send_all(&mut stream, &mut slices)?;
        }
    }
}

fn send_all(stream: &mut UnixStream, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match stream.write_vectored(slices)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            sent => IoSlice::advance_slices(&mut slices, sent),
        }
    }
    Ok(())
}

/// Runs the server side of the handshake. Returns false if the client aborts it.
fn handshake(stream: &mut UnixStream, size: u64) -> io::Result<bool> {
    /// Flags are valid; flush is supported.
    const FLAGS: u16 = 1 | 4;
    let mut greeting = SERVER_MAGIC.to_be_bytes().to_vec();
    greeting.extend(OPTION_MAGIC.to_be_bytes());
    greeting.extend(3u16.to_be_bytes());
    stream.write_all(&greeting)?;
    stream.read_exact(&mut [0; 4])?;
    let reply = |option: u32, kind: u32, data: &[u8]| {
        let mut out = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
        out.extend(option.to_be_bytes());
        out.extend(kind.to_be_bytes());
        out.extend((data.len() as u32).to_be_bytes());
        out.extend(data);
        out
    };
    loop {
        let mut head = [0; 16];
        stream.read_exact(&mut head)?;
        let (option, len) = (be32(&head[8..]), be32(&head[12..]) as usize);
        if be64(&head) != OPTION_MAGIC || len > 1 << 16 {
            return Err(broken("not an option"));
        }
        stream.read_exact(&mut vec![0; len])?;
        let mut facts = size.to_be_bytes().to_vec();
        facts.extend(FLAGS.to_be_bytes());
        match option {
            OPTION_EXPORT_NAME => {
                stream.write_all(&facts)?;
                return Ok(true);
            }
            OPTION_ABORT => {
                stream.write_all(&reply(option, ACK, &[]))?;
                return Ok(false);
            }
            OPTION_INFO | OPTION_GO => {
                let mut info = 0u16.to_be_bytes().to_vec();
                info.extend(&facts);
                stream.write_all(&reply(option, INFO, &info))?;
                stream.write_all(&reply(option, ACK, &[]))?;
                if option == OPTION_GO {
                    return Ok(true);
                }
            }
            _ => stream.write_all(&reply(option, UNSUPPORTED, &[]))?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_of_the_null_server_completes_every_load() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        serve_null(&socket, 8 << 20).unwrap();
        let mut client = Client::connect(&socket).unwrap();
        assert_eq!(client.size, 8 << 20);
        client.fill().unwrap();
        for (write, block) in [(false, 4096), (true, 4096), (false, 1 << 20), (true, 1 << 20)] {
            let load = Load { write, random: block == 4096, block, depth: 4, time: Duration::from_millis(5) };
            let done = client.run(load).unwrap();
            assert!(done.requests >= 4 && done.elapsed >= load.time, "{done:?}");
            assert_eq!(done.latencies.len() as u64, done.requests);
            assert!(done.latencies.is_sorted());
        }
    }

    #[test]
    fn client_of_another_protocol_fails() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let answer = std::thread::spawn(move || listener.accept().unwrap().0.write_all(&[7; 18]).unwrap());
        let error = Client::connect(&socket).err().unwrap();
        assert!(error.to_string().contains("no NBD server"), "{error}");
        answer.join().unwrap();
    }
}
