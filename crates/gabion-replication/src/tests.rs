//! Tests of the protocol. `Mutant` plants defects that the checkers must find.

/// A defect to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// The protocol as it is.
    None,
}
