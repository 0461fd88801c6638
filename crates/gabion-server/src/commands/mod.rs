//! What a Redis client may ask of a node: the commands, from a request's words to its reply.
//!
//! ```text
//!   Request ─► Commands::handle(session) ─┬─► Step::Reply     PING, CLIENT, QUEUED, errors …
//!                                         ├─► Step::Close     QUIT
//!                                         ├─► Step::Drop      HTTP
//!                                         └─► Step::Run(Work) data: at this node, the head or the
//!                                                  │          tail, as Work::route says
//!              Commands::execute(store, work) ◄────┘
//!                 KeyLocks ─► strings, bits, expiry, keyspace … ─► Store (the newest state; the turn's record)
//! ```
//!
//! - [`table`]: every command, its route and its keys; `subcommands` of some. - [`session`]: a connection's state.
//! - [`work`]: what is run where the data is. - [`execute`]: running it. - [`store`]: on what.
//! - What touches no data: `local`, and by command `clients`, `config`, `info`, `describe` (COMMAND), `slowlog`, `acl`,
//!   `absent`.
//! - [`locks`]: atomic reads-and-writes at the head; `watch`: what EXEC depends on; `scripts`: EVAL. - [`cursors`]: SCAN.
//!
//! Everything runs on the loop's thread. Time, numbers and options come from the [`Host`].

mod absent;
mod acl;
mod bitfield;
mod bits;
mod clients;
mod cluster;
mod config;
pub mod cursors;
mod describe;
mod dump;
pub(crate) mod errors;
pub mod execute;
mod expiry;
pub(crate) mod gather;
mod info;
mod key_specs;
pub mod keyspace;
mod lcs;
mod local;
pub mod locks;
mod long_double;
mod object;
mod overlay;
mod random;
mod renames;
mod scripts;
pub mod session;
pub mod slots;
mod slowlog;
mod stats;
pub mod store;
mod strings;
pub mod subcommands;
pub mod table;
mod timed;
pub(crate) mod watch;
pub mod work;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use acl::rules::Rights;
pub(crate) use acl::users::Users;
pub use cluster::{GroupShown, NodeShown};
pub use info::{MemberInfo, ServerInfo};
pub use locks::KeyLocks;
pub(crate) use session::held_by_nobody;
pub use session::{Session, Step, WaitFor};
pub use slots::Spread;
pub(crate) use slowlog::Asker;
pub(crate) use slowlog::ENTRIES_MAX as SLOWLOG_ENTRIES_MAX;
pub use slowlog::SlowlogLimits;
pub(crate) use store::PageBuilder;
pub use store::{Op, Order, Page, PageQuery, Store};
pub use table::{Route, Spec, TABLE};
pub use work::{Call, Transaction, Work};

use bytes::Bytes;
use clients::Killed;
use core::cell::{Cell, RefCell};
use cursors::CursorTable;
use gabion_resp::Reply;
use random::Dice;
use scripts::Scripts;
use session::Client;
use slots::Slots;
use slowlog::Slowlog;
use stats::Stats;
use std::collections::BTreeMap;
use std::rc::Rc;
use watch::{WatchId, Watches};

/// The version of Redis that the node says it is, where clients ask: the one whose replies it
/// follows.
pub const REDIS_VERSION: &str = "7.4.0";

/// What commands must know of the process around them.
pub trait Host {
    /// Microseconds since 1970, by the clock that the node goes by. May be the time of the current turn; asked once per
    /// request.
    fn unix_time_us(&self) -> u64;
    /// What the system's clock shows, in microseconds since 1970.
    fn system_time_us(&self) -> u64;
    /// Replicas that hold an acknowledged write, this node included.
    fn replicas(&self) -> u32;
    /// Whether this node is the head of its group: `master` in Redis's terms.
    fn is_head(&self) -> bool;
    /// Whether an acknowledged write is on the devices of all of those.
    fn acknowledges_durable(&self) -> bool;
    /// Nanoseconds by a clock that never goes back, read now; asked once per command.
    fn clock_ns(&self) -> u64;
    /// Which commands SLOWLOG keeps.
    fn slowlog(&self) -> SlowlogLimits;
    /// The options that CONFIG GET shows: names in lower case, and values.
    fn options(&self) -> Vec<(String, String)>;
    /// Changes options, names and values as the client wrote them: all or none.
    ///
    /// # Errors
    /// The first name that cannot be, or else the first value, and why.
    fn set_options(&self, options: &[(Bytes, Bytes)]) -> Result<(), NotSet>;
    /// The numbers that INFO shows.
    fn info(&self) -> ServerInfo;
    /// The groups of the cluster, in the order of their slots, and this node's number in them.
    /// None where there is one group.
    fn cluster(&self) -> Option<(Vec<GroupShown>, u32)> {
        None
    }
}

/// Why CONFIG SET has changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotSet {
    /// There is no option of this name.
    Unknown(Bytes),
    /// The option cannot be set so.
    Refused {
        /// Its name, as it was written.
        name: Bytes,
        /// Why, in Redis's words.
        why: &'static str,
    },
}

/// What the connections of a node share.
pub struct Commands {
    /// Locks of keys; used at the head.
    pub locks: KeyLocks,
    /// The slots of this group, where there are several.
    spread: Option<Spread>,
    cursors: RefCell<CursorTable>,
    dice: Dice,
    scripts: Scripts,
    /// Keys that EXEC depends on; used at the head.
    watches: Watches,
    /// The number of this start of this node, and the next of what connections watch.
    watch_ids: (u64, Cell<u64>),
    /// What the keys take that connections of this node watch, in bytes.
    watched_memory: Rc<Cell<usize>>,
    /// Held by the LCS that goes on.
    lcs: KeyLocks,
    stats: Stats,
    slowlog: Slowlog,
    /// When the last command that was timed ended.
    lap_ns: Cell<u64>,
    /// Where the time of transactions is counted, and that of WATCH.
    exec_counters: usize,
    watch_counters: usize,
    /// The same for all groups of a process.
    pub(crate) users: Rc<Users>,
    /// Users whose connections end, as another group of the process was told.
    revoked: acl::users::Revoked,
    acl_log: acl::log::Log,
    clients: Clients,
    killed: KilledList,
    everywhere: Rc<Everywhere>,
}

/// The connections of a node, by id.
type Clients = Rc<RefCell<BTreeMap<u64, Rc<Client>>>>;
/// Those of them that are to be closed.
type KilledList = Rc<RefCell<Vec<Killed>>>;

/// The connections at the doors of all groups of a process, whose ids are in one order.
pub(crate) struct Everywhere {
    next_id: Cell<u64>,
    groups: RefCell<Vec<(Clients, KilledList)>>,
}

impl Default for Everywhere {
    fn default() -> Self {
        Self { next_id: Cell::new(1), groups: RefCell::default() }
    }
}

impl Commands {
    /// Nothing yet. `seed` tells the cursors of this start of this node and what it watches from all others: a random
    /// number will do.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_scripts(seed, Scripts::new())
    }

    /// The same, with these users, of a group that has these slots. Those of a cluster have
    /// `everywhere` in common.
    pub(crate) fn of_group(
        seed: u64,
        users: Rc<Users>,
        spread: Option<Spread>,
        everywhere: Rc<Everywhere>,
    ) -> Self {
        let commands = Self { users, spread, everywhere, ..Self::new(seed) };
        commands.users.tell(&commands.revoked);
        let own = (commands.clients.clone(), commands.killed.clone());
        commands.everywhere.groups.borrow_mut().push(own);
        commands
    }

    fn with_scripts(seed: u64, scripts: Scripts) -> Self {
        Self {
            locks: KeyLocks::new(),
            spread: None,
            cursors: RefCell::new(CursorTable::new(seed)),
            dice: Dice::new(seed),
            scripts,
            watches: Watches::default(),
            watch_ids: (seed, Cell::new(0)),
            watched_memory: Rc::default(),
            lcs: KeyLocks::new(),
            stats: Stats::default(),
            slowlog: Slowlog::default(),
            lap_ns: Cell::default(),
            exec_counters: table::row_of(b"exec").unwrap_or(0),
            watch_counters: table::row_of(b"watch").unwrap_or(0),
            users: Rc::new(Users::open()),
            revoked: acl::users::Revoked::default(),
            acl_log: acl::log::Log::default(),
            clients: Clients::default(),
            killed: KilledList::default(),
            everywhere: Rc::default(),
        }
    }

    /// Checks that a command of a script stays within this group: it runs here, whatever its keys.
    pub(crate) fn check_slots(&self, call: &Call) -> Result<(), Reply> {
        let Some(spread) = self.spread else { return Ok(()) };
        match Slots::of_call(call) {
            Slots::None => Ok(()),
            Slots::One(slot) if spread.group_of(slot) == spread.own() => Ok(()),
            Slots::One(_) | Slots::Several => Err(errors::NOT_LOCAL),
            Slots::All => Err(errors::ALL_FROM_SCRIPT),
        }
    }

    fn next_watch_id(&self) -> WatchId {
        let (node, next) = &self.watch_ids;
        WatchId { node: *node, number: next.replace(next.get() + 1) }
    }

    /// A turn of the loop begins, in which scripts may run for a while.
    #[inline]
    pub(crate) fn begin_turn(&self) {
        self.scripts.begin_turn();
    }

    /// Connections now.
    #[must_use]
    pub fn clients_count(&self) -> usize {
        self.clients.borrow().len()
    }

    /// Counters by command.
    pub(crate) const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Commands that have been handled.
    #[must_use]
    pub fn calls_count(&self) -> u64 {
        self.stats.calls()
    }
}
