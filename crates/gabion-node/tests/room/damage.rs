//! Bytes that are not what was written, met by a compaction (FAULTS.md E9): the compaction is given up and not
//! tried again, and all else goes on.

use crate::no_space::start;
use gabion_base::ErrorKind;
use gabion_engine::JobKind;
use gabion_node::WriteGate;

#[test]
fn a_compaction_that_meets_damage_is_given_up_once_and_writes_go_on() {
    let mut replica = start();
    while replica.kinds() != [JobKind::Compaction] {
        replica.seal();
        replica.succeed(JobKind::Flush);
        replica.pass(0);
    }
    let file = replica.node.tree().version().level(0).last().unwrap().id;
    let at = replica.offset_of(file);
    replica.disk.flip_bit(at + 100, 3);
    let error = replica.run(JobKind::Compaction).expect("it meets the damage");
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    replica.pass(0);
    assert_eq!(replica.node.damage().map(ToString::to_string), Some(error.to_string()));
    assert!(error.to_string().contains(&file.to_string()), "{error}");
    assert_eq!(replica.node.pool().counts().allocated, 0, "slots are given back");
    for _ in 0..5 {
        assert_eq!(replica.kinds(), [], "it is not tried again");
        assert_eq!(replica.node.write_gate(), WriteGate::Open);
        replica.seal();
        replica.succeed(JobKind::Flush);
        replica.pass(0);
    }
    assert_eq!(replica.node.counters().jobs_set_aside, 1);
}
