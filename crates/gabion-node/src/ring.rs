//! A replica's ring and how its process ended: the pool's memory of both, and the records that may
//! be gone with a lost ring.
//!
//! ```text
//!   running ──► stop: the log is written to its segments, flushed ──► marker in the pool, flushed ──► the process ends
//!      ▲                                                                                                    │
//!      └──────────────── the marker goes, durably, before a record may be in the ring alone ◄── start ──────┘
//! ```
//!
//! With the marker a start needs no ring; without one it does. The loss that a missing ring means
//! is judged here, in one place, for starting a replica and for looking at one. The write that
//! gives the new ring its number remembers the loss in the pool, so no crash makes it forgotten. It
//! is told until a process that knew its fate has stopped cleanly.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use gabion_base::codec::{Put, Reader};
use gabion_base::{Error, LogPosition, ReplicaId, Result, Term};

/// Longest text that is remembered, in bytes.
const WHY_LEN_MAX: usize = 512;

/// Whether a replica's ring was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RingFound {
    /// Its ring.
    #[default]
    Whole,
    /// Another ring, or none, in words that follow "its ring", as `is missing`. The log is read as
    /// if the ring held zeros.
    Lost(String),
}

/// The pool's memory of its ring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RingState {
    /// The number of its ring, raised by one with each that replaces a lost one.
    pub number: u64,
    /// Set when the last process stopped cleanly: the log is flushed to segments up to here, and no
    /// member has more of it from this replica.
    pub stopped: Option<LogPosition>,
    /// The loss of a ring after an unclean stop, if there was one.
    pub loss: Option<RingLoss>,
}

impl RingState {
    /// The state of a new pool: no process had it, and nothing is in its ring.
    pub(crate) fn new() -> Self {
        Self { stopped: Some(LogPosition::ZERO), ..Self::default() }
    }
}

/// The records that may be gone with a ring that was lost after an unclean stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingLoss {
    /// Why the ring counts as lost, in words that follow "its ring".
    pub why: String,
    /// The log is whole up to here; later records were in the ring alone.
    pub from: LogPosition,
    /// Most bytes that these records can have.
    pub len_max: u64,
    /// The group's time there, in ms since 1970: later writes may be missing. 0 if unknown.
    pub since_ms: u64,
    /// The term of the replica then.
    pub term: Term,
    /// The fate of these records.
    pub fate: Fate,
    /// A process that knew its fate has stopped cleanly since: it is told no more.
    pub is_told: bool,
}

/// The fate of the records that a ring held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Other members may have them; they have not said yet.
    Open,
    /// This member had all of them, and they came from there.
    TakenOver(ReplicaId),
    /// Nobody has more. The group goes on in this term without them.
    Gone(Term),
}

impl RingLoss {
    /// The fate in one word, for programs.
    #[must_use]
    pub const fn fate_word(&self) -> &'static str {
        match self.fate {
            Fate::Open => "open",
            Fate::TakenOver(_) => "taken-over",
            Fate::Gone(_) => "gone",
        }
    }

    /// Whether acknowledged writes may be missing, as far as is known.
    #[must_use]
    pub const fn may_miss(&self) -> bool {
        !matches!(self.fate, Fate::TakenOver(_))
    }

    /// The gap that a Hello tells, if there is one.
    pub(crate) const fn gap(&self) -> Option<Term> {
        match self.fate {
            Fate::Open => Some(gabion_replication::ANY_TERM),
            Fate::TakenOver(_) => None,
            Fate::Gone(term) => Some(term),
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let (fate, number) = match self.fate {
            Fate::Open => (0, 0),
            Fate::TakenOver(from) => (1, u64::from(from.get())),
            Fate::Gone(term) => (2, term.get()),
        };
        out.put_u64(self.from.get());
        out.put_u64(self.len_max);
        out.put_u64(self.since_ms);
        out.put_u64(self.term.get());
        out.put_u8(fate);
        out.put_u8(u8::from(self.is_told));
        out.put_u64(number);
        let end = (0..=self.why.len().min(WHY_LEN_MAX)).rev();
        let end = end.into_iter().find(|&at| self.why.is_char_boundary(at)).unwrap_or(0);
        out.put_prefixed(&self.why.as_bytes()[..end]);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let from = LogPosition(reader.u64()?);
        let (len_max, since_ms) = (reader.u64()?, reader.u64()?);
        let (term, fate) = (Term(reader.u64()?), reader.u8()?);
        let (is_told, number) = (reader.u8()? != 0, reader.u64()?);
        let fate = match fate {
            1 => Fate::TakenOver(ReplicaId(u32::try_from(number).unwrap_or_default())),
            2 => Fate::Gone(Term(number)),
            0 => Fate::Open,
            _ => return Err(Error::corruption(format!("what became of a ring: {fate}"))),
        };
        let why = String::from_utf8_lossy(reader.prefixed(WHY_LEN_MAX)?).to_string();
        Ok(Self { why, from, len_max, since_ms, term, fate, is_told })
    }
}

/// One sentence, the same wherever it is said.
impl fmt::Display for RingLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { why, from, len_max, .. } = self;
        write!(
            f,
            "its ring {why}, and it had not stopped cleanly: its log from {from} on, at most {len_max} bytes"
        )?;
        if self.since_ms > 0 {
            write!(f, " written since {}", utc(self.since_ms))?;
        }
        match self.fate {
            Fate::Open => write!(f, ", may be missing; whether others have it is not known yet"),
            Fate::TakenOver(id) => {
                write!(
                    f,
                    ", was lost with it, and taken over from replica {}, which has it all",
                    id.get()
                )
            }
            Fate::Gone(_) => write!(
                f,
                ", may be missing, as no other ring has it: what was acknowledged and not flushed is gone"
            ),
        }
    }
}

/// The message of a start whose ring was lost after a clean stop.
#[must_use]
pub fn nothing_lost(why: &str, stopped: LogPosition) -> String {
    format!(
        "its ring {why}; it had stopped cleanly, with the log flushed up to {stopped}, so nothing is lost"
    )
}

/// A time as `2026-11-25 02:47:03 UTC`.
fn utc(ms: u64) -> String {
    let seconds = ms / 1000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant's civil_from_days, for days since 1970: years begin in March, in eras of 400
    // of them.
    let day = days + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{date:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(fate: Fate) -> RingLoss {
        RingLoss {
            why: "is missing".into(),
            from: LogPosition(8192),
            len_max: 1 << 20,
            since_ms: 1_000_000_000_000,
            term: Term(4),
            fate,
            is_told: false,
        }
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        let cases = [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_164_799, "2024-02-28 23:59:59 UTC"),
            (1_709_164_800, "2024-02-29 00:00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ];
        for (seconds, text) in cases {
            assert_eq!(utc(seconds * 1000 + 999), text);
        }
    }

    #[test]
    fn what_is_remembered_of_a_loss_is_read_as_it_was_written() {
        for fate in [Fate::Open, Fate::TakenOver(ReplicaId(3)), Fate::Gone(Term(5))] {
            let loss = RingLoss { is_told: fate != Fate::Open, ..loss(fate) };
            let mut bytes = Vec::new();
            loss.encode(&mut bytes);
            assert_eq!(RingLoss::decode(&mut Reader::new(&bytes, "test")).unwrap(), loss);
            for len in 0..bytes.len() {
                assert!(
                    RingLoss::decode(&mut Reader::new(&bytes[..len], "test")).is_err(),
                    "{len}"
                );
            }
        }
        let long = RingLoss { why: "ö".repeat(WHY_LEN_MAX), ..loss(Fate::Open) };
        let mut bytes = Vec::new();
        long.encode(&mut bytes);
        let read = RingLoss::decode(&mut Reader::new(&bytes, "test")).unwrap();
        assert_eq!(read.why, "ö".repeat(WHY_LEN_MAX / 2));
    }

    #[test]
    fn a_loss_says_from_where_since_when_and_who_has_it() {
        let text = loss(Fate::Open).to_string();
        let expected = "its ring is missing, and it had not stopped cleanly: its log from @8192 on, at most \
                        1048576 bytes written since 2001-09-09 01:46:40 UTC, may be missing; whether \
                        others have it is not known yet";
        assert_eq!(text, expected);
        let text = loss(Fate::TakenOver(ReplicaId(2))).to_string();
        assert!(
            text.ends_with(", was lost with it, and taken over from replica 2, which has it all")
        );
        let text = RingLoss { since_ms: 0, ..loss(Fate::Gone(Term(5))) }.to_string();
        assert!(
            text.contains("at most 1048576 bytes, may be missing, as no other ring has it"),
            "{text}"
        );
    }
}
