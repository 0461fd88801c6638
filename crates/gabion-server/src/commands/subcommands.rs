//! The subcommands of container commands: their names, how many words they take, and what HELP says of them. As those
//! of commands, they are checked when a request comes, also between MULTI and EXEC, where it is only queued.

use super::errors;
use super::table::{Id, Keys, Spec, TABLE, accepts};
use bytes::Bytes;
use gabion_resp::Reply;

/// A row of the table of subcommands.
#[derive(Debug)]
pub struct Subcommand {
    /// The command that contains it.
    pub parent: Id,
    /// `command|subcommand`, in lower case.
    pub full_name: &'static str,
    /// As [`Spec::arity`], the command's own name included.
    pub arity: i32,
    /// Flags in Redis's words.
    pub flags: &'static [&'static str],
    /// Which arguments are keys, as [`Spec::keys`].
    pub keys: Keys,
    /// The first version of Redis that has it; empty for one of Gabion's own.
    pub since: &'static str,
    /// Its arguments, as HELP shows them.
    pub usage: &'static str,
    /// One line on what it does.
    pub summary: &'static str,
}

impl Subcommand {
    /// Its name without the command's.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.full_name.split_once('|').map_or(self.full_name, |(_, name)| name)
    }

    /// Whether it has a Redis flag.
    #[must_use]
    pub fn has_flag(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }
}

macro_rules! subcommands {
    ($($parent:ident $name:literal $arity:literal [$($flag:literal)*]
       ($first:literal $last:literal $step:literal) $since:literal $usage:literal $summary:literal;)*) => {
        /// Every subcommand, those of one command together, in the order of its HELP.
        pub static SUBCOMMANDS: &[Subcommand] = &[$(Subcommand {
            parent: Id::$parent,
            full_name: $name,
            arity: $arity,
            flags: &[$($flag),*],
            keys: Keys { first: $first, last: $last, step: $step },
            since: $since,
            usage: $usage,
            summary: $summary,
        }),*];
    };
}

subcommands! {
    Acl "acl|cat" -2 ["noscript" "loading" "stale"] (0 0 0) "6.0.0"
        "[<category>]" "List all categories, or the commands of one.";
    Acl "acl|deluser" -3 ["admin" "noscript" "loading" "stale"] (0 0 0) "6.0.0"
        "<username> [<username> ...]" "Delete users and close their connections; 'default' stays.";
    Acl "acl|dryrun" -4 ["admin" "noscript" "loading" "stale"] (0 0 0) "7.0.0"
        "<username> <command> [<arg> ...]" "Tell whether the user may run the command, without running it.";
    Acl "acl|genpass" -2 ["noscript" "loading" "stale"] (0 0 0) "6.0.0"
        "[<bits>]" "Make a random password, of 256 bits unless said otherwise.";
    Acl "acl|getuser" 3 ["admin" "noscript" "loading" "stale"] (0 0 0) "6.0.0"
        "<username>" "Describe the rules of a user.";
    Acl "acl|help" 2 ["loading" "stale"] (0 0 0) "6.0.0" "" "Print this help.";
    Acl "acl|list" 2 ["admin" "noscript" "loading" "stale"] (0 0 0) "6.0.0"
        "" "List the users with their rules.";
    Acl "acl|load" 2 ["admin" "noscript" "loading" "stale"] (0 0 0) "6.0.0"
        "" "Read the file of users again.";
    Acl "acl|log" -2 ["admin" "noscript" "loading" "stale"] (0 0 0) "6.0.0"
        "[<count>|RESET]" "List what was denied, or forget it.";
    Acl "acl|save" 2 ["admin" "noscript" "loading" "stale"] (0 0 0) "6.0.0"
        "" "Write the users to the file.";
    Acl "acl|setuser" -3 ["admin" "noscript" "loading" "stale"] (0 0 0) "6.0.0"
        "<username> [<rule> ...]" "Make a user, or change one by rules.";
    Acl "acl|users" 2 ["admin" "noscript" "loading" "stale"] (0 0 0) "6.0.0"
        "" "List the names of the users.";
    Acl "acl|whoami" 2 ["noscript" "loading" "stale"] (0 0 0) "6.0.0"
        "" "Return the name of the connection's user.";

    Client "client|caching" 3 ["noscript" "loading" "stale"] (0 0 0) "6.0.0"
        "(YES|NO)" "Refused, as tracking cannot be turned on.";
    Client "client|getname" 2 ["noscript" "loading" "stale"] (0 0 0) "2.6.9"
        "" "Return the name of the connection.";
    Client "client|getredir" 2 ["noscript" "loading" "stale"] (0 0 0) "6.0.0"
        "" "Return where tracking messages go: -1, as there are none.";
    Client "client|help" 2 ["loading" "stale"] (0 0 0) "5.0.0" "" "Print this help.";
    Client "client|id" 2 ["noscript" "loading" "stale"] (0 0 0) "5.0.0"
        "" "Return the number of the connection.";
    Client "client|info" 2 ["noscript" "loading" "stale"] (0 0 0) "6.2.0"
        "" "Describe the connection.";
    Client "client|kill" -3 ["admin" "noscript" "loading" "stale"] (0 0 0) "2.4.0"
        "<ip:port>|<option> <value> [<option> <value> ...]"
        "Close connections. Options: ID, ADDR, LADDR, USER, TYPE, MAXAGE (seconds), SKIPME (YES|NO).";
    Client "client|list" -2 ["admin" "noscript" "loading" "stale"] (0 0 0) "2.4.0"
        "[TYPE (NORMAL|MASTER|REPLICA|PUBSUB)] [ID <id> [<id> ...]]" "Describe connections, all or some.";
    Client "client|no-evict" 3 ["admin" "noscript" "loading" "stale"] (0 0 0) "7.0.0"
        "(ON|OFF)" "Protect the connection from eviction: none is evicted.";
    Client "client|no-touch" 3 ["noscript" "loading" "stale"] (0 0 0) "7.2.0"
        "(ON|OFF)" "Leave the times of use of keys alone: there are none.";
    Client "client|pause" -3 ["admin" "noscript" "loading" "stale"] (0 0 0) "3.0.0"
        "<timeout> [WRITE|ALL]" "Refused: clients of the other nodes would go on.";
    Client "client|reply" 3 ["noscript" "loading" "stale"] (0 0 0) "3.2.0"
        "(ON|OFF|SKIP)" "Choose whether the connection gets replies.";
    Client "client|setinfo" 4 ["noscript" "loading" "stale"] (0 0 0) "7.2.0"
        "(LIB-NAME|LIB-VER) <value>" "Name the client library.";
    Client "client|setname" 3 ["noscript" "loading" "stale"] (0 0 0) "2.6.9"
        "<name>" "Name the connection.";
    Client "client|tracking" -3 ["noscript" "loading" "stale"] (0 0 0) "6.0.0"
        "(ON|OFF) [<option> ...]" "Track keys for a cache of the client: OFF alone is taken.";
    Client "client|trackinginfo" 2 ["noscript" "loading" "stale"] (0 0 0) "6.2.0"
        "" "Describe the tracking of the connection: it is off.";
    Client "client|unblock" -3 ["admin" "noscript" "loading" "stale"] (0 0 0) "5.0.0"
        "<id> [TIMEOUT|ERROR]" "Unblock a connection: none is ever blocked.";
    Client "client|unpause" 2 ["admin" "noscript" "loading" "stale"] (0 0 0) "6.2.0"
        "" "Let paused clients go on: none is paused.";

    Cluster "cluster|addslots" -3 ["admin" "stale"] (0 0 0) "3.0.0" "<slot> [<slot> ...]" "Refused.";
    Cluster "cluster|addslotsrange" -4 ["admin" "stale"] (0 0 0) "7.0.0" "<first> <last> [...]" "Refused.";
    Cluster "cluster|bumpepoch" 2 ["admin" "stale"] (0 0 0) "3.0.0" "" "Refused.";
    Cluster "cluster|count-failure-reports" 3 ["admin" "stale"] (0 0 0) "3.0.0" "<node>" "Refused.";
    Cluster "cluster|countkeysinslot" 3 ["stale"] (0 0 0) "3.0.0" "<slot>" "Refused.";
    Cluster "cluster|delslots" -3 ["admin" "stale"] (0 0 0) "3.0.0" "<slot> [<slot> ...]" "Refused.";
    Cluster "cluster|delslotsrange" -4 ["admin" "stale"] (0 0 0) "7.0.0" "<first> <last> [...]" "Refused.";
    Cluster "cluster|failover" -2 ["admin" "stale"] (0 0 0) "3.0.0" "[FORCE|TAKEOVER]" "Refused.";
    Cluster "cluster|flushslots" 2 ["admin" "stale"] (0 0 0) "3.0.0" "" "Refused.";
    Cluster "cluster|forget" 3 ["admin" "stale"] (0 0 0) "3.0.0" "<node>" "Refused.";
    Cluster "cluster|getkeysinslot" 4 ["stale"] (0 0 0) "3.0.0" "<slot> <count>" "Refused.";
    Cluster "cluster|help" 2 ["loading" "stale"] (0 0 0) "5.0.0" "" "Print this help.";
    Cluster "cluster|info" 2 ["stale"] (0 0 0) "3.0.0" "" "Numbers of slots and nodes.";
    Cluster "cluster|keyslot" 3 ["stale"] (0 0 0) "3.0.0" "<key>" "The slot of a key.";
    Cluster "cluster|links" 2 ["stale"] (0 0 0) "7.0.0" ""
        "None: nodes of several groups have no links.";
    Cluster "cluster|meet" -4 ["admin" "stale"] (0 0 0) "3.0.0" "<ip> <port> [<bus port>]" "Refused.";
    Cluster "cluster|myid" 2 ["stale"] (0 0 0) "3.0.0" "" "The name of this node.";
    Cluster "cluster|myshardid" 2 ["stale"] (0 0 0) "7.2.0" "" "The name of its group.";
    Cluster "cluster|nodes" 2 ["stale"] (0 0 0) "3.0.0" "" "A line for each node.";
    Cluster "cluster|replicas" 3 ["admin" "stale"] (0 0 0) "5.0.0" "<node>" "Refused.";
    Cluster "cluster|replicate" 3 ["admin" "stale"] (0 0 0) "3.0.0" "<node>" "Refused.";
    Cluster "cluster|reset" -2 ["admin" "stale" "noscript"] (0 0 0) "3.0.0" "[HARD|SOFT]" "Refused.";
    Cluster "cluster|saveconfig" 2 ["admin" "stale"] (0 0 0) "3.0.0" "" "Refused.";
    Cluster "cluster|set-config-epoch" 3 ["admin" "stale"] (0 0 0) "3.0.0" "<epoch>" "Refused.";
    Cluster "cluster|setslot" -4 ["admin" "stale"] (0 0 0) "3.0.0" "<slot> <state> [<node>]" "Refused.";
    Cluster "cluster|shards" 2 ["loading" "stale"] (0 0 0) "7.0.0" ""
        "Groups with their slots and nodes.";
    Cluster "cluster|slaves" 3 ["admin" "stale"] (0 0 0) "3.0.0" "<node>" "Refused.";
    Cluster "cluster|slots" 2 ["loading" "stale"] (0 0 0) "3.0.0" "" "Slots with their nodes.";

    Command "command|count" 2 ["loading" "stale"] (0 0 0) "2.8.13"
        "" "Return the number of commands.";
    Command "command|docs" -2 ["loading" "stale"] (0 0 0) "7.0.0"
        "[<command> ...]" "Document commands, all or some.";
    Command "command|getkeys" -3 ["loading" "stale"] (0 0 0) "2.8.13"
        "<command> [<arg> ...]" "Return the keys of a request.";
    Command "command|getkeysandflags" -3 ["loading" "stale"] (0 0 0) "7.0.0"
        "<command> [<arg> ...]" "Return the keys of a request, and what it does with each.";
    Command "command|help" 2 ["loading" "stale"] (0 0 0) "5.0.0" "" "Print this help.";
    Command "command|info" -2 ["loading" "stale"] (0 0 0) "2.8.13"
        "[<command> ...]" "Describe commands, all or some.";
    Command "command|list" -2 ["loading" "stale"] (0 0 0) "7.0.0"
        "[FILTERBY (MODULE <module>|ACLCAT <category>|PATTERN <pattern>)]" "List the names of commands.";

    Config "config|get" -3 ["admin" "noscript" "loading" "stale"] (0 0 0) "2.0.0"
        "<pattern> [<pattern> ...]" "Return the options whose names match.";
    Config "config|help" 2 ["loading" "stale"] (0 0 0) "5.0.0" "" "Print this help.";
    Config "config|resetstat" 2 ["admin" "noscript" "loading" "stale"] (0 0 0) "2.0.0"
        "" "Let the numbers of INFO begin anew.";
    Config "config|rewrite" 2 ["admin" "noscript" "loading" "stale"] (0 0 0) "2.8.0"
        "" "Refused: there is no file of options.";
    Config "config|set" -4 ["admin" "noscript" "loading" "stale"] (0 0 0) "2.0.0"
        "<option> <value> [<option> <value> ...]" "Change options, all of them or none.";

    Function "function|delete" 3 ["noscript"] (0 0 0) "7.0.0"
        "<library>" "Delete a library: there is none.";
    Function "function|dump" 2 ["noscript"] (0 0 0) "7.0.0"
        "" "Return the dump of no libraries.";
    Function "function|flush" -2 ["noscript"] (0 0 0) "7.0.0"
        "[ASYNC|SYNC]" "Delete all libraries: there is none.";
    Function "function|help" 2 ["loading" "stale"] (0 0 0) "7.0.0" "" "Print this help.";
    Function "function|kill" 2 ["noscript" "allow_busy"] (0 0 0) "7.0.0"
        "" "End the function that runs: none does.";
    Function "function|list" -2 ["noscript"] (0 0 0) "7.0.0"
        "[LIBRARYNAME <pattern>] [WITHCODE]" "List the libraries: there is none.";
    Function "function|load" -3 ["noscript"] (0 0 0) "7.0.0"
        "[REPLACE] <code>" "Refused: libraries are not supported.";
    Function "function|restore" -3 ["noscript"] (0 0 0) "7.0.0"
        "<dump> [FLUSH|APPEND|REPLACE]" "Take the dump of no libraries back; others are refused.";
    Function "function|stats" 2 ["noscript" "allow_busy"] (0 0 0) "7.0.0"
        "" "Tell which function runs (none) and how many there are.";

    Latency "latency|doctor" 2 ["admin" "noscript" "loading" "stale"] (0 0 0) "2.8.13"
        "" "Say where to look for what is slow.";
    Latency "latency|graph" 3 ["admin" "noscript" "loading" "stale"] (0 0 0) "2.8.13"
        "<event>" "Refused: there are no samples.";
    Latency "latency|help" 2 ["loading" "stale"] (0 0 0) "2.8.13" "" "Print this help.";
    Latency "latency|history" 3 ["admin" "noscript" "loading" "stale"] (0 0 0) "2.8.13"
        "<event>" "Return the samples of an event: there are none.";
    Latency "latency|latest" 2 ["admin" "noscript" "loading" "stale"] (0 0 0) "2.8.13"
        "" "Return the last sample of each event: there are none.";
    Latency "latency|reset" -2 ["admin" "noscript" "loading" "stale"] (0 0 0) "2.8.13"
        "[<event> ...]" "Forget samples: there are none.";

    Memory "memory|help" 2 ["loading" "stale"] (0 0 0) "4.0.0" "" "Print this help.";
    Memory "memory|usage" -3 ["readonly"] (2 2 1) "4.0.0"
        "<key> [SAMPLES <count>]" "Estimate the memory that a key takes.";

    Module "module|help" 2 ["loading" "stale"] (0 0 0) "5.0.0" "" "Print this help.";
    Module "module|list" 2 ["admin" "noscript"] (0 0 0) "4.0.0"
        "" "List the modules: there is none.";
    Module "module|load" -3 ["admin" "noscript"] (0 0 0) "4.0.0"
        "<path> [<arg> ...]" "Refused: modules are not supported.";
    Module "module|loadex" -3 ["admin" "noscript"] (0 0 0) "7.0.0"
        "<path> [<option> ...]" "Refused: modules are not supported.";
    Module "module|unload" 3 ["admin" "noscript"] (0 0 0) "4.0.0"
        "<name>" "Refused: modules are not supported.";

    Object "object|encoding" 3 ["readonly"] (2 2 1) "2.2.3"
        "<key>" "Return how Redis would keep the value.";
    Object "object|freq" 3 ["readonly"] (2 2 1) "4.0.0"
        "<key>" "Refused: nothing is evicted.";
    Object "object|help" 2 ["loading" "stale"] (0 0 0) "6.2.0" "" "Print this help.";
    Object "object|idletime" 3 ["readonly"] (2 2 1) "2.2.3"
        "<key>" "Refused: no access is noted.";
    Object "object|refcount" 3 ["readonly"] (2 2 1) "2.2.3"
        "<key>" "Return how often the value is referred to: once.";

    Script "script|exists" -3 ["noscript"] (0 0 0) "2.6.0"
        "<sha1> [<sha1> ...]" "Tell which scripts this node keeps.";
    Script "script|flush" -2 ["noscript"] (0 0 0) "2.6.0"
        "[ASYNC|SYNC]" "Forget the scripts that this node keeps.";
    Script "script|help" 2 ["loading" "stale"] (0 0 0) "5.0.0" "" "Print this help.";
    Script "script|kill" 2 ["noscript" "allow_busy"] (0 0 0) "2.6.0"
        "" "End the script that runs: none does for longer than its limit.";
    Script "script|load" 3 ["noscript" "stale"] (0 0 0) "2.6.0"
        "<script>" "Keep a script at this node, and return its SHA-1.";

    Slowlog "slowlog|get" -2 ["admin" "loading" "stale"] (0 0 0) "2.2.12"
        "[<count>]" "Return the newest entries (default: 10, -1: all): number, time, microseconds, words, client, its name.";
    Slowlog "slowlog|help" 2 ["loading" "stale"] (0 0 0) "6.2.0" "" "Print this help.";
    Slowlog "slowlog|len" 2 ["admin" "loading" "stale"] (0 0 0) "2.2.12"
        "" "Return the number of entries.";
    Slowlog "slowlog|reset" 2 ["admin" "loading" "stale"] (0 0 0) "2.2.12"
        "" "Forget all entries.";
}

/// Where counters of subcommands begin, behind those of commands.
pub(crate) const FIRST: usize = TABLE.len();

/// The subcommands of `parent`; none of a command that contains none.
pub(crate) fn of(parent: Id) -> impl Iterator<Item = &'static Subcommand> {
    SUBCOMMANDS.iter().filter(move |row| row.parent == parent)
}

/// The subcommand of `parent` with this name, in any case, and its place in the table.
pub(crate) fn find(parent: Id, name: &[u8]) -> Option<(usize, &'static Subcommand)> {
    let is_it =
        |row: &Subcommand| row.parent == parent && row.name().as_bytes().eq_ignore_ascii_case(name);
    SUBCOMMANDS.iter().enumerate().find(|(_, row)| is_it(row))
}

/// The name of the command or subcommand with these counters.
pub(crate) fn name_of(counters: usize) -> &'static str {
    match counters.checked_sub(FIRST) {
        None => TABLE[counters].name,
        Some(index) => SUBCOMMANDS[index].full_name,
    }
}

/// Whether `id` is a command whose first argument is a subcommand.
pub(crate) const fn is_container(id: Id) -> bool {
    matches!(
        id,
        Id::Acl
            | Id::Client
            | Id::Cluster
            | Id::Command
            | Id::Config
            | Id::Function
            | Id::Latency
            | Id::Memory
            | Id::Module
            | Id::Object
            | Id::Script
            | Id::Slowlog
    )
}

/// Checks the subcommand of a request for `spec`, of which the number of words fits. Returns the place of its counters,
/// where it is one.
///
/// # Errors
/// The error that the client gets: unknown subcommand, wrong number of arguments.
#[inline]
pub(crate) fn check(spec: &Spec, args: &[Bytes]) -> Result<Option<usize>, Reply> {
    if !is_container(spec.id) {
        return Ok(None);
    }
    args.get(1).map_or(Ok(None), |given| check_name(spec, given, args.len()).map(Some))
}

fn check_name(spec: &Spec, given: &[u8], count: usize) -> Result<usize, Reply> {
    match find(spec.id, given) {
        Some((index, row)) if accepts(row.arity, count) => Ok(FIRST + index),
        Some((_, row)) => Err(errors::arity(row.full_name)),
        None => Err(errors::unknown_subcommand(spec.name, given)),
    }
}

/// HELP of a command.
pub(crate) fn help(parent: Id) -> Reply {
    let line = |text: String| Reply::Simple(Bytes::from(text));
    let name = TABLE.iter().find(|spec| spec.id == parent).map_or("", |spec| spec.name);
    let name = name.to_ascii_uppercase();
    let title = format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:");
    let mut rows: Vec<&Subcommand> = of(parent).filter(|row| row.name() != "help").collect();
    rows.extend(of(parent).filter(|row| row.name() == "help"));
    let lines = rows.into_iter().flat_map(|row| {
        let name = row.name().to_ascii_uppercase();
        let usage = format!("{name} {}", row.usage);
        [line(usage.trim_end().to_owned()), line(format!("    {}", row.summary))]
    });
    Reply::Array(core::iter::once(line(title)).chain(lines).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_stands_behind_its_command_and_every_container_has_some() {
        for row in SUBCOMMANDS {
            let parent = TABLE.iter().find(|spec| spec.id == row.parent).unwrap();
            assert_eq!(row.full_name, format!("{}|{}", parent.name, row.name()));
            assert!(is_container(row.parent), "{}", row.full_name);
            assert_eq!(find(row.parent, row.name().as_bytes()).unwrap().1.full_name, row.full_name);
        }
        for spec in TABLE {
            assert_eq!(of(spec.id).next().is_some(), is_container(spec.id), "{}", spec.name);
        }
    }
}
