//! Where the keys of a command stand, and what it does with each: the key specifications of COMMAND INFO and what
//! COMMAND GETKEYSANDFLAGS tells.

use super::describe::Entry;
use super::table::{Keys, Route};
use bytes::Bytes;
use gabion_base::number::parse_u64;
use gabion_resp::Reply;

/// What a command does with a key, in Redis's words.
type Flags = &'static [&'static str];

const READS: Flags = &["RO", "access"];
const UPDATES: Flags = &["RW", "access", "update"];
const SETS: Flags = &["OW", "update"];
const INSERTS: Flags = &["OW", "insert"];
const REMOVES: Flags = &["RW", "access", "delete"];
const LOOKS: Flags = &["RO"];
const CHANGES: Flags = &["RW", "update"];
const VARIABLE: Flags = &["RW", "access", "update", "variable_flags"];

/// Some keys of a command.
pub(crate) struct KeySpec {
    flags: Flags,
    /// The same for a request, where it depends on that.
    flags_of: fn(&[Bytes]) -> Flags,
    place: Place,
}

enum Place {
    /// At these arguments.
    Range(Keys),
    /// Argument `first` says how many follow it.
    Counted { first: usize },
}

/// Those commands of which the flags do not follow from where they run.
fn flags(entry: Entry) -> Flags {
    match entry.name() {
        "set" | "bitfield" => VARIABLE,
        "setnx" | "msetnx" => INSERTS,
        "mset" | "setex" | "psetex" | "restore" => SETS,
        "append" => &["RW", "insert"],
        "setrange" | "expire" | "pexpire" | "expireat" | "pexpireat" | "persist" => CHANGES,
        "getdel" | "move" => REMOVES,
        "del" | "unlink" | "delex" | "delifeq" => &["RM", "delete"],
        "strlen" | "exists" | "type" | "touch" | "watch" => LOOKS,
        "object|encoding" | "object|freq" | "object|idletime" | "object|refcount"
        | "memory|usage" => LOOKS,
        _ if entry.flags().contains(&"readonly") => READS,
        _ if entry.spec().route == Route::Read => READS,
        _ => UPDATES,
    }
}

/// Those of a SET are those of an overwrite when it returns nothing of the old value.
fn flags_of_set(request: &[Bytes]) -> Flags {
    let gets = request.iter().skip(3).any(|word| word.eq_ignore_ascii_case(b"get"));
    if gets { UPDATES } else { SETS }
}

/// Those of a BITFIELD are those of a read when all it does is GET.
fn flags_of_bitfield(request: &[Bytes]) -> Flags {
    let writes =
        |word: &Bytes| word.eq_ignore_ascii_case(b"set") || word.eq_ignore_ascii_case(b"incrby");
    if request.iter().skip(2).any(writes) { UPDATES } else { READS }
}

fn one(at: i32, flags: Flags) -> KeySpec {
    range(Keys { first: at, last: at, step: 1 }, flags)
}

fn range(keys: Keys, flags: Flags) -> KeySpec {
    KeySpec { flags, flags_of: |_| &[], place: Place::Range(keys) }
}

/// The key specifications of a command, in the order of its arguments.
pub(crate) fn key_specs(entry: Entry) -> Vec<KeySpec> {
    match entry.name() {
        "rename" => vec![one(1, REMOVES), one(2, SETS)],
        "renamenx" => vec![one(1, REMOVES), one(2, INSERTS)],
        "copy" => vec![one(1, READS), one(2, SETS)],
        "bitop" => vec![one(2, SETS), range(Keys { first: 3, last: -1, step: 1 }, READS)],
        "eval" | "evalsha" | "eval_ro" | "evalsha_ro" | "fcall" | "fcall_ro" => {
            let place = Place::Counted { first: 2 };
            vec![KeySpec { flags: flags(entry), flags_of: |_| &[], place }]
        }
        _ if entry.keys().first == 0 => Vec::new(),
        name => {
            let mut spec = range(entry.keys(), flags(entry));
            match name {
                "set" => spec.flags_of = flags_of_set,
                "bitfield" => spec.flags_of = flags_of_bitfield,
                _ => {}
            }
            vec![spec]
        }
    }
}

impl KeySpec {
    /// As COMMAND INFO shows it.
    pub(crate) fn describe(&self) -> Reply {
        let field = |name, value| (Reply::bulk(name), value);
        let typed = |name, kind, fields: Vec<(&'static str, i64)>| {
            let fields = fields.into_iter().map(|(name, value)| field(name, Reply::Integer(value)));
            let spec = Reply::Map(fields.collect());
            field(name, Reply::Map(vec![field("type", Reply::bulk(kind)), field("spec", spec)]))
        };
        let (first, find) = match self.place {
            Place::Range(Keys { first, last, step }) => {
                let last = if last < 0 { last } else { last - first };
                let fields =
                    vec![("lastkey", i64::from(last)), ("keystep", i64::from(step)), ("limit", 0)];
                (i64::from(first), typed("find_keys", "range", fields))
            }
            Place::Counted { first } => {
                let fields = vec![("keynumidx", 0), ("firstkey", 1), ("keystep", 1)];
                (first as i64, typed("find_keys", "keynum", fields))
            }
        };
        Reply::Map(vec![
            field("flags", Reply::Set(self.flags.iter().map(|flag| Reply::simple(flag)).collect())),
            typed("begin_search", "index", vec![("index", first)]),
            find,
        ])
    }

    /// The keys of a request, each with its flags.
    pub(crate) fn keys_of(&self, request: &[Bytes]) -> Vec<(Bytes, Flags)> {
        let flags = match (self.flags_of)(request) {
            [] => self.flags,
            flags => flags,
        };
        let keys: Vec<&Bytes> = match self.place {
            Place::Range(keys) => keys.of(request).collect(),
            Place::Counted { first } => {
                let count = request.get(first).and_then(|count| parse_u64(count));
                let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
                let keys = request.get(first + 1..).unwrap_or_default();
                // More than there are: the command would be refused.
                if count <= keys.len() { keys[..count].iter().collect() } else { Vec::new() }
            }
        };
        keys.into_iter().map(|key| (key.clone(), flags)).collect()
    }
}
