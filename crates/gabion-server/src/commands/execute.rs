//! Runs commands on a store: the keys' locks around them, a transaction's writes into one record.

use super::expiry::{Told, When};
use super::keyspace::{ReplyRoom, yield_now};
use super::locks::KeySet;
use super::overlay::Overlay;
use super::scripts::Held;
use super::store::Store;
use super::table::{Id, Route};
use super::timed::Timed;
use super::watch::{Moment, Seen, Watch};
use super::work::{Call, Transaction, Work};
use super::{
    Commands, bitfield, bits, dump, errors, expiry, keyspace, lcs, object, random, renames, strings,
};
use core::future::Future;
use gabion_base::Error;
use gabion_engine::FoundLen;
use gabion_resp::Reply;
use std::rc::Rc;

/// How often a command is run again because a key that it had read expired before it wrote. One that reads for so
/// long that some key always does would hold its locks for ever: its client gets `TRYAGAIN`, and nothing was done.
const RERUNS_MAX: u32 = 8;

/// What ends a command early: the error that the client gets.
pub(crate) struct Refusal(pub(crate) Reply);

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(errors::from_store(&error))
    }
}

impl From<Reply> for Refusal {
    fn from(reply: Reply) -> Self {
        Self(reply)
    }
}

/// When a command runs.
fn moment(store: &impl Store) -> Moment {
    Moment { term: store.term(), group_ms: store.group_ms() }
}

/// The outcome of a command.
pub(crate) type Outcome = Result<Reply, Refusal>;

impl Commands {
    /// Runs a command or a transaction on the newest state of `store`.
    ///
    /// Commands that read and write hold their keys while they wait for the read; blind writes
    /// queue behind them. When nothing has to wait, this ends at its first poll.
    ///
    /// # Durability
    /// When this returns, the writes are in the record of the turn and visible to later reads. The
    /// caller holds the reply back until the state that it shows is acknowledged.
    pub async fn execute<S: Store>(&self, store: &S, work: &Work) -> Reply {
        match work {
            Work::Call(call) if call.is_script() => {
                let reply =
                    self.with_keys(call.key_set(), |held| self.run_alone(store, call, held));
                let reply = reply.await;
                if reply.is_error() {
                    self.stats.count_failed(call.counters(), &reply);
                }
                reply
            }
            Work::Call(call) => {
                let reply = match call.route() {
                    Route::Local | Route::Read => self.run(store, call).await,
                    Route::Write | Route::ReadWrite => {
                        self.locks.hold(|| call.key_set(), self.run_locked(store, call)).await
                    }
                };
                if reply.is_error() {
                    self.stats.count_failed(call.counters(), &reply);
                }
                reply
            }
            Work::Transaction(transaction) if transaction.has_script() => {
                let run = |held| self.run_transaction(store, transaction, held);
                self.with_keys(transaction.key_set(), run).await
            }
            Work::Transaction(transaction) => {
                // Without scripts nothing turns out to be needed.
                let held = Rc::new(Held::new(KeySet::All));
                let run = self.run_transaction(store, transaction, held);
                match self.locks.hold(|| transaction.key_set(), run).await {
                    Ok(reply) | Err(Refusal(reply)) => reply,
                }
            }
            Work::Watch(watch) => {
                let keys = || KeySet::of(watch.keys.iter());
                match self.locks.hold(keys, self.watch(store, watch)).await {
                    Ok(reply) | Err(Refusal(reply)) => reply,
                }
            }
        }
    }

    /// Runs what has scripts, with locks of these keys and then of those that a script turns out to need.
    async fn with_keys<F: Future<Output = Outcome>>(
        &self,
        mut keys: KeySet,
        run: impl Fn(Rc<Held>) -> F,
    ) -> Reply {
        for round in 1.. {
            let held = Rc::new(Held::new(keys.clone()));
            let outcome = self.locks.hold(|| keys.clone(), run(held.clone())).await;
            match held.next(round) {
                Some(more) => keys = more,
                None => {
                    let (Ok(reply) | Err(Refusal(reply))) = outcome;
                    return reply;
                }
            }
        }
        unreachable!("the last round holds all keys")
    }

    /// Runs a script by itself; anew when a key that it had read expired before it wrote.
    async fn run_alone<S: Store>(&self, store: &S, call: &Call, held: Rc<Held>) -> Outcome {
        let mut reruns = 0..RERUNS_MAX;
        loop {
            let timed = Timed::new(store, &self.watches);
            let overlay = Overlay::new(&timed);
            let mut outcome = self.run_script(&overlay, call, &held).await;
            if outcome.is_ok() {
                let ops = overlay.into_ops()?;
                if !ops.is_empty()
                    && let Err(error) = timed.write(&ops)
                {
                    outcome = Err(error.into());
                }
            }
            if !timed.is_overtaken() || reruns.next().is_none() {
                return outcome;
            }
        }
    }

    /// Notes who watches keys, which are locked.
    async fn watch<S: Store>(&self, store: &S, watch: &Watch) -> Outcome {
        let mut seen = vec![Seen::default(); watch.keys.len()];
        let look = |at: usize, found: Option<FoundLen>| {
            let expires_ms = found.and_then(|found| found.expires_ms);
            seen[at] = Seen { is_there: found.is_some(), expires_ms };
            Ok(())
        };
        store.look_up_len_many(&watch.keys, look).await?;
        let now = moment(store);
        watch.keys.iter().zip(seen).for_each(|(key, seen)| {
            self.watches.add(watch.id, key, seen, now);
        });
        Ok(Reply::OK)
    }

    /// Runs a command that writes; anew when a key that it had read expired before it wrote.
    async fn run_locked<S: Store>(&self, store: &S, call: &Call) -> Reply {
        let mut reruns = 0..RERUNS_MAX;
        loop {
            let timed = Timed::new(store, &self.watches);
            let reply = self.run(&timed, call).await;
            if !timed.is_overtaken() || reruns.next().is_none() {
                return reply;
            }
        }
    }

    async fn run_transaction<S: Store>(
        &self,
        store: &S,
        transaction: &Transaction,
        held: Rc<Held>,
    ) -> Outcome {
        let mut reruns = 0..RERUNS_MAX;
        loop {
            let timed = Timed::new(store, &self.watches);
            let outcome = self.try_transaction(&timed, transaction, &held).await;
            if !timed.is_overtaken() || reruns.next().is_none() {
                return outcome;
            }
        }
    }

    async fn try_transaction<S: Store>(
        &self,
        store: &S,
        transaction: &Transaction,
        held: &Held,
    ) -> Outcome {
        let is_unchanged = |watch: &Watch| self.watches.are_unchanged(watch, moment(store));
        if !transaction.watch.as_ref().is_none_or(is_unchanged) {
            return Ok(Reply::NullArray);
        }
        let overlay = Overlay::new(store);
        let mut replies = Vec::with_capacity(transaction.calls.len());
        // While it goes on, and before anything is written: the queue is bounded, what it asks for is not.
        let mut room = ReplyRoom::of_exec();
        for call in &transaction.calls {
            let reply = if call.is_script() {
                let (Ok(reply) | Err(Refusal(reply))) = self.run_script(&overlay, call, held).await;
                reply
            } else {
                self.run(&overlay, call).await
            };
            if held.wants_more() {
                return Err(Refusal(reply));
            }
            overlay.check()?;
            room.take(reply.memory())?;
            replies.push(reply);
            // Its keys are locked, and none of its writes shows before the last: others may come between.
            if overlay.is_turn_over() && replies.len() < transaction.calls.len() {
                yield_now().await;
            }
        }
        // Time went on while it waited, and a watched key may have expired.
        if !transaction.watch.as_ref().is_none_or(is_unchanged) {
            return Ok(Reply::NullArray);
        }
        let failed = transaction.calls.iter().zip(&replies).filter(|(_, reply)| reply.is_error());
        failed.for_each(|(call, error)| self.stats.count_failed(call.counters(), error));
        let ops = overlay.into_ops()?;
        if !ops.is_empty() {
            store.write(&ops)?;
        }
        Ok(transaction.merge(replies))
    }

    /// Runs one command without locks.
    pub(super) async fn run<S: Store>(&self, store: &S, call: &Call) -> Reply {
        let args = call.args();
        let told = |is_left, in_seconds| Told { is_left, in_seconds };
        let outcome = match call.spec().id {
            Id::Get => strings::get(store, args).await,
            Id::Set if args.len() == 3 => strings::set_blindly(store, &args[1], &args[2]),
            Id::Set => strings::set(store, args).await,
            Id::SetEx => expiry::set_ex(store, args, When::Seconds),
            Id::PSetEx => expiry::set_ex(store, args, When::Millis),
            Id::GetEx => expiry::get_ex(store, args).await,
            Id::SetNx => strings::set_nx(store, args).await,
            Id::GetSet => strings::get_set(store, args).await,
            Id::GetDel => strings::get_del(store, args).await,
            Id::DelIfEq => strings::del_if_equal(store, args).await,
            Id::MGet => strings::mget(store, args).await,
            Id::MSet => strings::mset(store, args),
            Id::MSetNx => strings::mset_nx(store, args).await,
            Id::StrLen => strings::str_len(store, args).await,
            Id::GetRange => strings::get_range(store, args).await,
            Id::SetRange => strings::set_range(store, args).await,
            Id::Append => strings::append(store, args).await,
            Id::Incr => strings::add(store, &args[1], 1).await,
            Id::Decr => strings::add(store, &args[1], -1).await,
            Id::IncrBy => strings::incr_by(store, args).await,
            Id::DecrBy => strings::decr_by(store, args).await,
            Id::IncrByFloat => strings::incr_by_float(store, args).await,
            // These are the largest, and every command's future has room for each that is not apart.
            Id::Lcs => Box::pin(self.lcs.hold(|| KeySet::All, lcs::lcs(store, args))).await,
            Id::GetBit => bits::get_bit(store, args).await,
            Id::SetBit => bits::set_bit(store, args).await,
            Id::BitCount => bits::bit_count(store, args).await,
            Id::BitPos => bits::bit_pos(store, args).await,
            Id::BitOp => bits::bit_op(store, args).await,
            Id::BitField => bitfield::bitfield(store, args).await,
            Id::BitFieldRo => bitfield::bitfield_ro(store, args).await,
            Id::Rename => renames::rename(store, args).await,
            Id::RenameNx => renames::rename_nx(store, args).await,
            Id::Copy => renames::copy(store, args).await,
            Id::Dump => dump::dump(store, args).await,
            Id::Restore => dump::restore(store, args).await,
            Id::RandomKey => Box::pin(random::random_key(store, &self.dice)).await,
            Id::Object => object::object(store, args).await,
            Id::Memory => object::memory(store, args).await,
            Id::Del => keyspace::del(store, args).await,
            Id::Exists => keyspace::exists(store, args).await,
            Id::Type => keyspace::kind(store, args).await,
            Id::Ttl => expiry::tell(store, args, told(true, true)).await,
            Id::PTtl => expiry::tell(store, args, told(true, false)).await,
            Id::ExpireTime => expiry::tell(store, args, told(false, true)).await,
            Id::PExpireTime => expiry::tell(store, args, told(false, false)).await,
            Id::Expire => expiry::expire(store, args, When::Seconds).await,
            Id::PExpire => expiry::expire(store, args, When::Millis).await,
            Id::ExpireAt => expiry::expire(store, args, When::AtSecond).await,
            Id::PExpireAt => expiry::expire(store, args, When::AtMilli).await,
            Id::Persist => expiry::persist(store, args).await,
            Id::Scan => keyspace::scan(store, &self.cursors, args).await,
            Id::Keys => keyspace::keys(store, args).await,
            Id::Range => keyspace::range(store, args).await,
            Id::DbSize => keyspace::db_size(store).await,
            Id::FlushAll => keyspace::flush(store, args),
            // A session answers these; they come here only from a node that breaks the protocol.
            _ => Ok(errors::unknown_command(args)),
        };
        match outcome {
            Ok(reply) | Err(Refusal(reply)) => reply,
        }
    }
}
