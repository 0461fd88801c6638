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
//! - [`locks`]: atomic reads-and-writes at the head; `watch`: what EXEC depends on. - [`cursors`]: SCAN.
//!
//! Everything runs on the loop's thread. Time, numbers and options come from the [`Host`].

mod bitfield;
mod bits;
pub mod cursors;
mod describe;
mod dump;
pub(crate) mod errors;
pub mod execute;
mod expiry;
mod info;
pub mod keyspace;
mod lcs;
mod local;
pub mod locks;
mod long_double;
mod object;
mod overlay;
mod random;
mod renames;
pub mod session;
pub mod store;
mod strings;
mod subcommands;
pub mod table;
mod timed;
pub(crate) mod watch;
pub mod work;

#[cfg(test)]
pub(crate) mod tests;

pub use info::{MemberInfo, ServerInfo};
pub use locks::KeyLocks;
pub use session::{Session, Step};
pub(crate) use store::PageBuilder;
pub use store::{Op, Order, Page, Store};
pub use table::{Route, Spec, TABLE};
pub use work::{Call, Transaction, Work};

use bytes::Bytes;
use core::cell::{Cell, RefCell};
use cursors::CursorTable;
use random::Dice;
use session::Client;
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
    /// The options that CONFIG GET shows: names in lower case, and values.
    fn options(&self) -> Vec<(String, String)>;
    /// Changes options, names and values as the client wrote them: all or none.
    ///
    /// # Errors
    /// The first name that cannot be, or else the first value, and why.
    fn set_options(&self, options: &[(Bytes, Bytes)]) -> Result<(), NotSet>;
    /// The numbers that INFO shows.
    fn info(&self) -> ServerInfo;
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
    cursors: RefCell<CursorTable>,
    dice: Dice,
    /// Keys that EXEC depends on; used at the head.
    watches: Watches,
    /// The number of this start of this node, and the next of what connections watch.
    watch_ids: (u64, Cell<u64>),
    /// Held by the LCS that goes on.
    lcs: KeyLocks,
    stats: Stats,
    clients: Clients,
    next_client_id: Cell<u64>,
}

/// The connections of a node, by id.
type Clients = Rc<RefCell<BTreeMap<u64, Rc<Client>>>>;

impl Commands {
    /// Nothing yet. `seed` tells the cursors of this start of this node and what it watches from all others: a random
    /// number will do.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            locks: KeyLocks::new(),
            cursors: RefCell::new(CursorTable::new(seed)),
            dice: Dice::new(seed),
            watches: Watches::default(),
            watch_ids: (seed, Cell::new(0)),
            lcs: KeyLocks::new(),
            stats: Stats::default(),
            clients: Clients::default(),
            next_client_id: Cell::new(1),
        }
    }

    fn next_watch_id(&self) -> WatchId {
        let (node, next) = &self.watch_ids;
        WatchId { node: *node, number: next.replace(next.get() + 1) }
    }

    /// Connections now.
    #[must_use]
    pub fn clients_count(&self) -> usize {
        self.clients.borrow().len()
    }

    /// Commands that have been handled.
    #[must_use]
    pub fn calls_count(&self) -> u64 {
        self.stats.rows.iter().map(|row| row.calls.get()).sum()
    }
}

/// Counters of one command.
#[derive(Default)]
struct RowStats {
    calls: Cell<u64>,
    /// Refused before they ran: wrong number of arguments, key too long.
    rejected: Cell<u64>,
    /// Ended with an error.
    failed: Cell<u64>,
}

/// Counters of every command, by its row in the table.
struct Stats {
    rows: Vec<RowStats>,
}

impl Default for Stats {
    fn default() -> Self {
        Self { rows: TABLE.iter().map(|_| RowStats::default()).collect() }
    }
}

impl Stats {
    #[inline]
    fn count_call(&self, row: usize) {
        let calls = &self.rows[row].calls;
        calls.set(calls.get() + 1);
    }

    fn count_rejected(&self, row: usize) {
        let rejected = &self.rows[row].rejected;
        rejected.set(rejected.get() + 1);
    }

    fn count_failed(&self, row: usize) {
        let failed = &self.rows[row].failed;
        failed.set(failed.get() + 1);
    }

    fn reset(&self) {
        for row in &self.rows {
            row.calls.set(0);
            row.rejected.set(0);
            row.failed.set(0);
        }
    }
}
