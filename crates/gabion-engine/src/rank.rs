//! Ranks: eight bytes of a key as a number, by which a search decides without touching the key.
//!
//! Keys that lie near each other begin alike, so a rank is made of the eight bytes behind what the keys of a place
//! have in common. A smaller rank is a smaller key; of equal ranks nothing follows.

/// The first eight bytes of `rest`, zeros behind its end.
#[inline]
pub(crate) fn rank(rest: &[u8]) -> u64 {
    match rest.first_chunk::<8>() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 8];
            bytes[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(bytes)
        }
    }
}

/// The rank behind `prefix` of a key that may not begin with it: then the least or the greatest.
#[inline]
pub(crate) fn rank_behind(prefix: &[u8], key: &[u8]) -> u64 {
    match key.strip_prefix(prefix) {
        Some(rest) => rank(rest),
        None if *key < *prefix => 0,
        None => u64::MAX,
    }
}
