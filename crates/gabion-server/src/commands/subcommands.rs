//! The subcommands of CLIENT, CONFIG, COMMAND, MEMORY and OBJECT: their names and how many words they take. As those of commands,
//! they are checked when a request comes, also between MULTI and EXEC, where it is only queued.

use super::errors;
use super::table::{Id, Spec, accepts};
use bytes::Bytes;
use gabion_resp::Reply;

/// A subcommand in lower case, and its arity with the command's own name, as [`Spec::arity`].
type Subcommand = (&'static str, i32);

const CLIENT: &[Subcommand] = &[
    ("getname", 2),
    ("help", 2),
    ("id", 2),
    ("info", 2),
    ("list", -2),
    ("no-evict", 3),
    ("no-touch", 3),
    ("setinfo", 4),
    ("setname", 3),
];
const COMMAND: &[Subcommand] =
    &[("count", 2), ("docs", -2), ("getkeys", -3), ("help", 2), ("info", -2), ("list", -2)];
const CONFIG: &[Subcommand] =
    &[("get", -3), ("help", 2), ("resetstat", 2), ("rewrite", 2), ("set", -4)];
const MEMORY: &[Subcommand] = &[("help", 2), ("usage", -3)];
const OBJECT: &[Subcommand] =
    &[("encoding", 3), ("freq", 3), ("help", 2), ("idletime", 3), ("refcount", 3)];

/// Checks the subcommand of a request for `spec`, of which the number of words fits.
///
/// # Errors
/// The error that the client gets: unknown subcommand, wrong number of arguments.
#[inline]
pub(crate) fn check(spec: &Spec, args: &[Bytes]) -> Result<(), Reply> {
    let known = match spec.id {
        Id::Client => CLIENT,
        Id::Command => COMMAND,
        Id::Config => CONFIG,
        Id::Memory => MEMORY,
        Id::Object => OBJECT,
        _ => return Ok(()),
    };
    args.get(1).map_or(Ok(()), |given| check_name(spec, known, given, args.len()))
}

fn check_name(spec: &Spec, known: &[Subcommand], given: &[u8], count: usize) -> Result<(), Reply> {
    let is_given = |name: &str| name.as_bytes().eq_ignore_ascii_case(given);
    match known.iter().find(|(name, _)| is_given(name)) {
        Some(&(_, arity)) if accepts(arity, count) => Ok(()),
        Some((name, _)) => Err(errors::arity(&format!("{}|{name}", spec.name))),
        None if spec.id == Id::Client && is_given("reply") => {
            Err(Reply::error("ERR CLIENT REPLY is not supported yet"))
        }
        None => Err(errors::unknown_subcommand(spec.name, given)),
    }
}
