//! Events and the actions that follow from them: one turn of an instance.

use crate::application::{Application, Options, Phase};
use crate::command::{Asker, Output, StoreReply};
use crate::files::Images;
use crate::lease::Change;
use crate::link::{Context, Event, Stage, Window};
use crate::map::{ApMap, MEMBERS_MAX};
use crate::number::Number;
use crate::planted::{Mutant, Planted};
use alloc::format;
use alloc::vec::Vec;
use gabion_base::{Error, Result, Term};
use gabion_media::remote::{Notice, PeerId, Reply};
impl<S: Images> Application<S> {
    /// An instance that begins to recover the application's files.
    ///
    /// # Errors
    /// Invalid input for options that cannot be, with name, value and limit.
    pub fn new(options: Options, images: S, now_ms: u64) -> Result<Self> {
        Self::start(options, images, now_ms, Planted::default())
    }

    /// An instance with a defect.
    ///
    /// # Errors
    /// As [`Self::new`].
    #[cfg(feature = "planted")]
    pub fn planted(
        options: Options,
        images: S,
        now_ms: u64,
        mutant: Option<Mutant>,
    ) -> Result<Self> {
        Self::start(options, images, now_ms, Planted { mutant })
    }

    fn start(options: Options, images: S, now_ms: u64, planted: Planted) -> Result<Self> {
        let mut application = Self::build(options, images, now_ms, planted)?;
        application.step();
        Ok(application)
    }

    /// The next action for the caller to carry out.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// Time went on.
    pub fn handle_time(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        let patience_ms = self.options.patience_ms;
        let late = self.links.values().filter(|link| link.is_late(now_ms, patience_ms));
        let late: Vec<PeerId> = late.map(|link| link.peer).collect();
        for peer in late {
            let error = format!("peer {peer} has not replied for {patience_ms} ms");
            self.lose(peer, Error::unavailable(error));
        }
        self.cooling.retain(|_, until_ms| *until_ms > now_ms);
        self.step();
    }

    /// A reply of a peer, in the order of the commands of its newest connection.
    pub fn handle_reply(&mut self, now_ms: u64, peer: PeerId, reply: Reply) {
        self.now_ms = self.now_ms.max(now_ms);
        let Some(link) = self.links.get_mut(&peer) else { return };
        match link.handle_reply(self.now_ms, reply, self.planted) {
            Ok(Event::None) => {}
            Ok(Event::NoRoom) => self.refused += 1,
            Ok(Event::NewerTerm(term)) => self.handle_newer_term(term),
            Ok(Event::Loaded((file, offset, bytes))) => {
                let state = self.state.as_mut();
                let loaded = state.map_or(Ok(()), |it| it.files.load(file, offset, &bytes));
                // Files without some of their bytes are none.
                if let Err(error) = loaded {
                    self.end(error);
                }
            }
            Err(error) => self.lose(peer, error),
        }
        self.step();
    }

    /// Something that a peer told unasked.
    pub fn handle_notice(&mut self, now_ms: u64, peer: PeerId, notice: &Notice) {
        self.now_ms = self.now_ms.max(now_ms);
        let told = self.links.get(&peer).map(|link| link.handle_notice(notice));
        if let Some(Err(error)) = told {
            self.lose(peer, error);
        }
        self.step();
    }

    /// The connection to a peer ended, or none could be made.
    pub fn handle_disconnected(&mut self, now_ms: u64, peer: PeerId, error: Error) {
        self.now_ms = self.now_ms.max(now_ms);
        self.lose(peer, error);
        self.step();
    }

    /// An answer of the store. An error means that nobody knows what it did.
    pub fn handle_store(&mut self, now_ms: u64, asker: Asker, reply: Result<StoreReply>) {
        self.now_ms = self.now_ms.max(now_ms);
        if self.phase == Phase::Ended {
            return;
        }
        let handled = match asker {
            Asker::Instance => self.handle_lease(reply),
            Asker::Map => self.handle_map(reply),
            Asker::Registry => self.handle_registry(reply),
        };
        if let Err(error) = handled {
            self.end(error);
        }
        self.step();
    }

    fn handle_lease(&mut self, reply: Result<StoreReply>) -> Result<()> {
        match self.lease.handle(self.now_ms, reply)? {
            Change::None => {
                // A store that was set back to a moment since the last beat has the same lease.
                self.map_is_read &= self.phase != Phase::Running;
                Ok(())
            }
            Change::Held(term) => {
                assert!(self.phase == Phase::Leasing, "a term comes once");
                (self.term, self.phase) = (term, Phase::Claiming);
                (self.map_is_read, self.map_next_ms, self.proposal) = (false, 0, None);
                self.epochs = ApMap::first_epoch(term);
                Ok(())
            }
            Change::Lost(term) => Err(self.fenced(term)),
            Change::SetBack => {
                self.map_is_read = false;
                Ok(())
            }
        }
    }

    /// A peer knows a later term than this instance's.
    fn handle_newer_term(&mut self, term: Term) {
        if self.phase == Phase::Running {
            let error = self.fenced(term);
            return self.end(error);
        }
        if self.phase == Phase::Ended || term < self.term {
            return;
        }
        // The store may have been set back. If another instance has that term, the lease tells.
        self.lease.raise(term);
        self.restart();
    }

    /// The instance ends by itself, and says so in the store: the next one need not wait. Records
    /// that are not acknowledged may be lost.
    pub fn close(&mut self) {
        if let Some(operation) = self.lease.release(self.now_ms) {
            self.ask_store(Asker::Instance, operation);
        }
        self.end(Error::unavailable("the instance was closed"));
    }

    /// Does all that can be done now.
    pub(crate) fn step(&mut self) {
        loop {
            if self.phase == Phase::Ended {
                return;
            }
            let before = (self.out.len(), self.links.len(), self.phase);
            if let Some(operation) = self.lease.poll(self.now_ms) {
                self.ask_store(Asker::Instance, operation);
            }
            self.step_control();
            self.step_links();
            self.acknowledge();
            if before == (self.out.len(), self.links.len(), self.phase) {
                break;
            }
        }
        self.invariants();
    }

    fn step_links(&mut self) {
        let window =
            Window { requests: self.options.window_requests, bytes: self.options.window_bytes };
        let mut lost = Vec::new();
        let held_back = self.first_held_back();
        for link in self.links.values_mut() {
            let is_held_back = held_back.is_some_and(|first| link.order() >= first);
            let pumped = match &self.state {
                Some(state) if link.stage >= Stage::Filling => {
                    let (files, log, planted) = (&state.files, &state.log, self.planted);
                    let context = Context { files, log, planted, window };
                    link.pump(self.now_ms, &context, is_held_back)
                }
                _ => link.pump_reading(window),
            };
            while let Some(command) = link.poll() {
                let (peer, term) = (link.peer, self.term);
                self.out.push_back(Output::Send { peer, term, command });
            }
            if let Err(error) = pumped {
                lost.push((link.peer, error));
            }
        }
        lost.into_iter().for_each(|(peer, error)| self.lose(peer, error));
    }

    fn acknowledge(&mut self) {
        if self.phase != Phase::Running {
            return;
        }
        // The greatest first; a copy that counts is a member of the map.
        let mut done = [Number::ZERO; MEMBERS_MAX];
        let mut copies = 0;
        for (place, link) in done.iter_mut().zip(self.counted()) {
            *place = link.done;
            copies += 1;
        }
        done[..copies].sort_unstable_by(|a, b| b.cmp(a));
        let mut reached = done[self.options.f];
        let Some(state) = &mut self.state else { return };
        if copies <= self.options.f && self.planted.has(Mutant::AckWithoutQuorum) {
            reached = state.log.issued();
        }
        if reached > self.acknowledged {
            assert!(reached <= state.log.issued(), "what is acknowledged was issued");
            for _ in self.acknowledged.0..reached.0 {
                let bytes = self.unacknowledged.pop_front().expect("each record is counted");
                self.unacknowledged_bytes -= bytes;
            }
            self.acknowledged = reached;
        }
        let sent = self.links.values().filter(|link| link.stage >= Stage::Filling);
        let least = sent.map(|link| (link.cursor, link.peer)).min();
        let to = least.map_or(state.log.issued(), |(cursor, _)| Number(cursor.0 - 1));
        state.log.trim(to);
        let lags = state.log.bytes() > self.options.lag_bytes_max;
        if let Some((cursor, peer)) = least
            && lags
            && cursor <= self.acknowledged
            && self.can_spare(peer)
        {
            let limit = self.options.lag_bytes_max;
            self.lose(peer, Error::limit(format!("peer {peer} lags {limit} bytes behind")));
        }
        let is_short = self.counted().count() <= self.options.f;
        self.short_since_ms = match self.short_since_ms {
            Some(since_ms) if is_short => Some(since_ms),
            _ => is_short.then_some(self.now_ms),
        };
    }
}
