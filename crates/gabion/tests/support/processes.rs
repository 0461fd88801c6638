//! Controllers and nodes as processes of a test, each with a file of its output.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

pub(crate) const GABION: &str = env!("CARGO_BIN_EXE_gabion");

/// Processes by name, and their directory; all are gone at the end.
pub(crate) struct Processes {
    pub(crate) dir: PathBuf,
    pub(crate) running: BTreeMap<String, Child>,
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.running.values_mut().for_each(|child| drop(child.kill()));
        self.running.values_mut().for_each(|child| drop(child.wait()));
        if std::thread::panicking() {
            self.say_logs();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Processes {
    pub(crate) fn new(dir: PathBuf) -> Self {
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Self { dir, running: BTreeMap::new() }
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        std::fs::write(self.dir.join(file), text).unwrap();
    }

    pub(crate) fn start(&mut self, name: &str, command: &mut Command) {
        let log = self.dir.join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let command = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.running.insert(name.to_owned(), command.spawn().unwrap());
    }

    /// Starts a controller or a node, whose options are in `NAME.toml`.
    pub(crate) fn gabion(&mut self, role: &str, name: &str) {
        let config = self.dir.join(format!("{name}.toml"));
        self.start(name, Command::new(GABION).arg(role).arg("--config").arg(config));
    }

    /// `kill -9`, and waits until the process is gone.
    pub(crate) fn kill(&mut self, name: &str) {
        let mut child = self.running.remove(name).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.join(format!("{name}.log"))).unwrap_or_default()
    }

    fn say_logs(&self) {
        for entry in std::fs::read_dir(&self.dir).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if let Some(name) = name.strip_suffix(".log") {
                eprintln!("── {name}\n{}", self.log(name));
            }
        }
    }
}

/// `node.toml` of a node whose doors are at this address.
pub(crate) fn node_file(name: &str, data: &Path, controllers: &[SocketAddr], ip: IpAddr) -> String {
    let controllers: Vec<String> = controllers.iter().map(SocketAddr::to_string).collect();
    format!(
        "name = \"{name}\"\ndata = \"{}\"\ncontrollers = {controllers:?}\npool_size = \"256MiB\"\n\
         clients.listen = \"{ip}:6379\"\nmembers.listen = \"{ip}:6479\"\n\
         targets.listen = \"{ip}:6579\"\n",
        data.display()
    )
}

/// A command to a controller, and its output.
pub(crate) fn ask(controller: SocketAddr, words: &[&str]) -> Output {
    Command::new(GABION)
        .args(words)
        .args(["--controller", &controller.to_string()])
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// The answer with `--json`; null where there is none.
pub(crate) fn json(controller: SocketAddr, words: &[&str]) -> Value {
    let output = ask(controller, &[words, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// How many nodes a controller hears.
pub(crate) fn nodes_here(controller: SocketAddr) -> usize {
    let listed = json(controller, &["node", "list"])["nodes"].take();
    let listed = listed.as_array().cloned().unwrap_or_default();
    listed.iter().filter(|node| node["here"] == true).count()
}
