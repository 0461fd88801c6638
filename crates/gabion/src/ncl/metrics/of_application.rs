//! The page of `gabion ncl run`: an application, its files, and the ring that its processes write.

use super::{COUNTER, GAUGE, finish};
use gabion_base::Result;
use gabion_mirror::shared::{RING, Shared};
use gabion_ncl_driver::Logs;
use gabion_ncl_driver::report::FileReport;
use gabion_server::metrics::{Kind, Number, Page};

/// Files whose lengths are told: the longest ones.
const FILES_SHOWN_MAX: usize = 64;

/// The whole page. An application whose files lie in a directory has no copies at peers.
///
/// # Errors
/// I/O after a panic of a thread that drives the logs.
pub(in crate::ncl) fn page(
    application: &str,
    shared: Shared,
    logs: Option<(&Logs, u8)>,
) -> Result<String> {
    let mut page = Page::new(&[("app", application)]);
    write_ring(&mut page, shared);
    if let Some((logs, f)) = logs {
        write_logs(&mut page, logs, f)?;
        // None are told while they cannot be used.
        if let Ok(files) = logs.files() {
            write_files(&mut page, files);
        }
    }
    Ok(finish(page))
}

/// Read out of the shared memory, without a lock: the store may hang.
fn write_ring(page: &mut Page, shared: Shared) {
    let help = "1 where the store has failed: nothing is stored any more, and all syncs fail.";
    page.gauge("gabion_ncl_app_store_failed", help, shared.check().is_err());
    page.gauge("gabion_ncl_app_ring_bytes", "Bytes of the ring of changes.", RING);
    let written = shared.head();
    let help = "Bytes of changes in the ring that are not stored.";
    let waiting = written.saturating_sub(shared.stored());
    page.gauge("gabion_ncl_app_ring_used_bytes", help, waiting.min(RING));
    let help = "Bytes of changes that the program's processes put into the ring.";
    page.counter("gabion_ncl_app_ring_written_bytes_total", help, written);
    let (records, bytes) = shared.direct_records();
    let help = "Records that the program's processes wrote to log peers themselves.";
    page.counter("gabion_ncl_app_direct_records_total", help, records);
    let help = "Bytes of these.";
    page.counter("gabion_ncl_app_direct_bytes_total", help, bytes);
    write_splits(page, shared);
    let help = "Waits of the program until its changes were stored: of syncs, and of each write \
                with --every-write or of a file that was opened so.";
    let mut family = page.family("gabion_ncl_app_sync_duration_seconds", Kind::Histogram, help);
    let (counts, sum_ns) = shared.waited().read();
    family.times(&[], &counts, sum_ns);
}

/// Split files: all 0 where there are none.
fn write_splits(page: &mut Page, shared: Shared) {
    let counts = shared.split_counts();
    let (split, left_alone) = shared.split_files();
    page.gauge("gabion_ncl_app_split_files", "Files that are split.", split);
    let help = "Files that matched --split and were left alone: they had several names, or got \
                theirs by a rename, were beyond 512, could not be synced, or had too long a name.";
    page.counter("gabion_ncl_app_split_left_alone_total", help, left_alone);
    let help = "Writes of split files: small ones, which are in the journal, and large ones, which \
                are in the file system alone, as is whatever is written until the next sync.";
    let mut family = page.family("gabion_ncl_app_split_writes_total", COUNTER, help);
    family.sample(&[("kind", "small")], counts.frames);
    family.sample(&[("kind", "large")], counts.large);
    let help = "Bytes of the small ones.";
    page.counter("gabion_ncl_app_split_small_bytes_total", help, counts.bytes);
    let help = "Times at which the journal was emptied: the file system synced the files.";
    page.counter("gabion_ncl_app_journal_emptied_total", help, counts.emptied);
    let (_, _, len) = shared.journal_file();
    page.gauge("gabion_ncl_app_journal_bytes", "Bytes of the journal.", len);
    let used = if len == 0 { 0 } else { shared.journal_tail() };
    page.gauge("gabion_ncl_app_journal_used_bytes", "Bytes of it that are in use.", used);
}

fn write_logs(page: &mut Page, logs: &Logs, f: u8) -> Result<()> {
    let (status, counts) = logs.status()?;
    let min = usize::from(f) + 1;
    let is_ready = status.phase == "running" && status.copies >= min;
    page.gauge("gabion_ncl_app_ready", "1 where changes are acknowledged.", is_ready);
    page.gauge("gabion_ncl_app_term", "The term of this instance.", status.term.0);
    page.gauge("gabion_ncl_app_copies", "Copies that count.", status.copies);
    page.gauge("gabion_ncl_app_copies_wanted", "Copies that there are to be.", status.wanted);
    page.gauge("gabion_ncl_app_copies_min", "Copies without which changes wait.", min);
    let help = "Connected peers: over shared memory, and over a socket.";
    let mut family = page.family("gabion_ncl_app_peers", GAUGE, help);
    family.sample(&[("over", "shared_memory")], counts.shared);
    family.sample(&[("over", "socket")], counts.connected.saturating_sub(counts.shared));
    let help = "Peers that the controller had when it was asked last.";
    page.gauge("gabion_ncl_app_peers_registered", help, status.registered);
    let help = "Records of the application, those of earlier instances included.";
    let mut family = page.family("gabion_ncl_app_records_total", COUNTER, help);
    family.sample(&[("state", "issued")], status.issued.0);
    family.sample(&[("state", "acknowledged")], status.acknowledged.0);
    let help = "Records that are not acknowledged.";
    let unacknowledged = status.issued.0.saturating_sub(status.acknowledged.0);
    page.gauge("gabion_ncl_app_records_unacknowledged", help, unacknowledged);
    let help = "Bytes of these.";
    page.gauge("gabion_ncl_app_unacknowledged_bytes", help, status.unacknowledged_bytes);
    let help = "Bytes of records that some peer has not been sent: they are kept in memory.";
    page.gauge("gabion_ncl_app_unsent_bytes", help, status.unsent_bytes);
    let help = "Times at which copies were missing.";
    page.counter("gabion_ncl_app_losses_total", help, counts.losses);
    let help = "Copies that were made in the place of lost ones.";
    page.counter("gabion_ncl_app_replacements_total", help, counts.replaced);
    let help = "Regions that peers had no memory for.";
    page.counter("gabion_ncl_app_refused_regions_total", help, status.refused);
    let help = "How long copies were missing the last time.";
    page.gauge("gabion_ncl_app_last_loss_seconds", help, Number::ms(counts.last_loss_ms));
    Ok(())
}

fn write_files(page: &mut Page, mut files: Vec<FileReport>) {
    page.gauge("gabion_ncl_app_files", "Names of mirrored files.", files.len());
    let bytes: u64 = files.iter().map(|file| file.len).sum();
    page.gauge("gabion_ncl_app_files_bytes", "Bytes of all of them.", bytes);
    let help = "Length of a file; of the 64 longest.";
    let mut family = page.family("gabion_ncl_app_file_bytes", GAUGE, help);
    files.sort_by(|one, other| other.len.cmp(&one.len).then_with(|| one.name.cmp(&other.name)));
    for file in files.iter().take(FILES_SHOWN_MAX) {
        family.sample(&[("file", &file.name)], file.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_mirror::journal::{FRAMES_AT, frame_len};
    use gabion_mirror::shared::{LEN, state};
    use gabion_mirror::times::Times;
    use gabion_server::metrics::bounds;
    use std::os::fd::AsRawFd;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;

    #[test]
    fn the_ring_counts_waits_in_the_buckets_of_all_histograms() {
        for (bucket, end) in bounds().enumerate() {
            let times = Times::default();
            let ns = (end * 1e9).round() as u64;
            times.count(Duration::from_nanos(ns));
            times.count(Duration::from_nanos(ns + 1));
            let (counts, sum_ns) = times.read();
            assert_eq!((counts[bucket], counts[bucket + 1]), (1, 1), "{end} s: {counts:?}");
            assert_eq!(sum_ns, 2 * ns + 1);
        }
    }

    #[test]
    fn split_files_and_their_journal_are_counted() {
        let memory = gabion_mirror::files::memory_file().unwrap();
        memory.set_len(LEN as u64).unwrap();
        let shared = Shared::create(memory.as_raw_fd(), false).unwrap();
        let page = || {
            let mut page = Page::new(&[("app", "test")]);
            write_splits(&mut page, shared);
            page.finish()
        };
        let shows = |text: &str, name: &str, value: u64| {
            let line = name.replace('{', "{app=\"test\",").replace(":", "{app=\"test\"}");
            assert!(text.contains(&format!("gabion_ncl_app_{line} {value}\n")), "{name}\n{text}");
        };
        let none = page();
        let (files, writes) = ("split_files:", "split_writes_total{kind=\"small\"}");
        for name in [files, writes, "journal_bytes:", "journal_used_bytes:"] {
            shows(&none, name, 0);
        }
        shared.set_journal(0, 1, 1 << 20);
        shared.set_used(2);
        let slot = shared.slot(1).unwrap();
        slot.set_split(1_000, 1);
        slot.state.store(state::LIVE, Relaxed);
        let mut guard = shared.lock();
        guard.open_journal(1, 7);
        guard.changed(slot);
        slot.note_synced(slot.unsynced().unwrap());
        let room = guard.room(slot, 300).unwrap();
        guard.framed(slot, room, 0, 300);
        guard.open_journal(3, 7);
        let room = guard.room(slot, 200).unwrap();
        guard.framed(slot, room, 0, 200);
        drop(guard);
        let text = page();
        shows(&text, files, 1);
        shows(&text, "split_left_alone_total:", 0);
        shows(&text, writes, 2);
        shows(&text, "split_writes_total{kind=\"large\"}", 1);
        shows(&text, "split_small_bytes_total:", 500);
        shows(&text, "journal_emptied_total:", 2);
        shows(&text, "journal_bytes:", 1 << 20);
        shows(&text, "journal_used_bytes:", FRAMES_AT + frame_len(200));
    }

    #[test]
    fn the_longest_files_are_told_and_all_are_counted() {
        let file = |at: u64| FileReport { name: format!("{at}.log"), len: at };
        let mut page = Page::new(&[("app", "test")]);
        write_files(&mut page, (0..100).map(file).collect());
        let text = page.finish();
        assert!(text.contains("gabion_ncl_app_files{app=\"test\"} 100\n"), "{text}");
        assert!(text.contains("gabion_ncl_app_files_bytes{app=\"test\"} 4950\n"), "{text}");
        let told = text.lines().filter(|line| line.starts_with("gabion_ncl_app_file_bytes{"));
        assert_eq!(told.count(), FILES_SHOWN_MAX, "{text}");
        assert!(text.contains("file=\"99.log\"} 99\n"), "{text}");
        assert!(!text.contains("file=\"35.log\""), "{text}");
    }
}
