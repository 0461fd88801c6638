//! The steps of the suites. Each prints its command; the first that fails ends the suite.

use crate::{
    clients, etcd, failovers, faults, kills, ncl, page, porcupine, ratchet, redis, rooms, shipping,
    suites,
};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Result of a step: nothing, or a sentence about the failure.
pub(crate) type Step = Result<(), String>;

/// Runs a program to its end; fails with the command line when the program does.
pub(crate) fn run(program: &str, args: &[&str], env: &[(&str, &str)]) -> Step {
    let line = format!("{program} {}", args.join(" "));
    println!("\n── {line}");
    let start = Instant::now();
    let mut command = Command::new(program);
    command.args(args).envs(env.iter().copied());
    let status = command.status().map_err(|error| format!("{line}: {error}"))?;
    println!("── {:.0} s", start.elapsed().as_secs_f64());
    if status.success() { Ok(()) } else { Err(format!("{line}: {status}")) }
}

fn cargo(args: &[&str]) -> Step {
    run("cargo", args, &[])
}

/// Has tests with optimisations check the results of the cores' steps (`CHECKED` there), as others
/// do.
pub(crate) const CHECKED: (&str, &str) = ("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");

/// Runs tests, and shows their output. No failure is not enough: at least one must have run.
pub(crate) fn test(args: &[&str], env: &[(&str, &str)]) -> Step {
    tests_of("cargo", &[&["test"], args].concat(), &[&[CHECKED], env].concat()).map(drop)
}

/// How many tests passed in a program that runs some.
///
/// When one failed, and when none ran: `cargo test` ends well if a filter fits no test, as after a
/// rename.
fn tests_of(program: &str, args: &[&str], env: &[(&str, &str)]) -> Result<u64, String> {
    let line = format!("{program} {}", args.join(" "));
    println!("\n── {line}");
    let start = Instant::now();
    let failed = |error: std::io::Error| format!("{line}: {error}");
    let mut command = Command::new(program);
    command.args(args).envs(env.iter().copied()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let said = child.stdout.take().ok_or_else(|| format!("{line}: nothing can be heard"))?;
    let mut passed = 0;
    for text in BufReader::new(said).split(b'\n') {
        let text = text.map_err(failed)?;
        let text = String::from_utf8_lossy(&text);
        println!("{text}");
        passed += passed_in(&text);
    }
    let status = child.wait().map_err(failed)?;
    println!("── {passed} tests, {:.0} s", start.elapsed().as_secs_f64());
    match (status.success(), passed) {
        (false, _) => Err(format!("{line}: {status}")),
        (true, 0) => Err(format!("{line}: it passed without one test that ran")),
        (true, passed) => Ok(passed),
    }
}

/// How many tests passed by the last line of a test program
/// (`test result: ok. 3 passed; 0 failed; …`); 0 for any other line.
fn passed_in(line: &str) -> u64 {
    let result =
        line.strip_prefix("test result: ").and_then(|result| result.split_once(" passed;"));
    let count = result.and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok());
    count.unwrap_or(0)
}

/// Format, numbers that may only improve, lints, links of documentation, licences, the arrows
/// between rooms, tests by fault.
pub(crate) fn check() -> Step {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["fmt", "--all", "--check", "--manifest-path", "peers/Cargo.toml"])?;
    ratchet::check()?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    // Links of public items lead to public items; those of the rest lead somewhere.
    let doc = ["doc", "--workspace", "--no-deps", "--keep-going"];
    let strict = [("RUSTDOCFLAGS", "-D warnings")];
    run("cargo", &doc, &strict)?;
    run("cargo", &[&doc[..], &["--document-private-items"]].concat(), &strict)?;
    rooms::check()?;
    faults::check(std::env::var_os("GABION_REWRITE").is_some())
}

/// The steps of `.ci/run`.
pub(crate) fn ci() -> Step {
    // The README's own command first: a newcomer meets it first.
    test(&[], &[])?;
    // No default members: a newcomer's test command should not build them.
    for package in ["xtask", "gabion-baseline"] {
        test(&["-p", package], &[])?;
    }
    check()?;
    seeds(300)?;
    planted()?;
    interleavings()?;
    redis::check()?;
    suites::check(None)?;
    clients::check(&[])?;
    kills::check_all()?;
    failovers::check(failovers::ROUNDS)?;
    shipping::check()?;
    etcd::check()?;
    page::check()?;
    ncl::check(ncl::KILLS)?;
    guest()
}

/// Defects, of the prototypes among others, planted in the node: a checker of whole clusters or of
/// crash points must catch each.
pub(crate) fn planted() -> Step {
    let sim = ["-p", "gabion-sim", "--features", "planted", "--test"];
    test(&[&sim[..], &["planted"]].concat(), &[])?;
    test(&[&sim[..], &["failover", "planted::"]].concat(), &[])?;
    test(&[&sim[..], &["sim", "planted::"]].concat(), &[])?;
    let ncl = ["-p", "gabion-ncl", "--features", "planted", "--test", "ncl", "planted::"];
    test(&ncl, &[])
}

/// The skip list's readers beside its writer, wakers of tasks, and everything else that threads
/// share without a lock, in every order of their steps. It is a build of its own, as its atomics
/// are other ones. It lies beside the usual build, which would have to be made again otherwise.
pub(crate) fn interleavings() -> Step {
    let target = format!("{}/loom", target_directory()?);
    let lib = ["-p", "gabion-engine", "-p", "gabion-media", "-p", "gabion-db", "--lib"];
    let only = ["--target-dir", &target, "interleavings::"];
    test(&[&lib[..], &only].concat(), &[("RUSTFLAGS", "--cfg loom")])
}

/// The checked-out commit.
pub(crate) fn head_commit() -> Result<String, String> {
    let output = Command::new("git").args(["rev-parse", "--short=7", "HEAD"]).output();
    let commit = output.map_err(|error| format!("git rev-parse: {error}"))?;
    Ok(String::from_utf8_lossy(&commit.stdout).trim().to_owned())
}

/// More seeds of the simulator than `cargo test` runs; the first seed follows from the commit.
pub(crate) fn seeds(count: u32) -> Step {
    let commit = head_commit()?;
    let first = u64::from_str_radix(&commit, 16).unwrap_or(0) * 1_000;
    println!("seeds {first} to {} (from commit {commit})", first + u64::from(count) - 1);
    some_seeds("seeds", first, u64::from(count))?;
    log_seeds(first, u64::from(count))?;
    // The first, always the same; the soak takes others (docs/testing.md).
    println!("groups whose controller leaves members out and takes them back");
    porcupine::failovers(1, u64::from(count))?;
    println!("the same operations under every set of options");
    test(&["-p", "gabion-sim", "--test", "sim", "metamorphic::"], &[("GABION_TIMES", "10")])
}

/// Seeds of one test of the simulator, from `first` on.
pub(crate) fn some_seeds(test: &str, first: u64, count: u64) -> Step {
    let env = [("GABION_SEEDS", &*count.to_string()), ("GABION_FIRST_SEED", &*first.to_string())];
    run_covering(test, &env)
}

/// Seeds of near-compute logs, from `first` on.
pub(crate) fn log_seeds(first: u64, count: u64) -> Step {
    let (many, from) = (count.to_string(), first.to_string());
    let env = [("GABION_SEEDS", &*many), ("GABION_FIRST_SEED", &*from)];
    test(&["-p", "gabion-ncl", "--test", "ncl", "seeds::"], &env)
}

/// Runs tests of the simulator and shows their coverage: each test prints a line of it. The rest of
/// their output is shown when they fail. A test without such a line proves nothing.
pub(crate) fn run_covering(test: &str, env: &[(&str, &str)]) -> Step {
    let args = ["test", "-p", "gabion-sim", "--test", test, "--", "--nocapture"];
    let line = format!("cargo {}", args.join(" "));
    println!("\n── {line}");
    let start = Instant::now();
    let failed = |error: std::io::Error| format!("{line}: {error}");
    let mut command = Command::new("cargo");
    command.args(args).envs(env.iter().copied()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let (mut covered, mut others) = (0, Vec::new());
    let said = child.stderr.take().ok_or_else(|| format!("{line}: nothing can be heard"))?;
    for text in BufReader::new(said).split(b'\n') {
        let text = text.map_err(failed)?;
        let text = String::from_utf8_lossy(&text);
        match text.strip_prefix("coverage: ") {
            Some(what) => {
                covered += 1;
                println!("{what}");
            }
            None => others.push(text.into_owned()),
        }
    }
    let status = child.wait().map_err(failed)?;
    println!("── {:.0} s", start.elapsed().as_secs_f64());
    if !status.success() {
        return Err(format!("{}\n{line}: {status}", others.join("\n")));
    }
    if covered == 0 {
        return Err(format!("{line}: it passed and did not say what it covered"));
    }
    Ok(())
}

/// Our initiator against a foreign target, and our target against its initiator.
pub(crate) fn guest() -> Step {
    let examples = ["--example", "foreign_target", "--example", "foreign_host"];
    cargo(&[&["build", "--release", "-p", "gabion-fabric"][..], &examples].concat())?;
    let built = format!("{}/release/examples", target_directory()?);
    run(".ci/nvmet-guest", &[&format!("{built}/foreign_target")], &[])?;
    run(&format!("{built}/foreign_host"), &[".ci/nvmet-guest", "--host"], &[])
}

/// Cargo's build directory, whatever the environment or its configuration say about it.
pub(crate) fn target_directory() -> Result<String, String> {
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked"])
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let directory = metadata["target_directory"].as_str();
    directory.map(str::to_owned).ok_or_else(|| "cargo metadata: no target directory".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_passed_are_counted_by_the_last_line_of_each_program() {
        let one = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.10s";
        assert_eq!(passed_in(one), 12);
        assert_eq!(passed_in("test result: \u{1b}[32mok\u{1b}[0m. 3 passed; 0 failed"), 3);
        for other in ["", "running 5 tests", "test a ... ok", "12 passed;", "test result: 5 passed"]
        {
            assert_eq!(passed_in(other), 0, "{other}");
        }
    }

    #[test]
    fn a_program_in_which_no_test_ran_has_failed() {
        let says = |counts: [u64; 2], code: u8| {
            let lines =
                counts.map(|count| format!("echo 'test result: ok. {count} passed; 0 failed'"));
            let script = format!("{}; {}; exit {code}", lines[0], lines[1]);
            tests_of("sh", &["-c", &script], &[])
        };
        assert_eq!(says([3, 0], 0), Ok(3));
        assert_eq!(says([3, 4], 0), Ok(7));
        assert!(says([0, 0], 0).unwrap_err().ends_with("it passed without one test that ran"));
        assert!(says([3, 0], 1).unwrap_err().ends_with("exit status: 1"));
    }
}
