//! Full copies: the machine of the member that is filled, that of the head, and the two commits
//! after which the replica is opened anew.

use crate::copied::CopiedState;
use crate::node::Node;
use crate::node::facts::facts;
use crate::node::fill::{Fill, FillStatus, FillWish};
use crate::node::planted::Mutant;
use crate::node::room;
use crate::ring::RingState;
use crate::state::{CopyMark, ReplicaState};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use gabion_base::{Ends, Error, Failed, FileId, FileKind, LogPosition, ReplicaId, Result, Term};
use gabion_engine::{Tree, Version};
use gabion_log::{Anchor, Span};
use gabion_pool::FilePlacement;
use gabion_replication::{Action, GroupView};

impl Node {
    // ---- questions

    /// How far this member is with its filling; none at one that is full, or left out.
    #[must_use]
    pub fn fill_status(&self) -> Option<FillStatus> {
        self.is_to_be_filled().then(|| self.fill.status())
    }

    /// Whether this member, which is not full, has the whole log of the head and every file that
    /// the edits in it leave in the tree: the next view may count it.
    #[must_use]
    pub fn is_filled(&self) -> bool {
        let has_log = self.protocol.has_caught_up() && self.state.copy == CopyMark::None;
        let (rests, facts) = (!self.fill.is_begun(), facts!(self));
        // Nothing keeps the log for one that is cut off.
        let follows = facts.can_reach(facts.writer()) && facts.can_reach(self.view.reader());
        self.is_to_be_filled()
            && rests
            && follows
            && has_log
            && self.apply.has_files(&facts, self.tree.version())
    }

    /// Whether this replica is a member that does not count, as it lacks what the group has.
    fn is_to_be_filled(&self) -> bool {
        self.view.is_member() && !self.view.is_full() && !self.view.is_kept()
    }

    /// Whether an action of the protocol is for a log that is here, and there is none until the
    /// copy of the group's state is whole.
    pub(in crate::node) fn is_for_log_to_come(&self, action: &Action) -> bool {
        let is_of_log = matches!(
            action,
            Action::AdoptTerm { .. }
                | Action::Place { .. }
                | Action::Truncate { .. }
                | Action::Follow { .. }
        );
        is_of_log && self.state.is_being_filled()
    }

    // ---- the member that is filled

    /// The log here cannot be followed. In a group whose replicas compact for themselves nobody
    /// else has this one's files.
    pub(in crate::node) fn begin_copy(&mut self, reason: &str) {
        let can_copy = self.view.has_one_tree() && self.is_to_be_filled();
        let next = match can_copy {
            true => "it asks the head for one",
            false if self.view.has_one_tree() => "it is filled once the group goes on without it",
            false => "none can be made, as each replica has files of its own",
        };
        self.effects.notice(format!("{reason}; {next}"));
        self.settle();
        if can_copy {
            self.fill.begin(&facts!(self));
        }
    }

    /// Goes on with a copy, here and for others.
    pub(in crate::node) fn advance_copies(&mut self) {
        self.tick_copies();
        self.pass_copied_log();
        if self.state.is_being_filled() && self.is_to_be_filled() {
            self.fill.begin(&facts!(self));
        }
        if !self.fill.is_begun() {
            return;
        }
        let (facts, pool) = (facts!(self), &self.pool);
        let wish = self.fill.schedule(&facts, &mut self.effects, pool);
        self.settle();
        self.grant_wish(wish);
    }

    fn grant_wish(&mut self, wish: Option<FillWish>) {
        match wish {
            None => {}
            Some(FillWish::Mark) => self.mark_copy(),
            Some(FillWish::Serve(term)) => self.serve_head_of(term),
            Some(FillWish::Install(state)) => self.install_copy(state),
        }
    }

    /// Grants slots to the head that runs in a term: in another session, if it was another term.
    fn serve_head_of(&mut self, term: Term) {
        if self.grants.serve(term) {
            self.raise_session();
        }
    }

    pub(in crate::node) fn handle_state(
        &mut self,
        from: ReplicaId,
        (number, total, at): (u64, u64, u64),
        bytes: &[u8],
    ) {
        let facts = facts!(self);
        if !Fill::is_source(&facts, from) {
            return;
        }
        let (part, pool) = ((number, total, at), &self.pool);
        let wish = self.fill.part_came(&facts, &mut self.effects, pool, part, bytes);
        self.settle();
        self.grant_wish(wish);
    }

    pub(in crate::node) fn fill_checked(&mut self, at: &Arc<FilePlacement>, result: Result<()>) {
        self.fill.checked(&facts!(self), &mut self.effects, at.file, result);
        self.settle();
    }

    /// Makes the mark durable that says that this replica is being filled: a start from then on
    /// finds no tree and no log, and all files of before as files that nothing names.
    pub(in crate::node) fn mark_copy(&mut self) {
        if self.is_draining() {
            return; // the segments of a drain under way stay until it ends
        }
        if self.has(Mutant::OldStateOverwritten) && self.give_away_old_state() {
            return;
        }
        let tree = Tree::create(self.config.tree.clone(), self.config.group);
        let tree = match tree {
            Ok(tree) => tree.snapshot(),
            Err(error) => return self.failed(Failed::Apply, error.within("an empty tree")),
        };
        let state = ReplicaState {
            view: GroupView { term: Term::ZERO, ..self.state.view.clone() },
            spans: vec![Span { term: Term::ZERO, start: LogPosition::ZERO, end: None }],
            trimmed: Anchor::START,
            trimmed_ms: 0,
            durable: LogPosition::ZERO,
            ring: RingState { number: self.state.ring.number, ..RingState::default() },
            copy: CopyMark::Begun,
            ..self.state.clone()
        };
        let reason = Error::unavailable("the replica is to be filled with the group's state");
        self.reopen_with(state, tree, reason);
    }

    /// The planted defect: the slots of the old state are given away before the mark is durable.
    /// Returns whether that is still under way.
    fn give_away_old_state(&mut self) -> bool {
        let files: Vec<FileId> = self.pool.files().map(|placement| placement.file).collect();
        for file in files.iter().filter(|file| file.kind != FileKind::LogSegment) {
            if self.pool.retire_file(*file).and_then(|()| self.pool.free_file(*file)).is_err() {
                return false;
            }
        }
        files.iter().any(|file| file.kind != FileKind::LogSegment)
    }

    /// Installs a state whose files are all here.
    fn install_copy(&mut self, copied: CopiedState) {
        let CopiedState { term, begin, begin_ms, applied_to, spans, tree } = copied;
        let is_behind = applied_to > begin.position && !self.has(Mutant::CopiedEditsAgain);
        let copy = match is_behind {
            true => CopyMark::LogBehind(applied_to),
            false => CopyMark::None,
        };
        let state = ReplicaState {
            view: GroupView { term, ..self.state.view.clone() },
            spans,
            trimmed: begin,
            trimmed_ms: begin_ms,
            durable: begin.position,
            // Records that a lost ring had are in the copy, or come with the log.
            ring: RingState { number: self.state.ring.number, ..RingState::default() },
            copy,
            ..self.state.clone()
        };
        let reason = Error::unavailable("the group's state is here and is installed");
        self.reopen_with(state, tree, reason);
    }

    /// Ends this node with another state, which one checkpoint makes durable as a whole.
    fn reopen_with(&mut self, state: ReplicaState, tree: Vec<u8>, reason: Error) {
        debug_assert_eq!(Failed::Cut.ends(&reason), Ends::Node);
        self.cut_marks();
        let behind = FileId { kind: FileKind::LogSegment, number: u64::MAX };
        if let Err(error) = self.files.begin_log(&mut self.pool, behind) {
            return self.failed(Failed::Accounts, error);
        }
        self.end_with_state(state, tree, reason);
    }

    /// The log has reached what copied files hold, durably: from now on it tells by itself what is
    /// applied.
    fn pass_copied_log(&mut self) {
        let CopyMark::LogBehind(to) = self.state.copy else { return };
        // An idle group appends nothing that would have the ring drained.
        if self.log.end() >= to {
            self.drain.want(to);
        }
        if !self.state.is_log_behind(self.log.durable_end()) {
            self.state.copy = CopyMark::None;
            // Edits that came with the copy are applied up to there, and whoever copies this state
            // next is to know that.
            self.state.durable = self.state.durable.max(to);
            self.stage_state(None);
        }
    }

    // ---- the head

    pub(in crate::node) fn handle_want_state(&mut self, from: ReplicaId, (number, at): (u64, u64)) {
        // A full member has a state of its own.
        let (group, duties) = (self.view.group(), self.duties());
        let has_own = group.has_full(from) || group.keeps(from);
        let is_filled = group.place_of(from).is_some() && !has_own;
        if !is_filled || !duties.ship || !self.protocol.is_joined() {
            return;
        }
        let is_new = at == 0 && self.copies.lacks(from, number);
        let made = if is_new { self.state_to_copy() } else { None };
        self.copies.wanted(&facts!(self), &mut self.effects, made, from, (number, at));
        self.settle();
        self.tell_limit();
    }

    /// The group's state as of the last applied edit, and its files.
    fn state_to_copy(&self) -> Option<(CopiedState, Arc<Version>)> {
        let flushed = self.tree.flushed().frontier.only();
        let trimmed = (self.state.trimmed, self.state.trimmed_ms);
        let (begin, begin_ms) = self.apply.last_seal_by(flushed).unwrap_or(trimmed);
        if begin.position > flushed {
            return None; // it is asked for again once files have the log up to there
        }
        let state = CopiedState {
            term: self.state.term(),
            begin,
            begin_ms: begin_ms.max(self.state.trimmed_ms),
            applied_to: self.state.durable,
            spans: self.log.spans().to_vec(),
            tree: self.tree.snapshot(),
        };
        Some((state, self.tree.version().clone()))
    }

    fn tick_copies(&mut self) {
        if self.copies.is_empty() {
            return;
        }
        // With too few full members nothing is appended, not even the edits that would have the log
        // trimmed: it stays long until a copy has made another member full.
        let is_long = !self.view.has_too_few()
            && room::is_log_long_for_copies(&facts!(self), &self.tree, &self.pool);
        if self.copies.tick(self.now_ms, is_long) {
            self.tell_limit();
        }
    }

    /// The head tells how far it needs the log, which a copy may hold.
    fn tell_limit(&mut self) {
        let edit = self.protocol.progress().edit;
        self.protocol.handle_edit_applied(edit, self.copies.trimmed_to());
    }

    /// Another view begins: copies begin anew with its head.
    pub(in crate::node) fn give_up_copies(&mut self) {
        self.copies.clear();
        self.fill.give_up();
    }
}
