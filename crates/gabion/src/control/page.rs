//! The status page of a controller: one page of HTML, and the JSON that its script asks for.
//!
//! ```text
//!   browser ── GET / ───────────► page.html, with its style and script
//!           ── GET /status.json ► groups, as `gabion status --json` has them, their load, problems
//! ```

use super::driver::Handle;
use super::{socket, unix_ms};
use gabion_base::{Error, GroupId, Result};
use gabion_server::metrics::Route;
use serde_json::{Value, json};

/// The paths of the page; `status` gives what it shows, and may wait for a while.
pub(crate) fn routes(status: impl Fn() -> Result<Value> + Send + 'static) -> Vec<Route> {
    vec![
        Route::html("/", include_str!("page.html")),
        Route::json("/status.json", move || Ok(status()?.to_string())),
    ]
}

/// The page's view of a group of `up`.
///
/// # Errors
/// Unavailable when the controller has ended.
pub(super) fn of_up(controller: &Handle, group: GroupId) -> Result<Value> {
    let around = socket::around(controller);
    let mut answer =
        socket::answer(&json!({ "do": "status" }), controller, group, around)?["group"].take();
    if answer.is_null() {
        return Err(Error::not_found(format!("no record of {group}")));
    }
    answer["load"] = controller.history(group);
    Ok(envelope("gabion up", &[answer], &[], &[]))
}

/// Groups, nodes, and problems that are of no group.
pub(crate) fn envelope(of: &str, groups: &[Value], nodes: &[Value], problems: &[Value]) -> Value {
    json!({
        "of": of,
        "version": env!("CARGO_PKG_VERSION"),
        "unix_ms": unix_ms(),
        "problems": problems,
        "groups": groups,
        "nodes": nodes,
    })
}
