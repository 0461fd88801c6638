//! Seeds of the simulator: delays, lost connections, kills and power cuts of any replica at any write,
//! torn writes. `GABION_SEEDS` and `GABION_FIRST_SEED` choose more and others.

use gabion_sim::{Options, World};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn seeds_keep_every_promise_and_repeat_exactly() {
    let (first, count) = (number("GABION_FIRST_SEED", 1), number("GABION_SEEDS", 20));
    let mut failed = Vec::new();
    for seed in first..first + count {
        let outcome = World::run(seed, Options::of_seed(seed));
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
        if seed % 50 == 0 && outcome.is_ok() {
            assert_eq!(
                World::run(seed, Options::of_seed(seed)),
                outcome,
                "seed {seed} ran differently twice"
            );
        }
    }
    assert!(failed.is_empty(), "{} of {count} seeds failed: {failed:?}", failed.len());
}
