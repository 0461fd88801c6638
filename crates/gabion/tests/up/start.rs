//! Starts that cannot succeed, each with one sentence that names what is missing.

use super::unprivileged::unprivileged;
use super::{GABION, Place, said};
use std::process::{Command, Output, Stdio};

/// The one line of a start that ends at once.
fn refusal(output: &Output) -> String {
    let text = said(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    let last = text.trim_end().lines().last().unwrap_or_default().to_owned();
    assert!(last.starts_with("gabion: "), "{text}");
    last
}

#[test]
fn files_that_are_missing_are_named_with_what_to_do_about_it() {
    let place = Place::new("missing");
    let port = place.port.to_string();
    let up = place.up(&["--replicas", "2"]);
    up.signal("-TERM");
    assert_eq!(up.wait(), 0);
    let again = || refusal(&place.run(&["up", "--port", &port]));
    for name in ["replica-2", "replica-1/pool"] {
        let (path, aside) = (place.data.join(name), place.data.join("aside"));
        std::fs::rename(&path, &aside).unwrap();
        let text = again();
        let missing = format!("{} is missing: put it back", path.display());
        assert!(text.contains(&missing) && text.contains("`gabion destroy`"), "{text}");
        assert!(!text.contains("log") && !place.data.join("replica-2/log.old").exists(), "{text}");
        std::fs::rename(&aside, &path).unwrap();
    }
    let (path, aside) = (place.data.join("cluster.json"), place.data.join("aside"));
    std::fs::rename(&path, &aside).unwrap();
    let missing = format!("{} is missing: put it back from a copy", path.display());
    assert!(again().contains(&missing));
    for words in [&["status"][..], &["cli", "ping"], &["destroy", "--yes"], &["verify"]] {
        let text = refusal(&place.run(words));
        assert!(text.contains(&missing) && text.ends_with("nothing was touched"), "{text}");
    }
    std::fs::rename(&aside, &path).unwrap();
    let up = place.up(&[]);
    up.signal("-TERM");
    assert_eq!(up.wait(), 0);
}

#[test]
fn too_few_descriptors_end_a_start_at_once_with_how_many_are_needed() {
    let place = Place::new("few-descriptors");
    for limit in [24, 40] {
        let script = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, GABION, "up", "--data"]).arg(&place.data);
        command.args(["--port", &place.port.to_string(), "--pool-size", "256MiB"]);
        command.args(["--replicas", "1"]).stdin(Stdio::null());
        let output = unprivileged(|| command.output().unwrap());
        let text = refusal(&output);
        let sentence = format!("the process may have {limit} descriptors (ulimit -n), and needs ");
        assert!(text.contains(&sentence), "{text}");
        assert_eq!(said(&output).matches(&sentence).count(), 1, "it is not tried again");
    }
}
