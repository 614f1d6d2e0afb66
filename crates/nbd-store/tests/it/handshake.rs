//! Handshakes: dialects that work, and servers that lie, refuse or stall.

use crate::fake::{After, FLAGS, Facts, Fake, SIZE, Style, block_info, contents, export, quick, reply};
use inlock_engine::store::{read_all, write_all, write_all_vectored};
use inlock_engine::{BackingStore, BlockStatus, Errno};
use inlock_nbd_store::{NbdStore, NbdUri, OpenError};
use inlock_tests::nbd::{magic, option, option_reply};
use inlock_tests::report::count;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
use std::io::{IoSlice, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Every dialect gives the same bytes, and extents where it has them.
#[test]
fn every_dialect_reads_writes_and_flushes() {
    let base = Facts::default();
    let dialects = [
        ("simple", Facts { style: Style::Simple, ..base.clone() }, false),
        ("structured", base.clone(), true),
        ("extended", Facts { style: Style::Extended, ..base.clone() }, true),
        ("without GO", Facts { knows_go: false, ..base.clone() }, true),
        ("with zeroes", Facts { knows_go: false, sends_zeroes: true, ..base.clone() }, true),
        ("blocks of 512", Facts { blocks: Some([512, 4096, 65536]), ..base.clone() }, true),
        ("blocks of 4096", Facts { blocks: Some([4096, 4096, 8192]), ..base.clone() }, true),
        ("short payloads", Facts { blocks: Some([512, 4096, 4096]), ..base.clone() }, true),
        ("several connections", Facts { flags: FLAGS | crate::fake::MULTI_CONN, ..base.clone() }, true),
        ("without FUA", Facts { flags: 1 | 4, ..base }, true),
    ];
    for (name, facts, has_extents) in dialects {
        let fake = Fake::start(facts);
        let before = fake.disk().cached.clone();
        let store = fake.open(&quick()).unwrap();
        assert_eq!(store.geometry().len, SIZE as u64, "{name}");
        // Also parts of blocks, as headers have them.
        for (offset, len) in [(0, 4096), (4096, 100_000), (100, 5000), (SIZE - 592, 592), (12_288, 1)] {
            let mut bytes = vec![0; len];
            read_all(&store, &mut bytes, offset as u64).unwrap();
            assert!(bytes == before[offset..offset + len], "{name}: {len} bytes at {offset}");
        }
        let mut expected = before;
        for (offset, len, byte) in [(8192, 4096, 1), (20_000, 3, 2), (65_000, 70_000, 3), (SIZE - 10, 10, 4)] {
            write_all(&store, &vec![byte; len], offset as u64).unwrap();
            expected[offset..offset + len].fill(byte);
        }
        store.sync().unwrap();
        assert!(fake.disk().stable == expected, "{name}");
        assert_eq!(store.read_at(&mut [0; 10], SIZE as u64), Ok(0), "{name}: at the end");
        let found = store.block_status(0, SIZE as u64).unwrap();
        assert_eq!((found.hole, found.len), if has_extents { (true, SIZE as u64 / 2) } else { (false, SIZE as u64) });
        assert!(!store.block_status(SIZE as u64 / 2, 4096).unwrap().hole);
        // Parts of the server's blocks, too, and never longer than asked for.
        let half = SIZE as u64 / 2;
        let parts = [(512, half, half - 512), (1, half - 1, half - 1), (half - 100, 50, 50), (4096, 3, 3)];
        for (offset, len, hole) in parts.into_iter().filter(|_| has_extents) {
            assert_eq!(store.block_status(offset, len).unwrap(), BlockStatus::hole(offset, hole), "{name}");
        }
        let end = SIZE as u64 - 9;
        for (offset, len) in [(half, 1), (half + 512, 4096), (end, 9)] {
            assert_eq!(store.block_status(offset, len).unwrap(), BlockStatus::allocated(offset, len), "{name}");
        }
        drop(store);
    }
}

/// A journal writes from many places of its memory: the server sees one request.
#[test]
fn parts_of_a_write_are_one_request() {
    let fake = Fake::start(Facts::default());
    let store = fake.open(&quick()).unwrap();
    let bytes: Vec<u8> = (0..100_000_u32).map(|at| at as u8).collect();
    let mut parts: Vec<_> = bytes.chunks(512).map(IoSlice::new).collect();
    let before = fake.requests();
    write_all_vectored(&store, &mut parts, 4096).unwrap();
    assert_eq!(fake.requests(), before + 1);
    assert!(fake.disk().cached[4096..4096 + bytes.len()] == bytes);
}

/// Exports whose length is no multiple of their blocks, or as long as the protocol allows: what is no whole block fails
/// alone.
#[test]
fn export_of_any_length_is_used_as_far_as_it_has_blocks() {
    let blocks = Some([512, 4096, 65536]);
    let odd = Fake::start(Facts { size: 10_000, blocks, ..Facts::default() });
    let store = odd.open(&quick()).unwrap();
    let mut bytes = vec![0; 9728];
    read_all(&store, &mut bytes, 0).unwrap();
    assert!(bytes == contents(0, 9728));
    assert_eq!(read_all(&store, &mut [0; 10], 9990), Err(Errno::INVAL));
    assert_eq!(store.write_at(&[1; 10], 9990), Err(Errno::INVAL));
    assert_eq!(store.write_at(&[1; 512], 9216), Ok(512));
    assert_eq!(store.sync(), Ok(()));
    let longest = Fake::start(Facts { size: i64::MAX as u64, ..Facts::default() });
    let store = longest.open(&quick()).unwrap();
    assert_eq!(store.geometry().len, i64::MAX as u64);
    assert_eq!(store.read_at(&mut bytes, 0), Ok(9728));
    let empty = Fake::start(Facts { size: 0, blocks, ..Facts::default() });
    let store = empty.open(&quick()).unwrap();
    assert_eq!(store.read_at(&mut bytes, 0), Ok(0));
    assert_eq!(store.write_at(&[1; 512], 0), Err(Errno::NOSPC));
    assert_eq!((odd.connections(), longest.connections(), empty.connections()), (1, 1, 1));
}

/// Answers before the options.
const GREETINGS: [(&str, &[u8], &str); 5] = [
    ("no NBD", b"SSH-2.0-OpenSSH_9.2p1\r\n", "the server speaks no NBD"),
    ("oldstyle", b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53", "only oldstyle"),
    ("not fixed", b"NBDMAGICIHAVEOPT\x00\x00", "does not speak fixed newstyle"),
    ("closed at once", b"", "closed the connection"),
    ("closed within the greeting", b"NBDMAGICIHAVE", "closed the connection"),
];

type Case = (&'static str, fn(&mut UnixStream, u32) -> Option<After>, &'static str);

fn at_go(client: &mut UnixStream, number: u32, replies: &[(u32, &[u8])]) -> Option<After> {
    if number != option::GO {
        return None;
    }
    // The client may have left already.
    replies.iter().for_each(|(kind, data)| drop(reply(client, number, *kind, data)));
    Some(After::Stall)
}

fn blocks_of(client: &mut UnixStream, number: u32, blocks: [u32; 3]) -> Option<After> {
    let info = (option_reply::INFO, &export(SIZE as u64, FLAGS)[..]);
    at_go(client, number, &[info, (option_reply::INFO, &block_info(blocks)), (option_reply::ACK, &[])])
}

/// Answers to options.
const CASES: [Case; 35] = [
    ("wrong option reply magic", |c, _| c.write_all(&[7; 20]).map(|()| After::Stall).ok(), "violates the protocol"),
    ("reply to another option", |c, n| reply(c, n + 1, 1, &[]).map(|()| After::Stall).ok(), "violates the protocol"),
    (
        "option reply of 4 GiB",
        |c, n| {
            let head = [&magic::OPTION_REPLY.to_be_bytes()[..], &n.to_be_bytes(), &[0, 0, 0, 1], &[255; 4]].concat();
            c.write_all(&head).map(|()| After::Stall).ok()
        },
        "violates the protocol",
    ),
    (
        "information as a reply to a style",
        |c, n| reply(c, n, option_reply::INFO, &[]).map(|()| After::Stall).ok(),
        "violates the protocol",
    ),
    ("TLS required at once", |c, n| reply(c, n, 1 << 31 | 5, &[]).map(|()| After::GoOn).ok(), "requires TLS"),
    ("TLS required for the export", |c, n| at_go(c, n, &[(1 << 31 | 5, &[])]), "requires TLS"),
    (
        "TLS required for extents",
        |c, n| (n == option::SET_META_CONTEXT).then(|| reply(c, n, 1 << 31 | 5, &[]).map(|()| After::GoOn).ok())?,
        "requires TLS",
    ),
    ("unknown export", |c, n| at_go(c, n, &[(option_reply::ERR_UNKNOWN, &[])]), "the server has no export ''"),
    (
        "policy with a text",
        |c, n| at_go(c, n, &[(option_reply::ERR_POLICY, b"not\x1b[2J you")]),
        "refuses the export: not?[2J you",
    ),
    ("shutting down", |c, n| at_go(c, n, &[(1 << 31 | 7, &[])]), "refuses the export"),
    ("acknowledged without facts", |c, n| at_go(c, n, &[(option_reply::ACK, &[])]), "violates the protocol"),
    (
        "facts that are too short",
        |c, n| at_go(c, n, &[(option_reply::INFO, &[0, 0, 1]), (option_reply::ACK, &[])]),
        "violates the protocol",
    ),
    (
        "endless information",
        |c, n| {
            if n != option::GO {
                return None;
            }
            while reply(c, n, option_reply::INFO, &[0, 9, 9]).is_ok() {}
            Some(After::Close)
        },
        "violates the protocol",
    ),
    (
        "endless contexts",
        |c, n| {
            if n != option::SET_META_CONTEXT {
                return None;
            }
            while reply(c, n, option_reply::META_CONTEXT, b"\0\0\0\x01base:allocation").is_ok() {}
            Some(After::Close)
        },
        "violates the protocol",
    ),
    ("least block 0", |c, n| blocks_of(c, n, [0, 512, 512]), "block sizes 0"),
    ("least block 3", |c, n| blocks_of(c, n, [3, 512, 512]), "block sizes 3"),
    ("least block too large", |c, n| blocks_of(c, n, [1 << 17, 1 << 17, 1 << 17]), "block sizes 131072"),
    ("preferred below least", |c, n| blocks_of(c, n, [512, 256, 512]), "block sizes 512, 256"),
    ("greatest no multiple", |c, n| blocks_of(c, n, [512, 512, 700]), "block sizes 512, 512 and 700"),
    ("greatest below least", |c, n| blocks_of(c, n, [4096, 4096, 512]), "block sizes 4096"),
    (
        "size beyond 2^63",
        |c, n| {
            let info = (option_reply::INFO, &export(1 << 63, FLAGS)[..]);
            at_go(c, n, &[info, (option_reply::ACK, &[])])
        },
        "more than 2^63",
    ),
    (
        "size of all bits",
        |c, n| at_go(c, n, &[(option_reply::INFO, &export(u64::MAX, FLAGS)), (option_reply::ACK, &[])]),
        "more than 2^63",
    ),
    ("preferred block no power of two", |c, n| blocks_of(c, n, [512, 768, 4096]), "block sizes 512, 768"),
    ("preferred block 0", |c, n| blocks_of(c, n, [1, 0, 4096]), "block sizes 1, 0"),
    ("preferred above greatest", |c, n| blocks_of(c, n, [512, 65536, 4096]), "block sizes 512, 65536 and 4096"),
    ("greatest block 0", |c, n| blocks_of(c, n, [1, 1, 0]), "block sizes 1, 1 and 0"),
    ("block sizes cut off", |c, n| at_go(c, n, &[(option_reply::INFO, &[0, 3, 0, 0, 2, 0])]), "violates the protocol"),
    (
        "two sizes",
        |c, n| {
            let infos = [SIZE as u64, 4096].map(|size| export(size, FLAGS));
            let [one, other] = [0, 1].map(|at| (option_reply::INFO, &infos[at][..]));
            at_go(c, n, &[one, other, (option_reply::ACK, &[])])
        },
        "violates the protocol",
    ),
    (
        "writable and read-only",
        |c, n| {
            let infos = [FLAGS, FLAGS | 2].map(|flags| export(SIZE as u64, flags));
            let [one, other] = [0, 1].map(|at| (option_reply::INFO, &infos[at][..]));
            at_go(c, n, &[one, other, (option_reply::ACK, &[])])
        },
        "violates the protocol",
    ),
    (
        "two block sizes",
        |c, n| {
            let blocks = [[1, 4096, 8192], [512, 4096, 8192]].map(block_info);
            let [one, other] = [0, 1].map(|at| (option_reply::INFO, &blocks[at][..]));
            let info = (option_reply::INFO, &export(SIZE as u64, FLAGS)[..]);
            at_go(c, n, &[info, one, other, (option_reply::ACK, &[])])
        },
        "violates the protocol",
    ),
    ("longest text", |c, n| at_go(c, n, &[(option_reply::ERR_POLICY, &[b'x'; 16 << 10])]), "refuses the export: xxx"),
    (
        "text longer than the longest",
        |c, n| at_go(c, n, &[(option_reply::ERR_POLICY, &[b'x'; (16 << 10) + 1])]),
        "violates the protocol",
    ),
    (
        "reply drop by drop",
        |c, n| {
            if n != option::GO {
                return None;
            }
            let head = [&magic::OPTION_REPLY.to_be_bytes()[..], &n.to_be_bytes(), &[0, 0, 0, 3, 0, 0, 64, 0]].concat();
            let _ = c.write_all(&head);
            while c.write_all(&[0]).is_ok() {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            Some(After::Close)
        },
        "no answer from",
    ),
    ("closed at GO", |_, n| (n == option::GO).then_some(After::Close), "closed the connection"),
    ("stalled at GO", |_, n| (n == option::GO).then_some(After::Stall), "no answer from"),
];

/// A listener whose queue of clients stays full: one that is stopped.
fn full_queue(path: &Path) -> (OwnedFd, UnixStream) {
    let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&listener, 0).unwrap();
    (listener, UnixStream::connect(path).unwrap())
}

/// Each fails with its reason within the time limit, and a store of the same process opens an honest server.
#[test]
fn hostile_handshake_fails_in_time_with_its_reason() {
    let chain = |error: &OpenError| match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    let mut cases = 0;
    let mut judge = |name: &str, uri: &NbdUri, reason: &str| {
        let begun = Instant::now();
        let error = NbdStore::open(uri, &quick(), false).map(drop).unwrap_err();
        assert!(chain(&error).contains(reason), "{name}: {}", chain(&error));
        assert!(begun.elapsed() < Duration::from_secs(3), "{name}: {:?}", begun.elapsed());
        cases += 1;
    };
    for (name, greeting, reason) in GREETINGS {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let mut client = listener.accept().unwrap().0;
            client.write_all(greeting).unwrap();
        });
        let uri = NbdUri::parse(&format!("nbd+unix:///?socket={}", socket.display())).unwrap();
        judge(name, &uri, reason);
        server.join().unwrap();
    }
    for (name, lie, reason) in CASES {
        let fake = Fake::start(Facts { style: Style::Extended, option_lie: Some(lie), ..Facts::default() });
        judge(name, &fake.uri(), reason);
    }
    let dir = tempfile::tempdir().unwrap();
    let silent = dir.path().join("silent");
    let _listener = UnixListener::bind(&silent).unwrap();
    judge("silence", &NbdUri::parse(&format!("nbd+unix:///?socket={}", silent.display())).unwrap(), "no answer from");
    let full = dir.path().join("full");
    let _queue = full_queue(&full);
    judge("full queue", &NbdUri::parse(&format!("nbd+unix:///?socket={}", full.display())).unwrap(), "no answer from");
    judge("no server", &NbdUri::parse("nbd+unix:///?socket=/nowhere/s").unwrap(), "cannot connect to /nowhere/s");
    judge("no listener", &NbdUri::parse("nbd://127.0.0.1:1/").unwrap(), "cannot connect to 127.0.0.1:1");
    count("nbd_store_hostile_handshakes", cases);
    assert!(cases >= 44);
    Fake::start(Facts::default()).open(&quick()).unwrap();
}

/// Nothing else is said without TLS.
#[test]
fn server_that_requires_tls_is_asked_once() {
    static ASKED: Mutex<Vec<u32>> = Mutex::new(Vec::new());
    let refuse = |client: &mut UnixStream, number| {
        ASKED.lock().unwrap().push(number);
        reply(client, number, 1 << 31 | 5, &[]).map(|()| After::GoOn).ok()
    };
    let fake = Fake::start(Facts { option_lie: Some(refuse), ..Facts::default() });
    assert!(matches!(fake.open(&quick()), Err(OpenError::TlsRequired)));
    assert_eq!(*ASKED.lock().unwrap(), [option::EXTENDED_HEADERS]);
}

/// Whether a server has no extents, or has them on one of its connections only: it is not asked for them.
#[test]
fn server_that_refuses_extents_is_used_without() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let refuse = |client: &mut UnixStream, number| {
        let is_refused = number == option::SET_META_CONTEXT && ASKED.fetch_add(1, Ordering::SeqCst) != 1;
        is_refused.then(|| reply(client, number, option_reply::ERR_UNSUP, &[]).map(|()| After::GoOn).ok())?
    };
    for _ in 0..2 {
        let flags = FLAGS | crate::fake::MULTI_CONN;
        let fake = Fake::start(Facts { flags, option_lie: Some(refuse), ..Facts::default() });
        let store = fake.open(&quick()).unwrap();
        assert_eq!(store.block_status(0, 4096), Ok(BlockStatus::allocated(0, 4096)));
        assert_eq!((fake.connections(), fake.requests()), (2, 0));
    }
    assert_eq!(ASKED.load(Ordering::SeqCst), 4);
}

/// A server without GO that has no such export closes the connection instead of an answer. One that closes it before
/// it has the name, or within its answer, has said nothing about the export.
#[test]
fn connection_that_ends_around_the_name_of_the_export_is_named() {
    fn end(client: &mut UnixStream, number: u32, at: u32, bytes: &[u8]) -> Option<After> {
        // The client may have left.
        (number == at).then(|| client.write_all(bytes).map_or(After::Close, |()| After::Close))
    }
    let deaf = |client: &mut UnixStream, number| {
        if number == option::GO {
            client.shutdown(Shutdown::Read).unwrap();
            reply(client, number, option_reply::ERR_UNSUP, &[]).unwrap();
        }
        end(client, number, option::GO, &[])
    };
    let cases: [(crate::fake::OptionLie, &str); 3] = [
        (deaf, "closed the connection"),
        (|c, n| end(c, n, option::EXPORT_NAME, &[]), "the server has no export ''"),
        (
            |c, n| end(c, n, option::EXPORT_NAME, &[&export(SIZE as u64, FLAGS)[2..], &[0; 123]].concat()),
            "closed the connection",
        ),
    ];
    for (lie, reason) in cases {
        let facts = Facts { knows_go: false, sends_zeroes: true, option_lie: Some(lie), ..Facts::default() };
        let error = Fake::start(facts).open(&quick()).map(drop).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}
