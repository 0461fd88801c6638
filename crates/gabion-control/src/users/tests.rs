use super::*;
use crate::store::{MemoryStore, Store};

type Keeper = UserKeeper<u32>;

fn edit(name: &str, expected: Option<&str>, rules: Option<&str>) -> Edit {
    let bytes = |text: &str| text.as_bytes().to_vec();
    Edit { name: bytes(name), expected: expected.map(bytes), rules: rules.map(bytes) }
}

fn change(number: u64, name: &str, expected: Option<&str>, rules: &str) -> UserChange {
    UserChange { number, edits: alloc::vec![edit(name, expected, Some(rules))] }
}

/// Carries out what the keeper wants; returns what it said.
fn run(keeper: &mut Keeper, store: &mut MemoryStore) -> Vec<UserOutput<u32>> {
    let mut said = Vec::new();
    while let Some(output) = keeper.poll_output() {
        match output {
            UserOutput::Read => keeper.handle_read(store.get(USERS)),
            UserOutput::Swap { expected, record } => {
                keeper.handle_swapped(store.swap(USERS, expected, &record));
            }
            said_output => said.push(said_output),
        }
    }
    said
}

fn outcomes(said: &[UserOutput<u32>]) -> Vec<(u32, u64, ChangeOutcome)> {
    let answer = |output: &UserOutput<u32>| match output {
        UserOutput::Answer { to, number, outcome } => Some((*to, *number, outcome.clone())),
        _ => None,
    };
    said.iter().filter_map(answer).collect()
}

fn stored(store: &mut MemoryStore) -> UserRecord {
    UserRecord::decode(&store.get(USERS).unwrap().unwrap().value).unwrap()
}

#[test]
fn a_record_survives_its_bytes_and_no_flipped_bit_passes() {
    let edits = [edit("b", None, Some("on +@all")), edit("a", None, Some(""))];
    let record = UserRecord::default().changed(&edits).unwrap().unwrap();
    let bytes = record.encode();
    assert_eq!(UserRecord::decode(&bytes).unwrap(), record);
    assert_eq!(record.version(), 1);
    for at in 0..bytes.len() {
        let mut wrong = bytes.clone();
        wrong[at] ^= 1;
        assert!(UserRecord::decode(&wrong).is_err(), "byte {at}");
        assert!(UserRecord::decode(&bytes[..at]).is_err(), "{at} bytes");
    }
}

#[test]
fn of_two_changes_at_once_the_second_hears_of_a_conflict_and_of_the_first() {
    let (mut keeper, mut store) = (Keeper::new(), MemoryStore::default());
    run(&mut keeper, &mut store);
    keeper.handle_change(1, change(7, "u", None, "on"));
    keeper.handle_change(2, change(9, "u", None, "off"));
    let said = run(&mut keeper, &mut store);
    let expected = [(1, 7, ChangeOutcome::Stored(1)), (2, 9, ChangeOutcome::Conflict)];
    assert_eq!(outcomes(&said), expected);
    let record = stored(&mut store);
    assert_eq!(record.get(b"u"), Some(&b"on"[..]));
    let tells: Vec<_> =
        said.iter().filter(|it| matches!(it, UserOutput::Tell { .. })).cloned().collect();
    let told = |to| UserOutput::Tell { to, record: record.clone() };
    assert_eq!(tells, [told(None), told(Some(2))]);
    // Other users are no conflict, and nothing new is no new version.
    keeper.handle_change(2, change(10, "v", None, "off"));
    keeper.handle_change(1, change(8, "u", Some("on"), "on"));
    let said = run(&mut keeper, &mut store);
    let expected = [(2, 10, ChangeOutcome::Stored(2)), (1, 8, ChangeOutcome::Stored(2))];
    assert_eq!(outcomes(&said), expected);
}

#[test]
fn another_controller_that_was_first_is_a_conflict_as_well() {
    let (mut first, mut second) = (Keeper::new(), Keeper::new());
    let mut store = MemoryStore::default();
    run(&mut first, &mut store);
    run(&mut second, &mut store);
    first.handle_change(1, change(1, "u", None, "on"));
    run(&mut first, &mut store);
    second.handle_change(2, change(1, "u", None, "off"));
    let said = run(&mut second, &mut store);
    assert_eq!(outcomes(&said), [(2, 1, ChangeOutcome::Conflict)]);
    second.handle_change(2, change(2, "u", Some("on"), "off"));
    let said = run(&mut second, &mut store);
    assert_eq!(outcomes(&said), [(2, 2, ChangeOutcome::Stored(2))]);
}

#[test]
fn a_store_that_was_set_back_takes_what_replicas_have() {
    let (mut keeper, mut store) = (Keeper::new(), MemoryStore::default());
    run(&mut keeper, &mut store);
    keeper.handle_change(1, change(1, "u", None, "on"));
    run(&mut keeper, &mut store);
    let old = store.clone();
    keeper.handle_change(1, change(2, "u", Some("on"), "off"));
    run(&mut keeper, &mut store);
    let known = stored(&mut store);
    let (mut keeper, mut store) = (Keeper::new(), old);
    run(&mut keeper, &mut store);
    keeper.handle_known(3, known.stamp());
    let said = run(&mut keeper, &mut store);
    let back = stored(&mut store);
    assert_eq!(said, [UserOutput::Tell { to: Some(3), record: back.clone() }]);
    keeper.handle_record(known.clone());
    let said = run(&mut keeper, &mut store);
    assert_eq!(said, [UserOutput::Tell { to: None, record: known.clone() }]);
    assert_eq!(stored(&mut store), known);
    // An old one changes nothing, and a replica that has the same is told nothing.
    keeper.handle_record(back);
    keeper.handle_known(3, known.stamp());
    assert!(run(&mut keeper, &mut store).is_empty());
}

#[test]
fn of_two_records_of_one_version_the_same_one_counts_at_both() {
    let of = |rules: &str| {
        UserRecord::default().changed(&[edit("u", None, Some(rules))]).unwrap().unwrap()
    };
    let mut ends = Vec::new();
    for [first, second] in [["on", "off"], ["off", "on"]] {
        let (mut keeper, mut store) = (Keeper::new(), MemoryStore::default());
        run(&mut keeper, &mut store);
        keeper.handle_record(of(first));
        run(&mut keeper, &mut store);
        keeper.handle_record(of(second));
        run(&mut keeper, &mut store);
        ends.push(stored(&mut store));
    }
    assert_eq!(ends[0], ends[1]);
}

#[test]
fn too_much_is_refused_with_its_limit_and_changes_nothing() {
    let (mut keeper, mut store) = (Keeper::new(), MemoryStore::default());
    run(&mut keeper, &mut store);
    let long = "x".repeat(RECORD_LEN_MAX);
    keeper.handle_change(1, change(1, "u", None, &long));
    let said = run(&mut keeper, &mut store);
    let [(1, 1, ChangeOutcome::Refused(text))] = &outcomes(&said)[..] else { panic!("{said:?}") };
    assert!(text.contains("393216 at most"), "{text}");
    assert_eq!(store.get(USERS).unwrap(), None);
    for number in 0..=WAITING_MAX as u64 + 1 {
        keeper.handle_change(1, change(number, "u", None, "on"));
    }
    let said = run(&mut keeper, &mut store);
    let refused = outcomes(&said);
    assert!(refused.iter().any(|(.., outcome)| matches!(outcome, ChangeOutcome::Refused(_))));
}

#[test]
fn a_swap_whose_answer_was_lost_is_looked_up() {
    for is_stored in [true, false] {
        let (mut keeper, mut store) = (Keeper::new(), MemoryStore::default());
        run(&mut keeper, &mut store);
        keeper.handle_change(1, change(1, "u", None, "on"));
        let Some(UserOutput::Swap { expected, record }) = keeper.poll_output() else {
            panic!("a swap")
        };
        if is_stored {
            store.swap(USERS, expected, &record).unwrap();
        }
        keeper.handle_swapped(Err(Error::unavailable("the store is away")));
        let said = run(&mut keeper, &mut store);
        assert_eq!(outcomes(&said), [(1, 1, ChangeOutcome::Stored(1))]);
        assert_eq!(stored(&mut store).get(b"u"), Some(&b"on"[..]));
    }
}

#[test]
fn a_damaged_record_gives_way_and_one_of_a_later_format_stays() {
    let mut later = UserRecord::default().encode();
    later[4] = 2;
    let end = later.len() - CRC_LEN;
    let sum = crc::crc32c(&later[..end]);
    later[end..].copy_from_slice(&sum.to_le_bytes());
    for (bytes, is_changed) in [(b"rubbish".to_vec(), true), (later, false)] {
        let (mut keeper, mut store) = (Keeper::new(), MemoryStore::default());
        store.swap(USERS, Version::NONE, &bytes).unwrap();
        run(&mut keeper, &mut store);
        keeper.handle_change(1, change(1, "u", None, "on"));
        let said = outcomes(&run(&mut keeper, &mut store));
        assert_eq!(said[0].2 == ChangeOutcome::Stored(1), is_changed, "{said:?}");
        assert_eq!(store.get(USERS).unwrap().unwrap().value == bytes, !is_changed);
    }
}
