//! A medium on a system that transfers in pieces, interrupts and fails.

use super::*;
use crate::preallocate;
use gabion_media::Bytes;
use proptest::prelude::*;
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

const FILE_LEN: usize = 8 * BLOCK_LEN;

/// The system's answer to one attempt.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// It transfers at most this many bytes.
    Short(usize),
    Refuse(Errno),
}

/// A system that gives its answers in turn and then works normally, on memory.
struct Scripted {
    disk: Arc<Mutex<Vec<u8>>>,
    answers: VecDeque<Answer>,
    jobs: VecDeque<Job>,
}

impl Scripted {
    fn attempt(&mut self, job: &mut Job) -> io::Result<usize> {
        let limit = match self.answers.pop_front() {
            Some(Answer::Refuse(errno)) => return Err(errno.into()),
            Some(Answer::Short(len)) => len,
            None => usize::MAX,
        };
        let mut disk = self.disk.lock().unwrap();
        let done = job.done;
        Ok(match &mut job.kind {
            OperationKind::Read { offset, into } => {
                let n = (into.len() - done).min(limit);
                into[done..done + n].copy_from_slice(&disk[*offset as usize + done..][..n]);
                n
            }
            OperationKind::Write { offset, data } => {
                let n = (data.len() - done).min(limit);
                disk[*offset as usize + done..][..n].copy_from_slice(&data[done..done + n]);
                n
            }
            OperationKind::Flush => 0,
        })
    }
}

impl Engine for Scripted {
    fn start(&mut self, job: Job) {
        let is_flush = |job: &Job| matches!(job.kind, OperationKind::Flush);
        assert!(!is_flush(&job) || !self.jobs.iter().any(is_flush), "one flush at a time");
        self.jobs.push_back(job);
    }
    fn submit(&mut self) {}
    fn collect(&mut self, ended: &mut Vec<Ended>) {
        for mut job in std::mem::take(&mut self.jobs) {
            let result = self.attempt(&mut job);
            ended.push(Ended { job, result });
        }
    }
    fn running(&self) -> usize {
        self.jobs.len()
    }
    fn wait(&mut self) {}
}

/// Unique paths: tests of one process run at once.
fn open(direct: DirectIo) -> PoolFile {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("gabion-script-{}-{n}", std::process::id()));
    preallocate(&path, FILE_LEN as u64).unwrap();
    let file = PoolFile::open(&path, direct).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}

fn scripted(file: &PoolFile, answers: &[Answer]) -> (FileMedium, Arc<Mutex<Vec<u8>>>) {
    let disk = Arc::new(Mutex::new(vec![0; FILE_LEN]));
    let engine = Scripted {
        disk: disk.clone(),
        answers: answers.iter().copied().collect(),
        jobs: VecDeque::new(),
    };
    let chosen: Chosen = (Box::new(engine), Backend::Threads, None);
    (FileMedium::with_engine(file.clone(), chosen, None), disk)
}

fn run(medium: &mut FileMedium, kind: OperationKind) -> Completion {
    medium.submit(vec![Operation { tag: 1, kind, then: false }]);
    let mut ended = Vec::new();
    while medium.in_flight() > 0 {
        medium.wait();
        medium.poll(&mut ended);
    }
    assert_eq!(ended.len(), 1);
    ended.remove(0)
}

fn pattern() -> Bytes {
    let bytes: Vec<u8> = (0..FILE_LEN).map(|i| (i / 7) as u8).collect();
    AlignedBuf::copy_of(&bytes).freeze()
}

fn answers() -> impl Strategy<Value = Vec<Answer>> {
    let answer = prop_oneof![
        (1usize..3 * BLOCK_LEN).prop_map(Answer::Short),
        Just(Answer::Short(BLOCK_LEN)),
        Just(Answer::Refuse(Errno::INTR)),
        Just(Answer::Refuse(Errno::AGAIN)),
    ];
    prop::collection::vec(answer, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// docs/faults.md: E11
    #[test]
    fn transfers_in_pieces_and_interruptions_never_show(answers in answers()) {
        for direct in [DirectIo::Try, DirectIo::Never] {
            let file = open(direct);
            let (mut medium, disk) = scripted(&file, &answers);
            let ended = run(&mut medium, OperationKind::Write { offset: 0, data: pattern() });
            prop_assert!(matches!(ended.outcome, Outcome::Done));
            prop_assert!(disk.lock().unwrap()[..] == pattern()[..]);

            let (mut medium, disk) = scripted(&file, &answers);
            disk.lock().unwrap().copy_from_slice(&pattern());
            let into = AlignedBuf::zeroed(FILE_LEN);
            let ended = run(&mut medium, OperationKind::Read { offset: 0, into });
            prop_assert!(matches!(ended.outcome, Outcome::Done));
            prop_assert!(ended.buffer.unwrap()[..] == pattern()[..]);
        }
    }
}

/// The operations that a replica has under way at once: unordered writes and reads, and a flush.
fn calls() -> Vec<OperationKind> {
    let write = |at: usize, blocks: usize| OperationKind::Write {
        offset: (at * BLOCK_LEN) as u64,
        data: pattern().slice(at * BLOCK_LEN..(at + blocks) * BLOCK_LEN),
    };
    let read = |at: usize, blocks: usize| OperationKind::Read {
        offset: (at * BLOCK_LEN) as u64,
        into: AlignedBuf::zeroed(blocks * BLOCK_LEN),
    };
    vec![write(0, 3), write(3, 1), read(4, 3), OperationKind::Flush, write(7, 1), read(5, 3)]
}

/// Runs [`calls`] together on a disk whose second half has the pattern. Returns their ends in that
/// order.
fn run_calls(file: &PoolFile, answers: &[Answer]) -> (Vec<Completion>, Vec<u8>) {
    let (mut medium, disk) = scripted(file, answers);
    disk.lock().unwrap()[FILE_LEN / 2..].copy_from_slice(&pattern()[FILE_LEN / 2..]);
    let operations = (0..).zip(calls()).map(|(tag, kind)| Operation { tag, kind, then: false });
    medium.submit(operations.collect());
    let mut ended = Vec::new();
    while medium.in_flight() > 0 {
        medium.wait();
        medium.poll(&mut ended);
    }
    ended.sort_by_key(|completion| completion.tag);
    let bytes = disk.lock().unwrap().clone();
    (ended, bytes)
}

/// The failing calls of a replica (`gabion-sim`, `io_failures`) leave short transfers to the code
/// that carries a transfer on, which is this.
/// docs/faults.md: E11
#[test]
fn each_call_of_a_batch_is_cut_short_in_turn_and_it_never_shows() {
    let at_once = Answer::Short(usize::MAX);
    for direct in [DirectIo::Try, DirectIo::Never] {
        let file = open(direct);
        for nth in 0..calls().len() {
            for len in [1, BLOCK_LEN - 1, BLOCK_LEN, 2 * BLOCK_LEN + 7] {
                let what = format!("call {nth} of {len} bytes");
                let mut answers = vec![at_once; nth];
                answers.push(Answer::Short(len));
                let (ended, bytes) = run_calls(&file, &answers);
                assert!(ended.iter().all(|end| matches!(end.outcome, Outcome::Done)), "{what}");
                assert!(bytes[..] == pattern()[..], "{what}");
                for (end, at) in [(&ended[2], 4), (&ended[5], 5)] {
                    let wanted = &pattern()[at * BLOCK_LEN..(at + 3) * BLOCK_LEN];
                    assert!(end.buffer.as_ref().unwrap()[..] == *wanted, "{what}");
                }
            }
        }
    }
}

/// docs/faults.md: E11
#[test]
fn each_call_of_a_batch_breaks_after_a_beginning_in_turn_and_fails_alone_with_its_place() {
    let at_once = Answer::Short(usize::MAX);
    for (nth, call) in calls().iter().enumerate() {
        let len = match call {
            OperationKind::Read { into, .. } => into.len(),
            OperationKind::Write { data, .. } => data.len(),
            OperationKind::Flush => 0,
        };
        for (errno, kind) in [(Errno::IO, ErrorKind::Io), (Errno::NOSPC, ErrorKind::NoSpace)] {
            // A file of its own: after a failed flush all flushes of a file fail.
            let file = open(DirectIo::Try);
            let mut answers = vec![at_once; calls().len()];
            let (begun, refused) = (Answer::Short(BLOCK_LEN), Answer::Refuse(errno));
            answers[nth] = if len > BLOCK_LEN { begun } else { refused };
            // It is carried on when the others have had their answers.
            answers.extend((len > BLOCK_LEN).then_some(refused));
            let (ended, _) = run_calls(&file, &answers);
            file.forget_failed_flush().unwrap();
            for (other, end) in ended.into_iter().enumerate() {
                let failed = end.outcome.into_result().err();
                assert_eq!(failed.is_some(), other == nth, "call {other} of {nth}");
                let Some(error) = failed else { continue };
                assert_eq!(error.kind(), kind, "{error}");
                let place = format!(" of {len} bytes at ");
                assert!(len == 0 || error.message().contains(&place), "{error}");
            }
        }
    }
}

/// docs/faults.md: E11
#[test]
fn a_system_that_never_makes_progress_ends_in_an_error() {
    let file = open(DirectIo::Try);
    let stalls = [
        vec![Answer::Refuse(Errno::AGAIN); 1000],
        vec![Answer::Short(0); 1000],
        // Less than a block at a time never advances a direct transfer.
        vec![Answer::Short(BLOCK_LEN - 1); 1000],
    ];
    for answers in stalls.iter().take(if file.0.direct { 3 } else { 2 }) {
        let (mut medium, _) = scripted(&file, answers);
        let ended = run(&mut medium, OperationKind::Write { offset: 0, data: pattern() });
        assert!(matches!(ended.outcome, Outcome::Failed(_)));
    }
}

/// docs/faults.md: E11
#[test]
fn an_error_of_the_system_is_passed_on_with_its_kind_and_place() {
    let file = open(DirectIo::Try);
    for (errno, kind) in [(Errno::IO, ErrorKind::Io), (Errno::NOSPC, ErrorKind::NoSpace)] {
        let (mut medium, _) = scripted(&file, &[Answer::Short(BLOCK_LEN), Answer::Refuse(errno)]);
        let ended = run(&mut medium, OperationKind::Write { offset: 0, data: pattern() });
        let error = ended.outcome.into_result().unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.message().contains("write of 32768 bytes at 0 failed"), "{error}");
    }
}

/// Of two on one descriptor only one is told of a failure, and that one may be read last.
/// docs/faults.md: E8
#[test]
fn flushes_of_a_medium_never_overlap_and_those_that_wait_share_one() {
    let file = open(DirectIo::Try);
    let ended = |answers: &[Answer]| {
        let (mut medium, _) = scripted(&file, answers);
        let kinds = [OperationKind::Flush, OperationKind::Flush, OperationKind::Flush];
        let flushes = (0..).zip(kinds).map(|(tag, kind)| Operation { tag, kind, then: false });
        medium.submit(flushes.collect());
        let mut ended = Vec::new();
        while medium.in_flight() > 0 {
            medium.wait();
            medium.poll(&mut ended);
        }
        ended.sort_by_key(|completion| completion.tag);
        ended.iter().map(|it| matches!(it.outcome, Outcome::Done)).collect::<Vec<_>>()
    };
    assert_eq!(ended(&[]), [true; 3]);
    assert_eq!(ended(&[Answer::Refuse(Errno::INTR)]), [true; 3]);
    // The second system call serves the third flush as well: no third answer is needed.
    let (first, second) = (Answer::Short(0), Answer::Refuse(Errno::IO));
    assert_eq!(ended(&[first, second]), [true, false, false]);
    assert_eq!(ended(&[]), [false; 3]);
    file.forget_failed_flush().unwrap();
}

#[test]
fn a_thread_that_waits_anyway_flushes_by_itself_and_in_its_order() {
    let file = open(DirectIo::Try);
    let (mut medium, _) = scripted(&file, &[Answer::Short(BLOCK_LEN)]);
    medium.flush_here = Some(file.0.file.clone());
    let write = OperationKind::Write { offset: 0, data: pattern() };
    let read = OperationKind::Read { offset: 0, into: AlignedBuf::zeroed(BLOCK_LEN) };
    let kinds = [write, OperationKind::Flush, OperationKind::Flush, read];
    let chain = (0..).zip(kinds).map(|(tag, kind)| Operation { tag, kind, then: tag < 3 });
    medium.submit(chain.collect());
    let mut ended = Vec::new();
    while medium.in_flight() > 0 {
        medium.wait();
        medium.poll(&mut ended);
    }
    assert_eq!(ended.iter().map(|it| it.tag).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(ended.iter().all(|it| matches!(it.outcome, Outcome::Done)));
    let _ = file.0.note_failed_flush(file.0.ledger.begin(), Errno::IO.into());
    assert!(run(&mut medium, OperationKind::Flush).outcome.into_result().is_err());
    file.forget_failed_flush().unwrap();
}

/// docs/faults.md: E8
#[test]
fn after_a_failed_flush_no_medium_of_the_pool_flushes_again() {
    let file = open(DirectIo::Try);
    let (mut healthy, _) = scripted(&file, &[]);
    assert!(matches!(run(&mut healthy, OperationKind::Flush).outcome, Outcome::Done));
    assert!(!file.flush_had_failed());
    let (mut failing, _) = scripted(&file, &[Answer::Refuse(Errno::IO)]);
    assert!(run(&mut failing, OperationKind::Flush).outcome.into_result().is_err());
    // For the process that opens the pool next.
    assert!(file.flush_had_failed());
    file.forget_failed_flush().unwrap();
    assert!(!file.flush_had_failed());
    file.forget_failed_flush().unwrap();
    for medium in [&mut failing, &mut healthy] {
        let error = run(medium, OperationKind::Flush).outcome.into_result().unwrap_err();
        assert!(format!("{error}").contains("an earlier flush failed"), "{error}");
        // Reads and writes go on: what is there can still be read.
        let into = AlignedBuf::zeroed(BLOCK_LEN);
        let read = run(medium, OperationKind::Read { offset: 0, into });
        assert!(matches!(read.outcome, Outcome::Done));
    }
}

fn begin_flush(medium: &mut FileMedium) {
    medium.submit(vec![Operation { tag: 1, kind: OperationKind::Flush, then: false }]);
}

/// A medium with a flush under way.
fn flushing(file: &PoolFile, answers: &[Answer]) -> FileMedium {
    let (mut medium, _) = scripted(file, answers);
    begin_flush(&mut medium);
    medium
}

/// Whether the flush of a medium is done, once it has ended.
fn polled(medium: &mut FileMedium) -> Option<bool> {
    let mut ended = Vec::new();
    medium.poll(&mut ended);
    ended.pop().map(|end| matches!(end.outcome, Outcome::Done))
}

/// Answers to a flush, and whether it is done then.
fn ends_of_flushes() -> Vec<(Vec<Answer>, bool)> {
    let (interrupted, broken) = (Answer::Refuse(Errno::INTR), Answer::Refuse(Errno::IO));
    vec![
        (vec![], true),
        (vec![interrupted], true),
        (vec![broken], false),
        (vec![interrupted, broken], false),
    ]
}

/// The system may report to only one of two flushes that data of both is lost, and that one may be
/// polled last.
/// docs/faults.md: E8
#[test]
fn a_flush_counts_once_those_are_judged_that_ran_when_it_ended() {
    for (answers, done) in ends_of_flushes() {
        let file = open(DirectIo::Try);
        let (mut first, mut second) = (flushing(&file, &[]), flushing(&file, &answers));
        let of_second = loop {
            assert_eq!(polled(&mut first), None, "{answers:?}");
            assert!(!file.flush_had_failed());
            if let Some(of_second) = polled(&mut second) {
                break of_second;
            }
        };
        assert_eq!((of_second, polled(&mut first)), (done, Some(done)), "{answers:?}");
        assert_eq!(file.flush_had_failed(), !done);
        file.forget_failed_flush().unwrap();
    }
}

/// docs/faults.md: E8
#[test]
fn a_flush_waits_for_none_that_began_after_it_ended() {
    let file = open(DirectIo::Try);
    let (mut first, mut second) = (flushing(&file, &[]), flushing(&file, &[]));
    assert_eq!(polled(&mut first), None);
    let mut third = flushing(&file, &[]);
    assert_eq!(polled(&mut second), None, "the third runs");
    assert_eq!(polled(&mut first), Some(true));
    assert_eq!(polled(&mut third), Some(true));
    assert_eq!(polled(&mut second), Some(true));
    begin_flush(&mut first);
    assert_eq!(polled(&mut first), Some(true));
}

/// docs/faults.md: E8
#[test]
fn what_the_flush_of_a_medium_came_to_that_is_dropped_counts_for_the_others() {
    for (answers, done) in ends_of_flushes() {
        let file = open(DirectIo::Try);
        let (mut first, second) = (flushing(&file, &[]), flushing(&file, &answers));
        assert_eq!(polled(&mut first), None);
        drop(second);
        assert_eq!(polled(&mut first), Some(done), "{answers:?}");
        assert_eq!(file.flush_had_failed(), !done);
        file.forget_failed_flush().unwrap();
    }
    let file = open(DirectIo::Try);
    let (mut first, mut second) = (flushing(&file, &[]), flushing(&file, &[]));
    assert_eq!(polled(&mut first), None);
    drop(first);
    assert_eq!(polled(&mut second), Some(true), "none waits for one that waits");
}

/// docs/faults.md: E8
#[test]
fn readiness_is_signalled_when_a_flush_counts_that_waited_for_others() {
    let file = open(DirectIo::Try);
    let (mut first, mut second) = (flushing(&file, &[]), flushing(&file, &[]));
    let mut third = flushing(&file, &[]);
    let counter = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    first.notify = Some(Arc::new(counter.unwrap()));
    let is_signalled = |medium: &FileMedium| {
        rustix::io::read(medium.readiness_fd().unwrap(), &mut [0_u8; 8]).is_ok()
    };
    assert_eq!((polled(&mut first), polled(&mut third)), (None, None));
    assert!(!is_signalled(&first), "the second runs");
    assert_eq!(polled(&mut second), Some(true));
    assert!(is_signalled(&first));
    assert_eq!(polled(&mut first), Some(true));
}

/// docs/faults.md: E8
#[test]
fn a_thread_that_flushes_by_itself_sleeps_until_its_flush_counts() {
    for (answers, done) in ends_of_flushes() {
        let file = open(DirectIo::Try);
        let mut second = flushing(&file, &answers);
        let (mut first, _) = scripted(&file, &[]);
        first.flush_here = Some(file.0.file.clone());
        let (said, heard) = channel();
        let thread = std::thread::spawn(move || {
            begin_flush(&mut first);
            said.send(polled(&mut first)).unwrap();
            first.wait();
            said.send(polled(&mut first)).unwrap();
        });
        let next = || heard.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(next(), None);
        assert!(heard.recv_timeout(Duration::from_millis(20)).is_err(), "{answers:?}");
        while second.in_flight() > 0 {
            assert_ne!(polled(&mut second), Some(!done), "{answers:?}");
        }
        assert_eq!(next(), Some(done), "{answers:?}");
        thread.join().unwrap();
        file.forget_failed_flush().unwrap();
    }
}

/// docs/faults.md: E8
#[test]
fn the_mark_of_a_failed_flush_is_a_link_and_a_file_is_one_too() {
    let file = open(DirectIo::Try);
    let mark = file.0.mark();
    let fail = || polled(&mut flushing(&file, &[Answer::Refuse(Errno::IO)]));
    assert_eq!(fail(), Some(false));
    assert!(mark.symlink_metadata().unwrap().is_symlink());
    assert!(!mark.exists(), "it leads nowhere");
    assert_eq!(fail(), Some(false));
    assert!(file.flush_had_failed());
    file.forget_failed_flush().unwrap();
    assert!(mark.symlink_metadata().is_err());
    // As older versions made it.
    std::fs::write(&mark, b"").unwrap();
    assert!(file.flush_had_failed());
    assert_eq!(fail(), Some(false));
    file.forget_failed_flush().unwrap();
    assert!(!file.flush_had_failed());
}

/// docs/faults.md: E8
#[test]
fn where_the_mark_cannot_be_made_every_failed_flush_says_so() {
    let dir = std::env::temp_dir().join(format!("gabion-script-{}-gone", std::process::id()));
    // An earlier process of this number may have been killed.
    let _absent = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    let path = dir.join("pool");
    preallocate(&path, FILE_LEN as u64).unwrap();
    let file = PoolFile::open(&path, DirectIo::Try).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let (mut failing, _) = scripted(&file, &[Answer::Refuse(Errno::IO)]);
    let (mut healthy, _) = scripted(&file, &[]);
    for medium in [&mut failing, &mut healthy] {
        let error = run(medium, OperationKind::Flush).outcome.into_result().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        let wanted = "pool.unflushed cannot be made, so the next process must be told: ";
        assert!(error.to_string().contains(wanted), "{error}");
    }
}
