//! The program knows all commands and options that `deploy/` names.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test with real processes: it waits, and fails where it stands"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const GABION: &str = env!("CARGO_BIN_EXE_gabion");

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

fn units() -> Vec<(String, String)> {
    let entries = std::fs::read_dir(deploy().join("systemd")).unwrap();
    let mut units: Vec<_> = entries
        .map(|entry| entry.unwrap())
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read_to_string(entry.path()).unwrap().replace("\\\n    ", ""))
        })
        .collect();
    units.sort();
    units
}

struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("gabion-deploy-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    /// A file of options of `deploy/`, with its data here.
    fn config(&self, name: &str) -> String {
        let text = std::fs::read_to_string(deploy().join(name)).unwrap();
        let here = format!("\"{}/data", self.0.display());
        assert!(text.contains("\"/var/lib/gabion"), "{name} has its data where units have it");
        let path = self.0.join(name);
        let text = text.replace("\"/var/lib/gabion", &here);
        // A place for tests need not have that much free.
        let pool = "pool_size = \"4GiB\"";
        assert_eq!(text.contains(pool), name == "node.toml", "{name}");
        std::fs::write(&path, text.replace(pool, "pool_size = \"256MiB\"")).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(words: &[String]) -> Output {
    Command::new(GABION).args(words).stdin(Stdio::null()).output().unwrap()
}

/// A command with what `ncl.env` has for the name at its end: as it is, and as its examples.
fn with_options(command: &str) -> Vec<String> {
    let Some((command, name)) = command.split_once(" $") else {
        return vec![command.to_owned()];
    };
    let text = std::fs::read_to_string(deploy().join("ncl.env")).unwrap().replace("\\\n# ", "");
    let lines = text.lines().map(|line| line.trim_start_matches("# "));
    let values = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    values.map(|value| format!("{command} {}", value.trim_matches('"'))).collect()
}

/// The words of a command with files of options of this place, and nothing that it would start.
fn harmless(command: &str, place: &Temporary) -> Vec<String> {
    let of = |word: &str| match word.strip_prefix("/etc/gabion/") {
        Some(name) if name.ends_with(".toml") => place.config(name),
        // The directory of a service that runs.
        _ => word.replace("/run/gabion-ncl-controller", place.0.to_str().unwrap()),
    };
    let mut words: Vec<String> = command.split_whitespace().map(of).collect();
    let is_checked = words.iter().any(|word| word == "--config");
    let last = if is_checked { "--check" } else { "--help" };
    // The words before it are judged first.
    if words.last().is_none_or(|word| word != last) {
        words.push(last.to_owned());
    }
    words
}

#[test]
fn units_run_commands_that_the_program_knows_with_options_that_it_takes() {
    let place = Temporary::new("units");
    let mut count = 0;
    for (name, text) in units() {
        for line in text.lines().filter(|line| line.starts_with("ExecStart")) {
            let command = line.split_once("=/usr/bin/gabion ").expect("the program's path").1;
            for command in with_options(command) {
                let output = run(&harmless(&command, &place));
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{name}: {command}: {said}");
                let wrong = harmless(&format!("{command} --no-such-option"), &place);
                assert!(!run(&wrong).status.success(), "{name}: a wrong option would be found");
                count += 1;
            }
        }
    }
    assert_eq!(count, 10, "commands of nodes, controllers, backups and near-compute logs");
}

#[test]
fn the_containers_command_is_one_of_the_program() {
    let text = std::fs::read_to_string(deploy().join("Containerfile")).unwrap();
    let list = |name: &str| -> Vec<String> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        serde_json::from_str(line.trim()).unwrap()
    };
    assert_eq!(list("ENTRYPOINT"), ["/usr/bin/gabion"]);
    let words = [list("CMD"), vec!["--help".to_owned()]].concat();
    assert!(run(&words).status.success(), "{words:?}");
    assert!(text.contains(":nonroot\n"), "it does not run as root");
}

/// The text of a file in a manifest's map of configuration.
fn configuration(manifest: &str, name: &str) -> String {
    let mut lines = manifest.lines().skip_while(|line| line.trim() != format!("{name}: |"));
    lines.next().expect("the file is in the manifest");
    let lines = lines.take_while(|line| line.starts_with("    "));
    lines.map(|line| format!("{}\n", line.trim_start())).collect()
}

#[test]
fn manifests_run_commands_that_the_program_knows_with_options_that_it_takes() {
    let place = Temporary::new("kubernetes");
    let at = |name: &str| place.0.join(name).to_str().unwrap().to_owned();
    let succeeds = |words: &[String]| {
        let output = run(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {said}");
    };
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    succeeds(&[words("ca init"), vec![at("ca")]].concat());
    std::fs::write(place.0.join("password"), "secret\n").unwrap();
    for (file, role) in [("nodes.yaml", "node"), ("controllers.yaml", "controller")] {
        let text = std::fs::read_to_string(deploy().join("kubernetes").join(file)).unwrap();
        let name = format!("gabion-{role}-0");
        let issue = format!("--name {name} --role {role}");
        succeeds(&[words("ca issue"), vec![at("ca")], words(&issue)].concat());
        let options = configuration(&text, &format!("{role}.toml"));
        let options = options
            .replace("@NAME@", &name)
            .replace("@IP@", "10.0.0.3")
            .replace("/etc/gabion/certificates", &at("ca"))
            .replace("/etc/gabion/secret", place.0.to_str().unwrap())
            .replace("\"/var/lib/gabion", &format!("\"{}/data", place.0.display()))
            .replace("16GiB", "256MiB");
        let config = at(&format!("{role}.toml"));
        std::fs::write(&config, options).unwrap();
        let args = text.lines().find_map(|line| line.trim().strip_prefix("args: ")).unwrap();
        let args: Vec<String> = serde_json::from_str(args).unwrap();
        assert_eq!(args, [role, "--config", &format!("/options/{role}.toml")]);
        succeeds(&[role.to_owned(), "--config".to_owned(), config, "--check".to_owned()]);
    }
}

/// Only where systemd is installed.
#[test]
fn systemd_takes_the_units() {
    let place = Temporary::new("systemd");
    let mut paths = Vec::new();
    for (name, text) in units() {
        let path = place.0.join(name);
        std::fs::write(&path, text.replace("/usr/bin/gabion", GABION)).unwrap();
        paths.push(path);
    }
    let verify = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&paths).output();
    let Ok(output) = verify else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<_> = said.lines().filter(|line| line.contains("gabion")).collect();
    assert!(ours.is_empty(), "{}", ours.join("\n"));
}
