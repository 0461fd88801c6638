//! The write gate. One judgement says what holds back a write that comes now; the gate that a
//! command meets and the time that counts as a stop follow from it.
//!
//! ```text
//!   facts of machines ──► judge ──► Hold ─┬─► WriteGate: what a command meets
//!   (route/gate.rs)                       └─► Held: for what writers stand still, and who gives up
//!
//!   what holds          a put is   a delete is      counted as     ends
//!   refusal             refused    refused          -              with its term or process
//!   no space            refused    taken, but not   -              when the device has room
//!                                  behind a lag
//!   no room             refused    taken, or waits  what lags      when that has passed, or
//!                                  behind a lag                    never
//!   room that is made   waits      waits            what lags, or  with the jobs under way
//!                                                   room
//!   lag                 waits      waits            what lags      when that has passed, or
//!                                                                  never
//!   pace                waits      waits            slowed down    at a time that is known
//! ```
//!
//! The first of them that holds decides.

use super::WriteGate;
use super::held::{Held, WriteStop};
use alloc::format;
use alloc::string::String;
use core::fmt;
use gabion_base::{Error, ReplicaId};

/// Something that lags behind so far that any write waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lag {
    pub(super) stop: WriteStop,
    pub(super) words: &'static str,
}

impl Lag {
    pub(super) const fn of(stop: WriteStop, words: &'static str) -> Self {
        Self { stop, words }
    }
}

/// Why nothing may go into the log here.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refusal<'a> {
    /// Another member takes writes.
    Elsewhere(ReplicaId),
    /// The log did not take a record of what the MemTable has.
    Failed(&'a Error),
    Stops,
    /// The protocol says why.
    NotReady(&'a str),
    /// The term has not begun in the log.
    Starts,
}

impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elsewhere(writer) => write!(f, "{writer} takes writes"),
            Self::Failed(error) => error.fmt(f),
            Self::Stops => f.write_str("the replica stops"),
            Self::NotReady(reason) => f.write_str(reason),
            Self::Starts => f.write_str("the group is starting"),
        }
    }
}

/// What a write is judged by. By default nothing holds it back.
#[derive(Default)]
pub(super) struct GateGiven<'a> {
    pub(super) refusal: Option<Refusal<'a>>,
    /// Why jobs pause: the device had no room for the files of one.
    pub(super) no_space: Option<String>,
    /// Why puts are not taken, while room is short.
    pub(super) no_room: Option<String>,
    /// While room is short: something under way may end with more.
    pub(super) room_is_made: bool,
    /// While room is short: what deletes wait for lacks slots, and has for so long that nobody is
    /// to wait for it.
    pub(super) room_in_vain: bool,
    /// While room is short: the log takes what gives back whole files.
    pub(super) log_goes_on: bool,
    pub(super) lag: Option<Lag>,
    /// Nothing that is under way ends the lag.
    pub(super) lag_in_vain: bool,
    /// Until when writers are slowed down, in ms.
    pub(super) slowed_until_ms: Option<u64>,
}

/// For how long a write is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// Until this time, in ms.
    At(u64),
    /// Until what is under way has ended.
    Passed,
    /// Nothing under way ends it.
    InVain,
}

/// What holds back a write that comes now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Hold {
    Nothing,
    /// Any write waits for this, or goes on slowly. `stop` is none for that.
    Waits {
        stop: Option<WriteStop>,
        words: &'static str,
        until: Until,
    },
    /// There is no room for what is put. Deletes wait for what is `behind`, clears may pass it.
    NoRoom {
        reason: String,
        behind: Option<Lag>,
        clears_pass: bool,
        until: Until,
    },
    /// Nothing is written here.
    Refused(String),
}

/// The first thing that holds a write back.
pub(super) fn judge(given: GateGiven) -> Hold {
    assert!(given.lag.is_some() || !given.lag_in_vain, "what is in vain is a wait for something");
    if let Some(refusal) = given.refusal {
        return Hold::Refused(format!("{refusal}"));
    }
    let lag = given.lag;
    if let Some(reason) = given.no_space {
        let deletes = lag.map(|lag| format!("; deletes are refused, too, as {}", lag.words));
        let reason = format!("the pool is full: {reason}{}", deletes.unwrap_or_default());
        return Hold::NoRoom { reason, behind: lag, clears_pass: false, until: Until::InVain };
    }
    let until = if given.lag_in_vain { Until::InVain } else { Until::Passed };
    match (given.no_room, lag) {
        (Some(reason), behind) if !given.room_is_made => {
            let until = if given.room_in_vain { Until::InVain } else { Until::Passed };
            let reason = format!("{reason}; {}", words_for_deletes(behind, until));
            let clears_pass = given.room_in_vain && given.log_goes_on;
            Hold::NoRoom { reason, behind, clears_pass, until }
        }
        (_, Some(Lag { stop, words })) => Hold::Waits { stop: Some(stop), words, until },
        (Some(_), None) => {
            let words = "the pool is almost full, compaction makes room";
            Hold::Waits { stop: Some(WriteStop::Room), words, until }
        }
        (None, None) => given.slowed_until_ms.map_or(Hold::Nothing, |until_ms| Hold::Waits {
            stop: None,
            words: "compaction is behind, writers are slowed down",
            until: Until::At(until_ms),
        }),
    }
}

fn words_for_deletes(behind: Option<Lag>, until: Until) -> String {
    match behind {
        None => "deletes are taken".into(),
        Some(Lag { words, .. }) if until == Until::Passed => format!("deletes wait, as {words}"),
        Some(Lag { words, .. }) => {
            format!("deletes are refused, too, as {words} and nothing gives slots back")
        }
    }
}

impl Hold {
    /// What a command meets.
    #[inline]
    pub(super) fn gate(self) -> WriteGate {
        match self {
            Self::Nothing => WriteGate::Open,
            Self::Waits { words, .. } => WriteGate::Wait(words),
            Self::NoRoom { reason, behind, clears_pass, .. } => WriteGate::Full {
                reason,
                takes_deletes: behind.is_none(),
                takes_clears: behind.is_none() || clears_pass,
            },
            Self::Refused(reason) => WriteGate::Refuse(reason),
        }
    }

    /// For what a write at the gate stands still, if it waits.
    pub(super) fn held(&self) -> Option<Held> {
        match self {
            Self::Waits { stop, until, .. } => {
                let is_slowed = matches!(until, Until::At(_));
                assert_eq!(stop.is_none(), is_slowed, "a stop has a reason, and no time");
                Some(Held { stop: *stop, others_give_up: *until == Until::InVain })
            }
            // Puts are told, and give up.
            Self::NoRoom { behind: Some(lag), until: Until::Passed, .. } => {
                Some(Held { stop: Some(lag.stop), others_give_up: true })
            }
            Self::NoRoom { .. } | Self::Nothing | Self::Refused(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLUSH: Lag = Lag::of(WriteStop::Flush, "flush is behind");

    /// The gate, what counts as a stop, and whether others give up there.
    fn met(given: GateGiven) -> (WriteGate, Option<(Option<WriteStop>, bool)>) {
        let hold = judge(given);
        let held = hold.held().map(|held| (held.stop, held.others_give_up));
        (hold.gate(), held)
    }

    fn full(reason: &str, takes_deletes: bool, takes_clears: bool) -> WriteGate {
        WriteGate::Full { reason: reason.into(), takes_deletes, takes_clears }
    }

    /// Room is short, with what lags.
    fn short<'a>(lag: Option<Lag>) -> GateGiven<'a> {
        GateGiven { no_room: Some("the pool is full: 1 of 9".into()), lag, ..GateGiven::default() }
    }

    #[test]
    fn the_first_thing_that_holds_decides() {
        assert_eq!(met(GateGiven::default()), (WriteGate::Open, None));
        let slowed = GateGiven { slowed_until_ms: Some(7), ..GateGiven::default() };
        let words = "compaction is behind, writers are slowed down";
        assert_eq!(met(slowed), (WriteGate::Wait(words), Some((None, false))));
        let behind = GateGiven { slowed_until_ms: Some(7), ..short(Some(FLUSH)) };
        let behind = GateGiven { no_room: None, ..behind };
        let stop = Some((Some(WriteStop::Flush), false));
        assert_eq!(met(behind), (WriteGate::Wait("flush is behind"), stop));
        let all = GateGiven {
            refusal: Some(Refusal::Elsewhere(ReplicaId(2))),
            no_space: Some("no space".into()),
            ..short(Some(FLUSH))
        };
        assert_eq!(met(all), (WriteGate::Refuse("r2 takes writes".into()), None));
    }

    /// docs/faults.md: P28
    #[test]
    fn who_waits_in_vain_is_told_and_others_give_up() {
        let in_vain = GateGiven { no_room: None, lag_in_vain: true, ..short(Some(FLUSH)) };
        let stop = |gives_up| Some((Some(WriteStop::Flush), gives_up));
        assert_eq!(met(in_vain), (WriteGate::Wait("flush is behind"), stop(true)));
        let made = GateGiven { room_is_made: true, ..short(Some(FLUSH)) };
        assert_eq!(met(made), (WriteGate::Wait("flush is behind"), stop(false)));
        let made = GateGiven { room_is_made: true, ..short(None) };
        let words = "the pool is almost full, compaction makes room";
        assert_eq!(met(made), (WriteGate::Wait(words), Some((Some(WriteStop::Room), false))));
    }

    /// docs/faults.md: E10
    #[test]
    fn without_room_deletes_go_on_or_wait_and_are_refused_where_they_would_wait_in_vain() {
        let gate = full("the pool is full: 1 of 9; deletes are taken", true, true);
        assert_eq!(met(short(None)), (gate, None));
        let gate = full("the pool is full: 1 of 9; deletes wait, as flush is behind", false, false);
        let held = Some((Some(WriteStop::Flush), true));
        assert_eq!(met(short(Some(FLUSH))), (gate, held));
        let reason = "the pool is full: 1 of 9; deletes are refused, too, as flush is behind and \
                      nothing gives slots back";
        for log_goes_on in [false, true] {
            let given = GateGiven { room_in_vain: true, log_goes_on, ..short(Some(FLUSH)) };
            assert_eq!(met(given), (full(reason, false, log_goes_on), None));
        }
    }

    /// docs/faults.md: E9
    #[test]
    fn a_device_without_space_takes_deletes_as_long_as_nothing_lags() {
        let given =
            |lag| GateGiven { no_space: Some("ENOSPC".into()), lag, ..GateGiven::default() };
        assert_eq!(met(given(None)), (full("the pool is full: ENOSPC", true, true), None));
        let reason = "the pool is full: ENOSPC; deletes are refused, too, as flush is behind";
        assert_eq!(met(given(Some(FLUSH))), (full(reason, false, false), None));
    }

    #[test]
    #[should_panic(expected = "what is in vain is a wait for something")]
    fn nothing_is_in_vain_where_nothing_lags() {
        let _ = judge(GateGiven { lag_in_vain: true, ..GateGiven::default() });
    }
}
