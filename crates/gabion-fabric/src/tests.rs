//! Pools, rings, sockets and locks on the real system, by every kind of I/O, kills included.

use crate::{
    Backend, BackendChoice, BlockingMedium, DirectIo, MappedRing, MediumOptions, PoolFile,
    TcpTransport, free_space, preallocate,
};
use gabion_base::ErrorKind;
use gabion_base::units::BLOCK_LEN;
use gabion_media::transport::Transport;
use gabion_media::{
    AlignedBuf, Bytes, Completion, Medium, MemoryRegion, Operation, OperationKind, Outcome,
};
use proptest::prelude::*;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

const BLOCK: u64 = BLOCK_LEN as u64;

/// A directory of its own, removed at the end.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Self {
        Self::under(&std::env::temp_dir())
    }

    fn under(parent: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("gabion-fabric-{}-{n}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn pool(&self, blocks: u64) -> PathBuf {
        let path = self.0.join("pool");
        preallocate(&path, blocks * BLOCK).unwrap();
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Each backend with each manner of I/O; io_uring only where the kernel has it.
fn ways() -> Vec<(DirectIo, MediumOptions)> {
    let mut ways = Vec::new();
    for direct in [DirectIo::Try, DirectIo::Never] {
        for backend in [BackendChoice::Auto, BackendChoice::Threads] {
            ways.push((direct, MediumOptions { backend, depth: 3, notify: true }));
        }
    }
    ways
}

fn block_of(byte: u8) -> Bytes {
    AlignedBuf::copy_of(&[byte; BLOCK_LEN]).freeze()
}

fn drain(medium: &mut impl MediumWait) -> Vec<Completion> {
    let mut ended = Vec::new();
    while medium.in_flight() > 0 {
        medium.wait();
        medium.poll(&mut ended);
    }
    ended
}

trait MediumWait: Medium {
    fn wait(&mut self);
}

impl MediumWait for crate::FileMedium {
    fn wait(&mut self) {
        Self::wait(self);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Read { block: u64, count: u64 },
    Write { block: u64, count: u64, byte: u8 },
    Flush,
}

/// A batch of operations on disjoint ranges, so that any order gives one result. Each is alone or a
/// chain of a write, a flush and a read of the same range.
#[derive(Clone, Debug)]
struct Round(Vec<(Step, bool)>);

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    let step = |lane: u64| {
        let range = (0u64..2, 1u64..3);
        prop_oneof![
            (range.clone(), any::<u8>()).prop_map(move |((at, count), byte)| Step::Write {
                block: lane * 4 + at,
                count,
                byte
            }),
            range.prop_map(move |(at, count)| Step::Read { block: lane * 4 + at, count }),
            Just(Step::Flush),
        ]
    };
    let round = (step(0), step(1), step(2), step(3), any::<[bool; 4]>())
        .prop_map(|(a, b, c, d, chained)| Round([a, b, c, d].into_iter().zip(chained).collect()));
    prop::collection::vec(round, 1..12)
}

fn bytes_of(count: u64, byte: u8) -> Vec<u8> {
    (0..count * BLOCK).map(|i| byte.wrapping_add((i / 512) as u8)).collect()
}

fn kind_of(step: &Step) -> OperationKind {
    match *step {
        Step::Read { block, count } => OperationKind::Read {
            offset: block * BLOCK,
            into: AlignedBuf::zeroed((count * BLOCK) as usize),
        },
        Step::Write { block, count, byte } => OperationKind::Write {
            offset: block * BLOCK,
            data: AlignedBuf::copy_of(&bytes_of(count, byte)).freeze(),
        },
        Step::Flush => OperationKind::Flush,
    }
}

/// The operations of a round; a chained step is followed by a flush and by a read of its range.
fn operations(round: &Round, first_tag: u64) -> Vec<Operation> {
    let mut batch: Vec<Operation> = Vec::new();
    let mut push = |kind, then| {
        batch.push(Operation { tag: first_tag + batch.len() as u64, kind, then });
    };
    for (step, chained) in &round.0 {
        push(kind_of(step), *chained);
        if *chained {
            push(OperationKind::Flush, true);
            let (block, count) = match *step {
                Step::Read { block, count } | Step::Write { block, count, .. } => (block, count),
                Step::Flush => (16, 1),
            };
            push(kind_of(&Step::Read { block, count }), false);
        }
    }
    batch
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// docs/faults.md: E11
    #[test]
    fn every_backend_agrees_with_a_vector_for_batches_and_chains(rounds in rounds()) {
        for (direct, options) in ways() {
            let dir = TempDir::new();
            let file = PoolFile::open(&dir.pool(20), direct).unwrap();
            let mut medium = file.medium(options).unwrap();
            let mut model = vec![0u8; (20 * BLOCK) as usize];
            let mut tag = 0;
            for round in &rounds {
                for (step, _) in &round.0 {
                    if let Step::Write { block, count, byte } = *step {
                        let at = (block * BLOCK) as usize;
                        model[at..][..(count * BLOCK) as usize]
                            .copy_from_slice(&bytes_of(count, byte));
                    }
                }
                let batch = operations(round, tag);
                let reads: Vec<(u64, u64)> = batch.iter().filter_map(|op| match &op.kind {
                    OperationKind::Read { offset, .. } => Some((op.tag, *offset)),
                    _ => None,
                }).collect();
                let count = batch.len();
                tag += count as u64;
                medium.submit(batch);
                let ended = drain(&mut medium);
                prop_assert_eq!(ended.len(), count);
                for completion in ended {
                    prop_assert!(matches!(completion.outcome, Outcome::Done));
                    let read = reads.iter().find(|(tag, _)| *tag == completion.tag);
                    if let Some((_, offset)) = read {
                        let buffer = completion.buffer.unwrap();
                        prop_assert!(buffer[..] == model[*offset as usize..][..buffer.len()]);
                    }
                }
            }
            drop(medium);
            prop_assert!(std::fs::read(file.path()).unwrap() == model);
        }
    }
}

/// docs/faults.md: E11
#[test]
fn a_chain_stops_at_its_first_failure_and_bad_input_fails_alone() {
    for (direct, options) in ways() {
        let dir = TempDir::new();
        let file = PoolFile::open(&dir.pool(4), direct).unwrap();
        let mut medium = file.medium(options).unwrap();
        let write = |block| OperationKind::Write { offset: block * BLOCK, data: block_of(1) };
        let operation = |(tag, (kind, then))| Operation { tag: tag as u64, kind, then };
        let batch = [(write(0), true), (write(4), true), (write(1), false), (write(2), false)];
        medium.submit(batch.into_iter().enumerate().map(operation).collect());
        let mut ended = drain(&mut medium);
        ended.sort_by_key(|completion| completion.tag);
        let done: Vec<bool> = ended.iter().map(|c| matches!(c.outcome, Outcome::Done)).collect();
        assert_eq!(done, [true, false, false, true]);
        let on_disk = std::fs::read(file.path()).unwrap();
        let firsts: Vec<u8> = on_disk.chunks(BLOCK_LEN).map(|block| block[0]).collect();
        assert_eq!(firsts, [1, 0, 1, 0]);
    }
}

#[test]
fn a_file_cut_short_under_us_fails_the_read_with_path_and_range() {
    for (direct, options) in ways() {
        let dir = TempDir::new();
        let path = dir.pool(4);
        let file = PoolFile::open(&path, direct).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(BLOCK).unwrap();
        let blocking = BlockingMedium::new(file.medium(options).unwrap());
        let error = blocking.block_on(blocking.handle().read(0, 2 * BLOCK_LEN)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.message().contains("pool: read of 8192 bytes at 0"), "{error}");
    }
}

/// docs/faults.md: E11
#[test]
fn threads_stand_in_where_the_kernel_or_the_caller_refuses_io_uring() {
    let dir = TempDir::new();
    let file = PoolFile::open(&dir.pool(4), DirectIo::Never).unwrap();
    assert_eq!(file.direct_refusal(), Some("not asked for"));
    let options = MediumOptions { backend: BackendChoice::Threads, ..MediumOptions::default() };
    let medium = file.medium(options).unwrap();
    assert_eq!((medium.backend(), medium.fallback()), (Backend::Threads, None));
    let medium = file.medium(MediumOptions::default()).unwrap();
    // Never both, never neither.
    assert_eq!(medium.backend() == Backend::Threads, medium.fallback().is_some());
    for depth in [0, 4097, u32::MAX] {
        let options = MediumOptions { depth, ..MediumOptions::default() };
        let error = file.medium(options).err().unwrap();
        assert!(error.message().contains(&depth.to_string()));
    }
}

/// docs/faults.md: E11
#[test]
fn a_pool_on_a_memory_file_system_works_direct_or_not() {
    let shm = Path::new("/dev/shm");
    if !shm.is_dir() {
        return;
    }
    let dir = TempDir::under(shm);
    let file = PoolFile::open(&dir.pool(4), DirectIo::Try).unwrap();
    let blocking = BlockingMedium::new(file.medium(MediumOptions::default()).unwrap());
    let handle = blocking.handle();
    blocking.block_on(async {
        handle.write(BLOCK, block_of(7)).await.unwrap();
        handle.flush().await.unwrap();
        assert_eq!(handle.read(BLOCK, BLOCK_LEN).await.unwrap()[..], [7; BLOCK_LEN]);
    });
}

#[test]
fn dropping_a_medium_waits_for_what_is_in_flight() {
    for (direct, options) in ways() {
        let dir = TempDir::new();
        let file = PoolFile::open(&dir.pool(512), direct).unwrap();
        let mut medium = file.medium(options).unwrap();
        let data = AlignedBuf::copy_of(&vec![9; 1 << 20]).freeze();
        medium.submit(vec![
            Operation {
                tag: 0,
                kind: OperationKind::Write { offset: 0, data: data.clone() },
                then: false,
            },
            Operation {
                tag: 1,
                kind: OperationKind::Read { offset: 1 << 20, into: AlignedBuf::zeroed(1 << 20) },
                then: false,
            },
        ]);
        let another = file.medium(options).unwrap();
        drop(medium);
        assert!(std::fs::read(file.path()).unwrap()[..1 << 20] == data[..]);
        assert!(file.has_medium());
        drop(another);
        assert!(!file.has_medium(), "nothing of any can land any more");
    }
}

#[test]
fn readiness_is_signalled_for_each_end() {
    for (direct, options) in ways() {
        let dir = TempDir::new();
        let file = PoolFile::open(&dir.pool(4), direct).unwrap();
        let mut medium = file.medium(options).unwrap();
        let mut poll = mio::Poll::new().unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&medium.readiness_fd().unwrap());
        poll.registry()
            .register(&mut mio::unix::SourceFd(&fd), mio::Token(0), mio::Interest::READABLE)
            .unwrap();
        let mut events = mio::Events::with_capacity(4);
        for tag in 0..20 {
            let kind = OperationKind::Write { offset: 0, data: block_of(1) };
            medium.submit(vec![Operation { tag, kind, then: false }]);
            let mut ended = Vec::new();
            while ended.is_empty() {
                match poll.poll(&mut events, Some(std::time::Duration::from_secs(20))) {
                    Ok(()) => assert!(!events.is_empty(), "no event for operation {tag}"),
                    Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::Interrupted),
                }
                medium.poll(&mut ended);
            }
        }
        let quiet = MediumOptions { notify: false, ..options };
        assert!(file.medium(quiet).unwrap().readiness_fd().is_none());
    }
}

#[test]
fn many_media_on_one_descriptor_see_each_others_writes() {
    let dir = TempDir::new();
    let file = PoolFile::open(&dir.pool(8), DirectIo::Try).unwrap();
    std::thread::scope(|scope| {
        for i in 0..4u8 {
            let file = file.clone();
            scope.spawn(move || {
                let options = MediumOptions { notify: false, ..MediumOptions::default() };
                let blocking = BlockingMedium::new(file.medium(options).unwrap());
                let handle = blocking.handle();
                blocking.block_on(async {
                    handle.write(u64::from(i) * BLOCK, block_of(i + 1)).await.unwrap();
                    handle.flush().await.unwrap();
                });
            });
        }
    });
    let blocking = BlockingMedium::new(file.medium(MediumOptions::default()).unwrap());
    let read = blocking.block_on(blocking.handle().read(0, 4 * BLOCK_LEN)).unwrap();
    let firsts: Vec<u8> = read.chunks(BLOCK_LEN).map(|block| block[0]).collect();
    assert_eq!(firsts, [1, 2, 3, 4]);
}

#[test]
fn a_second_open_is_refused_until_the_last_medium_is_gone() {
    let dir = TempDir::new();
    let path = dir.pool(4);
    let file = PoolFile::open(&path, DirectIo::Try).unwrap();
    let medium = file.medium(MediumOptions::default()).unwrap();
    let error = PoolFile::open(&path, DirectIo::Try).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let pid = std::process::id().to_string();
    assert!(error.message().contains(path.to_str().unwrap()), "{error}");
    assert!(error.message().contains(&pid), "{error}");
    let other = Command::new("flock").arg("-n").arg(&path).arg("true").status();
    assert!(other.is_ok_and(|status| !status.success()), "another process is refused too");
    drop(file);
    assert!(PoolFile::open(&path, DirectIo::Try).is_err(), "the medium still holds it");
    drop(medium);
    assert!(PoolFile::open(&path, DirectIo::Try).is_ok());
}

#[test]
fn what_cannot_be_a_pool_is_refused_by_name() {
    let dir = TempDir::new();
    let missing = PoolFile::open(&dir.0.join("none"), DirectIo::Try).err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let odd = PoolFile::open(Path::new("/dev/null"), DirectIo::Try).err().unwrap();
    assert!(odd.message().contains("/dev/null: is neither"), "{odd}");
}

#[test]
fn a_pool_file_that_was_replaced_gets_no_more_media() {
    let dir = TempDir::new();
    let path = dir.pool(4);
    let file = PoolFile::open(&path, DirectIo::Try).unwrap();
    std::fs::rename(&path, dir.0.join("moved")).unwrap();
    preallocate(&path, BLOCK).unwrap();
    let error = file.medium(MediumOptions::default()).err().unwrap();
    assert!(error.message().contains("names another file"), "{error}");
}

#[test]
fn preallocation_reserves_all_or_refuses_with_figures() {
    let dir = TempDir::new();
    let path = dir.pool(100);
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!(metadata.len(), 100 * BLOCK);
    assert!(std::os::unix::fs::MetadataExt::blocks(&metadata) * 512 >= 100 * BLOCK);
    let twice = preallocate(&path, BLOCK).unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::InvalidInput);
    let wanted = 1u64 << 60;
    let error = preallocate(&dir.0.join("huge"), wanted).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.message().contains(&wanted.to_string()), "{error}");
    assert!(error.message().contains("huge"), "{error}");
    assert!(free_space(&dir.0).unwrap() > 0);
    let names: Vec<_> = std::fs::read_dir(&dir.0).unwrap().collect();
    assert_eq!(names.len(), 1, "a refused file leaves nothing behind");
}

fn map_ring(path: &Path, len: u64) -> gabion_base::Result<MappedRing> {
    MappedRing::map(&std::fs::File::options().read(true).write(true).open(path).unwrap(), path, len)
}

fn new_ring(path: &Path, len: u64) -> MappedRing {
    preallocate(path, len).unwrap();
    map_ring(path, len).unwrap()
}

#[test]
fn a_ring_is_found_as_it_was_left() {
    let dir = TempDir::new();
    let path = dir.0.join("ring");
    let mut ring = new_ring(&path, 10_000);
    ring.write(9_990, b"0123456789");
    drop(ring);
    let ring = map_ring(&path, 10_000).unwrap();
    let mut read = [0; 11];
    ring.read(9_989, &mut read);
    assert_eq!((&read, ring.len()), (b"\x000123456789", 10_000));
    let error = map_ring(&path, 20_000).err().unwrap();
    assert!(error.message().contains("holds a ring of 10000 bytes, 20000 wanted"), "{error}");
    assert!(map_ring(&path, 0).is_err());
}

#[test]
#[should_panic(expected = "reach past the end")]
fn a_write_past_the_end_of_a_ring_panics() {
    let dir = TempDir::new();
    let mut ring = new_ring(&dir.0.join("ring"), 4096);
    ring.write(4090, b"0123456789");
}

#[test]
#[should_panic(expected = "something else than its medium")]
fn a_blocking_thread_does_not_wait_for_ever() {
    let dir = TempDir::new();
    let file = PoolFile::open(&dir.pool(1), DirectIo::Try).unwrap();
    let blocking = BlockingMedium::new(file.medium(MediumOptions::default()).unwrap());
    blocking.block_on(std::future::pending::<()>());
}

fn pair() -> (TcpTransport, TcpTransport) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (there, _) = listener.accept().unwrap();
    (TcpTransport::new(here, 64 << 10).unwrap(), TcpTransport::new(there, 64 << 10).unwrap())
}

#[test]
fn a_socket_moves_parts_in_order_and_never_blocks() {
    let (mut here, mut there) = pair();
    let mut into = vec![0; 1 << 16];
    assert_eq!(there.receive(&mut into).unwrap(), None, "nothing there: would block");
    let parts: Vec<Vec<u8>> = (0..200u8).map(|i| vec![i; 1000 + usize::from(i)]).collect();
    let whole: Vec<u8> = parts.concat();
    let (mut sent, mut received) = (0, Vec::new());
    let mut blocked = false;
    while received.len() < whole.len() {
        let rest: Vec<&[u8]> = whole[sent..].chunks(777).collect();
        let n = here.send(&rest).unwrap();
        blocked |= n == 0;
        sent += n;
        if n == 0
            && let Some(n) = there.receive(&mut into).unwrap()
        {
            received.extend_from_slice(&into[..n]);
        }
    }
    assert!(blocked && received == whole);
    assert_eq!((here.sent_bytes(), there.received_bytes()), (sent as u64, sent as u64));
    drop(here);
    while there.receive(&mut into).unwrap().is_none() {}
    assert_eq!(there.receive(&mut into).unwrap(), Some(0), "the peer closed its end");
}

/// Loop devices need rights that some users who run the tests lack: the test says so then.
#[test]
fn a_block_device_is_a_pool_as_a_file_is() {
    let dir = TempDir::new();
    let image = dir.pool(16);
    let made = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
    let device = match made {
        Ok(made) if made.status.success() => String::from_utf8(made.stdout).unwrap(),
        _ => return eprintln!("not tested: no right to make a loop device"),
    };
    let device = Path::new(device.trim());
    let result = std::panic::catch_unwind(|| {
        let file = PoolFile::open(device, DirectIo::Try).unwrap();
        assert_eq!((file.len(), file.direct_refusal()), (16 * BLOCK, None));
        assert_eq!(PoolFile::open(device, DirectIo::Try).err().unwrap().kind(), ErrorKind::Busy);
        let blocking = BlockingMedium::new(file.medium(MediumOptions::default()).unwrap());
        let handle = blocking.handle();
        blocking.block_on(async {
            handle.write(15 * BLOCK, block_of(7)).await.unwrap();
            handle.flush().await.unwrap();
            assert_eq!(handle.read(15 * BLOCK, BLOCK_LEN).await.unwrap()[..], [7; BLOCK_LEN]);
            assert!(handle.write(16 * BLOCK, block_of(7)).await.is_err());
        });
    });
    Command::new("losetup").arg("--detach").arg(device).status().unwrap();
    result.unwrap();
    assert_eq!(std::fs::read(&image).unwrap()[15 * BLOCK_LEN..], [7; BLOCK_LEN]);
}

const CHILD: &str = "GABION_FABRIC_CHILD_DIR";

/// The other half of the test below, in a process of its own: locks a pool, fills a ring, writes
/// without a flush, says so and waits to be killed.
#[test]
#[ignore = "run by the_ring_and_what_was_written_survive_the_kill_of_the_process"]
fn child_that_is_killed() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let dir = PathBuf::from(dir);
    let file = PoolFile::open(&dir.join("pool"), DirectIo::Try).unwrap();
    let mut ring = new_ring(&dir.join("ring"), 1 << 20);
    ring.write(1000, &[5; 100_000]);
    let blocking = BlockingMedium::new(file.medium(MediumOptions::default()).unwrap());
    blocking.block_on(blocking.handle().write(BLOCK, block_of(6))).unwrap();
    std::fs::write(dir.join("ready"), b"").unwrap();
    loop {
        std::thread::park();
    }
}

/// A child that does not outlive the test, however it ends.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_ring_and_what_was_written_survive_the_kill_of_the_process() {
    let dir = TempDir::new();
    let path = dir.pool(4);
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::child_that_is_killed", "--ignored"])
        .env(CHILD, &dir.0)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut child = Killed(child);
    let child = &mut child.0;
    while !dir.0.join("ready").exists() {
        assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
        std::thread::yield_now();
    }
    let busy = PoolFile::open(&path, DirectIo::Try).err().unwrap();
    assert!(busy.message().contains(&format!("process {}", child.id())), "{busy}");
    // Not waited for: the test takes it for dead from here on, though the kernel may still work for
    // it.
    child.kill().unwrap();
    let file = PoolFile::open(&path, DirectIo::Try).unwrap();
    let blocking = BlockingMedium::new(file.medium(MediumOptions::default()).unwrap());
    let read = blocking.block_on(blocking.handle().read(BLOCK, BLOCK_LEN)).unwrap();
    assert_eq!(read[..], [6; BLOCK_LEN]);
    let ring = map_ring(&dir.0.join("ring"), 1 << 20).unwrap();
    let mut bytes = vec![0; 100_001];
    ring.read(1000, &mut bytes);
    assert!(bytes[..100_000].iter().all(|&b| b == 5));
    assert_eq!(bytes[100_000], 0);
}

/// A walk over many records lets other futures run in between; a thread of its own has none.
#[test]
fn a_future_that_only_lets_others_run_is_polled_again() {
    let dir = TempDir::new();
    let file = PoolFile::open(&dir.pool(4), DirectIo::Try).unwrap();
    let blocking = BlockingMedium::new(file.medium(MediumOptions::default()).unwrap());
    let mut yields = 3;
    let polled = std::future::poll_fn(|context| {
        if yields == 0 {
            return std::task::Poll::Ready(());
        }
        yields -= 1;
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    });
    blocking.block_on(async {
        polled.await;
        blocking.handle().write(BLOCK, block_of(6)).await.unwrap();
    });
    let waits_for_nothing = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        blocking.block_on(std::future::pending::<()>());
    }));
    assert!(waits_for_nothing.is_err(), "it would wait for ever");
}

/// The path is used again for further descriptors and for the mark of a failed flush, wherever the
/// process is by then.
#[test]
fn a_path_that_was_relative_when_the_pool_was_opened_names_it_from_everywhere() {
    let dir = TempDir::new();
    let up =
        std::env::current_dir().unwrap().components().skip(1).map(|_| "..").collect::<PathBuf>();
    let relative = up.join(dir.pool(4).strip_prefix("/").unwrap());
    let file = PoolFile::open(&relative, DirectIo::Try).unwrap();
    assert!(relative.is_relative() && file.path().is_absolute(), "{}", file.path().display());
    file.medium(MediumOptions::default()).unwrap();
}
