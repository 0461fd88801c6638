//! The reads of a look at a view, in every way of reading, and the expected results.

use super::script::{KEYS, Model, Value, any_range};
use gabion_base::Error;
use gabion_engine::{FileSource, Keyspace, Move, ReadView, Tables};
use gabion_sim::Random;
use gabion_sim::client::{decode_value, engine_keys};
use std::ops::Range;

/// Keys that differ only in the byte after the limit for bounds of files.
const LONG_KEYS: Range<u64> = 60..86;
/// Keys with a far longer common prefix than bounds of files have.
const LONGER_KEYS: Range<u64> = 130..140;
/// Most moves of a walk to and fro.
const MOVES: u64 = 24;

/// A move of an iterator, with the key to seek.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    First,
    Last,
    Next,
    Prev,
    Seek(u64),
    SeekForPrev(u64),
}

/// The parameters of a look.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) replica: u64,
    pub(super) keys: Vec<u64>,
    pub(super) range: (u64, u64),
    /// Its moves to and fro in the range.
    pub(super) steps: Vec<Step>,
}

pub(super) fn any_look(random: &mut Random) -> Look {
    let keys = (0..12).map(|_| random.below(KEYS)).collect();
    let range = if random.once_in(3) { (0, KEYS) } else { any_range(random) };
    let steps = (0..random.below(MOVES + 1)).map(|_| any_step(random)).collect();
    Look { replica: random.number() >> 8, keys, range, steps }
}

fn any_step(random: &mut Random) -> Step {
    match random.below(12) {
        0 => Step::First,
        1 => Step::Last,
        2 | 3 => Step::Seek(random.below(KEYS)),
        4 | 5 => Step::SeekForPrev(random.below(KEYS)),
        6..9 => Step::Next,
        _ => Step::Prev,
    }
}

/// The engine key of a number: numbers ascend as keys do.
pub(super) fn engine_key(key: u64) -> Vec<u8> {
    /// The length of a bound of a file.
    const BOUND_LEN: usize = 256;
    let first = |keys: Range<u64>| engine_keys(keys.start).swap_remove(0);
    if LONG_KEYS.contains(&key) {
        let mut name = first(LONG_KEYS);
        name.resize(BOUND_LEN, b'x');
        name.push(b'a' + (key - LONG_KEYS.start) as u8);
        return name;
    }
    if LONGER_KEYS.contains(&key) {
        let mut name = first(LONGER_KEYS);
        name.resize(BOUND_LEN + 150, b'y');
        name.extend_from_slice(&key.to_be_bytes());
        return name;
    }
    engine_keys(key).swap_remove(0)
}

/// The key as users name it.
pub(super) fn user_key(key: u64) -> Vec<u8> {
    let mut name = engine_key(key);
    assert_eq!(name.remove(0), Keyspace::User as u8);
    name
}

type Pair = (Vec<u8>, Vec<u8>);
type Found = Option<(Vec<u8>, Option<u64>)>;

/// The findings of a look.
pub(super) struct Seen {
    found: Vec<Found>,
    /// The same keys, sought at once.
    found_at_once: Vec<Found>,
    forwards: Vec<Pair>,
    backwards: Vec<Pair>,
    /// After each step of the walk to and fro.
    walk: Vec<Option<Pair>>,
}

/// Looks at a view of a replica.
pub(super) async fn look<S: FileSource + Clone>(
    view: ReadView,
    tables: Tables<S>,
    look: Look,
) -> Result<Seen, Error> {
    let mut found = Vec::new();
    for key in &look.keys {
        let value = view.look_up(&tables, &engine_key(*key)).await?;
        found.push(value.map(|value| (value.value.to_vec(), value.expires_ms)));
    }
    let names: Vec<Vec<u8>> = look.keys.iter().map(|key| engine_key(*key)).collect();
    let mut found_at_once = vec![None; names.len()];
    let give = |at: usize, value: Result<Option<gabion_engine::Found>, Error>| {
        found_at_once[at] = value?.map(|value| (value.value.to_vec(), value.expires_ms));
        Ok(())
    };
    view.look_up_many(&tables, &names, give).await?;
    let [from, to] = [look.range.0, look.range.1].map(engine_key);
    let mut walks = Vec::new();
    for (first, step) in [(Move::First, Move::Next), (Move::Last, Move::Prev)] {
        let mut iterator = view.scan(&tables, &from, Some(&to));
        let (mut pairs, mut to) = (Vec::new(), first);
        while iterator.go(to).await? {
            pairs.extend(iterator.to_pair().map(|(key, value)| (key.to_vec(), value.to_vec())));
            to = step;
        }
        walks.push(pairs);
    }
    let backwards = walks.pop().unwrap_or_default();
    let forwards = walks.pop().unwrap_or_default();
    let mut walk = Vec::new();
    let mut iterator = view.scan(&tables, &from, Some(&to));
    for step in &look.steps {
        let key = match step {
            Step::Seek(key) | Step::SeekForPrev(key) => engine_key(*key),
            _ => Vec::new(),
        };
        let pair = if iterator.go(step.of(&key)).await? { iterator.to_pair() } else { None };
        walk.push(pair.map(|(key, value)| (key.to_vec(), value.to_vec())));
    }
    Ok(Seen { found, found_at_once, forwards, backwards, walk })
}

/// The place of an iterator.
enum Place {
    Before,
    At(u64),
    Past,
}

impl Step {
    fn of<'a>(&self, key: &'a [u8]) -> Move<'a> {
        match self {
            Self::First => Move::First,
            Self::Last => Move::Last,
            Self::Next => Move::Next,
            Self::Prev => Move::Prev,
            Self::Seek(_) => Move::Seek(key),
            Self::SeekForPrev(_) => Move::SeekForPrev(key),
        }
    }

    /// The place that an iterator over these keys reaches from a place.
    fn from(&self, place: &Place, keys: &[u64]) -> Place {
        let first_of = |from: u64| keys.iter().copied().find(|key| *key >= from);
        let last_of = |to: u64| keys.iter().copied().rev().find(|key| *key <= to);
        let up = |key: Option<u64>| key.map_or(Place::Past, Place::At);
        let down = |key: Option<u64>| key.map_or(Place::Before, Place::At);
        match (self, place) {
            (Self::First, _) | (Self::Next, Place::Before) => up(keys.first().copied()),
            (Self::Last, _) | (Self::Prev, Place::Past) => down(keys.last().copied()),
            (Self::Next, Place::At(key)) => up(first_of(key + 1)),
            (Self::Prev, Place::At(key)) => down(key.checked_sub(1).and_then(last_of)),
            (Self::Next, Place::Past) => Place::Past,
            (Self::Prev, Place::Before) => Place::Before,
            (Self::Seek(key), _) => up(first_of(*key)),
            (Self::SeekForPrev(key), _) => down(last_of(*key)),
        }
    }
}

fn pair(key: u64, value: Value) -> Pair {
    (engine_key(key), value.bytes())
}

fn tell(pair: Option<&Pair>) -> Option<(String, Result<u64, String>)> {
    pair.map(|(key, value)| (key.escape_ascii().to_string(), decode_value(value)))
}

/// The first pair by which a walk differs from the model, with keys and values by number.
fn first_difference(pairs: &[Pair], wanted: &[Pair]) -> String {
    let at = pairs.iter().zip(wanted).take_while(|(found, wanted)| found == wanted).count();
    format!("pair {at} is {:?}, wanted {:?}", tell(pairs.get(at)), tell(wanted.get(at)))
}

/// Compares the findings with the model. Returns the number of answers.
pub(super) fn compare(seen: &Seen, look: &Look, model: &Model) -> Result<usize, String> {
    for (what, all) in [("", &seen.found), (" of many", &seen.found_at_once)] {
        for (key, found) in look.keys.iter().zip(all) {
            let wanted = model.get(key).map(|(value, until)| (value.bytes(), *until));
            if *found != wanted {
                let number = found.as_ref().map(|(value, until)| (decode_value(value), until));
                return Err(format!("key {key}{what} is {number:?}, wanted {:?}", model.get(key)));
            }
        }
    }
    let range = model.range(look.range.0..look.range.1);
    let mut wanted: Vec<Pair> = range.clone().map(|(key, (value, _))| pair(*key, *value)).collect();
    if seen.forwards != wanted {
        return Err(format!("forwards: {}", first_difference(&seen.forwards, &wanted)));
    }
    wanted.reverse();
    if seen.backwards != wanted {
        return Err(format!("backwards: {}", first_difference(&seen.backwards, &wanted)));
    }
    let keys: Vec<u64> = range.map(|(key, _)| *key).collect();
    compare_walk(&seen.walk, look, &keys, model)?;
    Ok(2 * look.keys.len() + 2 * wanted.len() + look.steps.len())
}

fn compare_walk(
    walk: &[Option<Pair>],
    look: &Look,
    keys: &[u64],
    model: &Model,
) -> Result<(), String> {
    let mut place = Place::Before;
    for (at, (step, found)) in look.steps.iter().zip(walk).enumerate() {
        place = step.from(&place, keys);
        let wanted = match place {
            Place::At(key) => model.get(&key).map(|(value, _)| pair(key, *value)),
            _ => None,
        };
        if *found != wanted {
            return Err(format!(
                "step {at} of {:?} in {:?} led to {:?}, wanted {:?}",
                &look.steps[..=at],
                look.range,
                tell(found.as_ref()),
                tell(wanted.as_ref())
            ));
        }
    }
    Ok(())
}
