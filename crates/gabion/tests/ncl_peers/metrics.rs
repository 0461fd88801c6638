//! Numbers for Prometheus of the controller, of peers and of a program, before and after a peer is
//! lost.

use super::scrape::{NCL, check_names, free_port, names, scrape, sum};
use super::{House, PATIENCE, Process};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// Where numbers are served.
pub(super) struct Seen {
    pub(super) application: String,
    /// Port of the controller.
    controller: u16,
    /// Ports of peers, by their names.
    peers: RefCell<BTreeMap<String, u16>>,
}

fn address(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// The page at a port once it is as wanted: each is kept for a moment.
/// `goes_on` has the program go on meanwhile: it waits for whoever reads its lines.
fn wait(port: u16, mut goes_on: impl FnMut(), is_so: impl Fn(&str) -> bool) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        goes_on();
        let page = scrape(port);
        if is_so(&page) {
            return page;
        }
        assert!(Instant::now() < until, "it is not so:\n{page}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Seen {
    /// The controller starts anew, with numbers.
    pub(super) fn new(house: &mut House) -> Self {
        let controller = free_port();
        let options = ["--metrics", &address(controller)];
        house.controller.kill();
        house.controller = House::controller(&house.dir, house.token.as_deref(), &options);
        Self { application: address(free_port()), controller, peers: RefCell::default() }
    }

    pub(super) fn add_peer(&self, house: &mut House, index: usize) {
        let port = free_port();
        house.add_peer_with(index, &["--metrics", &address(port)]);
        let id = house.peers.last().unwrap().0.clone();
        self.peers.borrow_mut().insert(id, port);
    }

    fn port(&self) -> u16 {
        self.application.rsplit_once(':').unwrap().1.parse().unwrap()
    }

    /// This peer has a whole copy, and its numbers say so.
    pub(super) fn serves(&self, id: &str) {
        let page = scrape(self.peers.borrow()[id]);
        assert!(sum(&page, "gabion_ncl_peer_regions", &["state=\"published\""]) > 0.0, "{page}");
        assert!(sum(&page, "gabion_ncl_peer_regions_mapped", &[]) > 0.0, "{page}");
        let lent = sum(&page, "gabion_ncl_peer_memory_bytes", &["state=\"lent\""]);
        let free = sum(&page, "gabion_ncl_peer_memory_bytes", &["state=\"free\""]);
        assert!(lent > 0.0, "{page}");
        assert_eq!(lent + free, f64::from(64 << 20), "{page}");
        assert_eq!(sum(&page, "gabion_ncl_peer_application_bytes", &["app=\"test\""]), lent);
        assert_eq!(sum(&page, "gabion_ncl_peer_registered", &[id]), 1.0, "{page}");
        assert!(sum(&page, "gabion_ncl_peer_registration_age_seconds", &[]) >= 0.0, "{page}");
        assert!(sum(&page, "gabion_ncl_peer_requests_total", &["request=\"lend\""]) > 0.0);
        let over = ["over=\"unix\""];
        assert!(sum(&page, "gabion_ncl_peer_connections", &over) > 0.0, "{page}");
        assert!(sum(&page, "gabion_ncl_peer_wire_bytes_total", &over) > 0.0, "{page}");
        assert!(sum(&page, "gabion_ncl_peer_readying_seconds_total", &[]) > 0.0, "{page}");
        assert_eq!(sum(&page, "gabion_ncl_peer_refusals_total", &["request=\"write\""]), 0.0);
    }

    /// All copies are there, and writes of the program are seen.
    pub(super) fn goes_on(&self, run: &mut Process, round: u64) {
        let is_whole = |page: &str| sum(page, "gabion_ncl_app_copies", &[]) == 3.0;
        let before = wait(self.port(), || (), is_whole);
        assert_eq!(sum(&before, "gabion_ncl_app_copies_wanted", &[]), 3.0);
        assert_eq!(sum(&before, "gabion_ncl_app_copies_min", &[]), 2.0);
        assert_eq!(sum(&before, "gabion_ncl_app_ready", &[]), 1.0);
        assert_eq!(sum(&before, "gabion_ncl_app_store_failed", &[]), 0.0);
        assert!(sum(&before, "gabion_ncl_app_losses_total", &[]) < round as f64, "{before}");
        let lines = || (0..100).for_each(|_| drop(run.line()));
        let grows = |page: &str, name: &str, labels: &[&str], by: f64| {
            sum(page, name, labels) >= sum(&before, name, labels) + by
        };
        // Each number is a record at least, and has its line in the file.
        wait(self.port(), lines, |page| {
            grows(page, "gabion_ncl_app_records_total", &["state=\"acknowledged\""], 100.0)
                && grows(page, "gabion_ncl_app_sync_duration_seconds_count", &[], 100.0)
                && grows(page, "gabion_ncl_app_ring_written_bytes_total", &[], 200.0)
                && grows(page, "gabion_ncl_app_file_bytes", &["file=\"d/a.log\""], 200.0)
        });
    }

    /// A lost copy was replaced, and every metric that is named anywhere is there.
    pub(super) fn replaced(&self, round: u64) {
        let is_replaced = |page: &str| {
            sum(page, "gabion_ncl_app_losses_total", &[]) >= round as f64
                && sum(page, "gabion_ncl_app_replacements_total", &[]) >= round as f64
                && sum(page, "gabion_ncl_app_copies", &[]) == 3.0
        };
        let page = wait(self.port(), || (), is_replaced);
        assert_eq!(sum(&page, "gabion_ncl_app_peers", &["over=\"shared_memory\""]), 3.0, "{page}");
        let mut there = names(&page);
        there.extend(names(&self.controller(round)));
        // Those that were lost are not asked any more: the last one has its turn later.
        let ports: Vec<u16> = self.peers.borrow().values().copied().collect();
        let open = |port: &&u16| TcpListener::bind(("127.0.0.1", **port)).is_err();
        there.extend(names(&scrape(*ports.iter().find(open).unwrap())));
        check_names("grafana/gabion-ncl.json", &there, 5, |name| name.starts_with(NCL));
    }

    /// The controller's page, of which the numbers are those of all this.
    fn controller(&self, round: u64) -> String {
        let page = scrape(self.controller);
        let of = |name: &str, labels: &[&str]| {
            sum(&page, &format!("gabion_ncl_controller_{name}"), labels)
        };
        for (request, least) in [("greet", 4.0), ("get", 1.0), ("list", 1.0)] {
            let labels = [&*format!("request=\"{request}\""), "outcome=\"done\""];
            assert!(of("requests_total", &labels) >= least, "{page}");
        }
        let changes = ["request=\"compare_and_set\"", "outcome=\"done\""];
        // Registrations, the map at the start and after each loss, leases.
        assert!(of("requests_total", &changes) >= 6.0, "{page}");
        assert_eq!(of("flush_duration_seconds_count", &[]), of("requests_total", &changes));
        assert_eq!(of("requests_total", &["outcome=\"failed\""]), 0.0, "{page}");
        assert_eq!(of("refusals_total", &[]), 0.0, "{page}");
        // A lost one stays registered, and is silent only later.
        let registered = self.peers.borrow().len();
        assert_eq!(of("peers", &["state=\"heard\""]), registered as f64, "{page}");
        assert_eq!(of("peers", &["state=\"ended\""]), 0.0, "{page}");
        let free = of("peer_free_bytes", &[]);
        assert!(free > 0.0 && free <= f64::from(64 << 20) * registered as f64, "{page}");
        assert!(of("peer_age_seconds", &[]) >= 0.0, "{page}");
        assert_eq!(of("applications", &[]), 1.0, "{page}");
        // Each peer's, and the application's lease, map and report.
        assert_eq!(of("values", &[]), registered as f64 + 3.0, "{page}");
        assert!(of("value_bytes", &[]) > of("values", &[]), "{page}");
        // The program's, and one of each peer that was not lost.
        let (open, over) = (of("connections", &["over=\"unix\""]), ["over=\"unix\""]);
        assert!(open >= (registered as u64 - round + 1) as f64, "{page}");
        assert!(of("connections_total", &over) >= open, "{page}");
        page
    }

    /// A client without the token was refused.
    pub(super) fn refused_one(&self) {
        let refusals =
            |page: &str, labels: &[&str]| sum(page, "gabion_ncl_controller_refusals_total", labels);
        let page = wait(self.controller, || (), |page| refusals(page, &[]) > 0.0);
        assert_eq!((refusals(&page, &[]), refusals(&page, &["reason=\"token\""])), (1.0, 1.0));
    }
}
