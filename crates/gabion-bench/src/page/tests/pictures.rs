//! The page as a browser would read it: its content, the places of its texts, and no injected
//! markup.

use super::*;
use roxmltree::{Node, ParsingOptions};

/// Parses a page and hands it on.
fn with_page<T>(files: &[&[Value]], look: impl FnOnce(&roxmltree::Document<'_>) -> T) -> T {
    let page = html::page(&document(files));
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let parsed = roxmltree::Document::parse_with_options(&page, options);
    look(&parsed.unwrap_or_else(|error| panic!("{error}\n{page}")))
}

fn all<'a>(node: Node<'a, 'a>, name: &'static str) -> impl Iterator<Item = Node<'a, 'a>> {
    node.descendants().filter(move |node| node.tag_name().name() == name)
}

/// Runs that strain every plot: all workloads, three engines, names that are too long, five numbers
/// of replicas, figures from tiny to huge.
fn straining() -> Vec<Value> {
    let mut runs = ycsb();
    let (pair, mut more) = (runs[2..].to_vec(), Vec::new());
    for replicas in 4..7 {
        for mut run in pair.clone() {
            run["config"]["replicas"] = replicas.into();
            for phase in run["phases"].as_array_mut().unwrap() {
                let members = phase["replicas"].as_array_mut().unwrap();
                let last = members[2].clone();
                members.resize(replicas, last);
            }
            for operation in run["operations"].as_array_mut().unwrap() {
                operation["per_second"] = json!(99_949.0 * 10_f64.powi(replicas as i32 - 4));
            }
            more.push(run);
        }
    }
    runs.extend(more);
    runs.extend(side_by_side(pair, 2));
    runs.extend(of_clusters(&[(2, 8 << 20), (15, 97), (19, 120), (27, 51), (31, 33)]));
    let first = rows()[0].clone();
    for (i, workload) in gabion_workload::Workload::all().iter().enumerate() {
        for (k, engine) in ["gabion", "fjall", "rocksdb"].iter().enumerate() {
            let mut row = first.clone();
            row["engine"] = (*engine).into();
            let length = "-and-on".repeat(i % 4);
            row["workload"] = format!("{}{length}", workload.as_str()).into();
            row["per_second"] = json!(7.0_f64.powi(i as i32 % 9) * (k * k * 40 + 1) as f64);
            if (i, k) == (8, 2) {
                // The end of an axis, with its figure on the right.
                row["per_second"] = json!(1e9);
            }
            row["cpu_us_per_op_quiet"] = json!(if k == 0 && i == 3 { 0.0 } else { 0.7 + i as f64 });
            runs.push(row);
        }
    }
    runs
}

#[test]
fn the_page_is_well_formed_and_needs_nothing_else() {
    for files in [
        &[&ycsb()[..], &rows()][..],
        &[&straining()],
        &[&rows()[..1]],
        &[&beside_rocksdb()],
        &[&of_clusters(&[(2, 66), (31, 1000)])],
        &[&side_by_side(beside_rocksdb(), 2)],
    ] {
        with_page(files, |page| {
            let root = page.root_element();
            let ids: Vec<&str> = page.descendants().filter_map(|n| n.attribute("id")).collect();
            for (i, id) in ids.iter().enumerate() {
                assert!(!ids[..i].contains(id), "{id} is there twice");
            }
            for node in page.descendants().filter(Node::is_element) {
                let name = node.tag_name().name();
                assert!(
                    !["script", "link", "img", "iframe", "object", "use"].contains(&name),
                    "{name}"
                );
                for attribute in node.attributes() {
                    let (name, value) = (attribute.name(), attribute.value());
                    assert!(!name.starts_with("on") && name != "src", "{name}");
                    match name {
                        "href" => assert!(ids.contains(&value.trim_start_matches('#')), "{value}"),
                        "aria-labelledby" => {
                            assert!(value.split(' ').all(|id| ids.contains(&id)), "{value}");
                        }
                        _ => assert!(!value.contains("//"), "{name} is {value}"),
                    }
                }
            }
            let style = all(root, "style").next().unwrap().text().unwrap();
            assert!(!style.contains("url(") && !style.contains("@import"));
            assert!(style.contains("prefers-color-scheme: dark") && style.contains("@media print"));
            assert_eq!(root.attribute("lang"), Some("en"));
        });
    }
}

#[test]
fn every_colour_that_a_plot_names_is_in_the_style_sheet() {
    let style = include_str!("../style.css");
    with_page(&[&straining()], |page| {
        for rect in all(page.root_element(), "rect") {
            let class = rect.attribute("class").unwrap();
            let rule = style.split('.').find(|rule| {
                rule.strip_prefix(class).is_some_and(|rest| rest.starts_with([' ', ',']))
            });
            assert!(rule.is_some(), ".{class} has no colour");
        }
    });
}

#[test]
fn every_plot_has_a_name_and_a_table_of_its_figures() {
    with_page(&[&ycsb(), &rows()], |page| {
        let figures: Vec<Node<'_, '_>> = all(page.root_element(), "figure").collect();
        assert!(figures.len() > 12, "{}", figures.len());
        for figure in figures {
            let svg = figure.children().find(|node| node.tag_name().name() == "svg").unwrap();
            assert_eq!(svg.attribute("role"), Some("img"));
            for name in ["title", "desc"] {
                let node = svg.children().find(|node| node.tag_name().name() == name).unwrap();
                assert!(!node.text().unwrap().is_empty());
            }
            let table = all(figure, "table").next().unwrap();
            let bars = all(svg, "rect").count();
            let drawn = all(table, "td").filter(|cell| cell.text() != Some("–")).count();
            assert_eq!(drawn, bars, "{:?}", all(svg, "title").next().unwrap().text());
        }
    });
}

/// Left, top, right and bottom of a drawn element.
type Place = [f64; 4];

fn number(node: Node<'_, '_>, name: &str) -> f64 {
    node.attribute(name).unwrap().parse().unwrap()
}

/// The least place of a text in a font of 12 pixels.
fn place(text: Node<'_, '_>) -> Place {
    let width = 6.3 * text.text().unwrap().chars().count() as f64;
    let (x, y) = (number(text, "x"), number(text, "y"));
    let left = match text.attribute("text-anchor").unwrap() {
        "start" => x,
        "middle" => x - width / 2.0,
        _ => x - width,
    };
    [left, y - 9.0, left + width, y + 2.0]
}

#[test]
fn no_text_of_a_plot_covers_another_or_leaves_the_picture() {
    with_page(&[&straining()], |page| {
        let plots = all(page.root_element(), "svg").filter(|svg| svg.attribute("role").is_some());
        for svg in plots {
            let title = all(svg, "title").next().unwrap().text().unwrap().to_owned();
            let (width, height) = (number(svg, "width"), number(svg, "height"));
            let texts: Vec<_> =
                all(svg, "text").map(|node| (node.text().unwrap(), place(node))).collect();
            for (i, (text, [left, top, right, bottom])) in texts.iter().enumerate() {
                assert!(*left >= 0.0 && *right <= width, "{title}: {text} from {left} to {right}");
                assert!(*top >= 0.0 && *bottom <= height, "{title}: {text}");
                for (other, place) in &texts[..i] {
                    let is_beside = place[2] <= *left || *right <= place[0];
                    let is_above = place[3] <= *top || *bottom <= place[1];
                    assert!(is_beside || is_above, "{title}: {text} covers {other}");
                }
            }
            for rect in all(svg, "rect") {
                let (x, y) = (number(rect, "x"), number(rect, "y"));
                assert!(x >= 0.0 && x + number(rect, "width") <= width, "{title}");
                assert!(y >= 0.0 && y + number(rect, "height") <= height, "{title}");
            }
        }
    });
}

#[test]
fn what_a_file_says_never_becomes_markup() {
    const EVIL: &str = "</title><script>alert('1')</script>\"&|\u{7}\n## x `";
    let (mut runs, mut rows) = (ycsb(), rows());
    for run in &mut runs {
        for field in ["distribution", "ack", "compression", "version", "commit", "command"] {
            run["config"][field] = EVIL.into();
        }
        run["config"]["machine"]["name"] = EVIL.into();
        run["config"]["workloads"][1] = EVIL.into();
        run["phases"][1]["workload"] = EVIL.into();
        for operation in run["operations"].as_array_mut().unwrap() {
            if operation["workload"] == "a" {
                operation["workload"] = EVIL.into();
                operation["type"] = EVIL.into();
            }
        }
    }
    for row in &mut rows {
        for field in ["version", "workload", "log", "compression"] {
            row[field] = EVIL.into();
        }
        row["limits"] = json!([EVIL]);
        if row["engine"] != "gabion" {
            row["engine"] = EVIL.into();
        }
    }
    with_page(&[&runs, &rows], |page| {
        assert_eq!(all(page.root_element(), "script").count(), 0);
        assert_eq!(all(page.root_element(), "h2").count(), page_sections(&runs, &rows));
        let text = all(page.root_element(), "body").flat_map(|node| node.descendants());
        let told =
            text.filter_map(|node| node.text()).filter(|text| text.contains("<script>alert"));
        assert!(told.count() > 10, "it is told as it stands");
    });
    let text = summary(&[&runs, &rows]);
    assert!(!text.contains("\u{7}"));
    // An indented line is code, without markup.
    for line in text.lines().filter(|line| !line.starts_with("    ")) {
        assert!(!line.contains("<script") && !line.starts_with("## x"), "{line}");
        assert_eq!(line.matches('`').count(), line.matches("\\`").count(), "{line}");
    }
    let mut width = 0;
    for line in text.lines().filter(|line| line.starts_with('|') || line.is_empty()) {
        let found = line.replace("\\|", "").matches('|').count();
        assert!(width == 0 || found == 0 || found == width, "{line}");
        width = found;
    }
}

fn page_sections(runs: &[Value], rows: &[Value]) -> usize {
    document(&[runs, rows]).sections.len()
}
