//! Links that are cut, and disks that are held up, by a command of whoever runs the benchmark, as
//! that needs rights of its own.

use super::args::Fault;
use super::group::Member;
use gabion_base::{Error, ErrorKind, Result};
use std::path::Path;
use std::process::Command;

/// The command of `--cut-command`.
#[derive(Clone, Debug)]
pub(super) struct Cutter(pub(super) String);

impl Cutter {
    /// Tells the command the replicas' processes.
    pub(super) fn prepare(&self, members: &[Member]) -> Result<()> {
        let pids = members.iter().map(|member| member.pid.to_string());
        self.run(&["prepare".to_owned()].into_iter().chain(pids).collect::<Vec<_>>())
    }

    /// Cuts the link of a replica to another until the result is dropped.
    pub(super) fn cut(&self, fault: Fault, replica: &Member, other: &Member) -> Result<Cut<'_>> {
        let guard = Cut(self);
        if fault != Fault::CutIn {
            self.drop_what_is_sent(replica, other)?;
        }
        if fault != Fault::CutOut {
            self.drop_what_is_sent(other, replica)?;
        }
        Ok(guard)
    }

    /// Lets no read or write of a replica end, on the device where its directory lies, until the
    /// result is dropped.
    pub(super) fn hang(&self, replica: &Member, directory: &Path) -> Result<Cut<'_>> {
        let guard = Cut(self);
        let directory = directory.display().to_string();
        self.run(&["hang".to_owned(), replica.pid.to_string(), directory])?;
        Ok(guard)
    }

    fn drop_what_is_sent(&self, from: &Member, to: &Member) -> Result<()> {
        let words = [from, to].into_iter().flat_map(|member| {
            let [peer, target] = member.ports;
            [member.pid.to_string(), format!("{peer},{target}")]
        });
        self.run(&["cut".to_owned()].into_iter().chain(words).collect::<Vec<_>>())
    }

    fn run(&self, words: &[String]) -> Result<()> {
        let line = format!("{} {}", self.0, words.join(" "));
        // The shell's own name comes before the words.
        let script = format!("{} \"$@\"", self.0);
        let output = Command::new("sh").args(["-c", &script, "sh"]).args(words).output();
        let output = output.map_err(|e| Error::with_source(ErrorKind::Io, line.clone(), e))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(Error::unavailable(format!(
                "{line}: {}: {}",
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            ))),
        }
    }
}

/// Links that are cut, or a disk that is held up, until this is dropped.
pub(super) struct Cut<'a>(&'a Cutter);

impl Cut<'_> {
    pub(super) fn heal(self) -> Result<()> {
        let cutter = self.0;
        std::mem::forget(self);
        cutter.run(&["heal".to_owned()])
    }
}

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        // The way out of a failure, which is told already.
        let _ = self.0.run(&["heal".to_owned()]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::group::tests::whole;
    use super::*;
    use crate::launch::ScratchDir;

    #[test]
    fn a_command_gets_processes_and_ports_by_direction_and_heals_in_every_case() {
        let dir = ScratchDir::new(&std::env::temp_dir()).unwrap();
        let log = dir.path().join("log");
        let cutter = Cutter(format!("said() {{ echo \"$*\" >> {}; }}; said", log.display()));
        let members = whole();
        cutter.prepare(&members).unwrap();
        cutter.cut(Fault::Cut, &members[0], &members[1]).unwrap().heal().unwrap();
        drop(cutter.cut(Fault::CutOut, &members[0], &members[1]).unwrap());
        drop(cutter.cut(Fault::CutIn, &members[0], &members[1]).unwrap());
        cutter.hang(&members[2], Path::new("/data/of it")).unwrap().heal().unwrap();
        let (out, back) = ("cut 101 51,61 102 52,62\n", "cut 102 52,62 101 51,61\n");
        let cuts = format!("{out}{back}heal\n{out}heal\n{back}heal\n");
        let expected = format!("prepare 101 102 103\n{cuts}hang 103 /data/of it\nheal\n");
        assert_eq!(std::fs::read_to_string(&log).unwrap(), expected);
    }

    #[test]
    fn a_command_that_fails_is_told_with_its_words_and_what_it_said() {
        let cutter = Cutter("echo no rights >&2; false".to_owned());
        let error = cutter.prepare(&whole()).unwrap_err().to_string();
        assert!(error.contains("prepare 101 102 103"), "{error}");
        assert!(error.ends_with("no rights"), "{error}");
    }
}
