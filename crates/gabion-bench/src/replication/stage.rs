//! The place in which cells of a benchmark are measured, one after the other: each in clusters of
//! its own, which are gone with it.

use super::baseline::Chain;
use super::{Cell, System};
use crate::args::Plan;
use crate::engines::programs::locate;
use crate::launch::{Launcher, RunningCluster, ScratchDir};
use crate::report::Run;
use crate::run::{Groups, Offers, measure, spec, stop_on_signals};
use gabion_base::Result;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Makes a chain of the baseline, one group, in a directory.
pub(crate) type MakeChain<'a> = &'a dyn Fn(&Cell, &Path) -> Result<Box<dyn RunningCluster>>;

/// The program of the baseline's replicas.
pub(crate) struct Baseline(PathBuf);

/// Finds it, if it is needed.
///
/// # Errors
/// It is not built; the message has the command that builds it.
pub(crate) fn baseline(is_needed: bool, peer_dir: &Option<PathBuf>) -> Result<Baseline> {
    const NAME: &str = "replica-rocksdb";
    let program = if is_needed { locate(NAME, peer_dir.as_deref())? } else { NAME.into() };
    Ok(Baseline(program))
}

impl Baseline {
    pub(crate) fn start(&self, cell: &Cell, dir: &Path) -> Result<Box<dyn RunningCluster>> {
        Ok(Box::new(Chain::start(&self.0, cell, dir)?))
    }
}

/// The cells of a round, each with its place: another first in each.
pub(crate) fn in_turn<T>(cells: &[T], round: u64) -> impl Iterator<Item = (usize, &T)> {
    let place = move |turn| (turn + round as usize) % cells.len();
    (0..cells.len()).map(move |turn| (place(turn), &cells[place(turn)]))
}

/// Starters of clusters, and a place for them.
pub(crate) struct Stage<'a> {
    launcher: &'a dyn Launcher,
    chain: MakeChain<'a>,
    parent: PathBuf,
    stop: Arc<AtomicBool>,
}

impl<'a> Stage<'a> {
    /// In `dir`, or where the launcher has its data.
    pub(crate) fn new(
        launcher: &'a dyn Launcher,
        chain: MakeChain<'a>,
        dir: Option<&Path>,
    ) -> Result<Self> {
        let parent = dir.map_or_else(|| launcher.data_dir(), Path::to_path_buf);
        Ok(Self { launcher, chain, parent, stop: stop_on_signals()? })
    }

    /// Checks that each cell has room. RocksDB's replicas reserve nothing.
    pub(crate) fn check_room<'c>(&self, cells: impl Iterator<Item = &'c Cell>) -> Result<()> {
        for cell in cells.filter(|cell| cell.system != System::Rocksdb) {
            let spec = spec(&cell.cluster, &self.parent);
            self.launcher.check_room(&spec, cell.cluster.co_location)?;
        }
        Ok(())
    }

    /// Runs a plan on a cell.
    pub(crate) fn measure(
        &self,
        plan: &Plan,
        cell: &Cell,
        config: Map<String, Value>,
        offers: &mut Offers,
    ) -> Result<Run> {
        let dir = ScratchDir::new(&self.parent)?;
        let start = |dir: &Path| match cell.system {
            System::Rocksdb => (self.chain)(cell, dir),
            _ => self.launcher.start(&spec(&cell.cluster, dir)),
        };
        let groups = Groups::start(&cell.cluster, dir.path(), start)?;
        measure(plan, &groups.addresses(), config, offers, &self.stop)
    }
}
