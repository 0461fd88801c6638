//! `gabion cli`: one command from the command line, or a prompt. Replies look as in redis-cli.

use crate::client::Client;
use crate::cluster::{IS_UP_RUNNING, addresses};
use crate::control::ask::full_of;
use crate::lines::Lines;
use crate::options::CliOptions;
use crate::screen::put;
use crate::status::STATUS_TIMEOUT;
use gabion_base::{ErrorKind, Result};
use gabion_resp::Reply;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;

pub(crate) fn run(options: &CliOptions) -> Result<u8> {
    options.door.take(&options.place)?;
    // Members run commands, and a spare has them run: the way by it is longer.
    let addresses = full_of(&options.place, addresses(&options.place)?);
    let mut session = Session { addresses, client: None, for_people: io::stdout().is_terminal() };
    if options.words.is_empty() {
        return prompt(&mut session);
    }
    let words: Vec<&[u8]> = options.words.iter().map(|word| word.as_bytes()).collect();
    let reply = session.call(&words)?;
    session.print(&words, &reply);
    Ok(u8::from(reply.is_error()))
}

struct Session {
    addresses: Vec<(u32, SocketAddr)>,
    client: Option<Client>,
    /// Whether replies are for people (types shown) or for programs (bare).
    for_people: bool,
}

impl Session {
    /// Calls the connected replica, or the first that answers.
    fn call<A: AsRef<[u8]>>(&mut self, words: &[A]) -> Result<Reply> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => self.connect()?,
        };
        let reply = client.call(words)?;
        self.client = Some(client);
        Ok(reply)
    }

    fn connect(&self) -> Result<Client> {
        let mut first = None;
        for (_, address) in &self.addresses {
            match Client::connect_living(*address, STATUS_TIMEOUT) {
                Ok(client) => return Ok(client),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(match first {
            Some(error) if error.kind() == ErrorKind::InvalidInput => error,
            Some(error) => error.within(IS_UP_RUNNING),
            None => gabion_base::Error::invalid("no replica is known"),
        })
    }

    fn print<A: AsRef<[u8]>>(&self, words: &[A], reply: &Reply) {
        let mut out = Vec::new();
        // `GABION` answers in JSON, which nobody could read quoted.
        let is_json = words.first().is_some_and(|w| w.as_ref().eq_ignore_ascii_case(b"gabion"));
        if self.for_people && !is_json {
            let mut text = String::new();
            typed(reply, "", &mut text);
            out.extend_from_slice(text.as_bytes());
        } else {
            bare(reply, &mut out);
        }
        let _ = io::stdout().write_all(&out);
    }
}

fn prompt(session: &mut Session) -> Result<u8> {
    let mut lines = Lines::new()?;
    let client = session.connect()?;
    let prompt = format!("{}> ", client.address());
    session.client = Some(client);
    let mut failures = 0;
    while let Some(line) = lines.next(&prompt)? {
        let words = match split(&line) {
            Ok(words) if words.is_empty() => continue,
            Ok(words) => words,
            Err(error) => {
                put(&format!("{error}\n"));
                failures += 1;
                continue;
            }
        };
        if [&b"quit"[..], b"exit"].iter().any(|word| words[0].eq_ignore_ascii_case(word)) {
            return Ok(0);
        }
        match session.call(&words) {
            Ok(reply) => {
                failures += usize::from(reply.is_error());
                session.print(&words, &reply);
            }
            // The next command connects anew.
            Err(error) if lines.are_typed() => put(&format!("{error}\n")),
            Err(error) => return Err(error),
        }
    }
    Ok(u8::from(failures > 0 && !lines.are_typed()))
}

/// The words of a line: blanks separate; double quotes know escapes, single quotes only `\'`.
pub(crate) fn split(line: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
    const UNBALANCED: &str = "a quote is open, or is followed by something else than a blank";
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        let Some(&first) = rest.first() else { return Ok(words) };
        let mut word = Vec::new();
        if first == b'"' || first == b'\'' {
            rest = quoted(&rest[1..], first, &mut word).ok_or(UNBALANCED)?;
            if rest.first().is_some_and(|byte| !byte.is_ascii_whitespace()) {
                return Err(UNBALANCED);
            }
        } else {
            let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
            word.extend_from_slice(&rest[..end]);
            rest = &rest[end..];
        }
        words.push(word);
    }
}

/// Reads up to the closing quote and returns what follows it.
fn quoted<'a>(mut rest: &'a [u8], quote: u8, word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        match rest {
            [byte, tail @ ..] if *byte == quote => return Some(tail),
            [b'\\', b'x', high, low, tail @ ..]
                if quote == b'"' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or(0) as u8;
                word.push(digit(*high) << 4 | digit(*low));
                rest = tail;
            }
            [b'\\', byte, tail @ ..] if quote == b'"' || *byte == b'\'' => {
                word.push(match (quote, byte) {
                    (b'"', b'n') => b'\n',
                    (b'"', b'r') => b'\r',
                    (b'"', b't') => b'\t',
                    (_, byte) => *byte,
                });
                rest = tail;
            }
            [byte, tail @ ..] => {
                word.push(*byte);
                rest = tail;
            }
            [] => return None,
        }
    }
}

/// A reply for people: with its type, lists numbered.
fn typed(reply: &Reply, indent: &str, out: &mut String) {
    let _ = match reply {
        Reply::Simple(text) => writeln!(out, "{}", String::from_utf8_lossy(text)),
        Reply::Error(text) => writeln!(out, "(error) {}", String::from_utf8_lossy(text)),
        Reply::Integer(value) => writeln!(out, "(integer) {value}"),
        Reply::Bulk(data) => writeln!(out, "\"{}\"", data.escape_ascii()),
        Reply::Null | Reply::NullArray => writeln!(out, "(nil)"),
        Reply::Double(value) => writeln!(out, "(double) {value}"),
        Reply::Boolean(value) => writeln!(out, "({value})"),
        Reply::BigNumber(text) | Reply::Verbatim(_, text) | Reply::Encoded(text) => {
            writeln!(out, "{}", String::from_utf8_lossy(text))
        }
        Reply::Array(items) | Reply::Set(items) | Reply::Push(items) => {
            return list(items.iter(), indent, out);
        }
        Reply::Map(pairs) => return list(pairs.iter().flat_map(|(k, v)| [k, v]), indent, out),
        Reply::Pairs(pairs) => {
            let items: Vec<Reply> = pairs
                .iter()
                .flat_map(|(key, value)| [Reply::Bulk(key.clone()), Reply::Bulk(value.clone())])
                .collect();
            return list(items.iter(), indent, out);
        }
    };
}

fn list<'a>(items: impl Iterator<Item = &'a Reply>, indent: &str, out: &mut String) {
    let items: Vec<&Reply> = items.collect();
    if items.is_empty() {
        out.push_str("(empty array)\n");
        return;
    }
    let digits = items.len().to_string().len();
    let deeper = format!("{indent}{}", " ".repeat(digits + 2));
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.push_str(indent);
        }
        let _ = write!(out, "{:>digits$}) ", i + 1);
        typed(item, &deeper, out);
    }
}

/// A reply for programs: the bytes and a line end.
fn bare(reply: &Reply, out: &mut Vec<u8>) {
    match reply {
        Reply::Simple(text)
        | Reply::Error(text)
        | Reply::Bulk(text)
        | Reply::BigNumber(text)
        | Reply::Verbatim(_, text)
        | Reply::Encoded(text) => out.extend_from_slice(text),
        Reply::Integer(value) => out.extend_from_slice(value.to_string().as_bytes()),
        Reply::Double(value) => out.extend_from_slice(value.to_string().as_bytes()),
        Reply::Boolean(value) => out.extend_from_slice(value.to_string().as_bytes()),
        Reply::Null | Reply::NullArray => {}
        Reply::Array(items) | Reply::Set(items) | Reply::Push(items) => {
            return items.iter().for_each(|item| bare(item, out));
        }
        Reply::Map(pairs) => {
            return pairs.iter().for_each(|(key, value)| {
                bare(key, out);
                bare(value, out);
            });
        }
        Reply::Pairs(pairs) => {
            for (key, value) in pairs {
                for part in [key, value] {
                    out.extend_from_slice(part);
                    out.push(b'\n');
                }
            }
            return;
        }
    }
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::tests::{ANSWERING, HANGING, Stand};
    use bytes::Bytes;

    fn shown(reply: &Reply) -> String {
        let mut out = String::new();
        typed(reply, "", &mut out);
        out
    }

    #[test]
    fn a_replica_that_accepts_and_never_answers_is_passed_by() {
        let stands = [Stand::new(HANGING), Stand::new(ANSWERING)];
        let addresses = (1..).zip(&stands).map(|(i, stand)| (i, stand.address)).collect();
        let mut session = Session { addresses, client: None, for_people: false };
        assert_eq!(session.call(&["PING"]).unwrap(), Reply::OK);
        assert_eq!(session.client.unwrap().address(), stands[1].address);
    }

    #[test]
    fn a_line_is_split_as_redis_cli_splits_it() {
        let words = split(b"  set \"a b\\n\\x41\\\"\" 'it\\'s \\n'  plain \n").unwrap();
        assert_eq!(words, [&b"set"[..], b"a b\nA\"", b"it's \\n", b"plain"]);
        assert_eq!(split(b" \r\n").unwrap(), Vec::<Vec<u8>>::new());
        assert_eq!(split(b"\"\"").unwrap(), [b""]);
    }

    #[test]
    fn an_open_quote_or_one_glued_to_a_word_is_refused() {
        for line in ["set \"a", "'a", "\"a\"b", "\"a\\"] {
            assert!(split(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn replies_are_shown_with_their_types_to_people() {
        assert_eq!(shown(&Reply::OK), "OK\n");
        assert_eq!(shown(&Reply::Integer(-1)), "(integer) -1\n");
        assert_eq!(shown(&Reply::Null), "(nil)\n");
        assert_eq!(shown(&Reply::Bulk(Bytes::from_static(b"a\"\xff"))), "\"a\\\"\\xff\"\n");
        assert_eq!(shown(&Reply::error("ERR no")), "(error) ERR no\n");
        assert_eq!(shown(&Reply::Array(vec![])), "(empty array)\n");
        let nested = Reply::Array(vec![
            Reply::Array(vec![Reply::Integer(1), Reply::Integer(2)]),
            Reply::bulk("x"),
        ]);
        assert_eq!(shown(&nested), "1) 1) (integer) 1\n   2) (integer) 2\n2) \"x\"\n");
    }

    #[test]
    fn replies_are_bare_for_programs() {
        let mut out = Vec::new();
        bare(&Reply::Array(vec![Reply::bulk("x"), Reply::Integer(2), Reply::Null]), &mut out);
        assert_eq!(out, b"x\n2\n\n");
    }
}
