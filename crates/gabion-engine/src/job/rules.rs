//! Which entries a job drops, by its recipe alone.

use crate::entry::Keyspace;
use crate::recipe::Recipe;
use gabion_base::SequenceNumber;

/// A tombstone can go when nothing older can come to light: no deeper level holds the key, and no
/// older version stays for a snapshot before it.
pub(super) fn is_tombstone_wanted(recipe: &Recipe, sequence: SequenceNumber) -> bool {
    let oldest = recipe.snapshots.first().is_none_or(|first| sequence <= *first);
    !(recipe.bottommost && oldest)
}

/// Whether an entry was cleared, and no snapshot before the clear still sees it.
#[inline]
pub(super) fn is_below_floor(
    key: &[u8],
    sequence: SequenceNumber,
    floor: SequenceNumber,
    stripe: SequenceNumber,
) -> bool {
    sequence < floor && stripe >= floor && key.first() == Some(&(Keyspace::User as u8))
}
