//! A replica is opened again while its service goes on: lock, ports and clients stay.
//!
//! ```text
//!   reopen ─► what waits is given up or kept ─► Replica::close ─► gabion-open ─► finish_reopening
//!               │                                                                  │
//!   clients     ├─ writes in the log: asked for again      requests are held ◄─────┤
//!               ├─ commands in tasks, or that wait: run again, as they did nothing ┤
//!   members     └─ connections end: commands both ways are asked for again ────────┘
//! ```
//!
//! Nobody may rely on what the log held beyond what was acknowledged, since it may be cut before it
//! is read again. So no reply that is held back for it is shown, and no connection waits for a
//! position that the log no longer has. Watched keys are forgotten, as a writer begins a term.
//! Caches go, as a number that was given to a file may be given again to another.

use crate::ExitReason;
use crate::replica::{Contents, Held, Reopening, Replica, Turns};
use crate::run::{ASKED_TOO_EARLY, Finished};
use crate::server::{self, MEDIUM};
use crate::service::Service;
use crate::settings::Settings;
use gabion_base::{Error, Result};
use gabion_host::cache::SharedCache;
use mio::Interest;
use mio::unix::SourceFd;

/// What stays of a replica's service until it is open again.
pub(crate) struct Reopened {
    reopening: Reopening,
    /// What CONFIG SET has changed since the process began.
    settings: Settings,
}

impl Service {
    /// Has the replica opened again, at the end of the turn: its node ends, and another begins from
    /// the same files. The process ends where that fails. `why` is told to operators.
    pub(crate) fn reopen(&mut self, why: String) {
        self.to_reopen = Some(why);
    }

    /// Closes the replica, and has its files read again.
    pub(crate) fn close_replica(&mut self, why: &str) {
        note!("replica {} is opened again: {why}", self.me.get());
        self.give_up_what_waits();
        let settings = {
            let node = self.replica.node.borrow();
            Settings::of(&node, &self.replica.cache, self.host.door_settings())
        };
        // It holds the node, as the replica does.
        drop(self.host.replica.close());
        let Some(replica) = self.replica.close() else { return };
        self.close_control();
        match self.unwatch(&replica).and_then(|()| replica.close()?.reopen()) {
            Ok(reopening) => self.reopening = Some(Reopened { reopening, settings }),
            Err(error) => self.fail(error),
        }
    }

    /// Answers whoever waits for what this node has in its log or at a member; what has not begun
    /// waits on.
    fn give_up_what_waits(&mut self) {
        // What has ended by now has a place among the turns.
        self.take_finished();
        self.give_up_log();
        for (_, origin) in std::mem::take(&mut self.marks) {
            self.answer(&origin, ASKED_TOO_EARLY);
        }
        // As far as the sockets take it; to a member the end of its connection says the same.
        self.flush_peers();
        for place in 0..self.peers.len() {
            self.drop_link(place);
        }
        self.strangers.clear();
        self.answer_lost();
        // Who answers these, the view says that runs then.
        let reads = self.lagging.take().into_iter().chain(self.unsent.take());
        self.finished.borrow_mut().extend(reads.map(|item| Finished::CutOff { item }));
        self.flush_clients();
    }

    /// The loop is not told of the medium any more.
    fn unwatch(&self, replica: &Replica) -> Result<()> {
        let Some(fd) = replica.readiness else { return Ok(()) };
        self.registry.deregister(&mut SourceFd(&fd)).map_err(cannot_watch)
    }

    /// The loop is told when the replica's medium has results.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn watch_medium(&self) -> Result<()> {
        let Some(fd) = self.replica.readiness else { return Ok(()) };
        let token = server::token(self.place, MEDIUM);
        let registered = self.registry.register(&mut SourceFd(&fd), token, Interest::READABLE);
        registered.map_err(cannot_watch)
    }

    /// Goes on with the replica once its files are read. Returns whether it is open.
    pub(crate) fn finish_reopening(&mut self) -> bool {
        let Some(Reopened { reopening, settings }) = &mut self.reopening else { return false };
        let settings = *settings;
        let outcome = match reopening.poll() {
            Ok(None) => return false,
            Ok(Some((held, contents, turns))) => self.go_on(held, contents, turns, settings),
            Err(error) => Err(error),
        };
        self.reopening = None;
        match outcome {
            Ok(()) => true,
            Err(error) => {
                self.fail(error);
                false
            }
        }
    }

    fn go_on(
        &mut self,
        held: Held,
        contents: Contents,
        turns: Turns,
        settings: Settings,
    ) -> Result<()> {
        let cache = SharedCache::new(settings.block_cache_bytes, settings.open_files_bytes);
        let replica = Replica::start(held, contents, cache, turns)?;
        let end = replica.turns.last_end;
        self.host.replica.open(replica.shown());
        self.replica.open(replica);
        self.watch_medium()?;
        self.apply_settings(settings)?;
        // What a connection has seen beyond that is in no log; nothing of it was acknowledged.
        for client in self.clients.iter_mut().flatten() {
            client.frontier = client.frontier.meet(end);
        }
        self.replica.store.hold_back_after(self.gated.keys().next().copied());
        // Requests and connections that came meanwhile gave their last event then.
        self.door_has_more = true;
        self.unreadable_us = None;
        let view = self.replica.node.borrow().view().group().clone();
        self.follow_members(&view);
        self.hear_strangers();
        self.open_control();
        note!("replica {} is open again: the log ends at {end}", self.me.get());
        Ok(())
    }

    fn apply_settings(&mut self, settings: Settings) -> Result<()> {
        let node = self.replica.node.clone();
        let jobs = &self.replica.threads.jobs;
        let grow = |count| jobs.borrow_mut().grow(count);
        let (cache, most) = (&self.replica.cache, self.host.clients_max);
        let applied = settings.apply(&mut node.borrow_mut(), cache, most, grow);
        applied.map_err(|_| Error::io("settings that were in force cannot be again"))
    }

    fn fail(&mut self, error: Error) {
        let error = error.within("the replica cannot be opened again");
        self.exit = Some(ExitReason::Failed(error));
    }
}

fn cannot_watch(error: std::io::Error) -> Error {
    Error::with_source(gabion_base::ErrorKind::Io, "the pool cannot be watched", error)
}

#[cfg(test)]
mod tests;
