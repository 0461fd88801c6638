//! The files, the crate of each, and whether it is a test file.

use super::code::{Code, Module};
use std::collections::BTreeMap;
use std::process::Command;

/// The name for files of no crate.
pub(super) const DOCUMENTS: &str = "documents";

/// The text of every file in Rust and of every document, by path.
pub(super) type Texts = BTreeMap<String, String>;

/// The output of a git command, by lines.
pub(super) fn git(args: &[&str]) -> Result<Vec<String>, String> {
    let failed = |why: String| format!("git {}: {why}", args.join(" "));
    let output = Command::new("git").args(["-c", "core.quotePath=false"]).args(args).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// All files that git has or would take.
pub(super) fn texts() -> Result<Texts, String> {
    let kinds = ["*.rs", "*.md", "*Cargo.toml"];
    let listing = ["ls-files", "--cached", "--others", "--exclude-standard", "--"];
    let mut texts = Texts::new();
    for path in git(&[&listing[..], &kinds].concat())? {
        // A removed file is still listed until the removal is committed.
        if !std::path::Path::new(&path).exists() {
            continue;
        }
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        texts.insert(path, text);
    }
    Ok(texts)
}

/// The directory of the innermost crate or workspace that has the file; "" for that of all.
pub(super) fn directory_of<'a>(path: &'a str, texts: &Texts) -> &'a str {
    let ends = path.rmatch_indices('/').map(|(end, _)| &path[..end]);
    let has = |directory: &&str| texts.contains_key(&format!("{directory}/Cargo.toml"));
    ends.into_iter().find(has).unwrap_or("")
}

/// The recorded name of the crate in a directory.
pub(super) fn name_of(directory: &str) -> &str {
    match directory {
        "" => DOCUMENTS,
        _ => directory.strip_prefix("crates/").unwrap_or(directory),
    }
}

/// The code of every crate's non-test files. Modules are followed from the files at which the
/// compiler begins, so that a file is a test file exactly if its module is.
///
/// # Errors
/// The file that is no Rust, or whose module has no file.
pub(super) fn codes(texts: &Texts) -> Result<BTreeMap<&str, Code>, String> {
    let mut codes = BTreeMap::new();
    let mut open: Vec<&str> =
        texts.keys().map(|path| &**path).filter(|path| is_root(path, texts)).collect();
    while let Some(path) = open.pop() {
        if codes.contains_key(path) {
            continue;
        }
        let code = Code::read(&texts[path]).map_err(|error| format!("{path}:{error}"))?;
        for module in &code.modules {
            let places = places(path, module, is_root(path, texts));
            let place = places.iter().find_map(|place| texts.get_key_value(place));
            let (place, _) = place.ok_or_else(|| {
                format!("{path}: module {} is in no file of {places:?}", module.names.join("::"))
            })?;
            open.push(place);
        }
        codes.insert(path, code);
    }
    Ok(codes)
}

/// Whether the compiler begins at the file, for something that is no test.
fn is_root(path: &str, texts: &Texts) -> bool {
    let directory = directory_of(path, texts);
    let Some(inside) = path[directory.len()..].strip_prefix('/') else { return false };
    match inside.split('/').collect::<Vec<_>>()[..] {
        ["build.rs"] | ["src", "lib.rs" | "main.rs"] => true,
        ["examples", file] | ["src", "bin", file] => file.ends_with(".rs"),
        _ => false,
    }
}

/// The possible places of a module's file.
fn places(path: &str, module: &Module, root: bool) -> Vec<String> {
    let (directory, file) = path.rsplit_once('/').unwrap_or(("", path));
    if let Some(path) = &module.path {
        return vec![format!("{directory}/{path}")];
    }
    let stem = file.strip_suffix(".rs").unwrap_or(file);
    let owner = if root || stem == "mod" { "" } else { &*format!("/{stem}") };
    let base = format!("{directory}{owner}/{}", module.names.join("/"));
    vec![format!("{base}.rs"), format!("{base}/mod.rs")]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(files: &[(&str, &str)]) -> Texts {
        files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_file_is_of_the_innermost_crate_around_it() {
        let texts = texts(&[("crates/gabion-x/Cargo.toml", ""), ("peers/Cargo.toml", "")]);
        let name = |path| name_of(directory_of(path, &texts));
        assert_eq!(name("crates/gabion-x/src/a.rs"), "gabion-x");
        assert_eq!(name("peers/rocksdb/src/a.rs"), "peers");
        assert_eq!(name("docs/README.md"), DOCUMENTS);
        assert_eq!(name("README.md"), DOCUMENTS);
    }

    #[test]
    fn files_are_followed_by_their_modules_and_those_of_tests_are_not() {
        let mut texts = texts(&[
            ("crates/x/Cargo.toml", ""),
            ("crates/x/src/lib.rs", "mod one; #[cfg(test)] mod tests; mod two;"),
            ("crates/x/src/one.rs", "mod inner; #[cfg(test)] mod model;"),
            ("crates/x/src/one/inner.rs", ""),
            ("crates/x/src/one/model.rs", "mod deep;"),
            ("crates/x/src/tests.rs", ""),
            ("crates/x/src/two/mod.rs", "#[path = \"odd/place.rs\"] mod odd; mod in_two;"),
            ("crates/x/src/two/odd/place.rs", ""),
            ("crates/x/src/two/in_two.rs", ""),
            ("crates/x/src/bin/tool.rs", ""),
            ("crates/x/tests/lib.rs", ""),
            ("crates/x/benches/lib.rs", ""),
        ]);
        let found: Vec<String> = codes(&texts)
            .expect("Rust")
            .keys()
            .map(|path| path["crates/x/src/".len()..].into())
            .collect();
        assert_eq!(
            found,
            [
                "bin/tool.rs",
                "lib.rs",
                "one.rs",
                "one/inner.rs",
                "two/in_two.rs",
                "two/mod.rs",
                "two/odd/place.rs"
            ]
        );
        texts.remove("crates/x/src/one/inner.rs");
        let error = codes(&texts).expect_err("a module without a file");
        assert!(error.starts_with("crates/x/src/one.rs: module inner is in no file"), "{error}");
        texts.insert("crates/x/src/one/inner.rs".into(), "\nfn (".into());
        let error = codes(&texts).expect_err("no Rust");
        assert!(error.starts_with("crates/x/src/one/inner.rs:2: "), "{error}");
    }
}
