//! The control socket of a running volume: lines of clients, replies of its process, and tables in pipes.

use inlock_volume::table::Table;

use crate::table::check_table;
use inlock_serve::control::line;
use inlock_serve::pipe;

/// Maximum number of bytes received at a time.
const PIECE_MAX: usize = 1024;
/// Maximum length of a table for `reload`, as in `served.rs`.
const TABLE_MAX: usize = 65536;

/// The first byte chooses how the rest is parsed: in pieces as lines of a client, or as one reply.
pub fn control_lines(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    if choice & 1 == 0 {
        requests(bytes, [1, 7, 64, PIECE_MAX][usize::from(choice >> 1 & 3)]);
    } else {
        answer(bytes);
    }
}

/// Parses like the server: line by line, and a client with a line over the limit is disconnected.
fn requests(bytes: &[u8], piece: usize) {
    let mut lines = line::Lines::default();
    let mut taken = 0;
    for piece in bytes.chunks(piece) {
        lines.push(piece);
        while let Some(one) = lines.next_line() {
            assert_eq!(&bytes[taken..taken + one.len()], one, "a line is what was sent");
            assert_eq!(one.iter().position(|byte| *byte == b'\n'), Some(one.len() - 1), "a line is one line");
            assert!(one.len() <= line::LINE_MAX + PIECE_MAX, "a line of {} bytes", one.len());
            taken += one.len();
            request(&one);
        }
        if lines.is_too_long() {
            return;
        }
        assert!(lines.bytes().len() <= line::LINE_MAX, "{} bytes are kept", lines.bytes().len());
    }
}

fn request(one: &[u8]) {
    match line::request(one) {
        Ok((command, value)) => {
            let again = line::request(value.to_string().as_bytes());
            assert_eq!(again.map(|(command, _)| command), Ok(command), "a request reads back the same");
        }
        // The message becomes part of the reply, which is one line.
        Err(message) => assert!(message.len() < 200 && !message.contains('\n'), "{message}"),
    }
}

fn answer(bytes: &[u8]) {
    match line::answer(bytes) {
        Ok(Some(line::Answer::Done(fields))) => assert!(!fields.contains_key("ok")),
        Ok(Some(line::Answer::Failed(told))) => {
            let longest = told.message.len().max(told.hint.map_or(0, |hint| hint.len()));
            assert!(longest <= bytes.len(), "a message longer than the answer");
        }
        Ok(None) => {}
        Err(error) => assert!(error.to_string().len() < 200, "{error}"),
    }
}

/// A table in a pipe arrives whole or is refused for its length, and parses like any table.
pub fn table_pipe(data: &[u8]) {
    let Some((choice, text)) = data.split_first() else { return };
    let Ok(handed) = pipe::filled(text) else { return assert!(text.len() > TABLE_MAX / 2, "it fits into a pipe") };
    let most = if choice & 1 == 0 { TABLE_MAX } else { usize::from(*choice) };
    match pipe::read_text(&handed, most) {
        Ok(arrived) => {
            assert_eq!(*arrived, text, "what was handed over");
            if let Ok(text) = std::str::from_utf8(&arrived) {
                check_table(Table::parse(text));
            }
        }
        Err(error) => assert!(text.len() > most, "{} of at most {most} bytes: {error}", text.len()),
    }
    let handed = pipe::filled(text).expect("it fitted before");
    match pipe::read_key(&handed) {
        Ok(key) => assert_eq!(key.as_bytes(), text, "the key that was handed over"),
        Err(error) => assert!(text.len() > 512, "a key of {} bytes: {error}", text.len()),
    }
}
