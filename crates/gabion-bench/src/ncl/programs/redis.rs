//! redis-server.

use super::super::house::Process;
use super::{Server, free_address, served};
use gabion_base::Result;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long it may take until it has read its log.
const PATIENCE: Duration = Duration::from_secs(120);
const TICK: Duration = Duration::from_millis(1);

pub(super) fn start(
    mut command: Command,
    log: PathBuf,
    is_synced: bool,
    records: u64,
) -> Result<Box<dyn Server>> {
    let address = free_address("redis-server")?;
    let fsync = if is_synced { "always" } else { "no" };
    command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
    command.args(["--appendonly", "yes", "--appendfsync", fsync, "--save", ""]);
    command.args(["--auto-aof-rewrite-percentage", "0"]).stdout(Stdio::null());
    let mut process = Process::start(&mut command, log)?;
    let begun = Instant::now();
    while !answers(address) {
        if process.has_ended() || begun.elapsed() > PATIENCE {
            return Err(process.ended("it served"));
        }
        thread::sleep(TICK);
    }
    Ok(served::serve("redis-server", process, address, records))
}

/// Whether it has read its log.
fn answers(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"PING\r\n")?;
        let mut said = [0; 5];
        stream.read_exact(&mut said)?;
        Ok(said == *b"+PONG")
    };
    ask().unwrap_or(false)
}
