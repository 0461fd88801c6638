//! Commands about what there is none of here, as Redis answers them where it has none either: clusters, functions,
//! modules, further databases, samples of latency; and those that are refused.

use super::table::Spec;
use super::{Host, errors};
use bytes::Bytes;
use gabion_base::number::parse_i64;
use gabion_resp::Reply;

pub(crate) const NO_CLUSTER: Reply = Reply::error("ERR This instance has cluster support disabled");
pub(crate) const NO_FUNCTION: Reply = Reply::error("ERR Function not found");
const NO_LIBRARY: Reply = Reply::error("ERR Library not found");
const NO_LIBRARIES: Reply =
    Reply::error("ERR FUNCTION LOAD is not supported: there are no libraries of functions");
const NO_MODULES: Reply = Reply::error(
    "ERR MODULE command not allowed. There are no modules, and the enable-module-command option is always \"no\"",
);
const NOT_SLAVE: Reply = Reply::error(
    "ERR REPLICAOF is not supported: the members of a group and the order of its chain are chosen when the data is made",
);

/// FUNCTION DUMP of no libraries in Redis 7.0: version 10 of its format, and the CRC-64 of that.
const EMPTY_DUMP: &[u8] = b"\n\x00]\x9b\\@\x0f\x7f\xa2\xda";

/// The error of a command that is refused.
pub(crate) fn refused(spec: &Spec) -> Reply {
    Reply::error(match spec.name {
        "bgrewriteaof" => {
            "ERR BGREWRITEAOF is not supported: compactions rewrite what the log has brought by themselves"
        }
        "bgsave" | "save" => {
            "ERR SAVE and BGSAVE are not supported: every acknowledged write is in the log of every replica already"
        }
        "debug" => {
            "ERR DEBUG command not allowed. The enable-debug-command option is always \"no\""
        }
        "shutdown" => {
            "ERR SHUTDOWN is not supported: `gabion up` would start the replica again; SIGTERM to `gabion up` ends all cleanly"
        }
        _ => "ERR the command is not supported",
    })
}

pub(crate) fn function(args: &[Bytes]) -> Reply {
    match (&args[1].to_ascii_lowercase()[..], &args[2..]) {
        (b"list", options) => list_functions(options),
        (b"flush", []) => Reply::OK,
        (b"flush", [mode])
            if mode.eq_ignore_ascii_case(b"sync") || mode.eq_ignore_ascii_case(b"async") =>
        {
            Reply::OK
        }
        (b"flush", [_]) => Reply::error("ERR FUNCTION FLUSH only supports SYNC|ASYNC option"),
        (b"stats", []) => function_stats(),
        (b"dump", []) => Reply::Bulk(Bytes::from_static(EMPTY_DUMP)),
        (b"restore", [dump]) => restore(dump),
        (b"restore", [dump, policy]) => match &policy.to_ascii_lowercase()[..] {
            b"flush" | b"append" | b"replace" => restore(dump),
            _ => Reply::error(
                "ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.",
            ),
        },
        (b"delete", [_]) => NO_LIBRARY,
        (b"kill", []) => Reply::error("NOTBUSY No scripts in execution right now."),
        (b"load", _) => NO_LIBRARIES,
        _ => errors::subcommand_syntax("function", &args[1]),
    }
}

fn list_functions(mut options: &[Bytes]) -> Reply {
    loop {
        options = match options {
            [] => return Reply::Array(Vec::new()),
            [word, rest @ ..] if word.eq_ignore_ascii_case(b"withcode") => rest,
            [word, _, rest @ ..] if word.eq_ignore_ascii_case(b"libraryname") => rest,
            [word] if word.eq_ignore_ascii_case(b"libraryname") => {
                return Reply::error("ERR library name argument was not given");
            }
            [word, ..] => {
                let word = errors::shown(word);
                return Reply::error_from(format!("ERR Unknown argument {word}"));
            }
        };
    }
}

fn function_stats() -> Reply {
    let none = |name| (Reply::bulk(name), Reply::Integer(0));
    let engine = Reply::Map(vec![none("libraries_count"), none("functions_count")]);
    Reply::Map(vec![
        (Reply::bulk("running_script"), Reply::Null),
        (Reply::bulk("engines"), Reply::Map(vec![(Reply::bulk("LUA"), engine)])),
    ])
}

fn restore(dump: &[u8]) -> Reply {
    match dump {
        EMPTY_DUMP => Reply::OK,
        _ if dump.len() < EMPTY_DUMP.len() => {
            Reply::error("ERR DUMP payload version or checksum are wrong")
        }
        _ => NO_LIBRARIES,
    }
}

pub(crate) fn latency(args: &[Bytes]) -> Reply {
    match (&args[1].to_ascii_lowercase()[..], &args[2..]) {
        (b"latest", []) | (b"history", [_]) => Reply::Array(Vec::new()),
        (b"reset", _) => Reply::Integer(0),
        (b"graph", [event]) => {
            let event = errors::shown(event);
            Reply::error_from(format!("ERR No samples available for event '{event}'"))
        }
        (b"doctor", []) => Reply::Verbatim(
            *b"txt",
            Bytes::from_static(
                b"Latency is not monitored here. SLOWLOG GET lists the commands that took long, INFO commandstats \
                  sums up the times of all, and GABION STATUS says for how long writes waited, and for what.\n",
            ),
        ),
        _ => errors::subcommand_syntax("latency", &args[1]),
    }
}

pub(crate) fn module(args: &[Bytes]) -> Reply {
    match (&args[1].to_ascii_lowercase()[..], &args[2..]) {
        (b"list", []) => Reply::Array(Vec::new()),
        (b"load" | b"loadex" | b"unload", _) => NO_MODULES,
        _ => errors::subcommand_syntax("module", &args[1]),
    }
}

/// `SELECT index`.
pub(crate) fn select(index: &[u8]) -> Reply {
    match parse_i64(index) {
        None => errors::NOT_AN_INTEGER,
        Some(0) => Reply::OK,
        Some(_) => errors::NO_DATABASE,
    }
}

/// `MOVE key index`: there is no other database.
pub(crate) fn move_key(index: &[u8]) -> Reply {
    match parse_i64(index) {
        None => errors::NOT_AN_INTEGER,
        Some(0) => errors::SAME_OBJECT,
        Some(_) => errors::NO_DATABASE,
    }
}

/// `SWAPDB index index`.
pub(crate) fn swap(first: &[u8], second: &[u8]) -> Reply {
    match (parse_i64(first), parse_i64(second)) {
        (None, _) => Reply::error("ERR invalid first DB index"),
        (_, None) => Reply::error("ERR invalid second DB index"),
        (Some(0), Some(0)) => Reply::OK,
        _ => errors::NO_DATABASE,
    }
}

/// `REPLICAOF host port`, of which the head takes `NO ONE`, which it is.
pub(crate) fn replica_of(args: &[Bytes], host: &impl Host) -> Reply {
    let is_nobody = args[1].eq_ignore_ascii_case(b"no") && args[2].eq_ignore_ascii_case(b"one");
    if is_nobody && host.is_head() { Reply::OK } else { NOT_SLAVE }
}
