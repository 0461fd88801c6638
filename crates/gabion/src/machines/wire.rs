//! Questions to a controller and its answers: a line of JSON each, over one connection as many as
//! the asker likes.
//!
//! ```text
//!   node:    {"do": "node", "node": NodeRecord, "replicas": [ReplicaWord]}
//!            {"ok": true, "cluster": number, "orders": [Order]}
//!   command: {"do": "status", "group": "g"} and others      {"ok": true, …}
//!   refused: {"ok": false, "kind": "busy", "error": "…"}
//! ```
//!
//! Both ends bound a line before they read it. The fields are described at the types that they
//! are read as, in [`super::registry`] and [`super::registrar`].

use super::trust::{self, Certificates};
use gabion_base::{Error, ErrorKind, Result};
use gabion_tls::BlockingStream;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// Longest question in bytes.
pub(crate) const QUESTION_LEN_MAX: u64 = 64 << 10;
/// Longest answer in bytes: the list of all groups is the longest.
const ANSWER_LEN_MAX: u64 = 16 << 20;
/// How long a controller may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection with a controller.
pub(crate) struct Asker {
    address: SocketAddr,
    reader: BufReader<BlockingStream>,
}

impl Asker {
    /// Connects.
    ///
    /// # Errors
    /// As [`trust::connect`].
    pub(crate) fn connect(
        what: &str,
        address: SocketAddr,
        certificates: &Certificates,
    ) -> Result<Self> {
        let stream = trust::connect(what, address, certificates)?;
        let socket = stream.socket();
        let limits = socket
            .set_read_timeout(Some(PATIENCE))
            .and_then(|()| socket.set_write_timeout(Some(PATIENCE)));
        limits.map_err(|e| broken(address, e))?;
        Ok(Self { address, reader: BufReader::new(stream) })
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// Unavailable when none comes: the connection is of no use then; the controller's own.
    pub(crate) fn ask(&mut self, question: &Value) -> Result<Value> {
        let address = self.address;
        let line = format!("{question}\n");
        self.reader.get_mut().write_all(line.as_bytes()).map_err(|e| broken(address, e))?;
        let line = read_line(&mut self.reader, ANSWER_LEN_MAX)
            .map_err(|e| self.unread(e))?
            .ok_or_else(|| Error::unavailable(format!("controller {address} hung up")))?;
        let answer: Value = serde_json::from_str(&line).map_err(|e| {
            Error::unavailable(format!("controller {address}: its answer is no JSON: {e}"))
        })?;
        accepted(answer)
    }
}

impl Asker {
    /// No line came. The alert of a controller that takes certificates is none.
    fn unread(&self, error: std::io::Error) -> Error {
        if error.kind() == std::io::ErrorKind::InvalidData && !self.reader.get_ref().is_tls() {
            let what = format!(
                "controller {} does not answer in text: it may take certificates, which `tls` of a \
                 node's file, or --identity of a command, names",
                self.address
            );
            return Error::with_source(ErrorKind::Unavailable, what, error);
        }
        broken(self.address, error)
    }
}

fn broken(address: SocketAddr, error: std::io::Error) -> Error {
    let what = format!("controller {address} does not answer");
    Error::with_source(ErrorKind::Unavailable, what, error)
}

/// The answer, or the error that it tells.
pub(crate) fn accepted(answer: Value) -> Result<Value> {
    if answer["ok"] == true {
        return Ok(answer);
    }
    let kind = match answer["kind"].as_str() {
        Some("busy") => ErrorKind::Busy,
        Some("unavailable") => ErrorKind::Unavailable,
        _ => ErrorKind::InvalidInput,
    };
    Err(Error::new(kind, answer["error"].as_str().unwrap_or("no reason is given").to_owned()))
}

/// Answer to a question that failed.
pub(crate) fn refusal(error: &Error) -> Value {
    let kind = match error.kind() {
        ErrorKind::Busy => "busy",
        ErrorKind::Unavailable | ErrorKind::Io | ErrorKind::NoSpace => "unavailable",
        _ => "invalid",
    };
    json!({ "ok": false, "kind": kind, "error": error.to_string() })
}

/// The next line, without its end; nothing where the other end sends no more.
///
/// # Errors
/// The system's; invalid data for one that is longer or no UTF-8, after which nothing can be read.
pub(crate) fn read_line(input: &mut impl BufRead, len_max: u64) -> std::io::Result<Option<String>> {
    let mut line = String::new();
    let len = input.take(len_max).read_line(&mut line)?;
    match line.pop() {
        None => Ok(None),
        Some('\n') => Ok(Some(line)),
        Some(_) => {
            let text = format!("a line of {len} bytes without an end, the limit is {len_max}");
            Err(std::io::Error::new(std::io::ErrorKind::InvalidData, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_to_its_end_and_no_further_than_the_limit() {
        let mut input = &b"one\ntwo\nthree"[..];
        assert_eq!(read_line(&mut input, 8).unwrap().as_deref(), Some("one"));
        assert_eq!(read_line(&mut input, 4).unwrap().as_deref(), Some("two"));
        assert!(read_line(&mut input, 3).unwrap_err().to_string().contains("the limit is 3"));
        assert_eq!(read_line(&mut &b""[..], 8).unwrap(), None);
        assert!(read_line(&mut &b"\xff\n"[..], 8).is_err(), "no UTF-8");
    }

    #[test]
    fn a_refusal_is_told_with_its_kind() {
        for error in
            [Error::new(ErrorKind::Busy, "x"), Error::invalid("y"), Error::unavailable("z")]
        {
            let told = accepted(refusal(&error)).unwrap_err();
            assert_eq!((told.kind(), told.message()), (error.kind(), error.message()));
        }
        assert_eq!(accepted(json!({ "ok": true, "a": 1 })).unwrap()["a"], 1);
    }
}
