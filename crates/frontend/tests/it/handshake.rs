//! The option table: each option with good and bad data, and the reply each gets.

use crate::client::*;
use crate::support::*;
use std::io::{Read, Write};

const ACK: u32 = 1;
const SERVER: u32 = 2;
const INFO: u32 = 3;
const META: u32 = 4;
const UNSUP: u32 = 0x8000_0001;
const INVALID: u32 = 0x8000_0003;
const UNKNOWN: u32 = 0x8000_0006;
const TOO_BIG: u32 = 0x8000_0009;
const EXT_HEADER_REQD: u32 = 0x8000_000a;

const LEN: u64 = 1 << 20;

fn served() -> Served {
    Served::new(device(memory(LEN), 4096, ANYTHING_GOES), rings()[0], 1)
}

/// Options that come first, the option, its data, and the types of its replies.
type Row = (&'static str, &'static [u32], u32, Vec<u8>, &'static [u32]);

fn table() -> Vec<Row> {
    let name = NAME.as_bytes();
    let base: &[u8] = b"base:allocation";
    let mut long_query = queries(name, &[base]);
    long_query[..4].copy_from_slice(&u32::MAX.to_be_bytes());
    let mut many = queries(b"", &[base]);
    many[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
    let trailing = |mut data: Vec<u8>| {
        data.push(0);
        data
    };
    vec![
        ("list", &[], 3, vec![], &[SERVER, ACK]),
        ("list with data", &[], 3, vec![0], &[INVALID]),
        ("starttls", &[], 5, vec![], &[UNSUP]),
        ("an unknown option", &[], 4711, vec![1; 300], &[UNSUP]),
        ("an option that is too long", &[], 6, vec![0; 20 << 10], &[TOO_BIG]),
        ("info", &[], 6, info(b"", &[]), &[INFO, ACK]),
        ("info by name", &[], 6, info(name, &[]), &[INFO, ACK]),
        ("info about everything", &[], 6, info(name, &[0, 1, 2, 3, 9]), &[INFO, INFO, INFO, INFO, ACK]),
        ("info about another", &[], 6, info(b"other", &[]), &[UNKNOWN]),
        ("go to another", &[], 7, info(b"other", &[]), &[UNKNOWN]),
        ("info without data", &[], 6, vec![], &[INVALID]),
        ("info, cut", &[], 6, info(name, &[1, 2])[..14].to_vec(), &[INVALID]),
        ("info, too much", &[], 6, trailing(info(name, &[1])), &[INVALID]),
        ("info, a name beyond all measure", &[], 6, vec![0xff; 10], &[INVALID]),
        ("structured", &[], 8, vec![], &[ACK]),
        ("structured with data", &[], 8, vec![1], &[INVALID]),
        ("structured twice", &[8], 8, vec![], &[INVALID]),
        ("structured after extended", &[11], 8, vec![], &[EXT_HEADER_REQD]),
        ("extended", &[], 11, vec![], &[ACK]),
        ("extended after structured", &[8], 11, vec![], &[ACK]),
        ("extended twice", &[11], 11, vec![], &[INVALID]),
        ("extended with data", &[], 11, vec![0; 4], &[INVALID]),
        ("list contexts too early", &[], 9, queries(name, &[]), &[INVALID]),
        ("set contexts too early", &[], 10, queries(name, &[base]), &[INVALID]),
        ("list all contexts", &[8], 9, queries(name, &[]), &[META, ACK]),
        ("list a namespace", &[8], 9, queries(b"", &[b"base:"]), &[META, ACK]),
        ("list a context", &[11], 9, queries(b"", &[base]), &[META, ACK]),
        ("list an unknown context", &[8], 9, queries(b"", &[b"x:y"]), &[ACK]),
        ("set no contexts", &[8], 10, queries(name, &[]), &[ACK]),
        ("set a context", &[8], 10, queries(name, &[b"x:y", base, base]), &[META, ACK]),
        ("set a namespace", &[8], 10, queries(name, &[b"base:"]), &[ACK]),
        ("set for another export", &[8], 10, queries(b"other", &[base]), &[UNKNOWN]),
        ("set, cut", &[8], 10, queries(name, &[base])[..20].to_vec(), &[INVALID]),
        ("set, too much", &[8], 10, trailing(queries(name, &[base])), &[INVALID]),
        ("set, a name beyond all measure", &[8], 10, long_query, &[INVALID]),
        ("set, more queries than bytes", &[8], 10, many, &[INVALID]),
    ]
}

fn is_last(kind: u32) -> bool {
    kind == ACK || kind >> 31 == 1
}

fn replies(stream: &mut std::os::unix::net::UnixStream, number: u32) -> Vec<(u32, Vec<u8>)> {
    let mut all = vec![option_reply(stream, number)];
    while !all.last().is_some_and(|r| is_last(r.0)) {
        all.push(option_reply(stream, number));
    }
    all
}

#[test]
fn every_option_gets_the_reply_it_deserves() {
    let served = served();
    for (what, before, number, data, expected) in table() {
        let mut stream = greet(served.path(), 3);
        for first in before {
            stream.write_all(&option(*first, b"")).expect("the server reads");
            assert_eq!(replies(&mut stream, *first)[0].0, ACK);
        }
        stream.write_all(&option(number, &data)).expect("the server reads");
        let kinds: Vec<u32> = replies(&mut stream, number).iter().map(|r| r.0).collect();
        assert_eq!(kinds, expected, "{what}");
        // Whatever it was, the haggling goes on.
        stream.write_all(&option(3, b"")).expect("the server reads");
        assert_eq!(replies(&mut stream, 3).len(), 2, "{what}: a list after it");
        stream.write_all(&option(7, &info(b"", &[]))).expect("the server reads");
        assert_eq!(replies(&mut stream, 7).len(), 2, "{what}: transmission after it");
    }
}

#[test]
fn options_byte_by_byte_and_all_at_once() {
    let served = served();
    let all: Vec<u8> = [option(8, b""), option(3, b""), option(99, b"abc"), option(7, &info(b"", &[3]))].concat();
    for step in [1, 7, all.len()] {
        let mut stream = greet(served.path(), 3);
        for bytes in all.chunks(step) {
            stream.write_all(bytes).expect("the server reads");
        }
        for (number, kinds) in [(8, vec![ACK]), (3, vec![SERVER, ACK]), (99, vec![UNSUP]), (7, vec![INFO, INFO, ACK])] {
            assert_eq!(replies(&mut stream, number).iter().map(|r| r.0).collect::<Vec<_>>(), kinds);
        }
    }
}

#[test]
fn the_facts_of_the_export_are_told() {
    let served = served();
    let mut stream = greet(served.path(), 3);
    stream.write_all(&option(6, &info(b"", &[3, 2, 1]))).expect("the server reads");
    let facts: Vec<Vec<u8>> = replies(&mut stream, 6).into_iter().map(|r| r.1).collect();
    let starts =
        |kind: u8| facts.iter().find(|f| f.len() > 2 && f[..2] == [0, kind]).expect("a fact that was asked for");
    assert_eq!(starts(0)[2..10], LEN.to_be_bytes());
    assert_eq!(&starts(1)[2..], NAME.as_bytes());
    assert_eq!(&starts(2)[2..], DESCRIPTION.as_bytes());
    let sizes: Vec<u32> =
        starts(3)[2..].chunks_exact(4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]])).collect();
    assert_eq!(sizes, [1, 4096, 32 << 20]);
    stream.write_all(&option(3, b"")).expect("the server reads");
    let entry = replies(&mut stream, 3).remove(0).1;
    assert_eq!(entry, [&(NAME.len() as u32).to_be_bytes(), NAME.as_bytes()].concat());
}

#[test]
fn export_name_enters_transmission_with_and_without_zeroes() {
    let served = served();
    for (flags, len) in [(1, 134), (3, 10)] {
        let mut stream = greet(served.path(), flags);
        stream.write_all(&option(1, NAME.as_bytes())).expect("the server reads");
        // A flush, to see where the facts end.
        let flush = [&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, 3], [0; 8].as_slice(), &[0; 12]].concat();
        stream.write_all(&flush).expect("the server reads");
        let facts = take(&mut stream, len);
        assert_eq!(facts[..8], LEN.to_be_bytes());
        assert!(facts[10..].iter().all(|b| *b == 0));
        assert_eq!(take(&mut stream, 16), [&[0x67, 0x44, 0x66, 0x98], [0; 12].as_slice()].concat());
    }
}

#[test]
fn abort_is_acknowledged_and_ends_it() {
    let served = served();
    let mut stream = greet(served.path(), 3);
    stream.write_all(&option(2, b"")).expect("the server reads");
    assert_eq!(replies(&mut stream, 2)[0].0, ACK);
    assert_eq!(stream.read_to_end(&mut Vec::new()).expect("the server hangs up"), 0);
}

#[test]
fn who_does_not_speak_the_protocol_is_dropped() {
    let served = served();
    let wrong_magic = [b"IHAVEOPS".as_slice(), &[0; 8]].concat();
    let endless = [b"IHAVEOPT".as_slice(), &3u32.to_be_bytes(), &u32::MAX.to_be_bytes()].concat();
    let rows = [(4, vec![]), (u32::MAX, vec![]), (3, wrong_magic), (3, endless), (3, option(1, b"other"))];
    for (flags, bytes) in rows {
        let mut stream = greet(served.path(), flags);
        // The server may have hung up already.
        let _ = stream.write_all(&bytes);
        let mut rest = Vec::new();
        let end = stream.read_to_end(&mut rest);
        assert!(end.is_ok() || end.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
        assert_eq!(rest, [], "flags {flags}: {bytes:?}");
    }
    Client::open(served.path(), Style::Simple).disconnect();
}

#[test]
fn a_later_choice_of_contexts_replaces_the_earlier() {
    let served = served();
    let chosen: [(&[&[u8]], bool); 3] = [(&[b"base:allocation"], true), (&[], false), (&[b"x:y"], false)];
    for (second, allowed) in chosen {
        let mut client = Client::open(served.path(), Style::Structured);
        let mut stream = greet(served.path(), 3);
        for (number, data) in [(8, vec![]), (10, queries(b"", &[b"base:allocation"])), (10, queries(b"", second))] {
            stream.write_all(&option(number, &data)).expect("the server reads");
            replies(&mut stream, number);
        }
        stream.write_all(&option(7, &info(b"", &[]))).expect("the server reads");
        replies(&mut stream, 7);
        client.stream = stream;
        let error = client.call(BLOCK_STATUS, 0, 0, 4096).error;
        assert_eq!(error == 0, allowed);
    }
}
