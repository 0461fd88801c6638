//! Seeds of the simulator: delays, lost connections, kills and power cuts of any replica at any write,
//! torn writes. `GABION_SEEDS` and `GABION_FIRST_SEED` choose more and others.

use gabion_engine::PinBudget;
use gabion_sim::{Options, Outcome, World};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn seeds_keep_every_promise_and_repeat_exactly() {
    let (first, count) = (number("GABION_FIRST_SEED", 1), number("GABION_SEEDS", 20));
    let (mut failed, mut total) = (Vec::new(), Outcome::default());
    for seed in first..first + count {
        let options = Options::of_seed(seed);
        let is_patient = options.pin_budget == PinBudget::default();
        let outcome = World::run(seed, options);
        if let Ok(outcome) = &outcome {
            let ended = outcome.readers_ended;
            assert!(!is_patient || ended == 0, "seed {seed}: {ended} readers ended within 5 min");
            total.add(outcome);
        }
        match &outcome {
            Ok(outcome) if std::env::var_os("GABION_VERBOSE").is_some() => {
                eprintln!("seed {seed}: {outcome:?}");
            }
            Ok(_) => {}
            Err(error) => {
                eprintln!("{error}");
                failed.push(seed);
            }
        }
        if seed % 20 == 0 && outcome.is_ok() {
            assert_eq!(
                World::run(seed, Options::of_seed(seed)),
                outcome,
                "seed {seed} ran differently twice"
            );
        }
    }
    assert!(failed.is_empty(), "{} of {count} seeds failed: {failed:?}", failed.len());
    // Seeds in which nothing happens would prove nothing.
    eprintln!("{count} seeds: {total:?}");
    let busy = total.crashes > count && total.compactions > count && total.shipped_bytes > 0;
    let busy = busy && total.readers_ended > count;
    assert!(busy || count < 10, "too little happened");
}
