//! The options of a seed.

use gabion_engine::PinBudget;
use gabion_node::{AckLevel, CompactionMode};
use gabion_sim::{ControlFaults, ControlOptions, Faults, Options};

/// A group of three to five with one or two controllers, without faults.
pub(crate) fn calm(seed: u64) -> Options {
    let replicas = [3, 3, 4, 3, 5][(seed % 5) as usize];
    let control = ControlOptions {
        controllers: if seed % 4 == 1 { 2 } else { 1 },
        spares: u32::from(seed % 3 == 1),
        // So many may lose their disks at once, but for one.
        members_min: if replicas == 5 { 3 } else { 2 },
        faults: ControlFaults::default(),
    };
    Options {
        replicas,
        faults: Faults::default(),
        ack: if seed % 3 == 2 { AckLevel::Durable } else { AckLevel::Replicated },
        compaction: CompactionMode::Primary,
        // One that is left out and filled again ends its readers.
        pin_budget: PinBudget::default(),
        control: Some(control),
        ..Options::default()
    }
}

/// A group under every fault that concerns one, as the seed says.
pub(crate) fn options(seed: u64) -> Options {
    let mut options = calm(seed);
    let has = |kinds: &[u64], of: u64| kinds.contains(&(seed % of));
    let rate = |is: bool, rate: u64| if is { rate } else { 0 };
    options.steps = 8_000;
    options.faults = Faults {
        kill: 2_500,
        kill_all: rate(has(&[2], 6), 5_000),
        link: 2_000,
        pipe: 2_000,
        slow: rate(has(&[1, 4], 6), 1_500),
        hold: rate(has(&[0, 3], 6), 300),
        pause: rate(has(&[1, 2, 5], 7), 2_000),
        one_way: rate(has(&[0, 2, 3], 7), 1_500),
        flip: rate(has(&[1, 6], 7), 400),
        flip_files: rate(has(&[1, 6], 7), 300),
        flip_records: rate(has(&[1, 6], 7), 1_000),
        power: rate(has(&[0, 1, 4], 5), 1_500),
        power_some: rate(has(&[1, 4], 5), 2_500),
        ..Faults::default()
    };
    let forgets = has(&[4], 9);
    let control = ControlFaults {
        crash: rate(has(&[0, 1, 4], 6), 800),
        pause: rate(has(&[1, 2, 5], 6), 1_500),
        way: 2_000,
        flip: rate(has(&[1, 6], 7), 500),
        set_back: rate(forgets, 600),
        away: rate(has(&[0, 2, 3, 4], 5), 2_500),
        freeze: rate(has(&[1, 2, 3], 5), 2_500),
        wipe: rate(!forgets && has(&[0, 3, 5], 8), 3_000),
        older: rate(!forgets && has(&[1, 5, 6], 8), 1_500),
        hang: rate(has(&[2, 5], 8), 2_500),
        refuse: rate(has(&[4, 6], 8), 2_500),
        full: rate(has(&[0, 7], 8), 2_500),
        flap: rate(has(&[0, 4], 7), 1_500),
        split: rate(has(&[3, 5], 7), 3_000),
        // Members that are well go too often for the other faults.
        deaf: 0,
    };
    if let Some(options) = &mut options.control {
        options.faults = control;
    }
    options
}
