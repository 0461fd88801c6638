//! The status page in a real Chromium, under load and through a fail-over: it says what is wrong,
//! in light and dark, on a screen and on a telephone. The pictures are in `target/page`.

use crate::cluster::{Client, Cluster, need, program, run};
use crate::steps::{Step, target_directory};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(crate) const CHROMIUM: &str = "chromium-headless-shell";
/// The page of `up` is so far above its first port.
const ABOVE: u16 = 300;
/// Clients that write, each with one command at a time.
const WRITERS: u16 = 4;
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs a group, stops its head, and looks at the page before, meanwhile and afterwards.
pub(crate) fn check() -> Step {
    println!("\n── The status page in Chromium");
    let begun = Instant::now();
    need(CHROMIUM, CHROMIUM)?;
    need("node", "nodejs")?;
    let pictures = Path::new(&target_directory()?).join("page");
    std::fs::create_dir_all(&pictures)
        .map_err(|error| format!("{}: {error}", pictures.display()))?;
    let mut cluster = Cluster::new("page", &program()?, &["--pool-size", "512MiB"])?;
    cluster.start()?;
    cluster.wait_ready()?;
    let load = Load::start(&cluster);
    let well = "All is well.|Members|middle|commands now|writes until all members have them";
    look(&cluster, &pictures, &["well", well])?;
    let head = cluster.status(1)?["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let head = head.ok_or("replica 1 does not say its process id")?;
    // One that is stopped is not restarted.
    run(Command::new("kill").args(["-STOP", &head.to_string()]))?;
    let lost = "Replica 1 is lost|2 of 3 full members are left|without replica 1|lost";
    look(&cluster, &pictures, &["lost", lost])?;
    cluster.kill(&[head], false)?;
    cluster.wait_ready()?;
    look(&cluster, &pictures, &["healed", "All is well.|replica 1 is full", "offline"])?;
    load.end();
    println!("── {:.0} s; pictures in {}", begun.elapsed().as_secs_f64(), pictures.display());
    cluster.stop()
}

/// The arguments of the script: a name for the pictures, the words that the page is to say, and
/// `offline`.
fn look(cluster: &Cluster, pictures: &Path, wanted: &[&str]) -> Step {
    let seen = look_at(cluster.port + ABOVE, pictures, wanted);
    seen.map_err(|error| format!("{error}\n{}", cluster.logs()))
}

/// The same at a port of this machine.
pub(crate) fn look_at(port: u16, pictures: &Path, wanted: &[&str]) -> Step {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("page/page.mjs");
    let url = format!("http://127.0.0.1:{port}/");
    let mut command = Command::new("timeout");
    command.args(["120", "node"]).arg(script).args([CHROMIUM, &url]).arg(pictures);
    run(command.args(wanted))
}

/// Writers at the third replica, until this is ended.
struct Load {
    is_over: Arc<AtomicBool>,
    writers: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(cluster: &Cluster) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let port = cluster.port + 2;
        let write = |writer: u16| {
            let is_over = is_over.clone();
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    // During the fail-over commands may be refused, and connections end.
                    let _ = write(port, writer, &is_over);
                    std::thread::sleep(Duration::from_millis(100));
                }
            })
        };
        let writers = (0..WRITERS).map(write).collect();
        Self { is_over, writers }
    }

    fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for writer in self.writers {
            let _ = writer.join();
        }
    }
}

fn write(port: u16, writer: u16, is_over: &AtomicBool) -> Step {
    let mut client = Client::connect(port, PATIENCE)?;
    for count in 0_u64.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("{writer}:{}", count % 5_000);
        client.call(&[b"SET", key.as_bytes(), &[b'v'; 400]])?;
    }
    Ok(())
}
