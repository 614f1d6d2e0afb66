//! Misbehaviour in transmission.

use anyhow::{Context, Result, ensure};
use inlock_tests::nbd::command::{BLOCK_STATUS, CACHE, DISC, FLUSH, READ, TRIM, WRITE, WRITE_ZEROES};
use inlock_tests::nbd::{Connection, Mode, errno, flag, magic, request_bytes};

use super::{Case, SIZE, Target};

const MODES: [Mode; 3] = [Mode::Simple, Mode::Structured, Mode::Extended];

/// All cases of transmission on a writable export.
pub(crate) const CASES: &[Case] = &[
    Case { name: "a request with a wrong magic", run: wrong_magic },
    Case { name: "half a request, then disconnect", run: half_a_request },
    Case {
        name: "an extended request without extended headers",
        run: |t| mismatched_header(t, Mode::Structured, Mode::Extended),
    },
    Case {
        name: "a compact request with extended headers",
        run: |t| mismatched_header(t, Mode::Extended, Mode::Simple),
    },
    Case { name: "an unknown command", run: |t| each_refused(t, 0, 99, 0, 512, &[errno::INVAL]) },
    Case { name: "command number 65535", run: |t| each_refused(t, 0, 0xffff, 0, 0, &[errno::INVAL]) },
    Case { name: "unknown command flags on a read", run: |t| each_refused(t, 0xff00, READ, 0, 512, &[errno::INVAL]) },
    Case { name: "unknown command flags on a flush", run: |t| each_refused(t, 0x8000, FLUSH, 0, 0, &[errno::INVAL]) },
    Case { name: "unknown command flags on a write", run: unknown_flags_on_write },
    Case {
        name: "do-not-fragment without structured replies",
        run: |t| refused(t, Mode::Simple, flag::DF, READ, (0, 512), &[errno::INVAL, 0]),
    },
    Case { name: "a read that starts at the end", run: |t| each_refused(t, 0, READ, SIZE, 512, &[errno::INVAL]) },
    Case { name: "a read across the end", run: |t| each_refused(t, 0, READ, SIZE - 100, 512, &[errno::INVAL]) },
    Case {
        name: "a read whose end wraps round",
        run: |t| each_refused(t, 0, READ, u64::MAX - 511, 1024, &[errno::INVAL]),
    },
    Case {
        name: "a read at the last offset there is",
        run: |t| each_refused(t, 0, READ, u64::MAX, 1, &[errno::INVAL]),
    },
    Case { name: "a read of 4 GiB", run: |t| too_long(t, READ, u64::from(u32::MAX)) },
    Case { name: "a read of 33 MiB, past the announced payload", run: |t| too_long(t, READ, 33 << 20) },
    Case {
        name: "an extended read of 2^63 bytes",
        run: |t| refused(t, Mode::Extended, 0, READ, (0, 1 << 63), &[errno::INVAL, errno::OVERFLOW]),
    },
    Case { name: "a write that starts at the end", run: |t| write_refused(t, SIZE) },
    Case { name: "a write across the end", run: |t| write_refused(t, SIZE - 100) },
    Case { name: "a write whose end wraps round", run: |t| write_refused(t, u64::MAX - 255) },
    Case { name: "a write of 4 GiB announced", run: |t| write_announced(t, Mode::Simple, u64::from(u32::MAX)) },
    Case { name: "an extended write of 2^63 bytes announced", run: |t| write_announced(t, Mode::Extended, 1 << 63) },
    Case { name: "a write of 40 MiB, past the announced payload", run: big_write },
    Case { name: "a write cut in the middle of its data", run: half_a_write },
    Case { name: "a write with no data at all, then disconnect", run: write_without_data },
    Case { name: "a read of no length", run: |t| each_refused(t, 0, READ, 0, 0, &[0, errno::INVAL]) },
    Case { name: "a write of no length", run: |t| each_refused(t, 0, WRITE, 4096, 0, &[0, errno::INVAL]) },
    Case { name: "write-zeroes of no length", run: |t| each_refused(t, 0, WRITE_ZEROES, 4096, 0, &[0, errno::INVAL]) },
    Case {
        name: "write-zeroes across the end",
        run: |t| each_refused(t, 0, WRITE_ZEROES, SIZE - 1, 2, &[errno::INVAL, errno::NOSPC]),
    },
    Case {
        name: "write-zeroes of 4 GiB",
        run: |t| each_refused(t, 0, WRITE_ZEROES, 0, u64::from(u32::MAX), &[errno::INVAL, errno::NOSPC]),
    },
    Case {
        name: "write-zeroes whose end wraps round",
        run: |t| each_refused(t, 0, WRITE_ZEROES, u64::MAX - 1, 4096, &[errno::INVAL, errno::NOSPC]),
    },
    Case {
        name: "an extended write-zeroes of 2^64 - 1 bytes",
        run: |t| refused(t, Mode::Extended, 0, WRITE_ZEROES, (1, u64::MAX), &[errno::INVAL, errno::NOSPC]),
    },
    Case { name: "fast write-zeroes where zeroes are encrypted", run: fast_zero },
    Case {
        name: "a trim across the end",
        run: |t| each_refused(t, 0, TRIM, SIZE - 1, 2, &[errno::INVAL, errno::NOSPC, errno::NOTSUP]),
    },
    Case { name: "a trim that was not offered", run: trim_not_offered },
    Case { name: "a cache request across the end", run: |t| each_refused(t, 0, CACHE, SIZE, 1, &[errno::INVAL]) },
    Case {
        name: "block status without a context",
        run: |t| each_refused(t, 0, BLOCK_STATUS, 0, 4096, &[errno::INVAL]),
    },
    Case {
        name: "block status across the end",
        run: |t| each_refused(t, flag::REQ_ONE, BLOCK_STATUS, SIZE, 4096, &[errno::INVAL]),
    },
    Case {
        name: "a flush with an offset and a length",
        run: |t| each_refused(t, 0, FLUSH, 12345, 678, &[0, errno::INVAL]),
    },
    Case { name: "requests after DISC", run: after_disc },
    Case { name: "DISC with reads in flight", run: disc_in_flight },
    Case { name: "disconnect with reads in flight", run: disconnect_in_flight },
    Case { name: "one cookie for a thousand requests", run: one_cookie },
    Case { name: "a session one byte at a time", run: slow_session },
    Case { name: "a thousand reads of 1 MiB, replies never read", run: never_read },
    Case { name: "replies read one byte at a time", run: slow_reader },
    Case { name: "noise after good requests", run: noise_after_good },
];

/// All cases of a read-only export.
pub(crate) const READ_ONLY_CASES: &[Case] = &[
    Case {
        name: "it says that it is read-only",
        run: |t| {
            ensure!(t.open(Mode::Simple)?.flags & 3 == 3, "the read-only flag is not set");
            Ok(())
        },
    },
    Case {
        name: "a write",
        run: |t| {
            for mode in MODES {
                let mut c = t.open(mode)?;
                let reply = c.call(0, WRITE, 0, 512, &[1; 512])?;
                ensure!(reply.error == errno::PERM, "a write gets {}", reply.error);
                in_step(c)?;
            }
            Ok(())
        },
    },
    Case { name: "write-zeroes", run: |t| each_refused(t, 0, WRITE_ZEROES, 0, 4096, &[errno::PERM]) },
    Case { name: "a trim", run: |t| each_refused(t, 0, TRIM, 0, 4096, &[errno::PERM, errno::INVAL]) },
    Case { name: "a flush", run: |t| each_refused(t, 0, FLUSH, 0, 0, &[0, errno::INVAL]) },
];

/// Checks that the server is in step after a refused request.
fn in_step(mut connection: Connection) -> Result<()> {
    connection.read(1000, 600).context("afterwards")?;
    connection.disconnect()
}

fn refused(t: &Target, mode: Mode, flags: u16, command: u16, range: (u64, u64), with: &[u32]) -> Result<()> {
    let mut connection = t.open(mode)?;
    let cookie = connection.request(flags, command, range.0, range.1)?;
    // A reply without an error has data only if the server accepted the request, which the check below reports.
    let allowed = if with.contains(&0) && command == READ { range.1 as usize } else { 0 };
    let reply = connection.reply(allowed)?;
    ensure!(reply.cookie == cookie, "the reply to {cookie} has the cookie {}", reply.cookie);
    ensure!(with.contains(&reply.error), "{mode:?}: the error is {}", reply.error);
    in_step(connection)
}

fn each_refused(t: &Target, flags: u16, command: u16, offset: u64, len: u64, with: &[u32]) -> Result<()> {
    MODES.into_iter().try_for_each(|mode| refused(t, mode, flags, command, (offset, len), with))
}

fn wrong_magic(t: &Target) -> Result<()> {
    for mode in MODES {
        let mut connection = t.open(mode)?;
        let mut bytes = request_bytes(mode, 0, READ, 1, 0, 512);
        bytes[0] ^= 0x80;
        connection.send(&bytes)?;
        ensure!(connection.expect_closed()? < 64, "the server answers a request without its magic");
    }
    Ok(())
}

fn half_a_request(t: &Target) -> Result<()> {
    for mode in MODES {
        let mut connection = t.open(mode)?;
        connection.send(&request_bytes(mode, 0, WRITE, 1, 0, 512)[..13])?;
        connection.finish_sending()?;
        connection.expect_closed()?;
    }
    Ok(())
}

fn mismatched_header(t: &Target, agreed: Mode, sent: Mode) -> Result<()> {
    let mut connection = t.open(agreed)?;
    connection.send(&request_bytes(sent, 0, READ, 1, 0, 512))?;
    connection.finish_sending()?;
    ensure!(connection.expect_closed()? < 64, "the server takes a header it did not agree to");
    Ok(())
}

fn unknown_flags_on_write(t: &Target) -> Result<()> {
    for mode in MODES {
        let mut connection = t.open(mode)?;
        let before = connection.read(0, 512)?;
        let reply = connection.call(0x4000, WRITE, 0, 512, &[0xee; 512])?;
        ensure!(reply.error == errno::INVAL, "{mode:?}: the error is {}", reply.error);
        ensure!(connection.read(0, 512)? == before, "a refused write has changed the data");
        in_step(connection)?;
    }
    Ok(())
}

/// A length that exceeds one reply: the server replies with an error and stays in step, or disconnects.
fn too_long(t: &Target, command: u16, len: u64) -> Result<()> {
    for mode in MODES {
        let mut connection = t.open(mode)?;
        connection.request(0, command, 0, len)?;
        let Ok(reply) = connection.reply(0) else {
            connection.expect_closed()?;
            continue;
        };
        ensure!([errno::INVAL, errno::OVERFLOW].contains(&reply.error), "{mode:?}: the error is {}", reply.error);
        in_step(connection)?;
    }
    Ok(())
}

fn write_refused(t: &Target, offset: u64) -> Result<()> {
    for mode in MODES {
        let mut connection = t.open(mode)?;
        let tail = connection.read(SIZE - 512, 512)?;
        let reply = connection.call(0, WRITE, offset, 512, &[0xcc; 512])?;
        ensure!([errno::NOSPC, errno::INVAL].contains(&reply.error), "{mode:?}: the error is {}", reply.error);
        ensure!(connection.read(SIZE - 512, 512)? == tail, "a refused write has changed the data before it");
        in_step(connection)?;
    }
    Ok(())
}

fn write_announced(t: &Target, mode: Mode, len: u64) -> Result<()> {
    let mut connection = t.open(mode)?;
    let before = connection.read(0, 4096)?;
    connection.request(0, WRITE, 0, len)?;
    // As much as the server receives.
    let _ = connection.send(&vec![0xdd; 1 << 20]);
    let _ = connection.finish_sending();
    connection.expect_closed()?;
    let mut after = t.open(Mode::Simple)?;
    ensure!(after.read(0, 4096)? == before, "a write that never came whole has changed the data");
    after.disconnect()
}

fn big_write(t: &Target) -> Result<()> {
    let mut connection = t.open(Mode::Structured)?;
    let before = connection.read(0, 4096)?;
    connection.request(0, WRITE, 0, 40 << 20)?;
    let piece = vec![0xdd; 1 << 20];
    let sent = (0..40).all(|_| connection.send(&piece).is_ok());
    match if sent { connection.reply(0) } else { Err(anyhow::anyhow!("disconnected")) } {
        Ok(reply) => {
            ensure!([errno::INVAL, errno::OVERFLOW].contains(&reply.error), "the error is {}", reply.error);
            in_step(connection)?;
        }
        Err(_) => drop(connection.expect_closed()?),
    }
    let mut after = t.open(Mode::Simple)?;
    ensure!(after.read(0, 4096)? == before, "a refused write has changed the data");
    after.disconnect()
}

fn half_a_write(t: &Target) -> Result<()> {
    let mut good = t.open(Mode::Simple)?;
    good.write(8192, &[0x11; 8192])?;
    for mode in MODES {
        let mut connection = t.open(mode)?;
        connection.request(0, WRITE, 8192, 8192)?;
        connection.send(&[0x22; 5000])?;
        connection.finish_sending()?;
        connection.expect_closed()?;
        ensure!(good.read(8192, 8192)? == [0x11; 8192], "half a write was carried out");
    }
    good.disconnect()
}

fn write_without_data(t: &Target) -> Result<()> {
    let mut connection = t.open(Mode::Simple)?;
    connection.request(0, WRITE, 0, 1 << 20)?;
    connection.finish_sending()?;
    ensure!(connection.expect_closed()? < 64, "a write without data was answered");
    Ok(())
}

fn fast_zero(t: &Target) -> Result<()> {
    for mode in MODES {
        let mut connection = t.open(mode)?;
        connection.write(16384, &[0x33; 4096])?;
        let reply = connection.call(flag::FAST_ZERO, WRITE_ZEROES, 16384, 4096, &[])?;
        ensure!([0, errno::NOTSUP, errno::INVAL].contains(&reply.error), "{mode:?}: the error is {}", reply.error);
        let left = if reply.error == 0 { 0 } else { 0x33 };
        ensure!(connection.read(16384, 4096)? == [left; 4096], "the data are not what the answer says");
        in_step(connection)?;
    }
    Ok(())
}

fn trim_not_offered(t: &Target) -> Result<()> {
    let mut connection = t.open(Mode::Structured)?;
    ensure!(connection.flags & (1 << 5) == 0, "trim is offered without --allow-discards");
    connection.write(32768, &[0x44; 4096])?;
    let reply = connection.call(0, TRIM, 32768, 4096, &[])?;
    ensure!([errno::INVAL, errno::NOTSUP, errno::PERM].contains(&reply.error), "the error is {}", reply.error);
    ensure!(connection.read(32768, 4096)? == [0x44; 4096], "a refused trim has changed the data");
    in_step(connection)
}

fn after_disc(t: &Target) -> Result<()> {
    for mode in MODES {
        let mut connection = t.open(mode)?;
        let mut bytes = request_bytes(mode, 0, DISC, 1, 0, 0);
        (0..50).for_each(|n| bytes.extend(request_bytes(mode, 0, READ, n, 0, 512)));
        let _ = connection.send(&bytes);
        ensure!(connection.expect_closed()? == 0, "a request after DISC was answered");
    }
    Ok(())
}

fn disc_in_flight(t: &Target) -> Result<()> {
    let mut connection = t.open(Mode::Simple)?;
    for n in 0..32 {
        connection.request(0, READ, n << 16, 1 << 16)?;
    }
    connection.request(0, DISC, 0, 0)?;
    // Replies to requests before DISC are optional; the connection is closed.
    connection.expect_closed().map(drop)
}

fn disconnect_in_flight(t: &Target) -> Result<()> {
    for _ in 0..20 {
        let mut connection = t.open(Mode::Structured)?;
        for n in 0..32 {
            connection.request(0, READ, n << 20, 1 << 20)?;
        }
    }
    Ok(())
}

fn one_cookie(t: &Target) -> Result<()> {
    let mut connection = t.open(Mode::Structured)?;
    let bytes: Vec<u8> = (0..1000).flat_map(|_| request_bytes(Mode::Structured, 0, FLUSH, 42, 0, 0)).collect();
    connection.send(&bytes)?;
    for _ in 0..1000 {
        let reply = connection.reply(0)?;
        ensure!((reply.cookie, reply.error) == (42, 0), "{reply:?}");
    }
    in_step(connection)
}

fn slow_session(t: &Target) -> Result<()> {
    for mode in MODES {
        let mut connection = t.open(mode)?;
        let mut bytes = request_bytes(mode, 0, WRITE, 1, 50_001, 700);
        bytes.extend([0x5a; 700]);
        bytes.extend(request_bytes(mode, flag::FUA, WRITE, 2, 50_701, 3));
        bytes.extend([0x5b; 3]);
        for byte in bytes {
            connection.send(&[byte])?;
        }
        ensure!(connection.reply(0)?.error == 0 && connection.reply(0)?.error == 0, "a slow write is refused");
        let data = connection.read(50_001, 703)?;
        ensure!(data[..700] == [0x5a; 700] && data[700..] == [0x5b; 3], "a slow write has other data");
        in_step(connection)?;
    }
    Ok(())
}

fn never_read(t: &Target) -> Result<()> {
    let mut connection =
        Connection::open(&t.socket, t.patience.min(std::time::Duration::from_millis(500)), Mode::Structured)?;
    let taken = (0..1000).take_while(|n| connection.request(0, READ, (n % 32) << 20, 1 << 20).is_ok()).count();
    ensure!(taken > 0, "not one request was taken");
    // Other clients are served meanwhile.
    let mut other = t.open(Mode::Simple)?;
    for n in 0..20 {
        other.read(n * 4096, 4096)?;
    }
    other.disconnect()
}

fn slow_reader(t: &Target) -> Result<()> {
    let mut connection = t.open(Mode::Simple)?;
    connection.request(0, READ, 0, 4096)?;
    let reply: Vec<u8> = (0..16 + 4096).map(|_| connection.receive(1).map(|b| b[0])).collect::<Result<_>>()?;
    ensure!(reply[..4] == magic::SIMPLE_REPLY.to_be_bytes(), "a slow reader gets something else");
    in_step(connection)
}

fn noise_after_good(t: &Target) -> Result<()> {
    let mut connection = t.open(Mode::Structured)?;
    connection.write(60_000, &[0x77; 100])?;
    let _ = connection.send(&[0xff; 10_000]);
    connection.expect_closed()?;
    let mut after = t.open(Mode::Simple)?;
    ensure!(after.read(60_000, 100)? == [0x77; 100], "a write before the noise is lost");
    after.disconnect()
}
