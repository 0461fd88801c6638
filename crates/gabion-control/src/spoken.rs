//! Everything that a controller hears and says: reports in, outputs and states of groups out.

use crate::detector::{Probe, Verdict};
use crate::filling::Filling;
use crate::store::Version;
use crate::vitals::Vitals;
use alloc::vec::Vec;
use gabion_base::{ConfigNumber, GroupId, ReplicaId, Term};
use gabion_replication::{GroupView, Member};

/// The time of an event, by two clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Ms of a clock that never goes back and stands still while the machine is suspended or the
    /// process stopped: only differences count.
    pub now_ms: u64,
    /// Ms since 1970, for the list of events alone.
    pub unix_ms: u64,
}

/// The life of one controller over its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch {
    /// A durable counter of starts, in the store.
    pub number: u64,
    /// A random number: tells two lives apart that a store which was set back gave one number.
    pub id: u64,
}

/// A replica's word on itself, every [`Patience::report_ms`](crate::Patience::report_ms).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Itself as a member: who it is, where it runs and can be reached.
    pub member: Member,
    /// The group that it belongs to.
    pub group: GroupId,
    /// The newest view that is durable here; none at a replica with an empty pool.
    pub view: Option<GroupView>,
    /// The newest configuration whose term has its first record in this replica's log.
    pub founded: ConfigNumber,
    /// Whether it has all that the group has, as a member that is being filled.
    pub is_filled: bool,
    /// Whether its log has all that was acknowledged and nothing else, as far as it knows, as a
    /// full member.
    pub is_whole: bool,
    /// How far it is, as a member that is being filled; none at any other, and while it opens.
    pub filling: Option<Filling>,
    /// Its probe write.
    pub probe: Probe,
    /// Its load and room; none while it opens.
    pub vitals: Option<Vitals>,
    /// Members of the view in effect here that it has not heard for longer than members stay
    /// silent: at most [`GroupView::MEMBERS_MAX`].
    pub unheard: Vec<ReplicaId>,
    /// The highest epoch of a controller that it has heard.
    pub epoch: Epoch,
}

/// Something that the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Replace the record of a group in the store if it has this version, and call
    /// [`handle_swapped`](crate::Controller::handle_swapped).
    Swap {
        /// The group.
        group: GroupId,
        /// The version that was read or stored last.
        expected: Version,
        /// The record, encoded.
        record: Vec<u8>,
    },
    /// Read the record of a group, and call [`handle_read`](crate::Controller::handle_read).
    Read {
        /// The group.
        group: GroupId,
    },
    /// Tell a replica of the newest view and of this controller's epoch. It may get lost.
    Tell {
        /// The receiver.
        to: ReplicaId,
        /// The view. The receiver may be no member of it.
        view: GroupView,
        /// The epoch.
        epoch: Epoch,
    },
}

/// A replica, for status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Its number.
    pub replica: ReplicaId,
    /// Whether the newest view has it, and as a full member.
    pub is_member: bool,
    /// See [`Member::is_full`].
    pub is_full: bool,
    /// The verdict on it; none before its first report.
    pub verdict: Option<Verdict>,
    /// The configuration that it said it acts in.
    pub config: Option<ConfigNumber>,
    /// Whether it has all that the group has, as a member that is being filled.
    pub is_filled: bool,
    /// How far it is, as a member that is being filled and said so.
    pub filling: Option<Filling>,
    /// Whether it is to be no member, by an operator's word.
    pub is_leaving: bool,
    /// Its load and room, by its last report; none before one.
    pub vitals: Option<Vitals>,
}

/// A group, for status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// The newest view.
    pub view: GroupView,
    /// The highest term that a replica acts in.
    pub term: Term,
    /// Full members that the group is to have.
    pub wanted: u8,
    /// Whether it is complete.
    pub is_complete: bool,
    /// Members, and other replicas that report.
    pub replicas: Vec<ReplicaStatus>,
}

impl Report {
    /// The configuration in which the replica acts; zero without a view.
    #[must_use]
    pub fn config(&self) -> ConfigNumber {
        self.view.as_ref().map_or(ConfigNumber::ZERO, |view| view.config)
    }
}
