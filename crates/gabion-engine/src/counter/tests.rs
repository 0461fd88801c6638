use super::*;
use alloc::string::{String, ToString};
use alloc::vec;
use core::ops::Range;
use gabion_base::{ErrorKind, SequenceNumber};
use proptest::prelude::*;

/// Numbers near both ends, near 0, and any.
fn any_number() -> impl Strategy<Value = i64> {
    prop_oneof![
        (0..20_i64).prop_map(|n| i64::MAX - n),
        (0..20_i64).prop_map(|n| i64::MIN + n),
        -20..20_i64,
        any::<i64>(),
    ]
}

/// Group times, which go back now and then.
fn operands(times: Range<u64>, most: usize) -> impl Strategy<Value = Vec<(i64, u64)>> {
    prop::collection::vec((any_number(), times), 1..most)
}

proptest! {
    /// docs/faults.md: P13
    #[test]
    fn several_steps_are_one_step(deltas in prop::collection::vec(any_number(), 1..12), number in any_number()) {
        let one_by_one = deltas.iter().fold(number, |number, delta| number.saturating_add(*delta));
        let steps: Vec<_> = deltas.iter().map(|delta| Step::add(*delta)).collect();
        let mut left = steps[0];
        steps[1..].iter().for_each(|step| left = left.then(*step));
        prop_assert_eq!(left.apply(number), one_by_one);
        // From the other side, as they are met from new to old.
        let right = steps.iter().rev().copied().reduce(|newer, older| older.then(newer)).unwrap();
        prop_assert_eq!(right, left, "one step has one form");
    }

    /// docs/faults.md: P13
    #[test]
    fn every_operand_survives_its_bytes_and_has_one_form(deltas in operands(0..50, 6)) {
        let step = deltas.iter().map(|(delta, _)| Step::add(*delta)).reduce(Step::then).unwrap();
        let operand = Operand { at_ms: deltas[0].1, step };
        let bytes = operand.encode();
        prop_assert_eq!(Operand::decode(&bytes).unwrap(), operand);
        prop_assert_eq!(bytes.len() == OPERAND_LEN, step.delta().is_some());
    }

    /// docs/faults.md: P13
    #[test]
    fn no_bytes_panic_and_what_is_read_is_written_the_same(
        bytes in prop::collection::vec(any::<u8>(), 0..40),
        ends in prop::array::uniform3(any_number()),
        number in any_number(),
    ) {
        let near = [&[1, 1][..], &[0; 8], &ends.map(i64::to_le_bytes).concat()].concat();
        for stored in [&bytes[..], &near, &near[..OPERAND_LEN]] {
            if let Ok(operand) = Operand::decode(stored) {
                prop_assert_eq!(&operand.encode()[..], stored);
                let twice = operand.step.then(operand.step);
                prop_assert_eq!(twice.apply(number), operand.step.apply(operand.step.apply(number)));
            }
        }
    }

    /// From new to old, with a second look where one is asked for, is from old to new.
    /// docs/faults.md: P13
    #[test]
    fn a_reader_that_goes_back_in_time_finds_what_one_finds_that_goes_with_it(
        deltas in operands(0..50, 10),
        expires_ms in prop::option::of(0u64..55),
        text in prop_oneof![
            any_number().prop_map(|n| n.to_string()), "none", "-?[0-9]{1,3}", Just(String::new()),
        ],
        is_there: bool,
    ) {
        let operands: Vec<_> = deltas.iter().map(|(delta, at)| Operand::add(*delta, *at)).collect();
        let base = match (is_there, parse_i64(text.as_bytes())) {
            (false, _) => Base::Absent,
            (true, Some(number)) => Base::Number { number, expires_ms },
            (true, None) => Base::Other { expires_ms },
        };
        let expected = operands.iter().fold(base, |base, operand| base.with(*operand));
        let fold = |known| {
            let mut folding = Folding::new(known);
            operands.iter().rev().for_each(|operand| folding.push_older(*operand));
            folding.end(base)
        };
        let found = match fold(None) {
            Folded::Again(at) => {
                prop_assert_eq!(Some(at), expires_ms);
                fold(Some(at))
            }
            found => found,
        };
        prop_assert_eq!(found, Folded::Is(expected));
    }
}

/// docs/faults.md: P13
#[test]
fn golden_bytes_of_operands() {
    let one = Operand::add(-2, 0x0605_0403_0201);
    let bytes = b"\x01\x01\x01\x02\x03\x04\x05\x06\0\0\xfe\xff\xff\xff\xff\xff\xff\xff";
    assert_eq!(one.encode(), bytes);
    // Up by 5, then down by 3: from MAX - 4 on, one may have stopped.
    let several = Operand { at_ms: 7, step: Step::add(5).then(Step::add(-3)) };
    let from = i64::MIN.to_le_bytes();
    let (low, high) = ((i64::MIN + 2).to_le_bytes(), (i64::MAX - 3).to_le_bytes());
    let expected = [&[1, 1, 7, 0, 0, 0, 0, 0, 0, 0][..], &from, &low, &high].concat();
    assert_eq!(several.encode(), expected);
    assert_eq!(stored_number(-42, None), (EntryKind::Put, b"-42".to_vec()));
    let stored = b"\x09\0\0\0\0\0\0\x007".to_vec();
    assert_eq!(stored_number(7, Some(9)), (EntryKind::ExpiringPut, stored));
}

/// docs/faults.md: P13
#[test]
fn an_operator_of_another_build_is_unsupported_and_what_is_no_operand_is_corruption() {
    let good = Operand::add(1, 2).encode();
    for (at, name) in [(0, "merge operator 9 in version 1"), (1, "merge operator 1 in version 9")] {
        let mut other = good.clone();
        other[at] = 9;
        let error = Operand::decode(&other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().starts_with(name), "{error}");
        assert!(error.message().contains("knows add-i64, which is 1, in version 1"), "{error}");
    }
    let ends = |from: i64, low: i64, high: i64| {
        [&good[..10], &[from, low, high].map(i64::to_le_bytes).concat()].concat()
    };
    for (bytes, why) in [
        (vec![], "merge operand"),
        (good[..17].to_vec(), "has 17 bytes, one of add-i64 has 18 or 34"),
        (ends(0, 2, 1), "the wrong way round"),
        (ends(0, 2, 2), "from more than one place"),
        (ends(i64::MAX, 2, 5), "never reaches its upper end"),
        (ends(i64::MIN, i64::MIN + 5, i64::MAX), "has a shorter form"),
    ] {
        let error = Operand::decode(&bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
        assert!(error.message().contains(why), "{error}");
    }
}

/// docs/faults.md: P13
#[test]
fn a_sum_stops_at_its_ends_and_what_is_no_number_stays_as_it_is() {
    let number = |number, expires_ms| Base::Number { number, expires_ms };
    let trailer = |kind| Trailer::new(SequenceNumber(1), kind);
    let put = |value: &[u8]| Base::of(trailer(EntryKind::Put), value).unwrap();
    assert_eq!(put(b"41").with(Operand::add(1, 0)), number(42, None));
    assert_eq!(put(b"9223372036854775807").with(Operand::add(1, 0)), number(i64::MAX, None));
    let below = put(b"-9223372036854775807").with(Operand::add(-7, 0));
    assert_eq!(below, number(i64::MIN, None));
    assert_eq!(below.with(Operand::add(i64::MAX, 0)), number(-1, None));
    for text in [&b""[..], b"1.5", b"007", b"+1", b" 1", b"9223372036854775808"] {
        assert_eq!(put(text).with(Operand::add(1, 0)), Base::Other { expires_ms: None });
    }
    assert_eq!(Base::of(trailer(EntryKind::Delete), b"").unwrap(), Base::Absent);
    assert_eq!(Base::Absent.with(Operand::add(-3, 9)), number(-3, None));
    let expiring = Base::of(trailer(EntryKind::ExpiringPut), b"\x0a\0\0\0\0\0\0\x005").unwrap();
    assert_eq!(expiring, number(5, Some(10)));
    assert_eq!(expiring.with(Operand::add(1, 9)), number(6, Some(10)), "its expiry stays");
    assert_eq!(expiring.with(Operand::add(1, 10)), number(1, None), "its time has passed");
}
