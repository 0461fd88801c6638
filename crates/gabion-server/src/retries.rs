//! Writes whose answer was lost: each is asked for again under its number, and is made once.
//!
//! ```text
//!   forwarded ──┬─ reply ───────────────────────────────────────► client
//!               ├─ link lost, outcome unknown ─► Retries ─┬─ link with the head ─► forwarded
//!   own door ───┴─ given up with its turn ─────►    ▲     ├─ head here ──────────► judge_again
//!                                                   │     └─ 10 s ───────────────► UNKNOWN
//!   later writes, while any waits ──────────────────┘
//! ```
//!
//! How a head tells what became of one is in docs/replication.md, "Retried writes".

use crate::forward::{Origin, Outcome, WriteId};
use crate::peers::Peer;
use crate::run::{Begun, Ended, Item, LEFT_OUT, TOO_MUCH_WAITS};
use crate::service::Service;
use crate::store::write_gate;
use gabion_base::Frontier;
use gabion_node::{WriteFate, WriteGate};
use gabion_resp::Reply;
use std::collections::{BTreeMap, VecDeque};

/// How long a write is asked for after it came, in ms: a group that can heal takes less.
const ASKED_MAX_MS: u64 = 10_000;
/// Before a head that could not tell is asked again, in ms.
const PAUSE_MS: u64 = 10;
/// Bytes of writes that a door keeps until they are answered.
pub(crate) const KEPT_MAX: usize = 64 << 20;

pub(crate) const WRITE_LOST: Reply = Reply::error(
    "UNKNOWN the connection to the head of the chain was lost: the write may have been made or not",
);
const NOT_TOLD: Reply = Reply::error(
    "UNKNOWN no head has told for 10 s what became of the write: it may have been made or not",
);
const NOT_SENT: Reply = Reply::error(
    "TRYAGAIN writes before this one have waited for 10 s for a head that takes them: it was not \
     run",
);
const LEFT_OUT_AGAIN: Reply = Reply::error(
    "UNKNOWN this replica is no member of its group any more: the write may have been made or not",
);
const REPLY_NOT_KEPT: Reply =
    Reply::error("UNKNOWN the write was made, and its reply was too long to be kept");
const FORGOTTEN: Reply =
    Reply::error("UNKNOWN too many writes were made since: this one may have been made or not");
const STILL_RUNS: Reply = Reply::error("TRYAGAIN the write runs still");

/// Writes that wait to be asked for, in the order in which they came.
#[derive(Default)]
pub(crate) struct Retries {
    items: BTreeMap<u64, Item>,
    bytes: usize,
    not_before_ms: u64,
}

impl Retries {
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    fn push(&mut self, item: Item) {
        self.bytes += item.footprint();
        let before = self.items.insert(item.number, item);
        assert!(before.is_none(), "a write waits once");
    }

    fn take(&mut self) -> BTreeMap<u64, Item> {
        self.bytes = 0;
        std::mem::take(&mut self.items)
    }

    /// Takes out those that came at or before `since_ms`: the first, as numbers ascend with time.
    fn take_late(&mut self, since_ms: u64) -> Vec<Item> {
        let mut late = Vec::new();
        while let Some(first) = self.items.first_entry()
            && first.get().since_ms <= since_ms
        {
            let item = first.remove();
            self.bytes -= item.footprint();
            late.push(item);
        }
        late
    }
}

/// Writes of this node's own clients that it has made as the head, until they are acknowledged, in
/// the order of their turns.
#[derive(Default)]
pub(crate) struct OwnWrites {
    items: VecDeque<(u64, Item)>,
    bytes: usize,
}

impl OwnWrites {
    /// The oldest, if its turn is one up to `last`.
    fn pop(&mut self, last: u64) -> Option<Item> {
        self.items.front().filter(|(turn, _)| *turn <= last)?;
        let (_, item) = self.items.pop_front()?;
        self.bytes -= item.footprint();
        Some(item)
    }

    /// Turns up to `last` are acknowledged.
    pub(crate) fn acknowledge(&mut self, last: u64) {
        while self.pop(last).is_some() {}
    }
}

impl Service {
    // ---- at the door

    /// A write may have been made, and is asked for again.
    pub(crate) fn ask_again(&mut self, mut item: Item) {
        item.is_again = true;
        self.retries.push(item);
    }

    /// The same, after a pause: nobody could tell.
    pub(crate) fn ask_later(&mut self, item: Item) {
        self.retries.not_before_ms = self.now_ms + PAUSE_MS;
        self.ask_again(item);
    }

    /// Whether writes that came before are to be asked for again, or may have to be: they are on
    /// their way to a member that takes none any more, which says so.
    #[inline]
    pub(crate) fn has_writes_before(&self) -> bool {
        !self.retries.is_empty()
            || !self.lost.is_empty()
            || self.forwarded.has_writes_beside(self.writer())
    }

    /// A write that comes while others wait is made after them.
    pub(crate) fn queue_behind_retries(&mut self, item: Item) -> Begun {
        if item.is_again {
            // It was taken in before, and may have been made.
            self.ask_again(item);
            return Begun::Later;
        }
        if self.retries.bytes + item.footprint() > KEPT_MAX {
            return Begun::Refused(TOO_MUCH_WAITS);
        }
        self.retries.push(item);
        Begun::Later
    }

    /// Ends a write of this door that cannot be run now, unless it may have been made before: then
    /// it is asked for later.
    pub(crate) fn refuse(&mut self, item: Item, error: Reply) -> Begun {
        if !item.is_again || !matches!(item.origin, Origin::Client { .. }) {
            return Begun::Refused(error);
        }
        self.ask_later(item);
        Begun::Later
    }

    /// Asks for the writes that wait, where somebody takes writes. Returns how many.
    pub(crate) fn retry_writes(&mut self) -> usize {
        if self.retries.is_empty() {
            return 0;
        }
        if self.knows_no_member() {
            return self.end_retries();
        }
        let late = self.now_ms.checked_sub(ASKED_MAX_MS).map(|at| self.retries.take_late(at));
        for item in late.into_iter().flatten() {
            let error = if item.is_again { NOT_TOLD } else { NOT_SENT };
            self.end_retry(&item, error);
        }
        let is_early = self.now_ms < self.retries.not_before_ms;
        if is_early || !self.has_head() || self.forwarded.has_writes_beside(self.writer()) {
            return 0;
        }
        let items = self.retries.take();
        let count = items.len();
        for item in items.into_values() {
            if !self.is_awaited(&item.origin) {
                continue;
            }
            let (origin, protocol, writer) = (item.origin.clone(), item.protocol, self.writer());
            let begun = match writer == self.me {
                true => self.begin(item),
                false => self.forward(writer, item),
            };
            self.complete(&origin, protocol, false, begun);
        }
        count
    }

    /// Whether the member that takes writes can be asked.
    fn has_head(&self) -> bool {
        let writer = self.writer();
        if writer == self.me {
            let gate = write_gate(&self.replica.node.borrow());
            return !matches!(gate, WriteGate::Refuse(_));
        }
        self.peers.iter().any(|peer| peer.id == writer && Peer::greeted(peer).is_some())
    }

    /// Whether the client of a write is there. One that is gone gets no answer, and what it wanted
    /// is not asked for.
    fn is_awaited(&self, origin: &Origin) -> bool {
        let Origin::Client { token, serial, .. } = *origin else { return false };
        let client = self.clients.get(token).and_then(Option::as_ref);
        client.is_some_and(|client| client.serial == serial)
    }

    /// A replica that knows no member can ask nobody.
    fn end_retries(&mut self) -> usize {
        let items = self.retries.take();
        let count = items.len();
        for item in items.into_values() {
            self.end_retry(&item, if item.is_again { LEFT_OUT_AGAIN } else { LEFT_OUT });
        }
        count
    }

    fn end_retry(&mut self, item: &Item, reply: Reply) {
        let Origin::Client { token, serial, slot } = item.origin else { return };
        let outcome = if item.is_again { Outcome::Forgotten } else { Outcome::NotMade };
        let ended = Ended { reply, outcome, turn: 0, frontier: Frontier::ZERO };
        self.complete_client(token, serial, slot, false, ended);
    }

    // ---- at the head

    /// A command has ended here in a turn. A write of this node's own client is kept until that is
    /// acknowledged: another head may have to be asked for it.
    #[inline]
    pub(crate) fn keep_own(&mut self, item: Item, turn: u64) {
        let is_kept = !item.is_read()
            && matches!(item.origin, Origin::Client { .. })
            && self.own_writes.bytes + item.footprint() <= KEPT_MAX
            && self.writer() != self.reader();
        if is_kept {
            self.own_writes.bytes += item.footprint();
            self.own_writes.items.push_back((turn, item));
        }
    }

    /// Takes back the replies of own writes in turns up to `last`, which may not come to be
    /// acknowledged here, and asks for these writes again.
    pub(crate) fn recall_own(&mut self, last: u64) {
        while let Some(item) = self.own_writes.pop(last) {
            let Origin::Client { token, serial, slot } = item.origin else { continue };
            let client = self.clients.get_mut(token).and_then(Option::as_mut);
            if let Some(client) = client.filter(|client| client.serial == serial)
                && client.recall(slot)
            {
                client.writes_out += 1;
                self.ask_again(item);
            }
        }
    }

    /// Lets a write go on that was not made. One that may have been is looked up in the log, and
    /// ends here if it was.
    pub(crate) fn judge_again(&mut self, item: Item) -> Result<Item, Begun> {
        if !item.is_again || item.is_read() {
            return Ok(item);
        }
        if self.is_under_way(item.id) {
            return Err(self.refuse(item, STILL_RUNS));
        }
        let WriteId { session, number } = item.id;
        let fate = self.replica.node.borrow_mut().fate_of_write(session, number);
        match fate {
            Ok(WriteFate::NotMade) => Ok(item),
            Ok(WriteFate::Made(Some(reply))) => {
                let turn = self.reply_turn(false);
                self.keep_own(item, turn);
                Err(Begun::Done(Reply::Encoded(reply.into()), turn))
            }
            Ok(WriteFate::Made(None)) => Err(Begun::Forgotten(REPLY_NOT_KEPT)),
            Ok(WriteFate::Unknown) => Err(Begun::Forgotten(FORGOTTEN)),
            // The process ends.
            Err(error) => Err(self.refuse(item, Reply::error_from(format!("TRYAGAIN {error}")))),
        }
    }

    /// Whether a task runs the write, or it waits for the gate, since it was sent before.
    fn is_under_way(&self, id: WriteId) -> bool {
        self.writes_in_tasks.contains(&id) || self.gated.values().any(|item| item.id == id)
    }
}
