//! SLOWLOG: the commands that took long at this node, and how the time is taken.
//!
//! The clock is read once a command: where one ends, the next one of the same batch begins. A batch begins with a
//! reading of its own ([`Commands::begin_batch`]), so what the loop does between batches counts for no command.

use super::session::Client;
use super::table::Id;
use super::work::{Call, Work};
use super::{Commands, Host, errors};
use bytes::Bytes;
use core::cell::{Cell, RefCell};
use gabion_base::number::parse_i64;
use gabion_resp::Reply;
use std::collections::VecDeque;

/// Most words of a command that an entry keeps, and most bytes of each, as in Redis.
const WORDS_MAX: usize = 32;
const WORD_LEN_MAX: usize = 128;
/// Entries that GET returns when it is not told how many.
const GET_DEFAULT: usize = 10;
/// Most entries that may be kept: 80 MiB, when all have as many words of as many bytes as an entry keeps.
pub(crate) const ENTRIES_MAX: usize = 16_384;

/// Which commands are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowlogLimits {
    /// Those that took more than so many microseconds; with a negative number none.
    pub slower_than_us: i64,
    /// The newest so many.
    pub entries_max: usize,
}

impl Default for SlowlogLimits {
    /// Redis's.
    fn default() -> Self {
        Self { slower_than_us: 10_000, entries_max: 128 }
    }
}

struct Entry {
    id: u64,
    unix_s: u64,
    took_us: u64,
    words: Vec<Bytes>,
    address: String,
    name: Bytes,
}

/// The newest entries, newest first.
#[derive(Default)]
pub(crate) struct Slowlog {
    entries: RefCell<VecDeque<Entry>>,
    next_id: Cell<u64>,
}

impl Commands {
    /// What was done until now counts for no command.
    #[inline]
    pub(crate) fn begin_batch(&self, host: &impl Host) {
        self.lap_ns.set(host.clock_ns());
    }

    /// When the next command of the batch begins, by [`Host::clock_ns`].
    #[inline]
    pub(crate) fn next_begins_ns(&self) -> u64 {
        self.lap_ns.get()
    }

    /// Work of another connection, or of nobody who is known here (`asker`), that began at `begun_ns` has ended now.
    #[inline]
    pub(crate) fn note_work(
        &self,
        work: &Work,
        begun_ns: u64,
        asker: impl FnOnce() -> Asker,
        host: &impl Host,
    ) {
        let counters = match work {
            Work::Call(call) => call.counters(),
            Work::Transaction(_) => self.exec_counters,
            Work::Watch(_) => self.watch_counters,
        };
        if let Some(took_us) = self.note_time(counters, begun_ns, host) {
            let words = words_of_work(work);
            self.slowlog.push(took_us, words, asker(), host);
        }
    }

    /// A command that was answered at once, which began where the one before it ended.
    #[inline]
    pub(crate) fn note_answer(&self, client: &Client, call: &Call, host: &impl Host) {
        if let Some(took_us) = self.note_time(call.counters(), self.lap_ns.get(), host) {
            let words = words_of(call);
            self.slowlog.push(took_us, words, Asker::of(client), host);
        }
    }

    /// Counts the time since `begun_ns`; returns it in microseconds when it is long enough for an entry.
    #[inline]
    fn note_time(&self, counters: usize, begun_ns: u64, host: &impl Host) -> Option<u64> {
        let now_ns = host.clock_ns();
        self.lap_ns.set(now_ns);
        let took_ns = now_ns.saturating_sub(begun_ns);
        self.stats.count_time(counters, took_ns);
        let slower_than_us = u64::try_from(host.slowlog().slower_than_us).ok()?;
        // As Redis, which keeps all with 0.
        (took_ns >= slower_than_us.saturating_mul(1000)).then_some(took_ns / 1000)
    }

    /// The connection with this number, as an entry names it.
    pub(crate) fn asker(&self, client_id: u64) -> Asker {
        self.clients
            .borrow()
            .get(&client_id)
            .map_or_else(Asker::default, |client| Asker::of(client))
    }

    pub(crate) fn slowlog(&self, args: &[Bytes]) -> Reply {
        let entries = &self.slowlog.entries;
        match (&args[1].to_ascii_lowercase()[..], &args[2..]) {
            (b"get", []) => self.slowlog.get(GET_DEFAULT),
            (b"get", [count]) => match parse_i64(count) {
                Some(-1) => self.slowlog.get(usize::MAX),
                Some(count @ 0..) => self.slowlog.get(count as usize),
                _ => Reply::error("ERR count should be greater than or equal to -1"),
            },
            (b"len", []) => Reply::Integer(entries.borrow().len() as i64),
            (b"reset", []) => {
                entries.take();
                Reply::OK
            }
            _ => errors::subcommand_syntax("slowlog", &args[1]),
        }
    }
}

/// Who asked for a command.
#[derive(Default)]
pub(crate) struct Asker {
    pub(crate) address: String,
    pub(crate) name: Bytes,
}

impl Asker {
    /// Another member of the group, whose client is known there alone.
    pub(crate) fn member(replica: u32) -> Self {
        Self { address: format!("replica {replica}"), name: Bytes::new() }
    }

    fn of(client: &Client) -> Self {
        Self { address: client.address.clone(), name: client.name.borrow().clone() }
    }
}

impl Slowlog {
    fn push(&self, took_us: u64, words: Vec<Bytes>, asker: Asker, host: &impl Host) {
        let most = host.slowlog().entries_max;
        let id = self.next_id.replace(self.next_id.get() + 1);
        let Asker { address, name } = asker;
        let unix_s = host.unix_time_us() / 1_000_000;
        let mut entries = self.entries.borrow_mut();
        entries.push_front(Entry { id, unix_s, took_us, words, address, name });
        entries.truncate(most);
    }

    fn get(&self, most: usize) -> Reply {
        let entries = self.entries.borrow();
        let shown = |entry: &Entry| {
            Reply::Array(vec![
                Reply::Integer(entry.id as i64),
                Reply::Integer(entry.unix_s as i64),
                Reply::Integer(entry.took_us as i64),
                Reply::Array(entry.words.iter().cloned().map(Reply::Bulk).collect()),
                Reply::Bulk(Bytes::from(entry.address.clone())),
                Reply::Bulk(entry.name.clone()),
            ])
        };
        Reply::Array(entries.iter().take(most).map(shown).collect())
    }
}

pub(super) fn words_of(call: &Call) -> Vec<Bytes> {
    trimmed(call.args().len(), redacted(call))
}

/// Of a transaction: EXEC, then the words of its commands.
fn words_of_work(work: &Work) -> Vec<Bytes> {
    match work {
        Work::Call(call) => words_of(call),
        Work::Watch(watch) => {
            let words = watch.keys.iter().cloned();
            let words = core::iter::once(Bytes::from_static(b"WATCH")).chain(words);
            trimmed(1 + watch.keys.len(), words)
        }
        Work::Transaction(transaction) => {
            let count = 1 + transaction.calls().iter().map(|call| call.args().len()).sum::<usize>();
            let words = transaction.calls().iter().flat_map(redacted);
            trimmed(count, core::iter::once(Bytes::from_static(b"EXEC")).chain(words))
        }
    }
}

/// The words of a call, without passwords.
fn redacted(call: &Call) -> impl Iterator<Item = Bytes> {
    let args = call.args();
    let is =
        |at: usize, word: &[u8]| args.get(at).is_some_and(|arg| arg.eq_ignore_ascii_case(word));
    let place = |word: &[u8]| (0..args.len()).find(|&at| is(at, word)).unwrap_or(args.len());
    let secret = match call.spec().id {
        Id::Auth => 1..3,
        Id::Hello => place(b"auth") + 1..place(b"auth") + 3,
        Id::Acl if is(1, b"setuser") => 3..args.len(),
        // Everything that stands beside a password.
        Id::Config if is(1, b"set") && place(b"requirepass") < args.len() => 2..args.len(),
        _ => 0..0,
    };
    let is_secret = move |at: usize| secret.contains(&at);
    let word = move |(at, arg): (usize, &Bytes)| {
        if is_secret(at) { Bytes::from_static(b"(redacted)") } else { arg.clone() }
    };
    args.iter().enumerate().map(word)
}

/// What an entry keeps of `count` words, in memory of its own: a view would keep a whole read buffer.
fn trimmed(count: usize, words: impl Iterator<Item = Bytes>) -> Vec<Bytes> {
    let kept = if count > WORDS_MAX { WORDS_MAX - 1 } else { count };
    let short = |word: Bytes| match word.get(..WORD_LEN_MAX) {
        Some(start) if word.len() > WORD_LEN_MAX => {
            let more = format!("... ({} more bytes)", word.len() - WORD_LEN_MAX);
            Bytes::from([start, more.as_bytes()].concat())
        }
        _ => Bytes::copy_from_slice(&word),
    };
    let mut trimmed: Vec<Bytes> = words.take(kept).map(short).collect();
    if kept < count {
        trimmed.push(Bytes::from(format!("... ({} more arguments)", count - kept)));
    }
    trimmed
}
