//! Runs of a script on a store. What a script reads may have to wait for the device, which Lua cannot do in the middle:
//! then its run is over, the read is awaited and kept, and the script begins anew. All that it sees is the same again,
//! as its keys are locked and its clock stands still, and what it wrote was staged.

use super::engine::{Caller, Ended, Over, RUN_US_MAX, World};
use super::{arguments, engine};
use crate::commands::acl::{self, rules::Rights};
use crate::commands::describe::{Entry, meant};
use crate::commands::execute::{Outcome, Refusal};
use crate::commands::keyspace::yield_now;
use crate::commands::locks::KeySet;
use crate::commands::overlay::{Overlay, give_known, len_of};
use crate::commands::store::{Op, Order, Page, PageQuery, Store};
use crate::commands::table::{Id, Route, TABLE};
use crate::commands::work::Call;
use crate::commands::{Commands, errors};
use bytes::Bytes;
use core::cell::{Cell, RefCell};
use core::future::{Future, poll_fn};
use core::ops::Bound;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use gabion_base::number::parse_i64;
use gabion_base::{Error, HashMap, Result};
use gabion_engine::{Found, FoundLen};
use gabion_resp::{Reply, Request};

/// How often a script is begun at most: for each read that waits, once more.
const RUNS_MAX: usize = 256;
/// Most bytes of what was awaited that are kept for a script.
const KEPT_MAX: usize = 64 << 20;
/// Most bytes of it for all scripts of the node that wait.
pub(in crate::commands) const KEPT_TOGETHER_MAX: usize = 512 << 20;
/// Keys that are read at once with the first that is waited for.
const AHEAD_MAX: usize = 256;
/// Rounds of locking what a script turns out to need, before it gets all keys.
const ROUNDS_MAX: usize = 8;

/// One goes on at a time, and nothing else does while a script runs.
const OTHER_LCS: Reply =
    Reply::error("TRYAGAIN another LCS goes on, and a script cannot wait for its end");

/// The keys that a command or transaction with scripts holds, and those that it turned out to need.
pub(crate) struct Held {
    keys: KeySet,
    wanted: RefCell<Option<KeySet>>,
}

impl Held {
    pub(crate) const fn new(keys: KeySet) -> Self {
        Self { keys, wanted: RefCell::new(None) }
    }

    /// Whether a script has to begin anew, with more keys.
    pub(crate) fn wants_more(&self) -> bool {
        self.wanted.borrow().is_some()
    }

    /// What to hold in the next round; none when nothing more is needed.
    pub(crate) fn next(&self, round: usize) -> Option<KeySet> {
        let wanted = self.wanted.borrow_mut().take()?;
        match (&self.keys, wanted) {
            (KeySet::Some(held), KeySet::Some(more)) if round < ROUNDS_MAX => {
                Some(KeySet::of(held.iter().chain(&more)))
            }
            _ => Some(KeySet::All),
        }
    }

    /// Whether these keys are held; if not, they will be.
    fn covers(&self, keys: KeySet) -> bool {
        let is_covered = match (&self.keys, &keys) {
            (KeySet::All, _) => true,
            (KeySet::Some(_), KeySet::All) => false,
            // Sorted, each once.
            (KeySet::Some(held), KeySet::Some(keys)) => {
                keys.iter().all(|key| held.binary_search(key).is_ok())
            }
        };
        if !is_covered {
            self.wanted.replace(Some(keys));
        }
        is_covered
    }
}

/// A [`PageQuery`] that is kept.
#[derive(Clone, PartialEq)]
struct PageOf {
    start: Bound<Bytes>,
    end: Bound<Bytes>,
    limit: usize,
    bytes_max: usize,
    with_values: bool,
    order: Order,
}

impl PageOf {
    fn new(query: PageQuery<'_>) -> Self {
        let PageQuery { start, end, limit, bytes_max, with_values, order } = query;
        let (start, end) = (start.map(Bytes::copy_from_slice), end.map(Bytes::copy_from_slice));
        Self { start, end, limit, bytes_max, with_values, order }
    }

    fn query(&self) -> PageQuery<'_> {
        let Self { limit, bytes_max, with_values, order, .. } = *self;
        let (start, end) = (self.start.as_ref(), self.end.as_ref());
        let (start, end) = (start.map(|key| &key[..]), end.map(|key| &key[..]));
        PageQuery { start, end, limit, bytes_max, with_values, order }
    }
}

/// What a script waits for.
enum Wanted {
    Keys(Vec<Bytes>),
    Page(PageOf),
}

/// A store, and what of it was awaited for a script.
struct Kept<'a, S> {
    beneath: &'a S,
    /// Bytes that all scripts of the node keep.
    together: &'a Cell<usize>,
    /// The time stands still for the script.
    now_ms: u64,
    keys: RefCell<HashMap<Bytes, Option<Found>>>,
    pages: RefCell<Vec<(PageOf, Page)>>,
    bytes: Cell<usize>,
    wanted: RefCell<Option<Wanted>>,
}

impl<S> Drop for Kept<'_, S> {
    fn drop(&mut self) {
        self.together.set(self.together.get() - self.bytes.get());
    }
}

impl<'a, S: Store> Kept<'a, S> {
    fn new(beneath: &'a S, together: &'a Cell<usize>) -> Self {
        Self {
            beneath,
            together,
            now_ms: beneath.now_ms(),
            keys: RefCell::default(),
            pages: RefCell::default(),
            bytes: Cell::new(0),
            wanted: RefCell::new(None),
        }
    }

    fn take_room(&self, bytes: usize) -> Result<()> {
        let (own, all) = (self.bytes.get() + bytes, self.together.get() + bytes);
        let is_over = |read: usize, whose: &str, max: usize| {
            let text =
                format!("{whose} read {read} bytes from the device, over the limit of {max}");
            if read > max { Err(Error::limit(text)) } else { Ok(()) }
        };
        is_over(own, "a script has", KEPT_MAX)?;
        is_over(all, "all scripts that wait have", KEPT_TOGETHER_MAX)?;
        self.bytes.set(own);
        self.together.set(all);
        Ok(())
    }

    /// Waits for what the last run lacked, and for what the next is likely to.
    async fn fetch(&self, declared: &[Bytes]) -> Result<()> {
        match self.wanted.take() {
            None => Ok(()),
            Some(Wanted::Keys(wanted)) => self.fetch_keys(wanted, declared).await,
            Some(Wanted::Page(of)) => {
                let page = self.beneath.range(of.query()).await?;
                let bytes = page.pairs.iter().map(|(key, value)| key.len() + value.len() + 64);
                self.take_room(bytes.sum())?;
                self.pages.borrow_mut().push((of, page));
                Ok(())
            }
        }
    }

    async fn fetch_keys(&self, mut keys: Vec<Bytes>, declared: &[Bytes]) -> Result<()> {
        let count = keys.len();
        let is_new = |key: &&Bytes| !self.keys.borrow().contains_key(*key);
        keys.extend(declared.iter().filter(is_new).take(AHEAD_MAX).cloned());
        let give = |at: usize, found: Option<Found>| {
            let key: &Bytes = &keys[at];
            let bytes = key.len() + found.as_ref().map_or(0, |found| found.value.len()) + 64;
            match self.take_room(bytes) {
                Ok(()) => drop(self.keys.borrow_mut().insert(key.clone(), found)),
                Err(error) if at < count => return Err(error),
                // Nobody has asked for it.
                Err(_) => {}
            }
            Ok(())
        };
        self.beneath.look_up_many(&keys, give).await
    }

    fn kept(&self, key: &[u8]) -> Option<Option<Found>> {
        self.keys.borrow().get(key).cloned()
    }

    fn kept_len(&self, key: &[u8]) -> Option<Option<FoundLen>> {
        self.keys.borrow().get(key).map(|found| found.as_ref().map(len_of))
    }

    fn kept_page(&self, of: &PageOf) -> Option<Page> {
        let pages = self.pages.borrow();
        pages.iter().find(|(other, _)| other == of).map(|(_, page)| page.clone())
    }

    /// Waits for a read; whoever polls it learns what is waited for.
    async fn watched<T>(&self, read: impl Future<Output = T>, wanted: impl Fn() -> Wanted) -> T {
        let mut read = pin!(read);
        poll_fn(|cx| {
            let outcome = read.as_mut().poll(cx);
            if outcome.is_pending() {
                self.wanted.replace(Some(wanted()));
            }
            outcome
        })
        .await
    }
}

impl<S: Store> Store for Kept<'_, S> {
    async fn look_up(&self, key: &[u8]) -> Result<Option<Found>> {
        if let Some(found) = self.kept(key) {
            return Ok(found);
        }
        let wanted = || Wanted::Keys(vec![Bytes::copy_from_slice(key)]);
        self.watched(self.beneath.look_up(key), wanted).await
    }

    async fn look_up_many(
        &self,
        keys: &[Bytes],
        mut give: impl FnMut(usize, Option<Found>) -> Result<()>,
    ) -> Result<()> {
        let (places, rest) = give_known(keys, |key| self.kept(key), &mut give)?;
        if rest.is_empty() {
            return Ok(());
        }
        let read = self.beneath.look_up_many(&rest, |at, found| give(places[at], found));
        self.watched(read, || Wanted::Keys(rest.clone())).await
    }

    async fn look_up_len(&self, key: &[u8]) -> Result<Option<FoundLen>> {
        if let Some(found) = self.kept_len(key) {
            return Ok(found);
        }
        // If it has to wait, the value is kept for the next run, too.
        let wanted = || Wanted::Keys(vec![Bytes::copy_from_slice(key)]);
        self.watched(self.beneath.look_up_len(key), wanted).await
    }

    async fn look_up_len_many(
        &self,
        keys: &[Bytes],
        mut give: impl FnMut(usize, Option<FoundLen>) -> Result<()>,
    ) -> Result<()> {
        let (places, rest) = give_known(keys, |key| self.kept_len(key), &mut give)?;
        if rest.is_empty() {
            return Ok(());
        }
        let read = self.beneath.look_up_len_many(&rest, |at, found| give(places[at], found));
        self.watched(read, || Wanted::Keys(rest.clone())).await
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn system_ahead_ms(&self) -> i64 {
        self.beneath.system_ahead_ms()
    }

    fn group_ms(&self) -> u64 {
        self.beneath.group_ms()
    }

    fn term(&self) -> u64 {
        self.beneath.term()
    }

    fn set_probing(&self, is_probing: bool) -> bool {
        self.beneath.set_probing(is_probing)
    }

    async fn range(&self, query: PageQuery<'_>) -> Result<Page> {
        let of = PageOf::new(query);
        if let Some(page) = self.kept_page(&of) {
            return Ok(page);
        }
        let read = self.beneath.range(query);
        self.watched(read, || Wanted::Page(of.clone())).await
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.beneath.put(key, value)
    }

    fn write(&self, ops: &[Op]) -> Result<()> {
        self.beneath.write(ops)
    }
}

/// Runs the commands of one run of a script.
struct Calls<'a, S> {
    commands: &'a Commands,
    overlay: &'a Overlay<'a, Kept<'a, S>>,
    kept: &'a Kept<'a, S>,
    held: &'a Held,
    is_read_only: bool,
    rights: Option<&'a Rights>,
}

impl<S: Store> Calls<'_, S> {
    fn check(&self, request: Request) -> core::result::Result<Call, Reply> {
        let count = request.args.len();
        let call =
            Call::check(request).map_err(|(row, error)| match row.map(|row| &TABLE[row]) {
                None => Reply::error("ERR Unknown Redis command called from script"),
                Some(spec) if !spec.accepts(count) => {
                    Reply::error("ERR Wrong number of args calling Redis command from script")
                }
                Some(_) => error,
            })?;
        let spec = call.spec();
        let flags = meant(call.args()).map_or(spec.flags, Entry::flags);
        if flags.contains(&"noscript") {
            return Err(Reply::error("ERR This Redis command is not allowed from script"));
        }
        if self.is_read_only && spec.has_flag("write") {
            let text = "ERR Write commands are not allowed from read-only scripts.";
            return Err(Reply::error(text));
        }
        self.commands.check_slots(&call)?;
        if let Some(rights) = self.rights {
            rights.check(&call).map_err(|denied| {
                let why = acl::told(&rights.user, &denied, false);
                Reply::error_from(format!("NOPERM ACL failure in script: {why}"))
            })?;
        }
        Ok(call)
    }

    /// Answers a command that touches no data. Where the script runs there is no connection.
    fn answer(&self, call: &Call) -> Reply {
        match (call.spec().id, &call.args()[1..]) {
            (Id::Ping, []) => Reply::simple("PONG"),
            (Id::Ping | Id::Echo, [text]) => Reply::Bulk(text.clone()),
            (Id::Select, [index]) if parse_i64(index) == Some(0) => Reply::OK,
            (Id::Select, [_]) => Reply::error("ERR DB index is out of range"),
            (Id::Time, []) => {
                let number = |number: u64| Reply::Bulk(Bytes::from(number.to_string()));
                let now_ms = self.kept.now_ms.saturating_add_signed(self.kept.system_ahead_ms());
                Reply::Array(vec![number(now_ms / 1000), number(now_ms % 1000 * 1000)])
            }
            _ => Reply::error_from(format!(
                "ERR '{}' is answered by the node that a client is connected to and not allowed from script",
                call.spec().name
            )),
        }
    }

    fn poll(&self, call: &Call, world: &World) -> core::result::Result<Reply, Over> {
        let mut reply = pin!(self.commands.run(self.overlay, call));
        loop {
            match reply.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(reply) => return Ok(reply),
                Poll::Pending if self.kept.wanted.borrow().is_some() => return Err(Over::Wait),
                // It let others have their turn, who wait for the script.
                Poll::Pending if world.may_go_on() => {}
                Poll::Pending => return Err(Over::Time),
            }
        }
    }
}

impl<S: Store> Caller for Calls<'_, S> {
    fn call(&self, words: Vec<Bytes>, world: &World) -> core::result::Result<Reply, Over> {
        let call = match self.check(Request { args: words.into_iter().collect() }) {
            Ok(call) => call,
            Err(error) => return Ok(error),
        };
        if call.spec().route == Route::Local {
            return Ok(self.answer(&call));
        }
        if !self.held.covers(call.key_set()) {
            return Err(Over::Wait);
        }
        if call.spec().id == Id::Lcs && !self.commands.lcs.is_idle() {
            return Ok(OTHER_LCS);
        }
        let before = self.kept.set_probing(true);
        let reply = self.poll(&call, world);
        self.kept.set_probing(before);
        self.overlay.check().map_err(|error| Over::Refused(errors::from_store(&error)))?;
        reply
    }
}

impl Commands {
    /// Runs a script, whose keys are locked. Its writes go to the store as one.
    ///
    /// # Errors
    /// It was over a limit, or it has to begin anew with more keys; nothing was written.
    pub(crate) async fn run_script<S: Store>(
        &self,
        store: &S,
        call: &Call,
        held: &Held,
    ) -> Outcome {
        let args = call.args();
        let given = arguments(args)?;
        let is_read_only = call.spec().name == "eval_ro";
        // Its keys are locked, so whoever comes later for them waits behind it.
        if self.scripts.is_turn_over() {
            yield_now().await;
        }
        let kept = Kept::new(store, &self.scripts.kept_bytes);
        for _ in 0..RUNS_MAX {
            let overlay = Overlay::new(&kept);
            let ended = self.scripts.run(&args[1], is_read_only, given, |is_read_only| {
                Box::new(Calls {
                    commands: self,
                    overlay: &overlay,
                    kept: &kept,
                    held,
                    is_read_only,
                    rights: call.rights().map(|rights| &**rights),
                })
            })?;
            match ended {
                Ended::Reply(reply) => {
                    let ops = overlay.into_ops()?;
                    if !ops.is_empty() {
                        store.write(&ops)?;
                    }
                    return Ok(reply);
                }
                Ended::Over(Over::Wait) if held.wants_more() => {
                    return Err(Refusal(Reply::error("TRYAGAIN the script needs more keys")));
                }
                Ended::Over(Over::Wait) => kept.fetch(given.0).await?,
                Ended::Over(over) => return Err(Refusal(over_reply(over))),
            }
        }
        Err(Refusal(Reply::error_from(format!(
            "TRYAGAIN a script waited {RUNS_MAX} times for the device, so nothing was written"
        ))))
    }
}

/// What the client of a script gets that was over a limit.
fn over_reply(over: Over) -> Reply {
    match over {
        Over::Time => Reply::error_from(format!(
            "ERR script ran over the limit of {} ms, so nothing was written",
            RUN_US_MAX / 1000
        )),
        Over::Memory => Reply::error_from(format!(
            "ERR script took over the limit of {} bytes of memory, so nothing was written",
            engine::MEMORY_MAX
        )),
        Over::Refused(error) => error,
        Over::Wait => Reply::error("ERR script waits"),
    }
}
