//! Tests of both backends: sockets, stores, wakes, closing.

use super::{
    Backend, BusyPoll, Completion, Descriptor, IoMode, MAX_WRITE_SEGMENTS, Operation, Returned, Ring, Token, UblkBytes,
    UblkCommand, Wait, WriteSegment,
};
use crate::buffer::{Buffer, HEADROOM};
use crate::ciphertext::Ciphertext;
use crate::errno::Errno;
use crate::store::file::FileStore;
use crate::store::{BackingStore, Geometry, StoreOperation};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn both(test: impl Fn(Ring)) {
    for mode in [IoMode::Uring, IoMode::Sync] {
        test(Ring::new(mode).unwrap());
    }
}

/// Waits for `count` completions, the only ones.
fn completions(ring: &mut Ring, count: usize) -> VecDeque<Completion> {
    let mut done = VecDeque::new();
    while done.len() < count {
        ring.turn(Wait::Forever, &mut done).unwrap();
    }
    assert_eq!(done.len(), count);
    done
}

/// Waits for the only completion.
fn next(ring: &mut Ring) -> Completion {
    completions(ring, 1).pop_front().unwrap()
}

fn receive(range: std::ops::Range<usize>, all: bool) -> Operation {
    Operation::Receive { buffer: Buffer::new(4096), range, all }
}

#[test]
fn ring_is_named_after_its_backend() {
    let name = |mode| Ring::new(mode).unwrap().name();
    assert_eq!([name(IoMode::Uring), name(IoMode::Auto), name(IoMode::Sync)], ["io_uring", "io_uring", "sync"]);
}

#[test]
fn receives_what_is_there_or_all_of_it() {
    both(|mut ring| {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let file = ring.add_socket(theirs.into()).unwrap();
        ring.submit(file, receive(10..100, false), Token(1));
        ours.write_all(b"abc").unwrap();
        let done = next(&mut ring);
        assert_eq!((done.token, done.result), (Token(1), Ok(3)));
        let Returned::Buffer(buffer) = done.returned else { panic!("no buffer") };
        assert_eq!(&buffer.data()[10..13], b"abc");
        ring.submit(file, receive(0..6, true), Token(2));
        ours.write_all(b"def").unwrap();
        let mut done = VecDeque::new();
        ring.turn(Wait::No, &mut done).unwrap();
        assert!(done.is_empty());
        ours.write_all(b"ghi").unwrap();
        assert_eq!(next(&mut ring).result, Ok(6));
        ring.submit(file, receive(0..6, true), Token(3));
        ours.write_all(b"j").unwrap();
        drop(ours);
        assert_eq!(next(&mut ring).result, Ok(1), "what came before the end");
        ring.submit(file, receive(0..6, true), Token(4));
        assert_eq!(next(&mut ring).result, Ok(0), "the end");
    });
}

#[test]
fn sends_everything_to_a_slow_reader() {
    both(|mut ring| {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let file = ring.add_socket(theirs.into()).unwrap();
        let segment = |value: u8| {
            let mut buffer = Buffer::new(1 << 20);
            buffer.data_mut().fill(value);
            (buffer, HEADROOM..HEADROOM + (1 << 20))
        };
        ring.submit(file, Operation::Send(vec![segment(1), segment(2), segment(3)]), Token(7));
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; 3 << 20];
            ours.read_exact(&mut all).unwrap();
            all
        });
        let done = next(&mut ring);
        assert_eq!((done.token, done.result), (Token(7), Ok(3 << 20)));
        let all = reader.join().unwrap();
        assert!(all.chunks(1 << 20).zip(1..).all(|(segment, value)| segment.iter().all(|b| *b == value)));
    });
}

#[test]
fn parts_are_written_one_behind_the_other() {
    both(|mut ring| {
        let segment = |value: usize| {
            let mut buffer = Buffer::new(4096);
            buffer.data_mut().fill(value as u8);
            WriteSegment {
                data: Ciphertext::encrypted(buffer),
                range: 0..1 + value * 64,
                token: Token(value as u64),
                since: Instant::now(),
            }
        };
        let segments = || (0..MAX_WRITE_SEGMENTS).map(segment).collect();
        let expected: Vec<u8> = (0..MAX_WRITE_SEGMENTS).flat_map(|value| vec![value as u8; 1 + value * 64]).collect();
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let store: Arc<dyn BackingStore> = Arc::new(FileStore::new(file.try_clone().unwrap(), IoMode::Auto).unwrap());
        let id = ring.add_store(&store).unwrap();
        ring.reserve_writev(1);
        for offset in [0, 12345] {
            ring.submit(id, Operation::Writev { offset, segments: segments() }, Token(9));
            let done = next(&mut ring);
            assert_eq!((done.token, done.result), (Token(9), Ok(expected.len())));
            let Returned::Segments(segments) = done.returned else { panic!("no segments") };
            assert!(segments.iter().map(|segment| segment.token.0).eq(0..MAX_WRITE_SEGMENTS as u64));
            let mut found = vec![0; expected.len()];
            file.read_exact_at(&mut found, offset).unwrap();
            assert!(found == expected);
        }
        ring.close(id);
        ring.submit(id, Operation::Writev { offset: 0, segments: segments() }, Token(10));
        let done = next(&mut ring);
        assert_eq!(done.result, Err(Errno::BADF));
        assert!(matches!(done.returned, Returned::Segments(segments) if segments.len() == MAX_WRITE_SEGMENTS));
    });
}

#[test]
fn closing_a_socket_ends_its_operations() {
    both(|mut ring| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = ring.add_socket(theirs.into()).unwrap();
        ring.submit(file, receive(0..9, true), Token(1));
        ring.turn(Wait::No, &mut VecDeque::new()).unwrap();
        ring.close(file);
        let done = next(&mut ring);
        assert_eq!(done.token, Token(1));
        assert!(matches!(done.returned, Returned::Buffer(_)), "the buffer comes back");
        assert_eq!(ring.files.slots[0].0, 1, "nothing uses the descriptor");
        ring.submit(file, receive(0..9, true), Token(2));
        assert_eq!(next(&mut ring).result, Err(Errno::BADF));
        drop(ours);
    });
}

#[test]
fn bytes_for_one_socket_end_its_own_receive_behind_that_of_another() {
    both(|mut ring| {
        let mut pairs = [(); 3].map(|()| UnixStream::pair().unwrap());
        for (token, (_, theirs)) in (0..).zip(&pairs) {
            let file = ring.add_socket(theirs.try_clone().unwrap().into()).unwrap();
            ring.submit(file, receive(0..4, true), Token(token));
        }
        ring.turn(Wait::No, &mut VecDeque::new()).unwrap();
        for token in [2, 0, 1] {
            pairs[token].0.write_all(b"abcd").unwrap();
            let mut done = VecDeque::new();
            ring.turn(Wait::Until(Duration::from_secs(20)), &mut done).unwrap();
            let done: Vec<_> = done.iter().map(|done| (done.token, done.result)).collect();
            assert_eq!(done, [(Token(token as u64), Ok(4))]);
        }
    });
}

#[test]
fn socket_that_stops_receiving_keeps_what_came_and_still_sends() {
    both(|mut ring| {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let file = ring.add_socket(theirs.into()).unwrap();
        ring.submit(file, receive(0..4, true), Token(1));
        ours.write_all(b"ab").unwrap();
        ring.turn(Wait::No, &mut VecDeque::new()).unwrap();
        ring.stop_receiving(file);
        let done = next(&mut ring);
        assert_eq!((done.token, done.result), (Token(1), Ok(2)));
        ring.submit(file, send(b"c"), Token(2));
        assert_eq!(next(&mut ring).result, Ok(1));
        ours.read_exact(&mut [0]).unwrap();
    });
}

#[test]
fn another_thread_wakes_a_ring() {
    both(|mut ring| {
        let waker = ring.waker();
        let thread = std::thread::spawn(move || waker.wake());
        // A signal, or a stop of the process, ends a wait too.
        while !ring.turn(Wait::Forever, &mut VecDeque::new()).unwrap() {}
        thread.join().unwrap();
        assert!(!ring.turn(Wait::No, &mut VecDeque::new()).unwrap(), "woken once");
    });
}

#[test]
fn dropping_a_ring_ends_what_its_sockets_do_first() {
    both(|mut ring| {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let file = ring.add_socket(theirs.into()).unwrap();
        ring.submit(file, receive(0..4096, true), Token(1));
        ring.turn(Wait::No, &mut VecDeque::new()).unwrap();
        drop(ring);
        ours.set_nonblocking(true).unwrap();
        assert_eq!(ours.read(&mut [0]).unwrap(), 0, "the peer sees the end");
        assert_eq!(ours.write(b"late").unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    });
}

/// Store as slow as the test requires: a read ends when the test writes into the pipe.
struct Pipe(std::fs::File);

impl BackingStore for Pipe {
    fn geometry(&self) -> Geometry {
        Geometry::new_read_only(4096)
    }
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
    fn read_at(&self, _data: &mut [u8], _offset: u64) -> Result<usize, Errno> {
        Err(Errno::SPIPE)
    }
    fn write_at(&self, _data: &[u8], _offset: u64) -> Result<usize, Errno> {
        Err(Errno::SPIPE)
    }
    fn sync(&self) -> Result<(), Errno> {
        Err(Errno::SPIPE)
    }
    fn discard(&self, _offset: u64, _len: u64) -> Result<(), Errno> {
        Err(Errno::SPIPE)
    }
}

#[test]
fn dropping_a_ring_waits_for_its_stores_without_spinning() {
    let (slow, into) = std::io::pipe().unwrap();
    let store: Arc<dyn BackingStore> = Arc::new(Pipe(OwnedFd::from(slow).into()));
    let mut ring = Ring::new(IoMode::Uring).unwrap();
    let file = ring.add_store(&store).unwrap();
    ring.submit(file, StoreOperation::Read { offset: 0, buffer: Buffer::new(4096), range: 0..4096 }, Token(1));
    ring.turn(Wait::No, &mut VecDeque::new()).unwrap();
    // A wake that comes too late to be read, as a message may.
    ring.waker().wake();
    let answered = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut into = into;
            std::thread::sleep(Duration::from_millis(500));
            answered.store(true, Ordering::SeqCst);
            into.write_all(&[7; 4096]).unwrap();
        });
        let cpu_time = || {
            let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
        };
        let before = cpu_time();
        drop(ring);
        let spent = cpu_time() - before;
        assert!(answered.load(Ordering::SeqCst), "the kernel still used the buffer");
        assert!(spent < Duration::from_millis(100), "waiting took {spent:?} of CPU time");
    });
}

#[test]
fn finish_waits_until_the_kernel_has_given_back_every_buffer() {
    let mut ring = Ring::new(IoMode::Uring).unwrap();
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let socket = ring.add_socket(theirs.into()).unwrap();
    ring.submit(socket, receive(0..4096, true), Token(0));
    let image = tempfile::tempfile().unwrap();
    image.write_all_at(&[7; 64 * 4096], 0).unwrap();
    let store: Arc<dyn BackingStore> = Arc::new(FileStore::new(image, IoMode::Uring).unwrap());
    let file = ring.add_store(&store).unwrap();
    for number in 0..64 {
        let operation = StoreOperation::Read { offset: number * 4096, buffer: Buffer::new(4096), range: 0..4096 };
        ring.submit(file, operation, Token(1 + number));
    }
    ring.submit_now();
    let mut done: Vec<Completion> = ring.finish().into();
    done.sort_by_key(|one| one.token.0);
    assert!(done.iter().map(|one| one.token.0).eq(0..65), "{} of 65 came back", done.len());
    for one in done {
        let Returned::Buffer(buffer) = one.returned else { panic!("no buffer") };
        let expected = if one.token.0 == 0 { (Ok(0), 0) } else { (Ok(4096), 7) };
        assert_eq!((one.result, buffer.data()[4095]), expected, "operation {}", one.token.0);
    }
}

#[test]
fn more_operations_than_the_queue_holds() {
    both(|mut ring| {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let store: Arc<dyn BackingStore> = Arc::new(FileStore::new(file, IoMode::Uring).unwrap());
        let file = ring.add_store(&store).unwrap();
        for number in 0..1000 {
            let operation = StoreOperation::Read { offset: number * 512, buffer: Buffer::new(512), range: 0..512 };
            ring.submit(file, operation, Token(number));
        }
        let mut seen = [false; 1000];
        let mut done = VecDeque::new();
        for _ in 0..1000 {
            while done.is_empty() {
                ring.turn(Wait::Forever, &mut done).unwrap();
            }
            let one = done.pop_front().unwrap();
            assert_eq!(one.result, Ok(512));
            assert!(!std::mem::replace(&mut seen[one.token.0 as usize], true));
        }
    });
}

#[test]
fn waker_is_not_inherited_and_never_blocks() {
    let waker = Ring::new(IoMode::Sync).unwrap().waker();
    assert!(rustix::io::fcntl_getfd(&*waker.0).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    assert!(rustix::fs::fcntl_getfl(&*waker.0).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
}

fn send(bytes: &[u8]) -> Operation {
    let mut buffer = Buffer::new(bytes.len());
    buffer.data_mut().copy_from_slice(bytes);
    Operation::Send(vec![(buffer, HEADROOM..HEADROOM + bytes.len())])
}

#[test]
fn one_send_of_a_turn_is_a_call_and_several_are_entries() {
    let mut ring = Ring::new(IoMode::Uring).unwrap();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let file = ring.add_socket(theirs.into()).unwrap();
    let mut done = VecDeque::new();
    ring.submit(file, receive(0..1, true), Token(1));
    ring.submit(file, send(b"a"), Token(2));
    ring.turn(Wait::Forever, &mut done).unwrap();
    assert_eq!(done.pop_front().map(|done| (done.token, done.result)), Some((Token(2), Ok(1))));
    let Backend::Uring(uring) = &mut ring.backend else { panic!("no io_uring") };
    assert_eq!(uring.queued(), 1, "the receive waits for the next turn, and no longer");
    ring.submit(file, send(b"b"), Token(3));
    ring.turn(Wait::Forever, &mut done).unwrap();
    let Backend::Uring(uring) = &mut ring.backend else { panic!("no io_uring") };
    assert_eq!((uring.queued(), done.len()), (0, 1));
    done.clear();
    ring.submit(file, send(b"c"), Token(4));
    ring.submit(file, send(b"d"), Token(5));
    let Backend::Uring(uring) = &mut ring.backend else { panic!("no io_uring") };
    assert_eq!(uring.queued(), 2);
    while done.len() < 2 {
        ring.turn(Wait::Forever, &mut done).unwrap();
    }
    let mut came = [0; 4];
    ours.read_exact(&mut came).unwrap();
    came[2..].sort_unstable();
    assert_eq!(&came, b"abcd");
}

#[test]
fn send_to_a_full_socket_waits_for_its_reader() {
    both(|mut ring| {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let file = ring.add_socket(theirs.try_clone().unwrap().into()).unwrap();
        let flags = rustix::net::SendFlags::DONTWAIT;
        let full = std::iter::from_fn(|| rustix::net::send(&theirs, &[1; 4096], flags).ok()).sum::<usize>();
        ring.submit(file, send(b"abc"), Token(1));
        let mut done = VecDeque::new();
        ring.turn(Wait::No, &mut done).unwrap();
        assert!(done.is_empty());
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; full + 3];
            ours.read_exact(&mut all).unwrap();
            all
        });
        assert_eq!(next(&mut ring).result, Ok(3));
        assert_eq!(reader.join().unwrap()[full..], *b"abc");
    });
}

#[test]
fn ring_that_polls_gets_what_comes_while_it_polls_and_afterwards() {
    for limit in [Duration::from_secs(60), Duration::from_nanos(1)] {
        both(|ring| {
            let mut ring = ring.with_busy_poll(BusyPoll::UpTo(limit));
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            let file = ring.add_socket(theirs.into()).unwrap();
            // A ring polls after a short transfer.
            ring.submit(file, send(b"a"), Token(1));
            assert_eq!(next(&mut ring).result, Ok(1));
            ring.submit(file, receive(0..1, true), Token(2));
            let client = std::thread::spawn(move || {
                // That the client takes its reply is an event of the socket as well, and no reason to sleep.
                ours.read_exact(&mut [0]).unwrap();
                std::thread::sleep(Duration::from_millis(20));
                ours.write_all(b"b").unwrap();
                ours
            });
            let mut done = VecDeque::new();
            ring.turn(Wait::Forever, &mut done).unwrap();
            assert_eq!(ring.polling.has_missed(), limit < Duration::from_secs(1));
            if limit > Duration::from_secs(1) {
                assert_eq!(done.pop_front().map(|done| done.token), Some(Token(2)), "polled in one turn");
            }
            client.join().unwrap();
        });
    }
}

#[test]
fn completed_store_operation_does_not_hide_sockets_and_wakes() {
    let mut ring = Ring::new(IoMode::Sync).unwrap();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let socket = ring.add_socket(theirs.into()).unwrap();
    ring.submit(socket, receive(0..1, true), Token(1));
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    let store: Arc<dyn BackingStore> = Arc::new(FileStore::new(file, IoMode::Uring).unwrap());
    let file = ring.add_store(&store).unwrap();
    ring.submit(file, StoreOperation::Read { offset: 0, buffer: Buffer::new(4096), range: 0..4096 }, Token(2));
    ours.write_all(b"a").unwrap();
    ring.waker().wake();
    let mut done = VecDeque::new();
    assert!(ring.turn(Wait::Forever, &mut done).unwrap());
    assert!(done.iter().map(|done| done.token.0).eq([2, 1]));
}

#[test]
fn wait_without_a_transfer_before_it_and_turn_without_wait_do_not_poll() {
    both(|ring| {
        let mut ring = ring.with_busy_poll(BusyPoll::UpTo(Duration::from_nanos(1)));
        ring.turn(Wait::Until(Duration::from_millis(5)), &mut VecDeque::new()).unwrap();
        assert!(!ring.polling.has_missed());
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let file = ring.add_socket(theirs.into()).unwrap();
        ring.submit(file, send(b"a"), Token(1));
        next(&mut ring);
        ring.turn(Wait::No, &mut VecDeque::new()).unwrap();
        assert!(!ring.polling.has_missed());
        ring.turn(Wait::Until(Duration::from_millis(5)), &mut VecDeque::new()).unwrap();
        assert!(ring.polling.has_missed(), "a wait after a short transfer polls");
    });
}

#[test]
fn wait_for_a_store_does_not_poll() {
    let (slow, into) = std::io::pipe().unwrap();
    let store: Arc<dyn BackingStore> = Arc::new(Pipe(OwnedFd::from(slow).into()));
    let mut ring = Ring::new(IoMode::Uring).unwrap().with_busy_poll(BusyPoll::UpTo(Duration::from_nanos(1)));
    // Closed before the ring if the test fails: the ring waits for its stores.
    let mut into = into;
    let file = ring.add_store(&store).unwrap();
    for (in_flight, has_missed) in [(true, false), (false, true)] {
        if in_flight {
            let read = StoreOperation::Read { offset: 0, buffer: Buffer::new(4096), range: 0..4096 };
            ring.submit(file, read, Token(1));
        }
        ring.polling.add_moved(28);
        ring.turn(Wait::Until(Duration::from_millis(1)), &mut VecDeque::new()).unwrap();
        assert_eq!(ring.polling.has_missed(), has_missed);
        if in_flight {
            into.write_all(&[7; 4096]).unwrap();
            assert_eq!(next(&mut ring).result, Ok(4096));
        }
    }
}

#[test]
fn ring_sleeps_while_nothing_completes() {
    const LIMIT: Duration = Duration::from_millis(40);
    both(|mut ring| {
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let file = ring.add_socket(theirs.into()).unwrap();
        ring.submit(file, receive(0..1, true), Token(1));
        let (start, mut turns) = (Instant::now(), 0);
        while start.elapsed() < LIMIT {
            ring.turn(Wait::Until(LIMIT), &mut VecDeque::new()).unwrap();
            turns += 1;
        }
        // The socket's room for replies may be an event, too.
        assert!(turns < 10, "{turns} turns");
    });
}

#[test]
fn send_to_a_closed_peer_fails() {
    both(|mut ring| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = ring.add_socket(theirs.into()).unwrap();
        drop(ours);
        ring.submit(file, send(b"a"), Token(1));
        let done = next(&mut ring);
        assert_eq!((done.token, done.result), (Token(1), Err(Errno::from_raw_os_error(libc::EPIPE))));
    });
}

/// Submits the first command of a ublk tag whose driver copies requests of up to 8192 bytes, or none.
fn submit_ublk(copies: bool, bytes: UblkBytes) -> Result<usize, Errno> {
    let mut ring = Ring::new(IoMode::Uring).unwrap();
    let file = ring.files.add(Descriptor::Ublk(tempfile::tempfile().unwrap().into(), copies.then_some(8192)));
    ring.submit(file, Operation::Ublk(UblkCommand { queue: 0, tag: 0, answer: None, bytes }), Token(1));
    next(&mut ring).result
}

#[test]
fn ublk_buffer_has_room_for_the_longest_request() {
    assert!(submit_ublk(true, UblkBytes::Copied(Buffer::new(8192))).is_err(), "a file is no ublk device");
    assert!(submit_ublk(false, UblkBytes::Fetched(0)).is_err());
}

#[test]
#[should_panic(expected = "a buffer for the longest request")]
fn ublk_buffer_shorter_than_the_longest_request_is_refused() {
    let _ = submit_ublk(true, UblkBytes::Copied(Buffer::new(4096)));
}

#[test]
#[should_panic(expected = "a buffer for the longest request")]
fn ublk_command_without_buffer_is_refused_if_the_driver_copies() {
    let _ = submit_ublk(true, UblkBytes::Fetched(0));
}

#[test]
fn room_is_that_of_stores_and_two_for_each_socket() {
    both(|mut ring| {
        ring.reserve(2000);
        assert_eq!(ring.room(), 2000);
        let pairs = [(); 3].map(|()| UnixStream::pair().unwrap());
        let files = pairs.map(|(_, theirs)| ring.add_socket(theirs.into()).unwrap());
        assert_eq!(ring.room(), 2006);
        ring.close(files[0]);
        ring.reserve(10);
        assert_eq!(ring.room(), 2014);
    });
}

#[test]
fn closed_descriptor_is_dropped_and_its_number_means_another() {
    both(|mut ring| {
        for _ in 0..3 {
            // A pipe: only the end of its last descriptor ends it.
            let (mut ours, theirs) = std::io::pipe().unwrap();
            let is_sync = matches!(ring.backend, Backend::Sync(_));
            let file = ring.add_socket(theirs.into()).unwrap();
            assert_ne!(ring.files.get(file).unwrap().registered, is_sync, "sockets are registered with io_uring");
            ring.close(file);
            assert_eq!(ours.read(&mut [0]).unwrap(), 0);
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            let socket = ring.add_socket(theirs.into()).unwrap();
            assert_eq!((socket.index, socket.generation), (file.index, file.generation + 1));
            ring.submit(socket, receive(0..1, true), Token(1));
            ring.turn(Wait::No, &mut VecDeque::new()).unwrap();
            ours.write_all(b"a").unwrap();
            assert_eq!(next(&mut ring).result, Ok(1));
            ring.close(socket);
        }
    });
}

#[test]
fn send_does_not_wait_for_the_reader() {
    both(|mut ring| {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let file = ring.add_socket(theirs.into()).unwrap();
        ring.submit(file, send(&[1; 1 << 20]), Token(1));
        let mut done = VecDeque::new();
        ring.turn(Wait::No, &mut done).unwrap();
        assert!(done.is_empty());
        let reader = std::thread::spawn(move || ours.read_exact(&mut [0; 1 << 20]).unwrap());
        assert_eq!(next(&mut ring).result, Ok(1 << 20));
        reader.join().unwrap();
    });
}

#[test]
fn submit_now_does_not_wait_for_the_turn() {
    let mut ring = Ring::new(IoMode::Uring).unwrap();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let file = ring.add_socket(theirs.into()).unwrap();
    ring.submit(file, send(b"a"), Token(1));
    ring.submit_now();
    ours.read_exact(&mut [0]).unwrap();
    let Backend::Uring(uring) = &mut ring.backend else { panic!("no io_uring") };
    assert_eq!(uring.queued(), 0);
    assert_eq!(next(&mut ring).result, Ok(1));
}

#[test]
fn finish_returns_what_has_completed_without_a_turn() {
    both(|mut ring| {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let store: Arc<dyn BackingStore> = Arc::new(FileStore::new(file, IoMode::Auto).unwrap());
        let file = ring.add_store(&store).unwrap();
        let read =
            |number| (StoreOperation::Read { offset: 0, buffer: Buffer::new(512), range: 0..512 }, Token(number));
        (0..3).map(read).for_each(|(operation, token)| ring.submit(file, operation, token));
        let mut tokens: Vec<u64> = ring.finish().into_iter().map(|done| done.token.0).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, [0, 1, 2]);
    });
}

#[test]
fn discard_clears_its_range_and_nothing_else() {
    // Also where the kernel refuses the block device command, as on a file.
    for as_command in [false, true] {
        both(|mut ring| {
            let image = tempfile::tempfile().unwrap();
            image.write_all_at(&[7; 16 * 4096], 0).unwrap();
            let store: Arc<dyn BackingStore> =
                Arc::new(FileStore::new(image.try_clone().unwrap(), IoMode::Auto).unwrap());
            let file = ring.add_store(&store).unwrap();
            ring.files.get(file).unwrap().discards = as_command;
            ring.submit(file, StoreOperation::Discard { offset: 4096, len: 8192 }, Token(1));
            assert_eq!(next(&mut ring).result, Ok(0));
            let mut found = vec![1; 16 * 4096];
            image.read_exact_at(&mut found, 0).unwrap();
            assert!(found.iter().enumerate().all(|(at, byte)| (*byte == 0) == (4096..12288).contains(&at)));
            ring.submit(file, StoreOperation::Discard { offset: 15 * 4096, len: 8192 }, Token(2));
            assert_eq!(next(&mut ring).result, Ok(0));
            assert_eq!(image.metadata().unwrap().len(), 16 * 4096, "the file keeps its length");
        });
    }
}

#[test]
fn discard_that_the_file_refuses_fails() {
    // A file that takes no discards of either kind.
    let file = std::fs::File::options().read(true).write(true).open("/proc/self/comm").unwrap();
    let store: Arc<dyn BackingStore> = Arc::new(Pipe(file));
    let mut ring = Ring::new(IoMode::Uring).unwrap();
    let file = ring.add_store(&store).unwrap();
    for as_command in [true, false] {
        ring.files.get(file).unwrap().discards = as_command;
        ring.submit(file, StoreOperation::Discard { offset: 0, len: 4096 }, Token(1));
        assert_eq!(next(&mut ring).result, Err(Errno::OPNOTSUPP));
    }
}

/// Connected sockets of both families.
fn socket_pairs() -> [(OwnedFd, OwnedFd); 2] {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [(ours.into(), theirs.into()), (tcp.into(), listener.accept().unwrap().0.into())]
}

#[test]
fn closing_a_socket_ends_operations_in_both_directions() {
    both(|mut ring| {
        for (ours, theirs) in socket_pairs() {
            let file = ring.add_socket(theirs).unwrap();
            ring.submit(file, receive(0..9, true), Token(1));
            ring.submit(file, send(&[1; 32 << 20]), Token(2));
            // Two turns: the kernel has both operations, and reports no more events.
            for _ in 0..2 {
                let mut done = VecDeque::new();
                ring.turn(Wait::No, &mut done).unwrap();
                assert!(done.is_empty());
            }
            ring.close(file);
            let mut ended: Vec<u64> = completions(&mut ring, 2).iter().map(|done| done.token.0).collect();
            ended.sort_unstable();
            assert_eq!(ended, [1, 2]);
            assert!(ring.files.get(file).is_none(), "the descriptor is closed");
            drop(ours);
        }
    });
}

#[test]
fn closing_a_socket_that_the_peer_has_reset_ends_its_operations() {
    both(|mut ring| {
        for (ours, theirs) in socket_pairs() {
            let file = ring.add_socket(theirs).unwrap();
            ring.submit(file, receive(0..9, true), Token(1));
            ring.turn(Wait::No, &mut VecDeque::new()).unwrap();
            // Unread data make the end of a TCP socket a reset.
            ring.submit(file, send(b"unread"), Token(2));
            assert_eq!(next(&mut ring).token, Token(2));
            drop(ours);
            ring.close(file);
            assert_eq!(next(&mut ring).token, Token(1));
            assert!(ring.files.get(file).is_none(), "the descriptor is closed");
        }
    });
}

mod cancel;
