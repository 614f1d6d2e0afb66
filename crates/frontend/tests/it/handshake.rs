//! The option table: each option with good and bad data, and the reply each gets.

use crate::client::*;
use crate::support::*;
use inlock_tests::nbd::option_bytes;
use std::io::Read;

use option_reply::{
    ACK, ERR_EXT_HEADER_REQD, ERR_INVALID, ERR_POLICY, ERR_TOO_BIG, ERR_UNKNOWN, ERR_UNSUP, INFO, META_CONTEXT, SERVER,
};

const LEN: u64 = 1 << 20;

fn served() -> Served {
    Served::new(device(memory(LEN), 4096, READ_WRITE_DISCARD), rings()[0], 1)
}

/// Options that come first, the option, its data, and the types of its replies.
type Row = (&'static str, &'static [u32], u32, Vec<u8>, &'static [u32]);

fn table() -> Vec<Row> {
    let name = NAME.as_bytes();
    let base: &[u8] = b"base:allocation";
    let mut long_query = meta_data(name, &[base]);
    long_query[..4].copy_from_slice(&u32::MAX.to_be_bytes());
    let mut many = meta_data(b"", &[base]);
    many[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
    let trailing = |mut data: Vec<u8>| {
        data.push(0);
        data
    };
    vec![
        ("list", &[], 3, vec![], &[SERVER, ACK]),
        ("list with data", &[], 3, vec![0], &[ERR_INVALID]),
        ("starttls", &[], 5, vec![], &[ERR_POLICY]),
        ("starttls with data", &[], 5, vec![0], &[ERR_INVALID]),
        ("an unknown option", &[], 4711, vec![1; 300], &[ERR_UNSUP]),
        ("an option that is too long", &[], 6, vec![0; 20 << 10], &[ERR_TOO_BIG]),
        ("info", &[], 6, go_data(b"", &[]), &[INFO, ACK]),
        ("info by name", &[], 6, go_data(name, &[]), &[INFO, ACK]),
        ("info about everything", &[], 6, go_data(name, &[0, 1, 2, 3, 9]), &[INFO, INFO, INFO, INFO, ACK]),
        ("info about another", &[], 6, go_data(b"other", &[]), &[ERR_UNKNOWN]),
        ("go to another", &[], 7, go_data(b"other", &[]), &[ERR_UNKNOWN]),
        ("info without data", &[], 6, vec![], &[ERR_INVALID]),
        ("info, cut", &[], 6, go_data(name, &[1, 2])[..14].to_vec(), &[ERR_INVALID]),
        ("info, too much", &[], 6, trailing(go_data(name, &[1])), &[ERR_INVALID]),
        ("info about the longest name", &[], 6, go_data(&[b'x'; 4096], &[]), &[ERR_UNKNOWN]),
        ("info about a longer name", &[], 6, go_data(&[b'x'; 4097], &[]), &[ERR_INVALID]),
        ("info, a name beyond all measure", &[], 6, vec![0xff; 10], &[ERR_INVALID]),
        ("structured", &[], 8, vec![], &[ACK]),
        ("structured with data", &[], 8, vec![1], &[ERR_INVALID]),
        ("structured twice", &[8], 8, vec![], &[ERR_INVALID]),
        ("structured after extended", &[11], 8, vec![], &[ERR_EXT_HEADER_REQD]),
        ("extended", &[], 11, vec![], &[ACK]),
        ("extended after structured", &[8], 11, vec![], &[ACK]),
        ("extended twice", &[11], 11, vec![], &[ERR_INVALID]),
        ("extended with data", &[], 11, vec![0; 4], &[ERR_INVALID]),
        ("list contexts too early", &[], 9, meta_data(name, &[]), &[ERR_INVALID]),
        ("set contexts too early", &[], 10, meta_data(name, &[base]), &[ERR_INVALID]),
        ("list all contexts", &[8], 9, meta_data(name, &[]), &[META_CONTEXT, ACK]),
        ("list a namespace", &[8], 9, meta_data(b"", &[b"base:"]), &[META_CONTEXT, ACK]),
        ("list a context", &[11], 9, meta_data(b"", &[base]), &[META_CONTEXT, ACK]),
        ("list an unknown context", &[8], 9, meta_data(b"", &[b"x:y"]), &[ACK]),
        ("set no contexts", &[8], 10, meta_data(name, &[]), &[ACK]),
        ("set a context", &[8], 10, meta_data(name, &[b"x:y", base, base]), &[META_CONTEXT, ACK]),
        ("set a namespace", &[8], 10, meta_data(name, &[b"base:"]), &[ACK]),
        ("set for another export", &[8], 10, meta_data(b"other", &[base]), &[ERR_UNKNOWN]),
        ("set, cut", &[8], 10, meta_data(name, &[base])[..20].to_vec(), &[ERR_INVALID]),
        ("set, too much", &[8], 10, trailing(meta_data(name, &[base])), &[ERR_INVALID]),
        ("set, a name beyond all measure", &[8], 10, long_query, &[ERR_INVALID]),
        ("set, more queries than bytes", &[8], 10, many, &[ERR_INVALID]),
    ]
}

#[test]
fn option_in_each_form_gets_its_reply() {
    let served = served();
    for (what, before, number, data, expected) in table() {
        let mut connection = greet(served.path(), 3);
        for first in before {
            assert_eq!(ask(&mut connection, *first, b"")[0].kind, ACK);
        }
        let kinds: Vec<u32> = ask(&mut connection, number, &data).iter().map(|reply| reply.kind).collect();
        assert_eq!(kinds, expected, "{what}");
        // The handshake continues in every case.
        assert_eq!(ask(&mut connection, option::LIST, b"").len(), 2, "{what}: a list after it");
        assert_eq!(ask(&mut connection, option::GO, &go_data(b"", &[])).len(), 2, "{what}: transmission after it");
    }
}

#[test]
fn options_in_pieces_get_same_replies() {
    let served = served();
    let options = [(8, vec![]), (3, vec![]), (99, b"abc".to_vec()), (7, go_data(b"", &[3]))];
    let all: Vec<u8> = options.iter().flat_map(|(number, data)| option_bytes(*number, data)).collect();
    for step in [1, 7, all.len()] {
        let mut connection = greet(served.path(), 3);
        for bytes in all.chunks(step) {
            connection.send(bytes).expect("the server reads");
        }
        let expected = [(8, vec![ACK]), (3, vec![SERVER, ACK]), (99, vec![ERR_UNSUP]), (7, vec![INFO, INFO, ACK])];
        for (number, kinds) in expected {
            assert_eq!(replies(&mut connection, number).iter().map(|r| r.kind).collect::<Vec<_>>(), kinds);
        }
    }
}

#[test]
fn info_describes_export() {
    let served = served();
    let mut connection = greet(served.path(), 3);
    let facts: Vec<Vec<u8>> =
        ask(&mut connection, option::INFO, &go_data(b"", &[3, 2, 1])).into_iter().map(|r| r.data).collect();
    let starts =
        |kind: u8| facts.iter().find(|f| f.len() > 2 && f[..2] == [0, kind]).expect("a fact that was asked for");
    assert_eq!(starts(0)[2..10], LEN.to_be_bytes());
    assert_eq!(&starts(1)[2..], NAME.as_bytes());
    assert_eq!(&starts(2)[2..], DESCRIPTION.as_bytes());
    let sizes: Vec<u32> =
        starts(3)[2..].chunks_exact(4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]])).collect();
    assert_eq!(sizes, [1, 4096, 32 << 20]);
    let entry = ask(&mut connection, option::LIST, b"").remove(0).data;
    assert_eq!(entry, [&(NAME.len() as u32).to_be_bytes(), NAME.as_bytes()].concat());
}

#[test]
fn export_name_enters_transmission_with_and_without_zeroes() {
    let served = served();
    for (flags, len) in [(1, 134), (3, 10)] {
        let mut connection = greet(served.path(), flags);
        connection.send(&option_bytes(option::EXPORT_NAME, NAME.as_bytes())).expect("the server reads");
        // A flush, to see where the facts end.
        let flush = [&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, 3], [0; 8].as_slice(), &[0; 12]].concat();
        connection.send(&flush).expect("the server reads");
        let facts = connection.receive(len).expect("the facts");
        assert_eq!(facts[..8], LEN.to_be_bytes());
        assert!(facts[10..].iter().all(|b| *b == 0));
        let reply = connection.receive(16).expect("a reply");
        assert_eq!(reply, [&[0x67, 0x44, 0x66, 0x98], [0; 12].as_slice()].concat());
    }
}

#[test]
fn abort_is_acknowledged_and_disconnects() {
    let served = served();
    let mut connection = greet(served.path(), 3);
    assert_eq!(ask(&mut connection, option::ABORT, b"")[0].kind, ACK);
    assert_eq!(connection.stream.read_to_end(&mut Vec::new()).expect("the server disconnects"), 0);
}

#[test]
fn client_that_violates_handshake_is_dropped() {
    let served = served();
    let wrong_magic = [b"IHAVEOPS".as_slice(), &[0; 8]].concat();
    let endless = [b"IHAVEOPT".as_slice(), &3u32.to_be_bytes(), &u32::MAX.to_be_bytes()].concat();
    let unknown = option_bytes(option::EXPORT_NAME, b"other");
    let rows = [(4, vec![]), (u32::MAX, vec![]), (3, wrong_magic), (3, endless), (3, unknown)];
    for (flags, bytes) in rows {
        let mut connection = greet(served.path(), flags);
        // The server may have disconnected already.
        let _ = connection.send(&bytes);
        let mut rest = Vec::new();
        let end = connection.stream.read_to_end(&mut rest);
        assert!(end.is_ok() || end.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
        assert_eq!(rest, [], "flags {flags}: {bytes:?}");
    }
    Client::open(served.path(), Mode::Simple).disconnect();
}

#[test]
fn second_choice_of_contexts_replaces_first() {
    let served = served();
    let chosen: [(&[&[u8]], bool); 3] = [(&[b"base:allocation"], true), (&[], false), (&[b"x:y"], false)];
    for (second, allowed) in chosen {
        let mut connection = greet(served.path(), 3);
        connection.negotiate(Mode::Structured).expect("structured replies");
        for queries in [&[b"base:allocation".as_slice()], second] {
            ask(&mut connection, option::SET_META_CONTEXT, &meta_data(b"", queries));
        }
        connection.go(b"").expect("the export is there");
        let error = Client::in_transmission(connection).call(BLOCK_STATUS, 0, 0, 4096).error;
        assert_eq!(error == 0, allowed);
    }
}
