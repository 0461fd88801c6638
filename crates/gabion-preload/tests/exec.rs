//! Programs that an interposed process starts and whose calls nobody sees: they run, and whoever
//! runs them is told once.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests of a shell")]

mod common;

use common::{Run, directory, script_command};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A program of the kernel's alone, which ends with 7.
fn static_program() -> Vec<u8> {
    let (machine, code): (u8, &[u8]) = match cfg!(target_arch = "x86_64") {
        // mov edi, 7; mov eax, 231; syscall
        true => (62, &[0xbf, 7, 0, 0, 0, 0xb8, 231, 0, 0, 0, 0x0f, 0x05]),
        // mov x0, #7; mov x8, #94; svc #0
        false => (183, &[0xe0, 0, 0x80, 0xd2, 0xc8, 0x0b, 0x80, 0xd2, 1, 0, 0, 0xd4]),
    };
    let mut bytes = vec![0; 120];
    let place = 0x40_0000_u64;
    bytes[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    (bytes[16], bytes[18], bytes[20]) = (2, machine, 1);
    bytes[24..32].copy_from_slice(&(place + 120).to_le_bytes());
    (bytes[32], bytes[52], bytes[54], bytes[56]) = (64, 64, 56, 1);
    // One part, to be loaded and run.
    (bytes[64], bytes[68]) = (1, 5);
    bytes[80..88].copy_from_slice(&place.to_le_bytes());
    for at in [96, 104] {
        bytes[at..at + 8].copy_from_slice(&(120 + code.len() as u64).to_le_bytes());
    }
    bytes[113] = 0x10;
    bytes.extend_from_slice(code);
    bytes
}

fn make(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

/// docs/faults.md: N14
#[test]
fn a_static_program_runs_and_is_told_of_once_whichever_call_starts_it() {
    let home = directory("exec-static");
    let run = Run::start(&home, &home, "*.log", false);
    let calls = [
        "execve",
        "execv",
        "execvp",
        "execvpe",
        "fexecve",
        "execveat",
        "posix_spawn",
        "posix_spawnp",
    ];
    let text: String = calls
        .iter()
        .flat_map(|call| [call; 2])
        .map(|call| format!("exec {call} ./{call}\n"))
        .collect();
    let text = format!("{text}exec execvp on-the-path\nexec posix_spawnp other-on-the-path\n");
    let text = format!("{text}exec execv ./script-of-it\nexec execvp true\nexec execv ./none");
    for name in calls.iter().chain(&["on-the-path", "other-on-the-path", "of-a-script"]) {
        make(&home.join(name), &static_program());
    }
    let interpreter = format!("#! {}\n", home.join("of-a-script").display());
    make(&home.join("script-of-it"), interpreter.as_bytes());
    let path = home.join("script");
    std::fs::write(&path, text).unwrap();
    let mut command = script_command(Some(&run), &home, &path);
    let places = std::env::var("PATH").unwrap();
    let output = command.env("PATH", format!("{}:{places}", home.display())).output().unwrap();
    let (said, told) = (output.stdout, output.stderr);
    let (said, told) = (String::from_utf8(said).unwrap(), String::from_utf8(told).unwrap());
    let codes: Vec<&str> = said.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!(codes, [&["7"; 19][..], &["0", "127"]].concat(), "{said}{told}");
    let named = calls.iter().chain(&["on-the-path", "other-on-the-path", "of-a-script"]);
    for name in named.clone() {
        let sentence = format!("/{name}: it is linked statically");
        assert_eq!(told.matches(&sentence).count(), 1, "{name}: {told}");
    }
    assert_eq!(told.lines().count(), named.count(), "{told}");
    run.stop();
    std::fs::remove_dir_all(home).unwrap();
}

#[test]
fn a_shell_that_becomes_such_a_program_tells_it() {
    let home = directory("exec-shell");
    let run = Run::start(&home, &home, "*.log", false);
    make(&home.join("server"), &static_program());
    let shell = |text: &str| {
        let mut command = run.command(Path::new("/bin/sh"));
        command.args(["-c", text]).current_dir(&home).output().unwrap()
    };
    let output = shell("echo text > a.log; ./server; exec ./server");
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(7), "{told}");
    assert_eq!(told.matches("gabion: ./server: it is linked statically").count(), 1, "{told}");
    let output = shell("./server");
    assert!(output.stderr.is_empty(), "it was told in this run");
    assert_eq!(run.owner.files(), [(b"a.log".to_vec(), 5)]);
    run.stop();
    std::fs::remove_dir_all(home).unwrap();
}
