//! COMMAND: the tables as clients read them, and as `docs/redis.md` shows them.

use super::key_specs::key_specs;
use super::subcommands::{self, Subcommand};
use super::table::{Keys, Spec, TABLE, accepts, lookup};
use super::{acl, errors};
use bytes::Bytes;
use gabion_resp::{Reply, glob_match};

/// A command or a subcommand.
#[derive(Clone, Copy)]
pub(crate) enum Entry {
    Command(&'static Spec),
    Subcommand(&'static Spec, &'static Subcommand),
}

/// The commands that are served; refused ones are in the table for their error only.
pub(crate) fn served() -> impl Iterator<Item = Entry> {
    TABLE.iter().filter(|spec| !spec.is_refused()).map(Entry::Command)
}

/// The same, each command followed by its subcommands.
pub(crate) fn served_with_subcommands() -> impl Iterator<Item = Entry> {
    served().flat_map(|entry| core::iter::once(entry).chain(entry.subcommands()))
}

/// What a client names: `command` or `command|subcommand`.
pub(crate) fn find(name: &[u8]) -> Option<Entry> {
    let mut parts = name.splitn(2, |byte| *byte == b'|');
    let spec = lookup(parts.next()?).filter(|spec| !spec.is_refused())?;
    let Some(name) = parts.next() else { return Some(Entry::Command(spec)) };
    subcommands::find(spec.id, name).map(|(_, row)| Entry::Subcommand(spec, row))
}

/// What a request means.
pub(crate) fn meant(request: &[Bytes]) -> Option<Entry> {
    let spec = lookup(request.first()?).filter(|spec| !spec.is_refused())?;
    match request.get(1) {
        Some(name) if subcommands::is_container(spec.id) => {
            subcommands::find(spec.id, name).map(|(_, row)| Entry::Subcommand(spec, row))
        }
        _ => Some(Entry::Command(spec)),
    }
}

impl Entry {
    pub(crate) const fn spec(self) -> &'static Spec {
        match self {
            Self::Command(spec) | Self::Subcommand(spec, _) => spec,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Command(spec) => spec.name,
            Self::Subcommand(_, row) => row.full_name,
        }
    }

    const fn arity(self) -> i32 {
        match self {
            Self::Command(spec) => spec.arity,
            Self::Subcommand(_, row) => row.arity,
        }
    }

    pub(crate) const fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Command(spec) => spec.flags,
            Self::Subcommand(_, row) => row.flags,
        }
    }

    pub(crate) const fn keys(self) -> Keys {
        match self {
            Self::Command(spec) => spec.keys,
            Self::Subcommand(_, row) => row.keys,
        }
    }

    fn subcommands(self) -> impl Iterator<Item = Self> {
        let rows = match self {
            Self::Command(spec) if subcommands::is_container(spec.id) => Some(spec),
            _ => None,
        };
        let of = |spec: &'static Spec| {
            subcommands::of(spec.id).map(move |row| Self::Subcommand(spec, row))
        };
        rows.into_iter().flat_map(of)
    }

    fn name_reply(self) -> Reply {
        Reply::bulk(self.name())
    }

    /// As COMMAND INFO shows it.
    fn info(self) -> Reply {
        let Keys { first, last, step } = self.keys();
        Reply::Array(vec![
            self.name_reply(),
            Reply::Integer(i64::from(self.arity())),
            Reply::Set(self.flags().iter().map(|flag| Reply::simple(flag)).collect()),
            Reply::Integer(i64::from(first)),
            Reply::Integer(i64::from(last)),
            Reply::Integer(i64::from(step)),
            Reply::Set(
                acl::categories(self)
                    .map(|name| Reply::Simple(format!("@{name}").into()))
                    .collect(),
            ),
            Reply::Array(self.tips().iter().map(|tip| Reply::bulk(tip)).collect()),
            Reply::Array(key_specs(self).iter().map(|spec| spec.describe()).collect()),
            Reply::Array(self.subcommands().map(Self::info).collect()),
        ])
    }

    /// How a client of a cluster is to send a command that is not of one slot, in Redis's words.
    fn tips(self) -> &'static [&'static str] {
        match self.name() {
            "mget" => &["request_policy:multi_shard"],
            "mset" => &["request_policy:multi_shard", "response_policy:all_succeeded"],
            "del" | "exists" | "touch" | "unlink" => {
                &["request_policy:multi_shard", "response_policy:agg_sum"]
            }
            "dbsize" => &["request_policy:all_shards", "response_policy:agg_sum"],
            "wait" => &["request_policy:all_shards", "response_policy:agg_min"],
            "flushall" | "flushdb" | "ping" => {
                &["request_policy:all_shards", "response_policy:all_succeeded"]
            }
            "keys" => &["request_policy:all_shards", "nondeterministic_output_order"],
            "randomkey" => {
                &["request_policy:all_shards", "response_policy:special", "nondeterministic_output"]
            }
            "scan" => {
                &["nondeterministic_output", "request_policy:special", "response_policy:special"]
            }
            "info" => {
                &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"]
            }
            _ => &[],
        }
    }

    /// As COMMAND DOCS shows it.
    fn docs(self) -> (Reply, Reply) {
        let field = |name, text| (Reply::bulk(name), Reply::bulk(text));
        let (summary, since) = match self {
            Self::Command(spec) => (spec.summary, spec.since),
            Self::Subcommand(_, row) => (row.summary, row.since),
        };
        let mut fields = vec![field("summary", summary)];
        if !since.is_empty() {
            fields.push(field("since", since));
        }
        fields.push(field("group", self.spec().group));
        let subcommands: Vec<_> = self.subcommands().map(Self::docs).collect();
        if !subcommands.is_empty() {
            fields.push((Reply::bulk("subcommands"), Reply::Map(subcommands)));
        }
        (self.name_reply(), Reply::Map(fields))
    }
}

pub(crate) fn command(args: &[Bytes]) -> Reply {
    let all = || Reply::Array(served().map(Entry::info).collect());
    let Some(sub) = args.get(1) else { return all() };
    let sub_lower = sub.to_ascii_lowercase();
    match (&sub_lower[..], &args[2..]) {
        (b"count", []) => Reply::Integer(served().count() as i64),
        (b"info", []) => all(),
        (b"info", names) => {
            let info_of = |name: &Bytes| find(name).map_or(Reply::Null, Entry::info);
            Reply::Array(names.iter().map(info_of).collect())
        }
        (b"docs", []) => Reply::Map(served().map(Entry::docs).collect()),
        (b"docs", names) => {
            Reply::Map(names.iter().filter_map(|name| find(name)).map(Entry::docs).collect())
        }
        (b"list", filter) => list(filter).unwrap_or(errors::SYNTAX),
        (b"getkeys", request) => keys_of(request).map_or_else(
            |error| error,
            |keys| Reply::Array(keys.into_iter().map(|(key, _)| Reply::Bulk(key)).collect()),
        ),
        (b"getkeysandflags", request) => keys_of(request).map_or_else(
            |error| error,
            |keys| {
                let flagged = |(key, flags): (Bytes, &[&'static str])| {
                    let flags = flags.iter().map(|flag| Reply::simple(flag)).collect();
                    Reply::Array(vec![Reply::Bulk(key), Reply::Set(flags)])
                };
                Reply::Array(keys.into_iter().map(flagged).collect())
            },
        ),
        _ => errors::subcommand_syntax("command", sub),
    }
}

/// `COMMAND LIST [FILTERBY kind value]`; none when the syntax is wrong.
fn list(filter: &[Bytes]) -> Option<Reply> {
    let names = |is_wanted: &dyn Fn(Entry) -> bool| {
        let wanted = served_with_subcommands().filter(|entry| is_wanted(*entry));
        Some(Reply::Array(wanted.map(Entry::name_reply).collect()))
    };
    let [word, kind, value] = filter else {
        return if filter.is_empty() { names(&|_| true) } else { None };
    };
    if !word.eq_ignore_ascii_case(b"filterby") {
        return None;
    }
    let value = value.to_ascii_lowercase();
    match &kind.to_ascii_lowercase()[..] {
        // There are none.
        b"module" => names(&|_| false),
        b"aclcat" => names(&|entry| acl::categories(entry).any(|name| name.as_bytes() == value)),
        b"pattern" => names(&|entry| glob_match(&value, entry.name().as_bytes())),
        _ => None,
    }
}

/// The keys of a request, each with what the command does with it.
fn keys_of(request: &[Bytes]) -> Result<Vec<(Bytes, &'static [&'static str])>, Reply> {
    let entry = meant(request).ok_or(Reply::error("ERR Invalid command specified"))?;
    let has_keys = entry.keys().first != 0 || entry.flags().contains(&"movablekeys");
    if !has_keys {
        return Err(Reply::error("ERR The command has no key arguments"));
    }
    if !accepts(entry.arity(), request.len()) {
        return Err(Reply::error("ERR Invalid number of arguments specified for command"));
    }
    let specs = key_specs(entry);
    let keys: Vec<_> = specs.iter().flat_map(|spec| spec.keys_of(request)).collect();
    if keys.is_empty() && !entry.flags().contains(&"no_mandatory_keys") {
        return Err(Reply::error("ERR Invalid arguments specified for command"));
    }
    Ok(keys)
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
        use super::table::Id;
        let is_refused = spec.is_refused() || matches!(spec.id, Id::ClusterMode);
        let runs = if is_refused { "refused" } else { spec.route.as_str() };
        let notes = spec.notes.replace('|', "\\|");
        out.push_str(&format!("| {name} | {since} | {runs} | {} | {notes} |\n", spec.summary));
    }
    out
}
