//! Creation is atomic, also when one of its calls fails (docs/faults.md E8 to E10); what an older
//! build cannot read it refuses by name (E16).

use super::*;
use crate::placement_log::{RECORD_VERSION, RecordHeader, RecordKind, encode_record};
use crate::superblock::FORMAT_VERSION;
use crate::{Creation, Extent, Geometry, Trust, create, verify_file, write_file};
use alloc::format;
use gabion_base::crc::crc32c;
use gabion_base::{Error, ErrorKind, SlotIndex};
use gabion_media::AlignedBuf;
use gabion_media::simulated::{Fault, OperationClass};

fn open_error(disk: &SimulatedDisk) -> Error {
    Rig::open(disk.clone()).err().expect("the pool does not open")
}

/// docs/faults.md: E16
#[test]
fn an_interrupted_creation_leaves_no_pool_and_can_be_repeated() {
    let disk = SimulatedDisk::new(DiskOptions::immediate(POOL_LEN));
    let handle = disk.handle();
    disk.start_recording();
    disk.block_on(&handle, create(&handle, &config(), b"initial")).unwrap();
    let recording = disk.recording().unwrap();
    let mut whole = 0;
    for k in 0..=recording.effects().len() {
        for variant in 0..20 {
            let image = recording.image_at(k, variant);
            match Rig::open(image.clone()) {
                Ok(rig) => {
                    assert_eq!(rig.snapshot, b"initial");
                    whole += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound, "boundary {k}: {error}");
                    assert!(format!("{error}").contains("not a complete pool"), "{error}");
                    let handle = image.handle();
                    image.block_on(&handle, create(&handle, &config(), b"again")).unwrap();
                    assert_eq!(Rig::open(image).unwrap().snapshot, b"again");
                }
            }
        }
    }
    assert!(whole >= 20, "the last boundary is a pool in every variant");
}

/// Makes a pool with a file in it from the first moment.
async fn create_with_a_file(handle: &MediumHandle) -> Result<()> {
    let mut creation = Creation::begin(handle, &config()).await?;
    let spare = creation.allocate(3)?;
    creation.release(&spare)?;
    let data = AlignedBuf::copy_of(&[7; BLOCK_LEN]).freeze();
    let slots = creation.allocate(1)?;
    let checksum = crc32c(&data);
    let placement = FilePlacement { len: BLOCK_LEN as u64, checksum, ..placement(5, &slots) };
    let region = creation.pool().region();
    write_file(handle, region, POOL_ID, GROUP, &placement, &data, &[checksum]).await?;
    creation.add_file(placement)?;
    creation.finish(handle, b"with a file").await
}

/// docs/faults.md: E16
#[test]
fn a_pool_that_is_made_with_files_has_all_of_them_or_is_none() {
    let disk = SimulatedDisk::new(DiskOptions::immediate(POOL_LEN));
    let handle = disk.handle();
    disk.start_recording();
    disk.block_on(&handle, create_with_a_file(&handle)).unwrap();
    let recording = disk.recording().unwrap();
    let mut whole = 0;
    for k in 0..=recording.effects().len() {
        for variant in 0..20 {
            match Rig::open(recording.image_at(k, variant)) {
                Ok(mut rig) => {
                    assert_eq!(rig.snapshot, b"with a file");
                    let file = rig.pool.placement(FileId::sst(5)).expect("it is there");
                    let region = rig.pool.region();
                    let check = verify_file(&rig.handle, region, POOL_ID, GROUP, &file);
                    rig.block_on(check).unwrap();
                    // What is given out now is younger than what the file has.
                    let next = rig.pool.allocate(1).unwrap();
                    assert!(next[0].generation > file.slots[0].generation);
                    assert_ne!(next[0].slot, file.slots[0].slot);
                    whole += 1;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{k}: {error}"),
            }
        }
    }
    assert!(whole >= 20, "the last boundary is a pool in every variant");
    let again = disk.block_on(&handle, create_with_a_file(&handle)).unwrap_err();
    assert!(again.message().contains("already holds pool"), "{again}");
}

/// A way to make a pool, and what is in one that was made so.
struct Way {
    make: fn(&SimulatedDisk) -> Result<()>,
    snapshot: &'static [u8],
    files: usize,
}

/// A call of a creation that is to fail: the `nth` of a class.
#[derive(Clone, Copy, Debug)]
struct Call {
    class: OperationClass,
    nth: u64,
    fault: Fault,
}

impl Way {
    fn all() -> [Self; 2] {
        let empty = |disk: &SimulatedDisk| {
            let handle = disk.handle();
            disk.block_on(&handle, create(&handle, &config(), b"initial"))
        };
        let with_a_file = |disk: &SimulatedDisk| {
            let handle = disk.handle();
            disk.block_on(&handle, create_with_a_file(&handle))
        };
        [
            Self { make: empty, snapshot: b"initial", files: 0 },
            Self { make: with_a_file, snapshot: b"with a file", files: 1 },
        ]
    }

    /// Opens the pool as the next process does, and sees that it is whole.
    fn open(&self, disk: &SimulatedDisk) -> Result<()> {
        let handle = disk.handle();
        let trust = if disk.flush_had_failed() { Trust::Flushed } else { Trust::Readable };
        let Recovered { pool, opaque_snapshot, .. } =
            disk.block_on(&handle, open(&handle, trust))?;
        disk.forget_failed_flush();
        pool.invariants();
        assert_eq!(&opaque_snapshot[..], self.snapshot);
        assert_eq!(pool.files().count(), self.files);
        let region = pool.region();
        for file in pool.files() {
            let check = verify_file(&handle, region, POOL_ID, GROUP, file);
            disk.block_on(&handle, check).expect("its bytes are there");
        }
        Ok(())
    }

    /// Makes a pool while a call fails, and perhaps cuts the power then. Returns whether there is a
    /// pool; where there is none one can be made.
    fn fails(&self, call: Call, cut: Option<u64>) -> bool {
        let disk = SimulatedDisk::new(DiskOptions::immediate(POOL_LEN));
        disk.plan(call.class, call.nth, call.fault);
        let error = (self.make)(&disk).unwrap_err();
        assert_eq!(disk.faults_to_come(), 0, "{call:?}");
        let (kind, cause) = match call.fault {
            Fault::NoSpace => (ErrorKind::NoSpace, "without room"),
            _ => (ErrorKind::Io, "simulated I/O error"),
        };
        let name = match call.class {
            OperationClass::Read => "read of ",
            OperationClass::Write => "write of ",
            OperationClass::Flush => "flush: ",
        };
        let message = format!("{error}");
        assert_eq!(error.kind(), kind, "{call:?}: {message}");
        assert!(message.contains(name), "{call:?}: {message}");
        assert!(message.contains(cause), "{call:?}: {message}");
        if let Some(seed) = cut {
            disk.crash_power(seed);
        }
        let opened = self.open(&disk);
        let is_there = opened.is_ok();
        let again = (self.make)(&disk);
        if let Err(error) = opened {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{call:?}, {cut:?}: {error}");
            assert!(error.message().contains("not a complete pool"), "{call:?}, {cut:?}: {error}");
            again.unwrap();
        } else {
            assert!(again.unwrap_err().message().contains("already holds pool"), "{call:?}");
        }
        disk.crash_power(0);
        self.open(&disk).unwrap();
        is_there
    }
}

/// The superblock's copies are what is written last, each flushed before the next: only when a call
/// for one of them failed may there be a pool, and when it was for the second one there is.
/// docs/faults.md: E8, E10, E16
#[test]
fn a_creation_of_which_any_call_fails_says_which_and_leaves_no_pool_or_a_whole_one() {
    for way in Way::all() {
        let disk = SimulatedDisk::new(DiskOptions::immediate(POOL_LEN));
        (way.make)(&disk).unwrap();
        let stats = disk.stats();
        for (class, all, fault) in [
            (OperationClass::Read, stats.reads, Fault::Fail),
            (OperationClass::Write, stats.writes, Fault::Fail),
            (OperationClass::Write, stats.writes, Fault::NoSpace),
            (OperationClass::Flush, stats.flushes, Fault::Fail),
        ] {
            assert!(all > 1, "{class:?}: {all}");
            let is_change = class != OperationClass::Read;
            for nth in 1..=all {
                for cut in [None, Some(0), Some(nth + 2)] {
                    let call = Call { class, nth, fault };
                    let is_there = way.fails(call, cut);
                    let may = is_change && nth + 1 >= all;
                    assert!(may || !is_there, "{call:?} of {all}, {cut:?}: a pool");
                    let must = is_change && nth == all;
                    assert!(is_there || !must, "{call:?} of {all}, {cut:?}: no pool");
                }
            }
        }
    }
}

#[test]
fn a_medium_that_holds_a_pool_is_not_created_upon() {
    let rig = Rig::new();
    let error = rig.block_on(create(&rig.handle, &config(), b"")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.message().contains("706f6f6c"), "it names the pool: {error}");
    rig.reopen();
}

#[test]
fn lengths_out_of_bounds_are_refused_with_the_limits() {
    let disk = SimulatedDisk::new(DiskOptions::immediate(POOL_LEN));
    let handle = disk.handle();
    for (len, kind) in [
        (14 * MIB - 1, ErrorKind::LimitExceeded),
        (0, ErrorKind::LimitExceeded),
        (u64::MAX, ErrorKind::LimitExceeded),
        (POOL_LEN + 1, ErrorKind::InvalidInput),
    ] {
        let config = PoolConfig { len, ..config() };
        let error = disk.block_on(&handle, create(&handle, &config, b"")).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    let smallest = PoolConfig { len: 14 * MIB, ..config() };
    disk.block_on(&handle, create(&handle, &smallest, b"")).unwrap();
    assert_eq!(Rig::open(disk).unwrap().pool.counts().total, 1);
}

#[test]
fn a_pool_cut_short_is_refused_with_both_lengths() {
    let rig = Rig::new();
    let short = SimulatedDisk::new(DiskOptions::immediate(POOL_LEN / 2));
    short.poke(0, &rig.disk.peek(0, (POOL_LEN / 2) as usize));
    let message = format!("{}", open_error(&short));
    assert!(message.contains("67108864") && message.contains("33554432"), "{message}");
}

/// Changes the superblock's bytes in both copies and makes its checksum right again.
fn with_superblock(change: impl Fn(&mut Vec<u8>)) -> SimulatedDisk {
    let disk = Rig::new().disk;
    let mut block = disk.peek(0, BLOCK_LEN);
    change(&mut block);
    let crc = crc32c(&block[..BLOCK_LEN - 4]);
    block[BLOCK_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
    disk.poke(0, &block);
    disk.poke(BLOCK_LEN as u64, &block);
    disk
}

/// docs/faults.md: E16
#[test]
fn another_version_or_a_future_feature_is_refused_and_both_sides_named() {
    for version in [1, 9] {
        let error = open_error(&with_superblock(|block| block[8] = version));
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let message = format!(
            "the pool has format version {version}, this build knows version {FORMAT_VERSION}"
        );
        assert_eq!(error.message(), message);
    }
    for (at, name) in [(40, "read-only compatible"), (48, "incompatible")] {
        let error = open_error(&with_superblock(|block| block[at] = 4));
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let message = format!("the pool has {name} features 0x4, this build knows 0x0");
        assert_eq!(error.message(), message);
    }
    Rig::open(with_superblock(|block| block[32] = 4)).expect("compatible features are ignored");
}

/// A superblock whose region was grown: an extent of four slots, and behind a gap one of so many
/// that begins there.
fn of_two_extents(offset: u64, slots: u32) -> Superblock {
    let mut plan = Superblock::plan_with_area(&config(), 16 * 4096).unwrap();
    let first = plan.regions[0].geometry.extents().next().unwrap();
    let first = Extent { slots: 4, ..first };
    plan.regions[0].geometry = Geometry::of_extents(&[first, Extent { offset, slots }]).unwrap();
    plan
}

#[test]
fn a_region_of_two_extents_is_opened_and_files_may_lie_in_both() {
    let disk = SimulatedDisk::new(DiskOptions::immediate(POOL_LEN));
    let handle = disk.handle();
    let plan = of_two_extents(30 * MIB, 16);
    disk.block_on(&handle, create_planned(&handle, &plan, b"")).unwrap();
    let mut rig = Rig::open(disk).unwrap();
    assert_eq!(rig.pool.counts().total, 20);
    assert_eq!(rig.pool.region(), &plan.regions[0].geometry);
    let slots = rig.pool.allocate(20).unwrap();
    let data = AlignedBuf::copy_of(&[0xa5; 3 * SLOT_LEN as usize]).freeze();
    let crcs = data.chunks(1 << 20).map(crc32c).collect::<Vec<_>>();
    let mut file = placement(1, &slots[2..5]);
    (file.len, file.checksum) = (3 * SLOT_LEN, crc32c(&data));
    let region = rig.pool.region();
    let runs: Vec<_> = crate::extents(region, &file, 0, file.len).collect();
    // The third slot of it is the first of the second extent, behind that one's headers.
    let second = (30 * MIB + SLOT_LEN, SLOT_LEN);
    assert_eq!(runs, [(region.slot_offset(SlotIndex(2)), 2 * SLOT_LEN), second]);
    let (handle, id) = (&rig.handle, POOL_ID);
    rig.block_on(write_file(handle, region, id, GROUP, &file, &data, &crcs)).unwrap();
    rig.pool.add_file(file.clone()).unwrap();
    rig.commit();
    let rig = rig.reopen();
    let region = rig.pool.region();
    rig.block_on(verify_file(&rig.handle, region, POOL_ID, GROUP, &file)).unwrap();
}

#[test]
fn extents_that_overlap_or_leave_the_pool_are_refused() {
    let refused = |plan: &Superblock| Superblock::decode(&plan.encode()).unwrap_err();
    assert!(Superblock::decode(&of_two_extents(60 * MIB, 1).encode()).is_ok());
    for (offset, slots) in [(62 * MIB, 1), (60 * MIB, 2), (31 * MIB, 1)] {
        let error = refused(&of_two_extents(offset, slots));
        assert_eq!(error.kind(), ErrorKind::Corruption);
        assert!(error.message().contains(&format!("at {offset} does not fit after")), "{error}");
    }
    // Of another region, in the middle of the first extent.
    let mut plan = of_two_extents(40 * MIB, 1);
    let mut other = plan.regions[0].clone();
    other.geometry = Geometry::new(6 * MIB, 1);
    plan.regions.push(other);
    assert!(refused(&plan).message().contains("does not fit after"));
    // The table says that a region has more extents than there is room for, none, or that they
    // descend.
    let of_bytes = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut block = of_two_extents(40 * MIB, 1).encode();
        change(&mut block);
        let crc = crc32c(&block[..BLOCK_LEN - 4]);
        block[BLOCK_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
        Superblock::decode(&block).unwrap_err()
    };
    for (change, why) in [
        (&(|block: &mut Vec<u8>| block[116] = 129) as &dyn Fn(&mut Vec<u8>), "129 extents"),
        (&|block| block[116] = 0, "region 1: a region of 0 extents"),
        (&|block| block[116] = 3, "region 1: a region with an extent of 0 slots at 0"),
        (
            &|block| block[1136..1168].rotate_left(16),
            "region 1: a region with an extent of 4 slots",
        ),
    ] {
        let error = of_bytes(change);
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
        assert!(format!("{error}").contains(why), "{error}");
    }
}

#[test]
fn a_superblock_whose_parts_overlap_or_leave_the_pool_is_refused() {
    for (at, byte) in [(72, 1), (79, 1), (80, 1), (88 + 2, 0), (12, 65), (12, 0), (112 + 4, 200)] {
        let error = open_error(&with_superblock(|block| block[at] = byte));
        let kind = error.kind();
        assert!(
            kind == ErrorKind::Corruption || kind == ErrorKind::Unsupported,
            "byte {at}: {error}"
        );
    }
}

#[test]
fn of_two_superblocks_the_later_counts_and_the_other_follows() {
    let newer = with_superblock(|block| block[56] = 2);
    let disk = Rig::new().disk;
    for copy in [0, BLOCK_LEN as u64] {
        let image = disk.fork();
        image.poke(copy, &newer.peek(0, BLOCK_LEN));
        Rig::open(image.clone()).unwrap();
        assert_eq!(image.peek(0, BLOCK_LEN), newer.peek(0, BLOCK_LEN));
        assert_eq!(image.peek(BLOCK_LEN as u64, BLOCK_LEN), newer.peek(0, BLOCK_LEN));
    }
    let other = with_superblock(|block| block[16] = 0);
    disk.poke(0, &other.peek(0, BLOCK_LEN));
    assert_eq!(open_error(&disk).kind(), ErrorKind::Corruption, "same revision, other content");
}

#[test]
fn a_record_of_a_future_version_or_with_an_unknown_critical_field_is_refused() {
    let rig = Rig::new();
    let (_, area) = (&rig.pool, Superblock::plan_with_area(&config(), 16 * 4096).unwrap().areas[0]);
    // What the pool would write next: snapshot (1 block), opening (2), first commit (2).
    let at = area.offset + 5 * BLOCK_LEN as u64;
    let block = rig.disk.peek(at - 2 * BLOCK_LEN as u64, BLOCK_LEN);
    let (version, last) = RecordHeader::peek(&block).unwrap();
    assert_eq!((version, last.kind), (RECORD_VERSION, RecordKind::Commit));
    let next = RecordHeader { number: last.number + 1, previous_crc: last.crc, ..last };
    for (tag, critical, opens) in [(900, 1, false), (900, 0, true)] {
        let mut body = Vec::new();
        gabion_base::codec::put_field(&mut body, tag, critical, b"from the future");
        let (_, record) = encode_record(&next, &body, 2);
        let image = rig.disk.fork();
        image.poke(at, &record);
        match Rig::open(image) {
            Ok(_) => assert!(opens),
            Err(error) => {
                assert!(!opens, "{error}");
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                assert!(format!("{error}").contains("field 900"), "{error}");
            }
        }
    }
    let (_, mut record) = encode_record(&next, b"", 1);
    record[8] = 5;
    let crc = crc32c(&record[..52]);
    record[52..56].copy_from_slice(&crc.to_le_bytes());
    rig.disk.poke(at, &record);
    let error = open_error(&rig.disk);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("version 5, this build knows version 1"), "{error}");
}
