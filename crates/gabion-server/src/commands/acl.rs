//! ACL: the one user that there is, and the categories of commands.

use super::describe::{Entry, find, served_with_subcommands};
use super::table::accepts;
use super::{errors, subcommands};
use bytes::Bytes;
use gabion_base::number::parse_u64;
use gabion_resp::Reply;

/// The user of every connection.
pub(crate) const USER: &str = "default";

const WRONG_PASSWORD: Reply =
    Reply::error("WRONGPASS invalid username-password pair or user is disabled.");
const NO_FILE: Reply = Reply::error(
    "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via the ACL SETUSER \
     command and then issue a CONFIG REWRITE (assuming you have a Redis configuration file set) in order to store users \
     in the Redis configuration.",
);

/// Redis's categories, in its order.
const CATEGORIES: [&str; 21] = [
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

/// Dangerous though no flag says so.
const DANGEROUS: [&str; 8] =
    ["flushall", "flushdb", "info", "keys", "lastsave", "restore", "role", "swapdb"];
/// Of connections though they are listed elsewhere.
const CONNECTION: [&str; 3] = ["command", "wait", "waitaof"];
/// Of the keyspace though they are listed as the server's.
const KEYSPACE: [&str; 4] = ["dbsize", "flushall", "flushdb", "swapdb"];

/// The categories of a command, in Redis's order.
pub(crate) fn categories(entry: Entry) -> impl Iterator<Item = &'static str> {
    CATEGORIES.into_iter().filter(move |category| is_in(entry, category))
}

fn is_in(entry: Entry, category: &str) -> bool {
    let (spec, flags) = (entry.spec(), entry.flags());
    let has = |flag: &str| flags.contains(&flag);
    // A container does nothing by itself.
    let is_plain = !subcommands::is_container(spec.id) || matches!(entry, Entry::Subcommand(..));
    let is_scripting = spec.group == "scripting";
    match category {
        "keyspace" => {
            spec.group == "generic" && !CONNECTION.contains(&spec.name)
                || KEYSPACE.contains(&spec.name)
        }
        "read" => has("readonly") && !is_scripting,
        "write" => has("write") && !is_scripting,
        "string" | "bitmap" => spec.group == category,
        "admin" => has("admin") || matches!(spec.name, "lastsave" | "role"),
        "fast" => has("fast"),
        "slow" => !has("fast"),
        "blocking" => has("blocking"),
        "dangerous" => has("admin") || DANGEROUS.contains(&spec.name),
        "connection" => spec.group == "connection" && is_plain || CONNECTION.contains(&spec.name),
        "transaction" => spec.group == "transactions",
        "scripting" => is_scripting && is_plain,
        _ => false,
    }
}

/// Whether a user is let in with a password. As in Redis, where a user without a password is let in with any.
///
/// # Errors
/// The user is not the one that there is.
pub(crate) fn authenticate(user: &[u8]) -> Result<(), Reply> {
    if user == USER.as_bytes() { Ok(()) } else { Err(WRONG_PASSWORD) }
}

/// `AUTH [user] password`.
pub(crate) fn auth(args: &[Bytes]) -> Reply {
    match args {
        [_, _] => errors::NO_PASSWORD,
        [_, user, _] => authenticate(user).map_or_else(|error| error, |()| Reply::OK),
        _ => errors::SYNTAX,
    }
}

pub(crate) fn acl(args: &[Bytes]) -> Reply {
    let sub = args[1].to_ascii_lowercase();
    match (&sub[..], &args[2..]) {
        (b"whoami", []) => Reply::bulk(USER),
        (b"users", []) => Reply::Array(vec![Reply::bulk(USER)]),
        (b"list", []) => {
            Reply::Array(vec![Reply::bulk("user default on nopass sanitize-payload ~* &* +@all")])
        }
        (b"getuser", [user]) if user == USER => get_user(),
        (b"getuser", [_]) => Reply::Null,
        (b"cat", []) => Reply::Array(CATEGORIES.iter().map(|name| Reply::bulk(name)).collect()),
        (b"cat", [category]) => commands_in(category),
        (b"log", []) => Reply::Array(Vec::new()),
        (b"log", [word]) if word.eq_ignore_ascii_case(b"reset") => Reply::OK,
        (b"log", [count]) if parse_u64(count).is_some() => Reply::Array(Vec::new()),
        (b"log", [_]) => errors::NOT_AN_INTEGER,
        (b"dryrun", [user, request @ ..]) => dry_run(user, request),
        (b"deluser", users) if users.iter().any(|user| user == USER) => {
            Reply::error("ERR The 'default' user cannot be removed")
        }
        (b"deluser", _) => Reply::Integer(0),
        (b"load" | b"save", []) => NO_FILE,
        (b"setuser", _) => Reply::error(
            "ERR ACL SETUSER is not supported: there is one user, 'default', who may do everything",
        ),
        _ => errors::subcommand_syntax("acl", &args[1]),
    }
}

fn get_user() -> Reply {
    let list =
        |names: &[&'static str]| Reply::Array(names.iter().map(|name| Reply::bulk(name)).collect());
    let flags = ["on", "nopass", "sanitize-payload"];
    Reply::Map(vec![
        (Reply::bulk("flags"), Reply::Set(flags.map(Reply::bulk).into())),
        (Reply::bulk("passwords"), list(&[])),
        (Reply::bulk("commands"), Reply::bulk("+@all")),
        (Reply::bulk("keys"), Reply::bulk("~*")),
        (Reply::bulk("channels"), Reply::bulk("&*")),
        (Reply::bulk("selectors"), list(&[])),
    ])
}

fn commands_in(category: &[u8]) -> Reply {
    let category = category.to_ascii_lowercase();
    if !CATEGORIES.iter().any(|name| name.as_bytes() == category) {
        let shown = errors::shown(&category);
        return Reply::error_from(format!("ERR Unknown category '{shown}'"));
    }
    let is_in = |entry: &Entry| categories(*entry).any(|name| name.as_bytes() == category);
    let names = served_with_subcommands().filter(is_in).map(|entry| Reply::bulk(entry.name()));
    Reply::Array(names.collect())
}

fn dry_run(user: &[u8], request: &[Bytes]) -> Reply {
    if user != USER.as_bytes() {
        let user = errors::shown(user);
        return Reply::error_from(format!("ERR User '{user}' not found"));
    }
    match find(&request[0]).map(Entry::spec) {
        None => {
            Reply::error_from(format!("ERR Command '{}' not found", errors::shown(&request[0])))
        }
        Some(spec) if !accepts(spec.arity, request.len()) => errors::arity(spec.name),
        Some(_) => Reply::OK,
    }
}
