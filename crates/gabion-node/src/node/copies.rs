//! The head's side of full copies: a state of the group for each member that is being filled.
//!
//! ```text
//!   WantState ─► state of this moment: tree, anchor of the log ─► sent in parts, as asked for
//!                 ├ pins its files: they may leave the tree, and keep their slots
//!                 └ holds the log behind the anchor: the head says that it needs it
//!   ends: the member has a file (its pin) · the connection is lost (pins) · silence for 10 s (all)
//!         · the log grows long (the hold: writes never wait for a copy)
//! ```
//!
//! A member whose state is gone, or whose log is not held any more, asks for another. Files that it
//! has by then are most of that state, so each try is shorter than the one before.

use super::effects::Effects;
use super::facts::Facts;
use super::fill::STILL_MS_MAX;
use crate::copied::CopiedState;
use crate::message::{NodeMessage, STATE_LEN_MAX, STATE_PART_MAX};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{FileId, FileKind, Frontier, LogPosition, ReplicaId};
use gabion_engine::{FileMeta, Version};

/// The states that members are copying.
#[derive(Default)]
pub(super) struct Copies {
    members: BTreeMap<ReplicaId, Copy>,
    /// Files have the log up to here, durably.
    flushed: Frontier,
}

/// A state of the group that a member copies.
struct Copy {
    /// The member's number for it; 0 once it can copy it no further.
    number: u64,
    total: u64,
    /// The state in bytes, until the member has them.
    state: Vec<u8>,
    /// Files that the member lacks. Each description pins its file.
    pins: BTreeMap<FileId, Arc<FileMeta>>,
    /// SSTs that it has, and with which the values files stay that they reference, until it has
    /// these too.
    kept: Vec<Arc<FileMeta>>,
    /// The log is held from here on.
    begin: LogPosition,
    holds_log: bool,
    heard_ms: u64,
}

impl Copies {
    // ---- questions

    /// The description of a file that a member copies.
    pub(super) fn described(&self, to: ReplicaId, file: FileId) -> Option<Arc<FileMeta>> {
        let pinned = self.members.get(&to)?.pins.get(&file)?;
        // A copy: the pin's own would be counted as a reader after the pin is gone.
        Some(Arc::new((**pinned).clone()))
    }

    /// Whether a member copies a state.
    pub(super) fn has(&self, member: ReplicaId) -> bool {
        self.members.get(&member).is_some_and(|copy| copy.number != 0)
    }

    /// Whether a member has no state under this number.
    pub(super) fn lacks(&self, member: ReplicaId, number: u64) -> bool {
        self.members.get(&member).is_none_or(|copy| copy.number != number)
    }

    /// How far the log may be trimmed where files have it up to there, durably.
    pub(super) fn limit(&mut self, flushed: Frontier) -> Frontier {
        self.flushed = flushed;
        self.trimmed_to()
    }

    /// As far as the log may be trimmed now.
    pub(super) fn trimmed_to(&self) -> Frontier {
        let held = self.members.values().filter(|copy| copy.holds_log);
        held.fold(self.flushed, |limit, copy| limit.meet(Frontier::of(copy.begin)))
    }

    /// Checks what holds between steps: what is pinned is pinned for somebody.
    pub(super) fn invariants(&self) {
        for (member, copy) in &self.members {
            assert!(
                copy.number != 0 || copy.pins.is_empty(),
                "{member} cannot copy what is pinned"
            );
        }
    }

    // ---- the state

    /// A member asks for a part of a state. `made` is a new one, where it asks for one.
    pub(super) fn wanted(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        made: Option<(CopiedState, Arc<Version>)>,
        from: ReplicaId,
        (number, at): (u64, u64),
    ) {
        if self.lacks(from, number) && at == 0 {
            let Some((state, version)) = made else { return };
            self.begin(facts, effects, from, number, (&state, &version));
        }
        let copy = self.members.get_mut(&from).filter(|copy| copy.number == number);
        let Some(copy) = copy.filter(|copy| copy.holds_log) else {
            let (total, at, bytes) = (0, 0, Vec::new());
            let message = NodeMessage::State { number, total, at, bytes };
            return effects.tell_member(from, message);
        };
        copy.heard_ms = facts.now_ms;
        if at == copy.total {
            copy.state = Vec::new();
        }
        let rest = copy.state.get(at as usize..).unwrap_or_default();
        let bytes = rest[..rest.len().min(STATE_PART_MAX)].to_vec();
        let total = copy.total;
        let at = at.min(total);
        effects.tell_member(from, NodeMessage::State { number, total, at, bytes });
    }

    fn begin(
        &mut self,
        facts: &Facts,
        effects: &mut Effects,
        from: ReplicaId,
        number: u64,
        (state, version): (&CopiedState, &Version),
    ) {
        let bytes = state.encode();
        let total = bytes.len() as u64;
        if total > STATE_LEN_MAX {
            return effects.notice(format!(
                "{from} cannot be filled: the state has {total} bytes, the limit is {STATE_LEN_MAX}"
            ));
        }
        let pins = version.described().map(|meta| (meta.id, meta.clone())).collect();
        let copy = Copy {
            number,
            total,
            state: bytes,
            pins,
            kept: Vec::new(),
            begin: state.begin.position,
            holds_log: true,
            heard_ms: facts.now_ms,
        };
        self.members.insert(from, copy);
    }

    /// A member has a file, and needs it no longer.
    pub(super) fn have(&mut self, from: ReplicaId, file: FileId, now_ms: u64) {
        if let Some(copy) = self.members.get_mut(&from) {
            let had = copy.pins.remove(&file);
            // Files with values come last in the order of kinds.
            let last = copy.pins.last_key_value();
            match last.is_some_and(|(file, _)| file.kind != FileKind::Sst) {
                true => copy.kept.extend(had.filter(|it| !it.references.is_empty())),
                false => copy.kept.clear(),
            }
            copy.heard_ms = now_ms;
        }
    }

    // ---- ends

    /// The connection with a member is gone. Its log is held for a while: the member may have all
    /// files, and come back with the state installed.
    pub(super) fn lose(&mut self, peer: ReplicaId) {
        if let Some(copy) = self.members.get_mut(&peer) {
            copy.number = 0;
            copy.state = Vec::new();
            copy.pins.clear();
            copy.kept.clear();
        }
    }

    /// Ends copies that nobody goes on with, and holds of a log that has grown long. Returns
    /// whether the log may be trimmed further.
    pub(super) fn tick(&mut self, now_ms: u64, is_log_long: bool) -> bool {
        let before = self.trimmed_to();
        self.members.retain(|_, copy| now_ms.saturating_sub(copy.heard_ms) < STILL_MS_MAX);
        if is_log_long {
            self.members.values_mut().for_each(|copy| copy.holds_log = false);
        }
        before != self.trimmed_to()
    }

    /// Another view begins, in which the head may be another.
    pub(super) fn clear(&mut self) {
        self.members.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeOptions;
    use crate::node::Node;
    use crate::node::effects::Effect;
    use crate::node::facts::facts;
    use crate::node::testing::{HEAD, TAIL, one_of_two};
    use gabion_base::Term;
    use gabion_log::{Anchor, Span};

    /// The parts of a state that a member was sent since the last look: total, place and length.
    fn sent(effects: &mut Effects) -> Vec<(u64, u64, usize)> {
        let parts =
            core::iter::from_fn(|| effects.next_effect()).filter_map(|effect| match effect {
                Effect::Tell(TAIL, NodeMessage::State { total, at, bytes, .. }) => {
                    Some((total, at, bytes.len()))
                }
                _ => None,
            });
        parts.collect()
    }

    /// A state of so many bytes at least, whose log goes on at a position.
    fn state(len: usize, at: u64) -> CopiedState {
        let begin = Anchor { position: LogPosition(at), ..Anchor::START };
        let start = LogPosition::ZERO;
        let spans = alloc::vec![Span { term: Term(1), start, end: None }];
        let (term, applied_to, tree) = (Term(1), LogPosition::ZERO, alloc::vec![0; len]);
        CopiedState { term, begin, begin_ms: 0, applied_to, spans, tree }
    }

    struct Asked(Node, Copies, Effects);

    impl Asked {
        fn for_part(&mut self, number: u64, at: u64, state: Option<CopiedState>) {
            let Self(node, copies, effects) = self;
            let version = node.tree.version().clone();
            let made = state.map(|state| (state, version));
            copies.wanted(&facts!(node), effects, made, TAIL, (number, at));
            copies.invariants();
        }
    }

    #[test]
    fn a_state_is_sent_in_parts_and_holds_the_log_until_its_member_is_silent() {
        let node = one_of_two(HEAD, NodeOptions::default());
        let mut asked = Asked(node, Copies::default(), Effects::default());
        let flushed = Frontier::of(LogPosition(500));
        assert_eq!(asked.1.limit(flushed), flushed);
        let (part, len) = (STATE_PART_MAX as u64, STATE_PART_MAX + 10);
        asked.for_part(7, 0, Some(state(len, 300)));
        asked.for_part(7, part, None);
        let sent_parts = sent(&mut asked.2);
        let total = sent_parts[0].0;
        let rest = (total - part) as usize;
        assert_eq!(sent_parts, [(total, 0, STATE_PART_MAX), (total, part, rest)]);
        assert_eq!(asked.1.trimmed_to(), Frontier::of(LogPosition(300)));
        asked.for_part(7, total, None);
        assert_eq!(sent(&mut asked.2), [(total, total, 0)], "it is held");
        asked.for_part(6, part, None);
        assert_eq!(sent(&mut asked.2), [(0, 0, 0)], "of an earlier state there is no more");
        assert!(!asked.1.tick(STILL_MS_MAX - 1, false));
        // The member may come back with the state installed.
        asked.1.lose(TAIL);
        assert!(!asked.1.has(TAIL));
        assert_eq!(asked.1.trimmed_to(), Frontier::of(LogPosition(300)));
        assert!(asked.1.tick(STILL_MS_MAX, false));
        assert_eq!(asked.1.trimmed_to(), flushed);
    }

    #[test]
    fn a_log_that_grows_long_is_held_for_no_copy_and_the_member_hears_of_it() {
        let node = one_of_two(HEAD, NodeOptions::default());
        let mut asked = Asked(node, Copies::default(), Effects::default());
        let flushed = Frontier::of(LogPosition(500));
        asked.1.limit(flushed);
        asked.for_part(7, 0, Some(state(10, 300)));
        let total = sent(&mut asked.2)[0].0;
        assert!(asked.1.tick(0, true));
        assert_eq!(asked.1.trimmed_to(), flushed);
        asked.for_part(7, total, None);
        assert_eq!(sent(&mut asked.2), [(0, 0, 0)]);
        asked.for_part(8, 0, Some(state(10, 500)));
        assert_eq!(sent(&mut asked.2).len(), 1, "another state goes on from where the log begins");
        assert_eq!(asked.1.trimmed_to(), flushed);
    }
}
