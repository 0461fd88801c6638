//! A job that was picked, or the reason why there is none.

use crate::file::FileMeta;
use crate::recipe::JobKind;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// A job that was picked: what becomes a recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Compaction, trivial move or drop.
    pub kind: JobKind,
    /// Files with their level: levels ascending, L0 newest first, others by key.
    pub inputs: Vec<(u8, Arc<FileMeta>)>,
    /// Where the outputs go.
    pub output_level: u8,
    /// Longest output in bytes: `sst_len` of the configuration, but where an edit could not name
    /// all that there would be.
    pub output_len: u64,
    /// Keys before which an output ends.
    pub cuts: Vec<Vec<u8>>,
    /// No deeper level holds keys of the inputs' range.
    pub bottommost: bool,
}

/// Why a way of picking has no job. Where several hold, the last in this order is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoPick {
    /// No file asks for it, or it would not be worth its cost.
    NothingDue,
    /// As many values were copied lately as may be.
    Paced,
    /// Writers are slowed down for L0, whose jobs go first.
    YieldsToL0,
    /// It needs files that jobs under way read.
    Busy,
    /// Its outputs may take more slots than are free.
    NoRoom,
    /// Its edit could not name all its files.
    EditTooLong,
}

impl NoPick {
    /// Its name in status.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NothingDue => "nothing_due",
            Self::Paced => "paced",
            Self::YieldsToL0 => "yields_to_l0",
            Self::Busy => "busy",
            Self::NoRoom => "no_room",
            Self::EditTooLong => "edit_too_long",
        }
    }
}

/// A job, or why there is none.
pub type Picked = Result<Pick, NoPick>;

/// How long the outputs of a job may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputLen {
    /// As the configuration says.
    Usual,
    /// Twice that and more, so that there are fewer, where an edit could not name all else.
    Longer,
}

/// The first job of some tries, which are made one by one, or why there is none.
pub(super) fn first_pick(tries: impl IntoIterator<Item = Picked>) -> Picked {
    let mut why = NoPick::NothingDue;
    for picked in tries {
        match picked {
            Err(reason) => why = why.max(reason),
            pick => return pick,
        }
    }
    Err(why)
}

/// Tries again with longer outputs if a job was passed over only because its edit was too long.
pub(super) fn or_longer(pick: impl Fn(OutputLen) -> Picked) -> Picked {
    match pick(OutputLen::Usual) {
        Err(NoPick::EditTooLong) => pick(OutputLen::Longer),
        picked => picked,
    }
}
