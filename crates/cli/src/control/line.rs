//! Lines of the control socket: cutting them from the received bytes, and parsing them.
//!
//! Without I/O and without the rest of the program: the fuzz target `control_lines` compiles this file alone.

use serde_json::{Map, Value};

/// Maximum length of a client's line without its newline, in bytes.
pub(crate) const LINE_MAX: usize = 4096;

/// Bytes received from a client, cut into lines.
#[derive(Debug, Default)]
pub(crate) struct Lines(Vec<u8>);

impl Lines {
    /// Appends received bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Returns all bytes, for HTTP.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Removes and returns the next complete line, with its newline.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        let end = self.0.iter().position(|byte| *byte == b'\n')?;
        let rest = self.0.split_off(end + 1);
        Some(std::mem::replace(&mut self.0, rest))
    }

    /// Whether the incomplete line is longer than [`LINE_MAX`].
    pub(crate) fn is_too_long(&self) -> bool {
        self.0.len() > LINE_MAX
    }
}

/// Parses a request: the name of the command, and the whole object.
pub(crate) fn request(line: &[u8]) -> Result<(String, Value), String> {
    let request: Value = serde_json::from_slice(line).map_err(|error| format!("The line is not JSON: {error}"))?;
    match request["command"].as_str() {
        Some(command) => Ok((command.to_owned(), request)),
        None => Err("The line is not an object with a 'command'.".to_owned()),
    }
}

/// A reply from the process of a volume.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    /// Success, with the fields except `ok`.
    Done(Map<String, Value>),
    /// Failure: message, hint, and number of the exit status.
    Failed(String, Option<String>, u64),
}

/// Parses a reply. `Ok(None)`: JSON, but not an object.
pub(crate) fn answer(line: &[u8]) -> serde_json::Result<Option<Answer>> {
    let Value::Object(mut answer) = serde_json::from_slice(line)? else { return Ok(None) };
    if answer.remove("ok") == Some(Value::Bool(true)) {
        return Ok(Some(Answer::Done(answer)));
    }
    let text = |key| answer.get(key).and_then(Value::as_str).map(str::to_owned);
    let status = answer.get("exit").and_then(Value::as_u64).unwrap_or(1);
    Ok(Some(Answer::Failed(text("error").unwrap_or_default(), text("hint"), status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_cut_at_newline() {
        let mut lines = Lines::default();
        lines.push(b"{}\n[");
        assert_eq!(lines.next().as_deref(), Some(&b"{}\n"[..]));
        assert_eq!((lines.next(), lines.bytes()), (None, &b"["[..]));
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
        assert_eq!(failed, Some(Answer::Failed("Busy.".to_owned(), Some("wait".to_owned()), 5)));
        assert_eq!(answer(b"{\"ok\":1}\n").unwrap(), Some(Answer::Failed(String::new(), None, 1)));
        assert_eq!(answer(b"[]\n").unwrap(), None);
        assert!(answer(b"{\n").is_err());
    }
}
