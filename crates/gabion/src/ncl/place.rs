//! The place of a controller, as `--controller` has it.
//!
//! | PLACE | what is connected to |
//! | --- | --- |
//! | 127.0.0.1:7000 | that address |
//! | a socket | that one |
//! | a directory | its file `socket` |
//! | a path to nothing yet, in a directory that is there | either, once its controller made it |
//!
//! Peers, programs and their controller may be started at once, so a path that is not there is
//! waited for as an address that nobody serves yet. A bare word is none: it is more likely wrong.

use super::default_socket;
use super::sockets::SOCKET_PATH_MAX;
use gabion_fabric::remote::LinkAddress;
use std::io::ErrorKind;
use std::path::Path;

/// The value of `--controller`.
pub(super) fn parse_controller(text: &str) -> Result<LinkAddress, String> {
    if let Ok(address) = text.parse() {
        return Ok(LinkAddress::Tcp(address));
    }
    let path = Path::new(text);
    match path.metadata() {
        Ok(found) if found.is_dir() => Ok(LinkAddress::Unix(default_socket(path))),
        Ok(_) => Ok(LinkAddress::Unix(path.to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => not_there_yet(text, path),
        Err(error) => Err(format!("it cannot be looked at: {error}")),
    }
}

/// A path that a controller may make: each connection looks what it is by then.
fn not_there_yet(text: &str, path: &Path) -> Result<LinkAddress, String> {
    if !text.contains('/') {
        return Err("it is no address as 127.0.0.1:7000, and no socket or directory is there; a \
                    path that is waited for has a '/', as ./control"
            .to_owned());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    if !parent.is_dir() {
        let parent = parent.display();
        return Err(format!("it is not there, and neither is the directory {parent}"));
    }
    let len = default_socket(path).as_os_str().len();
    if len > SOCKET_PATH_MAX {
        return Err(format!(
            "the path of its socket would have {len} bytes, {SOCKET_PATH_MAX} or less are valid"
        ));
    }
    Ok(LinkAddress::Unix(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn unix(path: impl Into<PathBuf>) -> Result<LinkAddress, String> {
        Ok(LinkAddress::Unix(path.into()))
    }

    #[test]
    fn a_path_to_be_made_is_waited_for_and_a_word_is_refused() {
        let dir = std::env::temp_dir().join(format!("gabion-place-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("made")).unwrap();
        std::fs::write(dir.join("socket"), "").unwrap();
        let text = |name: &str| dir.join(name).to_str().unwrap().to_owned();
        let parsed = |name: &str| parse_controller(&text(name));
        let tcp = "127.0.0.1:7000".parse().unwrap();
        assert_eq!(parse_controller("127.0.0.1:7000"), Ok(LinkAddress::Tcp(tcp)));
        assert_eq!(parsed("made"), unix(dir.join("made/socket")));
        assert_eq!(parsed("socket"), unix(dir.join("socket")));
        assert_eq!(parsed("later"), unix(dir.join("later")));
        assert_eq!(parse_controller("./no-such-control"), unix("./no-such-control"));
        assert_eq!(parse_controller("no-such-control/"), unix("no-such-control/"));

        let refused = parse_controller("no-such-control").unwrap_err();
        assert!(refused.contains("no address as 127.0.0.1:7000"), "{refused}");
        let refused = parsed("none/later").unwrap_err();
        let parent = dir.join("none").display().to_string();
        assert!(refused.ends_with(&format!("neither is the directory {parent}")), "{refused}");
        let refused = parsed("socket/later").unwrap_err();
        assert!(refused.contains("cannot be looked at"), "{refused}");
        let refused = parsed(&"x".repeat(100)).unwrap_err();
        assert!(refused.contains("107 or less are valid"), "{refused}");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
