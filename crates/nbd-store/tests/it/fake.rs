//! A server in this process: honest unless told otherwise, and able to lose what was not flushed.
//!
//! It is written from the protocol specification and shares no code with the client.

use inlock_nbd_store::{NbdStore, NbdUri, OpenError, StoreOptions};
use inlock_tests::nbd::{be16, be32, be64, command, magic, option, option_reply};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const SIZE: usize = 1 << 20;

/// Style of replies that the server offers at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Style {
    Simple,
    Structured,
    Extended,
}

/// A request as it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) style: Style,
    pub(crate) flags: u16,
    pub(crate) kind: u16,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Consequence of a lie.
pub(crate) enum After {
    /// The server goes on honestly.
    GoOn,
    Close,
    /// It keeps the connection, and says nothing more.
    Stall,
    /// It leaves this request unanswered, and the lie stays.
    Ignore,
}

/// Answers the first request of its kind on one connection. `None`: the request is answered honestly.
pub(crate) type Lie = fn(&mut UnixStream, &Asked) -> Option<After>;

/// Answers an option on any connection. `None`: it is answered honestly.
pub(crate) type OptionLie = fn(&mut UnixStream, u32) -> Option<After>;

/// Point at which a server can be made to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The request has arrived.
    Arrived,
    /// It was carried out, and its reply was not sent.
    Done,
}

/// Is called at each stage of an honest answer, on any connection.
pub(crate) type Pause = Arc<dyn Fn(&Asked, Stage) + Send + Sync>;

/// Properties of the server.
#[derive(Clone)]
pub(crate) struct Facts {
    pub(crate) style: Style,
    pub(crate) size: u64,
    pub(crate) flags: u16,
    pub(crate) blocks: Option<[u32; 3]>,
    pub(crate) knows_go: bool,
    pub(crate) lie: Option<Lie>,
    /// Kind of requests that get the lie; `None`: the lie decides.
    pub(crate) lie_to: Option<u16>,
    /// Number of the connection that gets the lie: the first one is 0.
    pub(crate) lie_on: usize,
    pub(crate) option_lie: Option<OptionLie>,
    /// Sends zeroes behind the facts of EXPORT_NAME, as servers of old do.
    pub(crate) sends_zeroes: bool,
    /// Bytes of its first reply, of these requests, after which the server closes the connection.
    pub(crate) cut: Option<(u16, usize)>,
    /// Number of requests after which the server falls.
    pub(crate) falls_after: Option<usize>,
    pub(crate) pause: Option<Pause>,
}

/// HAS_FLAGS, SEND_FLUSH, SEND_FUA, SEND_TRIM.
pub(crate) const FLAGS: u16 = 1 | 4 | 8 | 32;
pub(crate) const MULTI_CONN: u16 = 256;

impl Default for Facts {
    fn default() -> Self {
        Self {
            style: Style::Structured,
            size: SIZE as u64,
            flags: FLAGS,
            blocks: None,
            knows_go: true,
            lie: None,
            lie_to: None,
            lie_on: 0,
            option_lie: None,
            sends_zeroes: false,
            cut: None,
            falls_after: None,
            pause: None,
        }
    }
}

/// Bytes of the export.
pub(crate) struct Disk {
    /// Bytes that clients read.
    pub(crate) cached: Vec<u8>,
    /// Bytes that a power cut leaves.
    pub(crate) stable: Vec<u8>,
    /// Blocks of 512 bytes that differ.
    dirty: BTreeSet<usize>,
}

impl Disk {
    fn write(&mut self, offset: usize, data: &[u8]) {
        self.cached[offset..offset + data.len()].copy_from_slice(data);
        self.dirty.extend(offset / 512..(offset + data.len()).div_ceil(512));
    }

    fn flush(&mut self) {
        for block in std::mem::take(&mut self.dirty) {
            self.keep(block);
        }
    }

    fn keep(&mut self, block: usize) {
        let range = block * 512..(block + 1) * 512;
        self.stable[range.clone()].copy_from_slice(&self.cached[range]);
    }
}

pub(crate) struct Fake {
    _dir: tempfile::TempDir,
    socket: PathBuf,
    shared: Arc<Shared>,
}

struct Shared {
    facts: Mutex<Facts>,
    disk: Mutex<Disk>,
    connections: AtomicUsize,
    /// Sockets of clients, to be cut.
    clients: Mutex<Vec<UnixStream>>,
    requests: AtomicUsize,
    /// Replies of honest answers that were sent.
    replies: AtomicUsize,
    lied: Mutex<bool>,
    /// Refuses connections as long as it is set.
    down: Mutex<bool>,
}

impl Fake {
    pub(crate) fn start(facts: Facts) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let bytes = contents(0, SIZE);
        let disk = Disk { cached: bytes.clone(), stable: bytes, dirty: BTreeSet::new() };
        let shared = Arc::new(Shared {
            facts: Mutex::new(facts),
            disk: Mutex::new(disk),
            connections: AtomicUsize::new(0),
            clients: Mutex::default(),
            requests: AtomicUsize::new(0),
            replies: AtomicUsize::new(0),
            lied: Mutex::new(false),
            down: Mutex::new(false),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, shared) = (client.unwrap(), Arc::clone(&accepting));
                // The socket is closed unanswered.
                if *shared.down.lock().unwrap() {
                    continue;
                }
                let number = shared.connections.fetch_add(1, Ordering::SeqCst);
                shared.clients.lock().unwrap().push(client.try_clone().unwrap());
                // A client that leaves ends its thread.
                std::thread::spawn(move || {
                    let end = client.try_clone().unwrap();
                    drop(shared.serve(client, number));
                    end.shutdown(std::net::Shutdown::Both)
                });
            }
        });
        Self { _dir: dir, socket, shared }
    }

    pub(crate) fn uri(&self) -> NbdUri {
        NbdUri::parse(&format!("nbd+unix:///?socket={}", self.socket.display())).unwrap()
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn open(&self, options: &StoreOptions) -> Result<NbdStore, OpenError> {
        NbdStore::open(&self.uri(), options, false)
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    pub(crate) fn replies(&self) -> usize {
        self.shared.replies.load(Ordering::SeqCst)
    }

    pub(crate) fn disk(&self) -> std::sync::MutexGuard<'_, Disk> {
        self.shared.disk.lock().unwrap()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Facts)) {
        change(&mut self.shared.facts.lock().unwrap());
    }

    /// Ends one connection.
    pub(crate) fn cut(&self, index: usize) {
        self.shared.clients.lock().unwrap()[index].shutdown(std::net::Shutdown::Both).unwrap();
    }

    /// Ends all connections, and refuses others until [`Fake::rise`].
    pub(crate) fn fall(&self) {
        self.shared.fall();
    }

    pub(crate) fn rise(&self) {
        *self.shared.down.lock().unwrap() = false;
    }

    /// Dies as by a power cut: of the blocks that were not flushed, `keeps` decides which ones remain, eight at a time,
    /// so that none of 4096 bytes is torn.
    pub(crate) fn lose_power(&self, mut keeps: impl FnMut() -> bool) {
        // Nothing is carried out between the end of the connections and that of the cache.
        let mut disk = self.shared.disk.lock().unwrap();
        self.fall();
        let mut last = (usize::MAX, false);
        for block in std::mem::take(&mut disk.dirty) {
            if last.0 != block / 8 {
                last = (block / 8, keeps());
            }
            if last.1 {
                disk.keep(block);
            }
        }
        disk.cached = disk.stable.clone();
        disk.dirty.clear();
    }
}

impl Shared {
    fn fall(&self) {
        *self.down.lock().unwrap() = true;
        for client in self.clients.lock().unwrap().drain(..) {
            let _ = client.shutdown(std::net::Shutdown::Both);
        }
    }

    fn serve(&self, mut client: UnixStream, number: usize) -> std::io::Result<()> {
        let facts = self.facts.lock().unwrap().clone();
        let mut greeting = magic::SERVER.to_be_bytes().to_vec();
        greeting.extend(magic::OPTION.to_be_bytes());
        greeting.extend([0, if facts.sends_zeroes { 1 } else { 3 }]);
        client.write_all(&greeting)?;
        receive(&mut client, 4)?;
        let Some(style) = options(&mut client, &facts)? else { return Ok(()) };
        while let Some(asked) = request(&mut client, style)? {
            let is_meant = number == facts.lie_on && facts.lie_to.is_none_or(|kind| kind == asked.kind);
            let lie = facts.lie.filter(|_| is_meant && !*self.lied.lock().unwrap());
            match lie.and_then(|lie| lie(&mut client, &asked)) {
                Some(After::Close) => {
                    *self.lied.lock().unwrap() = true;
                    return client.shutdown(std::net::Shutdown::Both);
                }
                Some(After::Stall) => {
                    *self.lied.lock().unwrap() = true;
                    // Until the client leaves.
                    while client.read(&mut [0; 4096])? > 0 {}
                    return Ok(());
                }
                Some(After::Ignore) => {}
                Some(After::GoOn) => {
                    *self.lied.lock().unwrap() = true;
                    if asked.kind == command::WRITE {
                        receive(&mut client, asked.len as usize)?;
                    }
                }
                None => self.answer(&mut client, &asked, &facts)?,
            }
        }
        Ok(())
    }

    fn answer(&self, client: &mut UnixStream, asked: &Asked, facts: &Facts) -> std::io::Result<()> {
        let payload = if asked.kind == command::WRITE { receive(client, asked.len as usize)? } else { Vec::new() };
        let pause = |stage| facts.pause.iter().for_each(|pause| pause(asked, stage));
        pause(Stage::Arrived);
        let (offset, len) = (asked.offset as usize, asked.len as usize);
        let is_last;
        let reply = {
            let mut disk = self.disk.lock().unwrap();
            // A connection that was cut is no longer served.
            if *self.down.lock().unwrap() {
                return Ok(());
            }
            let requests = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
            let limit = self.facts.lock().unwrap().falls_after;
            is_last = limit.is_some_and(|limit| requests >= limit);
            match asked.kind {
                command::READ => asked.data(asked.offset, &disk.cached[offset..offset + len], true),
                command::WRITE => {
                    disk.write(offset, &payload);
                    if asked.flags & 1 != 0 {
                        (offset / 512..(offset + len).div_ceil(512)).for_each(|block| {
                            disk.keep(block);
                            disk.dirty.remove(&block);
                        });
                    }
                    asked.done()
                }
                command::FLUSH => {
                    disk.flush();
                    asked.done()
                }
                command::TRIM => {
                    disk.write(offset, &vec![0; len]);
                    asked.done()
                }
                // The first half of the export is a hole.
                command::BLOCK_STATUS => {
                    let half = SIZE as u64 / 2;
                    let hole = asked.offset < half;
                    let end = if hole { half.min(asked.offset + asked.len) } else { asked.offset + asked.len };
                    asked.extent(end - asked.offset, if hole { 3 } else { 0 })
                }
                _ => return Ok(()),
            }
        };
        if is_last {
            self.fall();
        }
        pause(Stage::Done);
        let cut = self.facts.lock().unwrap().cut.filter(|(kind, _)| *kind == asked.kind);
        if let Some((_, len)) = cut.filter(|_| !std::mem::replace(&mut *self.lied.lock().unwrap(), true)) {
            client.write_all(&reply[..len])?;
            return client.shutdown(std::net::Shutdown::Both);
        }
        client.write_all(&reply)?;
        self.replies.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// Returns the bytes of a new server's export.
pub(crate) fn contents(offset: usize, len: usize) -> Vec<u8> {
    (offset..offset + len).map(|i| (i / 512 * 7 + i) as u8).collect()
}

impl Asked {
    pub(crate) fn simple(&self, error: u32) -> Vec<u8> {
        [&magic::SIMPLE_REPLY.to_be_bytes()[..], &error.to_be_bytes(), &self.cookie.to_be_bytes()].concat()
    }

    /// A chunk with this payload.
    pub(crate) fn chunk(&self, kind: u16, is_last: bool, payload: &[u8]) -> Vec<u8> {
        [self.head(kind, is_last, payload.len() as u64), payload.to_vec()].concat()
    }

    /// The header of a chunk.
    pub(crate) fn head(&self, kind: u16, is_last: bool, len: u64) -> Vec<u8> {
        let extended = self.style == Style::Extended;
        let start = if extended { magic::EXTENDED_REPLY } else { magic::STRUCTURED_REPLY };
        let mut head = start.to_be_bytes().to_vec();
        head.extend(u16::from(is_last).to_be_bytes());
        head.extend(kind.to_be_bytes());
        head.extend(self.cookie.to_be_bytes());
        if extended {
            head.extend(self.offset.to_be_bytes());
            head.extend(len.to_be_bytes());
        } else {
            head.extend((len as u32).to_be_bytes());
        }
        head
    }

    pub(crate) fn data(&self, offset: u64, bytes: &[u8], is_last: bool) -> Vec<u8> {
        match self.style {
            Style::Simple => [self.simple(0), bytes.to_vec()].concat(),
            _ => self.chunk(1, is_last, &[&offset.to_be_bytes()[..], bytes].concat()),
        }
    }

    pub(crate) fn hole(&self, offset: u64, len: u32, is_last: bool) -> Vec<u8> {
        self.chunk(2, is_last, &[&offset.to_be_bytes()[..], &len.to_be_bytes()].concat())
    }

    pub(crate) fn done(&self) -> Vec<u8> {
        if self.style == Style::Extended { self.chunk(0, true, &[]) } else { self.simple(0) }
    }

    pub(crate) fn error(&self, number: u32) -> Vec<u8> {
        match self.style {
            Style::Simple => self.simple(number),
            _ => self.chunk(1 << 15 | 1, true, &[&number.to_be_bytes()[..], &[0, 0]].concat()),
        }
    }

    pub(crate) fn extent(&self, len: u64, flags: u32) -> Vec<u8> {
        match self.style {
            Style::Extended => {
                let extent = [len.to_be_bytes(), u64::from(flags).to_be_bytes()].concat();
                self.chunk(6, true, &[&1u32.to_be_bytes()[..], &1u32.to_be_bytes(), &extent].concat())
            }
            _ => {
                let extent = [(len as u32).to_be_bytes(), flags.to_be_bytes()].concat();
                self.chunk(5, true, &[&1u32.to_be_bytes()[..], &extent].concat())
            }
        }
    }
}

pub(crate) fn receive(client: &mut UnixStream, len: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    client.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn request(client: &mut UnixStream, style: Style) -> std::io::Result<Option<Asked>> {
    let extended = style == Style::Extended;
    let head = receive(client, if extended { 32 } else { 28 })?;
    let expected = if extended { magic::EXTENDED_REQUEST } else { magic::REQUEST };
    assert_eq!(be32(&head), expected, "the client's magic");
    let len = if extended { be64(&head[24..]) } else { be32(&head[24..]).into() };
    let (flags, kind) = (be16(&head[4..]), be16(&head[6..]));
    let asked = Asked { style, flags, kind, cookie: be64(&head[8..]), offset: be64(&head[16..]), len };
    Ok((kind != command::DISC).then_some(asked))
}

/// Answers options until GO or EXPORT_NAME.
fn options(client: &mut UnixStream, facts: &Facts) -> std::io::Result<Option<Style>> {
    let mut style = Style::Simple;
    loop {
        let head = receive(client, 16)?;
        assert_eq!(be64(&head), magic::OPTION, "the client's magic");
        let (number, len) = (be32(&head[8..]), be32(&head[12..]));
        receive(client, len as usize)?;
        match facts.option_lie.and_then(|lie| lie(client, number)) {
            Some(After::GoOn | After::Ignore) => continue,
            Some(After::Close) => return client.shutdown(std::net::Shutdown::Both).map(|()| None),
            Some(After::Stall) => {
                while client.read(&mut [0; 4096])? > 0 {}
                return Ok(None);
            }
            None => {}
        }
        let kind = match number {
            option::EXTENDED_HEADERS if facts.style == Style::Extended => {
                style = Style::Extended;
                option_reply::ACK
            }
            option::STRUCTURED_REPLY if facts.style >= Style::Structured => {
                style = Style::Structured;
                option_reply::ACK
            }
            option::SET_META_CONTEXT => {
                reply(client, number, option_reply::META_CONTEXT, b"\0\0\0\x01base:allocation")?;
                option_reply::ACK
            }
            option::GO if facts.knows_go => {
                reply(client, number, option_reply::INFO, &export(facts.size, facts.flags))?;
                if let Some(blocks) = facts.blocks {
                    reply(client, number, option_reply::INFO, &block_info(blocks))?;
                }
                reply(client, number, option_reply::ACK, &[])?;
                return Ok(Some(style));
            }
            option::EXPORT_NAME => {
                let zeroes = if facts.sends_zeroes { 124 } else { 0 };
                client.write_all(&[&export(facts.size, facts.flags)[2..], &vec![0; zeroes]].concat())?;
                return Ok(Some(style));
            }
            _ => option_reply::ERR_UNSUP,
        };
        reply(client, number, kind, &[])?;
    }
}

pub(crate) fn export(size: u64, flags: u16) -> Vec<u8> {
    [&[0, 0][..], &size.to_be_bytes(), &flags.to_be_bytes()].concat()
}

pub(crate) fn block_info(blocks: [u32; 3]) -> Vec<u8> {
    let sizes: Vec<u8> = blocks.iter().flat_map(|size| size.to_be_bytes()).collect();
    [&[0, 3][..], &sizes].concat()
}

/// Sends a reply to an option.
pub(crate) fn reply(client: &mut UnixStream, number: u32, kind: u32, data: &[u8]) -> std::io::Result<()> {
    let head = [number.to_be_bytes(), kind.to_be_bytes(), (data.len() as u32).to_be_bytes()].concat();
    client.write_all(&[&magic::OPTION_REPLY.to_be_bytes()[..], &head, data].concat())
}

/// Options of tests: short times.
pub(crate) fn quick() -> StoreOptions {
    let mut options = StoreOptions::default();
    options.connect_timeout = Duration::from_secs(1);
    options.reconnect_delay = Duration::from_secs(20);
    options.store_timeout = Duration::from_secs(20);
    options
}
