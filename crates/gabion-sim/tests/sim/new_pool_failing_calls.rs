//! Every I/O call in the making of a new pool made to fail in turn (docs/faults.md E8 to E10, E16):
//! in the creation of a replica, and in a checkpoint, at its source and at its target. A read or a
//! write meets an I/O error, a write no space (any sectors of it, or a beginning, are there), a
//! flush fails.
//!
//! ```text
//!   creation:    a call fails ─► an error that says which ─► [power cut] ─► no replica, or an empty one ─► made, and used
//!   checkpoint:  a call fails ─► an error that says which ─┬► target: [power cut] ─► no replica, or one that holds all
//!                                                          └► source: holds all ─► a write ─► a checkpoint of all
//! ```
//!
//! The superblock comes last, in two copies that are written and flushed one after the other. So a
//! pool may be there only when a call for one of these failed, and then it is whole. When the call
//! was for the second copy, a pool must be there.
//!
//! A copied replica lives through all failures of a kind, and only a power cut at the end breaks it
//! off: the remains of one failure would show in the next. No call is left out, as there are few.

use crate::io_failures::{FAULTS, Machine, afterwards, calls, check_names, now};
use crate::rig::{Drive, NOT_OPENED, Records, Replica, Turn, create, driven, empty_disk, trust_of};
use crate::workloads::{self, Workload};
use gabion_base::{Error, ErrorKind};
use gabion_media::simulated::{Fault, OperationClass, SimulatedDisk};
use gabion_node::GroupConfig;
use gabion_node::checkpoint::{self, Copied, Origin};
use gabion_sim::SimulatedMemory;
use gabion_sim::client::{TWINS, encode_value};

/// Checks that an error is of the kind of the fault, and names the failed call.
fn check_error(error: &Error, class: OperationClass, fault: Fault) -> Result<(), String> {
    let kind = if fault == Fault::NoSpace { ErrorKind::NoSpace } else { ErrorKind::Io };
    if error.kind() != kind {
        return Err(format!("an error of another kind than {kind:?}: {error:?}"));
    }
    check_names(&error.to_string(), class, fault)
}

/// The findings of a process that starts on a disk and an empty ring: all records, or nothing if
/// there is no pool.
fn found(disk: &SimulatedDisk, ring_len: u64) -> Result<Option<Records>, String> {
    let ring = Box::new(SimulatedMemory::new(ring_len as usize));
    let mut replica = Replica::start(disk.clone(), ring, trust_of(disk));
    match replica.settle() {
        Ok(()) => {
            replica.check_at_rest()?;
            replica.records().map(Some)
        }
        Err(error) if error.starts_with(NOT_OPENED) && error.contains("not a complete pool") => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Checks that a pool is there, or none, as required when the `nth` of `all` calls of its making
/// failed.
fn check_presence(is_there: bool, class: OperationClass, nth: u64, all: u64) -> Result<(), String> {
    let is_change = class != OperationClass::Read;
    match is_there {
        true if !is_change || nth + 1 < all => Err("a pool is there that was not made".into()),
        false if is_change && nth == all => Err("a pool is gone that was flushed".into()),
        _ => Ok(()),
    }
}

/// Checks that a replica goes on: its new writes are there after a power cut, with everything from
/// before.
fn check_goes_on(machine: &Machine, mut drive: Drive<'_>) -> Result<(), String> {
    drive.run(&afterwards())?;
    drive.replica.make_durable()?;
    let wanted = drive.models.last().cloned().unwrap_or_default();
    drop(drive);
    machine.lose_power(0);
    let mut last = machine.start();
    last.settle()?;
    if last.records()? != wanted {
        return Err("a power cut took what was durable".into());
    }
    last.check_at_rest()
}

/// A creation with a failing call.
#[derive(Clone, Copy, Debug)]
struct Creation {
    class: OperationClass,
    fault: Fault,
    nth: u64,
    /// Calls of the class in a creation without a failure.
    all: u64,
    /// Whether the power is cut then, and the remains.
    cut: Option<u64>,
}

impl Creation {
    /// Returns whether a replica was there all the same.
    fn run(&self, group: &GroupConfig) -> Result<bool, String> {
        let machine = Machine::with(empty_disk(), group);
        let disk = &machine.disk;
        disk.plan(self.class, self.nth, self.fault);
        let outcome = create(disk, group);
        if disk.faults_to_come() > 0 {
            return Err("the call that was to fail never came".into());
        }
        let Err(error) = outcome else { return Err("a call failed and nobody is told".into()) };
        check_error(&error, self.class, self.fault)?;
        if let Some(seed) = self.cut {
            machine.lose_power(seed);
        }
        let records = found(disk, group.ring_len)?;
        let is_there = records.is_some();
        check_presence(is_there, self.class, self.nth, self.all)?;
        if records.is_some_and(|records| !records.is_empty()) {
            return Err("a new replica holds something".into());
        }
        match create(disk, group) {
            Err(error) if is_there && error.message().contains("already holds pool") => {}
            Ok(()) if !is_there => {}
            outcome => return Err(format!("another creation: {outcome:?}, there was {is_there}")),
        }
        let ring = || machine.ring();
        check_goes_on(&machine, Drive::start(disk, &ring, &now, group.ack, trust_of(disk)))?;
        Ok(is_there)
    }
}

/// docs/faults.md: E8, E9, E10, E16
#[test]
fn every_call_of_a_creation_fails_and_it_can_be_repeated() {
    let group = workloads::little().group;
    let disk = empty_disk();
    create(&disk, &group).expect("nothing fails");
    let clean = disk.stats();
    for (class, fault) in FAULTS {
        let all = calls(clean, class);
        let (mut runs, mut there) = (0_u64, 0_u64);
        for nth in 1..=all {
            for cut in [None, Some(0), Some(nth + 2)] {
                let creation = Creation { class, fault, nth, all, cut };
                runs += 1;
                match creation.run(&group) {
                    Ok(is_there) => there += u64::from(is_there),
                    Err(error) => panic!("{creation:?}: {error}"),
                }
            }
        }
        eprintln!(
            "coverage: failing calls of a creation, {class:?} {fault:?}: {all} calls, {runs} runs, \
             a replica is there after {there}"
        );
        assert!(runs > there, "{class:?} {fault:?}: no creation was given up");
        assert_eq!(class == OperationClass::Read, there == 0, "{class:?} {fault:?}");
    }
}

/// The side of a checkpoint with the failing call.
#[derive(Clone, Copy, Debug)]
enum Side {
    Source,
    Target,
}

/// A number whose value is a short one, so that many of them fill no MemTable.
fn short(number: u64) -> u64 {
    let is_short = |value: &u64| encode_value(*value).len() < 40;
    (number << 8..).find(is_short).expect("one in twenty is")
}

/// Several files, and a little of everything in the MemTable.
fn workload() -> Workload {
    let mut workload = workloads::ascending();
    workload.turns.truncate(90);
    workload.turns.extend([Turn::Seal, Turn::Rest]);
    workload.turns.extend([
        Turn::Write(vec![(3, None), (4, Some(short(4))), (TWINS, Some(short(5)))]),
        Turn::DeleteRange(20..40),
        Turn::Write(vec![(25, Some(short(6))), (TWINS + 1, Some(short(7)))]),
        Turn::Add(vec![(200_000, 8)]),
        Turn::Add(vec![(200_000, 9), (200_001, 1)]),
    ]);
    workload
}

/// A replica that is copied again and again, and the failure.
struct Copying<'a> {
    source: Drive<'a>,
    ring_len: u64,
    side: Side,
    class: OperationClass,
    fault: Fault,
}

impl Copying<'_> {
    /// Copies it onto an empty disk.
    fn copy_to(&mut self, there: &SimulatedDisk) -> gabion_base::Result<Copied> {
        let replica = &mut self.source.replica;
        let (here, tables) = (replica.disk.clone(), replica.tables().expect("it is open"));
        let node = replica.node().expect("it is open");
        let (view, group) = (node.tree().lasting_view(), node.config().clone());
        let origin = Origin { view, group, view_then: node.state().view.clone() };
        let (medium, target) = (tables.source.store.medium.clone(), there.handle());
        let before = here.stats();
        let copied = here.block_on(
            &medium,
            driven(
                &target,
                checkpoint::write(&target, [9; 16], &origin, &*tables.source, &mut |_| {}),
            ),
        );
        let after = here.stats();
        let changes = (after.writes - before.writes, after.flushes - before.flushes);
        assert_eq!(changes, (0, 0), "nothing of the source changes");
        copied
    }

    /// Its content.
    fn model(&self) -> Records {
        self.source.models.last().cloned().unwrap_or_default()
    }

    /// Nothing fails: the copy has every record, also after a power cut. Returns the copied counts,
    /// and the number of calls of the class to fail.
    fn succeeds(&mut self) -> Result<(Copied, u64), String> {
        let (here, there) = (self.source.replica.disk.clone(), empty_disk());
        let before = here.stats();
        let copied = self.copy_to(&there).map_err(|error| format!("a checkpoint: {error}"))?;
        let all = match self.side {
            Side::Source => calls(here.stats(), self.class) - calls(before, self.class),
            Side::Target => calls(there.stats(), self.class),
        };
        there.crash_power(0);
        if found(&there, self.ring_len)? != Some(self.model()) {
            return Err("a checkpoint does not hold what its source holds".into());
        }
        Ok((copied, all))
    }

    /// The `nth` of `all` calls fails. Returns the number of calls by then, as the later writes
    /// count, too.
    fn fails(&mut self, nth: u64, all: u64) -> Result<u64, String> {
        let (here, there) = (self.source.replica.disk.clone(), empty_disk());
        there.start_recording();
        let failing = match self.side {
            Side::Source => &here,
            Side::Target => &there,
        };
        failing.plan(self.class, nth, self.fault);
        let outcome = self.copy_to(&there);
        if failing.faults_to_come() > 0 {
            return Err("the call that was to fail never came".into());
        }
        let Err(error) = outcome else { return Err("a call failed and nobody is told".into()) };
        check_error(&error, self.class, self.fault)?;
        self.check_target(&there, nth, all).map_err(|error| format!("its target: {error}"))?;
        self.check_source(nth).map_err(|error| format!("its source: {error}"))?;
        let (_, all) = self.succeeds().map_err(|error| format!("afterwards: {error}"))?;
        Ok(all)
    }

    /// The target of a failed copy opens as no store, or as one that has everything.
    fn check_target(&self, there: &SimulatedDisk, nth: u64, all: u64) -> Result<(), String> {
        let recording = there.recording().ok_or("nothing was recorded")?;
        let cut = |variant| recording.image_at(recording.effects().len(), variant);
        for disk in [cut(0), cut(nth + 2), there.clone()] {
            let records = found(&disk, self.ring_len)?;
            check_presence(records.is_some(), self.class, nth, all)?;
            if records.is_some_and(|records| records != self.model()) {
                return Err("a store opens that holds something else".into());
            }
        }
        Ok(())
    }

    /// The source keeps its content, and takes writes.
    fn check_source(&mut self, nth: u64) -> Result<(), String> {
        let model = self.model();
        let replica = &mut self.source.replica;
        if replica.records()? != model {
            return Err("it holds something else".into());
        }
        replica.check_at_rest()?;
        let value = Some(short(1_000 + nth));
        self.source.run(&[Turn::Write(vec![(nth % 60, value), (TWINS + nth % 3, value)])])
    }
}

/// Each call of a class in turn, at one side of checkpoints of one replica.
fn every_call_of_a_checkpoint_fails(side: Side, class: OperationClass, fault: Fault) {
    let workload = workload();
    let machine = Machine::new(&workload);
    let (disk, ring) = (&machine.disk, || machine.ring());
    let mut source = Drive::start(disk, &ring, &now, workload.group.ack, trust_of(disk));
    source.run(&workload.turns).expect("nothing fails");
    let ring_len = workload.group.ring_len;
    let mut copying = Copying { source, ring_len, side, class, fault };
    let what = format!("at its {side:?}, {class:?} {fault:?}").to_lowercase();
    let (copied, mut all) = copying.succeeds().expect("nothing fails");
    assert!(copied.files > 1, "{copied:?}");
    assert!(copied.flushed_files > 0, "{copied:?}");
    let mut nth = 0;
    while nth < all {
        nth += 1;
        match copying.fails(nth, all) {
            Ok(calls_now) => all = calls_now,
            Err(error) => panic!("{what}, {nth} of {all}: {error}"),
        }
    }
    assert!(nth > 1, "{what}: there are {nth} calls");
    eprintln!("coverage: failing calls of a checkpoint {what}: {nth} failed");
    let outcome = check_goes_on(&machine, copying.source);
    assert_eq!(outcome, Ok(()), "{what}");
}

/// docs/faults.md: E9
#[test]
fn every_read_of_a_checkpoint_at_its_source_fails_and_the_source_is_unharmed() {
    // It makes no other calls there.
    every_call_of_a_checkpoint_fails(Side::Source, OperationClass::Read, Fault::Fail);
}

/// docs/faults.md: E8, E9, E10, E16
#[test]
fn every_call_of_a_checkpoint_at_its_target_fails_and_no_half_copy_opens() {
    for (class, fault) in FAULTS {
        every_call_of_a_checkpoint_fails(Side::Target, class, fault);
    }
}

#[test]
fn a_fault_that_does_not_come_is_no_proof() {
    let (class, fault) = (OperationClass::Flush, Fault::Fail);
    let creation = Creation { class, fault, nth: 1_000, all: 1_000, cut: None };
    let error = creation.run(&workloads::little().group).err();
    assert_eq!(error.as_deref(), Some("the call that was to fail never came"));
}
