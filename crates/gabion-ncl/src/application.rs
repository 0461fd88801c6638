//! One instance of an application.
//!
//! ```text
//!   Leasing ─► Claiming ─► Recovering ──► Loading ─► Filling ─► Running
//!     lease      map's       fence, read    newest     f+1 new    records
//!     in store   term        numbers        copy       copies
//! ```
//!
//! 1. *Leasing.* The lease gives a term, which is greater than any before.
//! 2. *Claiming.* The ap-map gets the term, by compare-and-set: no earlier one changes it more.
//! 3. *Recovering.* All members are fenced; then the numbers of f+1 of them are read.
//! 4. *Loading.* The newest copy is read into the mirrors.
//! 5. *Filling.* Peers get new copies, the newest one's among them. Once f+1 are whole they are
//!    published, and once those are in the map the program may run. Before that nothing is
//!    acknowledged and no former copy is touched.
//! 6. *Running.* Each record goes to all peers at once. It is acknowledged when f+1 copies that the
//!    map names have it and all before it. A lost peer is replaced as in 5: filled, then entered,
//!    then counted.
//!
//! # Order of calls
//!
//! Hand in what happened (`handle_*`), or change files; then take [`Application::poll_output`]
//! until it gives nothing. [`Application::handle_time`] is called at least every 50 ms.

use crate::command::{Asker, Output, StoreOperation};
use crate::files::{Files, Images, RECORD_LEN_MAX, Sizes};
use crate::layout::OwnerCrc;
use crate::lease::Lease;
use crate::link::{Link, Stage};
use crate::log::Log;
use crate::map::{ApMap, MEMBERS_MAX, PeerRecord};
use crate::memory::Wants;
use crate::number::Number;
use crate::planted::{Mutant, Planted};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use gabion_base::{Error, Result, Term};
use gabion_control::Version;
use gabion_media::remote::PeerId;
use gabion_media::remote::message::OWNER_LEN_MAX;

/// The behaviour of calls while more than f peers are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// They wait, for ever if need be.
    Wait,
    /// They fail after so many ms. The files stay as they are, and what failed may yet be made.
    FailAfter(u64),
}

/// Names and limits of an instance.
#[derive(Clone, Debug)]
pub struct Options {
    /// The application's name: its files belong to it, wherever it runs.
    pub owner: String,
    /// Losses of peers at a time that lose nothing; 2f+1 peers have the files. 1 to 7.
    pub f: usize,
    /// A random number of this instance.
    pub instance: u64,
    /// Another instance starts once this one was silent for so long.
    pub lease_ms: u64,
    /// Whether a former instance is known to be dead, so that its lease is not waited for.
    pub takes_over: bool,
    /// A peer that owes a reply for so long is lost.
    pub patience_ms: u64,
    /// A lost peer is not asked again for so long.
    pub cooling_ms: u64,
    /// The behaviour of calls while more than f peers are lost.
    pub on_loss: OnLoss,
    /// Most records that are not acknowledged.
    pub outstanding_max: usize,
    /// Most bytes of these. One record is always possible.
    pub outstanding_bytes_max: usize,
    /// A peer that lacks more bytes of acknowledged records is lost. The same bound holds for
    /// records that are issued beyond the limits, as a new copy waits for them.
    pub lag_bytes_max: usize,
    /// Most requests outstanding at one peer.
    pub window_requests: usize,
    /// Most bytes of these.
    pub window_bytes: usize,
    /// Sizes of parts and records.
    pub sizes: Sizes,
}

impl Options {
    /// f = 1; a lease of 3 s; patience of 1 s; 1,024 records or 8 MiB not acknowledged.
    #[must_use]
    pub fn new(owner: &str, instance: u64) -> Self {
        Self {
            owner: owner.to_string(),
            f: 1,
            instance,
            lease_ms: 3_000,
            takes_over: false,
            patience_ms: 1_000,
            cooling_ms: 1_000,
            on_loss: OnLoss::Wait,
            outstanding_max: 1_024,
            outstanding_bytes_max: 8 << 20,
            lag_bytes_max: 64 << 20,
            window_requests: 512,
            window_bytes: 4 << 20,
            sizes: Sizes::default(),
        }
    }

    fn check(&self) -> Result<()> {
        const PAGE: u64 = gabion_media::remote::peer::PAGE_LEN;
        let invalid = |what: &str, value: u64, limit: &str| {
            Err(Error::invalid(format!("{what}: {value}; {limit} is valid")))
        };
        let (name, sizes) = (self.owner.len(), &self.sizes);
        if name == 0 || name > OWNER_LEN_MAX || self.owner.contains('/') {
            return invalid("bytes of an application's name", name as u64, "1 to 255, no '/',");
        }
        if self.f == 0 || 2 * self.f + 1 > MEMBERS_MAX {
            return invalid("peers that may be lost", self.f as u64, "1 to 7");
        }
        let part = sizes.part_min;
        if part == 0 || !part.is_multiple_of(PAGE) || !sizes.part_max.is_multiple_of(PAGE) {
            return invalid("bytes of a part", part.min(sizes.part_max), "a multiple of 4,096");
        }
        let record_max = sizes.record_max as u64;
        if record_max == 0 || record_max > part.min(sizes.part_max).min(RECORD_LEN_MAX) {
            return invalid("bytes of a record", record_max, "1 to 131,072 and those of a part");
        }
        let least = self.lease_ms.min(self.patience_ms);
        if least == 0 || self.outstanding_max == 0 || self.window_requests == 0 {
            return invalid("a time or a count", 0, "1 or more");
        }
        Ok(())
    }
}

/// The phase of an instance's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Leasing,
    Claiming,
    Recovering,
    Loading,
    Filling,
    Running,
    Ended,
}

/// An instance as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The phase of its work, as a word.
    pub phase: &'static str,
    /// Its term; zero before it has one.
    pub term: Term,
    /// Copies that count now, and those that are wanted.
    pub copies: usize,
    /// 2f+1.
    pub wanted: usize,
    /// The last record that was issued.
    pub issued: Number,
    /// The last one that was acknowledged.
    pub acknowledged: Number,
    /// Bytes of the records that are not acknowledged.
    pub unacknowledged_bytes: usize,
    /// Bytes of the records that some peer has not been sent: they are kept in memory.
    pub unsent_bytes: usize,
    /// The ap-map as this instance knows it.
    pub map: ApMap,
    /// Copies that were made in the place of lost ones since it runs.
    pub replaced: u64,
    /// Peers that the registry has.
    pub registered: usize,
    /// Regions that peers had no room for, since it runs.
    pub refused: u64,
}

/// Files and records, once there are some.
pub(crate) struct State<S: Images> {
    pub(crate) files: Files<S>,
    pub(crate) log: Log,
}

/// An instance.
pub struct Application<S: Images> {
    pub(crate) options: Options,
    pub(crate) planted: Planted,
    pub(crate) owner: OwnerCrc,
    pub(crate) now_ms: u64,
    pub(crate) phase: Phase,
    pub(crate) ended: Option<Error>,
    pub(crate) lease: Lease,
    pub(crate) term: Term,
    // The ap-map, and what is asked about it.
    pub(crate) map: ApMap,
    pub(crate) version: Version,
    pub(crate) map_is_read: bool,
    pub(crate) map_is_asked: bool,
    pub(crate) map_next_ms: u64,
    pub(crate) proposal: Option<ApMap>,
    /// The store has another map than this instance wrote last.
    pub(crate) map_differs: bool,
    // Peers.
    pub(crate) links: BTreeMap<PeerId, Link>,
    pub(crate) cooling: BTreeMap<PeerId, u64>,
    pub(crate) registry: Option<BTreeMap<PeerId, PeerRecord>>,
    pub(crate) registry_is_asked: bool,
    pub(crate) registry_next_ms: u64,
    /// The last epoch that an attempt got.
    pub(crate) epochs: u64,
    // Recovery.
    pub(crate) known_since_ms: Option<u64>,
    /// Since when copies are made that the program waits for.
    pub(crate) filling_since_ms: Option<u64>,
    pub(crate) loading: Option<PeerId>,
    /// Parts that peers are asked for.
    pub(crate) wants: Wants,
    /// Regions that peers had no room for.
    pub(crate) refused: u64,
    // Files. One of these is there.
    pub(crate) state: Option<State<S>>,
    pub(crate) images: Option<S>,
    pub(crate) acknowledged: Number,
    pub(crate) unacknowledged: VecDeque<usize>,
    pub(crate) unacknowledged_bytes: usize,
    pub(crate) replaced: u64,
    /// Since when fewer than f+1 copies count.
    pub(crate) short_since_ms: Option<u64>,
    pub(crate) out: VecDeque<Output>,
}

impl<S: Images> Application<S> {
    pub(crate) fn build(
        options: Options,
        images: S,
        now_ms: u64,
        planted: Planted,
    ) -> Result<Self> {
        options.check()?;
        let (owner, lease_ms) = (options.owner.as_str(), options.lease_ms);
        let lease = Lease::new(owner, options.instance, lease_ms, options.takes_over, planted);
        let application = Self {
            owner: OwnerCrc::new(owner),
            planted,
            now_ms,
            phase: Phase::Leasing,
            ended: None,
            lease,
            term: Term::ZERO,
            map: ApMap::default(),
            version: Version::NONE,
            map_is_read: false,
            map_is_asked: false,
            map_next_ms: 0,
            proposal: None,
            map_differs: false,
            links: BTreeMap::new(),
            cooling: BTreeMap::new(),
            registry: None,
            registry_is_asked: false,
            registry_next_ms: 0,
            epochs: 0,
            known_since_ms: None,
            filling_since_ms: None,
            loading: None,
            wants: Wants::default(),
            refused: 0,
            state: None,
            images: Some(images),
            acknowledged: Number::ZERO,
            unacknowledged: VecDeque::new(),
            unacknowledged_bytes: 0,
            replaced: 0,
            short_since_ms: Some(now_ms),
            out: VecDeque::new(),
            options,
        };
        Ok(application)
    }

    /// From the beginning, in a later term.
    pub(crate) fn restart(&mut self) {
        self.recall();
        let peers: Vec<PeerId> = self.links.keys().copied().collect();
        for peer in peers {
            self.links.remove(&peer);
            let error = Error::unavailable("the instance takes a later term");
            self.out.push_back(Output::Disconnect { peer, error });
        }
        if let Some(state) = self.state.take() {
            self.images = Some(state.files.into_images());
        }
        (self.loading, self.known_since_ms) = (None, None);
        (self.wants, self.phase) = (Wants::default(), Phase::Leasing);
    }

    /// The map has a later term than the lease.
    pub(crate) fn raise_above(&mut self, term: Term) {
        self.lease.raise(term);
        self.restart();
    }

    pub(crate) fn fenced(&self, term: Term) -> Error {
        let (owner, own) = (&self.options.owner, self.term);
        Error::fenced(format!(
            "application '{owner}': this instance of {own} was replaced in {term}"
        ))
    }

    /// The instance ends: what is not acknowledged never will be.
    pub(crate) fn end(&mut self, error: Error) {
        if self.phase == Phase::Ended {
            return;
        }
        self.recall();
        self.phase = Phase::Ended;
        for peer in core::mem::take(&mut self.links).into_keys() {
            self.out.push_back(Output::Disconnect { peer, error: error.clone() });
        }
        self.ended = Some(error);
    }

    pub(crate) fn ask_store(&mut self, asker: Asker, operation: StoreOperation) {
        self.out.push_back(Output::Store { asker, operation });
    }

    pub(crate) fn send_connect(&mut self, peer: PeerId, address: String) {
        self.out.push_back(Output::Connect { peer, address });
    }

    /// A peer is lost: nothing that it had counts any more.
    pub(crate) fn lose(&mut self, peer: PeerId, error: Error) {
        if self.links.contains_key(&peer) {
            self.recall();
            self.links.remove(&peer);
            self.cooling.insert(peer, self.now_ms + self.options.cooling_ms);
            self.out.push_back(Output::Disconnect { peer, error });
        }
    }

    /// The copies that count.
    pub(crate) fn counted(&self) -> impl Iterator<Item = &Link> {
        self.links.values().filter(|link| {
            let is_whole = link.stage == Stage::Full
                || (self.planted.has(Mutant::MapBeforeCatchUp) && link.stage >= Stage::Filling);
            let entry = self.map.member(link.peer);
            let is_entered = entry.is_some_and(|entry| {
                entry.epoch == link.epoch && entry.incarnation == link.incarnation
            });
            is_whole && is_entered
        })
    }

    /// Checks that all agrees.
    ///
    /// # Panics
    /// When it does not.
    pub fn invariants(&self) {
        assert!(self.state.is_some() != self.images.is_some(), "mirrors are in one place");
        // A former instance may have had more copies.
        assert!(self.links.len() <= 2 * self.options.f + 1 + MEMBERS_MAX, "few peers");
        if let Some(state) = &self.state {
            assert!(self.acknowledged <= state.log.issued(), "what is acknowledged was issued");
            assert_eq!(state.log.term, self.term, "records are of this term");
        }
        assert!(
            self.phase < Phase::Filling || self.phase == Phase::Ended || self.state.is_some(),
            "files were recovered"
        );
    }
}
