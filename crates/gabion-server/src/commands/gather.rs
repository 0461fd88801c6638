//! One reply made of those of several groups: for commands that are about all keys.
//!
//! Each group answers for its keys, from a state of its own. So nothing of this is one state of
//! all groups, and no write is one over several (docs/redis.md).

use super::errors;
use super::keyspace::{RangeOptions, ReplyRoom};
use super::slots::Spread;
use super::store::Order;
use super::table::Id;
use super::work::{Call, Work};
use bytes::{Bytes, BytesMut};
use gabion_base::number::{parse_i64, parse_u64};
use gabion_resp::{Protocol, Reply, ReplyParser, Request};

/// In which protocol groups answer, as far as they encode.
pub(crate) const PARTS_IN: Protocol = Protocol::Resp3;

/// A reply under construction.
pub(crate) struct Gather {
    kind: Kind,
    parts: Vec<Reply>,
    /// Replies that are still to come, that of the door's own group aside.
    missing: usize,
}

enum Kind {
    /// Numbers to be added.
    Sum,
    /// Each says OK.
    Each,
    Keys,
    /// One that is chosen by this number.
    Any(u64),
    Range {
        limit: usize,
        with_values: bool,
        order: Order,
    },
    /// A step within one group, and how its cursor is told.
    Scan {
        spread: Spread,
        group: usize,
    },
}

/// The groups that answer a command about all keys.
pub(crate) enum Spreading {
    /// All, with this work.
    Every(Work, Gather),
    /// One, with this work.
    Step(usize, Work, Gather),
    /// It is refused.
    Refused(Reply),
}

/// The way of a command about all keys. `chance` chooses the group where one is to be chosen.
pub(crate) fn spread(work: Work, spread: Spread, chance: u64) -> Spreading {
    let Work::Call(call) = &work else { return Spreading::Refused(errors::CROSS_SLOT) };
    let kind = match call.spec().id {
        Id::DbSize => Kind::Sum,
        Id::FlushAll => Kind::Each,
        Id::Keys => Kind::Keys,
        Id::RandomKey => Kind::Any(chance),
        Id::Range => match RangeOptions::parse(&call.args()[3..]) {
            Ok(RangeOptions { limit, with_values, order }) => {
                Kind::Range { limit, with_values, order }
            }
            Err(error) => return Spreading::Refused(error),
        },
        _ => return step(call, spread),
    };
    Spreading::Every(work, Gather { kind, parts: Vec::new(), missing: 0 })
}

/// A step of SCAN: groups one after the other. Its cursor is that of the group times the number of
/// groups, plus the group's.
fn step(call: &Call, spread: Spread) -> Spreading {
    let groups = spread.groups() as u64;
    let Some(cursor) = parse_u64(&call.args()[1]) else {
        return Spreading::Refused(errors::INVALID_CURSOR);
    };
    let (inner, group) = (cursor / groups, (cursor % groups) as usize);
    let mut args = call.args().to_vec();
    args[1] = Bytes::from(inner.to_string());
    match Call::new(Request { args: args.into_iter().collect() }) {
        Ok(call) => {
            let kind = Kind::Scan { spread, group };
            Spreading::Step(group, Work::Call(call), Gather { kind, parts: Vec::new(), missing: 0 })
        }
        Err(error) => Spreading::Refused(error),
    }
}

impl Gather {
    /// Whether all groups answer, and not one.
    pub(crate) const fn is_of_all(&self) -> bool {
        !matches!(self.kind, Kind::Scan { .. })
    }

    /// So many other groups answer.
    pub(crate) fn expect(&mut self, count: usize) {
        assert_eq!(self.missing, 0, "it is said once how many answer");
        self.missing = count;
    }

    /// Takes the reply of another group, if one is missing; else that is the door's own.
    pub(crate) fn take(&mut self, reply: Reply) -> Option<Reply> {
        if self.missing == 0 {
            return Some(reply);
        }
        self.missing -= 1;
        self.parts.push(reply);
        None
    }

    /// Whether all others have answered.
    pub(crate) fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// The reply, with that of the door's own group.
    pub(crate) fn merge(self, own: Reply) -> Reply {
        assert!(self.is_complete(), "{} groups have yet to answer", self.missing);
        let Self { kind, mut parts, .. } = self;
        parts.push(own);
        let parts = parts.into_iter().map(plain).collect();
        merged(kind, parts).unwrap_or_else(|error| error)
    }
}

/// A reply that may be encoded, or an error.
fn plain(reply: Reply) -> Result<Reply, Reply> {
    let unreadable = |why: String| Reply::error_from(format!("ERR the reply of a group: {why}"));
    let reply = match reply {
        Reply::Encoded(bytes) => {
            let mut buffer = BytesMut::from(&bytes[..]);
            let parsed = ReplyParser::new().parse(&mut buffer);
            let parsed = parsed.map_err(|error| unreadable(error.to_string()))?;
            parsed.ok_or_else(|| unreadable("it is cut off".to_owned()))?
        }
        Reply::Pairs(pairs) => {
            let pair = |(key, value)| Reply::Array(vec![Reply::Bulk(key), Reply::Bulk(value)]);
            Reply::Array(pairs.into_iter().map(pair).collect())
        }
        reply => reply,
    };
    if reply.is_error() { Err(reply) } else { Ok(reply) }
}

fn unexpected() -> Reply {
    Reply::error("ERR the reply of a group is of another kind than its command gives")
}

fn merged(kind: Kind, parts: Vec<Result<Reply, Reply>>) -> Result<Reply, Reply> {
    let count = parts.len();
    let mut parts = parts.into_iter();
    match kind {
        Kind::Sum => {
            let number = |part: Result<Reply, Reply>| match part? {
                Reply::Integer(number) => Ok(number),
                _ => Err(unexpected()),
            };
            parts.map(number).sum::<Result<i64, Reply>>().map(Reply::Integer)
        }
        Kind::Each => {
            let failed: Vec<Reply> = parts.filter_map(Result::err).collect();
            match failed.first() {
                None => Ok(Reply::OK),
                Some(Reply::Error(why)) if failed.len() < count => {
                    let done = count - failed.len();
                    let why = String::from_utf8_lossy(why);
                    let code = why.split(' ').next().unwrap_or("ERR");
                    let text = why.get(code.len()..).unwrap_or_default().trim_start();
                    Err(Reply::error_from(format!(
                        "{code} {done} of {count} groups did it: {text}"
                    )))
                }
                Some(error) => Err(error.clone()),
            }
        }
        Kind::Any(chance) => {
            let keys = parts.collect::<Result<Vec<Reply>, Reply>>()?;
            let keys: Vec<Reply> =
                keys.into_iter().filter(|key| matches!(key, Reply::Bulk(_))).collect();
            let place = chance.checked_rem(keys.len() as u64);
            Ok(place.map_or(Reply::Null, |place| keys[place as usize].clone()))
        }
        Kind::Keys => keys(parts, usize::MAX, Order::Ascending, "KEYS", "use SCAN"),
        Kind::Range { limit, with_values: false, order } => {
            keys(parts, limit, order, "RANGE", "use LIMIT")
        }
        Kind::Range { limit, order, .. } => pairs(parts, limit, order),
        Kind::Scan { spread, group } => {
            let part = parts.next().unwrap_or_else(|| Err(unexpected()))?;
            scanned(part, spread, group)
        }
    }
}

fn elements(part: Result<Reply, Reply>) -> Result<Vec<Reply>, Reply> {
    match part? {
        Reply::Array(elements) => Ok(elements),
        _ => Err(unexpected()),
    }
}

/// Keys of all groups, in order.
fn keys(
    parts: impl Iterator<Item = Result<Reply, Reply>>,
    limit: usize,
    order: Order,
    command: &'static str,
    advice: &'static str,
) -> Result<Reply, Reply> {
    let mut all = Vec::new();
    for part in parts {
        for element in elements(part)? {
            let Reply::Bulk(key) = element else { return Err(unexpected()) };
            all.push(key);
        }
    }
    all.sort_unstable();
    if order == Order::Descending {
        all.reverse();
    }
    all.truncate(limit);
    let mut room = ReplyRoom::new(command, advice);
    all.iter().try_for_each(|key| room.take(key.len()))?;
    Ok(Reply::Array(all.into_iter().map(Reply::Bulk).collect()))
}

/// Keys and values of all groups, in the order of keys.
fn pairs(
    parts: impl Iterator<Item = Result<Reply, Reply>>,
    limit: usize,
    order: Order,
) -> Result<Reply, Reply> {
    let mut all: Vec<(Bytes, Bytes)> = Vec::new();
    for part in parts {
        for pair in elements(part)? {
            match elements(Ok(pair))?.as_slice() {
                [Reply::Bulk(key), Reply::Bulk(value)] => all.push((key.clone(), value.clone())),
                _ => return Err(unexpected()),
            }
        }
    }
    all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    if order == Order::Descending {
        all.reverse();
    }
    all.truncate(limit);
    let mut room = ReplyRoom::new("RANGE", "use LIMIT");
    all.iter().try_for_each(|(key, value)| room.take(key.len() + value.len()))?;
    Ok(Reply::Pairs(all))
}

/// A step's reply, whose cursor also names the group: the next one where this one's keys are over.
fn scanned(part: Reply, spread: Spread, group: usize) -> Result<Reply, Reply> {
    let mut elements = elements(Ok(part))?.into_iter();
    let (Some(Reply::Bulk(cursor)), Some(keys)) = (elements.next(), elements.next()) else {
        return Err(unexpected());
    };
    let groups = spread.groups() as u64;
    let inner = parse_i64(&cursor).and_then(|inner| u64::try_from(inner).ok());
    let inner = inner.ok_or_else(unexpected)?;
    let next = match inner {
        0 if group + 1 < spread.groups() => Some(group as u64 + 1),
        0 => Some(0),
        _ => inner.checked_mul(groups).and_then(|cursor| cursor.checked_add(group as u64)),
    };
    let next = next.ok_or_else(unexpected)?;
    Ok(Reply::Array(vec![Reply::Bulk(Bytes::from(next.to_string())), keys]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(words: &str) -> Work {
        let args = words.split(' ').map(|word| Bytes::from(word.to_owned())).collect();
        Work::Call(Call::new(Request { args }).unwrap())
    }

    fn three() -> Spread {
        Spread::new(3, 0).unwrap()
    }

    /// The reply to a command where these come from the groups, the own one last.
    fn reply(words: &str, mut parts: Vec<Reply>) -> String {
        let own = parts.pop().unwrap();
        let mut gather = match spread(call(words), three(), 4) {
            Spreading::Every(_, gather) | Spreading::Step(_, _, gather) => gather,
            Spreading::Refused(error) => return text(&error),
        };
        gather.expect(parts.len());
        for part in parts {
            assert!(!gather.is_complete());
            assert!(gather.take(part).is_none());
        }
        text(&gather.merge(own))
    }

    fn text(reply: &Reply) -> String {
        let mut out = Vec::new();
        reply.encode(Protocol::Resp2, &mut out);
        String::from_utf8(out).unwrap().replace("\r\n", " ")
    }

    fn encoded(text: &'static str) -> Reply {
        Reply::Encoded(Bytes::from_static(text.as_bytes()))
    }

    fn list(keys: &[&'static str]) -> Reply {
        Reply::Array(keys.iter().map(|key| Reply::bulk(key)).collect())
    }

    #[test]
    fn replies_of_groups_become_one_in_key_order() {
        let sum = vec![Reply::Integer(3), encoded(":40\r\n"), Reply::Integer(2)];
        assert_eq!(reply("dbsize", sum), ":45 ");
        let keys = || vec![list(&["b", "d"]), encoded("*1\r\n$1\r\na\r\n"), list(&["c"])];
        assert_eq!(reply("keys *", keys()), "*4 $1 a $1 b $1 c $1 d ");
        assert_eq!(reply("range - + keys limit 2", keys()), "*2 $1 a $1 b ");
        assert_eq!(reply("range - + keys limit 2 rev", keys()), "*2 $1 d $1 c ");
        let pair = |key: &'static str| {
            Reply::Pairs(vec![(Bytes::from_static(key.as_bytes()), Bytes::from_static(b"v"))])
        };
        let pairs = || vec![pair("b"), encoded("*1\r\n*2\r\n$1\r\na\r\n$1\r\nv\r\n"), pair("c")];
        assert_eq!(reply("range - + limit 2", pairs()), "*4 $1 a $1 v $1 b $1 v ");
        assert_eq!(reply("randomkey", vec![Reply::Null, encoded("_\r\n"), Reply::Null]), "$-1 ");
        let some = vec![Reply::Null, encoded("$1\r\nk\r\n"), Reply::Null];
        assert_eq!(reply("randomkey", some), "$1 k ");
    }

    #[test]
    fn an_error_of_one_group_is_the_reply_and_a_flush_says_how_many_did_it() {
        let failed = || vec![Reply::OK, encoded("-TRYAGAIN no head\r\n"), Reply::OK];
        let told = reply("flushall", failed());
        assert_eq!(told, "-TRYAGAIN 2 of 3 groups did it: no head ");
        assert_eq!(reply("flushall", vec![Reply::OK, encoded("+OK\r\n"), Reply::OK]), "+OK ");
        let sum = vec![Reply::Integer(3), Reply::error("TRYAGAIN x"), Reply::Integer(2)];
        assert_eq!(reply("dbsize", sum), "-TRYAGAIN x ");
        assert!(
            reply("keys *", vec![encoded("*2\r\n$1\r\na\r\n"), list(&[]), list(&[])])
                .contains("cut off")
        );
        assert!(reply("range - + limit x", vec![Reply::OK]).starts_with("-ERR"));
    }

    #[test]
    fn a_scan_goes_through_the_groups_one_after_the_other() {
        let step_of = |cursor: u64| match spread(call(&format!("scan {cursor}")), three(), 0) {
            Spreading::Step(group, Work::Call(call), gather) => {
                (group, String::from_utf8_lossy(&call.args()[1]).into_owned(), gather)
            }
            _ => panic!("a step"),
        };
        let reply = |inner: u64| {
            Reply::Array(vec![Reply::Bulk(Bytes::from(inner.to_string())), list(&["k"])])
        };
        let mut cursor = 0;
        let mut seen = Vec::new();
        for inner in [77, (1 << 53) - 1, 0, 0, 5, 0] {
            let (group, asked, gather) = step_of(cursor);
            seen.push((group, asked));
            let Reply::Array(elements) = gather.merge(reply(inner)) else { panic!("a list") };
            let Reply::Bulk(next) = &elements[0] else { panic!("a cursor") };
            cursor = parse_u64(next).unwrap();
        }
        assert_eq!(cursor, 0, "the last group is over");
        let expected = [(0, "0"), (0, "77"), (0, "9007199254740991"), (1, "0"), (2, "0"), (2, "5")];
        assert_eq!(seen, expected.map(|(group, asked)| (group, asked.to_owned())));
        assert!(matches!(spread(call("scan x"), three(), 0), Spreading::Refused(_)));
    }
}
