//! The configuration of a protocol.

use crate::spans::POSITION_MAX;
use crate::{GroupView, Lost};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use gabion_base::{
    ConfigNumber, Error, FileId, LogPosition, ReplicaId, Result, SEGMENT_ORDINAL_MAX, ShardId, Term,
};

/// How far the terms of a configuration are apart.
const TERM_STRIDE: u64 = 64;

/// The members, and their patience with each other. It stands for the life of one protocol: another
/// view begins another ([`crate::begin`]).
#[derive(Clone, Debug)]
pub struct Config {
    /// The group, its members and their order.
    pub view: GroupView,
    /// This member.
    pub me: ReplicaId,
    /// A connection on which nothing was sent for this long gets a heartbeat, in milliseconds.
    pub heartbeat_ms: u64,
    /// A member that is silent for this long, in milliseconds, is out; over `heartbeat_ms`.
    pub timeout_ms: u64,
    /// A promise about reads lasts so long, in milliseconds; longer than `heartbeat_ms`, as one is
    /// asked for with each heartbeat. So long a view waits before it takes effect.
    pub lease_ms: u32,
    /// Sending pauses at this many bytes of log that the next member has not acknowledged.
    pub window_bytes: u64,
    /// Bytes of a log segment: names the place of lost log. No record is longer.
    pub segment_len: u64,
    /// Bytes of each member's ring, at least four segments. No member is sent log that would
    /// overwrite unflushed log in its ring.
    pub ring_len: u64,
}

impl Config {
    /// This member's place in the order, of a configuration that can work.
    pub(crate) fn validate(&self) -> Result<usize> {
        self.check()?;
        self.view.place_of(self.me).ok_or_else(|| {
            Error::invalid(format!("replica {} is not a member of the group", self.me.get()))
        })
    }

    /// Whether this replica has a place in the view that is known here.
    pub(crate) fn is_member(&self) -> bool {
        self.view.config > ConfigNumber::ZERO && self.view.place_of(self.me).is_some()
    }

    /// Checks all but this replica's place.
    pub(crate) fn check(&self) -> Result<()> {
        self.view.validate()?;
        if self.heartbeat_ms == 0 || self.timeout_ms <= self.heartbeat_ms {
            return Err(Error::invalid(format!(
                "timeout of {} ms with a heartbeat of {} ms: the heartbeat must be at least 1 and \
                 the timeout longer",
                self.timeout_ms, self.heartbeat_ms
            )));
        }
        if u64::from(self.lease_ms) <= self.heartbeat_ms {
            return Err(Error::invalid(format!(
                "a lease of {} ms with a heartbeat of {} ms: it must be longer",
                self.lease_ms, self.heartbeat_ms
            )));
        }
        if self.window_bytes == 0 {
            return Err(Error::invalid("a window of 0 bytes sends nothing"));
        }
        if self.segment_len == 0 {
            return Err(Error::invalid("a log segment of 0 bytes holds nothing"));
        }
        if self.ring_len < self.segment_len.saturating_mul(4) {
            return Err(Error::invalid(format!(
                "a ring of {} bytes with segments of {}: it must have four of them at least",
                self.ring_len, self.segment_len
            )));
        }
        Ok(())
    }

    /// The term that a writer begins when `highest` is the highest that it knows of.
    ///
    /// No two writers ever begin the same term: logs are compared by the terms that wrote them. A
    /// configuration has one writer, whose durable counter tells it the terms that it began. But
    /// it may have been cut off and begun some that nobody heard of, and the writer of a later
    /// configuration knows nothing of these. So each configuration but the first has numbers of
    /// its own, [`TERM_STRIDE`] apart. They differ from those of that many configurations before
    /// it, and from as many terms as the first one may have begun unheard.
    pub(crate) fn next_term(&self, highest: Term) -> Term {
        let config = self.view.config.get();
        if config <= 1 {
            return highest.next();
        }
        let least = highest.get() + TERM_STRIDE;
        let past = (least % TERM_STRIDE + TERM_STRIDE - config % TERM_STRIDE) % TERM_STRIDE;
        let term = Term(least + (TERM_STRIDE - past) % TERM_STRIDE);
        assert_eq!(
            term.get() % TERM_STRIDE,
            config % TERM_STRIDE,
            "a number of another configuration"
        );
        term
    }

    /// The last position that a log can have: every segment up to there has a name.
    pub(crate) fn position_max(&self) -> LogPosition {
        let end = (SEGMENT_ORDINAL_MAX + 1).saturating_mul(self.segment_len);
        POSITION_MAX.min(LogPosition(end - 1))
    }

    /// The last position at which records sent to a member may begin, with its log durable up to
    /// `durable`. One segment is kept for the record that begins there, and one because a ring
    /// keeps a partly flushed segment whole.
    pub(crate) const fn ring_ends(&self, durable: LogPosition) -> LogPosition {
        LogPosition(durable.get().saturating_add(self.ring_len - 2 * self.segment_len))
    }

    /// Why no term may begin: these members' logs were durable and committed further than any log
    /// reaches now.
    pub(crate) fn reason_of_loss(&self, lost: &[(ReplicaId, Lost)]) -> Option<String> {
        let (_, furthest) = lost.iter().max_by_key(|(_, lost)| lost.tip())?;
        let places: Vec<_> = lost.iter().map(|(id, lost)| self.place_of_loss(*id, *lost)).collect();
        Some(format!(
            "the log up to {} was durable and no replica has all of it any more: {}; the group does \
             not go on without it",
            furthest.to,
            places.join(", ")
        ))
    }

    fn place_of_loss(&self, id: ReplicaId, lost: Lost) -> String {
        let (at, segment_len) = (lost.from.get(), self.segment_len);
        format!(
            "replica {} lost it from {} ({} at {}) to {}",
            id.get(),
            lost.from,
            FileId::log_segment(ShardId::ZERO, at / segment_len),
            at % segment_len,
            lost.to
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::{GroupId, LogKind};

    #[test]
    fn terms_of_two_configurations_differ_whatever_their_writers_have_heard() {
        let view = GroupView::founding(GroupId(1), &[ReplicaId(1)], LogKind::Shared);
        let (me, window_bytes) = (ReplicaId(1), 1);
        let (heartbeat_ms, timeout_ms, lease_ms) = (1, 2, 2);
        let (segment_len, ring_len) = (1, 4);
        let mut config = Config {
            view,
            me,
            heartbeat_ms,
            timeout_ms,
            lease_ms,
            window_bytes,
            segment_len,
            ring_len,
        };
        let mut next = |number, highest| {
            config.view.config = ConfigNumber(number);
            config.next_term(Term(highest)).get()
        };
        assert_eq!((next(1, 0), next(1, 1)), (1, 2), "the founders count one by one");
        for number in 2..200 {
            for highest in [0, 1, 63, 64, 1_000, 1_037] {
                let term = next(number, highest);
                assert_eq!(term % TERM_STRIDE, number % TERM_STRIDE);
                let over = highest + TERM_STRIDE..highest + 2 * TERM_STRIDE;
                assert!(over.contains(&term), "{term} after {highest}");
            }
        }
    }
}
