//! The state of a group at one moment, as the head gives it to a member that is being filled: the
//! tree, and the place of the log from which that goes on.
//!
//! ```text
//!   fields (gabion_base::codec), each once:
//!     1 log    u64 term of the head, u64 group time and Anchor where the log goes on,
//!              u64 position up to which edits in it are applied, Span list; critical
//!     2 tree   the snapshot of the tree (gabion_engine), with each file's description; critical
//! ```
//!
//! The log goes on at a seal at or before the frontier that is flushed into files, so the tree
//! needs no record before it. Edits behind it that the tree has are passed over.

use crate::tlv::{Tlv, TlvReader};
use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::Put;
use gabion_base::{Error, GroupId, LogPosition, Result, TERM_MAX, Term};
use gabion_engine::{Tree, TreeConfig};
use gabion_log::{Anchor, Span};

/// A group's state at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CopiedState {
    /// The term that runs at the head.
    pub(crate) term: Term,
    /// The log goes on here.
    pub(crate) begin: Anchor,
    /// Group time there, in ms.
    pub(crate) begin_ms: u64,
    /// The edits of the log up to here are applied.
    pub(crate) applied_to: LogPosition,
    /// The spans of the head's log.
    pub(crate) spans: Vec<Span>,
    /// The tree's snapshot.
    pub(crate) tree: Vec<u8>,
}

const TAG_LOG: u16 = 1;
const TAG_TREE: u16 = 2;
const WHAT: &str = "state of the group";

impl CopiedState {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut log = Vec::new();
        log.put_u64(self.term.get());
        log.put_u64(self.begin_ms);
        self.begin.encode(&mut log);
        log.put_u64(self.applied_to.get());
        Span::encode_list(&self.spans, &mut log);
        let mut out = Tlv::new();
        out.critical(TAG_LOG, &log);
        out.critical(TAG_TREE, &self.tree);
        out.finish()
    }

    /// Reads [`Self::encode`]. The tree is read with [`Self::open_tree`].
    ///
    /// # Errors
    /// Corruption; unsupported for a critical field of a later version.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let fields = TlvReader::read(bytes, WHAT, &[TAG_LOG, TAG_TREE])?;
        let mut log = fields.field(TAG_LOG)?;
        let (term, begin_ms) = (Term(log.u64()?), log.u64()?);
        let (begin, applied_to) = (Anchor::decode(&mut log)?, LogPosition(log.u64()?));
        let spans = Span::decode_list(&mut log)?;
        log.finish()?;
        let latest = spans.last().map_or(Term::ZERO, |span| span.term);
        if term > TERM_MAX || latest > term || term == Term::ZERO {
            return Err(Error::corruption(format!(
                "{WHAT}: a log with records of {latest} in {term}, the limit is {TERM_MAX}"
            )));
        }
        let tree = fields.bytes(TAG_TREE)?.to_vec();
        Ok(Self { term, begin, begin_ms, applied_to, spans, tree })
    }

    /// The tree.
    ///
    /// # Errors
    /// Corruption of a snapshot that is not this group's, or whose log does not reach where its
    /// files end.
    pub(crate) fn open_tree(&self, config: &TreeConfig, group: GroupId) -> Result<Tree> {
        let tree = Tree::open(config.clone(), group, &self.tree)?;
        let flushed = tree.flushed().frontier.only();
        if self.begin.position > flushed {
            return Err(Error::corruption(format!(
                "{WHAT}: its log begins at {}, its files end at {flushed}",
                self.begin.position
            )));
        }
        Ok(tree)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::LogIndex;

    fn state() -> CopiedState {
        let group = GroupId(7);
        CopiedState {
            term: Term(3),
            begin: Anchor::START,
            begin_ms: 9,
            applied_to: LogPosition(80),
            spans: alloc::vec![Span { term: Term(3), start: LogPosition(4096), end: None }],
            tree: Tree::create(TreeConfig::default(), group).unwrap().snapshot(),
        }
    }

    #[test]
    fn a_state_survives_its_bytes_and_no_prefix_does() {
        let bytes = state().encode();
        assert_eq!(CopiedState::decode(&bytes).unwrap(), state());
        for len in 0..bytes.len() {
            assert!(CopiedState::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn a_state_whose_log_and_tree_do_not_fit_each_other_is_refused() {
        let open = |state: &CopiedState, group| state.open_tree(&TreeConfig::default(), group);
        assert!(open(&state(), GroupId(7)).is_ok());
        assert!(open(&state(), GroupId(8)).is_err(), "of another group");
        let position = LogPosition(8);
        let begin = Anchor { position, index: LogIndex(1), crc: 2 };
        assert!(
            open(&CopiedState { begin, ..state() }, GroupId(7)).is_err(),
            "records are missing"
        );
        let old = CopiedState { term: Term(2), ..state() };
        assert!(CopiedState::decode(&old.encode()).is_err(), "records of a later term");
    }
}
