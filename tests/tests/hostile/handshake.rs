//! Misbehaviour before transmission.

use anyhow::{Result, ensure};
use inlock_tests::nbd::option_reply as kind;
use inlock_tests::nbd::{Connection, Mode, be32, go_data, magic, meta_data, option, option_bytes};

use super::{Case, Target};

/// All cases of the handshake.
pub(crate) const CASES: &[Case] = &[
    Case { name: "connect and close", run: |t| Connection::dial(&t.socket, t.patience).map(drop) },
    Case {
        name: "close after the greeting",
        run: |t| Connection::dial(&t.socket, t.patience).and_then(|mut c| c.greeting()).map(drop),
    },
    Case { name: "half of the client flags, then disconnect", run: |t| first(t, &[0, 0])?.finish_and_closed() },
    Case { name: "unknown client flags", run: |t| first(t, &0xffff_fffcu32.to_be_bytes())?.closed() },
    Case {
        name: "a TLS hello instead of the client flags",
        run: |t| first(t, &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3])?.closed(),
    },
    Case { name: "an HTTP request", run: |t| first(t, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")?.closed() },
    Case { name: "noise after the client flags", run: |t| sent(t, &[0xa5; 4096])?.closed() },
    Case { name: "an option with a wrong magic", run: wrong_option_magic },
    Case {
        name: "half an option header, then disconnect",
        run: |t| sent(t, &option_bytes(option::LIST, &[])[..9])?.finish_and_closed(),
    },
    Case { name: "an unknown option", run: |t| refused(t, 0x7777, &[], &[kind::ERR_UNSUP]) },
    Case { name: "option number zero", run: |t| refused(t, 0, &[], &[kind::ERR_UNSUP, kind::ERR_INVALID]) },
    Case { name: "an unknown option with 64 KiB of data", run: unknown_option_with_data },
    Case { name: "option data of 4 GiB announced", run: |t| announced(t, option::LIST, u32::MAX) },
    Case { name: "option data of 32 MiB announced and sent", run: flood_of_option_data },
    Case { name: "an option's data cut short, then disconnect", run: |t| cut_option(t) },
    Case { name: "GO without data", run: |t| refused(t, option::GO, &[], &[kind::ERR_INVALID]) },
    Case {
        name: "GO with a name longer than its data",
        run: |t| refused(t, option::GO, &[0, 0, 0, 200, b'x', 0, 0], &[kind::ERR_INVALID]),
    },
    Case {
        name: "GO with a name length of 4 GiB",
        run: |t| refused(t, option::GO, &[255, 255, 255, 255, 0, 0], &[kind::ERR_INVALID, kind::ERR_TOO_BIG]),
    },
    Case { name: "GO with a name of 5000 bytes", run: |t| refused_any(t, option::GO, &go_data(&[b'n'; 5000], &[])) },
    Case {
        name: "GO with a name that is not UTF-8",
        run: |t| refused(t, option::GO, &go_data(&[0xff, 0xfe], &[]), &[kind::ERR_UNKNOWN, kind::ERR_INVALID]),
    },
    Case {
        name: "GO for an unknown export",
        run: |t| refused(t, option::GO, &go_data(b"unknown", &[]), &[kind::ERR_UNKNOWN]),
    },
    Case {
        name: "GO with more information wanted than sent",
        run: |t| refused(t, option::GO, &[0, 0, 0, 0, 0, 9, 0, 3], &[kind::ERR_INVALID]),
    },
    Case {
        name: "GO with bytes after its end",
        run: |t| refused(t, option::GO, &[0, 0, 0, 0, 0, 0, 1, 2, 3], &[kind::ERR_INVALID]),
    },
    Case { name: "INFO with 30000 wanted pieces", run: info_with_many },
    Case { name: "INFO a thousand times, then GO", run: info_often },
    Case { name: "LIST with data", run: |t| refused(t, option::LIST, &[1, 2, 3, 4], &[kind::ERR_INVALID]) },
    Case { name: "ABORT with data", run: |t| sent(t, &option_bytes(option::ABORT, &[9; 64]))?.closed() },
    Case { name: "options after ABORT", run: options_after_abort },
    Case {
        name: "structured replies with data",
        run: |t| refused(t, option::STRUCTURED_REPLY, &[0; 8], &[kind::ERR_INVALID]),
    },
    Case { name: "structured replies twice", run: |t| twice(t, option::STRUCTURED_REPLY, Mode::Structured) },
    Case {
        name: "extended headers with data",
        run: |t| refused(t, option::EXTENDED_HEADERS, &[0; 8], &[kind::ERR_INVALID]),
    },
    Case { name: "extended headers twice", run: |t| twice(t, option::EXTENDED_HEADERS, Mode::Extended) },
    Case { name: "structured replies after extended headers", run: structured_after_extended },
    Case {
        name: "a metadata context before structured replies",
        run: |t| refused(t, option::SET_META_CONTEXT, &meta_data(b"", &[b"base:allocation"]), &[kind::ERR_INVALID]),
    },
    Case {
        name: "a metadata query longer than its option",
        run: |t| bad_meta(t, &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, b'b']),
    },
    Case { name: "four billion metadata queries announced", run: |t| bad_meta(t, &[0, 0, 0, 0, 255, 255, 255, 255]) },
    Case { name: "metadata for a name longer than its option", run: |t| bad_meta(t, &[0, 1, 0, 0, b'x', 0, 0, 0, 0]) },
    Case { name: "metadata for another export", run: meta_for_another_export },
    Case { name: "unknown metadata contexts", run: unknown_contexts },
    Case { name: "ten thousand metadata queries", run: many_queries },
    Case {
        name: "STARTTLS where there is no TLS",
        run: |t| refused(t, option::STARTTLS, &[], &[kind::ERR_UNSUP, kind::ERR_POLICY]),
    },
    Case {
        name: "EXPORT_NAME for an unknown export",
        run: |t| sent(t, &option_bytes(option::EXPORT_NAME, b"unknown"))?.closed(),
    },
    Case {
        name: "EXPORT_NAME with a name of 100 KiB",
        run: |t| sent(t, &option_bytes(option::EXPORT_NAME, &[b'n'; 100 << 10]))?.closed(),
    },
    Case { name: "ten thousand unknown options, replies read", run: option_flood },
    Case { name: "a hundred thousand unknown options, replies never read", run: option_flood_unread },
    Case { name: "every option one byte at a time", run: slow_handshake },
];

/// Returns a connection that has sent `bytes` instead of the client flags after the greeting.
fn first(t: &Target, bytes: &[u8]) -> Result<Ending> {
    let mut connection = Connection::dial(&t.socket, t.patience)?;
    connection.greeting()?;
    connection.send(bytes)?;
    Ok(Ending(connection))
}

/// Returns a connection in option haggling that has sent `bytes`. A server may disconnect before it has received all of
/// them.
fn sent(t: &Target, bytes: &[u8]) -> Result<Ending> {
    let mut connection = t.haggle()?;
    let _ = connection.send(bytes);
    Ok(Ending(connection))
}

struct Ending(Connection);

impl Ending {
    fn closed(mut self) -> Result<()> {
        self.0.expect_closed().map(drop)
    }

    fn finish_and_closed(mut self) -> Result<()> {
        self.0.finish_sending()?;
        self.closed()
    }
}

/// Checks that the server is in step after a refused option: GO and a read succeed.
fn goes_on(mut connection: Connection) -> Result<()> {
    connection.go(b"")?;
    connection.read(0, 512)?;
    connection.disconnect()
}

/// Checks that the option is refused with one of these errors, and that the session continues.
fn refused(t: &Target, code: u32, data: &[u8], with: &[u32]) -> Result<()> {
    let mut connection = t.haggle()?;
    let reply = connection.ask(code, data)?;
    ensure!(with.contains(&reply.kind), "the answer is {:#x}", reply.kind);
    goes_on(connection)
}

fn refused_any(t: &Target, code: u32, data: &[u8]) -> Result<()> {
    let mut connection = t.haggle()?;
    let reply = connection.ask(code, data)?;
    ensure!(reply.kind & kind::ERROR != 0, "the answer is {:#x}", reply.kind);
    goes_on(connection)
}

fn wrong_option_magic(t: &Target) -> Result<()> {
    let mut bytes = option_bytes(option::LIST, &[]);
    bytes[3] ^= 1;
    sent(t, &bytes)?.closed()
}

fn unknown_option_with_data(t: &Target) -> Result<()> {
    let mut connection = t.haggle()?;
    connection.send(&option_bytes(0x7777, &[3; 64 << 10]))?;
    match connection.option_reply() {
        Ok(reply) => {
            ensure!([kind::ERR_UNSUP, kind::ERR_TOO_BIG].contains(&reply.kind), "the answer is {:#x}", reply.kind);
            goes_on(connection)
        }
        Err(_) => connection.expect_closed().map(drop),
    }
}

/// Announces data that are never sent: the server must refuse or disconnect, and not allocate memory and wait.
fn announced(t: &Target, code: u32, len: u32) -> Result<()> {
    let mut connection = t.haggle()?;
    let mut head = magic::OPTION.to_be_bytes().to_vec();
    head.extend(code.to_be_bytes());
    head.extend(len.to_be_bytes());
    connection.send(&head)?;
    connection.finish_sending()?;
    connection.expect_closed().map(drop)
}

fn flood_of_option_data(t: &Target) -> Result<()> {
    let mut connection = t.haggle()?;
    let mut head = magic::OPTION.to_be_bytes().to_vec();
    head.extend(option::SET_META_CONTEXT.to_be_bytes());
    head.extend((32u32 << 20).to_be_bytes());
    connection.send(&head)?;
    for _ in 0..512 {
        if connection.send(&[7; 64 << 10]).is_err() {
            return connection.expect_closed().map(drop);
        }
    }
    let reply = match connection.option_reply() {
        Ok(reply) => reply,
        Err(_) => return connection.expect_closed().map(drop),
    };
    ensure!(reply.kind & kind::ERROR != 0, "the answer is {:#x}", reply.kind);
    goes_on(connection)
}

fn cut_option(t: &Target) -> Result<()> {
    let bytes = option_bytes(option::GO, &go_data(b"", &[3]));
    sent(t, &bytes[..bytes.len() - 2])?.finish_and_closed()
}

fn info_with_many(t: &Target) -> Result<()> {
    let mut connection = t.haggle()?;
    connection.send(&option_bytes(option::INFO, &go_data(b"", &[0x1234; 30_000])))?;
    let replies = match connection.option_replies() {
        Ok(replies) => replies,
        Err(_) => return connection.expect_closed().map(drop),
    };
    ensure!(replies.len() < 100, "{} replies to unknown pieces of information", replies.len());
    goes_on(connection)
}

fn info_often(t: &Target) -> Result<()> {
    let mut connection = t.haggle()?;
    for _ in 0..1000 {
        connection.send(&option_bytes(option::INFO, &go_data(b"", &[0, 1, 2, 3])))?;
        let replies = connection.option_replies()?;
        let sized = replies.iter().any(|r| r.kind == kind::INFO && r.data.starts_with(&[0, 3]) && r.data.len() == 14);
        ensure!(sized, "INFO does not give the block size that was asked for");
    }
    goes_on(connection)
}

fn options_after_abort(t: &Target) -> Result<()> {
    let mut bytes = option_bytes(option::ABORT, &[]);
    (0..100).for_each(|_| bytes.extend(option_bytes(option::LIST, &[])));
    let mut connection = t.haggle()?;
    let _ = connection.send(&bytes);
    ensure!(connection.expect_closed()? < 100, "the server answers after ABORT");
    Ok(())
}

fn twice(t: &Target, code: u32, mode: Mode) -> Result<()> {
    let mut connection = t.haggle()?;
    ensure!(connection.ask(code, &[])?.kind == kind::ACK, "the first time is refused");
    let second = connection.ask(code, &[])?.kind;
    ensure!([kind::ACK, kind::ERR_INVALID].contains(&second), "the second time gets {second:#x}");
    connection.mode = mode;
    goes_on(connection)
}

fn structured_after_extended(t: &Target) -> Result<()> {
    let mut connection = t.haggle()?;
    connection.negotiate(Mode::Extended)?;
    let reply = connection.ask(option::STRUCTURED_REPLY, &[])?;
    ensure!([kind::ERR_EXT_HEADER_REQD, kind::ERR_INVALID].contains(&reply.kind), "the answer is {:#x}", reply.kind);
    goes_on(connection)
}

fn bad_meta(t: &Target, data: &[u8]) -> Result<()> {
    for code in [option::SET_META_CONTEXT, option::LIST_META_CONTEXT] {
        let mut connection = t.haggle()?;
        connection.negotiate(Mode::Structured)?;
        let reply = connection.ask(code, data)?;
        ensure!([kind::ERR_INVALID, kind::ERR_TOO_BIG].contains(&reply.kind), "the answer is {:#x}", reply.kind);
        goes_on(connection)?;
    }
    Ok(())
}

fn meta_for_another_export(t: &Target) -> Result<()> {
    let mut connection = t.haggle()?;
    connection.negotiate(Mode::Structured)?;
    let reply = connection.ask(option::SET_META_CONTEXT, &meta_data(b"unknown", &[b"base:allocation"]))?;
    ensure!(reply.kind == kind::ERR_UNKNOWN, "the answer is {:#x}", reply.kind);
    goes_on(connection)
}

fn unknown_contexts(t: &Target) -> Result<()> {
    let mut connection = t.haggle()?;
    connection.negotiate(Mode::Structured)?;
    let queries: [&[u8]; 5] = [b"qemu:dirty-bitmap:x", b"base:", b":", b"", b"base:allocation\0"];
    connection.send(&option_bytes(option::SET_META_CONTEXT, &meta_data(b"", &queries)))?;
    let replies = connection.option_replies()?;
    ensure!(replies.len() == 1, "an unknown context was chosen: {replies:?}");
    goes_on(connection)
}

fn many_queries(t: &Target) -> Result<()> {
    let mut connection = t.haggle()?;
    connection.negotiate(Mode::Structured)?;
    let queries: Vec<&[u8]> = vec![b"base:allocation"; 10_000];
    connection.send(&option_bytes(option::SET_META_CONTEXT, &meta_data(b"", &queries)))?;
    let replies = match connection.option_replies() {
        Ok(replies) => replies,
        Err(_) => return connection.expect_closed().map(drop),
    };
    ensure!(replies.len() <= 2, "one context was chosen {} times", replies.len() - 1);
    goes_on(connection)
}

fn option_flood(t: &Target) -> Result<()> {
    let mut connection = t.haggle()?;
    let burst: Vec<u8> = (0..100).flat_map(|_| option_bytes(0x4242, &[1])).collect();
    for _ in 0..100 {
        if connection.send(&burst).is_err() {
            return connection.expect_closed().map(drop);
        }
        for _ in 0..100 {
            match connection.option_reply() {
                Ok(reply) => ensure!(reply.kind == kind::ERR_UNSUP, "the answer is {:#x}", reply.kind),
                Err(_) => return connection.expect_closed().map(drop),
            }
        }
    }
    goes_on(connection)
}

fn option_flood_unread(t: &Target) -> Result<()> {
    let mut connection = Connection::dial(&t.socket, std::time::Duration::from_millis(200))?;
    connection.greeting()?;
    connection.send(&3u32.to_be_bytes())?;
    let burst: Vec<u8> = (0..1000).flat_map(|_| option_bytes(0x4242, &[])).collect();
    // A server may stop receiving options while the client receives no replies, or disconnect.
    let taken = (0..100).take_while(|_| connection.send(&burst).is_ok()).count();
    ensure!(taken < 100, "the server queues replies without a bound");
    Ok(())
}

fn slow_handshake(t: &Target) -> Result<()> {
    let mut connection = t.haggle()?;
    let mut bytes = option_bytes(option::STRUCTURED_REPLY, &[]);
    bytes.extend(option_bytes(option::LIST, &[]));
    bytes.extend(option_bytes(option::GO, &go_data(b"", &[3])));
    for byte in bytes {
        connection.send(&[byte])?;
    }
    ensure!(connection.option_reply()?.kind == kind::ACK, "structured replies are refused");
    let list = connection.option_replies()?;
    ensure!(list.len() == 2 && list[0].kind == kind::SERVER && be32(&list[0].data) < 256, "LIST gives {list:?}");
    connection.option_replies()?;
    connection.mode = Mode::Structured;
    connection.read(0, 512)?;
    connection.disconnect()
}
