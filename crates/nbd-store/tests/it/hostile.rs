//! Servers that lie in the transmission phase: the connection is dropped, and the request made again or failed.

use crate::fake::{After, Asked, FLAGS, Facts, Fake, Lie, MULTI_CONN, SIZE, Style, contents, quick};
use inlock_engine::{BackingStore, BlockStatus, Errno};
use inlock_nbd_store::{NbdStore, NbdUri};
use inlock_tests::nbd::command;
use inlock_tests::report::count;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

/// Reaction of the store.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Expect {
    /// The request succeeds over another connection.
    Recovers,
    /// The request fails, over the same connection.
    Fails(Errno),
    /// The request succeeds over the same connection.
    Succeeds,
    /// The request fails when its time is over, and the next one succeeds.
    TimesOut,
}
use Expect::{Fails, Recovers, Succeeds, TimesOut};
use Style::{Extended, Simple, Structured};

struct Case {
    name: &'static str,
    style: Style,
    /// Kind of the requests that get the lie.
    kind: u16,
    lie: Lie,
    expect: Expect,
}

const fn case(name: &'static str, style: Style, kind: u16, lie: Lie, expect: Expect) -> Case {
    Case { name, style, kind, lie, expect }
}

/// Sends bytes to a client that may have left.
fn send(client: &mut UnixStream, bytes: &[u8], after: After) -> Option<After> {
    let _ = client.write_all(bytes);
    Some(after)
}

/// Sends bytes, and goes on as if they had been right.
fn lie(client: &mut UnixStream, bytes: &[u8]) -> Option<After> {
    send(client, bytes, After::Stall)
}

const READ: u16 = command::READ;
const WRITE: u16 = command::WRITE;
const FLUSH: u16 = command::FLUSH;
const STATUS: u16 = command::BLOCK_STATUS;
/// Offset and length of the requests.
const AT: u64 = 8192;
const LEN: usize = 4096;

const CASES: [Case; 85] = [
    case("wrong magic", Structured, READ, |c, _| lie(c, &[9; 20]), Recovers),
    case("structured reply in a simple dialogue", Simple, READ, |c, a| lie(c, &a.chunk(0, true, &[])), Recovers),
    case("compact reply in an extended dialogue", Extended, WRITE, |c, a| lie(c, &a.simple(0)), Recovers),
    case("simple reply with the data of a structured read", Structured, READ, |c, a| lie(c, &a.simple(0)), Recovers),
    case("cookie of no request", Simple, READ, |c, a| lie(c, &with_cookie(a, 77).simple(0)), Recovers),
    case("cookie of no slot", Structured, READ, |c, a| lie(c, &with_cookie(a, 255).chunk(0, true, &[])), Recovers),
    case("cookie 0", Extended, FLUSH, |c, a| lie(c, &with_cookie(a, 0).done()), Recovers),
    case(
        "cookie with another high half",
        Structured,
        READ,
        |c, a| lie(c, &with_cookie(a, a.cookie ^ 1 << 40).data(AT, &[1; LEN], true)),
        Recovers,
    ),
    case("reply twice", Structured, FLUSH, |c, a| lie(c, &[a.done(), a.done()].concat()), Succeeds),
    case("unknown chunk", Structured, READ, |c, a| lie(c, &a.chunk(7, true, &[0; 8])), Recovers),
    case("unknown chunk without end", Extended, READ, |c, a| lie(c, &a.head(99, false, 1 << 60)), Recovers),
    case("empty chunk with bytes", Structured, READ, |c, a| lie(c, &a.chunk(0, true, &[1])), Recovers),
    case("empty chunk that is not the last", Structured, READ, |c, a| lie(c, &a.chunk(0, false, &[])), Recovers),
    case("no data", Structured, READ, |c, a| lie(c, &a.chunk(0, true, &[])), Recovers),
    case("no data, extended", Extended, READ, |c, a| lie(c, &a.done()), Recovers),
    case("data chunk without data", Structured, READ, |c, a| lie(c, &a.data(AT, &[], true)), Recovers),
    case("data chunk without offset", Structured, READ, |c, a| lie(c, &a.chunk(1, true, &[0; 7])), Recovers),
    case(
        "data and an empty hole behind them",
        Structured,
        READ,
        |c, a| lie(c, &[a.data(AT, &[1; LEN], false), a.hole(AT + LEN as u64, 0, true)].concat()),
        Recovers,
    ),
    case("data before the range", Structured, READ, |c, a| lie(c, &a.data(AT - 512, &[1; LEN], true)), Recovers),
    case("data behind the range", Structured, READ, |c, a| lie(c, &a.data(AT + 512, &[1; LEN], true)), Recovers),
    case("data elsewhere", Structured, READ, |c, a| lie(c, &a.data(0, &[1; 512], true)), Recovers),
    case("data at the end of all offsets", Extended, READ, |c, a| lie(c, &a.data(u64::MAX, &[1; 512], true)), Recovers),
    case("too much data", Structured, READ, |c, a| lie(c, &a.data(AT, &[1; LEN + 1], true)), Recovers),
    case("chunk of 4 GiB", Structured, READ, |c, a| lie(c, &a.head(1, true, u32::MAX.into())), Recovers),
    case("chunk of 2^63 bytes", Extended, READ, |c, a| lie(c, &a.head(1, true, 1 << 63)), Recovers),
    case("half of the data", Structured, READ, |c, a| lie(c, &a.data(AT, &[1; LEN / 2], true)), Recovers),
    case(
        "all but one byte, in pieces",
        Structured,
        READ,
        |c, a| lie(c, &[a.data(AT + 1, &[1; 2000], false), a.data(AT + 2001, &[1; 2095], true)].concat()),
        Recovers,
    ),
    case(
        "the same data twice",
        Structured,
        READ,
        |c, a| lie(c, &[a.data(AT, &[1; 2048], false), a.data(AT, &[1; 2048], true)].concat()),
        Recovers,
    ),
    case(
        "overlapping data and hole",
        Structured,
        READ,
        |c, a| lie(c, &[a.data(AT, &[1; 2048], false), a.hole(AT + 2047, 2049, true)].concat()),
        Recovers,
    ),
    case(
        "single bytes",
        Structured,
        READ,
        |c, a| lie(c, &(0..2000).flat_map(|i| a.data(AT + 2 * i, &[1], false)).collect::<Vec<_>>()),
        Recovers,
    ),
    case("hole behind the range", Structured, READ, |c, a| lie(c, &a.hole(AT + 4096, 4096, true)), Recovers),
    case("hole that is too long", Structured, READ, |c, a| lie(c, &a.hole(AT, 1 << 30, true)), Recovers),
    case("hole of one byte more", Structured, READ, |c, a| lie(c, &a.hole(AT, LEN as u32 + 1, true)), Recovers),
    case("empty hole", Structured, READ, |c, a| lie(c, &a.hole(AT, 0, true)), Recovers),
    case("hole with a wrong length", Structured, READ, |c, a| lie(c, &a.chunk(2, true, &[0; 13])), Recovers),
    case(
        "other offset repeated",
        Extended,
        READ,
        |c, a| lie(c, &with_offset(a, 0).data(AT, &[1; LEN], true)),
        Recovers,
    ),
    case("extents of a read", Structured, READ, |c, a| lie(c, &a.extent(4096, 0)), Recovers),
    case("data of a write", Structured, WRITE, |c, a| lie(c, &a.data(AT, &[1; LEN], true)), Recovers),
    case("hole of a flush", Structured, FLUSH, |c, a| lie(c, &a.hole(0, 512, true)), Recovers),
    case("data of a flush", Extended, FLUSH, |c, a| lie(c, &a.data(0, &[1; 512], true)), Recovers),
    case("error 0", Structured, READ, |c, a| lie(c, &a.chunk(1 << 15 | 1, true, &[0; 6])), Recovers),
    case("error that is too short", Structured, READ, |c, a| lie(c, &a.chunk(1 << 15 | 1, true, &[0; 5])), Recovers),
    case("error with a text of 4 GiB", Structured, READ, |c, a| lie(c, &a.head(1 << 15 | 1, true, 1 << 31)), Recovers),
    case("garbage", Structured, WRITE, |c, _| lie(c, &[0xa5; 10_000]), Recovers),
    case("end within a head", Structured, READ, |c, a| send(c, &a.head(1, true, 4104)[..11], After::Close), Recovers),
    case(
        "end within data",
        Structured,
        READ,
        |c, a| send(c, &a.data(AT, &[1; LEN], true)[..2000], After::Close),
        Recovers,
    ),
    case("end instead of a reply", Extended, WRITE, |c, _| send(c, &[], After::Close), Recovers),
    case("server shutting down", Structured, WRITE, |c, a| send(c, &a.error(108), After::GoOn), Recovers),
    case("silence", Structured, READ, |c, _| send(c, &[], After::Stall), TimesOut),
    case("silence after a write", Structured, WRITE, |c, _| send(c, &[], After::Stall), TimesOut),
    case("silence after a flush", Simple, FLUSH, |c, _| send(c, &[], After::Stall), TimesOut),
    case("silence within data", Simple, READ, |c, a| lie(c, &[a.simple(0), vec![1; 100]].concat()), TimesOut),
    case("silence within a head", Structured, READ, |c, a| lie(c, &a.head(1, true, 4104)[..13]), TimesOut),
    case("EIO", Structured, READ, |c, a| send(c, &a.error(5), After::GoOn), Fails(Errno::IO)),
    case("EPERM", Simple, READ, |c, a| send(c, &a.error(1), After::GoOn), Fails(Errno::PERM)),
    case("ENOSPC", Extended, READ, |c, a| send(c, &a.error(28), After::GoOn), Fails(Errno::NOSPC)),
    case("unknown error", Structured, READ, |c, a| send(c, &a.error(4), After::GoOn), Fails(Errno::IO)),
    case(
        "error after data",
        Structured,
        READ,
        |c, a| send(c, &[a.data(AT, &[1; 512], false), a.error(5)].concat(), After::GoOn),
        Fails(Errno::IO),
    ),
    case(
        "unknown kind of error",
        Structured,
        READ,
        |c, a| send(c, &a.chunk(1 << 15 | 99, true, &[0, 0, 0, 5, 0, 0]), After::GoOn),
        Fails(Errno::IO),
    ),
    case(
        "data after an error",
        Structured,
        READ,
        |c, a| send(c, &[error(a, 5), a.data(AT, &[1; LEN], true)].concat(), After::GoOn),
        Fails(Errno::IO),
    ),
    case(
        "data after an error, extended",
        Extended,
        READ,
        |c, a| send(c, &[error(a, 28), a.data(AT, &[1; LEN], true)].concat(), After::GoOn),
        Fails(Errno::NOSPC),
    ),
    case(
        "error after all data",
        Structured,
        READ,
        |c, a| send(c, &[a.data(AT, &[1; LEN], false), a.error(5)].concat(), After::GoOn),
        Fails(Errno::IO),
    ),
    case(
        "end without a word after an error",
        Extended,
        WRITE,
        |c, a| send(c, &[error(a, 1), a.done()].concat(), After::GoOn),
        Fails(Errno::PERM),
    ),
    case("success after an error", Structured, READ, |c, a| lie(c, &[error(a, 5), a.simple(0)].concat()), Recovers),
    case(
        "two errors",
        Structured,
        READ,
        |c, a| send(c, &[error(a, 1), a.error(5)].concat(), After::GoOn),
        Fails(Errno::IO),
    ),
    case(
        "text longer than its chunk",
        Structured,
        READ,
        |c, a| send(c, &a.chunk(1 << 15 | 1, true, &[0, 0, 0, 5, 255, 255]), After::GoOn),
        Fails(Errno::IO),
    ),
    case(
        "error with the longest text",
        Structured,
        READ,
        |c, a| send(c, &a.chunk(1 << 15 | 1, true, &[&[0, 0, 0, 5, 16, 0][..], &[b'x'; 4096]].concat()), After::GoOn),
        Fails(Errno::IO),
    ),
    case("error with a longer text", Structured, READ, |c, a| lie(c, &a.head(1 << 15 | 1, true, 5000)), Recovers),
    case(
        "error at an offset elsewhere",
        Structured,
        READ,
        |c, a| send(c, &a.chunk(1 << 15 | 2, true, &[0, 0, 0, 5, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0]), After::GoOn),
        Fails(Errno::IO),
    ),
    case(
        "simple error of a structured read",
        Structured,
        READ,
        |c, a| send(c, &a.simple(5), After::GoOn),
        Fails(Errno::IO),
    ),
    case("EOPNOTSUPP", Simple, READ, |c, a| send(c, &a.error(95), After::GoOn), Fails(Errno::OPNOTSUPP)),
    case(
        "extended reply in a structured dialogue",
        Structured,
        READ,
        |c, a| lie(c, &as_style(a, Extended).done()),
        Recovers,
    ),
    case(
        "structured reply in an extended dialogue",
        Extended,
        READ,
        |c, a| lie(c, &as_style(a, Structured).data(AT, &[1; LEN], true)),
        Recovers,
    ),
    case("extents of a write", Structured, WRITE, |c, a| lie(c, &a.extent(4096, 0)), Recovers),
    case("extents of a flush", Extended, FLUSH, |c, a| lie(c, &a.extent(4096, 0)), Recovers),
    case("hole around all offsets", Structured, READ, |c, a| lie(c, &a.hole(u64::MAX - 10, 4096, true)), Recovers),
    case(
        "hole over data",
        Extended,
        READ,
        |c, a| lie(c, &[a.data(AT, &[1; LEN], false), a.hole(AT, 4096, true)].concat()),
        Recovers,
    ),
    case(
        "gap of one byte between data and hole",
        Structured,
        READ,
        |c, a| lie(c, &[a.data(AT, &[1; 2047], false), a.hole(AT + 2048, 2048, true)].concat()),
        Recovers,
    ),
    case(
        "data in reverse and a last chunk without any",
        Structured,
        READ,
        |c, a| {
            let pieces = [(3000, 1096), (1, 2999), (0, 1)].map(|(at, len)| a.data(AT + at, &honest(at, len), false));
            send(c, &[pieces.concat(), a.chunk(0, true, &[])].concat(), After::GoOn)
        },
        Succeeds,
    ),
    case(
        "adjacent single bytes with unknown flags",
        Structured,
        READ,
        |c, a| {
            let byte = |at| a.data(AT + at, &honest(at, 1), at + 1 == LEN as u64);
            let mut chunks: Vec<Vec<u8>> = (0..LEN as u64).map(byte).collect();
            chunks.iter_mut().for_each(|chunk| chunk[4] = 0x80);
            send(c, &chunks.concat(), After::GoOn)
        },
        Succeeds,
    ),
    case("data without an end", Structured, READ, |c, a| lie(c, &a.data(AT, &[1; LEN], false)), TimesOut),
    case("data without an end, extended", Extended, READ, |c, a| lie(c, &a.data(AT, &[1; LEN], false)), TimesOut),
    case(
        "data shorter than its chunk",
        Structured,
        READ,
        |c, a| lie(c, &a.data(AT, &[1; LEN], true)[..4000]),
        TimesOut,
    ),
    case(
        "data drop by drop",
        Simple,
        READ,
        |c, a| {
            let _ = c.write_all(&a.simple(0));
            while c.write_all(&[1]).is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
            Some(After::Close)
        },
        TimesOut,
    ),
    case(
        "error without effect on the next",
        Extended,
        FLUSH,
        |c, a| send(c, &a.error(5), After::GoOn),
        Fails(Errno::IO),
    ),
];

/// An error that another chunk follows.
fn error(asked: &Asked, number: u32) -> Vec<u8> {
    asked.chunk(1 << 15 | 1, false, &[&number.to_be_bytes()[..], &[0, 0]].concat())
}

/// The bytes that the honest server has from [`AT`] + `at`.
fn honest(at: u64, len: usize) -> Vec<u8> {
    contents((AT + at) as usize, len)
}

fn as_style(asked: &Asked, style: Style) -> Asked {
    Asked { style, ..*asked }
}

fn with_cookie(asked: &Asked, cookie: u64) -> Asked {
    Asked { cookie, ..*asked }
}

fn with_offset(asked: &Asked, offset: u64) -> Asked {
    Asked { offset, ..*asked }
}

fn run(Case { name, style, kind, lie, expect }: &Case) {
    let fake = Fake::start(Facts { style: *style, lie: Some(*lie), lie_to: Some(*kind), ..Facts::default() });
    let mut options = quick();
    if *expect == TimesOut {
        options.store_timeout = Duration::from_secs(1);
    }
    let store = fake.open(&options).unwrap();
    let before = fake.disk().cached[AT as usize..][..LEN].to_vec();
    let begun = Instant::now();
    let ask = |store: &dyn BackingStore| match *kind {
        READ => {
            let mut bytes = vec![0; LEN];
            let read = store.read_at(&mut bytes, AT);
            assert!(read.is_err() || read == Ok(LEN) && bytes == before, "{name}: other data than the server's");
            read.map(drop)
        }
        WRITE => store.write_at(&[3; LEN], AT).map(drop),
        _ => store.sync(),
    };
    let result = ask(&store);
    match expect {
        Recovers | Succeeds => assert_eq!(result, Ok(()), "{name}"),
        Fails(errno) => assert_eq!(result, Err(*errno), "{name}"),
        TimesOut => assert_eq!(result, Err(Errno::IO), "{name}"),
    }
    if let Recovers | TimesOut = expect {
        assert!(begun.elapsed() < Duration::from_secs(10), "{name}: {:?}", begun.elapsed());
        if *kind != FLUSH {
            ask(&store).unwrap();
        }
        while fake.connections() < 2 {
            assert!(begun.elapsed() < Duration::from_secs(10), "{name}: the connection is kept");
            std::thread::sleep(Duration::from_millis(5));
        }
    } else if *kind != FLUSH {
        ask(&store).unwrap();
        assert_eq!(fake.connections(), 1, "{name}: the connection is dropped");
    }
    if *kind == WRITE {
        assert!(fake.disk().cached[AT as usize..][..LEN] == [3; LEN], "{name}");
    }
}

#[test]
fn lying_server_is_dropped_and_its_requests_made_again() {
    // Those that take a second all at once.
    let (slow, quick): (Vec<_>, Vec<_>) = CASES.iter().partition(|case| case.expect == TimesOut);
    std::thread::scope(|scope| slow.into_iter().for_each(|case| drop(scope.spawn(|| run(case)))));
    quick.into_iter().for_each(run);
    count("nbd_store_hostile_cases", CASES.len());
}

#[test]
fn hostile_cases_have_names_of_their_own() {
    let mut names: Vec<_> = CASES.iter().map(|case| case.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CASES.len());
}

/// Wrong answers about extents never make a hole of data, and never fail anything.
#[test]
fn lies_about_extents_leave_the_range_allocated() {
    let lies: [(&str, Lie, bool); 15] = [
        ("length 0", |c, a| (a.kind == STATUS).then(|| send(c, &a.extent(0, 3), After::Stall))?, false),
        ("too long", |c, a| (a.kind == STATUS).then(|| send(c, &a.extent(1 << 31, 3), After::GoOn))?, true),
        ("hole that is not zero", |c, a| (a.kind == STATUS).then(|| send(c, &a.extent(65536, 1), After::GoOn))?, false),
        ("zero that is no hole", |c, a| (a.kind == STATUS).then(|| send(c, &a.extent(65536, 2), After::GoOn))?, false),
        ("unknown flags", |c, a| (a.kind == STATUS).then(|| send(c, &a.extent(65536, !3), After::GoOn))?, false),
        ("simple reply", |c, a| (a.kind == STATUS).then(|| send(c, &a.simple(0), After::Stall))?, false),
        ("nothing", |c, a| (a.kind == STATUS).then(|| send(c, &a.chunk(0, true, &[]), After::Stall))?, false),
        ("error", |c, a| (a.kind == STATUS).then(|| send(c, &a.error(22), After::GoOn))?, false),
        ("silence", |_, a| (a.kind == STATUS).then_some(After::Stall), false),
        ("data", |c, a| (a.kind == STATUS).then(|| send(c, &a.data(0, &[1; 512], true), After::Stall))?, false),
        ("another width", |c, a| (a.kind == STATUS).then(|| lie(c, &as_style(a, Extended).extent(65536, 1)))?, false),
        ("half an extent", |c, a| (a.kind == STATUS).then(|| lie(c, &a.chunk(5, true, &[0; 8])))?, false),
        ("more than a chunk may have", |c, a| (a.kind == STATUS).then(|| lie(c, &extents(a, 1000, true)))?, false),
        ("more than one", |c, a| (a.kind == STATUS).then(|| send(c, &extents(a, 100, true), After::GoOn))?, true),
        (
            "two contexts",
            |c, a| (a.kind == STATUS).then(|| lie(c, &[extents(a, 1, false), extents(a, 1, true)].concat()))?,
            false,
        ),
    ];
    for (name, lie, is_hole) in lies {
        let fake = Fake::start(Facts { lie: Some(lie), ..Facts::default() });
        let store = fake.open(&quick()).unwrap();
        let found = store.block_status(0, 65536).unwrap();
        let expected = if is_hole { BlockStatus::hole(0, 65536) } else { BlockStatus::allocated(0, 65536) };
        assert_eq!(found, expected, "{name}");
        drop(store);
    }
}

/// Extents of 65536 bytes, which are holes that read as zeroes.
fn extents(asked: &Asked, number: usize, is_last: bool) -> Vec<u8> {
    let extent = [65536u32.to_be_bytes(), 3u32.to_be_bytes()].concat();
    asked.chunk(5, is_last, &[&1u32.to_be_bytes()[..], &extent.repeat(number)].concat())
}

/// A connection that ends after any number of bytes of a reply: the request is made again, and has its data.
#[test]
fn reply_that_ends_at_any_byte_is_no_reply() {
    const SHORT: usize = 16;
    let mut cuts = 0;
    for (style, head, extra) in [(Simple, 16, 0), (Structured, 20, 8), (Extended, 32, 8)] {
        let write = if style == Extended { 32 } else { 16 };
        for (kind, len) in [(READ, head + extra + SHORT), (WRITE, write), (FLUSH, write)] {
            for cut in 0..len {
                let fake = Fake::start(Facts { style, cut: Some((kind, cut)), ..Facts::default() });
                let store = fake.open(&quick()).unwrap();
                let mut data = [0; SHORT];
                match kind {
                    READ => assert_eq!(store.read_at(&mut data, AT), Ok(SHORT), "{style:?} {cut}"),
                    WRITE => assert_eq!(store.write_at(&[3; SHORT], AT), Ok(SHORT), "{style:?} {cut}"),
                    _ => assert_eq!(store.sync(), Ok(()), "{style:?} {cut}"),
                }
                assert!(kind != READ || data[..] == honest(0, SHORT), "{style:?} {cut}: other data");
                assert!(kind != WRITE || fake.disk().cached[AT as usize..][..SHORT] == [3; SHORT], "{style:?} {cut}");
                assert_eq!(fake.connections(), 2, "{style:?} {cut}");
                cuts += 1;
            }
        }
    }
    count("nbd_store_cut_replies", cuts);
}

/// A reply that names an earlier request is none to the current one, though it uses the same place.
#[test]
fn reply_with_a_used_cookie_is_a_violation() {
    static USED: AtomicU64 = AtomicU64::new(0);
    let again: Lie = |c, a| match USED.swap(a.cookie, Ordering::SeqCst) {
        0 => None,
        used => lie(c, &with_cookie(a, used).data(AT, &[1; LEN], true)),
    };
    let fake = Fake::start(Facts { lie: Some(again), lie_to: Some(READ), ..Facts::default() });
    let store = fake.open(&quick()).unwrap();
    for connections in [1, 2] {
        let mut data = vec![0; LEN];
        assert_eq!(store.read_at(&mut data, AT), Ok(LEN));
        assert!(data == honest(0, LEN), "other data than the server's");
        assert_eq!(fake.connections(), connections);
    }
}

/// Passes on what comes, after `change`, until one side has gone.
fn pass(mut from: UnixStream, mut to: UnixStream, mut change: impl FnMut(&mut UnixStream, Vec<u8>) -> Vec<u8>) {
    let mut data = vec![0; 1 << 16];
    while let Ok(len @ 1..) = from.read(&mut data) {
        let bytes = change(&mut from, data[..len].to_vec());
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Two connections get each other's replies. Each has a request of that place and length in flight, but it is another
/// one.
#[test]
fn replies_of_two_connections_are_not_exchanged() {
    static IS_CROSSED: AtomicBool = AtomicBool::new(false);
    static REPLIES: Mutex<[Vec<u8>; 2]> = Mutex::new([Vec::new(), Vec::new()]);
    let fake = Fake::start(Facts { style: Simple, flags: FLAGS | MULTI_CONN, ..Facts::default() });
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("between");
    let listener = UnixListener::bind(&socket).unwrap();
    let (both, behind) = (Arc::new(Barrier::new(2)), fake.socket().to_owned());
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let (client, server) = (client.unwrap(), UnixStream::connect(&behind).unwrap());
            let (from, to, both) = (client.try_clone().unwrap(), server.try_clone().unwrap(), Arc::clone(&both));
            std::thread::spawn(move || pass(from, to, |_, bytes| bytes));
            let cross = move |from: &mut UnixStream, mut reply: Vec<u8>| {
                if number > 1 || !IS_CROSSED.load(Ordering::SeqCst) {
                    return reply;
                }
                let here = reply.len();
                reply.resize(16 + LEN, 0);
                from.read_exact(&mut reply[here..]).unwrap();
                REPLIES.lock().unwrap()[number] = reply;
                both.wait();
                std::mem::take(&mut REPLIES.lock().unwrap()[1 - number])
            };
            std::thread::spawn(move || pass(server, client, cross));
        }
    });
    let uri = NbdUri::parse(&format!("nbd+unix:///?socket={}", socket.display())).unwrap();
    let store = NbdStore::open(&uri, &quick(), false).unwrap();
    assert_eq!(fake.connections(), 2);
    IS_CROSSED.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        for at in [0, LEN as u64] {
            let store = &store;
            scope.spawn(move || {
                let mut data = vec![0; LEN];
                assert_eq!(store.read_at(&mut data, AT + at), Ok(LEN));
                assert!(data == honest(at, LEN), "data of the other request");
            });
        }
    });
    assert_eq!(fake.connections(), 4);
}

/// Queries that are never answered leave room for other requests, and stop.
#[test]
fn unanswered_queries_of_extents_do_not_fill_the_connection() {
    let ignore: Lie = |_, a| (a.kind == STATUS).then_some(After::Ignore);
    let fake = Fake::start(Facts { lie: Some(ignore), ..Facts::default() });
    let mut options = quick();
    options.store_timeout = Duration::from_secs(5);
    let store = fake.open(&options).unwrap();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| assert_eq!(store.block_status(0, 65536).unwrap(), BlockStatus::allocated(0, 65536)));
        }
    });
    assert_eq!(store.read_at(&mut [0; LEN], AT), Ok(LEN));
    for _ in 0..100 {
        assert_eq!(store.block_status(0, 65536).unwrap(), BlockStatus::allocated(0, 65536));
    }
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(fake.connections(), 1, "the connection is of use");
}

/// A reply before the data of its write was sent is one to no request.
#[test]
fn early_reply_to_a_long_write_is_a_violation() {
    let early: Lie = |c, a| {
        (a.kind == WRITE).then(|| {
            let after = send(c, &a.simple(0), After::Close);
            // It reads none of the data: the client could send all before it looks at the reply.
            let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
            let polled = &mut [PollFd::new(c, PollFlags::empty())];
            assert_eq!(poll(polled, Some(&limit)), Ok(1), "the client stays");
            after
        })?
    };
    let fake = Fake::start(Facts { lie: Some(early), ..Facts::default() });
    let store = fake.open(&quick()).unwrap();
    // Longer than the buffers of a socket.
    let data = vec![5; SIZE];
    assert_eq!(store.write_at(&data, 0), Ok(SIZE));
    assert!(fake.disk().cached == data && fake.connections() == 2);
}

/// Requests that the server cannot carry out are refused here.
#[test]
fn server_is_not_asked_for_what_it_does_not_offer() {
    let fake = Fake::start(Facts { flags: 1 | 2 | 4, blocks: Some([4096, 4096, 4096]), ..Facts::default() });
    let store = fake.open(&quick()).unwrap();
    let before = fake.requests();
    assert!(store.geometry().read_only);
    assert_eq!(store.write_at(&[0; 4096], 0), Err(Errno::ROFS));
    assert_eq!(store.write_fua_at(&[0; 4096], 0), Err(Errno::ROFS));
    assert_eq!(store.discard(0, 4096), Err(Errno::ROFS));
    assert_eq!(fake.requests(), before);
    let fake = Fake::start(Facts { flags: FLAGS & !(8 | 32), ..Facts::default() });
    let store = fake.open(&quick()).unwrap();
    assert!(!store.profile().has_native_fua);
    assert_eq!(store.write_fua_at(&[0; 512], 0), Err(Errno::OPNOTSUPP));
    assert_eq!(store.discard(0, 512), Err(Errno::OPNOTSUPP));
    assert_eq!(store.write_at(&[0; 512], SIZE as u64), Err(Errno::NOSPC));
    assert_eq!(fake.requests(), 0);
}
