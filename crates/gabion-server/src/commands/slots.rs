//! Hash slots, as Redis Cluster has them: which group a key belongs to.
//!
//! ```text
//!   key ─► what stands in {…}, or all of it ─► CRC16 ─► slot 0 … 16383 ─► group: a run of slots
//! ```
//!
//! Groups have runs of equal length, to within one slot. So the number of groups says all, and the
//! same number gives the same map at every door.

use super::scripts;
use super::table::Id;
use super::work::{Call, Work};
use bytes::Bytes;
use core::ops::Range;

/// Slots of a cluster.
pub const SLOTS: u16 = 16_384;
/// Groups of a cluster at most: cursors of SCAN are to stay small.
pub const GROUPS_MAX: u32 = 16;

/// CRC16 of XMODEM, whose polynomial is 0x1021, by the high byte.
const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| crc << 8 ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)])
}

/// The slot of a key: by what stands between its first `{` and the next `}`, unless that is empty.
#[must_use]
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let len = rest.iter().position(|byte| *byte == b'}')?;
        Some(&rest[..len]).filter(|tag| !tag.is_empty())
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// How the slots are spread over groups, and which of them this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    groups: u16,
    own: u16,
}

impl Spread {
    /// Group `own` of `groups`, counted from 0. None unless there are 2 to [`GROUPS_MAX`], and it
    /// is one of them.
    #[must_use]
    pub fn new(groups: u32, own: u32) -> Option<Self> {
        let fits = (2..=GROUPS_MAX).contains(&groups) && own < groups;
        fits.then_some(Self { groups: groups as u16, own: own as u16 })
    }

    /// The number of groups.
    #[must_use]
    pub const fn groups(self) -> usize {
        self.groups as usize
    }

    /// This group.
    #[must_use]
    pub const fn own(self) -> usize {
        self.own as usize
    }

    /// The group that has a slot.
    #[must_use]
    pub fn group_of(self, slot: u16) -> usize {
        assert!(slot < SLOTS, "slot {slot} of {SLOTS}");
        (u32::from(slot) * u32::from(self.groups) / u32::from(SLOTS)) as usize
    }

    /// The slots of a group.
    #[must_use]
    pub fn slots_of(self, group: usize) -> Range<u16> {
        assert!(group < self.groups(), "group {group} of {}", self.groups);
        let first = |group: usize| (group * usize::from(SLOTS)).div_ceil(self.groups()) as u16;
        first(group)..first(group + 1)
    }
}

/// The slots that a work is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slots {
    /// It names no key, and could have named some.
    None,
    /// All its keys are of this one.
    One(u16),
    /// Its keys are of several.
    Several,
    /// It is about all keys there are.
    All,
}

impl Slots {
    fn with(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, other) => other,
            (one, Self::None) => one,
            (Self::One(a), Self::One(b)) if a == b => self,
            _ => Self::Several,
        }
    }

    fn of_keys<'a>(keys: impl Iterator<Item = &'a Bytes>) -> Self {
        keys.map(|key| Self::One(slot_of(key))).fold(Self::None, Self::with)
    }

    /// Those of a command.
    pub(crate) fn of_call(call: &Call) -> Self {
        let spec = call.spec();
        if call.is_script() {
            let keys = scripts::arguments(call.args()).map_or(&[][..], |(keys, _)| keys);
            return Self::of_keys(keys.iter());
        }
        match spec.id {
            Id::DbSize | Id::FlushAll | Id::Keys | Id::RandomKey | Id::Range | Id::Scan => {
                Self::All
            }
            _ => Self::of_keys(spec.keys_of(call.args())),
        }
    }

    /// Those of a work: a transaction and what it watches are of one slot, and no command of it is
    /// about all keys.
    pub(crate) fn of(work: &Work) -> Self {
        match work {
            Work::Call(call) => Self::of_call(call),
            Work::Watch(watch) => Self::of_keys(watch.keys.iter()),
            Work::Transaction(transaction) => {
                let watched = transaction.watch.iter().flat_map(|watch| watch.keys.iter());
                let calls = transaction.calls().iter().map(|call| match Self::of_call(call) {
                    Self::All => Self::Several,
                    slots => slots,
                });
                calls.fold(Self::of_keys(watched), Self::with)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::{Transaction, watch};
    use gabion_resp::Request;

    fn call(words: &str) -> Call {
        let args = words.split(' ').map(|word| Bytes::from(word.to_owned())).collect();
        Call::new(Request { args }).unwrap()
    }

    #[test]
    fn slots_are_those_of_redis() {
        // The vector of the specification of Redis Cluster, and slots that a Redis 7.2 gives.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, slot) in [
            ("", 0),
            ("foo", 12_182),
            ("bar", 5_061),
            ("hello", 866),
            ("somekey", 11_058),
            ("foo{hash_tag}", 2_515),
            ("bar{hash_tag}", 2_515),
            ("hash_tag", 2_515),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }

    #[test]
    fn a_hash_tag_is_what_the_first_braces_hold_unless_that_is_nothing() {
        let same = |a: &[u8], b: &[u8]| slot_of(a) == slot_of(b);
        assert!(same(b"{user1000}.following", b"{user1000}.followers"));
        assert!(same(b"foo{{bar}}zap", b"{bar"), "up to the first closing brace");
        assert!(same(b"foo{bar}{zap}", b"bar"), "of the first braces");
        for whole in [&b"foo{}{bar}"[..], b"foo{bar", b"foo}bar{"] {
            assert_eq!(slot_of(whole), crc16(whole) % SLOTS, "all of it");
        }
    }

    #[test]
    fn each_slot_has_one_group_and_runs_are_equal_to_within_one() {
        for groups in 2..=GROUPS_MAX {
            let spread = Spread::new(groups, 0).unwrap();
            let mut next = 0;
            for group in 0..spread.groups() {
                let slots = spread.slots_of(group);
                assert_eq!(slots.start, next);
                next = slots.end;
                let even = usize::from(SLOTS) / spread.groups();
                assert!((even..=even + 1).contains(&slots.len()), "{groups}: {slots:?}");
                assert!(slots.clone().all(|slot| spread.group_of(slot) == group));
            }
            assert_eq!(next, SLOTS);
        }
        for (groups, own) in [(0, 0), (1, 0), (2, 2), (GROUPS_MAX + 1, 0)] {
            assert_eq!(Spread::new(groups, own), None);
        }
    }

    #[test]
    fn a_work_is_about_the_slots_of_its_keys() {
        let of = |words: &str| Slots::of(&Work::Call(call(words)));
        assert_eq!(of("get foo"), Slots::One(12_182));
        assert_eq!(of("mset foo{hash_tag} 1 bar{hash_tag} 2"), Slots::One(2_515));
        assert_eq!(of("mset foo 1 bar foo"), Slots::Several);
        assert_eq!(of("eval return 2 foo foo bar"), Slots::One(12_182));
        assert_eq!(of("eval return 0 foo"), Slots::None);
        assert_eq!(of("object help"), Slots::None);
        for all in ["dbsize", "flushall", "flushdb", "keys *", "randomkey", "range - +", "scan 0"] {
            assert_eq!(of(all), Slots::All, "{all}");
        }
        let watched = |keys: &[&'static str]| watch::Watch {
            id: watch::WatchId { node: 1, number: 1 },
            keys: keys.iter().map(|key| Bytes::from_static(key.as_bytes())).collect(),
        };
        assert_eq!(Slots::of(&Work::Watch(watched(&["foo", "bar"]))), Slots::Several);
        let exec = |calls: &[&str], keys: &[&'static str]| {
            let calls = calls.iter().map(|words| call(words)).collect();
            let watch = Some(watched(keys)).filter(|watch| !watch.keys.is_empty());
            Slots::of(&Work::Transaction(Transaction { watch, ..Transaction::of(calls) }))
        };
        assert_eq!(exec(&["get foo", "set foo 1"], &["foo"]), Slots::One(12_182));
        assert_eq!(exec(&["get foo"], &["bar"]), Slots::Several);
        assert_eq!(exec(&["get foo", "dbsize"], &[]), Slots::Several);
    }
}
