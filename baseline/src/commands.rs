//! What a client may ask: what the benchmark asks, and no more.

use bytes::Bytes;
use gabion_base::number::parse_i64;
use gabion_base::units::{KEY_LEN_MAX, VALUE_LEN_MAX};
use gabion_resp::{Reply, Request};

/// Most pairs of one RANGE.
const RANGE_MAX: i64 = 1 << 16;

/// A request, understood.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Command {
    /// `SET key value`, at the head.
    Set(Bytes, Bytes),
    /// What reads the store, at the tail.
    Read(Read),
    /// `GABION STATUS`.
    Status,
    /// What needs no store.
    Reply(Reply),
}

/// A read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Read {
    /// `GET key`.
    Get(Bytes),
    /// `RANGE start + LIMIT n`.
    Range(Bytes, usize),
}

impl Command {
    /// What a request means.
    pub(crate) fn of(request: &Request) -> Self {
        let args = &request.args;
        let is = |word: &str| args[0].eq_ignore_ascii_case(word.as_bytes());
        match args.len() {
            2 if is("GET") => Self::Read(Read::Get(args[1].clone())),
            3 if is("SET") => set(&args[1], &args[2]),
            1 if is("PING") => Self::Reply(Reply::simple("PONG")),
            2 if is("GABION") && args[1].eq_ignore_ascii_case(b"STATUS") => Self::Status,
            5 if is("RANGE") && &args[2][..] == b"+" && args[3].eq_ignore_ascii_case(b"LIMIT") => {
                range(&args[1], &args[4])
            }
            _ => Self::Reply(Reply::error_from(format!(
                "ERR `{}` with {} arguments: the baseline knows PING, SET key value, GET key, \
                 RANGE start + LIMIT n and GABION STATUS",
                String::from_utf8_lossy(&args[0]).escape_default(),
                args.len() - 1
            ))),
        }
    }
}

/// The same limits as in Gabion.
fn set(key: &Bytes, value: &Bytes) -> Command {
    if key.len() > KEY_LEN_MAX || value.len() > VALUE_LEN_MAX {
        return Command::Reply(Reply::error_from(format!(
            "ERR a key of {} bytes with a value of {}: at most {KEY_LEN_MAX} and {VALUE_LEN_MAX} \
             are possible",
            key.len(),
            value.len()
        )));
    }
    Command::Set(key.clone(), value.clone())
}

fn range(start: &Bytes, limit: &[u8]) -> Command {
    match parse_i64(limit).filter(|limit| (0..=RANGE_MAX).contains(limit)) {
        Some(limit) => Command::Read(Read::Range(start.clone(), limit as usize)),
        None => Command::Reply(Reply::error_from(format!(
            "ERR LIMIT is `{}`, allowed are 0 to {RANGE_MAX}",
            String::from_utf8_lossy(limit).escape_default()
        ))),
    }
}
