//! The reference of metrics, `docs/reference/metrics.md`, compared with what running processes serve.

use std::collections::{BTreeMap, BTreeSet};

use postern_harness::{Installation, paths};

/// The type and the label names of a metric.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Family {
    kind: String,
    labels: BTreeSet<String>,
}

/// Returns the metrics of the reference: the rows of its tables. A label may be followed by its
/// values in parentheses.
pub(crate) fn documented() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let page = paths::read("docs/reference/metrics.md");
    let mut all = BTreeMap::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert!(cells.len() >= 4, "a row has four cells: {row}");
        let name = cells[0].trim_matches('`').to_owned();
        let mut labels = String::new();
        let mut depth = 0_u32;
        for character in cells[2].chars() {
            match character {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                _ if depth == 0 => labels.push(character),
                _ => {}
            }
        }
        let is_name = |label: &&str| label.chars().any(|letter| letter.is_ascii_alphabetic());
        let labels = labels
            .split(',')
            .map(|label| label.trim().trim_matches('`'));
        let labels = labels.filter(is_name).map(str::to_owned).collect();
        let before = all.insert(name.clone(), (cells[1].to_owned(), labels));
        assert!(before.is_none(), "{name} is documented twice");
    }
    all
}

/// Parses the text format: the type of each metric, and the labels of its samples.
fn parse(text: &str) -> BTreeMap<String, Family> {
    let mut families = BTreeMap::new();
    let mut current = None;
    for line in text.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').expect("a name and a type");
            let family = Family {
                kind: kind.to_owned(),
                labels: BTreeSet::new(),
            };
            families.insert(name.to_owned(), family);
            current = Some(name.to_owned());
        } else if let (Some(name), Some((_, rest))) = (&current, line.split_once('{')) {
            let labels = rest.rsplit_once('}').expect("a closing brace").0;
            let names = labels
                .split("\",")
                .filter_map(|label| label.split_once("=\""));
            let names = names.map(|(label, _)| label.to_owned());
            let family = families.get_mut(name).expect("declared before");
            family.labels.extend(names.filter(|label| label != "le"));
        }
    }
    families
}

/// Returns the text of all sources of the workspace.
fn sources() -> String {
    let files = paths::rust_files(&paths::repository()).into_iter();
    files
        .map(|file| std::fs::read_to_string(file).expect("a source"))
        .collect()
}

/// Asserts that the reference has the metrics of all processes, which have served requests.
pub(crate) async fn assert_documented(split: &Installation) {
    let unknown = split.surface().client();
    unknown
        .denied("/no-such-path", 401, "authentication_required")
        .await;
    let documented = documented();
    let (mut wrong, mut served) = (Vec::new(), BTreeSet::new());
    for (process, port) in split.admin_ports() {
        let url = format!("http://127.0.0.1:{port}/metrics");
        let text = reqwest::get(url)
            .await
            .expect("a response")
            .text()
            .await
            .expect("text");
        for (name, family) in parse(&text) {
            let is_equal = documented
                .get(&name)
                .is_some_and(|(kind, labels)| *kind == family.kind && *labels == family.labels);
            if !is_equal {
                wrong.push(format!(
                    "{process}: {name} {family:?}, documented: {:?}",
                    documented.get(&name)
                ));
            }
            served.insert(name);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Metrics with labels that nothing has counted are not served, but their names are in the source.
    let sources = sources();
    let is_known = |name: &str| served.contains(name) || sources.contains(&format!("\"{name}\""));
    let unknown: Vec<_> = documented.keys().filter(|name| !is_known(name)).collect();
    assert!(
        unknown.is_empty(),
        "documented, but not in any process: {unknown:?}"
    );
    assert!(served.len() > 40, "most are served: {served:?}");
}

#[test]
fn text_format_is_parsed_with_types_and_labels() {
    let text = "# HELP a_total Help\n# TYPE a_total counter\na_total{b=\"x,y=\\\"}\",c=\"z\"} 1\n\
                # TYPE d_seconds histogram\nd_seconds_bucket{e=\"f\",le=\"0.5\"} 2\n";
    let families = parse(text);
    let labels = |name: &str| families[name].labels.iter().cloned().collect::<Vec<_>>();
    assert_eq!(labels("a_total"), ["b", "c"]);
    assert_eq!(labels("d_seconds"), ["e"]);
    assert_eq!(families["d_seconds"].kind, "histogram");
}
