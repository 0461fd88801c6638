//! The state of a group at one moment, as a backup keeps it beside its files: what makes a group
//! again that has all of it ([`crate::checkpoint`]).
//!
//! ```text
//!   fields (gabion_base::codec), each once:
//!     1 group   the group's configuration; critical
//!     2 view    the view in which it was then; critical
//!     3 log     u64 position up to which the state has the log
//!     4 image   what the tree's view saw, without files and entries in memory; critical
//! ```

use crate::GroupConfig;
use crate::checkpoint::Origin;
use crate::node::Node;
use crate::tlv::{Tlv, TlvReader};
use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::Put;
use gabion_base::{Error, LogPosition, Result};
use gabion_engine::ReadView;
use gabion_replication::GroupView;

/// A group at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct BackupState {
    /// Its configuration.
    pub group: GroupConfig,
    /// Its view then.
    pub view: GroupView,
    /// All of the log up to here is in the state, and nothing behind it.
    pub log_end: LogPosition,
    /// [`ReadView::image`].
    pub image: Vec<u8>,
}

const TAG_GROUP: u16 = 1;
const TAG_VIEW: u16 = 2;
const TAG_LOG: u16 = 3;
const TAG_IMAGE: u16 = 4;
const WHAT: &str = "state of a backup";

impl BackupState {
    /// The state of a node now, and the view that keeps it.
    ///
    /// # Errors
    /// None of a view that was just made; see [`ReadView::pin`].
    pub fn of(node: &mut Node) -> Result<(Self, ReadView)> {
        let (view, log_end) = node.digest_point();
        let state = Self {
            group: node.config().clone(),
            view: node.state().view.clone(),
            log_end: log_end.only(),
            image: view.image()?,
        };
        Ok((state, view))
    }

    /// The state in bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut log = Vec::new();
        log.put_u64(self.log_end.get());
        let mut out = Tlv::new();
        out.critical(TAG_GROUP, &self.group.encode());
        out.critical(TAG_VIEW, &self.view.encode());
        out.optional(TAG_LOG, &log);
        out.critical(TAG_IMAGE, &self.image);
        out.finish()
    }

    /// Reads [`Self::encode`]. The image is read with [`Self::open`].
    ///
    /// # Errors
    /// Corruption; unsupported for a critical field of a later version.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let known = [TAG_GROUP, TAG_VIEW, TAG_LOG, TAG_IMAGE];
        let fields = TlvReader::read(bytes, WHAT, &known)?;
        let group = GroupConfig::decode(fields.bytes(TAG_GROUP)?)?;
        let view = GroupView::decode(fields.bytes(TAG_VIEW)?)?;
        if view.group != group.group {
            return Err(Error::corruption(format!(
                "{WHAT}: a view of {} for {}",
                view.group, group.group
            )));
        }
        let mut log = fields.field(TAG_LOG)?;
        let log_end = LogPosition(log.u64()?);
        log.finish()?;
        Ok(Self { group, view, log_end, image: fields.bytes(TAG_IMAGE)?.to_vec() })
    }

    /// The origin of pools that hold the state, with the entries in memory that `pages` have
    /// ([`ReadView::page`]).
    ///
    /// # Errors
    /// Corruption.
    pub fn open(&self, pages: impl Iterator<Item = Result<Vec<u8>>>) -> Result<Origin> {
        let view = ReadView::of_image(&self.image, pages)?;
        Ok(Origin { view, group: self.group.clone(), view_then: self.view.clone() })
    }
}
