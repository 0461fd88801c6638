//! The configuration of a protocol.

use crate::spans::POSITION_MAX;
use crate::{GroupView, Lost};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use gabion_base::{
    ConfigNumber, Error, FileId, LogPosition, ReplicaId, Result, SEGMENT_ORDINAL_MAX, ShardId,
};

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
