//! Programs that can be interposed: those that the C library's loader starts, with the rights of
//! whoever starts them, and that call the kernel through the C library.

use crate::image::{self, HEAD};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Scripts that name scripts as their interpreters.
const SCRIPTS_MAX: usize = 4;

/// Finds a program as a shell does, and says whether its calls can be seen.
///
/// # Errors
/// `NotFound`, or a sentence that says why its calls cannot be seen.
pub fn find(name: &Path) -> io::Result<PathBuf> {
    let found = if name.components().count() > 1 {
        Some(name.to_path_buf())
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|one| one.join(name)).find(|one| is_executable(one))
    };
    let text = || format!("there is no program {}", name.display());
    let found = found.filter(|path| is_executable(path));
    let found = found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, text()))?;
    check(&found, SCRIPTS_MAX)?;
    Ok(found)
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|status| status.is_file() && status.permissions().mode() & 0o111 != 0)
}

fn check(path: &Path, scripts: usize) -> io::Result<()> {
    let refuse = |why: &str| {
        let text = format!("{}: {why}; its writes could not be seen", path.display());
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    };
    let file = File::open(path)?;
    if file.metadata()?.mode() & 0o6000 != 0 {
        return refuse("it runs as another user (setuid or setgid), and takes no interposer");
    }
    let read = |into: &mut [u8], at: u64| file.read_exact_at(into, at).map_or(0, |()| into.len());
    let mut head = Vec::new();
    (&file).take(HEAD as u64).read_to_end(&mut head)?;
    match (image::interpreter(&head), scripts) {
        (Some(_), 0) => refuse("scripts name scripts as their interpreters too many times"),
        (Some(interpreter), _) => check(Path::new(OsStr::from_bytes(interpreter)), scripts - 1),
        (None, _) => image::look(&head, &read).or_else(|unseen| refuse(unseen.why())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;

    const PT_INTERP: u32 = 3;
    const PT_NOTE: u32 = 4;

    fn refused(name: &str, bytes: &[u8], mode: u32) -> String {
        let id = std::process::id();
        let path = std::env::temp_dir().join(format!("gabion-program-{name}-{id}"));
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let found = find(&path);
        std::fs::remove_file(&path).unwrap();
        found.map_or_else(|error| error.to_string(), |_| String::new())
    }

    /// An executable with these program headers: kind, and the bytes that the header leads to.
    fn program(parts: &[(u32, &[u8])]) -> Vec<u8> {
        let machine = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
        let mut bytes = vec![0; 64 + 56 * parts.len()];
        bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        bytes[18] = machine;
        (bytes[32], bytes[54], bytes[56]) = (64, 56, parts.len() as u8);
        for (number, (kind, part)) in parts.iter().enumerate() {
            let (at, end) = (64 + 56 * number, bytes.len());
            bytes[at] = *kind as u8;
            bytes[at + 8..at + 16].copy_from_slice(&(end as u64).to_le_bytes());
            bytes[at + 32..at + 40].copy_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part);
        }
        bytes
    }

    /// docs/faults.md: N14
    #[test]
    fn programs_whose_calls_cannot_be_seen_are_refused_with_the_reason() {
        let loader: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";
        let go: &[u8] = b"\x04\0\0\0\x04\0\0\0\x04\0\0\0Go\0\0abcd";
        let usual = program(&[(PT_INTERP, loader)]);
        assert_eq!(refused("usual", &usual, 0o755), "");
        assert_eq!(refused("script", b"#! /bin/sh -e\n", 0o755), "");
        for (name, bytes, mode, why) in [
            ("static", program(&[]), 0o755, "linked statically"),
            ("go", program(&[(PT_INTERP, loader), (PT_NOTE, go)]), 0o755, "Go program"),
            ("musl", program(&[(PT_INTERP, b"/lib/ld-musl-x86_64.so.1\0")]), 0o755, "not ld-linux"),
            ("setuid", usual.clone(), 0o4755, "setuid"),
            ("setgid", usual.clone(), 0o2755, "setgid"),
            ("cut", usual[..70].to_vec(), 0o755, "damaged"),
            ("text", b"hello".to_vec(), 0o755, "no 64-bit program"),
            ("no-right", usual.clone(), 0o644, "there is no program"),
            ("lost", b"#!/no/such/thing\n".to_vec(), 0o755, "No such file"),
        ] {
            let said = refused(name, &bytes, mode);
            assert!(said.contains(why), "{name}: '{said}' does not say '{why}'");
        }
        assert!(find(Path::new("no-such-program-anywhere")).is_err());
    }
}
