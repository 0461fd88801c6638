//! Which entries a job drops, by its recipe alone.

use crate::entry::Keyspace;
use crate::recipe::Recipe;
use gabion_base::SequenceNumber;

/// A tombstone can go when nothing older can come to light: no deeper level holds the key.
#[inline]
pub(super) const fn is_tombstone_wanted(recipe: &Recipe) -> bool {
    !recipe.bottommost
}

/// Whether an entry was cleared.
#[inline]
pub(crate) fn is_below_floor(key: &[u8], sequence: SequenceNumber, floor: SequenceNumber) -> bool {
    sequence < floor && key.first() == Some(&(Keyspace::User as u8))
}
