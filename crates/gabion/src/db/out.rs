//! The output of `gabion db`: a line per thing, `what key=value …` for people or a JSON object for
//! programs, from the same fields.

use crate::units::count;
use gabion_base::{Error, ErrorKind, Result};
use gabion_engine::Keyspace;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};

/// Why the output ended early.
pub(super) enum Stop {
    /// The reader has seen enough.
    Closed,
    /// It cannot go on.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The result of the output.
pub(super) type Told<T = ()> = std::result::Result<T, Stop>;

/// The destination of the output.
pub(super) struct Out {
    to: BufWriter<Box<dyn Write>>,
    pub(super) json: bool,
    damaged: u64,
}

impl Out {
    pub(super) fn new(to: impl Write + 'static, json: bool) -> Self {
        Self { to: BufWriter::with_capacity(1 << 16, Box::new(to)), json, damaged: 0 }
    }

    /// Text as it is.
    pub(super) fn text(&mut self, text: &str) -> Told {
        self.to.write_all(text.as_bytes()).map_err(stopped)
    }

    /// One thing: `fields` are an object, `depth` is its nesting.
    pub(super) fn item(&mut self, depth: usize, what: &str, fields: Value) -> Told {
        let Value::Object(fields) = fields else { unreachable!("fields are an object") };
        let line = if self.json {
            let mut object = Map::new();
            object.insert("what".into(), what.into());
            object.extend(fields);
            format!("{}\n", Value::Object(object))
        } else {
            let mut line = format!("{:1$}{what}", "", 2 * depth);
            for (name, value) in &fields {
                let _ = write!(line, " {name}={}", word(value));
            }
            line + "\n"
        };
        self.text(&line)
    }

    /// Shows the output so far, which otherwise waits until it fills a buffer.
    pub(super) fn show(&mut self) -> Told {
        self.to.flush().map_err(stopped)
    }

    /// One JSON document.
    pub(super) fn document(&mut self, document: &Value) -> Told {
        self.text(&format!("{document:#}\n"))
    }

    /// Something damaged or unreadable: reported in its place, and in the exit code.
    pub(super) fn damaged(&mut self, depth: usize, error: &Error) -> Told {
        self.count_damage();
        if self.json {
            return self.item(depth, "damaged", json!({ "message": error.to_string() }));
        }
        self.text(&format!("{:1$}DAMAGED {error}\n", "", 2 * depth))
    }

    /// Counts damage that is reported elsewhere.
    pub(super) const fn count_damage(&mut self) {
        self.damaged += 1;
    }

    /// The value of `result`; damage is reported, and no error ends the output.
    pub(super) fn readable<T>(&mut self, depth: usize, result: Result<T>) -> Told<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) => self.damaged(depth, &error).map(|()| None),
        }
    }

    /// The exit code.
    pub(super) fn end(mut self, told: Told) -> Result<u8> {
        let told = told.and_then(|()| self.show());
        match told {
            Ok(()) if self.damaged == 0 => Ok(0),
            Ok(()) => {
                eprintln!("gabion: {}, named above", count(self.damaged, "damaged place"));
                Ok(1)
            }
            // Nobody will read the buffered rest.
            Err(Stop::Closed) => {
                std::mem::forget(self.to);
                Ok(u8::from(self.damaged > 0))
            }
            Err(Stop::Failed(error)) => {
                let _ = self.to.flush();
                if error.kind() != ErrorKind::Corruption {
                    return Err(error);
                }
                eprintln!("gabion: {error}");
                Ok(1)
            }
        }
    }
}

fn stopped(error: io::Error) -> Stop {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Stop::Closed,
        _ => Stop::Failed(Error::with_source(ErrorKind::Io, "output cannot be written", error)),
    }
}

/// Bytes in JSON, without loss: a string where they are UTF-8, else `{"hex": …}`.
pub(super) fn bytes(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => json!({ "hex": hex(bytes) }),
    }
}

/// An engine key: the bare key where it is a user's, else all of it, its first byte included.
pub(super) fn engine_key(key: &[u8]) -> Value {
    match key.split_first() {
        Some((&byte, key)) if byte == Keyspace::User as u8 => bytes(key),
        _ => json!({ "engine": bytes(key) }),
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A checksum in the common notation.
pub(super) fn crc(checksum: u32) -> String {
    format!("{checksum:08x}")
}

/// Bytes as redis-cli shows them.
pub(super) fn quoted(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() + 2);
    out.push('"');
    for &byte in bytes {
        match byte {
            b'\\' | b'"' => out.extend(['\\', char::from(byte)]),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            0x07 => out.push_str("\\a"),
            0x08 => out.push_str("\\b"),
            0x20..0x7f => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "\\x{byte:02x}");
            }
        }
    }
    out.push('"');
    out
}

/// A field's value as one word.
fn word(value: &Value) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:/+-".contains(&byte);
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if !text.is_empty() && text != "-" && text.bytes().all(is_plain) => {
            text.clone()
        }
        Value::String(text) => quoted(text.as_bytes()),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items.iter().map(word).collect::<Vec<_>>().join(","),
        Value::Object(fields) => match fields.iter().next() {
            Some((name, Value::String(digits))) if name == "hex" => quoted(&unhex(digits)),
            Some((name, value)) => format!("{name}:{}", word(value)),
            None => "-".to_owned(),
        },
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

fn unhex(digits: &str) -> Vec<u8> {
    let pair = |at| digits.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    (0..digits.len()).step_by(2).filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    #[derive(Clone, Default)]
    struct Page(Rc<RefCell<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().write(text)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn line(fields: Value, json: bool) -> String {
        let page = Page::default();
        let mut out = Out::new(page.clone(), json);
        let told = out.item(1, "thing", fields);
        assert_eq!(out.end(told).unwrap(), 0);
        let bytes = page.0.borrow().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn bytes_are_shown_as_redis_cli_shows_them() {
        assert_eq!(quoted(b"a'b\"\\\n\r\t\x07\x08\x00\xff"), r#""a'b\"\\\n\r\t\a\b\x00\xff""#);
    }

    #[test]
    fn bytes_in_json_lose_nothing() {
        assert_eq!(bytes("größe".as_bytes()), json!("größe"));
        assert_eq!(bytes(b"\x00a"), json!("\u{0}a"));
        assert_eq!(bytes(b"\xffa"), json!({ "hex": "ff61" }));
        assert_eq!(unhex("ff61"), b"\xffa");
    }

    #[test]
    fn a_thing_is_one_line_as_text_and_as_json() {
        let fields = json!({
            "number": 7, "name": "000001.sst", "key": "a b", "none": null, "list": [1, 2],
            "raw": bytes(b"\xff"), "system": engine_key(b"\0x"), "user": engine_key(b"\x01x"),
        });
        assert_eq!(
            line(fields.clone(), false),
            "  thing number=7 name=000001.sst key=\"a b\" none=- list=1,2 raw=\"\\xff\" \
             system=engine:\"\\x00x\" user=x\n"
        );
        let object: Value = serde_json::from_str(&line(fields.clone(), true)).unwrap();
        assert_eq!((&object["what"], &object["raw"]), (&json!("thing"), &fields["raw"]));
    }

    #[test]
    fn damage_is_in_the_exit_code_and_a_closed_pipe_is_not_an_error() {
        let mut out = Out::new(Page::default(), false);
        let told = out.damaged(0, &Error::corruption("block 1"));
        assert_eq!(out.end(told).unwrap(), 1);
        let mut out = Out::new(Closed, false);
        let told = out.text(&"x".repeat(1 << 17));
        assert!(matches!(told, Err(Stop::Closed)));
        assert_eq!(out.end(told).unwrap(), 0);
        let failed = Out::new(Page::default(), false);
        assert_eq!(failed.end(Err(Error::corruption("all of it").into())).unwrap(), 1);
        let failed = Out::new(Page::default(), false);
        assert!(failed.end(Err(Error::not_found("pool").into())).is_err());
    }
}
