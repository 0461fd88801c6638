//! `gabion up --show-commands`: the files and commands of a controller and nodes that a group of
//! `up` stands for.

use crate::cluster::Settings;
use crate::control::ask::NO_CONTROLLER;
use crate::options::ProcessOptions;
use crate::units::exact_size;
use gabion_base::{Error, Result};
use std::fmt::Write;
use std::path::Path;

/// The controller's address: that of no replica of `up`.
const CONTROLLER: &str = "127.0.0.1:7400";

/// A file's name and its text.
type NamedText = (String, String);

/// The files and the commands, as text for a terminal.
///
/// # Errors
/// Invalid input for a group that has no controller.
pub(crate) fn text(
    settings: &Settings,
    process: &ProcessOptions,
    replace_after_ms: u64,
    data: &Path,
    program: &str,
) -> Result<String> {
    if !settings.has_controller() {
        return Err(Error::invalid(NO_CONTROLLER));
    }
    let mut out = String::new();
    for (name, text) in files(settings, process, replace_after_ms, data) {
        let _ = write!(out, "# {name}\n{text}\n");
    }
    let names = |numbers: &mut dyn Iterator<Item = u32>| -> String {
        let names: Vec<String> = numbers.map(|number| format!("node-{number}")).collect();
        names.join(",")
    };
    let _ = writeln!(out, "# the commands; each node on a machine of its own\n#");
    let _ = writeln!(out, "# {program} controller --config controller.toml");
    for number in settings.nodes() {
        let _ = writeln!(out, "# {program} node --config node-{number}.toml");
    }
    let mut create = format!("group create NAME --nodes {}", names(&mut settings.members()));
    let spares = settings.nodes().skip(settings.replicas as usize);
    if settings.spares > 0 {
        let _ = write!(create, " --spares {}", names(&mut spares.into_iter()));
    }
    if settings.groups > 1 {
        let _ = write!(create, " --groups {} --replicas {}", settings.groups, settings.replicas);
    }
    let _ = write!(
        create,
        " --min-replicas {} --ack {} --memtable-size {} --compression {}",
        settings.members_min,
        settings.ack.as_str(),
        exact_size(settings.memtable_len),
        settings.codecs.upper
    );
    if let Some(codec) = settings.codecs.bottom {
        let _ = write!(create, " --bottom-compression {codec}");
    }
    let _ = writeln!(out, "# {program} {create} --controller {CONTROLLER}");
    let _ = writeln!(out, "# {program} status --controller {CONTROLLER}");
    Ok(out)
}

fn files(
    settings: &Settings,
    process: &ProcessOptions,
    replace_after_ms: u64,
    data: &Path,
) -> Vec<NamedText> {
    let path = |name: &str| quoted(&data.join(name).display().to_string());
    let after = match replace_after_ms.is_multiple_of(1_000) {
        true => format!("{}s", replace_after_ms / 1_000),
        false => format!("{replace_after_ms}ms"),
    };
    let controller = format!(
        "data = {}\nlisten = \"{CONTROLLER}\"\nreplace_after = \"{after}\"\n",
        path("controller")
    );
    let mut files = vec![("controller.toml".to_owned(), controller)];
    for number in settings.nodes() {
        let name = format!("node-{number}");
        let doors = settings.doors(1);
        // An address each, as machines have: their ports need not differ.
        let at = |port: u16| format!("\"127.0.0.{}:{port}\"", number + 1);
        let of_cluster = settings.node_door(1).map(|door| at(door.port()));
        let groups = of_cluster.map_or_else(String::new, |door| {
            format!("[groups]\nmax = {}\nlisten = {door}\n", settings.groups)
        });
        let text = format!(
            "name = \"{name}\"\ndata = {}\ncontrollers = [\"{CONTROLLER}\"]\npool_size = \
             \"{}\"\nclients.listen = {}\nmembers.listen = {}\ntargets.listen = {}\n{groups}{}",
            path(&name),
            exact_size(settings.pool_len),
            at(doors.resp.port()),
            at(doors.peer.port()),
            at(doors.target.port()),
            limits(process)
        );
        files.push((format!("{name}.toml"), text));
    }
    files
}

/// The limits, all of them: whoever reads them sees what there is.
fn limits(process: &ProcessOptions) -> String {
    format!(
        "[limits]\nio = \"{}\"\nblock_cache_bytes = {}\nopen_files_bytes = {}\ncompactions_max = \
         {}\nlarge_values = {}\nvalue_compression = \"{}\"\ncollection_rate = {}\njobs_nice = \
         {}\nrebuild_rate = {}\n",
        process.io.as_str(),
        process.block_cache_bytes,
        process.open_files_bytes,
        process.compactions_max,
        process.large_values.map_or("\"auto\"".into(), |len| len.to_string()),
        process.value_compression,
        process.collection_rate,
        process.jobs_nice,
        process.rebuild_rate
    )
}

/// A text of TOML.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::config::{ControllerConfig, NodeConfig, from_text};
    use crate::options::FixedOptions;
    use gabion_base::units::GIB;

    fn settings(wanted: &FixedOptions) -> Settings {
        Settings::new(wanted, 6379, Path::new("/d"), 100 * GIB).unwrap()
    }

    #[test]
    fn what_up_stands_for_is_read_by_those_that_it_is_for() {
        let settings = settings(&FixedOptions::default());
        let process =
            ProcessOptions { jobs_nice: 7, large_values: Some(512), ..Default::default() };
        let data = Path::new("/my \"data\"\n");
        let files = files(&settings, &process, 90_000, data);
        let names: Vec<&str> = files.iter().map(|(name, _)| &name[..]).collect();
        assert_eq!(names, ["controller.toml", "node-1.toml", "node-2.toml", "node-3.toml"]);
        let controller: ControllerConfig = from_text(&files[0].1).unwrap();
        assert_eq!((controller.replace_after, controller.data), (90_000, data.join("controller")));
        let node: NodeConfig = from_text(&files[2].1).unwrap();
        assert_eq!((node.process(), node.pool_size), (process.clone(), settings.pool_len));
        assert_eq!(node.listen().targets, "127.0.0.3:6579".parse().unwrap());
        let text = text(&settings, &process, 90_000, data, "gabion").unwrap();
        let expected = "# gabion group create NAME --nodes node-1,node-2,node-3 --min-replicas 2 \
                        --ack replicated --memtable-size 16MiB --compression none --controller \
                        127.0.0.1:7400\n";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn several_groups_stand_for_nodes_that_hold_a_replica_of_each() {
        let wanted = FixedOptions { groups: Some(4), ..FixedOptions::default() };
        let settings = settings(&wanted);
        let process = ProcessOptions::default();
        let files = files(&settings, &process, 1_000, Path::new("/d"));
        let node: NodeConfig = from_text(&files[1].1).unwrap();
        assert_eq!(node.groups_max(), 4);
        assert_eq!(node.listen().of_place(3).clients, "127.0.0.2:6432".parse().unwrap());
        let text = text(&settings, &process, 1_000, Path::new("/d"), "gabion").unwrap();
        let expected = "NAME --nodes node-1,node-2,node-3 --groups 4 --replicas 3 --min-replicas 2";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn a_group_without_a_controller_stands_for_no_commands() {
        let alone = FixedOptions { replicas: Some(1), ..FixedOptions::default() };
        let process = ProcessOptions::default();
        let error = text(&settings(&alone), &process, 1, Path::new("/d"), "gabion").unwrap_err();
        assert_eq!(error.message(), NO_CONTROLLER);
    }
}
