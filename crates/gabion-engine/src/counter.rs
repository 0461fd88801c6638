//! The merge operator: additions to counters, written without a look at what is there.
//!
//! ```text
//!   EntryKind::Merge, in batches, MemTables and files. Its value is an *operand*:
//!
//!    0             1            2          10
//!   ┌─────────────┬────────────┬──────────┬──────────────────────────────────────────────┐
//!   │ operator u8 │ version u8 │ at_ms u64│ one:     delta i64                           │
//!   │ 1: add-i64  │ 1          │          │ several: from i64 │ low i64 │ high i64       │
//!   └─────────────┴────────────┴──────────┴──────────────────────────────────────────────┘
//!                                           18 or 34 bytes; the shorter where both say the same
//! ```
//!
//! **What adding means.** The value is a decimal number as Redis writes one, so that `INCRBY` reads what was added
//! here, and the other way round. What is not there, was deleted or cleared or has expired counts as 0 and gets no
//! expiry; what expires keeps its expiry. A value that is no such number stays as it is: what is added to it is
//! void. The sum stays within 64 bits with a sign: what would pass an end of it stops there, and goes on from there
//! with the next operand. (`INCRBY` refuses such an operation. Here nobody waits for an answer.)
//!
//! **Why so.** Operands are folded wherever they meet: two in a flush, ten in a compaction, onto the value at last.
//! What a reader sees must not depend on who met whom, or it would change with each compaction. So several additions
//! must be one operand, exactly. Sums that stop at their ends can be: each is a [`Step`], and so is one after
//! another. A rule that leaves out whichever operand would pass an end has no such form: `MAX + 1 − 1` would need
//! both numbers for ever. Sums that begin anew from the other end would be simple too, and nobody wants them.
//!
//! ```text
//!   high ┤          ┌──────     a step: flat, then one by one, then flat
//!        │         ╱
//!    low ┤────────╱
//!        └───────┬───────────► the value before
//!               from
//! ```
//!
//! **Expiry.** An operand says when it was written, in group time (`at_ms`): a value that expires at or before
//! it counts as 0 for it, and for all that come after. So what is added to a key whose time has passed begins anew,
//! what was added before is gone with it, and neither depends on when a compaction came by. Two operands can become
//! one unless some value below them may expire between them: a recipe says which times those are
//! ([`Merging`](crate::recipe::Merging)), a reader looks at the value first. And a value that has expired stays in
//! its file while older operands above it may have to find it gone.

use crate::entry::{EntryKind, Trailer};
use crate::expiry::expiry_of;
use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::number::{parse_i64, put_decimal};
use gabion_base::{Error, Result};

/// The one operator that there is: `add-i64`.
pub const OPERATOR_ADD: u8 = 1;
/// Its version.
pub const OPERATOR_VERSION: u8 = 1;
/// Bytes of an operand that adds one number.
pub const OPERAND_LEN: usize = 18;
/// Bytes of an operand that several were folded into.
pub const OPERAND_LEN_MAX: usize = 34;

const WHAT: &str = "merge operand";

/// What adding does to any number: `low` up to `from`, then one more for each, until `high`.
///
/// Steps that do the same are equal: one that leads everywhere to the same number has `from` at the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    from: i64,
    low: i64,
    high: i64,
}

impl Step {
    /// Adds `delta`, which may be negative.
    #[must_use]
    pub const fn add(delta: i64) -> Self {
        if delta >= 0 {
            Self { from: i64::MIN, low: i64::MIN + delta, high: i64::MAX }
        } else {
            // Up to 0, for the smallest `delta`.
            Self { from: i64::MIN.wrapping_sub(delta), low: i64::MIN, high: i64::MAX + delta }
        }
    }

    /// This step, then `next`.
    #[must_use]
    pub fn then(self, next: Self) -> Self {
        let (low, high) = (next.apply(self.low), next.apply(self.high));
        let from = match low == high {
            true => i64::MIN,
            // How far this one must have risen before the next begins to. Both fit, as it gets there.
            false => {
                let short = i128::from(next.from) - i128::from(self.low);
                (i128::from(self.from) + short.max(0)) as i64
            }
        };
        Self { from, low, high }
    }

    /// What becomes of `number`.
    #[must_use]
    pub const fn apply(self, number: i64) -> i64 {
        if number <= self.from {
            return self.low;
        }
        // Differences of two numbers in order: without a sign they have room.
        let risen = number.wrapping_sub(self.from) as u64;
        let rise = self.high.wrapping_sub(self.low) as u64;
        if risen < rise { self.low.wrapping_add_unsigned(risen) } else { self.high }
    }

    /// The one number that has the same effect when it is added, if there is one.
    #[must_use]
    pub fn delta(self) -> Option<i64> {
        let delta = match self.from {
            i64::MIN => self.low.wrapping_sub(i64::MIN),
            from => i64::MIN.wrapping_sub(from),
        };
        (Self::add(delta) == self).then_some(delta)
    }

    /// Why three numbers are no step, or another's.
    fn check(self) -> Result<(), &'static str> {
        let rise = i128::from(self.high) - i128::from(self.low);
        if rise < 0 {
            Err("its ends are the wrong way round")
        } else if rise == 0 && self.from != i64::MIN {
            Err("it leads to one number from more than one place")
        } else if i128::from(self.from) + rise > i128::from(i64::MAX) {
            Err("it never reaches its upper end")
        } else if self.delta().is_some() {
            Err("it adds one number, and has a shorter form")
        } else {
            Ok(())
        }
    }
}

/// An addition, or several in a row, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Group time when it was written, in milliseconds since 1970; of several, the last.
    pub at_ms: u64,
    /// What it does.
    pub step: Step,
}

impl Operand {
    /// Adds `delta` at group time `at_ms`.
    #[must_use]
    pub const fn add(delta: i64, at_ms: u64) -> Self {
        Self { at_ms, step: Step::add(delta) }
    }

    /// The operand as it is stored.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(OPERAND_LEN_MAX);
        self.encode_to(&mut out);
        out
    }

    /// Appends the operand as it is stored.
    pub(crate) fn encode_to(&self, out: &mut Vec<u8>) {
        out.put_u8(OPERATOR_ADD);
        out.put_u8(OPERATOR_VERSION);
        out.put_u64(self.at_ms);
        match self.step.delta() {
            Some(delta) => out.put_u64(delta.cast_unsigned()),
            None => {
                let Step { from, low, high } = self.step;
                [from, low, high].iter().for_each(|n| out.put_u64(n.cast_unsigned()));
            }
        }
    }

    /// Bytes of the operand as it is stored.
    pub(crate) fn encoded_len(&self) -> usize {
        if self.step.delta().is_some() { OPERAND_LEN } else { OPERAND_LEN_MAX }
    }

    /// When a stored operand was written, if it is one.
    pub(crate) fn at_ms_of(stored: &[u8]) -> Option<u64> {
        stored.get(2..)?.first_chunk().map(|at_ms| u64::from_le_bytes(*at_ms))
    }

    /// The operand that `stored` is.
    ///
    /// # Errors
    /// Unsupported for an operator or a version that this build does not know; corruption when it is none, or
    /// not in its shortest form.
    pub fn decode(stored: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(stored, WHAT);
        let (operator, version) = (reader.u8()?, reader.u8()?);
        if (operator, version) != (OPERATOR_ADD, OPERATOR_VERSION) {
            return Err(unknown_operator(operator, version));
        }
        let at_ms = reader.u64()?;
        let mut number = || reader.u64().map(u64::cast_signed);
        let step = match stored.len() {
            OPERAND_LEN => Step::add(number()?),
            OPERAND_LEN_MAX => {
                let step = Step { from: number()?, low: number()?, high: number()? };
                step.check()
                    .map_err(|why| Error::corruption(format!("{WHAT}: {why}: {step:?}")))?;
                step
            }
            len => return Err(bad_length(len)),
        };
        reader.finish()?;
        Ok(Self { at_ms, step })
    }
}

/// An operand of an operator that this build does not know.
#[cold]
pub(crate) fn unknown_operator(operator: u8, version: u8) -> Error {
    Error::unsupported(format!(
        "merge operator {operator} in version {version}; this build knows add-i64, which is \
         {OPERATOR_ADD}, in version {OPERATOR_VERSION}"
    ))
}

#[cold]
fn bad_length(len: usize) -> Error {
    Error::corruption(format!(
        "{WHAT} has {len} bytes, one of add-i64 has {OPERAND_LEN} or {OPERAND_LEN_MAX}"
    ))
}

/// What operands find: what a key has, as far as adding goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// Nothing.
    Absent,
    /// A number, and until when it is there.
    Number { number: i64, expires_ms: Option<u64> },
    /// A value that is no number, and until when it is there.
    Other { expires_ms: Option<u64> },
}

impl Base {
    /// What an entry that is no operand, and was not cleared, leaves.
    ///
    /// # Errors
    /// Corruption when an expiring put is shorter than its expiry.
    pub(crate) fn of(trailer: Trailer, stored: &[u8]) -> Result<Self> {
        if trailer.kind().is_delete() {
            return Ok(Self::Absent);
        }
        let (expires_ms, value_at) = expiry_of(trailer, stored)?;
        if trailer.kind().is_pointer() || trailer.kind().is_packed() {
            // Only what is longer than any number lies apart, or is packed.
            return Ok(Self::Other { expires_ms });
        }
        Ok(match parse_i64(&stored[value_at..]) {
            Some(number) => Self::Number { number, expires_ms },
            None => Self::Other { expires_ms },
        })
    }

    pub(crate) const fn expires_ms(self) -> Option<u64> {
        match self {
            Self::Absent => None,
            Self::Number { expires_ms, .. } | Self::Other { expires_ms } => expires_ms,
        }
    }

    /// After one more operand.
    pub(crate) fn with(self, operand: Operand) -> Self {
        let has_expired = self.expires_ms().is_some_and(|at| at <= operand.at_ms);
        match if has_expired { Self::Absent } else { self } {
            Self::Absent => Self::Number { number: operand.step.apply(0), expires_ms: None },
            Self::Number { number, expires_ms } => {
                Self::Number { number: operand.step.apply(number), expires_ms }
            }
            other @ Self::Other { .. } => other,
        }
    }
}

/// A counter's value, and how it is stored.
pub(crate) fn stored_number(number: i64, expires_ms: Option<u64>) -> (EntryKind, Vec<u8>) {
    let mut stored = Vec::with_capacity(28);
    let kind = match expires_ms {
        None => EntryKind::Put,
        Some(at) => {
            stored.put_u64(at);
            EntryKind::ExpiringPut
        }
    };
    put_decimal(&mut stored, number);
    (kind, stored)
}

/// Operands of a key from new to old, as a reader meets them, in constant memory.
///
/// Whether what they are added to has expired for some of them shows at the end only. Where it matters, the reader goes
/// through them once more and knows when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Folding {
    /// When the value beneath expires, if this is the second time.
    expires_ms: Option<u64>,
    all: Option<Step>,
    /// From the oldest on that finds the value expired.
    since_expiry: Option<Step>,
    last_ms: u64,
}

/// What comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Folded {
    Is(Base),
    /// To be gone through again, for a value that expires at this time.
    Again(u64),
}

impl Folding {
    pub(crate) const fn new(expires_ms: Option<u64>) -> Self {
        Self { expires_ms, all: None, since_expiry: None, last_ms: 0 }
    }

    /// The next older operand.
    pub(crate) fn push_older(&mut self, operand: Operand) {
        let all = self.all.map_or(operand.step, |newer| operand.step.then(newer));
        self.all = Some(all);
        self.last_ms = self.last_ms.max(operand.at_ms);
        if self.expires_ms.is_some_and(|at| at <= operand.at_ms) {
            self.since_expiry = Some(all);
        }
    }

    /// There is no older operand, but this.
    pub(crate) fn end(self, base: Base) -> Folded {
        let Some(all) = self.all else { return Folded::Is(base) };
        let whole = Operand { at_ms: 0, step: all };
        Folded::Is(match base.expires_ms().filter(|at| *at <= self.last_ms) {
            // It was there for all of them.
            None => base.with(whole),
            Some(at) if self.expires_ms != Some(at) => return Folded::Again(at),
            Some(_) => {
                let step = self.since_expiry.unwrap_or(all);
                Base::Absent.with(Operand { at_ms: 0, step })
            }
        })
    }
}

#[cfg(test)]
mod tests;
