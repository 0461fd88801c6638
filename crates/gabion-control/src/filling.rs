//! The progress of a member that is being filled, as it reports it.

/// How far a member is that is being filled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filling {
    /// Its present work.
    pub step: FillingStep,
    /// Bytes of the files of the state that it copies; 0 before one is known and once it is
    /// installed.
    pub bytes: u64,
    /// Of these, bytes that are there.
    pub bytes_done: u64,
    /// Bytes that it fetches in a second.
    pub bytes_per_s: u64,
}

impl Filling {
    /// Seconds until all bytes are there, at the present rate; none where that is not known.
    #[must_use]
    pub const fn full_in_s(&self) -> Option<u64> {
        if self.bytes == 0 || self.bytes_per_s == 0 {
            return None;
        }
        Some(self.bytes.saturating_sub(self.bytes_done).div_ceil(self.bytes_per_s))
    }
}

/// The present work of a member that is being filled, in the order of a filling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FillingStep {
    /// It asks for the group's state.
    #[default]
    Asking,
    /// It compares and fetches files.
    Copying,
    /// It has all files and installs the state.
    Installing,
    /// It follows the log: nothing is to be copied, or it was.
    FollowingLog,
}

impl FillingStep {
    /// Every step.
    pub const ALL: [Self; 4] = [Self::Asking, Self::Copying, Self::Installing, Self::FollowingLog];

    /// The step as words for messages and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Asking => "asking for a state",
            Self::Copying => "copying files",
            Self::Installing => "installing the state",
            Self::FollowingLog => "following the log",
        }
    }
}
