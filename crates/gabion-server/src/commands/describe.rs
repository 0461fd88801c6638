//! COMMAND: the table as clients read it, and as `docs/redis.md` shows it.

use super::errors;
use super::table::{Spec, TABLE, lookup};
use bytes::Bytes;
use gabion_resp::{Reply, glob_match};

/// The commands that are served; refused ones are in the table for their error only.
fn served() -> impl Iterator<Item = &'static Spec> {
    TABLE.iter().filter(|spec| !spec.is_refused())
}

fn find(name: &[u8]) -> Option<&'static Spec> {
    lookup(name).filter(|spec| !spec.is_refused())
}

pub(crate) fn command(args: &[Bytes]) -> Reply {
    let Some(sub) = args.get(1) else { return Reply::Array(served().map(info).collect()) };
    let sub_lower = sub.to_ascii_lowercase();
    match (&sub_lower[..], &args[2..]) {
        (b"count", []) => Reply::Integer(served().count() as i64),
        (b"info", []) => Reply::Array(served().map(info).collect()),
        (b"info", names) => {
            let info_of = |name: &Bytes| find(name).map_or(Reply::Null, info);
            Reply::Array(names.iter().map(info_of).collect())
        }
        (b"docs", []) => Reply::Map(served().map(docs).collect()),
        (b"docs", names) => {
            Reply::Map(names.iter().filter_map(|name| find(name)).map(docs).collect())
        }
        (b"list", []) => Reply::Array(served().map(|spec| Reply::bulk(spec.name)).collect()),
        (b"list", filter) => list(filter),
        (b"getkeys", request) => get_keys(request),
        (b"help", []) => errors::help("COMMAND", &["COUNT", "DOCS", "GETKEYS", "INFO", "LIST"]),
        // Not what came here: it was checked.
        _ => errors::unknown_subcommand("command", sub),
    }
}

fn list(filter: &[Bytes]) -> Reply {
    let [word, kind, value] = filter else { return errors::SYNTAX };
    if !word.eq_ignore_ascii_case(b"filterby") {
        return errors::SYNTAX;
    }
    let is_wanted = |spec: &&Spec| match &kind.to_ascii_lowercase()[..] {
        b"pattern" => glob_match(&value.to_ascii_lowercase(), spec.name.as_bytes()),
        b"aclcat" => categories(spec).any(|category| category.as_bytes()[1..] == value[..]),
        _ => false,
    };
    if ![&b"pattern"[..], b"aclcat", b"module"].contains(&&kind.to_ascii_lowercase()[..]) {
        return errors::SYNTAX;
    }
    Reply::Array(served().filter(is_wanted).map(|spec| Reply::bulk(spec.name)).collect())
}

fn get_keys(request: &[Bytes]) -> Reply {
    let Some(spec) = find(&request[0]) else {
        return Reply::error("ERR Invalid command specified");
    };
    if spec.keys.first == 0 {
        return Reply::error("ERR The command has no key arguments");
    }
    if !spec.accepts(request.len()) {
        return Reply::error("ERR Invalid number of arguments specified for command");
    }
    Reply::Array(spec.keys_of(request).cloned().map(Reply::Bulk).collect())
}

/// Redis's access categories that follow from flags and group.
fn categories(spec: &Spec) -> impl Iterator<Item = &'static str> {
    let group = match spec.group {
        "string" => Some("@string"),
        "bitmap" => Some("@bitmap"),
        "generic" => Some("@keyspace"),
        "transactions" => Some("@transaction"),
        "connection" => Some("@connection"),
        _ => None,
    };
    let of_flag = [("write", "@write"), ("readonly", "@read"), ("admin", "@admin")];
    let speed = if spec.has_flag("fast") { "@fast" } else { "@slow" };
    let flags = of_flag.into_iter().filter(|(flag, _)| spec.has_flag(flag));
    let flags: Vec<_> = flags.map(|(_, category)| category).collect();
    flags.into_iter().chain(group).chain([speed])
}

/// A command as COMMAND INFO shows it.
fn info(spec: &'static Spec) -> Reply {
    Reply::Array(vec![
        Reply::bulk(spec.name),
        Reply::Integer(i64::from(spec.arity)),
        Reply::Set(spec.flags.iter().map(|flag| Reply::simple(flag)).collect()),
        Reply::Integer(i64::from(spec.keys.first)),
        Reply::Integer(i64::from(spec.keys.last)),
        Reply::Integer(i64::from(spec.keys.step)),
        Reply::Set(categories(spec).map(Reply::simple).collect()),
        // Tips, key specifications, subcommands: none.
        Reply::Array(Vec::new()),
        Reply::Array(Vec::new()),
        Reply::Array(Vec::new()),
    ])
}

/// A command as COMMAND DOCS shows it.
fn docs(spec: &'static Spec) -> (Reply, Reply) {
    let field = |name, text| (Reply::bulk(name), Reply::bulk(text));
    let mut fields = vec![field("summary", spec.summary)];
    if !spec.since.is_empty() {
        fields.push(field("since", spec.since));
    }
    fields.push(field("group", spec.group));
    (Reply::bulk(spec.name), Reply::Map(fields))
}

/// The table of `docs/redis.md`, in Markdown.
#[cfg(test)]
pub(crate) fn markdown() -> String {
    let mut out = String::new();
    let mut group = "";
    for spec in TABLE {
        if spec.group != group {
            group = spec.group;
            out.push_str(&format!("\n### {group}\n\n"));
            out.push_str("| command | since Redis | runs | what it does | differences |\n");
            out.push_str("| --- | --- | --- | --- | --- |\n");
        }
        let name = spec.name.to_ascii_uppercase();
        let since = if spec.since.is_empty() { "Gabion only" } else { spec.since };
        let runs = if spec.is_refused() { "refused" } else { spec.route.as_str() };
        let notes = spec.notes.replace('|', "\\|");
        out.push_str(&format!("| {name} | {since} | {runs} | {} | {notes} |\n", spec.summary));
    }
    out
}
