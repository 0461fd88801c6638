//! Sources of programs as they were published, from Debian's packages of sources. They are kept
//! under the target directory, so that later runs find them.

use crate::cluster::{output, run};
use crate::steps::{Step, target_directory};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A package of sources. Its archive has one directory, `PACKAGE-VERSION`.
pub(crate) struct Source {
    package: &'static str,
    version: &'static str,
    archive: &'static str,
}

/// Redis, with the tests of the version that Debian's `redis-server` is.
pub(crate) const REDIS: Source =
    Source { package: "redis", version: "7.0.15", archive: "redis_7.0.15.orig.tar.gz" };

/// SQLite, with the tests of the version that Debian's `sqlite3` is.
pub(crate) const SQLITE: Source =
    Source { package: "sqlite3", version: "3.40.1", archive: "sqlite3_3.40.1.orig.tar.xz" };

/// The directory of downloads and of the suites' outputs.
pub(crate) fn directory() -> Result<PathBuf, String> {
    let directory = Path::new(&target_directory()?).join("suites");
    make_directory(&directory)?;
    Ok(directory)
}

impl Source {
    /// The directory of the source, unpacked.
    pub(crate) fn directory(&self) -> Result<PathBuf, String> {
        let Self { package, version, archive } = self;
        let directory = directory()?;
        let unpacked_name = format!("{package}-{version}");
        let source = directory.join(&unpacked_name);
        if source.exists() {
            return Ok(source);
        }
        let apt = directory.join("apt");
        let options = sources_of_packages(&apt)?;
        let apt_get = |words: &[&str]| {
            let mut command = Command::new("apt-get");
            run(command.args(&options).args(["-qq"]).args(words).current_dir(&apt))
        };
        apt_get(&["update"])?;
        let shown = output(Command::new("apt-cache").args(&options).args(["showsrc", package]))?;
        let versions: Vec<&str> =
            shown.lines().filter_map(|line| line.strip_prefix("Version: ")).collect();
        let is_wanted = |found: &&&str| found.contains(&format!("{version}-"));
        let found = versions.iter().find(is_wanted).ok_or_else(|| {
            format!("the system's package sources have {package} {versions:?}, not {version}")
        })?;
        apt_get(&["source", "--download-only", &format!("{package}={found}")])?;
        let archive = apt.join(archive);
        // Renamed when it is complete.
        run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&apt))?;
        let unpacked = apt.join(unpacked_name);
        fs::rename(&unpacked, &source)
            .map_err(|error| format!("{}: {error}", unpacked.display()))?;
        Ok(source)
    }
}

/// Options with which apt reads source packages from the system's package sources. They leave the
/// system's own configuration and lists alone.
fn sources_of_packages(apt: &Path) -> Result<Vec<String>, String> {
    let _ = fs::remove_dir_all(apt);
    for part in ["sources", "lists/partial", "cache/archives/partial"] {
        make_directory(&apt.join(part))?;
    }
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    files.extend(
        fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten().map(|f| f.path()),
    );
    for file in files {
        let is_list = file.extension().is_some_and(|end| end == "list" || end == "sources");
        let Some(name) = file.file_name().filter(|_| is_list) else { continue };
        let Ok(text) = fs::read_to_string(&file) else { continue };
        let lines: Vec<String> = text.lines().map(for_sources).collect();
        let copy = apt.join("sources").join(name);
        fs::write(&copy, lines.join("\n") + "\n")
            .map_err(|error| format!("{}: {error}", copy.display()))?;
    }
    let at = |name: &str, place: &str| format!("{name}={}", apt.join(place).display());
    let places = [
        at("Dir::Etc::SourceList", "none"),
        at("Dir::Etc::SourceParts", "sources"),
        at("Dir::State::Lists", "lists"),
        at("Dir::Cache", "cache"),
        "APT::Sandbox::User=root".to_owned(),
    ];
    Ok(places.into_iter().flat_map(|place| ["-o".to_owned(), place]).collect())
}

/// A line of a list of packages as one of sources, in either of apt's two formats.
fn for_sources(line: &str) -> String {
    match line.strip_prefix("deb ") {
        Some(rest) => format!("deb-src {rest}"),
        None if line.starts_with("Types:") => "Types: deb-src".to_owned(),
        None => line.to_owned(),
    }
}

fn make_directory(path: &Path) -> Step {
    fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_of_packages_are_turned_into_lists_of_sources() {
        assert_eq!(for_sources("deb [a=b] c d e"), "deb-src [a=b] c d e");
        assert_eq!(for_sources("Types: deb"), "Types: deb-src");
        assert_eq!(for_sources("Suites: d"), "Suites: d");
    }
}
