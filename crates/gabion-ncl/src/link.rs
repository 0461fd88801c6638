//! One peer of the application: what it was asked, what it has, and what it is sent next.
//!
//! ```text
//!   Greeting ─► Fencing ─► Ready ┬─► Reading ─► Known ─┐   (recovery: a former copy)
//!                                └─────────────────────┴─► Filling ─► Copied ─► Publishing ─► Full
//! ```
//!
//! A peer that is being filled gets regions of a new epoch, a copy of every file from the mirror,
//! and all records that are issued meanwhile, over one connection in this order: what a record
//! overtakes in the copy it writes again, and what the program itself has changed by then. Once all
//! has arrived the regions are published together and those of former copies go. A refusal, or any
//! reply but the expected one, ends the link: the peer is lost, and may come back as a new one.
//!
//! A peer that has no room for a region is not lost. One that has a whole copy keeps it, and is
//! given up only by a record that cannot do without the region. One that is being filled gives all
//! back, rests, and begins again; its former copy stays.

use crate::command::{ChainPart, Command, Label};
use crate::files::{Files, Image, Images};
use crate::layout::{CELL_LEN, Cell, Kind, OwnerCrc, pieces};
use crate::log::{Effect, Log, Need, Record};
use crate::number::{FileNumber, Number};
use crate::places::{Lent, NoRoom, Place, Places, is_no_room};
use crate::planted::{Mutant, Planted};
use crate::recover::{Copy, Loaded, Reading};
use alloc::collections::{BTreeSet, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cmp::Reverse;
use gabion_base::{Error, Result, Term, crc};
use gabion_media::remote::peer::PAGE_LEN;
use gabion_media::remote::{
    Incarnation, Notice, PeerId, Refusal, RefusalReason, RegionEntry, RegionId, Reply,
};

/// The stage of a link's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Greeting,
    Fencing,
    Ready,
    Reading,
    Known,
    Filling,
    Copied,
    Publishing,
    Full,
}

/// A request without a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pending {
    Hello,
    Fence,
    /// The request's number, and how often regions were given back before it.
    Lend(Need, u64, u64),
    /// And what is free once it is there.
    Record(Number, Vec<(FileNumber, u32)>),
    Copy,
    Publish {
        is_all: bool,
    },
    Read(usize),
    Free,
}

/// How far the filling is.
#[derive(Debug, Default)]
struct Fill {
    /// Ranges of files to be copied.
    jobs: VecDeque<(FileNumber, u64, u64)>,
    /// Copies without a reply.
    outstanding: usize,
    /// The mark of the images, once all of them are copied.
    mark: Option<u64>,
    /// The last record before the cells of the copy, once they are sent.
    base: Option<Number>,
}

/// Limits of what is outstanding at a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) requests: usize,
    pub(crate) bytes: usize,
}

/// The state of the instance that a link needs to go on.
pub(crate) struct Context<'a, S: Images> {
    pub(crate) files: &'a Files<S>,
    pub(crate) log: &'a Log,
    pub(crate) planted: Planted,
    pub(crate) window: Window,
}

/// The effect of a reply beyond its link.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    None,
    /// The owner has a later term at the peer.
    NewerTerm(Term),
    /// The peer has no room for a region.
    NoRoom,
    /// Bytes of a file of the copy that is loaded.
    Loaded(Loaded),
}

/// A peer of the application.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: PeerId,
    /// Its failure domain: the machines that fail together with it.
    pub(crate) domain: String,
    pub(crate) stage: Stage,
    pub(crate) incarnation: Incarnation,
    pub(crate) epoch: u64,
    /// All records up to it took effect there.
    pub(crate) done: Number,
    /// The next record to be sent.
    pub(crate) cursor: Number,
    pub(crate) reading: Option<Reading>,
    pub(crate) copy: Option<Copy>,
    /// Regions of former copies.
    pub(crate) old: Vec<RegionEntry>,
    pending: VecDeque<(Pending, usize)>,
    bytes: usize,
    /// When it last replied, or was asked after nothing was outstanding.
    heard_ms: u64,
    places: Places,
    to_lend: VecDeque<(Need, u64)>,
    /// Regions that nobody wants, once it has given back what records say.
    unwanted: BTreeSet<Label>,
    /// Records that freed regions, and whose regions were given back.
    frees: u64,
    /// How often regions were given back: there may be room from then on.
    given: u64,
    fill: Fill,
    /// The peer has no room for the copy that is being made: it ends once all is answered.
    is_given_up: bool,
    /// Why the last attempt to fill it ended, if the peer had no room.
    lacked: Option<NoRoom>,
    /// A peer without room is not asked again for so long.
    pause_ms: u64,
    out: VecDeque<Command>,
}

impl Link {
    pub(crate) fn new(peer: PeerId, domain: String, now_ms: u64, pause_ms: u64) -> Self {
        let mut link = Self {
            peer,
            domain,
            stage: Stage::Greeting,
            incarnation: Incarnation(0),
            epoch: 0,
            done: Number::ZERO,
            cursor: Number::ZERO,
            reading: None,
            copy: None,
            old: Vec::new(),
            pending: VecDeque::new(),
            bytes: 0,
            heard_ms: now_ms,
            places: Places::default(),
            to_lend: VecDeque::new(),
            unwanted: BTreeSet::new(),
            frees: 0,
            given: 0,
            fill: Fill::default(),
            is_given_up: false,
            lacked: None,
            pause_ms,
            out: VecDeque::new(),
        };
        link.ask(Pending::Hello, Command::Hello, 0);
        link
    }

    /// The next command to be sent.
    pub(crate) fn poll(&mut self) -> Option<Command> {
        self.out.pop_front()
    }

    /// Whether it owes a reply for longer than `patience_ms`.
    pub(crate) fn is_late(&self, now_ms: u64, patience_ms: u64) -> bool {
        !self.pending.is_empty() && now_ms >= self.heard_ms + patience_ms
    }

    /// The region of a part, if it is lent.
    pub(crate) fn region(&self, label: Label) -> Option<RegionId> {
        self.places.lent(label).map(|lent| lent.region)
    }

    /// Whether it owes a reply, or is about to be asked something.
    pub(crate) fn owes(&self) -> bool {
        !self.pending.is_empty() || !self.to_lend.is_empty()
    }

    fn ask(&mut self, pending: Pending, command: Command, bytes: usize) {
        self.bytes += bytes;
        self.pending.push_back((pending, bytes));
        self.out.push_back(command);
    }

    fn has_room(&self, window: Window) -> bool {
        self.pending.len() < window.requests && self.bytes < window.bytes
    }

    /// Whether the notice concerns this link.
    pub(crate) fn handle_notice(&self, notice: &Notice) -> Result<()> {
        let is_ours = |region: &RegionId| {
            let lent = self.places.regions().any(|lent| lent == *region);
            lent || self.old.iter().any(|old| old.region == *region)
        };
        match notice {
            Notice::Revoked(regions) if regions.iter().any(is_ours) => {
                Err(Error::unavailable(format!("peer {} took memory back", self.peer)))
            }
            Notice::Revoked(_) => Ok(()),
            Notice::Draining => Err(Error::unavailable(format!("peer {} is draining", self.peer))),
        }
    }

    /// A reply, in the order of the commands. An error ends the link.
    pub(crate) fn handle_reply(
        &mut self,
        now_ms: u64,
        reply: Reply,
        planted: Planted,
    ) -> Result<Event> {
        let Some((pending, bytes)) = self.pending.pop_front() else {
            return Err(Error::corruption(format!("peer {}: a reply to nothing", self.peer)));
        };
        self.bytes -= bytes;
        self.heard_ms = now_ms;
        let reply = match (&pending, reply) {
            (_, Reply::Refused(refusal)) if refusal.reason == RefusalReason::OldTerm => {
                return Ok(Event::NewerTerm(Term(refusal.limit)));
            }
            (Pending::Record(..), Reply::Refused(_)) if planted.has(Mutant::ErrorCounts) => {
                Reply::Written
            }
            (Pending::Lend(need, request, given), Reply::Refused(refusal))
                if is_no_room(refusal.reason) =>
            {
                self.refused_for_now(*need, *request, *given, refusal);
                return Ok(Event::NoRoom);
            }
            (_, Reply::Refused(refusal)) => return Err(refusal.error()),
            (_, reply) => reply,
        };
        match (pending, reply) {
            (Pending::Hello, Reply::Welcome { peer, incarnation, .. }) if peer == self.peer => {
                self.incarnation = incarnation;
                self.stage = Stage::Fencing;
                self.ask(Pending::Fence, Command::Fence, 0);
            }
            (Pending::Fence, Reply::Regions { regions, more, .. }) => self.listed(regions, more),
            (Pending::Lend(need, request, _), Reply::Lent { region, key, .. }) => {
                self.lent(need.label, request, Lent { region, key });
            }
            (Pending::Record(number, freed), Reply::Written) => {
                assert!(number > self.done, "records complete in their order");
                self.done = number;
                self.frees += u64::from(!freed.is_empty());
                freed.into_iter().for_each(|(file, from)| self.free(file, from));
            }
            (Pending::Copy, Reply::Written) => {
                self.fill.outstanding -= 1;
                self.note_copied();
            }
            (Pending::Publish { is_all }, Reply::Published) => {
                if is_all {
                    (self.stage, self.lacked) = (Stage::Full, None);
                    self.old.clear();
                }
            }
            (Pending::Read(tag), Reply::Bytes(bytes)) => return self.handle_read(tag, bytes),
            (Pending::Free, Reply::Freed { .. }) => {}
            (pending, reply) => {
                let what = format!("peer {}: {reply:?} for {pending:?}", self.peer);
                return Err(Error::corruption(what));
            }
        }
        Ok(Event::None)
    }

    fn listed(&mut self, regions: Vec<RegionEntry>, more: bool) {
        self.old.extend(regions);
        match self.old.last() {
            Some(last) if more => {
                let command = Command::List { after: last.region };
                self.ask(Pending::Fence, command, 0);
            }
            _ => self.stage = Stage::Ready,
        }
    }

    fn lent(&mut self, label: Label, request: u64, lent: Lent) {
        // A part that was given up meanwhile has no region any more.
        if !self.places.answer(label, request, Place::Lent(lent)) {
            return self.give_back(vec![lent.region]);
        }
        if self.stage >= Stage::Publishing {
            let command = Command::Publish { regions: vec![lent.region], withdraw: Vec::new() };
            self.ask(Pending::Publish { is_all: false }, command, 0);
        }
    }

    /// The peer has no room for a region. A copy that is being made without it is none.
    fn refused_for_now(&mut self, need: Need, request: u64, given: u64, refusal: Refusal) {
        let until_ms = self.heard_ms + self.pause_ms;
        let no_room = NoRoom { bytes: need.bytes, refusal, until_ms, given };
        let is_wanted = self.places.answer(need.label, request, Place::NoRoom(no_room));
        if is_wanted && self.stage < Stage::Publishing {
            (self.is_given_up, self.lacked) = (true, Some(no_room));
        }
    }

    fn free(&mut self, file: FileNumber, from: u32) {
        let regions = self.places.remove(file, from);
        self.give_back(regions);
    }

    fn give_back(&mut self, regions: Vec<RegionId>) {
        if !regions.is_empty() {
            self.given += 1;
            self.ask(Pending::Free, Command::Free { regions }, 0);
        }
    }

    // Reading a former copy.

    /// Reads a range for the recovery; the tag comes back with the bytes.
    fn read(&mut self, tag: usize, of: &RegionEntry, offset: u64, len: u32) {
        let command = Command::Read { region: of.region, key: of.key, offset, len };
        self.ask(Pending::Read(tag), command, len as usize);
    }

    /// Begins to read what the peer has of a former copy.
    pub(crate) fn start_reading(&mut self, owner: OwnerCrc) {
        assert_eq!(self.stage, Stage::Ready, "numbers are read after the fence");
        self.stage = Stage::Reading;
        self.reading = Some(Reading::new(owner, &self.old));
    }

    /// Reads on. An error ends the link: its copy is none.
    pub(crate) fn pump_reading(&mut self, window: Window) -> Result<()> {
        let Some(mut reading) = self.reading.take() else { return Ok(()) };
        let is_over = reading.advance_if_idle()?;
        while self.has_room(window)
            && let Some((tag, region, offset, len)) = reading.next_range()?
        {
            self.read(tag, &region, offset, len);
        }
        if is_over && self.stage == Stage::Reading {
            self.copy = reading.copy();
            self.stage = Stage::Known;
        }
        self.reading = Some(reading);
        Ok(())
    }

    /// Begins to read all files of the copy.
    pub(crate) fn start_load(&mut self) -> Result<()> {
        match (&mut self.reading, &self.copy) {
            (Some(reading), Some(copy)) => reading.start_load(copy),
            _ => Err(Error::corruption("nothing was read")),
        }
    }

    /// Whether all of it is here.
    pub(crate) fn is_loaded(&self) -> bool {
        self.reading.as_ref().is_some_and(Reading::is_loaded)
    }

    fn handle_read(&mut self, tag: usize, bytes: Vec<u8>) -> Result<Event> {
        match &mut self.reading {
            Some(reading) => Ok(reading.handle(tag, bytes)?.map_or(Event::None, Event::Loaded)),
            None => Err(Error::corruption(format!("peer {}: nothing is read", self.peer))),
        }
    }

    // Filling.

    /// Begins a copy of all files, in regions of this epoch.
    pub(crate) fn start_fill<S: Images>(&mut self, context: &Context<'_, S>, epoch: u64) {
        assert!(
            matches!(self.stage, Stage::Ready | Stage::Known),
            "a peer is filled once it is fenced and nothing is read there"
        );
        self.stage = Stage::Filling;
        self.epoch = epoch;
        self.frees = context.log.frees();
        (self.reading, self.copy) = (None, None);
        self.cursor = context.log.issued().next();
        self.done = context.log.issued();
        for (number, file) in context.files.iter() {
            for part in 0..file.parts.len() as u32 {
                let label = Label { file: number, part };
                self.want(Need { label, bytes: file.region_bytes(part) }, self.heard_ms);
            }
            if file.len > 0 {
                self.fill.jobs.push_back((number, 0, file.len));
            }
        }
        if context.planted.has(Mutant::CatchUpInPlace) && !self.old.is_empty() {
            let regions = self.old.drain(..).map(|old| old.region).collect();
            self.ask(Pending::Free, Command::Free { regions }, 0);
        }
    }

    /// Asks for a region, if it is not there and not under way, nor was refused just now.
    fn want(&mut self, need: Need, now_ms: u64) {
        let is_same = self.places.bytes(need.label) == Some(need.bytes);
        match self.places.get(need.label) {
            Some(Place::Lent(_) | Place::Asked(_)) if is_same => return,
            Some(Place::NoRoom(it)) if is_same && self.is_fresh(it, now_ms) => return,
            _ => {}
        }
        let regions = self.places.remove_one(need.label).into_iter().collect();
        self.give_back(regions);
        let request = self.places.ask(need.label, need.bytes);
        self.to_lend.push_back((need, request));
    }

    fn is_fresh(&self, no_room: NoRoom, now_ms: u64) -> bool {
        no_room.given == self.given && now_ms < no_room.until_ms
    }

    /// Whether the peer had no room just now for a region of one of these labels.
    pub(crate) fn refuses(&self, labels: &[Label], now_ms: u64) -> bool {
        labels.iter().any(|label| match self.places.get(*label) {
            Some(Place::NoRoom(no_room)) => self.is_fresh(no_room, now_ms),
            _ => false,
        })
    }

    /// Asks for a region that no record needs yet; its state then. One that has to give regions
    /// back first is not asked before: `frees` counts the records that say so.
    pub(crate) fn want_ahead(&mut self, need: Need, now_ms: u64, frees: u64) -> Place {
        if self.frees == frees {
            self.want(need, now_ms);
        }
        self.places.get(need.label).filter(|_| self.frees == frees).unwrap_or(Place::Asked(0))
    }

    /// Whether the peer has lent all that those records need which it was not sent yet.
    pub(crate) fn has_needs(&self, log: &Log) -> bool {
        log.needs_from(self.cursor).all(|Need { label, bytes }| {
            // A part that is to be given back first may be lent still.
            let is_lent = self.places.lent(label).is_some() && self.frees == log.frees();
            is_lent && self.places.bytes(label) == Some(bytes)
        })
    }

    /// Nobody wants a region any more. That the peer has no room for it is kept in mind. True if
    /// it had lent it. One that has to give regions back first may have a former one of that label,
    /// which its copy needs until then: see [`Self::want_ahead`].
    pub(crate) fn want_no_more(&mut self, label: Label, frees: u64) -> bool {
        if matches!(self.places.get(label), None | Some(Place::NoRoom(_))) {
            return false;
        }
        if self.frees != frees {
            self.unwanted.insert(label);
            return false;
        }
        let region = self.places.remove_one(label);
        self.give_back(region.into_iter().collect());
        region.is_some()
    }

    /// Gives back what nobody wanted any more while it had to give other regions back first. A part
    /// that a file has by now stays.
    fn drop_unwanted<S: Images>(&mut self, context: &Context<'_, S>) {
        let frees = context.log.frees();
        if self.frees != frees {
            return;
        }
        for label in core::mem::take(&mut self.unwanted) {
            let parts = context.files.get(label.file).map_or(0, |file| file.parts.len());
            if label.part as usize >= parts {
                self.want_no_more(label, frees);
            }
        }
    }

    /// Whether it waits for replies, and is given up then: the peer has no room for the copy.
    pub(crate) const fn is_given_up(&self) -> bool {
        self.is_given_up
    }

    /// The region that the peer had no room for: it has a whole copy without it, or rests.
    pub(crate) fn no_room(&self) -> Option<NoRoom> {
        self.places.no_room().or(self.lacked)
    }

    /// Whether it is not to be filled now, as the peer had no room just now.
    pub(crate) fn rests(&self, now_ms: u64) -> bool {
        self.lacked.is_some_and(|lacked| now_ms < lacked.until_ms)
    }

    /// Bytes that the peer lends to the application.
    pub(crate) fn lent_bytes(&self) -> u64 {
        self.places.lent_bytes() + self.old.iter().map(|old| old.bytes).sum::<u64>()
    }

    /// All is answered of a copy that the peer has no room for: it gives all of it back.
    fn end_fill(&mut self, now_ms: u64) {
        let regions = self.places.clear();
        self.to_lend.clear();
        (self.fill, self.is_given_up, self.stage) = (Fill::default(), false, Stage::Ready);
        self.heard_ms = now_ms;
        self.give_back(regions);
    }

    /// The place among links that are filled: those come first that are further, then those whose
    /// copy began first.
    pub(crate) fn order(&self) -> (Reverse<Stage>, u64) {
        (Reverse(self.stage), self.epoch)
    }

    /// All that was copied goes into effect at once, and former copies go.
    pub(crate) fn publish(&mut self) {
        assert_eq!(self.stage, Stage::Copied, "what is published is a whole copy");
        self.stage = Stage::Publishing;
        let regions = self.places.regions().collect();
        let withdraw = self.old.iter().map(|old| old.region).collect();
        let command = Command::Publish { regions, withdraw };
        self.ask(Pending::Publish { is_all: true }, command, 0);
    }

    /// Sends what there is room for. A link that is held back borrows its regions and no more.
    pub(crate) fn pump<S: Images>(
        &mut self,
        now_ms: u64,
        context: &Context<'_, S>,
        is_held_back: bool,
    ) -> Result<()> {
        let was_idle = self.pending.is_empty();
        if self.is_given_up {
            if was_idle {
                self.end_fill(now_ms);
            }
            return Ok(());
        }
        self.drop_unwanted(context);
        self.pump_lends(context);
        if !is_held_back {
            self.pump_copies(context)?;
            self.pump_records(now_ms, context)?;
            self.pump_cells(context)?;
            self.note_copied();
        }
        if was_idle {
            self.heard_ms = now_ms;
        }
        Ok(())
    }

    fn pump_lends<S: Images>(&mut self, context: &Context<'_, S>) {
        while self.has_room(context.window)
            && let Some((need, request)) = self.to_lend.pop_front()
        {
            let Need { label, bytes } = need;
            if self.places.is_wanted(label, request) {
                let command = Command::Lend { label, epoch: self.epoch, bytes };
                self.ask(Pending::Lend(need, request, self.given), command, 0);
            }
        }
    }

    fn pump_copies<S: Images>(&mut self, context: &Context<'_, S>) -> Result<()> {
        const CHUNK: u64 = 128 << 10;
        while self.has_room(context.window)
            && let Some((number, at, to)) = self.fill.jobs.front_mut()
        {
            let (number, from) = (*number, *at);
            // Parts that are gone by now have no bytes.
            let end = context.files.get(number).map_or(0, |file| file.capacity().min(*to));
            let Some(file) = context.files.get(number).filter(|_| from < end) else {
                self.fill.jobs.pop_front();
                continue;
            };
            let len = (end - from).min(CHUNK);
            let found = pieces(&file.parts, from, len).and_then(|found| found.first().copied());
            let piece = found.ok_or_else(|| no_region(number, from))?;
            let label = Label { file: number, part: piece.part };
            let Some(lent) = self.places.lent(label) else { return Ok(()) };
            *at += piece.len;
            let mut data = vec![0; piece.len as usize];
            file.image.read(from, &mut data)?;
            // A region is lent full of zeros.
            if data.chunks(PAGE_LEN as usize).any(|page| page.iter().fold(0, |a, b| a | b) != 0) {
                let data = Bytes::from(data);
                let (region, key, offset) = (lent.region, lent.key, piece.offset);
                let part = ChainPart { region, key, offset, data };
                self.ask_copy([Some(part), None, None], piece.len as usize);
            }
        }
        Ok(())
    }

    fn ask_copy(&mut self, chain: [Option<ChainPart>; 3], bytes: usize) {
        self.fill.outstanding += 1;
        self.ask(Pending::Copy, Command::Write { chain }, bytes);
    }

    fn pump_records<S: Images>(&mut self, now_ms: u64, context: &Context<'_, S>) -> Result<()> {
        while self.has_room(context.window)
            && let Some(record) = context.log.get(self.cursor)
        {
            if let Effect::Needs(need) = record.effect
                && !self.has_need(now_ms, need, context)?
            {
                return Ok(());
            }
            let Some(chain) = self.chain(record, context)? else { return Ok(()) };
            let freed = match &record.effect {
                Effect::Frees(parts) => parts.clone(),
                _ => Vec::new(),
            };
            if context.planted.has(Mutant::FreedEarly) {
                freed.iter().for_each(|(file, from)| self.free(*file, *from));
            }
            let pending = Pending::Record(self.cursor, freed);
            self.ask(pending, Command::Write { chain }, record.bytes());
            self.cursor = self.cursor.next();
        }
        Ok(())
    }

    /// Whether the region is lent that the next record needs. A peer that has no room for it cannot
    /// have that record.
    fn has_need<S: Images>(
        &mut self,
        now_ms: u64,
        need: Need,
        context: &Context<'_, S>,
    ) -> Result<bool> {
        // The part may have another region still, which goes first.
        let gives_back = self.pending.iter().any(|(pending, _)| match pending {
            Pending::Record(_, freed) => !freed.is_empty(),
            _ => false,
        });
        if gives_back {
            return Ok(false);
        }
        self.want(need, now_ms);
        self.pump_lends(context);
        match self.places.get(need.label) {
            Some(Place::NoRoom(no_room)) => Err(no_room.refusal.error()),
            place => Ok(matches!(place, Some(Place::Lent(_)))),
        }
    }

    /// The chain of a record at this peer; none while a region of it is not lent.
    fn chain<S: Images>(
        &self,
        record: &Record,
        context: &Context<'_, S>,
    ) -> Result<Option<[Option<ChainPart>; 3]>> {
        let cell = &record.cell;
        let lent = |part: u32| {
            let label = Label { file: cell.file, part };
            let place = self.places.get(label);
            place.ok_or_else(|| no_region(cell.file, cell.offset))?;
            Result::Ok(self.places.lent(label))
        };
        let (mut chain, mut count, mut from) = ([None, None, None], 0, 0);
        for piece in record.pieces.iter().flatten() {
            let Some(Lent { region, key }) = lent(piece.part)? else { return Ok(None) };
            let data = record.data.slice(from..from + piece.len as usize);
            from += piece.len as usize;
            chain[count] = Some(ChainPart { region, key, offset: piece.offset, data });
            count += 1;
        }
        let Some(lent) = lent(0)? else { return Ok(None) };
        chain[count] = Some(cell_part(cell, lent, context.log));
        if context.planted.has(Mutant::NumberBeforeData) {
            chain[..=count].rotate_right(1);
        }
        Ok(Some(chain))
    }

    /// Once the copy and all records are on their way, the cells that say how far it goes. Among
    /// the records is each one that an image may have been ahead of.
    fn pump_cells<S: Images>(&mut self, context: &Context<'_, S>) -> Result<()> {
        let issued = context.log.issued();
        let is_lent = self.to_lend.is_empty() && self.places.are_lent();
        let is_sent = self.fill.jobs.is_empty() && self.cursor == issued.next();
        if self.stage != Stage::Filling || self.fill.base.is_some() || !is_lent || !is_sent {
            return Ok(());
        }
        let mark =
            self.fill.mark.map_or_else(|| context.files.mark(), |mark| context.files.advance(mark));
        self.fill.mark = Some(mark);
        if self.waits_for_changes(context.files) && !context.planted.has(Mutant::CopyIsAhead) {
            return Ok(());
        }
        self.fill.base = Some(issued);
        for (number, file) in context.files.iter() {
            let cell = Cell {
                kind: Kind::Copy,
                file: number,
                term: context.log.term,
                number: issued,
                offset: 0,
                len: 0,
                data_crc: crc::crc32c(&[]),
                file_len: file.len,
                ordinal: file.ordinal,
            };
            let lent = self.places.lent(Label { file: number, part: 0 });
            let lent = lent.ok_or_else(|| no_region(number, 0))?;
            self.ask_copy([Some(cell_part(&cell, lent, context.log)), None, None], CELL_LEN);
        }
        Ok(())
    }

    /// Whether its copy may have changes whose records are not issued.
    pub(crate) fn waits_for_changes<S: Images>(&self, files: &Files<S>) -> bool {
        let mark = self.fill.mark.filter(|_| self.fill.base.is_none());
        mark.is_some_and(|mark| !files.has_issued(mark))
    }

    fn note_copied(&mut self) {
        let Some(base) = self.fill.base.filter(|_| self.stage == Stage::Filling) else { return };
        if self.fill.outstanding == 0 {
            assert!(self.done >= base, "records before the cells of a copy came before them");
            self.stage = Stage::Copied;
        }
    }
}

fn cell_part(cell: &Cell, lent: Lent, log: &Log) -> ChainPart {
    let data = Bytes::copy_from_slice(&cell.encode(log.owner));
    ChainPart { region: lent.region, key: lent.key, offset: cell.place(), data }
}

fn no_region(file: FileNumber, offset: u64) -> Error {
    Error::corruption(format!("{file}: no region for offset {offset}"))
}
