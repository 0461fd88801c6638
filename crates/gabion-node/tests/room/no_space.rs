//! A device that has no room for what a job writes, as a thin file system or one that copies on
//! write may not: jobs pause, and what is done already goes on (docs/faults.md E10). One that fails
//! the writes of some slots: they are given up (E9).

use crate::replica::Replica;
use gabion_base::units::{KIB, MIB};
use gabion_base::{Error, ErrorKind};
use gabion_engine::{JobKind, Keyspace, TreeConfig};
use gabion_media::simulated::{Fault, OperationClass, SimulatedMedium};
use gabion_media::{
    Completion, Medium, MediumHandle, MediumProperties, Operation, OperationKind, Outcome,
};
use gabion_node::work::{self, Done};
use gabion_node::{LocalStore, Output, WriteGate};

pub(crate) fn start() -> Replica {
    let tree = TreeConfig {
        memtable_len: 16 * KIB,
        sst_len: 32 * KIB,
        level1_len: 64 * KIB,
        l0_trigger: 2,
        ..TreeConfig::default()
    };
    Replica::start(128 * MIB, tree, 64 * KIB)
}

/// docs/faults.md: E10
#[test]
fn a_job_without_room_is_tried_again_after_a_pause_that_doubles_and_writes_are_refused_until_then()
{
    let mut replica = start();
    replica.seal();
    for (tries, pause_ms) in [100, 200, 400, 800].into_iter().enumerate() {
        assert_eq!(replica.kinds(), [JobKind::Flush]);
        replica.find_no_room(JobKind::Flush);
        replica.pass(0);
        assert_eq!(replica.node.counters().jobs_without_space, tries as u64 + 1);
        assert_eq!(replica.node.pool().counts().allocated, 0, "slots are given back");
        assert_eq!(replica.node.unshipped_bytes(), 0, "nothing is kept to be shipped");
        let reason = replica.refusal().expect("writes are refused");
        assert!(reason.starts_with("the pool is full: "), "{reason}");
        assert!(reason.contains("write of"), "{reason}");
        assert!(reason.ends_with(&format!("tried again after {pause_ms} ms")), "{reason}");
        replica.pass(pause_ms - 1);
        assert_eq!(replica.kinds(), [], "not before the pause has passed");
        replica.pass(1);
        assert!(replica.refusal().is_some(), "a try is no success");
    }
    replica.succeed(JobKind::Flush);
    replica.pass(0);
    assert_eq!(replica.refusal(), None);
    assert_eq!((replica.node.counters().flushes, replica.node.tree().last_edit()), (1, 1));
    replica.seal();
    replica.find_no_room(JobKind::Flush);
    assert!(replica.refusal().unwrap().ends_with("after 100 ms"), "it begins anew");
}

/// docs/faults.md: E10
#[test]
fn the_edit_of_a_job_that_was_done_before_goes_into_the_log_while_another_finds_no_room() {
    let mut replica = start();
    while replica.kinds() != [JobKind::Compaction] {
        replica.seal();
        replica.succeed(JobKind::Flush);
        replica.pass(0);
    }
    replica.seal();
    let edits = replica.node.tree().last_edit();
    replica.succeed(JobKind::Compaction);
    replica.find_no_room(JobKind::Flush);
    replica.pass(0);
    assert_eq!(replica.node.tree().last_edit(), edits + 1);
    assert!(replica.refusal().is_some());
    assert_eq!(replica.node.pool().counts().allocated, 0, "slots are given back");
}

/// Flushes that find no room, while as many MemTables wait as may: nobody is left who could wait for that to pass.
/// docs/faults.md: E10
#[test]
fn a_device_without_room_refuses_deletes_too_once_flushes_are_behind_and_says_so() {
    let mut replica = start();
    for _ in 0..TreeConfig::default().sealed_max {
        replica.seal();
    }
    assert_eq!(replica.node.write_gate(), WriteGate::Wait("flush is behind"));
    assert!(!replica.node.jobs_pause());
    replica.find_no_room(JobKind::Flush);
    replica.pass(0);
    let WriteGate::Full { reason, takes_deletes, .. } = replica.node.write_gate() else {
        panic!("{:?}", replica.node.write_gate())
    };
    assert!(!takes_deletes && replica.node.jobs_pause());
    assert!(reason.starts_with("the pool is full: "), "{reason}");
    assert!(reason.ends_with("; deletes are refused, too, as flush is behind"), "{reason}");
    // With room all goes on.
    replica.pass(100);
    replica.work();
    assert_eq!(replica.node.write_gate(), WriteGate::Open);
}

/// docs/faults.md: P34
#[test]
fn a_replica_whose_jobs_pause_is_not_quiet_and_says_why() {
    let mut replica = start();
    assert!(replica.node.is_quiet().unwrap());
    replica.seal();
    assert!(!replica.node.is_quiet().unwrap(), "a flush is under way");
    replica.find_no_room(JobKind::Flush);
    replica.pass(0);
    assert_eq!(replica.node.orders_in_flight(), 0);
    let error = replica.node.is_quiet().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().ends_with("tried again after 100 ms"), "{error}");
    replica.pass(100);
    assert!(!replica.node.is_quiet().unwrap(), "it is tried again");
    replica.work();
    assert!(replica.node.is_quiet().unwrap());
}

/// Views keep the files that compactions replaced, until a compaction that is due has no room.
/// docs/faults.md: P34
#[test]
fn a_replica_is_not_quiet_while_a_compaction_that_is_due_has_no_room() {
    let mut replica = start();
    let mut views = Vec::new();
    for round in 0.. {
        views.push(replica.node.read_view());
        for n in 0..30 {
            let key = format!("key {:03}", (round * 7 + n * 13) % 390);
            // When the pool is full, deletes are taken.
            match replica.node.write_gate() {
                WriteGate::Open => replica.node.put(Keyspace::User, key.as_bytes(), &[7; 500]),
                _ => replica.node.delete(Keyspace::User, key.as_bytes()),
            }
            .unwrap();
        }
        replica.node.seal_memtable().unwrap();
        replica.pass(1);
        replica.work();
        if !replica.node.is_quiet().is_ok_and(|is_quiet| is_quiet) {
            break;
        }
        assert!(round < 60, "{:?}", replica.node.pool().counts());
    }
    assert_eq!((replica.node.orders_in_flight(), replica.node.jobs_running()), (0, 0));
    let error = replica.node.is_quiet().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.to_string().contains("a flush or compaction needs more than the "), "{error}");
    let retired = replica.node.pool().counts().retired;
    assert!(retired > 20, "{retired}");
    views.clear();
    replica.pass(1);
    assert!(!replica.node.is_quiet().unwrap(), "there is room now");
    replica.work();
    assert!(replica.node.is_quiet().unwrap());
}

/// A device whose flushes say that there is no room.
struct NoRoomAtFlush {
    medium: SimulatedMedium,
    flushes: Vec<u64>,
}

impl Medium for NoRoomAtFlush {
    fn properties(&self) -> MediumProperties {
        self.medium.properties()
    }
    fn submit(&mut self, batch: Vec<Operation>) {
        let flushes = batch.iter().filter(|it| matches!(it.kind, OperationKind::Flush));
        self.flushes.extend(flushes.map(|it| it.tag));
        self.medium.submit(batch);
    }
    fn poll(&mut self, completed: &mut Vec<Completion>) {
        self.medium.poll(completed);
        for ended in completed.iter_mut().filter(|it| self.flushes.contains(&it.tag)) {
            ended.outcome = Outcome::Failed(Error::no_space("no room"));
        }
    }
    fn in_flight(&self) -> usize {
        self.medium.in_flight()
    }
}

/// docs/faults.md: E10
#[test]
fn a_job_whose_flush_finds_no_room_is_not_tried_again() {
    let mut replica = start();
    replica.seal();
    let (id, order) = replica.jobs.remove(0);
    let medium = NoRoomAtFlush { medium: replica.disk.medium(), flushes: Vec::new() };
    let medium = MediumHandle::new(medium);
    let store = LocalStore { medium: medium.clone(), ..replica.store.clone() };
    let result =
        replica.disk.block_on(&medium, work::run_job(*order, &store, |_| {}, async || Ok(())));
    let error = &result.as_ref().err().expect("the flush fails").error;
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().ends_with("no room"), "{error}");
    replica.node.handle_done(id, Done::Job(result));
    let mut outputs = std::iter::from_fn(|| replica.node.poll_output());
    assert!(outputs.any(|output| matches!(output, Output::Fatal(_))));
}

/// The next flush meets a write that fails.
fn refuse(replica: &mut Replica) {
    replica.disk.plan(OperationClass::Write, 1, Fault::Fail);
    assert_eq!(replica.run(JobKind::Flush).map(|error| error.kind()), Some(ErrorKind::Io));
}

fn given_up(replica: &Replica) -> (u64, u32) {
    (replica.node.counters().refused_slots, replica.node.pool().counts().quarantined)
}

#[test]
fn slots_that_the_device_did_not_write_are_given_up_and_the_job_is_done_anew_in_others() {
    let mut replica = start();
    replica.seal();
    refuse(&mut replica);
    replica.pass(0);
    assert_eq!(given_up(&replica), (1, 1));
    let said = "not used until the next start, as the device did not take what was written there";
    assert_eq!(replica.said().iter().filter(|text| text.contains(said)).count(), 1);
    replica.work();
    assert_eq!((replica.node.counters().flushes, replica.node.tree().sealed_count()), (1, 0));
    assert_eq!(given_up(&replica), (1, 1));
    let replica = replica.restart(5);
    assert_eq!(given_up(&replica), (0, 0), "they are tried again");
}

#[test]
fn a_device_that_takes_no_file_ends_the_replica_after_nine_jobs_in_a_row() {
    let mut replica = start();
    replica.seal();
    for _ in 0..2 {
        for _ in 0..8 {
            refuse(&mut replica);
            replica.pass(0);
        }
        // One that ends well, and it is a matter of slots.
        replica.work();
        replica.seal();
    }
    for _ in 0..8 {
        refuse(&mut replica);
        replica.pass(0);
    }
    refuse(&mut replica);
    let ended = std::iter::from_fn(|| replica.node.poll_output())
        .any(|output| matches!(output, Output::Fatal(error) if error.kind() == ErrorKind::Io));
    assert!(ended, "nine of nine");
    assert_eq!(given_up(&replica).0, 25);
}
