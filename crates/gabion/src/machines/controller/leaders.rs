//! Controllers over one etcd: one leads, the others stand by.
//!
//! ```text
//!   stands by ─► leads: reads everything, next epoch, door open ─► signal: gives the lead up, ends
//!       ▲                 │ the lease is lost
//!       └── door closed ◄─┘
//! ```
//!
//! Nothing of a lead is kept for the next one: another controller may have led in between. A
//! controller that does not know yet that it leads no more has its swaps refused by etcd, and its
//! answers held back by its lease.

use super::{StatusPage, open, say_end, serve, serve_page, unwatched};
use crate::control::driver::spawn;
use crate::machines::config::ControllerConfig;
use crate::machines::trust::Certificates;
use crate::machines::{say, trust};
use gabion_base::{Error, ErrorKind, Result};
use gabion_etcd::{EtcdStore, EtcdUrl, Leadership, Led};
use gabion_tls::ClientTls;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// How long it is waited for the lead, or for its end, before signals are looked at.
const TURN: Duration = Duration::from_millis(250);
/// Pause after etcd did not answer.
const AGAIN: Duration = Duration::from_millis(500);

/// Leads whenever no other controller does, until a signal comes.
pub(super) fn run(
    config: &ControllerConfig,
    certificates: &Certificates,
    url: &EtcdUrl,
    signals: &Receiver<i32>,
) -> Result<u8> {
    let tls = config.store_tls()?;
    let page = StatusPage::default();
    let _page_door = serve_page(config, &page)?;
    let mut kept = None;
    // Whether another one has led since this one did.
    let mut takes_over = false;
    let mut told = String::new();
    let mut tell = |line: String| {
        if line != told {
            say(&line);
            told = line;
        }
    };
    loop {
        let pause = match stand_by(config, (url, tls.as_ref()), &mut kept) {
            Ok(Standing::Leads(store, leadership)) => {
                let led = (url, store, std::mem::take(&mut takes_over));
                match lead(config, certificates, led, &leadership, &page, signals) {
                    Ok(End::Signal(signal)) => {
                        say_end(signal);
                        return Ok(0);
                    }
                    Ok(End::Lost(error)) => ends_to_lead(&page, &error),
                    Err(error) if is_passing(&error) => ends_to_lead(&page, &error),
                    Err(error) => return Err(error),
                }
                Duration::ZERO
            }
            Ok(Standing::By(other)) => {
                takes_over = true;
                page.stand_by(&format!("{other} leads"));
                tell(format!("stands by: {other} leads; the store is {url}"));
                Duration::ZERO
            }
            Err(error) if is_passing(&error) => {
                page.stand_by(&format!("its store does not answer: {error}"));
                tell(format!("stands by: the store does not answer: {error}"));
                AGAIN
            }
            Err(error) => return Err(error),
        };
        match signals.recv_timeout(pause) {
            Ok(signal) => {
                say_end(signal);
                return Ok(0);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(unwatched()),
        }
    }
}

fn ends_to_lead(page: &StatusPage, error: &Error) {
    page.stand_by(&format!("it leads no more: {error}"));
    say(&format!("leads no more: {error}"));
}

/// Whether an error says that the store may answer later, or that another controller leads.
fn is_passing(error: &Error) -> bool {
    use ErrorKind::{Fenced, Io, Unavailable, Unknown};
    matches!(error.kind(), Unavailable | Unknown | Fenced | Io)
}

enum Standing {
    Leads(EtcdStore, Leadership),
    By(String),
}

/// Leads, or stands by for a turn. The store is kept for the next turn, with its connections.
fn stand_by(
    config: &ControllerConfig,
    (url, tls): (&EtcdUrl, Option<&Arc<ClientTls>>),
    kept: &mut Option<EtcdStore>,
) -> Result<Standing> {
    let mut store = kept.take().map_or_else(|| EtcdStore::open(url, tls), Ok)?;
    Ok(match store.lead(&config.listen.to_string(), TURN)? {
        Led::Leads(leadership) => Standing::Leads(store, leadership),
        Led::Other(other) => {
            *kept = Some(store);
            Standing::By(other)
        }
    })
}

enum End {
    Signal(i32),
    Lost(Error),
}

/// Looks after the groups until the lead is lost, or a signal comes.
fn lead(
    config: &ControllerConfig,
    certificates: &Certificates,
    (url, store, takes_over): (&EtcdUrl, EtcdStore, bool),
    leadership: &Leadership,
    page: &StatusPage,
    signals: &Receiver<i32>,
) -> Result<End> {
    let (registrar, _driver) = open(config, certificates.clone(), Box::new(store), takes_over)?;
    let registrar = Arc::new(registrar);
    page.lead(registrar.clone());
    let door = trust::listen("listen", config.listen, certificates)?;
    let address = door.local_addr().map_err(|e| Error::io(format!("listen: {e}")))?;
    let own = leadership.clone();
    let leads = move || own.lost(Duration::ZERO).is_none();
    let own = certificates.clone();
    let serving = move || serve(&door, &own, &registrar, &leads);
    let serving = spawn("gabion-door", serving)?;
    say(&format!("ready: leads; nodes and commands on {address}; the store is {url}"));
    let end = loop {
        if let Some(error) = leadership.lost(TURN) {
            break End::Lost(error);
        }
        match signals.try_recv() {
            Ok(signal) => break End::Signal(signal),
            Err(std::sync::mpsc::TryRecvError::Empty) => {}
            Err(_) => return Err(unwatched()),
        }
    };
    leadership.give_up();
    // The door is at its next connection.
    let _ = TcpStream::connect(address);
    let _ = serving.join();
    Ok(end)
}
