//! Everything that the status page shows: nodes, groups, and what is wrong with each.

use super::*;
use crate::control::{page, unix_ms};
use crate::judgement::{self, Around, Kind, Problem, SeatNote, Severity};
use gabion_server::metrics::Route;

/// The status page of a controller, which may lead or stand by.
#[derive(Clone, Default)]
pub(crate) struct StatusPage(Arc<Mutex<Standing>>);

#[derive(Clone, Default)]
enum Standing {
    #[default]
    Starting,
    /// Why it does not lead.
    By(String),
    Leads(Arc<Registrar>),
}

impl StatusPage {
    /// It looks after the groups from now on.
    pub(crate) fn lead(&self, registrar: Arc<Registrar>) {
        self.set(Standing::Leads(registrar));
    }

    /// It does not, or not any more.
    pub(crate) fn stand_by(&self, why: &str) {
        self.set(Standing::By(why.to_owned()));
    }

    fn set(&self, standing: Standing) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = standing;
    }

    /// The paths of the page.
    pub(crate) fn routes(&self) -> Vec<Route> {
        let own = self.clone();
        page::routes(move || own.status())
    }

    fn status(&self) -> Result<Value> {
        // A controller that gains or loses the lead does not wait for a page.
        let standing = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let why = match standing {
            Standing::Leads(registrar) => return registrar.overview(),
            Standing::Starting => "it begins".to_owned(),
            Standing::By(why) => why,
        };
        let problem = Problem::new(
            Kind::Store,
            Severity::Warn,
            format!("This controller does not look after the groups: {why}."),
            "Groups serve on; open the page of the controller that leads.",
        );
        Ok(page::envelope("gabion controller", &[], &[], &[problem.json()]))
    }
}

impl Registrar {
    fn overview(&self) -> Result<Value> {
        let inner = self.lock();
        let mut groups = Vec::new();
        for spec in inner.registry.groups().filter(|spec| !spec.is_gone()) {
            let question = json!({ "do": "status", "group": spec.name });
            let group = spec.group()?;
            let mut told = match self.told(&inner, &question) {
                Ok(mut answer) => answer["group"].take(),
                Err(error) if error.kind() == ErrorKind::Busy => inner.in_the_making(spec, group),
                Err(error) => return Err(error),
            };
            told["load"] = self.driver.history(group);
            groups.push(told);
        }
        let mut problems = inner.of_nodes();
        judgement::sort(&mut problems);
        let problems: Vec<Value> = problems.iter().map(Problem::json).collect();
        let nodes = inner.nodes();
        Ok(page::envelope("gabion controller", &groups, &nodes, &problems))
    }
}

impl Inner {
    /// Facts for the judgement of a group besides its replicas' reports.
    pub(super) fn around(&self, spec: &GroupSpec, group: GroupId, driver: &Handle) -> Around {
        let is_here = |node: &str| self.heard.get(node).is_some_and(Heard::is_here);
        let seats = spec.seats.iter().map(|seat| {
            let word = self.heard.get(&seat.node).and_then(|it| it.word(group, seat.replica));
            let note = SeatNote {
                node: seat.node.clone(),
                trouble: word.and_then(|word| word.trouble.clone()),
                aside: word.and_then(|word| word.aside.clone()),
                is_away: !is_here(&seat.node),
                is_expired: driver.is_expired(group, ReplicaId(seat.replica)),
            };
            (ReplicaId(seat.replica), note)
        });
        let several = self.registry.groups().filter(|spec| !spec.is_gone()).count() > 1;
        Around {
            group: several.then(|| spec.name.clone()),
            seats: seats.collect(),
            store: driver.store_failure(),
            controller_until_s: driver.certificate_until_s(),
            unix_s: (unix_ms() / 1_000).cast_signed(),
        }
    }

    /// A group whose founders make their pools.
    fn in_the_making(&self, spec: &GroupSpec, group: GroupId) -> Value {
        let text = format!("Group {} is being made.", spec.name);
        let advice = "`gabion group list` says how far each of its nodes is.";
        let mut problems = vec![Problem::new(Kind::Starting, Severity::Note, text, advice)];
        for seat in self.seats(spec, group) {
            if let Some(trouble) = seat["trouble"].as_str() {
                let node = seat["node"].as_str().unwrap_or_default();
                let text = format!("Node {node} cannot make its replica: {trouble}.");
                let advice = "It tries again by itself.";
                problems.push(Problem::new(Kind::Trouble, Severity::Warn, text, advice));
            }
        }
        let problems: Vec<Value> = problems.iter().map(Problem::json).collect();
        json!({ "name": spec.name, "problems": problems, "replicas": [], "events": [] })
    }

    /// Nodes that are away, where no lost replica says so.
    fn of_nodes(&self) -> Vec<Problem> {
        let away = |node: &&NodeRecord| {
            let holds = self.registry.seats_of(&node.name).next().is_some();
            !holds && !self.heard.get(&node.name).is_some_and(Heard::is_here)
        };
        let tell = |node: &NodeRecord| {
            let text = format!("Node {} is away; it holds no replica.", node.name);
            let advice = "Start `gabion node` there, or leave it: nothing waits for it.";
            Problem::new(Kind::NodeAway, Severity::Note, text, advice)
        };
        self.registry.nodes().filter(away).map(tell).collect()
    }
}
