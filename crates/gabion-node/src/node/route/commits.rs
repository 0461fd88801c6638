//! The steps that follow when a placement commit is durable.

use crate::node::Node;
use crate::node::orders::After;
use gabion_base::Failed;

impl Node {
    pub(in crate::node) fn commit_done(&mut self, result: gabion_base::Result<()>) {
        if let Err(error) = result {
            return self.failed(Failed::Placement, error.within("placement log"));
        }
        let Some((number, after)) = self.commits.in_flight.take() else { return };
        self.pool.committed(number);
        for step in after {
            if self.is_reopening() && step != After::CutKept {
                // It is for a node that goes on.
                continue;
            }
            match step {
                After::CutKept => self.cut_kept(),
                After::EditApplied { edit, flushed } => {
                    let frontier = self.copies.limit(flushed.frontier);
                    self.protocol.handle_edit_applied(edit, frontier);
                    self.writing.keep_flushed(flushed.sequence);
                }
                After::FilePlaced { file, tell } => self.file_placed(file, tell),
                After::SegmentPlaced(segment) => self.segment_placed(segment),
                After::TermAdopted(term) => self.term_adopted(term),
                After::ViewKept(config) => self.view_kept(config),
                After::Trimmed(at) => self.trimmed(at),
                After::SessionRaised => self.session_raised(),
                After::LossNoted => self.log_repair.noted(),
                After::RingNoted => self.stopping.noted(),
                After::Stopped => self.stopping.stopped(),
                After::Granted(slots) => self.granted(slots),
                After::BuiltPlaced(job) => self.built_placed(job),
                After::LoadPlaced(load) => self.load_placed(load),
                After::FileRepaired(file) => self.file_repaired(file),
            }
        }
    }
}
