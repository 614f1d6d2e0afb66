//! Lines of the control socket: cutting them from the received bytes, and parsing them.
//!
//! Without I/O, for the fuzz target `control_lines`.

use serde_json::{Map, Value};

use crate::error::{Error, Told};

/// Maximum length of a client's line without its newline, in bytes.
pub const LINE_MAX: usize = 4096;

/// Bytes received from a client, cut into lines.
#[derive(Debug, Default)]
pub struct Lines(Vec<u8>);

impl Lines {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Returns all bytes, for HTTP.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Removes and returns the next complete line, with its newline.
    pub fn next_line(&mut self) -> Option<Vec<u8>> {
        let end = self.0.iter().position(|byte| *byte == b'\n')?;
        let rest = self.0.split_off(end + 1);
        Some(std::mem::replace(&mut self.0, rest))
    }

    /// Whether the incomplete line is longer than [`LINE_MAX`].
    pub fn is_too_long(&self) -> bool {
        self.0.len() > LINE_MAX
    }
}

/// Parses a request: the name of the command, and the whole object.
pub fn request(line: &[u8]) -> Result<(String, Value), String> {
    let request: Value = serde_json::from_slice(line).map_err(|error| format!("The line is not JSON: {error}"))?;
    match request["command"].as_str() {
        Some(command) => Ok((command.to_owned(), request)),
        None => Err("The line is not an object with a 'command'.".to_owned()),
    }
}

/// A reply from the process of a volume.
#[derive(Debug, PartialEq)]
pub enum Answer {
    /// Success, with the fields except `ok`.
    Done(Map<String, Value>),
    /// Failure.
    Failed(Told),
}

/// Parses a reply. `Ok(None)`: JSON, but not an object.
pub fn answer(line: &[u8]) -> serde_json::Result<Option<Answer>> {
    let Value::Object(mut answer) = serde_json::from_slice(line)? else { return Ok(None) };
    if answer.remove("ok") == Some(Value::Bool(true)) {
        return Ok(Some(Answer::Done(answer)));
    }
    let text = |key| answer.get(key).and_then(Value::as_str).map(str::to_owned);
    let exit = answer.get("exit").and_then(Value::as_u64).and_then(|exit| u8::try_from(exit).ok()).unwrap_or(1);
    let message = text("error").unwrap_or_default();
    let code = text("code").or_else(|| code_of_old(&message).map(str::to_owned));
    Ok(Some(Answer::Failed(Told { message, hint: text("hint"), exit, code })))
}

/// Returns the word for the message of a process of a version without words.
fn code_of_old(message: &str) -> Option<&'static str> {
    [Error::InProgress, Error::Closing].into_iter().find(|error| error.to_string() == message)?.fixed_code()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_cut_at_newline() {
        let mut lines = Lines::default();
        lines.push(b"{}\n[");
        assert_eq!(lines.next_line().as_deref(), Some(&b"{}\n"[..]));
        assert_eq!((lines.next_line(), lines.bytes()), (None, &b"["[..]));
        lines.push(&[b' '; LINE_MAX - 1]);
        assert!(!lines.is_too_long());
        lines.push(b" ");
        assert!(lines.is_too_long());
    }

    #[test]
    fn request_names_its_command() {
        assert_eq!(request(b"{\"command\":\"status\"}\n").unwrap().0, "status");
        for wrong in [&b"status\n"[..], b"[1]\n", b"{\"command\":1}\n", b"{}\n", b"\n"] {
            assert!(request(wrong).unwrap_err().ends_with(|end| end != '\n'), "{wrong:?}");
        }
    }

    #[test]
    fn answer_without_ok_is_a_failure() {
        let done = answer(b"{\"ok\":true,\"n\":1}\n").unwrap();
        assert_eq!(done, Some(Answer::Done(Map::from_iter([("n".to_owned(), 1.into())]))));
        let failed = answer(b"{\"ok\":false,\"error\":\"Busy.\",\"hint\":\"wait\",\"exit\":5}\n").unwrap();
        let told = Told { message: "Busy.".to_owned(), hint: Some("wait".to_owned()), exit: 5, code: None };
        assert_eq!(failed, Some(Answer::Failed(told)));
        let old = answer(b"{\"error\":\"Another operation on the volume is in progress.\",\"exit\":5}\n").unwrap();
        assert!(matches!(old, Some(Answer::Failed(told)) if told.code.as_deref() == Some("in_progress")));
        assert_eq!(answer(b"{\"ok\":1}\n").unwrap(), Some(Answer::Failed(Told { exit: 1, ..Told::default() })));
        assert_eq!(answer(b"[]\n").unwrap(), None);
        assert!(answer(b"{\n").is_err());
    }
}
