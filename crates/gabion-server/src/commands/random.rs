//! RANDOMKEY in an ordered key space. A key drawn at a random place between the first and the last would be one
//! of a few: keys that begin alike lie close together, and most places lie between their kinds. So the draw
//! descends as in a trie:
//!
//! ```text
//!   user:1041 … user:9377     the first and the last key of what is left
//!        ▲                    they part here: a random byte of '1' to '9', say '4'
//!   user:4002 … user:4990     the keys that begin with that (or with the next byte that is there), and so on
//! ```
//!
//! Every key may come. A key comes as often as the others when keys are numbers or random digits of one length,
//! and more often the fewer its neighbours are.

use super::execute::{Outcome, Refusal};
use super::keyspace::{Walk, after_prefix, yield_now};
use super::store::{Order, Store};
use bytes::Bytes;
use core::cell::Cell;
use core::ops::Bound;
use gabion_resp::Reply;

/// Places where keys part, at which a draw chooses. Behind them it chooses among a few keys.
const LEVELS_MAX: usize = 24;
/// Those few.
const LAST_CHOICE: usize = 64;
/// Bytes of keys in one page of them.
const PAGE_BYTES: usize = 1 << 20;
/// How often a draw looks in vain: what was deleted and lies there still takes a page to pass.
const MISSES_MAX: usize = 3;

/// Random numbers that nobody has to rely on: SplitMix64.
pub(crate) struct Dice(Cell<u64>);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    /// A number below `count`.
    fn below(&self, count: usize) -> usize {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((u128::from(z) * count as u128) >> 64) as usize
    }
}

/// What a look from one end of a part of the key space found, within one page.
enum Edge {
    /// The first key that is there.
    Key(Bytes),
    /// Nothing up to this key, and more may follow.
    Passed(Bytes),
    /// Nothing.
    Empty,
}

impl Edge {
    async fn of(
        store: &impl Store,
        start: Bound<&[u8]>,
        end: Bound<&[u8]>,
        order: Order,
    ) -> Result<Self, Refusal> {
        let walk = Walk::between(start, end, order);
        let page = walk.page(store, 1, PAGE_BYTES, false).await?;
        Ok(match (page.pairs.into_iter().next(), page.resume_after) {
            (Some((key, _)), _) => Self::Key(key),
            (None, Some(last)) => {
                // It was a turn's work.
                yield_now().await;
                Self::Passed(last)
            }
            (None, None) => Self::Empty,
        })
    }

    fn key(&self) -> Option<Bytes> {
        match self {
            Self::Key(key) => Some(key.clone()),
            Self::Passed(_) | Self::Empty => None,
        }
    }

    /// The key up to which nothing is there, or the first that is.
    fn into_bound(self) -> Option<Bytes> {
        match self {
            Self::Key(key) | Self::Passed(key) => Some(key),
            Self::Empty => None,
        }
    }
}

pub(crate) async fn random_key(store: &impl Store, dice: &Dice) -> Outcome {
    if let Some(key) = draw(store, dice).await? {
        return Ok(Reply::Bulk(key));
    }
    // Nothing but what was deleted came up. What is there is behind it.
    let mut walk = Walk::over(b"*");
    loop {
        let page = walk.page(store, 1, PAGE_BYTES, false).await?;
        if let Some((key, _)) = page.pairs.into_iter().next() {
            return Ok(Reply::Bulk(key));
        }
        if !walk.advance(page.resume_after).await {
            return Ok(Reply::Null);
        }
    }
}

/// A key by descent; `None` when none came up.
async fn draw(store: &impl Store, dice: &Dice) -> Result<Option<Bytes>, Refusal> {
    let all = Bound::Unbounded;
    let first = Edge::of(store, all, all, Order::Ascending).await?;
    let last = Edge::of(store, all, all, Order::Descending).await?;
    let mut seen = first.key().or(last.key());
    let (Some(mut low), Some(mut high)) = (first.into_bound(), last.into_bound()) else {
        return Ok(seen);
    };
    let (mut levels, mut misses) = (0, 0);
    while low < high && levels < LEVELS_MAX {
        let common = low.iter().zip(&high).take_while(|(low, high)| low == high).count();
        let place = place_between(&low, &high, common, dice);
        let place = Bound::Included(&place[..]);
        let found = Edge::of(store, place, Bound::Included(&high), Order::Ascending).await?;
        let Some(key) = found.key() else {
            misses += 1;
            if misses == MISSES_MAX {
                return Ok(seen);
            }
            continue;
        };
        levels += 1;
        let Some(begin) = key.get(..=common) else { return Ok(Some(key)) };
        let end = after_prefix(begin);
        let end = end.as_ref().map_or(all, |end| Bound::Excluded(&end[..]));
        let last = Edge::of(store, Bound::Included(&key), end, Order::Descending).await?;
        high = last.into_bound().unwrap_or_else(|| key.clone());
        low = key.clone();
        seen = Some(key);
    }
    choose_among(store, dice, (&low, &high), seen).await
}

/// One of the first keys from `low` to `high`, or else `seen`.
async fn choose_among(
    store: &impl Store,
    dice: &Dice,
    (low, high): (&[u8], &[u8]),
    seen: Option<Bytes>,
) -> Result<Option<Bytes>, Refusal> {
    if low >= high {
        return Ok(seen);
    }
    let rest = Walk::between(Bound::Included(low), Bound::Included(high), Order::Ascending);
    let mut page = rest.page(store, LAST_CHOICE, PAGE_BYTES, false).await?;
    match page.pairs.len() {
        0 => Ok(seen),
        count => Ok(Some(page.pairs.swap_remove(dice.below(count)).0)),
    }
}

/// A place in the trie right below the bytes that `low` and `high` share: where a key of just these bytes lies, or
/// one of the bytes from that by which `low` goes on to that of `high`.
fn place_between(low: &[u8], high: &[u8], common: usize, dice: &Dice) -> Vec<u8> {
    let mut place = high[..common].to_vec();
    let last = usize::from(high[common]);
    match low.get(common) {
        Some(&first) => place.push(first + dice.below(last - usize::from(first) + 1) as u8),
        // One choice more: `low` itself ends here.
        None => place.extend(dice.below(last + 2).checked_sub(1).map(|byte| byte as u8)),
    }
    place
}
