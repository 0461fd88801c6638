//! `GABION DIGEST position`: what this replica holds at a position that its log has not come to
//! yet. Asked of all replicas, it compares them while clients write.

use crate::admin;
use crate::forward::Origin;
use crate::run::Owed;
use crate::service::Service;
use crate::store::{DoorTables, SharedNode};
use gabion_base::{Error, ErrorKind, Frontier, Result};
use gabion_node::{Captured, MarkId};
use serde_json::{Value, json};

impl Service {
    /// Arms a mark for a connection; the answer comes when the log has passed it.
    ///
    /// # Errors
    /// As [`gabion_node::Node::arm_mark`].
    pub(crate) fn begin_digest_at(
        &mut self,
        frontier: Frontier,
        origin: impl FnOnce() -> Origin,
    ) -> Result<()> {
        let mark = self.replica.node.borrow_mut().arm_mark(frontier, self.now_ms)?;
        self.marks.insert(mark, origin());
        Ok(())
    }

    /// What became of a mark.
    pub(crate) fn take_marked(&mut self, mark: MarkId, captured: Result<Captured>) {
        let Some(origin) = self.marks.remove(&mark) else { return };
        let captured = match captured {
            Ok(captured) => captured,
            Err(error) => return self.answer(&origin, admin::reply_to(Err(error))),
        };
        let (node, tables) = (self.replica.node.clone(), self.replica.store.tables().clone());
        let owed = Owed::answer(&self.finished, origin);
        self.replica.executor.spawn(async move {
            let reply = admin::reply_to(digest_at(captured, &node, &tables).await);
            owed.pay(reply, false);
        });
    }

    /// Withdraws the marks of connections that are gone, and of those whose other end sends nothing
    /// any more, as it is when its process has ended: what is read for a mark takes long, and
    /// should be wanted.
    pub(crate) fn tick_marks(&mut self) {
        let clients = &self.clients;
        let is_there = |origin: &Origin| match origin {
            Origin::Client { token, serial, .. } => {
                let client = clients.get(*token).and_then(Option::as_ref);
                client.is_some_and(|it| it.serial == *serial && !it.is_finished)
            }
            Origin::Peer { .. } | Origin::Probe => false,
        };
        let gone = self.marks.iter().filter(|(_, origin)| !is_there(origin)).map(|(mark, _)| *mark);
        for mark in gone.collect::<Vec<_>>() {
            self.replica.node.borrow_mut().withdraw_mark(mark);
            if let Some(origin) = self.marks.remove(&mark) {
                let error = Error::unavailable(admin::CLOSED);
                self.answer(&origin, admin::reply_to(Err(error)));
            }
        }
    }
}

/// Reads the records of a captured state. Where they cannot be read, which is a finding, the rest
/// is told.
async fn digest_at(captured: Captured, node: &SharedNode, tables: &DoorTables) -> Result<Value> {
    let Captured { view, log_end, log_crc, edit, files, era } = captured;
    let read = admin::RecordDigest::of(view, tables).await;
    node.borrow().check_era(era)?;
    let mut value = json!({
        "log_end": admin::place(&log_end),
        "log_crc": format!("{log_crc:08x}"),
        "edit": edit,
        "files": files.iter().map(admin::file).collect::<Vec<_>>(),
    });
    match read {
        Ok(digest) => {
            value["records"] = json!(digest.records);
            value["crc"] = json!(digest.crc_text());
        }
        Err(error) if error.kind() == ErrorKind::SnapshotTooOld => return Err(error),
        Err(error) => value["error"] = json!(error.to_string()),
    }
    Ok(value)
}
