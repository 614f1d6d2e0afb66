//! Every command in every reply mode, to the byte; and what is refused.

use crate::client::*;
use crate::support::with;
use crate::support::*;
use inlock_cipher::{CipherSpec, DataUnitSize, Sector, Segment, VolumeKey};
use inlock_engine::{Access, Content, Device, Target};
use std::io::Write;
use std::sync::Arc;

const LEN: u64 = 4 * MIB;

/// Sends everything there is at awkward places and keeps `model` in step.
fn every_command(client: &mut Client, model: &mut [u8]) {
    let places = [(0, 1), (1, 511), (4095, 2), (4096, 4096), (5000, 70_001), (MIB - 7, MIB + 9), (LEN - 3, 3)];
    for (seed, (offset, len)) in places.into_iter().enumerate() {
        let range = offset as usize..(offset + len) as usize;
        let bytes = pattern(seed as u64 + 1, len);
        let durable = if seed % 2 == 0 { FUA } else { 0 };
        assert_eq!(client.write(durable, offset, &bytes), 0);
        model[range.clone()].copy_from_slice(&bytes);
        assert_eq!(client.read(offset, len), model[range]);
    }
    for (flags, offset, len) in [(0, 6000, 5000), (NO_HOLE, 3, 1), (FUA, 8192, 4096), (0, MIB + 1, 2 * MIB)] {
        assert_eq!(client.call(WRITE_ZEROES, flags, offset, len).error, 0);
        model[offset as usize..(offset + len) as usize].fill(0);
    }
    assert_eq!(client.call(FLUSH, 0, 0, 0).error, 0);
    assert_eq!(client.call(CACHE, 0, 4097, MIB).error, 0);
    // Less than a data unit: nothing may change.
    assert_eq!(client.call(TRIM, 0, 4097, 510).error, 0);
    for kind in [READ, WRITE, TRIM, CACHE, WRITE_ZEROES] {
        for offset in [0, 77, LEN] {
            let answer = client.call(kind, 0, offset, 0);
            assert_eq!(answer, Answer::default(), "command {kind} of no bytes at {offset}");
        }
    }
    assert_eq!(client.read(0, LEN), model, "the whole device");
}

#[test]
fn every_command_in_every_mode_changes_model_and_device_alike() {
    for io in rings() {
        for (unit, mode) in [512, 4096].into_iter().flat_map(|unit| MODES.map(|mode| (unit, mode))) {
            let mut served = Served::new(device(memory(LEN), unit, READ_WRITE_DISCARD), io, 1);
            let mut model = served.plaintext();
            let mut client = Client::open(served.path(), mode);
            assert_eq!(client.size(), LEN);
            every_command(&mut client, &mut model);
            client.disconnect();
            served.stop().expect("an idle server stops");
            assert_eq!(served.plaintext(), model, "{io:?}, {mode:?}, units of {unit} bytes");
        }
    }
}

/// A request, and the reply it gets, byte for byte in each mode. Cookies are numbered by the client.
#[test]
fn reply_to_each_command_has_bytes_of_protocol() {
    const COOKIE: [u8; 8] = FIRST_COOKIE.to_be_bytes();
    let served = Served::new(device(memory(LEN), 4096, READ_WRITE_DISCARD), rings()[0], 1);
    let mut writer = Client::open(served.path(), Mode::Simple);
    assert_eq!(writer.write(0, 0x10_000, b"five!"), 0);
    let simple = |error: u8| [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, error], COOKIE.as_slice()].concat();
    let structured = |kind: u16, len: u8, payload: &[u8]| {
        [&[0x66, 0x8e, 0x33, 0xef, 0, 1], kind.to_be_bytes().as_slice(), &COOKIE, &[0, 0, 0, len], payload].concat()
    };
    let extended = |kind: u16, offset: u64, len: u8, payload: &[u8]| {
        let head = [&[0x6e, 0x8a, 0x27, 0x8c, 0, 1], kind.to_be_bytes().as_slice(), &COOKIE].concat();
        [&head, offset.to_be_bytes().as_slice(), &[0, 0, 0, 0, 0, 0, 0, len], payload].concat()
    };
    let chunk = [0x10_000u64.to_be_bytes().as_slice(), b"five!"].concat();
    let data = [simple(0), b"five!".to_vec()].concat();
    let invalid = [0, 0, 0, 22, 0, 0];
    let too_far = [0, 0, 0, 28, 0, 0];
    let table = [
        (READ, 0x10_000, 5, [data, structured(1, 13, &chunk), extended(1, 0x10_000, 13, &chunk)]),
        (FLUSH, 0, 0, [simple(0), simple(0), extended(0, 0, 0, &[])]),
        (READ, LEN - 4, 5, [simple(22), structured(0x8001, 6, &invalid), extended(0x8001, LEN - 4, 6, &invalid)]),
        (WRITE_ZEROES, LEN, 1, [simple(28), structured(0x8001, 6, &too_far), extended(0x8001, LEN, 6, &too_far)]),
        (READ, 9, 0, [simple(0), structured(0, 0, &[]), extended(0, 9, 0, &[])]),
    ];
    for (kind, offset, len, replies) in table {
        for (mode, expected) in MODES.into_iter().zip(replies) {
            let mut client = Client::open(served.path(), mode);
            client.send(kind, 0, offset, len);
            let reply = client.connection.receive(expected.len()).expect("a reply");
            assert_eq!(reply, expected, "{mode:?}: command {kind} of {len} bytes at {offset}");
        }
    }
}

#[test]
fn refused_command_leaves_stream_in_step() {
    for io in rings() {
        let served = Served::new(device(memory(LEN), 4096, READ_WRITE_DISCARD), io, 1);
        for mode in MODES {
            let mut client = Client::open(served.path(), mode);
            let huge = if mode == Mode::Extended { u64::MAX } else { u32::MAX.into() };
            let refused = [
                (READ, 0, LEN, 1, errno::INVAL),
                (READ, 0, u64::MAX, 2, errno::INVAL),
                (READ, 0, 0, huge, errno::INVAL),
                (READ, NO_HOLE, 0, 1, errno::INVAL),
                (WRITE_ZEROES, 0, 1, LEN, errno::NOSPC),
                (WRITE_ZEROES, 0, u64::MAX, huge, errno::NOSPC),
                (WRITE_ZEROES, FAST_ZERO, 0, 4096, errno::NOTSUP),
                (WRITE_ZEROES, DF, 0, 4096, errno::INVAL),
                (TRIM, 0, 1, LEN, errno::INVAL),
                (CACHE, 0, LEN, 1, errno::INVAL),
                (BLOCK_STATUS, 0, 0, 0, errno::INVAL),
                (BLOCK_STATUS, 0, LEN, 1, errno::INVAL),
                (FLUSH, 1 << 15, 0, 0, errno::INVAL),
                (8, 0, 0, 0, errno::INVAL),
                (u16::MAX, 0, 0, 0, errno::INVAL),
            ];
            for (kind, flags, offset, len, error) in refused {
                let answer = client.call(kind, flags, offset, len);
                assert_eq!(answer.error, error, "{mode:?}: command {kind}, flags {flags}, {len} bytes at {offset}");
            }
            for (flags, offset, len, error) in
                [(0, LEN - 1, 2, errno::NOSPC), (REQ_ONE, 0, 5, errno::INVAL), (0, LEN, 70_000, errno::NOSPC)]
            {
                assert_eq!(client.write(flags, offset, &pattern(9, len)), error, "{mode:?}: a write at {offset}");
            }
            assert_eq!(client.call(FLUSH, FUA, 0, 0).error, 0, "FUA is allowed everywhere");
            client.disconnect();
        }
        assert!(served.plaintext() == Served::new(device(memory(LEN), 4096, READ_WRITE_DISCARD), io, 1).plaintext());
    }
}

#[test]
fn payload_of_command_without_payload_is_skipped() {
    let served = Served::new(device(memory(LEN), 4096, READ_WRITE_DISCARD), rings()[0], 1);
    let mut client = Client::open(served.path(), Mode::Extended);
    for kind in [READ, FLUSH, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS, 99] {
        let cookie = client.send(kind, PAYLOAD_LEN, 0, 100_000);
        client.connection.stream.write_all(&pattern(3, 100_000)).expect("the server reads");
        assert_eq!(client.wait(cookie).error, errno::INVAL, "command {kind} with a payload");
    }
    client.disconnect();
}

#[test]
fn unfragmented_read_has_one_chunk_or_overflows() {
    let served = Served::new(device(memory(LEN), 4096, READ_WRITE_DISCARD), rings()[0], 1);
    for mode in [Mode::Structured, Mode::Extended] {
        let mut client = Client::open(served.path(), mode);
        for (offset, len) in [(0, 1), (4095, 2), (1, 65_536), (0, MIB), (1, MIB)] {
            let answer = client.call(READ, DF, offset, len);
            assert_eq!((answer.error, answer.pieces), (0, 1), "{len} bytes at {offset}");
        }
        assert_eq!(client.call(READ, DF, 0, MIB + 1).error, errno::OVERFLOW);
        assert_eq!(client.call(READ, 0, 0, MIB + 1).error, 0);
    }
}

/// Lines of 5000 sectors and less, whose borders a read of 64 KiB meets at every kind of place.
#[test]
fn unfragmented_read_across_targets_has_one_chunk() {
    let key = VolumeKey::new(&[5; 64]);
    let lengths = [8, 1, 63, 16, 128, 8, 1000, 5000];
    let segment = |(index, sectors): (usize, u64)| {
        with!(
            Segment::whole((index % 3 != 1).then_some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::new(if index % 2 == 0 && sectors % 8 == 0 { 4096 } else { 512 }).expect("a valid unit"));
            start: Sector(lengths[..index].iter().sum()),
            sectors: Some(sectors),
            data_offset: Sector(lengths[..index].iter().sum()),
        )
    };
    let mut segments: Vec<Segment> = lengths.into_iter().enumerate().map(segment).collect();
    let len = 512 * lengths.iter().sum::<u64>();
    segments.push(with!(segments[0]; start: Sector(len / 512), sectors: Some(8), cipher: None));
    let content = |s: &Segment| match s.cipher {
        _ if s.start.to_bytes() == Some(len) => Content::Error,
        Some(_) => Content::Crypt(&key),
        None => Content::Linear,
    };
    let lines: Vec<Target<'_>> =
        segments.iter().map(|segment| Target { segment, content: content(segment), store: 0 }).collect();
    for io in rings() {
        let device = Device::stacked(&lines, vec![memory(len)], READ_WRITE_DISCARD).expect("the lines fit");
        let served = Served::new(Arc::new(device), io, 1);
        let bytes = pattern(7, len);
        for mode in [Mode::Structured, Mode::Extended] {
            let mut client = Client::open(served.path(), mode);
            assert_eq!(client.write(0, 0, &bytes), 0);
            let everywhere = (0..120).map(|i| (i * 5111, 65_536));
            for (offset, len) in everywhere.chain([(0, MIB), (1, MIB), (4000, 70_000), (40, 8000)]) {
                let answer = client.call(READ, DF, offset, len);
                assert_eq!((answer.error, answer.pieces), (0, 1), "{mode:?}: {len} bytes at {offset}");
                assert!(answer.data == bytes[offset as usize..(offset + len) as usize], "{len} bytes at {offset}");
            }
            // What cannot be read whole is an error, and its memory comes back.
            for _ in 0..50 {
                let answer = client.call(READ, DF, len - MIB + 4096, MIB);
                assert_eq!((answer.error, answer.pieces), (errno::IO, 0), "{mode:?}");
            }
            assert_eq!(client.call(READ, DF, 0, MIB + 1).error, errno::OVERFLOW);
            client.disconnect();
        }
    }
}

#[test]
fn block_status_covers_range_or_its_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    for io in rings() {
        let mut new = std::fs::File::options();
        let file = new.read(true).write(true).create_new(true).open(&path).expect("a new file");
        file.set_len(store_len(LEN)).expect("a sparse file");
        let store = inlock_engine::store::file::FileStore::new(file, io).expect("a regular file");
        let served = Served::new(device(std::sync::Arc::new(store), 4096, READ_WRITE_DISCARD), io, 1);
        for mode in [Mode::Structured, Mode::Extended] {
            let mut client = Client::open(served.path(), mode);
            assert_eq!(client.write(0, MIB, &pattern(1, 65_536)), 0);
            let answer = client.call(BLOCK_STATUS, 0, 0, LEN);
            assert_eq!(answer.extents.iter().map(|e| e.0).sum::<u64>(), LEN);
            assert!(answer.extents.iter().all(|e| e.0 > 0 && matches!(e.1, 0 | 1)), "a hole never reads as zeroes");
            assert!(answer.extents.windows(2).all(|w| w[0].1 != w[1].1), "neighbours that are alike are one extent");
            let at = answer
                .extents
                .iter()
                .scan(0, |end, e| {
                    *end += e.0;
                    Some((*end, e.1))
                })
                .find(|e| e.0 > MIB);
            assert_eq!(at.map(|e| e.1), Some(0), "what was written is allocated");
            let one = client.call(BLOCK_STATUS, REQ_ONE, 0, LEN);
            assert_eq!(one.extents, answer.extents[..1]);
            let byte = client.call(BLOCK_STATUS, 0, MIB + 5, 1);
            assert_eq!(byte.extents, [(1, 0)]);
            // The same from and up to a part of a data unit.
            for (start, end) in [(1, LEN), (0, LEN - 1), (MIB - 5, MIB + 1), (MIB + 65_537, LEN - 4095), (7, 9)] {
                let mut at = 0;
                let clipped = |(len, flags): &(u64, u64)| {
                    let (from, to) = (at.max(start), (at + len).min(end));
                    at += len;
                    (from < to).then(|| (to - from, *flags))
                };
                let expected: Vec<_> = answer.extents.iter().filter_map(clipped).collect();
                assert_eq!(client.call(BLOCK_STATUS, 0, start, end - start).extents, expected, "{start}..{end}");
            }
        }
        drop(served);
        std::fs::remove_file(&path).expect("it is there");
    }
}

#[test]
fn block_status_that_fails_is_an_error_and_ends_its_request_alone() {
    let store = FaultyStore::new(LEN);
    let served = Served::new(device(store.clone(), 4096, READ_WRITE_DISCARD), rings()[0], 1);
    for mode in [Mode::Structured, Mode::Extended] {
        let mut client = Client::open(served.path(), mode);
        store.set(Faults { bad_status: Some(inlock_engine::Errno::IO), ..Faults::default() });
        assert_eq!(client.call(BLOCK_STATUS, 0, 0, 4096).error, errno::IO);
        store.set(Faults::default());
        assert_eq!(client.call(BLOCK_STATUS, 0, 0, 4096).extents, [(4096, 0)]);
        client.disconnect();
    }
}

#[test]
fn block_status_with_simple_replies_is_refused() {
    let served = Served::new(device(memory(LEN), 4096, READ_WRITE_DISCARD), rings()[0], 1);
    let mut client = Client::open(served.path(), Mode::Simple);
    assert_eq!(client.call(BLOCK_STATUS, 0, 0, 4096).error, errno::INVAL);
    client.disconnect();
}

#[test]
fn read_only_export_refuses_changes_and_advertises_it() {
    for io in rings() {
        let access = Access { read_only: true, allow_discards: true };
        let served = Served::new(device(memory(LEN), 4096, access), io, 1);
        let before = served.plaintext();
        for mode in MODES {
            let mut client = Client::open(served.path(), mode);
            assert_eq!(client.flags() & (1 << 1 | 1 << 5 | 1 << 6), 1 << 1, "read-only; neither trim nor write-zeroes");
            assert_eq!(client.write(0, 0, &pattern(1, 2 * MIB)), errno::PERM);
            assert_eq!(client.call(WRITE_ZEROES, 0, 0, 4096).error, errno::PERM);
            assert_eq!(client.call(TRIM, 0, 0, 4096).error, errno::PERM);
            assert_eq!(client.call(FLUSH, 0, 0, 0).error, 0);
            assert_eq!(client.read(0, LEN), before);
            client.disconnect();
        }
    }
}

#[test]
fn trim_without_discards_is_refused() {
    let access = Access { read_only: false, allow_discards: false };
    let served = Served::new(device(memory(LEN), 4096, access), rings()[0], 1);
    let mut client = Client::open(served.path(), Mode::Simple);
    assert_eq!(client.flags() & 1 << 5, 0);
    assert_eq!(client.call(TRIM, 0, 0, 4096).error, errno::INVAL);
    client.disconnect();
}

#[test]
fn new_client_learns_that_discards_became_allowed_or_forbidden() {
    let access = Access { read_only: false, allow_discards: false };
    let served = Served::new(device(memory(LEN), 4096, access), rings()[0], 1);
    for (allowed, flag, error) in [(true, 1 << 5, 0), (false, 0, errno::INVAL)] {
        served.device.allow_discards(allowed);
        let mut client = Client::open(served.path(), Mode::Simple);
        assert_eq!(client.flags() & 1 << 5, flag, "the next client, discards allowed: {allowed}");
        assert_eq!(client.call(TRIM, 0, 0, 4096).error, error);
        client.disconnect();
    }
}
