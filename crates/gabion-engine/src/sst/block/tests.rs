//! Bodies against sorted lists, and against bytes that no writer made.

use super::*;
use crate::entry::{EntryKind, compare};
use alloc::vec;
use gabion_base::SequenceNumber;
use proptest::prelude::*;

fn trailer(sequence: u64) -> Trailer {
    Trailer::new(SequenceNumber(sequence), EntryKind::Put)
}

fn sorted(mut entries: Vec<(Vec<u8>, u64, Vec<u8>)>) -> Vec<(Vec<u8>, u64, Vec<u8>)> {
    entries.sort_by(|a, b| compare(&a.0, trailer(a.1), &b.0, trailer(b.1)));
    entries.dedup_by(|a, b| a.0 == b.0 && a.1 == b.1);
    entries
}

fn body_of(entries: &[(Vec<u8>, u64, Vec<u8>)], restart_interval: u32) -> Vec<u8> {
    let mut area = Area::new(AlignedBuf::with_capacity(0));
    area.extend(b"before");
    let mut writer = BlockWriter::new(restart_interval);
    for (key, sequence, value) in entries {
        writer.add(&mut area, key, trailer(*sequence), value);
    }
    let foretold = writer.body_len(&area);
    let start = writer.finish(&mut area);
    assert_eq!((start, area.len() - start), (6, foretold));
    area.bytes()[start..].to_vec()
}

fn keys() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(0u8..3, 0..6),
        1 => prop::collection::vec(any::<u8>(), 120..300),
        1 => (0usize..400).prop_map(|n| vec![7; n]),
    ]
}

fn entries() -> impl Strategy<Value = Vec<(Vec<u8>, u64, Vec<u8>)>> {
    let value = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..5),
        (0usize..20_000).prop_map(|n| vec![9; n]),
    ];
    prop::collection::vec((keys(), 0u64..6, value), 1..40).prop_map(sorted)
}

proptest! {
    /// docs/faults.md: P2
    #[test]
    fn every_search_lands_where_the_sorted_list_says(
        entries in entries(),
        targets in prop::collection::vec((keys(), 0u64..7), 20),
        restart_interval in 1u32..20,
    ) {
        let body = body_of(&entries, restart_interval);
        let mut cursor = BlockCursor::new();
        cursor.enter(&body).unwrap();
        for (key, sequence, value) in &entries {
            prop_assert!(cursor.advance(&body).unwrap());
            let expected = Entry { key, trailer: trailer(*sequence), value };
            prop_assert_eq!(cursor.entry(&body), Some(expected));
        }
        prop_assert!(!cursor.advance(&body).unwrap());
        prop_assert_eq!(cursor.entry(&body), None);

        let view = BlockView::parse(&body).unwrap();
        let known = entries.iter().map(|(key, sequence, _)| (key.clone(), *sequence));
        for (key, sequence) in targets.into_iter().chain(known) {
            let target = Trailer::seek(SequenceNumber(sequence));
            let expected = entries
                .iter()
                .find(|e| compare(&e.0, trailer(e.1), &key, target) != Ordering::Less)
                .map(|(key, sequence, value)| Entry { key, trailer: trailer(*sequence), value });
            prop_assert_eq!(cursor.seek(&body, &key, target).unwrap(), expected.is_some());
            prop_assert_eq!(cursor.entry(&body), expected);
            let before = entries
                .iter()
                .rfind(|e| compare(&e.0, trailer(e.1), &key, target) == Ordering::Less)
                .map(|(key, sequence, value)| Entry { key, trailer: trailer(*sequence), value });
            prop_assert_eq!(cursor.retreat(&body).unwrap(), before.is_some());
            prop_assert_eq!(cursor.entry(&body), before);
            let found = view.search(&key, target).unwrap();
            prop_assert_eq!(
                found.map(|f| (f.trailer, body[f.value].to_vec(), f.key_equal)),
                expected.map(|e| (e.trailer, e.value.to_vec(), e.key == key))
            );
        }
    }

    /// docs/faults.md: P2
    #[test]
    fn a_cursor_goes_to_and_fro_as_through_the_sorted_list(
        entries in entries(),
        steps in prop::collection::vec((any::<bool>(), 1usize..9), 1..40),
        from_end: bool,
        restart_interval in 1u32..20,
    ) {
        let body = body_of(&entries, restart_interval);
        let mut cursor = BlockCursor::new();
        match from_end {
            true => cursor.enter_at_end(&body).unwrap(),
            false => cursor.enter(&body).unwrap(),
        }
        // 0: before the first.
        let mut place = if from_end { entries.len() + 1 } else { 0 };
        for (backwards, count) in steps {
            for _ in 0..count {
                let moved = match backwards {
                    true => cursor.retreat(&body).unwrap(),
                    false => cursor.advance(&body).unwrap(),
                };
                place = match backwards {
                    true => place.saturating_sub(1),
                    false => (place + 1).min(entries.len() + 1),
                };
                let expected = place.checked_sub(1).and_then(|at| entries.get(at));
                let expected = expected
                    .map(|(key, sequence, value)| Entry { key, trailer: trailer(*sequence), value });
                prop_assert_eq!(moved, expected.is_some());
                prop_assert_eq!(cursor.entry(&body), expected);
            }
        }
    }

    #[test]
    fn arbitrary_bodies_never_panic(
        entries in entries(),
        key in keys(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        noise: Vec<u8>,
    ) {
        let mut body = body_of(&entries, 3);
        for (at, byte) in changes {
            let at = at.index(body.len());
            body[at] = byte;
        }
        for body in [body, noise] {
            let _ = BlockView::parse(&body).and_then(|view| view.search(&key, trailer(3)));
            let mut cursor = BlockCursor::new();
            if cursor.seek(&body, &key, trailer(3)).is_ok() {
                let _ = cursor.entry(&body);
            }
            if cursor.enter(&body).is_ok() {
                let steps = (0..100_000).take_while(|_| cursor.advance(&body).unwrap_or(false)).count();
                prop_assert!(steps < 100_000);
                let _ = cursor.entry(&body);
            }
            if cursor.enter_at_end(&body).is_ok() {
                let steps = (0..100_000).take_while(|_| cursor.retreat(&body).unwrap_or(false)).count();
                prop_assert!(steps < 100_000);
                let _ = cursor.entry(&body);
            }
        }
    }

    #[test]
    fn common_prefixes_are_counted_in_bytes(a: Vec<u8>, b: Vec<u8>, shared: Vec<u8>) {
        let (a, b) = ([&shared[..], &a].concat(), [&shared[..], &b].concat());
        let expected = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
        prop_assert_eq!(common_prefix_len(&a, &b), expected);
    }
}

#[test]
fn an_empty_body_is_refused() {
    for body in [&b""[..], &[0; 4], &[1, 0, 0, 0], &[0xff; 8]] {
        assert!(BlockView::parse(body).is_err(), "{body:?}");
    }
}

/// docs/faults.md: P2
#[test]
fn going_backwards_keeps_a_bounded_part_of_a_long_stretch_without_restart_points() {
    let key = |n: u8| [&[1; 60_000][..], &[n]].concat();
    let entries: Vec<_> = (0..100).map(|n| (key(n), 1, vec![n])).collect();
    let body = body_of(&entries, 1024);
    let mut cursor = BlockCursor::new();
    cursor.enter_at_end(&body).unwrap();
    for (key, _, value) in entries.iter().rev() {
        assert!(cursor.retreat(&body).unwrap());
        let expected = Entry { key, trailer: trailer(1), value };
        assert_eq!(cursor.entry(&body), Some(expected));
        assert!(cursor.before.keys.len() <= BEFORE_LEN_MAX);
    }
    assert!(!cursor.retreat(&body).unwrap());
}
