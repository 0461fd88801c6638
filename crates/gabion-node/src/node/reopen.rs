//! A log that must end below what is applied here: the cut becomes durable, and the node asks to be
//! opened anew. What was applied beyond it is in the MemTables alone, which end with the node.
//!
//! ```text
//!   protocol: cut ─► below an applied edit? ─► the process ends
//!                       │ no
//!                       ▼ nothing is begun any more; no read, no acknowledgement
//!                    spans and term of the other log ─► durable ─► Output::Reopen
//! ```
//!
//! Nothing in ring or segments is touched: records beyond the cut lie in no span of their term any
//! more, so recovery does not take them. A crash before the commit finds the log as it was, and
//! hears of the cut again; one after it finds what the reopening finds.

use super::{After, Node, Output};
use crate::protocol::spans_of;
use crate::state::ReplicaState;
use alloc::format;
use alloc::vec::Vec;
use gabion_base::{Error, ErrorKind, LogPosition, Term};
use gabion_log::{Following, Span};
use gabion_replication::Action;

/// How far the node is with its end.
#[derive(Default)]
pub(super) enum Reopening {
    #[default]
    No,
    /// The cut is on its way into the placement log.
    Keeping(Error),
    /// Another state as a whole is, with this snapshot of its tree.
    Replacing(Error, Vec<u8>),
    /// The driver was told.
    Told,
}

/// The log of this replica as it is to be, without records that are applied here.
pub(super) struct Cut {
    at: LogPosition,
    term: Term,
    spans: Vec<Span>,
}

impl Node {
    /// The cut that an action of the protocol asks for, if it takes records that are applied.
    pub(super) fn cut_by(&self, action: &Action) -> Option<Cut> {
        let known = self.state.term();
        let (term, other) = match action {
            Action::Truncate { at, .. } => {
                let (at, term, spans) = (*at, known, self.log.spans_until(*at));
                return (at < self.log.last().end).then_some(Cut { at, term, spans });
            }
            Action::Follow { spans, .. } => (known.max(spans.tip().0), spans),
            Action::AdoptTerm { term, spans, .. } if !self.view.duties().append => (*term, spans),
            _ => return None,
        };
        // Logs that have nothing in common are refused by the log, when it is to follow.
        let Following { common: at, spans } = self.log.following(&spans_of(other)).ok()?;
        (at < self.log.last().end).then_some(Cut { at, term, spans })
    }

    /// Ends all that this node does. With the next commit a start finds the log that is cut.
    pub(super) fn end_with(&mut self, cut: Option<Cut>, reason: Error) {
        self.ended = true;
        self.readable = false;
        self.refused = Some("the replica is opened anew, as its log was cut".into());
        self.reopening = Reopening::Keeping(reason);
        if let Some(cut) = cut {
            (self.state.view.term, self.state.spans) = (cut.term, cut.spans);
        }
    }

    /// Ends all that this node does. With the next commit, which is a checkpoint, a start finds
    /// another state with another tree.
    pub(super) fn end_with_state(&mut self, state: ReplicaState, tree: Vec<u8>, reason: Error) {
        self.end_with(None, reason.clone());
        self.refused = Some("the replica is opened anew with a copy of the group's state".into());
        self.reopening = Reopening::Replacing(reason, tree);
        self.state = state;
        self.stage_state(Some(After::CutKept));
    }

    /// The tree of the state that is to be installed, if one is.
    pub(super) fn tree_to_install(&self) -> Option<&[u8]> {
        match &self.reopening {
            Reopening::Replacing(_, tree) => Some(tree),
            Reopening::No | Reopening::Keeping(_) | Reopening::Told => None,
        }
    }

    /// Whether the log can be cut: no applied edit is beyond. (The protocol refuses a cut below
    /// what it knows to be committed.)
    pub(super) fn judge_cut(&self, cut: &Cut) -> Error {
        let at = cut.at;
        let flushed = self.tree.flushed().frontier.only();
        let kept = self.state.durable.max(flushed).max(self.state.trimmed.position);
        let (me, end) = (self.me, self.log.last().end);
        if self.log.after(at) < kept {
            return Error::new(
                ErrorKind::Fenced,
                format!(
                    "the log of {me} ends at {end} and is to be cut at {at}, below {kept}, up to \
                     which edit {} and those before it are applied: {me} needs a full copy; leave \
                     it stopped and keep its data",
                    self.tree.last_edit()
                ),
            );
        }
        Error::unavailable(format!(
            "the log of {me} is applied up to {end} and cut at {at}, where the group's goes on \
             otherwise"
        ))
    }

    /// Whether the node has ended and is to be opened anew.
    #[must_use]
    pub const fn is_reopening(&self) -> bool {
        !matches!(self.reopening, Reopening::No)
    }

    /// Whether the cut is yet to become durable.
    pub(super) const fn keeps_cut(&self) -> bool {
        matches!(self.reopening, Reopening::Keeping(_) | Reopening::Replacing(..))
    }

    /// The cut is durable: from now on a start finds the log without the records beyond.
    pub(super) fn cut_kept(&mut self) {
        let kept = core::mem::replace(&mut self.reopening, Reopening::Told);
        if let Reopening::Keeping(reason) | Reopening::Replacing(reason, _) = kept {
            self.outputs.push_back(Output::Reopen(reason));
        }
    }
}

#[cfg(test)]
mod tests;
