//! The units of Redis's suite that have an append-only file, with servers that it starts itself.

use super::Suite;
use crate::cluster::need;
use crate::sources::REDIS;
use crate::suites::list::Outcome;
use crate::suites::tcl;
use std::path::{Path, PathBuf};

/// Programs that the suite starts, all of Debian's packages.
const PROGRAMS: [&str; 5] =
    ["redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb"];

/// Units with tests that write or load an append-only file.
const UNITS: [&str; 12] = [
    "integration/aof",
    "integration/aof-multi-part",
    "integration/aof-race",
    "unit/aofrw",
    "integration/shutdown",
    "unit/other",
    "unit/multi",
    "unit/expire",
    "unit/functions",
    "unit/scripting",
    "unit/type/stream",
    "unit/type/stream-cgroups",
];

pub(super) const NAME: &str = "redis";

pub(super) struct Redis {
    source: PathBuf,
}

impl Redis {
    pub(super) fn new() -> Result<Self, String> {
        need("tclsh", "tcl")?;
        need("redis-server", "redis-server")?;
        let source = REDIS.directory()?;
        for program in PROGRAMS {
            let link = source.join("src").join(program);
            let _ = std::fs::remove_file(&link);
            let target = Path::new("/usr/bin").join(program);
            std::os::unix::fs::symlink(target, &link)
                .map_err(|error| format!("{}: {error}", link.display()))?;
        }
        Ok(Self { source })
    }
}

impl Suite for Redis {
    fn name(&self) -> &'static str {
        NAME
    }

    fn files(&self) -> [&'static str; 2] {
        ["--match", "*.aof,*.manifest"]
    }

    fn units(&self) -> Result<Vec<String>, String> {
        Ok(UNITS.map(str::to_owned).to_vec())
    }

    fn empty_place(&self) -> Result<PathBuf, String> {
        let place = self.source.join("tests/tmp");
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
        Ok(place)
    }

    fn unit(&self, unit: &str, _: &Path) -> (Vec<String>, PathBuf) {
        // `--durable`: a test that breaks off has failed, and the next one runs.
        let words = ["./runtest", "--durable", "--clients", "1", "--single", unit];
        (words.map(str::to_owned).to_vec(), self.source.clone())
    }

    fn outcomes(unit: &str, text: &str) -> Result<Vec<Outcome>, String> {
        tcl::outcomes_of(unit, &tcl::without_colours(text))
    }
}
