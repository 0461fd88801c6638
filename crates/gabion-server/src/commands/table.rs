//! Every command: its name, arity, flags, since which version of Redis it exists, where it runs and
//! where its keys stand. COMMAND, the dispatch of the server and `docs/redis.md` all read this
//! table.

use bytes::Bytes;

/// Where a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// At the node that the client is connected to; it touches no data.
    Local,
    /// Only reads: at the tail, at or after the connection's last position.
    Read,
    /// Writes without looking (a blind write): at the head, into the record of the turn.
    Write,
    /// Reads and writes: at the head, under the locks of its keys.
    ReadWrite,
}

impl Route {
    /// The route as a word for documents.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Read => "read",
            Self::Write => "write",
            Self::ReadWrite => "read-write",
        }
    }
}

/// Whether so many words fit an arity: exactly so many, or at least so many when it is negative.
#[inline]
pub(crate) const fn accepts(arity: i32, count: usize) -> bool {
    let wanted = arity.unsigned_abs() as usize;
    if arity < 0 { count >= wanted } else { count == wanted }
}

/// Which arguments are keys, counted as Redis does: the name is argument 0, a negative last is
/// counted from the end. All zero: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The first key.
    pub first: i32,
    /// The last key.
    pub last: i32,
    /// Distance between keys.
    pub step: i32,
}

/// One row of the table.
#[derive(Debug)]
pub struct Spec {
    /// In lower case.
    pub name: &'static str,
    /// What dispatch matches on.
    pub id: Id,
    /// Arguments with the name: exactly so many, or at least so many when negative.
    pub arity: i32,
    /// Where it runs.
    pub route: Route,
    /// Flags in Redis's words.
    pub flags: &'static [&'static str],
    /// Which arguments are keys.
    pub keys: Keys,
    /// The first version of Redis that has it; empty for a command of Gabion's own.
    pub since: &'static str,
    /// Group in Redis's documentation.
    pub group: &'static str,
    /// One line on what it does.
    pub summary: &'static str,
    /// Differences from Redis; empty for none.
    pub notes: &'static str,
}

impl Spec {
    /// Whether a request of `count` words, the name included, has a fitting length.
    #[inline]
    #[must_use]
    pub const fn accepts(&self, count: usize) -> bool {
        accepts(self.arity, count)
    }

    /// Whether this row only holds the error that the command gets.
    #[must_use]
    pub const fn is_refused(&self) -> bool {
        matches!(self.id, Id::Refused)
    }

    /// Whether it has a Redis flag.
    #[must_use]
    pub fn has_flag(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    /// The keys among `args` (the name is `args[0]`).
    #[inline]
    pub fn keys_of<'a>(&self, args: &'a [Bytes]) -> impl Iterator<Item = &'a Bytes> + use<'a> {
        self.keys.of(args)
    }

    /// Whether the argument at `index` is a key where there are `count` with the name.
    pub(crate) const fn is_key(&self, index: usize, count: usize) -> bool {
        let Keys { first, last, step } = self.keys;
        let end = if last < 0 { count as i32 + last } else { last };
        let (index, step) = (index as i32, if step < 1 { 1 } else { step });
        first != 0 && first <= index && index <= end && (index - first) % step == 0
    }
}

impl Keys {
    /// The arguments at these places.
    #[inline]
    pub(crate) fn of<'a>(self, args: &'a [Bytes]) -> impl Iterator<Item = &'a Bytes> + use<'a> {
        let Self { first, last, step } = self;
        let end = if last < 0 { args.len() as i32 + last } else { last };
        let count = if first == 0 { 0 } else { (end - first + step) / step };
        let step = step.max(1) as usize;
        args.iter().skip(first as usize).step_by(step).take(count.max(0) as usize)
    }
}

macro_rules! table {
    ($($id:ident $name:literal $arity:literal $route:ident [$($flag:literal)*]
       ($first:literal $last:literal $step:literal) $since:literal $group:literal
       $summary:literal $notes:literal;)*) => {
        /// Every command, in the order of `docs/redis.md`.
        pub static TABLE: &[Spec] = &[$(Spec {
            name: $name,
            id: Id::$id,
            arity: $arity,
            route: Route::$route,
            flags: &[$($flag),*],
            keys: Keys { first: $first, last: $last, step: $step },
            since: $since,
            group: $group,
            summary: $summary,
            notes: $notes,
        }),*];
    };
}

/// What a command does. Several names may share one (DEL and UNLINK).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the command of its name, described in the table")]
pub enum Id {
    Acl,
    Append,
    Auth,
    BitCount,
    BitField,
    BitFieldRo,
    BitOp,
    BitPos,
    Client,
    Cluster,
    ClusterMode,
    Command,
    Config,
    Copy,
    DbSize,
    Decr,
    DecrBy,
    Del,
    DelIfEq,
    Discard,
    Dump,
    Echo,
    Eval,
    EvalSha,
    Exec,
    Exists,
    Expire,
    ExpireAt,
    ExpireTime,
    Failover,
    Fcall,
    FlushAll,
    Function,
    Gabion,
    Get,
    GetBit,
    GetDel,
    GetEx,
    GetRange,
    GetSet,
    Hello,
    Incr,
    IncrBy,
    IncrByFloat,
    Info,
    Keys,
    Lcs,
    LastSave,
    Latency,
    MGet,
    MSet,
    MSetNx,
    Memory,
    Module,
    Move,
    Multi,
    Object,
    PExpire,
    PExpireAt,
    PExpireTime,
    PSetEx,
    PTtl,
    Persist,
    Ping,
    Quit,
    RandomKey,
    Range,
    Refused,
    Rename,
    RenameNx,
    ReplicaOf,
    Reset,
    Restore,
    Role,
    Scan,
    Script,
    Select,
    Set,
    SetBit,
    SetEx,
    SetNx,
    SetRange,
    Slowlog,
    StrLen,
    SwapDb,
    Time,
    Ttl,
    Type,
    Unwatch,
    Wait,
    WaitAof,
    Watch,
}

table! {
    Get "get" 2 Read ["readonly" "fast"] (1 1 1) "1.0.0" "string"
        "Returns the value of a key." "";
    Set "set" -3 Write ["write" "denyoom"] (1 1 1) "1.0.0" "string"
        "Sets the value of a key."
        "Options NX, XX or IFEQ value (as in Valkey 8.1), each also with GET; EX, PX, EXAT, PXAT or KEEPTTL.";
    SetNx "setnx" 3 ReadWrite ["write" "denyoom" "fast"] (1 1 1) "1.0.0" "string"
        "Sets the value of a key that does not exist." "";
    GetSet "getset" 3 ReadWrite ["write" "denyoom" "fast"] (1 1 1) "1.0.0" "string"
        "Sets a key and returns its old value." "";
    GetDel "getdel" 2 ReadWrite ["write" "fast"] (1 1 1) "6.2.0" "string"
        "Deletes a key and returns its value." "";
    DelIfEq "delifeq" 3 ReadWrite ["write" "fast"] (1 1 1) "" "string"
        "Deletes a key that has a value." "As in Valkey 9.0: 1 if it was deleted, else 0.";
    GetEx "getex" -2 ReadWrite ["write" "fast"] (1 1 1) "6.2.0" "string"
        "Returns the value of a key and sets or removes its expiry." "Writes the value anew.";
    MGet "mget" -2 Read ["readonly" "fast"] (1 -1 1) "1.0.0" "string"
        "Returns the values of several keys."
        "All from one state. A reply over 64 MiB is refused.";
    MSet "mset" -3 Write ["write" "denyoom"] (1 -1 2) "1.0.1" "string"
        "Sets several keys at once." "At most 65,536 pairs and one log record (16 MiB less 64 KiB).";
    MSetNx "msetnx" -3 ReadWrite ["write" "denyoom"] (1 -1 2) "1.0.1" "string"
        "Sets several keys at once when none of them exists." "Limits as for MSET.";
    StrLen "strlen" 2 Read ["readonly" "fast"] (1 1 1) "2.2.0" "string"
        "Returns the length of a value." "";
    GetRange "getrange" 4 Read ["readonly"] (1 1 1) "2.4.0" "string"
        "Returns a part of a value." "";
    GetRange "substr" 4 Read ["readonly"] (1 1 1) "1.0.0" "string"
        "Returns a part of a value (the old name of GETRANGE)." "";
    Lcs "lcs" -3 Read ["readonly"] (1 2 1) "7.0.0" "string"
        "Finds the longest subsequence that two values share."
        "LEN, IDX, MINMATCHLEN, WITHMATCHLEN. Lengths plus one, multiplied: at most 134,217,728, as in Redis; one at a time at a node.";
    SetRange "setrange" 4 ReadWrite ["write" "denyoom"] (1 1 1) "2.2.0" "string"
        "Overwrites a part of a value." "Writes the whole value anew.";
    Append "append" 3 ReadWrite ["write" "denyoom" "fast"] (1 1 1) "2.0.0" "string"
        "Appends to a value." "Writes the whole value anew.";
    Incr "incr" 2 ReadWrite ["write" "denyoom" "fast"] (1 1 1) "1.0.0" "string"
        "Adds one to a number." "";
    Decr "decr" 2 ReadWrite ["write" "denyoom" "fast"] (1 1 1) "1.0.0" "string"
        "Takes one from a number." "";
    IncrBy "incrby" 3 ReadWrite ["write" "denyoom" "fast"] (1 1 1) "1.0.0" "string"
        "Adds to a number." "";
    DecrBy "decrby" 3 ReadWrite ["write" "denyoom" "fast"] (1 1 1) "1.0.0" "string"
        "Takes from a number." "";
    IncrByFloat "incrbyfloat" 3 ReadWrite ["write" "denyoom" "fast"] (1 1 1) "2.6.0" "string"
        "Adds to a number that may have decimals." "As Redis reckons on x86: 64 bits of mantissa, 17 decimals.";
    SetEx "setex" 4 Write ["write" "denyoom"] (1 1 1) "2.0.0" "string"
        "Sets a key with an expiry." "";
    PSetEx "psetex" 4 Write ["write" "denyoom"] (1 1 1) "2.6.0" "string"
        "Sets a key with an expiry." "";

    GetBit "getbit" 3 Read ["readonly" "fast"] (1 1 1) "2.2.0" "bitmap"
        "Returns a bit of a value." "Offsets are below 67,108,864, the bits of the longest value.";
    SetBit "setbit" 4 ReadWrite ["write" "denyoom"] (1 1 1) "2.2.0" "bitmap"
        "Sets or clears a bit of a value."
        "Offsets as for GETBIT. Writes the whole value anew, and nothing where the bit is so already.";
    BitCount "bitcount" -2 Read ["readonly"] (1 1 1) "2.6.0" "bitmap"
        "Counts the bits that are set." "";
    BitPos "bitpos" -3 Read ["readonly"] (1 1 1) "2.8.7" "bitmap"
        "Finds the first bit that is set, or that is not." "";
    BitOp "bitop" -4 ReadWrite ["write" "denyoom"] (2 -1 1) "2.6.0" "bitmap"
        "Sets a key to what AND, OR, XOR or NOT makes of the bits of others."
        "Reads at most 1 GiB.";
    BitField "bitfield" -2 ReadWrite ["write" "denyoom"] (1 1 1) "3.2.0" "bitmap"
        "Reads, sets and adds to integers of up to 64 bits within a value."
        "Offsets as for GETBIT. Writes the whole value anew, and nothing where all bits are so already.";
    BitFieldRo "bitfield_ro" -2 Read ["readonly" "fast"] (1 1 1) "6.0.0" "bitmap"
        "Reads integers of up to 64 bits within a value." "Offsets as for GETBIT.";

    Del "del" -2 ReadWrite ["write"] (1 -1 1) "1.0.0" "generic"
        "Deletes keys; returns how many existed." "At most 65,536 keys.";
    Del "unlink" -2 ReadWrite ["write" "fast"] (1 -1 1) "4.0.0" "generic"
        "Deletes keys; returns how many existed." "The same as DEL: space comes back by compaction.";
    Exists "exists" -2 Read ["readonly" "fast"] (1 -1 1) "1.0.0" "generic"
        "Returns how many of the keys exist." "Several keys are looked up at once, all from one state.";
    Exists "touch" -2 Read ["readonly" "fast"] (1 -1 1) "3.2.1" "generic"
        "Returns how many of the keys exist." "The same as EXISTS: no times of access are kept.";
    Rename "rename" 3 ReadWrite ["write"] (1 2 1) "1.0.0" "generic"
        "Gives a key's value and expiry to another key." "Writes the value anew; one log record.";
    RenameNx "renamenx" 3 ReadWrite ["write" "fast"] (1 2 1) "1.0.0" "generic"
        "Gives a key's value and expiry to another key that does not exist." "As RENAME.";
    Copy "copy" -3 ReadWrite ["write" "denyoom"] (1 2 1) "6.2.0" "generic"
        "Sets a key to the value and expiry of another."
        "REPLACE; `DB 0` is the only database.";
    Type "type" 2 Read ["readonly" "fast"] (1 1 1) "1.0.0" "generic"
        "Returns the type of a key's value." "`string` or `none`.";
    Ttl "ttl" 2 Read ["readonly" "fast"] (1 1 1) "1.0.0" "generic"
        "Returns the seconds that a key has left." "Reckoned by the clock of the tail.";
    PTtl "pttl" 2 Read ["readonly" "fast"] (1 1 1) "2.6.0" "generic"
        "Returns the milliseconds that a key has left." "Reckoned by the clock of the tail.";
    ExpireTime "expiretime" 2 Read ["readonly" "fast"] (1 1 1) "7.0.0" "generic"
        "Returns when a key expires, in seconds since 1970." "";
    PExpireTime "pexpiretime" 2 Read ["readonly" "fast"] (1 1 1) "7.0.0" "generic"
        "Returns when a key expires, in milliseconds since 1970." "";
    Expire "expire" -3 ReadWrite ["write" "fast"] (1 1 1) "1.0.0" "generic"
        "Sets the expiry of a key, in seconds from now." "Options NX, XX, GT and LT. Writes the value anew.";
    PExpire "pexpire" -3 ReadWrite ["write" "fast"] (1 1 1) "2.6.0" "generic"
        "Sets the expiry of a key, in milliseconds from now." "Options NX, XX, GT and LT. Writes the value anew.";
    ExpireAt "expireat" -3 ReadWrite ["write" "fast"] (1 1 1) "1.2.0" "generic"
        "Sets the expiry of a key, in seconds since 1970." "Options NX, XX, GT and LT. Writes the value anew.";
    PExpireAt "pexpireat" -3 ReadWrite ["write" "fast"] (1 1 1) "2.6.0" "generic"
        "Sets the expiry of a key, in milliseconds since 1970." "Options NX, XX, GT and LT. Writes the value anew.";
    Persist "persist" 2 ReadWrite ["write" "fast"] (1 1 1) "2.2.0" "generic"
        "Removes the expiry of a key." "Writes the value anew.";
    Scan "scan" -2 Read ["readonly"] (0 0 0) "2.8.0" "generic"
        "Walks over the keys."
        "In key order. COUNT is at most 65,536. A call passes 16,384 entries at most, what was deleted among them: its reply may have fewer keys than COUNT, or none, and a cursor to go on with. A node remembers the last 4,096 cursors, or those of the last 16 MiB of keys, of each walk the last three; an older one, or one of another node, is refused and the walk starts again.";
    Dump "dump" 2 Read ["readonly"] (1 1 1) "2.6.0" "generic"
        "Returns a value in the bytes of RDB files." "In version 10, that of Redis 7.0. Never compressed.";
    Restore "restore" -4 ReadWrite ["write" "denyoom"] (1 1 1) "2.6.0" "generic"
        "Sets a key to a value that DUMP returned."
        "Strings of versions up to 12, that of Redis 7.4. REPLACE, ABSTTL; IDLETIME and FREQ are checked and not kept.";
    RandomKey "randomkey" 1 Read ["readonly"] (0 0 0) "1.0.0" "generic"
        "Returns a key by chance."
        "Chosen byte by byte where keys part: equally often where they are numbers or random digits of one length, more often a key with few neighbours. Two seeks for each byte, at most 24. Null only when there is no key.";
    Object "object" -2 Read ["readonly"] (2 2 1) "2.2.3" "generic"
        "What is known of a value beside it."
        "ENCODING: how Redis would keep the value had it been set as a whole (after APPEND and its kin Redis says `raw`). REFCOUNT: 1. FREQ and IDLETIME: an error, as nothing is evicted and no access is noted. HELP.";
    Keys "keys" 2 Read ["readonly"] (0 0 0) "1.0.0" "generic"
        "Returns the keys that match a pattern."
        "In key order, page by page (not one state). Over 1,048,576 keys or 64 MiB it is refused: use SCAN.";
    Range "range" -3 Read ["readonly"] (0 0 0) "" "generic"
        "Returns keys and values in key order, from `start` (included) to `end` (excluded), or the other way round."
        "Gabion's own: `RANGE start end [LIMIT n] [VALUES|KEYS] [REV]`. `-` and `+` are the open \
         ends. RESP2: a flat list; RESP3: a list of pairs; with KEYS a list of keys, for which no \
         large value is read. Without LIMIT all, up to 1,048,576 keys and 64 MiB; past that it is \
         refused. To go on, use the last key with a zero byte appended as `start`. REV: the same \
         keys in descending order, with LIMIT the last n of them; to go on, use the last key of \
         the reply as `end`.";
    Wait "wait" 3 Local ["blocking"] (0 0 0) "3.0.0" "generic"
        "Waits until replicas hold the connection's writes."
        "An acknowledged write is held by every full replica, so the number is theirs less \
         one. More than there are is waited for, up to the timeout: a member may be filled \
         meanwhile. 0 while the last write before it was answered `UNKNOWN`, until a later \
         one of the connection is acknowledged. Inside MULTI: 0 without a command on data.";
    WaitAof "waitaof" 4 Local ["blocking"] (0 0 0) "7.2.0" "generic"
        "Waits until the connection's writes are on the devices of replicas."
        "With `--ack durable`: 1, and the number of the full replicas less one. Else who has \
         the log of the connection's last write on the device: this replica and others, which \
         the head counts one by one and any other node once all have it. At the head it has \
         all flush their logs, elsewhere that is waited for; a replica that is no member \
         refuses. It waits as WAIT does. Inside MULTI at once: two zeros without `--ack \
         durable`. In doubt as WAIT.";
    Move "move" 3 Local ["write" "fast"] (1 1 1) "1.0.0" "generic"
        "Moves a key to another database." "There is one, number 0: always an error.";


    Multi "multi" 1 Local ["noscript" "loading" "stale" "fast"] (0 0 0) "1.2.0" "transactions"
        "Begins a transaction." "";
    Exec "exec" 1 Local ["noscript" "loading" "stale" "skip_slowlog"] (0 0 0) "1.2.0" "transactions"
        "Runs the queued commands as one."
        "The writes are one log record: at most 65,536 commands, 65,536 keys and 16 MiB less 64 KiB. \
         The replies together are at most 64 MiB; past that nothing is written.";
    Discard "discard" 1 Local ["noscript" "loading" "stale" "fast"] (0 0 0) "2.0.0" "transactions"
        "Drops the queued commands." "";
    Watch "watch" -2 Local ["noscript" "loading" "stale" "fast" "no_multi"] (1 -1 1) "2.2.0" "transactions"
        "Makes EXEC depend on keys being unchanged."
        "Noted at the head. A connection watches at most 4,096 keys and 1 MiB of them, all connections at most 65,536 keys and 16 MiB: \
         beyond that the oldest count as changed. After a change of the head all do, as after a WATCH that was answered with an error. \
         WATCH is refused (`TRYAGAIN`) where the keys of all connections of its node would take over 64 MiB of memory. \
         Where EXEC answers nil, queued commands that touch no data (CLIENT, CONFIG) have run all the same.";
    Unwatch "unwatch" 1 Local ["noscript" "loading" "stale" "fast"] (0 0 0) "2.2.0" "transactions"
        "Forgets watched keys." "";

    Eval "eval" -3 ReadWrite ["noscript" "stale" "skip_monitor" "no_mandatory_keys" "movablekeys"] (0 0 0) "2.6.0" "scripting"
        "Runs a script in Lua." "See below.";
    Eval "eval_ro" -3 ReadWrite ["noscript" "stale" "skip_monitor" "no_mandatory_keys" "readonly" "movablekeys"] (0 0 0) "7.0.0" "scripting"
        "Runs a script that writes nothing." "At the head, as EVAL.";
    EvalSha "evalsha" -3 ReadWrite ["noscript" "stale" "skip_monitor" "no_mandatory_keys" "movablekeys"] (0 0 0) "2.6.0" "scripting"
        "Runs a script by its SHA-1." "One that was sent to the node that is asked, see below.";
    EvalSha "evalsha_ro" -3 ReadWrite ["noscript" "stale" "skip_monitor" "no_mandatory_keys" "readonly" "movablekeys"] (0 0 0) "7.0.0" "scripting"
        "Runs a script that writes nothing by its SHA-1." "As EVALSHA.";
    Script "script" -2 Local [] (0 0 0) "2.6.0" "scripting"
        "Keeps scripts for EVALSHA."
        "EXISTS, FLUSH, KILL, LOAD, HELP, of the node that is asked. KILL finds no script: none runs for longer than its limit.";

    Ping "ping" -1 Local ["fast"] (0 0 0) "1.0.0" "connection"
        "Returns PONG, or its argument." "";
    Echo "echo" 2 Local ["fast"] (0 0 0) "1.0.0" "connection"
        "Returns its argument." "";
    Hello "hello" -1 Local ["noscript" "loading" "stale" "fast" "no_auth" "no_multi"] (0 0 0) "6.0.0" "connection"
        "Chooses the version of the protocol."
        "Not inside MULTI. AUTH as below. Roles: see below.";
    Auth "auth" -2 Local ["noscript" "loading" "stale" "fast" "no_auth"] (0 0 0) "1.0.0" "connection"
        "Authenticates the connection."
        "`AUTH [user] password`, see `security.md`. While no password is set the user `default` is \
         let in with any, and a password without a user is refused, as in Redis.";
    Client "client" -2 Local ["noscript" "loading" "stale"] (0 0 0) "2.4.0" "connection"
        "What is known of this and other connections."
        "All but PAUSE (clients of other nodes would go on), TRACKING ON and CACHING. KILL and LIST are about this node's connections. Names are at most 1,024 bytes.";
    ClusterMode "asking" 1 Local ["fast"] (0 0 0) "3.0.0" "connection"
        "Is for clusters."
        "With several groups `OK`, and nothing changes. With one: cluster support is disabled.";
    ClusterMode "readonly" 1 Local ["loading" "stale" "fast"] (0 0 0) "3.0.0" "connection"
        "Is for clusters."
        "As ASKING. Every node takes reads and writes, and reads are never stale.";
    ClusterMode "readwrite" 1 Local ["loading" "stale" "fast"] (0 0 0) "3.0.0" "connection"
        "Is for clusters." "As ASKING.";
    Select "select" 2 Local ["loading" "stale" "fast"] (0 0 0) "1.0.0" "connection"
        "Chooses a database." "There is one, number 0.";
    Reset "reset" 1 Local ["noscript" "loading" "stale" "fast" "no_auth"] (0 0 0) "6.2.0" "connection"
        "Brings the connection back to its beginning." "";
    Quit "quit" -1 Local ["noscript" "loading" "stale" "fast" "no_auth"] (0 0 0) "1.0.0" "connection"
        "Closes the connection." "";

    DbSize "dbsize" 1 Read ["readonly" "fast"] (0 0 0) "1.0.0" "server"
        "Returns the number of keys." "Exact, by walking over every key: O(n).";
    Memory "memory" -2 Read ["readonly"] (2 2 1) "4.0.0" "server"
        "Estimates the memory that a key takes."
        "USAGE key [SAMPLES n]: the bytes of key and value and 60 of bookkeeping, which is what they take of a MemTable until it is flushed; then they lie in files, in whole or in part in the block cache. HELP.";
    FlushAll "flushall" -1 Write ["write"] (0 0 0) "1.0.0" "server"
        "Deletes every key." "ASYNC and SYNC are the same: one entry of the log, in constant time, and reads are none the slower for it.";
    FlushAll "flushdb" -1 Write ["write"] (0 0 0) "1.0.0" "server"
        "Deletes every key." "The same as FLUSHALL.";
    Info "info" -1 Local ["loading" "stale"] (0 0 0) "1.0.0" "server"
        "Returns numbers about the node."
        "Sections server, clients, memory, persistence, stats, replication, cpu, modules, commandstats, errorstats, cluster, keyspace and gabion. The numbers of keyspace are an estimate, and roles have their names: see below.";
    Config "config" -2 Local ["admin" "noscript" "loading" "stale"] (0 0 0) "2.0.0" "server"
        "Returns and changes options." "GET, SET, RESETSTAT, HELP. SET changes those of this replica's process until it ends, see below; the others are given to `gabion up`, most of them when the data is made.";
    Gabion "gabion" -2 Local ["admin" "no_multi" "loading" "stale"] (0 0 0) "" "server"
        "Answers operators about this replica, as JSON."
        "Gabion's own: GABION STATUS, FILES, SCRUB [number...], DIGEST [position], BACKUP … or TIME [ADOPT]; see below.";
    Command "command" -1 Local ["loading" "stale"] (0 0 0) "2.8.13" "server"
        "Describes commands."
        "COUNT, INFO, DOCS (without arguments), LIST, GETKEYS, GETKEYSANDFLAGS, HELP. Tips are \
         those on groups of a cluster.";
    Role "role" 1 Local ["noscript" "loading" "stale" "fast"] (0 0 0) "2.8.12" "server"
        "Returns what the node is in its group." "Positions are those of the log. Roles: see below.";
    Slowlog "slowlog" -2 Local [] (0 0 0) "2.2.12" "server"
        "Returns the commands that took long." "GET, LEN, RESET, HELP; see below.";
    Acl "acl" -2 Local [] (0 0 0) "6.0.0" "server"
        "Describes and changes users."
        "CAT, DELUSER, DRYRUN, GENPASS, GETUSER, LIST, LOAD, LOG, SAVE, SETUSER, USERS, WHOAMI, \
         HELP: Redis 7's rules, see `security.md`. LOAD and SAVE take `--aclfile`.";
    Cluster "cluster" -2 Local [] (0 0 0) "3.0.0" "server"
        "Describes the cluster of several groups."
        "SLOTS, SHARDS, NODES, INFO, MYID, MYSHARDID, KEYSLOT, LINKS, HELP, see below; others are \
         refused. With one group in Redis's words: cluster support is disabled.";
    Latency "latency" -2 Local [] (0 0 0) "2.8.13" "server"
        "Describes latencies." "DOCTOR, HISTORY, LATEST, RESET, HELP. There are no samples: SLOWLOG and INFO commandstats have times.";
    Module "module" -2 Local [] (0 0 0) "4.0.0" "server"
        "Describes modules." "LIST, HELP. There are none, and none can be loaded.";
    LastSave "lastsave" 1 Local ["loading" "stale" "fast"] (0 0 0) "1.0.0" "server"
        "Returns when the data was saved." "When the node's process began: a write is in the log before it is acknowledged, so nothing is saved apart.";
    ReplicaOf "replicaof" 3 Local ["admin" "noscript" "stale"] (0 0 0) "5.0.0" "server"
        "Makes a node a replica of another." "`NO ONE` is taken by the head, which is one already. Anything else is refused: who is in a group is chosen when the data is made.";
    ReplicaOf "slaveof" 3 Local ["admin" "noscript" "stale"] (0 0 0) "1.0.0" "server"
        "Makes a node a replica of another." "The same as REPLICAOF.";
    SwapDb "swapdb" 3 Local ["write" "fast"] (0 0 0) "4.0.0" "server"
        "Swaps two databases." "There is one, number 0, which can be swapped with itself.";
    Refused "bgrewriteaof" 1 Local ["admin" "noscript"] (0 0 0) "1.0.0" "server"
        "Rewrites the file of commands." "Refused: compactions rewrite by themselves.";
    Refused "bgsave" -1 Local ["admin" "noscript"] (0 0 0) "1.0.0" "server"
        "Saves the data in the background." "Refused: acknowledged writes are in the log of every replica.";
    Refused "debug" -2 Local ["admin" "noscript" "loading" "stale"] (0 0 0) "1.0.0" "server"
        "Is for tests of Redis." "Refused, as Redis does by default.";
    Refused "save" 1 Local ["admin" "noscript" "no_multi"] (0 0 0) "1.0.0" "server"
        "Saves the data." "Refused: acknowledged writes are in the log of every replica.";
    Refused "shutdown" -1 Local ["admin" "noscript" "loading" "stale" "no_multi"] (0 0 0) "1.0.0" "server"
        "Ends the node." "Refused: `gabion up` starts it again. SIGTERM to `gabion up` ends all replicas cleanly.";
    Time "time" 1 Local ["loading" "stale" "fast"] (0 0 0) "2.6.0" "server"
        "Returns the time of the node."
        "The system's clock. What expires goes by another one where the two were set apart: see `GABION TIME`.";

    Failover "failover" -1 Local ["admin" "noscript" "stale" "no_multi"] (0 0 0) "6.2.0" "server"
        "Makes a replica the master."
        "`[TO host port [FORCE]] [TIMEOUT ms]`: the controller has that full member take \
         writes, or the next one, as `gabion failover` does. `OK` once it is decided, the \
         controller's reason where it refuses, an error where none is connected. A decided \
         fail-over is carried out at once, so ABORT finds none, and TIMEOUT and FORCE change \
         nothing.";
    Function "function" -2 Local [] (0 0 0) "7.0.0" "scripting"
        "Describes libraries of functions."
        "DELETE, DUMP, FLUSH, KILL, LIST, RESTORE, STATS, HELP, of no libraries; LOAD is refused.";
    Fcall "fcall" -3 Local ["noscript" "stale" "skip_monitor" "no_mandatory_keys" "movablekeys"] (0 0 0) "7.0.0" "scripting"
        "Calls a function." "There are none: `ERR Function not found`.";
    Fcall "fcall_ro" -3 Local ["noscript" "stale" "skip_monitor" "no_mandatory_keys" "readonly" "movablekeys"] (0 0 0) "7.0.0" "scripting"
        "Calls a function that writes nothing." "The same as FCALL.";
}

/// Slots of the index; a power of two, at most a quarter full.
const INDEX_LEN: usize = 1024;
/// Longest name.
const NAME_LEN_MAX: usize = 16;

const _: () = assert!(TABLE_LEN * 4 <= INDEX_LEN, "grow the index with the table");
const _: () = assert!(TABLE_LEN < 256, "a slot of the index is a byte");
const TABLE_LEN: usize = TABLE.len();

/// Open addressing over the names; a slot holds the row's number plus one.
static INDEX: [u8; INDEX_LEN] = build_index();

const fn build_index() -> [u8; INDEX_LEN] {
    let mut index = [0_u8; INDEX_LEN];
    let mut row = 0;
    while row < TABLE_LEN {
        let mut slot = hash(TABLE[row].name.as_bytes());
        while index[slot] != 0 {
            slot = (slot + 1) % INDEX_LEN;
        }
        index[slot] = row as u8 + 1;
        row += 1;
    }
    index
}

/// FNV-1a with the case bit cleared.
#[inline]
const fn hash(name: &[u8]) -> usize {
    let mut hash = 0x811c_9dc5_u32;
    let mut at = 0;
    while at < name.len() {
        hash = (hash ^ (name[at] & 0xdf) as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    ((hash ^ (hash >> 16)) as usize) % INDEX_LEN
}

/// The row of the command of this name, in any case.
#[inline]
#[must_use]
pub fn lookup(name: &[u8]) -> Option<&'static Spec> {
    row_of(name).map(|row| &TABLE[row])
}

/// The number of the row of the command of this name.
#[inline]
#[must_use]
pub(crate) fn row_of(name: &[u8]) -> Option<usize> {
    if name.len() > NAME_LEN_MAX {
        return None;
    }
    let mut slot = hash(name);
    loop {
        let row = usize::from(INDEX[slot]).checked_sub(1)?;
        if TABLE[row].name.as_bytes().eq_ignore_ascii_case(name) {
            return Some(row);
        }
        slot = (slot + 1) % INDEX_LEN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_in_any_case_and_nothing_else_is() {
        for spec in TABLE {
            assert!(spec.name.len() <= NAME_LEN_MAX);
            assert_eq!(spec.name, spec.name.to_ascii_lowercase());
            for name in [spec.name.to_string(), spec.name.to_ascii_uppercase()] {
                assert!(core::ptr::eq(lookup(name.as_bytes()).unwrap(), spec), "{name}");
            }
        }
        for name in ["", "ge", "gett", "no-such", "a-name-longer-than-any-command"] {
            assert!(lookup(name.as_bytes()).is_none());
        }
    }

    #[test]
    fn keys_are_found_where_the_table_says() {
        let args = |words: &str| -> Vec<Bytes> {
            words.split(' ').map(|word| Bytes::from(word.to_string())).collect()
        };
        for (words, expected) in [
            ("get a", "a"),
            ("mset a 1 b 2", "a b"),
            ("del a b c", "a b c"),
            ("set a 1 nx", "a"),
            ("ping", ""),
            ("scan 0", ""),
            ("mset a 1 b", "a b"),
        ] {
            let args = args(words);
            let keys: Vec<&[u8]> =
                lookup(&args[0]).unwrap().keys_of(&args).map(|key| &key[..]).collect();
            assert_eq!(keys.join(&b' '), expected.as_bytes(), "{words}");
            let spec = lookup(&args[0]).unwrap();
            let named = (0..args.len()).filter(|&index| spec.is_key(index, args.len()));
            assert!(named.map(|index| &args[index][..]).eq(keys), "{words}");
        }
    }

    #[test]
    fn what_writes_is_flagged_so() {
        // One that is answered where it came writes nothing, whatever it would do in Redis. What a script does is not
        // known before.
        let known = |spec: &&Spec| spec.route != Route::Local && spec.group != "scripting";
        for spec in TABLE.iter().filter(known) {
            let writes = matches!(spec.route, Route::Write | Route::ReadWrite);
            assert_eq!(spec.has_flag("write"), writes, "{}", spec.name);
            assert_eq!(spec.has_flag("readonly"), spec.route == Route::Read, "{}", spec.name);
        }
    }
}
