//! A record that the log does not take: the MemTable has what the log has not.

use crate::no_space::start;
use gabion_base::{ErrorKind, Failed};
use gabion_engine::Keyspace;
use gabion_node::{Output, WriteGate};

/// The turn may have failed as it was written, record by record. A smaller record would fit, and
/// would tell the members of later writes without the earlier ones.
/// docs/faults.md: E8
#[test]
fn nothing_goes_into_the_log_behind_a_record_that_it_did_not_take() {
    let mut replica = start();
    let (node, value) = (&mut replica.node, [7; 4_000]);
    // Nobody asks the gate, and nothing is drained meanwhile.
    let error = loop {
        if let Err(error) = node.put(Keyspace::User, b"key", &value) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let (end, sequence) = (node.log_end(), node.tree().last_sequence());
    let refused = node.put(Keyspace::User, b"small", b"").expect_err("later than what is lost");
    assert_eq!(refused.to_string(), error.to_string());
    let replies = node.end_turn().expect_err("replies of the turn would tell of what is lost");
    assert_eq!(replies.to_string(), error.to_string());
    assert!(node.make_durable().is_err());
    assert_eq!((node.log_end(), node.tree().last_sequence()), (end, sequence));
    assert_eq!(node.write_gate(), WriteGate::Refuse(error.to_string()));
    let outputs = std::iter::from_fn(|| node.poll_output());
    let fatal = outputs.filter(|output| matches!(output, Output::Fatal(_))).count();
    assert_eq!(fatal, 1, "{:?} ends the process, once", Failed::Apply);
}
