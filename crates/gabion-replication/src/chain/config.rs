//! The configuration of a chain.

use alloc::format;
use alloc::vec::Vec;
use gabion_base::{ConfigNumber, Error, GroupId, LogPosition, ReplicaId, Result};

/// The members, and their patience with each other.
#[derive(Clone, Debug)]
pub struct ChainConfig {
    /// The group.
    pub group: GroupId,
    /// The number of this configuration.
    pub config: ConfigNumber,
    /// The chain in order: head first, tail last. 1 to 64, each once.
    pub members: Vec<ReplicaId>,
    /// Which of them this is.
    pub me: ReplicaId,
    /// A connection on which nothing was sent for this long gets a heartbeat, in milliseconds.
    pub heartbeat_ms: u64,
    /// A member that was not heard for this long is out, in milliseconds; over `heartbeat_ms`.
    pub timeout_ms: u64,
    /// Bytes of log sent to the next member and not acknowledged by it, at which sending pauses.
    pub window_bytes: u64,
    /// Bytes of a log segment: names the place of what a log lost. No record is longer.
    pub segment_len: u64,
    /// Bytes of each member's ring, at least four segments: a member is sent no log that would
    /// overwrite there what it has not flushed.
    pub ring_len: u64,
}

impl ChainConfig {
    pub(super) fn validate(&self) -> Result<usize> {
        let count = self.members.len();
        if count == 0 || count > 64 {
            return Err(Error::invalid(format!("{count} members in a group, allowed are 1 to 64")));
        }
        for (i, member) in self.members.iter().enumerate() {
            if self.members[..i].contains(member) {
                return Err(Error::invalid(format!("replica {} is a member twice", member.get())));
            }
        }
        if self.heartbeat_ms == 0 || self.timeout_ms <= self.heartbeat_ms {
            return Err(Error::invalid(format!(
                "timeout of {} ms with a heartbeat of {} ms: the heartbeat must be at least 1 and \
                 the timeout longer",
                self.timeout_ms, self.heartbeat_ms
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
        self.members.iter().position(|&m| m == self.me).ok_or_else(|| {
            Error::invalid(format!("replica {} is not a member of the group", self.me.get()))
        })
    }

    /// Where what is sent to a member must begin at the latest whose log is durable up to
    /// `durable`. One segment is kept for the record that begins there, and one as a ring keeps
    /// whole what is flushed in part.
    pub(super) const fn ring_ends(&self, durable: LogPosition) -> LogPosition {
        LogPosition(durable.get().saturating_add(self.ring_len - 2 * self.segment_len))
    }
}
