//! A whole report, in reading order: who is ahead; the runs; the figures; the missing parts.

use super::clusters::{Experiment, experiments};
use super::document::{Block, Document, Section, Sheet};
use super::engines::{Group, groups};
use super::input::{Inputs, Origin};
use super::{clusters, commands, engines, loads, placement, replication, twitter};

/// How the ratios are read.
const LEGEND: &str = "Each figure is a ratio of medians: the first side ÷ the second. Of requests \
                      more is better, of all else less. ≈: no clear difference, as it is less than \
                      5 % or rounds of both sides overlap. CPU of a cluster is that of all its \
                      replicas until compaction is quiet, that of the machine what its processors \
                      worked until then for whatever but clients; its p99 that of writes by that of \
                      writes, and of reads (and scans) by that of reads.";

/// Puts everything together.
pub(super) fn document(inputs: &Inputs) -> Document {
    let clusters = loads::told_apart(&inputs.clusters);
    let (mixed, clusters): (Vec<_>, Vec<_>) =
        clusters.into_iter().partition(|run| run.settings.mix.is_some());
    let mixed = experiments(&mixed);
    let mixes = placement::figures(&mixed);
    let experiments = experiments(&clusters);
    let groups = groups(&inputs.engines);
    let mut sections =
        vec![head(&experiments, &mixed, &groups), runs(&experiments, &mixes, &groups)];
    sections.extend(experiments.iter().map(replication::section));
    sections.extend(twitter::sections(&experiments));
    sections.extend(mixes.iter().map(placement::Figure::section));
    sections.extend(groups.iter().map(engines::section));
    let blocks = commands::missing(&experiments, &mixes, &groups);
    sections.push(Section { title: "What is not here".to_owned(), blocks });
    Document { title: "Gabion, measured".to_owned(), sections }
}

fn head(experiments: &[Experiment<'_>], mixed: &[Experiment<'_>], groups: &[Group<'_>]) -> Section {
    let of_engines = groups.iter().flat_map(engines::verdicts);
    let verdicts: Vec<_> =
        experiments.iter().flat_map(replication::verdicts).chain(of_engines).collect();
    let of_clusters = experiments.iter().chain(mixed).flat_map(Experiment::warnings);
    let warnings: Vec<_> = of_clusters.chain(groups.iter().flat_map(Group::warnings)).collect();
    let mut blocks = Vec::new();
    if verdicts.is_empty() && !mixed.is_empty() {
        let text = "Mixes of sizes are compared in their own section, with the paper's figures.";
        blocks.push(Block::Text(text.to_owned()));
    } else if verdicts.is_empty() {
        let text = "Nothing is compared here: these runs have no other side. The last section \
                    has the commands that make one.";
        blocks.push(Block::Text(text.to_owned()));
    } else {
        blocks.push(Block::Verdicts(verdicts));
    }
    if !warnings.is_empty() {
        blocks.push(Block::Warnings(warnings));
    }
    let sheets: Vec<Sheet> = experiments
        .iter()
        .flat_map(replication::overviews)
        .chain(groups.iter().filter_map(engines::overview))
        .collect();
    if !sheets.is_empty() {
        blocks.push(Block::Text(LEGEND.to_owned()));
        blocks.extend(sheets.into_iter().map(Block::Sheet));
    }
    Section { title: "Who is ahead, by how much, at what cost".to_owned(), blocks }
}

/// The origin of the figures.
fn runs(
    experiments: &[Experiment<'_>],
    mixes: &[placement::Figure<'_>],
    groups: &[Group<'_>],
) -> Section {
    let mut blocks = Vec::new();
    for experiment in experiments {
        let origins: Vec<&Origin> = experiment.runs.iter().map(|run| &run.origin).collect();
        let mut facts = clusters::facts(experiment.settings());
        let caches = experiment.baseline_caches();
        facts.extend(caches.map(|caches| ("cache of each replica of the baseline", caches)));
        facts.push(("rounds", cluster_rounds(experiment)));
        facts.extend(provenance(&origins));
        let title = format!("Replication: {}", experiment.label);
        blocks.push(Block::Facts { title, facts });
    }
    for figure in mixes {
        let origins: Vec<&Origin> = figure.runs().map(|run| &run.origin).collect();
        let mut facts = figure.facts();
        facts.extend(provenance(&origins));
        blocks.push(Block::Facts { title: "Placement: Tebis's mixes".to_owned(), facts });
    }
    for group in groups {
        let origins: Vec<&Origin> = group.runs.iter().map(|run| &run.origin).collect();
        let mut facts = engines::facts(group);
        facts.push(("rounds", group.rounds()));
        facts.extend(provenance(&origins));
        blocks.push(Block::Facts { title: format!("Engines: {}", group.label), facts });
    }
    Section { title: "What was run".to_owned(), blocks }
}

fn provenance(origins: &[&Origin]) -> Vec<(&'static str, String)> {
    let mut times: Vec<&str> = origins.iter().filter_map(|o| o.started_at.as_deref()).collect();
    times.sort_unstable();
    let times = match times[..] {
        [] => "not recorded".to_owned(),
        [time] => time.to_owned(),
        [first, .., last] => format!("{first} to {last}"),
    };
    let commands = distinct(origins.iter().filter_map(|origin| origin.command.as_deref()));
    let files = distinct(origins.iter().map(|origin| origin.file.as_str()));
    let mut facts = vec![
        ("machine", origins[0].machine().to_owned()),
        ("program", origins[0].program().to_owned()),
        ("started", times),
        ("files", files.join(", ")),
    ];
    facts.extend(commands.into_iter().map(|command| ("command", command.to_owned())));
    facts
}

/// Each once, in the order in which they come.
fn distinct<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found = Vec::new();
    for text in texts {
        if !found.contains(&text) {
            found.push(text);
        }
    }
    found
}

fn cluster_rounds(experiment: &Experiment<'_>) -> String {
    let mut parts = Vec::new();
    for shape in experiment.shapes() {
        let rounds = |system: &str| format!("{} {system}", experiment.rounds(shape, system));
        let rounds: Vec<String> = experiment.all_systems().into_iter().map(rounds).collect();
        parts.push(format!("{shape}: {}", rounds.join(", ")));
    }
    parts.join("; ")
}
