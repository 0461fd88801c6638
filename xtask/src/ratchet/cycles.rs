//! Cycles between the files of a crate: file A calls a function that file B defines.
//!
//! A call is matched by its name alone. So a name leads to a file only when that file alone of the
//! crate defines it, and for no trait. A method's name leads nowhere when a type of the standard
//! library has it too, or one of another crate. Calls of `new`, for example, are not seen. A crate
//! may have more cycles than are counted, and hardly fewer.

use super::code::{Callee, Code};
use std::collections::{BTreeMap, BTreeSet};

/// Methods of the standard library: a call of such a name mostly means those.
const STANDARD: &str = "\
    abs all and_then any append as_bytes as_mut as_ref as_slice as_str borrow bytes chain chars \
    chunks clear clone cloned cmp collect concat contains contains_key copied count drain entry \
    enumerate eq extend fill filter find finish first flush fmt fold get get_mut insert into \
    is_empty is_none is_ok is_some iter iter_mut join keys kind last len lines load lock map max \
    min next ok_or or or_else or_insert parse partition peek poll pop pop_front position pow \
    push push_back push_str range read remove repeat replace reserve resize retain rev set skip \
    sort split split_at split_off starts_with step_by store sum swap take then then_some \
    to_owned to_vec trim truncate unwrap_or values wake windows with write zip";

/// A call from one file into another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Edge<'a> {
    pub(super) from: &'a str,
    pub(super) to: &'a str,
    pub(super) line: usize,
    pub(super) name: &'a str,
}

/// Each cycle of a crate as its files, the largest first, and the calls within the cycles.
#[derive(Debug, Default)]
pub(super) struct Cycles<'a> {
    pub(super) files: Vec<Vec<&'a str>>,
    /// The calls of the pairs of files with the fewest come first.
    pub(super) calls: Vec<Edge<'a>>,
}

impl<'a> Cycles<'a> {
    /// The cycles of some files; `foreign` are the methods of other crates that they may call.
    pub(super) fn of(files: &BTreeMap<&'a str, &'a Code>, foreign: &BTreeSet<&str>) -> Self {
        let edges = edges(files, foreign);
        let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for edge in &edges {
            next.entry(edge.from).or_default().insert(edge.to);
        }
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            files.keys().map(|file| (*file, reached(file, &next))).collect();
        // Two files are in one cycle when each reaches the other.
        let together =
            |one: &str, other: &str| reached[one].contains(other) && reached[other].contains(one);
        let mut cycles: Vec<Vec<&str>> = Vec::new();
        for file in files.keys() {
            if !reached[file].contains(file) || cycles.iter().flatten().any(|one| one == file) {
                continue;
            }
            cycles.push(files.keys().copied().filter(|other| together(file, other)).collect());
        }
        cycles.sort_by_key(|cycle| std::cmp::Reverse(cycle.len()));
        let mut calls: Vec<Edge> =
            edges.iter().filter(|edge| together(edge.from, edge.to)).cloned().collect();
        let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for call in &calls {
            *counts.entry((call.from, call.to)).or_default() += 1;
        }
        calls.sort_by_key(|call| (counts[&(call.from, call.to)], call.from, call.line));
        Self { files: cycles, calls }
    }
}

/// The files that a file reaches by one call or more.
fn reached<'a>(file: &str, next: &BTreeMap<&str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = vec![file];
    while let Some(file) = open.pop() {
        for other in next.get(file).into_iter().flatten() {
            if reached.insert(*other) {
                open.push(other);
            }
        }
    }
    reached
}

fn edges<'a>(files: &BTreeMap<&'a str, &'a Code>, foreign: &BTreeSet<&str>) -> BTreeSet<Edge<'a>> {
    let foreign = |name: &str| {
        foreign.contains(name) || STANDARD.split_whitespace().any(|standard| standard == name)
    };
    let types: BTreeSet<&str> =
        files.values().flat_map(|code| &code.types).map(|name| &**name).collect();
    // The file that defines a name, nowhere when that is not sure; and whether the name is a
    // method.
    let mut defined: BTreeMap<&str, Option<(&str, bool)>> = BTreeMap::new();
    for (file, code) in files {
        for one in &code.definitions {
            let here = (!one.of_trait).then_some((*file, one.method));
            defined
                .entry(&one.name)
                .and_modify(|place| *place = (*place).filter(|place| Some(*place) == here))
                .or_insert(here);
        }
    }
    let mut edges = BTreeSet::new();
    for (from, code) in files {
        for call in &code.calls {
            let Some(Some((to, method))) = defined.get(&*call.name) else { continue };
            let fits = match &call.callee {
                Callee::Method => *method && !foreign(&call.name),
                Callee::Of(qualifier) => {
                    ["Self", "self", "super", "crate"].contains(&&**qualifier)
                        || types.contains(&**qualifier)
                }
                Callee::Imported => !method,
            };
            if fits && to != from {
                edges.insert(Edge { from, to, line: call.line, name: &call.name });
            }
        }
    }
    edges
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cycles of files `a`, `b` and so on, and the calls within them.
    fn cycles(texts: &[&str]) -> (Vec<String>, Vec<String>) {
        let names: Vec<String> =
            (b'a'..).take(texts.len()).map(|letter| char::from(letter).to_string()).collect();
        let codes: Vec<Code> = texts.iter().map(|text| Code::read(text).expect("Rust")).collect();
        let files = names.iter().map(|name| &**name).zip(&codes).collect();
        let Cycles { files, calls } = Cycles::of(&files, &BTreeSet::from(["foreign"]));
        let call = |call: &Edge| format!("{} {} {}", call.from, call.name, call.to);
        (files.iter().map(|cycle| cycle.concat()).collect(), calls.iter().map(call).collect())
    }

    #[test]
    fn files_that_call_each_other_are_a_cycle_however_long_the_way() {
        let a = "impl A { fn one(&self) { self.two() } }";
        let b = "impl A { fn two(&self) { self.three() } }";
        let c = "impl A { fn three(&self) { self.one() } }";
        let beside = "fn four() { a.one() }";
        let (files, calls) = cycles(&[a, b, c, beside]);
        assert_eq!(files, ["abc"]);
        assert_eq!(calls, ["a two b", "b three c", "c one a"]);
        assert!(cycles(&[a, b, "impl A { fn three(&self) {} }", beside]).0.is_empty());
    }

    #[test]
    fn cycles_come_by_their_size_and_rare_calls_first() {
        let (files, calls) = cycles(&[
            "fn one() { b::two(); b::two2() }",
            "mod b { fn two() { super::one() } fn two2() {} }",
            "fn three() { d::four(); d::five() } fn three2() {}",
            "mod d { fn four() { super::six(); super::three() } fn five() { super::three2() } }",
            "fn six() { super::three() }",
        ]);
        assert_eq!(files, ["cde", "ab"]);
        assert_eq!(calls[0], "b one a");
        assert_eq!(calls.len(), 9);
    }

    #[test]
    fn a_name_that_is_not_sure_leads_nowhere() {
        let one = "impl A { fn one(&self) { self.two() } }";
        let back = "impl B { fn two(&self) { self.one() } }";
        assert_eq!(cycles(&[one, back]).0, ["ab"]);
        // It is defined twice, for a trait, in a test, as no method, or by itself.
        assert!(cycles(&[one, back, "impl C { fn two(&self) {} }"]).0.is_empty());
        assert!(cycles(&[one, "impl T for B { fn two(&self) { self.one() } }"]).0.is_empty());
        assert!(cycles(&[one, &format!("#[cfg(test)] {back}")]).0.is_empty());
        assert!(cycles(&[one, "impl B { fn two() { B::one() } }"]).0.is_empty());
        assert!(cycles(&["fn one() { Vec::two() }", "fn two() { super::one() }"]).0.is_empty());
        assert!(cycles(&["fn one() { two() }", "fn two() { super::one() }"]).0.is_empty());
        assert!(cycles(&["fn one() { self::one() }"]).0.is_empty());
    }

    #[test]
    fn a_method_that_other_types_have_too_leads_nowhere() {
        let two = |name: &str| {
            let one = format!("impl A {{ fn one(&self) {{ self.{name}() }} }}");
            let back = format!("impl B {{ fn {name}(&self) {{ self.one() }} }}");
            cycles(&[&one, &back]).0
        };
        assert_eq!(two("own"), ["ab"]);
        assert!(two("foreign").is_empty());
        assert!(two("get").is_empty());
        assert!(two("zip").is_empty());
    }
}
