//! A client's command on its way to the node that runs it, and the reply on its way back.
//!
//! ```text
//!  Forward.bytes, ForwardReply.bytes:   0 u8  1: more parts follow, 0: the last part
//!                                       1     the part
//!  command (its parts joined)           0 u8  version, 5
//!                                       1 u8  0 one command, 1 a transaction, 2 WATCH (no command)
//!                                       2 u8  version of RESP for the reply: 2 or 3
//!                                       3 u8  1 with watched keys, else 0
//!                                       4 frontier: the log that the connection has seen
//!                                      14 u64 session of the door, 22 u64 its number there
//!                                      30 u8  1: it may have been made before
//!                                      31 u32 length and bytes: what the user of its scripts
//!                                             may do, none for everything and without one
//!                                             u32 commands, then for each
//!                                             u32 words, then for each u32 length and bytes
//!                                      with watched keys then: u64, u64, the id of the watch,
//!                                             u32 keys, then for each u32 length and bytes
//!  reply (its parts joined)             0 u8  outcome: 1 made, 2 not made, 3 unknown, 4 forgotten
//!                                       1     RESP
//! ```
//!
//! Numbers are little-endian. The parts of one command follow each other on the connection between
//! two members, other messages may come between. One version is spoken, others are refused by name.

use crate::commands::Rights;
use crate::commands::watch::{self, Watch, WatchId};
use crate::commands::{Call, Transaction, Work};
use bytes::Bytes;
use gabion_base::codec::{Put, Reader};
use gabion_base::units::{KEY_LEN_MAX, RECORD_OPS_MAX};
use gabion_base::{Error, Frontier, ReplicaId, Result};
use gabion_resp::limits::{ELEMENTS_MAX, REQUEST_LEN_MAX};
use gabion_resp::{Args, Protocol, Reply, Request};
use std::rc::Rc;

const VERSION: u8 = 5;
/// Longest part, in bytes: under the limit of a frame.
const PART_LEN_MAX: usize = 4 << 20;
/// Longest command with its bookkeeping: two requests of the largest size, as a transaction may be.
pub(crate) const COMMAND_LEN_MAX: usize = 3 * REQUEST_LEN_MAX;
/// Longest reply: the commands' own limit of 64 MiB, and the lengths of a million elements.
pub(crate) const REPLY_LEN_MAX: usize = 128 << 20;

/// Cuts a body into the parts that messages carry.
pub(crate) fn parts(body: &[u8]) -> impl Iterator<Item = Bytes> {
    let count = body.len().div_ceil(PART_LEN_MAX).max(1);
    (0..count).map(move |i| {
        let part = &body[i * PART_LEN_MAX..body.len().min((i + 1) * PART_LEN_MAX)];
        let mut bytes = Vec::with_capacity(part.len() + 1);
        bytes.push(u8::from(i + 1 < count));
        bytes.extend_from_slice(part);
        Bytes::from(bytes)
    })
}

/// Joins parts. Returns the body when its last part came.
///
/// # Errors
/// Corruption for an empty part, limit exceeded over `len_max` bytes.
pub(crate) fn join(joined: &mut Vec<u8>, part: &Bytes, len_max: usize) -> Result<Option<Bytes>> {
    let Some((&more, bytes)) = part.split_first() else {
        return Err(Error::corruption("a part of a forwarded command is empty"));
    };
    let len = joined.len() + bytes.len();
    if len > len_max {
        return Err(Error::limit(format!(
            "a forwarded command or reply takes {len} bytes, the limit is {len_max}"
        )));
    }
    if more == 0 && joined.is_empty() {
        return Ok(Some(part.slice(1..)));
    }
    joined.extend_from_slice(bytes);
    Ok((more == 0).then(|| Bytes::from(std::mem::take(joined))))
}

/// What became of a command, as the member says that was to run it.
///
/// A door tells its client an error in each case but the first and the third.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It ran, and what it saw and wrote is acknowledged: the reply is its own.
    Made = 1,
    /// It was refused before anything was written: the client may make it again.
    NotMade = 2,
    /// A record of it may be in the log, and nobody knows yet whether that commits. The member
    /// that takes writes then tells, by its number.
    Unknown = 3,
    /// It was made and its reply is lost, or nobody can tell any more whether it was.
    Forgotten = 4,
}

/// The body of a reply.
pub(crate) fn encode_reply(outcome: Outcome, reply: &Reply, protocol: Protocol) -> Vec<u8> {
    let mut out = vec![outcome as u8];
    reply.encode(protocol, &mut out);
    out
}

/// Reads [`encode_reply`]; the reply stays encoded and shares the memory of `body`.
///
/// # Errors
/// Corruption for an empty body, unsupported for an outcome that this build does not know.
pub(crate) fn decode_reply(body: &Bytes) -> Result<(Outcome, Bytes)> {
    let outcome = match body.first() {
        Some(1) => Outcome::Made,
        Some(2) => Outcome::NotMade,
        Some(3) => Outcome::Unknown,
        Some(4) => Outcome::Forgotten,
        Some(n) => {
            return Err(Error::unsupported(format!(
                "forwarded reply: outcome {n}; this build knows 1 to 4"
            )));
        }
        None => return Err(Error::corruption("forwarded reply: it is empty")),
    };
    Ok((outcome, body.slice(1..)))
}

/// Who asked, and where the reply goes.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// A place among the replies of a connection here.
    Client {
        /// The connection's place.
        token: usize,
        /// Which connection it is.
        serial: u64,
        /// The reply's place.
        slot: u64,
    },
    /// Another member.
    Peer {
        /// The member.
        replica: ReplicaId,
        /// Our number of the connection on which it asked.
        connection: u64,
        /// Its number for the command.
        id: u64,
    },
    /// Nobody: whether the tail answers reads is to be found out.
    Probe,
}

/// By which a write is known, however often it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WriteId {
    /// The session of the door at which it came.
    pub(crate) session: u64,
    /// Its number there.
    pub(crate) number: u64,
}

/// A command as another node forwarded it.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) work: Work,
    pub(crate) protocol: Protocol,
    /// Reads show at least the log up to here.
    pub(crate) frontier: Frontier,
    pub(crate) id: WriteId,
    /// It may have been made before.
    pub(crate) is_again: bool,
}

/// A command in bytes.
pub(crate) fn encode(
    work: &Work,
    protocol: Protocol,
    frontier: Frontier,
    id: WriteId,
    is_again: bool,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    let (kind, calls, watch) = match work {
        Work::Call(call) => (0, std::slice::from_ref(call), None),
        Work::Transaction(transaction) => (1, transaction.calls(), transaction.watch.as_ref()),
        Work::Watch(watch) => (2, &[][..], Some(watch)),
    };
    out.put_u8(VERSION);
    out.put_u8(kind);
    out.put_u8(if protocol == Protocol::Resp3 { 3 } else { 2 });
    out.put_u8(u8::from(watch.is_some()));
    frontier.encode(&mut out);
    out.put_u64(id.session);
    out.put_u64(id.number);
    out.put_u8(u8::from(is_again));
    // They are of one client.
    let rights = calls.iter().find_map(Call::rights).map(|rights| rights.encode());
    let rights = rights.unwrap_or_default();
    out.put_u32(rights.len() as u32);
    out.put_bytes(&rights);
    out.put_u32(calls.len() as u32);
    for call in calls {
        out.put_u32(call.args().len() as u32);
        for arg in call.args() {
            out.put_u32(arg.len() as u32);
            out.put_bytes(arg);
        }
    }
    if let Some(Watch { id, keys }) = watch {
        out.put_u64(id.node);
        out.put_u64(id.number);
        out.put_u32(keys.len() as u32);
        for key in keys {
            out.put_u32(key.len() as u32);
            out.put_bytes(key);
        }
    }
    out
}

/// Rights of a script's user; none for all.
fn decode_rights(r: &mut Reader<'_>) -> Result<Option<Rc<Rights>>> {
    let len = r.u32()? as usize;
    let bytes = r.bytes(len)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let rights = Rights::decode(bytes).map_err(|why| {
        Error::unsupported(format!("forwarded command: the rights of its user: {why}"))
    })?;
    Ok(Some(Rc::new(rights)))
}

/// Reads [`encode`]. The words share the memory of `bytes`.
///
/// # Errors
/// Corruption, or unsupported for another version: the peer breaks the protocol.
pub(crate) fn decode(bytes: &Bytes) -> Result<Command> {
    let mut r = Reader::new(bytes, "forwarded command");
    let (version, kind) = (r.u8()?, r.u8()?);
    if version != VERSION {
        return Err(Error::unsupported(format!(
            "forwarded command of version {version}; this build knows version {VERSION}"
        )));
    }
    let (protocol, watches) = (r.u8()?, r.u8()?);
    // Only a transaction may watch keys or not.
    if !matches!((kind, watches), (0, 0) | (1, 0 | 1) | (2, 1)) {
        return Err(Error::unsupported(format!(
            "forwarded command of kind {kind} with byte {watches} for watched keys"
        )));
    }
    let protocol = match protocol {
        2 => Protocol::Resp2,
        3 => Protocol::Resp3,
        n => return Err(Error::unsupported(format!("forwarded command: RESP{n} is unknown"))),
    };
    let frontier = Frontier::decode(&mut r, "forwarded command")?;
    let (id, again) = (WriteId { session: r.u64()?, number: r.u64()? }, r.u8()?);
    if again > 1 {
        return Err(Error::unsupported(format!("forwarded command: byte {again} for again")));
    }
    let is_again = again == 1;
    let rights = decode_rights(&mut r)?;
    let count = r.u32()? as usize;
    if count > RECORD_OPS_MAX || (kind == 0 && count != 1) || (kind == 2 && count != 0) {
        return Err(Error::corruption(format!("forwarded command: {count} commands")));
    }
    let mut calls = Vec::with_capacity(count.min(64));
    for _ in 0..count {
        let words = r.u32()? as usize;
        if words > ELEMENTS_MAX {
            return Err(Error::corruption(format!("forwarded command: {words} words")));
        }
        let mut args = Args::new();
        for _ in 0..words {
            let len = r.u32()? as usize;
            args.push(bytes.slice_ref(r.bytes(len)?));
        }
        let call = Call::new(Request { args }).map_err(refused)?;
        let rights = rights.clone().filter(|_| call.is_script());
        calls.push(call.with_rights(rights));
    }
    let watch = (watches == 1).then(|| decode_watch(bytes, &mut r)).transpose()?;
    r.finish()?;
    let work = match (kind, calls.pop(), watch) {
        (0, Some(call), None) => Work::Call(call),
        (2, None, Some(watch)) => Work::Watch(watch),
        (_, last, watch) => {
            calls.extend(last);
            Work::Transaction(Transaction { watch, ..Transaction::of(calls) })
        }
    };
    Ok(Command { work, protocol, frontier, id, is_again })
}

fn decode_watch(bytes: &Bytes, r: &mut Reader<'_>) -> Result<Watch> {
    let id = WatchId { node: r.u64()?, number: r.u64()? };
    let count = r.u32()? as usize;
    if count > watch::KEYS_MAX {
        return Err(Error::corruption(format!("forwarded command: {count} watched keys")));
    }
    let mut keys = Vec::with_capacity(count.min(64));
    for _ in 0..count {
        let len = r.u32()? as usize;
        if len > KEY_LEN_MAX {
            return Err(Error::corruption(format!("forwarded command: a key of {len} bytes")));
        }
        keys.push(bytes.slice_ref(r.bytes(len)?));
    }
    Ok(Watch { id, keys })
}

/// The other node checked the command against its own table, which is then not ours.
fn refused(reply: Reply) -> Error {
    let mut text = Vec::new();
    reply.encode(Protocol::Resp2, &mut text);
    let text = String::from_utf8_lossy(&text);
    Error::unsupported(format!("forwarded command: {}", text.trim().trim_start_matches('-')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::{ErrorKind, LogPosition};

    const ID: WriteId = WriteId { session: 1 << 32 | 9, number: 12 };

    fn seen(position: u64) -> Frontier {
        Frontier::of(LogPosition(position))
    }

    fn call(words: &[&str]) -> Call {
        let args = words.iter().map(|word| Bytes::from(word.to_string())).collect();
        Call::new(Request { args }).unwrap()
    }

    #[test]
    fn a_command_and_a_transaction_survive_the_way() {
        let one = Work::Call(call(&["set", "key", "value"]));
        let many = Work::Transaction(Transaction::of(vec![
            call(&["incr", "a"]),
            call(&["mset", "a", "", "b", "2"]),
        ]));
        let watch = Watch {
            id: WatchId { node: 7, number: 9 },
            keys: vec![Bytes::from_static(b"a"), Bytes::new()],
        };
        let watched = Transaction { watch: Some(watch.clone()), ..Transaction::of(Vec::new()) };
        let rights = Rights::decode(b"u\n~a* resetchannels -@all +get\n~b* &* +@all -set").unwrap();
        let script = call(&["eval", "return 1", "0"]).with_rights(Some(Rc::new(rights)));
        let scripts = vec![call(&["get", "a"]), script.clone(), script.clone()];
        for (work, protocol) in [
            (Work::Call(script), Protocol::Resp3),
            (Work::Transaction(Transaction::of(scripts)), Protocol::Resp2),
            (one, Protocol::Resp2),
            (many, Protocol::Resp3),
            (Work::Transaction(watched), Protocol::Resp2),
            (Work::Watch(watch), Protocol::Resp3),
        ] {
            let body = encode(&work, protocol, seen(77), ID, protocol == Protocol::Resp3);
            let mut joined = Vec::new();
            let mut whole = None;
            for part in parts(&body) {
                whole = join(&mut joined, &part, COMMAND_LEN_MAX).unwrap();
            }
            let read = decode(&whole.unwrap()).unwrap();
            assert_eq!((read.protocol, read.frontier, read.id), (protocol, seen(77), ID));
            assert_eq!(read.is_again, protocol == Protocol::Resp3);
            assert_eq!(encode(&read.work, protocol, seen(77), ID, read.is_again), body);
        }
    }

    #[test]
    fn commands_of_other_versions_are_refused_by_name() {
        let get = Work::Call(call(&["get", "key"]));
        let body = encode(&get, Protocol::Resp2, seen(77), ID, false);
        let refused = |place: usize, byte: u8| {
            let mut body = body.clone();
            body[place] = byte;
            decode(&Bytes::from(body)).unwrap_err().to_string()
        };
        for version in [1, 2, 3, 4, VERSION + 1] {
            let text = refused(0, version);
            assert!(
                text.contains(&format!("version {version}; this build knows version 5")),
                "{text}"
            );
        }
        // A call does not watch.
        assert!(refused(3, 1).contains("kind 0 with byte 1"));
        assert!(refused(4, 2).contains("a frontier of 2 shards"));
        assert!(refused(30, 2).contains("byte 2 for again"));
    }

    #[test]
    fn a_reply_says_what_became_of_its_command_and_an_unknown_outcome_is_refused() {
        let known = [Outcome::Made, Outcome::NotMade, Outcome::Unknown, Outcome::Forgotten];
        for outcome in known {
            let body = Bytes::from(encode_reply(outcome, &Reply::OK, Protocol::Resp2));
            assert_eq!(decode_reply(&body).unwrap(), (outcome, Bytes::from_static(b"+OK\r\n")));
        }
        let refused = |body: &'static [u8]| decode_reply(&Bytes::from_static(body)).unwrap_err();
        assert_eq!(refused(b"").kind(), ErrorKind::Corruption);
        for body in [&b"\0+OK\r\n"[..], b"\x05+OK\r\n", b"+OK\r\n"] {
            let error = refused(body);
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            let expected = format!("outcome {}; this build knows 1 to 4", body[0]);
            assert!(error.to_string().contains(&expected), "{error}");
        }
    }

    #[test]
    fn a_long_body_travels_in_parts_and_one_over_the_limit_is_refused() {
        let body = vec![7; 2 * PART_LEN_MAX + 1];
        let mut joined = Vec::new();
        let all: Vec<_> = parts(&body).collect();
        assert_eq!(all.len(), 3);
        assert!(join(&mut joined, &all[0], body.len()).unwrap().is_none());
        assert!(join(&mut joined, &all[1], body.len()).unwrap().is_none());
        assert_eq!(join(&mut joined, &all[2], body.len()).unwrap().unwrap(), body);
        assert!(joined.is_empty());
        assert!(join(&mut joined, &all[0], 10).is_err());
        assert!(join(&mut joined, &Bytes::new(), 10).is_err());
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>, at: proptest::sample::Index, bit in 0u8..8) {
            let _ = decode(&Bytes::from(bytes));
            let work = Work::Call(call(&["mset", "key", "value", "k2", "v2"]));
            let mut body = encode(&work, Protocol::Resp3, seen(1), ID, true);
            let at = at.index(body.len());
            body[at] ^= 1 << bit;
            let _ = decode(&Bytes::from(body.clone()));
            let _ = decode(&Bytes::copy_from_slice(&body[..at]));
            let _ = Rights::decode(&body[at..]);
        }
    }
}
