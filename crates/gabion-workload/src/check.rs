//! The checks after a run, beside a scan of everything: reads of single keys and of many at once,
//! and the engine's account of its memory.

use crate::args::Plan;
use crate::engine::Engine;
use crate::key::{Key, Permutation};
use crate::ledger::{Ledger, wrong_read};
use gabion_base::{Error, Result};

/// Records that are read one by one, and as many in batches; all where there are fewer.
const SAMPLE: u64 = 20_000;
/// Keys of a batch.
const BATCH: usize = 100;
/// Bytes that may be resident beside the engine's account and the instrument's own: the program and
/// its threads, freed memory that the allocator keeps, and its rounding. With 100 million records
/// they are 338 MB.
const UNTOLD_MAX: u64 = 450_000_000;

/// Reads records all over the key space, in no order, now that nobody writes: some one by one,
/// others in batches.
pub(crate) fn sample<E: Engine>(engine: &E, plan: &Plan, ledger: &Ledger) -> Result<()> {
    let keys = plan.workload.key_space();
    let order = Permutation::new(ledger.room(), plan.seed);
    let count = ledger.room().min(SAMPLE);
    for place in 0..count {
        let record = order.at(place);
        let mut checked = Ok(());
        let is_there = engine.get(&keys.key(record), &mut |value| {
            checked = ledger.check_at_rest(record, value);
        })?;
        checked?;
        if !is_there {
            Ledger::check_absent(record, ledger.floor(record))?;
        }
    }
    let last: Vec<u64> = (ledger.room() - count..ledger.room()).map(|at| order.at(at)).collect();
    last.chunks(BATCH).try_for_each(|records| {
        let names: Vec<Key> = records.iter().map(|record| keys.key(*record)).collect();
        many(engine, ledger, records, &names)
    })
}

fn many<E: Engine>(engine: &E, ledger: &Ledger, records: &[u64], names: &[Key]) -> Result<()> {
    let mut is_there = vec![false; records.len()];
    let mut checked = Ok(());
    engine.multi_get(names, &mut |at, value| {
        let is_again = is_there.get_mut(at).map(|there| std::mem::replace(there, true));
        let of_this = match is_again {
            Some(false) => ledger.check_at_rest(records[at], value),
            _ => Err(wrong_read(records[0], &format!("place {at} of many is told once too often"))),
        };
        if checked.is_ok() {
            checked = of_this;
        }
    })?;
    checked?;
    let missing = records.iter().zip(is_there).filter(|(_, there)| !there);
    missing
        .map(|(record, _)| *record)
        .try_for_each(|record| Ledger::check_absent(record, ledger.floor(record)))
}

/// Compares the engine's account of its memory, if it gives one, with the resident bytes.
pub(crate) fn told(kinds: &[(&'static str, u64)], instrument: u64, resident: u64) -> Result<()> {
    let told: u64 = kinds.iter().map(|(_, bytes)| bytes).sum();
    if kinds.is_empty() || resident <= told + instrument + UNTOLD_MAX {
        return Ok(());
    }
    Err(Error::limit(format!(
        "{resident} bytes of memory are resident, but the engine tells of {told} ({kinds:?}) and the instrument has \
         {instrument}: at most {UNTOLD_MAX} may be neither's"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::ErrorKind;

    #[test]
    fn memory_that_nobody_tells_of_is_found_out_and_an_engine_that_tells_nothing_is_not_asked() {
        let kinds = [("block_cache", 500 << 20), ("log", 5 << 20)];
        assert!(told(&kinds, 400 << 20, (905 << 20) + UNTOLD_MAX).is_ok());
        let error = told(&kinds, 400 << 20, (905 << 20) + UNTOLD_MAX + 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        assert!(error.message().contains("block_cache"), "{error}");
        assert!(told(&[], 0, 1 << 40).is_ok());
    }
}
